/* One fused dot-product-add in plain integers: the readable definition that every kernel is held
 * against (NUMERICS N2-N7), and the IEEE additions of partial results (N14-N17). fp32 values are
 * bit patterns throughout, so no result depends on a rounding mode or on flushing of subnormals. */
#ifndef MMAEMU_NUMERICS_FDPA_H
#define MMAEMU_NUMERICS_FDPA_H

#include "formats.h"

/* Products aligned below 2^(E - F) by this much or more vanish, whatever their size (|p| < 2^30).
 */
#define MMAEMU_FAR 40

/* value * 2^shift, truncated toward zero. Callers keep |value| * 2^shift below 2^62. */
MMAEMU_FN mmaemu_i64 mmaemu_shift_toward_zero(mmaemu_i64 value, int shift)
{
    mmaemu_u64 magnitude = value < 0 ? 0ull - (mmaemu_u64)value : (mmaemu_u64)value;
    if (shift >= 0)
        magnitude <<= shift;
    else
        magnitude = shift <= -MMAEMU_FAR ? 0 : magnitude >> -shift;
    return value < 0 ? -(mmaemu_i64)magnitude : (mmaemu_i64)magnitude;
}

/* A finite fp32 as significand * 2^(exponent - 23); subnormals keep exponent -126. */
MMAEMU_FN struct mmaemu_number mmaemu_decode_fp32(mmaemu_u32 bits)
{
    const mmaemu_u32 field = (bits >> 23) & 0xFFu;
    const mmaemu_i32 magnitude = (mmaemu_i32)((bits & 0x7FFFFFu) | (field ? 0x800000u : 0u));
    struct mmaemu_number number;
    number.exponent = (mmaemu_i32)(field ? field : 1u) - 127;
    number.significand = bits & MMAEMU_FP32_SIGN ? -magnitude : magnitude;
    return number;
}

/* sum * 2^exponent to fp32, truncated to result_fraction_bits (at most 23); the exponent stops at
 * -126 and a magnitude of 2^128 or more is Inf. Zero is +0 (N5, N6). */
MMAEMU_FN mmaemu_u32 mmaemu_to_fp32_toward_zero(mmaemu_i64 sum, int exponent,
                                                int result_fraction_bits)
{
    const mmaemu_u32 sign = sum < 0 ? MMAEMU_FP32_SIGN : 0u;
    const mmaemu_u64 magnitude = sum < 0 ? 0ull - (mmaemu_u64)sum : (mmaemu_u64)sum;
    int top;
    int field;
    int shift;
    mmaemu_u64 significand;
    if (magnitude == 0)
        return 0u;
    top = mmaemu_high_bit(magnitude) + exponent;
    if (top > 127)
        return sign | MMAEMU_FP32_INF;
    field = top < -126 ? -126 : top;
    shift = exponent - (field - 23);
    significand = shift >= 0 ? magnitude << shift : (shift <= -64 ? 0 : magnitude >> -shift);
    significand &= ~((1ull << (23 - result_fraction_bits)) - 1ull);
    if (significand == 0)
        return 0u;
    /* The leading bit of a normal significand adds one to the exponent field. */
    return sign | (mmaemu_u32)((mmaemu_u64)(field + 126) * 0x800000ull + significand);
}

/* IEEE fp32 addition, nearest even; every NaN is the canonical one. */
MMAEMU_FN mmaemu_u32 mmaemu_add_nearest(mmaemu_u32 x, mmaemu_u32 y)
{
    struct mmaemu_number big;
    struct mmaemu_number small;
    mmaemu_i64 sum;
    mmaemu_u64 magnitude;
    mmaemu_u64 kept;
    mmaemu_u64 rest;
    int exponent;
    int drop;
    if ((x & 0x7FFFFFFFu) > MMAEMU_FP32_INF || (y & 0x7FFFFFFFu) > MMAEMU_FP32_INF)
        return MMAEMU_FP32_NAN;
    if ((x & 0x7FFFFFFFu) == MMAEMU_FP32_INF)
        return (y ^ x) == MMAEMU_FP32_SIGN ? MMAEMU_FP32_NAN : x;
    if ((y & 0x7FFFFFFFu) == MMAEMU_FP32_INF)
        return y;
    if (((x | y) & 0x7FFFFFFFu) == 0)
        return x & y;
    big = mmaemu_decode_fp32(x);
    small = mmaemu_decode_fp32(y);
    if (big.exponent < small.exponent) {
        const struct mmaemu_number swap = big;
        big = small;
        small = swap;
    }
    /* 36 guard bits; what lies below them is kept as one sticky bit, which is enough for nearest
     * even because the larger operand is normal whenever the smaller one is shifted that far. */
    exponent = big.exponent - 23 - 36;
    sum = (mmaemu_i64)small.significand * (1ll << 36);
    drop = big.exponent - small.exponent;
    if (drop > 62)
        drop = 62;
    if (drop > 0) {
        magnitude = sum < 0 ? 0ull - (mmaemu_u64)sum : (mmaemu_u64)sum;
        rest = magnitude & ((1ull << drop) - 1ull);
        magnitude = (magnitude >> drop) | (rest != 0);
        sum = sum < 0 ? -(mmaemu_i64)magnitude : (mmaemu_i64)magnitude;
    }
    sum += (mmaemu_i64)big.significand * (1ll << 36);
    if (sum == 0)
        return 0u;
    magnitude = sum < 0 ? 0ull - (mmaemu_u64)sum : (mmaemu_u64)sum;
    drop = mmaemu_high_bit(magnitude) - 23;
    if (drop < -126 - 23 - exponent)
        drop = -126 - 23 - exponent;
    if (drop > 0) {
        kept = magnitude >> drop;
        rest = magnitude & ((1ull << drop) - 1ull);
        if (rest > (1ull << (drop - 1)) || (rest == (1ull << (drop - 1)) && (kept & 1ull)))
            kept += 1ull;
        magnitude = kept;
        exponent += drop;
    }
    /* kept has at most 25 bits and a carry leaves a zero bit below, so this truncation is exact. */
    return mmaemu_to_fp32_toward_zero(sum < 0 ? -(mmaemu_i64)magnitude : (mmaemu_i64)magnitude,
                                      exponent, 23);
}

/* One step of at most dot_length products on the accumulator c (bits of an fp32).
 *
 * a, b: count decoded operands, `stride` elements apart; the exponents of their significands' units
 * are exponent - fraction_a and exponent - fraction_b. `late`: c is added after the conversion, to
 * nearest even, instead of being aligned with the products (N7). c = Inf or NaN passes through:
 * the products are finite. */
MMAEMU_FN mmaemu_u32 mmaemu_fdpa(const struct mmaemu_number *a, const struct mmaemu_number *b,
                                 int count, int fraction_a, int fraction_b, int fraction_bits,
                                 int result_fraction_bits, int min_exponent, int late, mmaemu_u32 c)
{
    const int aligned = !late && (c & 0x7FFFFFFFu) != 0;
    struct mmaemu_number start = mmaemu_decode_fp32(aligned ? c : 0u);
    int found = aligned;
    int top = start.exponent;
    mmaemu_i64 sum = 0;
    mmaemu_u32 result;
    int k;
    if ((c & 0x7FFFFFFFu) > MMAEMU_FP32_INF)
        return MMAEMU_FP32_NAN;
    if ((c & 0x7FFFFFFFu) == MMAEMU_FP32_INF)
        return c;
    for (k = 0; k < count; ++k) {
        const int exponent = a[k].exponent + b[k].exponent;
        if (a[k].significand != 0 && b[k].significand != 0 && (!found || exponent > top)) {
            found = 1;
            top = exponent;
        }
    }
    if (!found)
        return late ? mmaemu_add_nearest(0u, c) : 0u;
    if (min_exponent != MMAEMU_NO_FLOOR && top < min_exponent)
        top = min_exponent;
    for (k = 0; k < count; ++k) {
        const mmaemu_i64 product = (mmaemu_i64)a[k].significand * b[k].significand;
        if (product != 0)
            sum += mmaemu_shift_toward_zero(product, a[k].exponent + b[k].exponent - fraction_a -
                                                         fraction_b - (top - fraction_bits));
    }
    if (aligned)
        sum += mmaemu_shift_toward_zero(start.significand,
                                        start.exponent - 23 - (top - fraction_bits));
    result = mmaemu_to_fp32_toward_zero(sum, top - fraction_bits, result_fraction_bits);
    return late ? mmaemu_add_nearest(result, c) : result;
}

#endif
