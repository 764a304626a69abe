/* From an fp32 accumulator to the output: one scale, one or two roundings (NUMERICS N19), on bit
 * patterns. fp32 multiplications are integer arithmetic here; a kernel may use the hardware's where
 * it controls rounding and flushing. */
#ifndef MMAEMU_NUMERICS_EPILOGUE_H
#define MMAEMU_NUMERICS_EPILOGUE_H

#include "fdpa.h"

enum mmaemu_output {
    MMAEMU_OUT_FP32 = 0,
    MMAEMU_OUT_BF16 = 1,
    MMAEMU_OUT_FP16 = 2,
    MMAEMU_OUT_E4M3 = 3,
    MMAEMU_OUT_E5M2 = 4,
    MMAEMU_OUT_COUNT = 5
};

/* magnitude >> shift, rounded to nearest even. */
MMAEMU_FN mmaemu_u64 mmaemu_shift_nearest(mmaemu_u64 magnitude, int shift)
{
    mmaemu_u64 kept;
    mmaemu_u64 rest;
    if (shift <= 0)
        return magnitude << -shift;
    if (shift > 62)
        return 0;
    kept = magnitude >> shift;
    rest = magnitude & ((1ull << shift) - 1ull);
    if (rest > 1ull << (shift - 1) || (rest == 1ull << (shift - 1) && (kept & 1ull)))
        kept += 1ull;
    return kept;
}

/* IEEE fp32 multiplication, nearest even; every NaN is the canonical one. */
MMAEMU_FN mmaemu_u32 mmaemu_multiply_nearest(mmaemu_u32 x, mmaemu_u32 y)
{
    const mmaemu_u32 sign = (x ^ y) & MMAEMU_FP32_SIGN;
    const mmaemu_u32 size_x = x & 0x7FFFFFFFu;
    const mmaemu_u32 size_y = y & 0x7FFFFFFFu;
    struct mmaemu_number a;
    struct mmaemu_number b;
    mmaemu_u64 product;
    int exponent;
    int unit;
    if (size_x > MMAEMU_FP32_INF || size_y > MMAEMU_FP32_INF)
        return MMAEMU_FP32_NAN;
    if (size_x == MMAEMU_FP32_INF || size_y == MMAEMU_FP32_INF)
        return size_x == 0 || size_y == 0 ? MMAEMU_FP32_NAN : sign | MMAEMU_FP32_INF;
    if (size_x == 0 || size_y == 0)
        return sign;
    a = mmaemu_decode_fp32(size_x);
    b = mmaemu_decode_fp32(size_y);
    product = (mmaemu_u64)a.significand * (mmaemu_u64)b.significand;
    exponent = a.exponent + b.exponent - 46;
    /* The unit of the result: 24 significant bits, but never below 2^-149. */
    unit = exponent + mmaemu_high_bit(product) - 23;
    if (unit < -149)
        unit = -149;
    product = mmaemu_shift_nearest(product, unit - exponent);
    /* A carry to 2^24 is a power of two, which this conversion takes without rounding. */
    return sign | mmaemu_to_fp32_toward_zero((mmaemu_i64)product, unit, 23);
}

/* y = fma(acc, alpha, +0): an exact zero is +0, an underflow keeps its sign. */
MMAEMU_FN mmaemu_u32 mmaemu_scale(mmaemu_u32 acc, mmaemu_u32 alpha)
{
    const mmaemu_u32 product = mmaemu_multiply_nearest(acc, alpha);
    const int exact_zero = (acc & 0x7FFFFFFFu) == 0 || (alpha & 0x7FFFFFFFu) == 0;
    return exact_zero && product != MMAEMU_FP32_NAN ? 0u : product;
}

/* fp32 to a narrower format, nearest even; fp8 saturates, Inf included. */
MMAEMU_FN mmaemu_u32 mmaemu_narrow(mmaemu_u32 bits, int output)
{
    const int fraction_bits = output == MMAEMU_OUT_BF16   ? 7
                              : output == MMAEMU_OUT_FP16 ? 10
                              : output == MMAEMU_OUT_E4M3 ? 3
                                                          : 2;
    const int min_exponent = output == MMAEMU_OUT_BF16   ? -126
                             : output == MMAEMU_OUT_E4M3 ? -6
                                                         : -14;
    const int width = output == MMAEMU_OUT_E4M3 || output == MMAEMU_OUT_E5M2 ? 8 : 16;
    const mmaemu_u32 nan = (1u << (width - 1)) - 1u;
    const mmaemu_u32 largest = output == MMAEMU_OUT_BF16   ? 0x7F80u
                               : output == MMAEMU_OUT_FP16 ? 0x7C00u
                               : output == MMAEMU_OUT_E4M3 ? 0x7Eu
                                                           : 0x7Bu;
    const mmaemu_u32 magnitude = bits & 0x7FFFFFFFu;
    const mmaemu_u32 sign = bits >> 31 << (width - 1);
    struct mmaemu_number number;
    mmaemu_u64 code;
    int field;
    if (magnitude > MMAEMU_FP32_INF)
        return nan;
    if (magnitude == MMAEMU_FP32_INF)
        return sign | largest;
    number = mmaemu_decode_fp32(magnitude);
    field = number.exponent < min_exponent ? min_exponent : number.exponent;
    code = mmaemu_shift_nearest((mmaemu_u64)number.significand,
                                23 - fraction_bits + field - number.exponent);
    /* The leading bit of a normal significand adds one to the exponent field. */
    code += (mmaemu_u64)(field - min_exponent) << fraction_bits;
    return sign | (code > largest ? largest : (mmaemu_u32)code);
}

/* The whole epilogue of one accumulator. scale_result counts for fp8 outputs only. */
MMAEMU_FN mmaemu_u32 mmaemu_epilogue(mmaemu_u32 acc, mmaemu_u32 alpha, int has_scale_result,
                                     mmaemu_u32 scale_result, int output)
{
    mmaemu_u32 y = mmaemu_scale(acc, alpha);
    if (has_scale_result && output >= MMAEMU_OUT_E4M3)
        y = mmaemu_multiply_nearest(y, scale_result);
    return output == MMAEMU_OUT_FP32 ? y : mmaemu_narrow(y, output);
}

#endif
