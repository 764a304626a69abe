/* fp32, bf16 and fp16 arithmetic with the rounding of the device, whatever the instruction set.
 *
 * The launch runs with round-to-nearest and without flushing of subnormals (launch.h), so float and
 * double operations below are IEEE to nearest even.
 *
 * Toward zero: the product of two floats has at most 48 significant bits and an exponent of at
 * least -298, so it is an exact normal double p. s = p + z to nearest and Knuth's two-sum give
 * p + z = s + e exactly, e being representable because the range of double is far from being left.
 * Where e has the sign opposite to s, |p + z| < |s|, and the largest double whose magnitude does
 * not exceed |p + z| is s's neighbour toward zero; otherwise it is s. Cutting that double to 24
 * significant bits, or to the grid of 2^-149, is cutting p + z itself, as either grid is a subset
 * of the doubles. */
#ifndef MMAEMU_HOST_ROUNDING_H
#define MMAEMU_HOST_ROUNDING_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && !defined(MMAEMU_HOST_PORTABLE)
#include <immintrin.h>
#define MMAEMU_HOST_AVX512 1
#else
#define MMAEMU_HOST_AVX512 0
#endif

namespace mmaemu_host
{

static inline uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float canonical(float x)
{
    return x != x ? bits_float(0x7FFFFFFFu) : x;
}

/* p + z as the double next to it in the direction of zero; `odd`: with its last bit set instead,
 * where the sum is not exact, so that a later rounding to at most 51 bits is the only one. */
static inline double exact_sum(double p, double z, bool odd)
{
    const double s = p + z;
    const double part = s - p;
    const double e = (p - (s - part)) + (z - part);
    uint64_t bits = double_bits(s);
    if (e == 0.0 || e != e)
        return s;
    if ((e < 0.0) != (s < 0.0))
        bits -= 1;
    return bits_double(odd ? bits | 1u : bits);
}

static inline float to_float_toward_zero(double x)
{
    const uint64_t magnitude = double_bits(x) & 0x7FFFFFFFFFFFFFFFull;
    const uint32_t sign = (uint32_t)(double_bits(x) >> 32) & 0x80000000u;
    const int exponent = (int)(magnitude >> 52) - 1023;
    if (exponent == 1024)
        return (float)x;
    if (exponent > 127)
        return bits_float(sign | 0x7F7FFFFFu);
    if (exponent >= -126)
        return bits_float(sign | (uint32_t)((magnitude >> 29) - ((1023ull - 127ull) << 23)));
    if (exponent < -149)
        return bits_float(sign);
    return bits_float(sign | (uint32_t)(((magnitude & 0xFFFFFFFFFFFFFull) | 1ull << 52) >>
                                        (-126 - exponent + 29)));
}

static inline float fma_toward_zero(float x, float y, float z)
{
#if MMAEMU_HOST_AVX512
    return _mm_cvtss_f32(_mm_fmadd_round_ss(_mm_set_ss(x), _mm_set_ss(y), _mm_set_ss(z),
                                            _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
    return to_float_toward_zero(exact_sum((double)x * (double)y, (double)z, false));
#endif
}

static inline float add_toward_zero(float x, float y)
{
#if MMAEMU_HOST_AVX512
    return _mm_cvtss_f32(
        _mm_add_round_ss(_mm_set_ss(x), _mm_set_ss(y), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
#else
    return to_float_toward_zero(exact_sum((double)x, (double)y, false));
#endif
}

static inline float add_nearest(float x, float y)
{
    return x + y;
}

static inline float multiply_nearest(float x, float y)
{
    return x * y;
}

static inline float fma_nearest(float x, float y, float z)
{
    return __builtin_fmaf(x, y, z);
}

/* A 16-bit float with `fraction_bits`, least exponent `min_exponent` (its largest is minus that,
 * plus one). */
static inline double decode16(uint32_t code, int fraction_bits, int min_exponent)
{
    const uint32_t fraction = code & ((1u << fraction_bits) - 1u);
    const int field = (int)(code >> fraction_bits) & ((1 << (15 - fraction_bits)) - 1);
    const uint64_t sign = (uint64_t)(code >> 15 & 1u) << 63;
    double size;
    if (field == (1 << (15 - fraction_bits)) - 1)
        return bits_double(sign | 0x7FF0000000000000ull | (uint64_t)fraction << 42);
    size = field == 0 ? (double)fraction : (double)(fraction + (1u << fraction_bits));
    size *= bits_double(
        (uint64_t)(1023 + (field == 0 ? 1 : field) - 1 + min_exponent - fraction_bits) << 52);
    return bits_double(double_bits(size) | sign);
}

static inline uint32_t encode16_nearest(double x, int fraction_bits, int min_exponent)
{
    const uint64_t magnitude = double_bits(x) & 0x7FFFFFFFFFFFFFFFull;
    const uint32_t sign = (uint32_t)(double_bits(x) >> 63) << 15;
    const uint32_t infinity = ((1u << (15 - fraction_bits)) - 1u) << fraction_bits;
    int exponent = (int)(magnitude >> 52) - 1023;
    uint64_t significand = (magnitude & 0xFFFFFFFFFFFFFull) | 1ull << 52;
    uint64_t kept;
    uint64_t rest;
    uint64_t half;
    uint32_t code;
    int drop;
    if (x != x)
        return 0x7FFFu;
    if (exponent > 1 - min_exponent)
        return sign | infinity;
    drop = 52 - fraction_bits + (exponent < min_exponent ? min_exponent - exponent : 0);
    if (drop > 55)
        return sign;
    kept = significand >> drop;
    rest = significand & ((1ull << drop) - 1ull);
    half = 1ull << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1u)) ? 1u : 0u;
    /* The leading bit of a normal significand adds one to the exponent field. */
    exponent = exponent < min_exponent ? min_exponent : exponent;
    code = (uint32_t)kept + ((uint32_t)(exponent - min_exponent) << fraction_bits);
    return sign | (code > infinity ? infinity : code);
}

/* One rounding: a product of two 16-bit floats is an exact double, and the sum is rounded to odd
 * before it is rounded to the format. */
static inline uint32_t fma16(uint32_t x, uint32_t y, uint32_t z, int fraction_bits,
                             int min_exponent)
{
    const double a = decode16(x, fraction_bits, min_exponent);
    const double b = decode16(y, fraction_bits, min_exponent);
    const double c = decode16(z, fraction_bits, min_exponent);
    return encode16_nearest(exact_sum(a * b, c, true), fraction_bits, min_exponent);
}

static inline uint32_t fma_fp16x2(uint32_t x, uint32_t y, uint32_t z)
{
    return fma16(x & 0xFFFFu, y & 0xFFFFu, z & 0xFFFFu, 10, -14) |
           fma16(x >> 16, y >> 16, z >> 16, 10, -14) << 16;
}

/* x * y + z with the last bit set where it is not exact. */
static inline uint32_t fma_to_odd(float x, float y, float z)
{
#if MMAEMU_HOST_AVX512
    const __m128 a = _mm_set_ss(x);
    const __m128 b = _mm_set_ss(y);
    const __m128 c = _mm_set_ss(z);
    const float low =
        _mm_cvtss_f32(_mm_fmadd_round_ss(a, b, c, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
    const float high =
        _mm_cvtss_f32(_mm_fmadd_round_ss(a, b, c, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
    if (low == high)
        return float_bits(high);
    return float_bits(low < 0.0f ? high : low) | 1u;
#else
    const double sum = exact_sum((double)x * (double)y, (double)z, true);
    const float cut = to_float_toward_zero(sum);
    return float_bits(cut) | ((double)cut != sum ? 1u : 0u);
#endif
}

/* bf16 is the upper half of fp32, subnormals included: the sum rounded to odd in 24 bits, and then
 * to nearest even in 8, is rounded once. */
static inline uint32_t fma_bf16(uint32_t x, uint32_t y, uint32_t z)
{
    const uint32_t bits = fma_to_odd(bits_float(x), bits_float(y), bits_float(z));
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7FFFu;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

static inline uint32_t fma_bf16x2(uint32_t x, uint32_t y, uint32_t z)
{
    return fma_bf16(x << 16, y << 16, z << 16) |
           fma_bf16(x & 0xFFFF0000u, y & 0xFFFF0000u, z & 0xFFFF0000u) << 16;
}

} // namespace mmaemu_host

#endif
