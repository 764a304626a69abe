/* A simulated tensor core: the instruction model of numerics/fdpa.h behind the matrix instructions.
 *
 * Each kind of instruction has a unit, whose properties a test may change (mmaemu_host_tensor_core)
 * to see whether the probes notice and whether the kernels depend on it. Fragments are laid out as
 * the PTX ISA says for mma.sync. */
#ifndef MMAEMU_HOST_TENSOR_CORE_H
#define MMAEMU_HOST_TENSOR_CORE_H

#include "numerics/fdpa.h"

namespace mmaemu_host
{

enum unit { UNIT_FP16 = 0, UNIT_BF16 = 1, UNIT_FP8 = 2, UNIT_WGMMA_FP8 = 3, UNIT_COUNT = 4 };

enum { WARP_SIZE = 32 };

enum rounding { ROUND_TOWARD_ZERO = 0, ROUND_NEAREST = 1, ROUND_DOWN = 2 };

/* Numbers only, in the order of tools/host_cuda.py. The first five are those of numerics/fdpa.h. */
struct tensor_core_model {
    int dot_length;
    int fraction_bits;
    int result_fraction_bits;
    int min_exponent; /* Or MMAEMU_NO_FLOOR. */
    int late;
    int align_rounding;  /* enum rounding, of each term to the common grid. */
    int result_rounding; /* enum rounding, of the sum to the result. */
    int operand_floor;   /* Operands are normalised down to this exponent, or MMAEMU_NO_FLOOR. */
    int flush_operands;  /* Subnormal operands count as zero. */
    int flush_results;   /* Subnormal results are +0. */
    int normalise;       /* Products in [2, 4) count with their own higher exponent. */
    int zeros_count;     /* Zero products take part in the maximum exponent. */
    int interleaved;     /* Steps take k mod 4 in {0, 1}, then {2, 3}, on an accumulator of +0,
                            and c is added last, to nearest. */
};

extern tensor_core_model tensor_core[UNIT_COUNT];

/* magnitude * 2^shift of a signed number, rounded in one of the ways. */
static inline mmaemu_i64 shift_rounded(mmaemu_i64 value, int shift, int how)
{
    const mmaemu_i64 cut = mmaemu_shift_toward_zero(value, shift);
    const mmaemu_u64 size = value < 0 ? 0ull - (mmaemu_u64)value : (mmaemu_u64)value;
    mmaemu_u64 rest;
    mmaemu_u64 half;
    if (shift >= 0 || how == ROUND_TOWARD_ZERO)
        return cut;
    if (shift < -62)
        return how == ROUND_DOWN && value < 0 ? -1 : 0;
    rest = size & ((1ull << -shift) - 1ull);
    half = 1ull << (-shift - 1);
    if (how == ROUND_DOWN)
        return value < 0 && rest != 0 ? cut - 1 : cut;
    if (rest > half || (rest == half && (cut & 1)))
        return value < 0 ? cut - 1 : cut + 1;
    return cut;
}

/* The sum as an fp32 with the unit's own rounding. */
static inline mmaemu_u32 to_result(mmaemu_i64 sum, int exponent, const tensor_core_model &model)
{
    const mmaemu_u64 size = sum < 0 ? 0ull - (mmaemu_u64)sum : (mmaemu_u64)sum;
    mmaemu_u32 bits;
    if (size != 0 && model.result_rounding != ROUND_TOWARD_ZERO) {
        const int top = mmaemu_high_bit(size) + exponent;
        const int unit = (top < -126 ? -126 : top) - model.result_fraction_bits;
        if (unit > exponent) {
            sum = shift_rounded(sum, exponent - unit, model.result_rounding);
            exponent = unit;
        }
    }
    bits = mmaemu_to_fp32_toward_zero(sum, exponent, model.result_fraction_bits);
    if (model.flush_results && (bits & 0x7F800000u) == 0)
        return 0;
    return bits;
}

static inline int product_exponent(mmaemu_number x, mmaemu_number y, int fraction,
                                   const tensor_core_model &model)
{
    const mmaemu_i64 product = (mmaemu_i64)x.significand * y.significand;
    const mmaemu_u64 size = (mmaemu_u64)(product < 0 ? -product : product);
    if (model.normalise && size != 0)
        return mmaemu_high_bit(size) - fraction + x.exponent + y.exponent;
    return x.exponent + y.exponent;
}

/* numerics/fdpa.h with every property free. */
static inline mmaemu_u32 variant_step(const mmaemu_number *a, const mmaemu_number *b, int count,
                                      int fraction_a, int fraction_b,
                                      const tensor_core_model &model, mmaemu_u32 c)
{
    const int aligned = !model.late && (c & 0x7FFFFFFFu) != 0;
    const mmaemu_number start = mmaemu_decode_fp32(aligned ? c : 0u);
    const int fraction = fraction_a + fraction_b;
    int found = aligned;
    int top = start.exponent;
    mmaemu_i64 sum = 0;
    mmaemu_u32 result;
    for (int k = 0; k < count; ++k) {
        const int zero = a[k].significand == 0 || b[k].significand == 0;
        const int exponent = product_exponent(a[k], b[k], fraction, model);
        if ((!zero || model.zeros_count) && (!found || exponent > top)) {
            found = 1;
            top = exponent;
        }
    }
    if (!found)
        return model.late ? mmaemu_add_nearest(0u, c) : 0u;
    if (model.min_exponent != MMAEMU_NO_FLOOR && top < model.min_exponent)
        top = model.min_exponent;
    for (int k = 0; k < count; ++k)
        sum += shift_rounded((mmaemu_i64)a[k].significand * b[k].significand,
                             a[k].exponent + b[k].exponent - fraction - (top - model.fraction_bits),
                             model.align_rounding);
    if (aligned)
        sum += shift_rounded(start.significand, start.exponent - 23 - (top - model.fraction_bits),
                             model.align_rounding);
    result = to_result(sum, top - model.fraction_bits, model);
    return model.late ? mmaemu_add_nearest(result, c) : result;
}

static inline int is_plain(const tensor_core_model &model)
{
    return model.align_rounding == ROUND_TOWARD_ZERO &&
           model.result_rounding == ROUND_TOWARD_ZERO && !model.flush_results && !model.normalise &&
           !model.zeros_count;
}

static inline mmaemu_u32 one_step(const mmaemu_number *a, const mmaemu_number *b, int count,
                                  int fraction_a, int fraction_b, const tensor_core_model &model,
                                  mmaemu_u32 c)
{
    if ((c & 0x7FFFFFFFu) >= MMAEMU_FP32_INF || !is_plain(model)) {
        if ((c & 0x7FFFFFFFu) > MMAEMU_FP32_INF)
            return MMAEMU_FP32_NAN;
        if ((c & 0x7FFFFFFFu) == MMAEMU_FP32_INF)
            return c;
        return variant_step(a, b, count, fraction_a, fraction_b, model, c);
    }
    return mmaemu_fdpa(a, b, count, fraction_a, fraction_b, model.fraction_bits,
                       model.result_fraction_bits, model.min_exponent, model.late, c);
}

/* One output of an instruction of `depth` products. */
static inline mmaemu_u32 one_output(const mmaemu_number *a, const mmaemu_number *b, int depth,
                                    int fraction_a, int fraction_b, const tensor_core_model &model,
                                    mmaemu_u32 c)
{
    mmaemu_number taken[2][64];
    mmaemu_u32 result = model.interleaved ? 0u : c;
    int count = 0;
    for (int group = 0; group < (model.interleaved ? 2 : 1); ++group) {
        for (int k = 0; k < depth; ++k) {
            if (model.interleaved && (k >> 1 & 1) != group)
                continue;
            taken[0][count] = a[k];
            taken[1][count++] = b[k];
        }
    }
    for (int k = 0; k < depth; k += model.dot_length)
        result = one_step(&taken[0][k], &taken[1][k],
                          depth - k < model.dot_length ? depth - k : model.dot_length, fraction_a,
                          fraction_b, model, result);
    return model.interleaved ? mmaemu_add_nearest(result, c) : result;
}

static inline mmaemu_number operand(mmaemu_u32 code, int format, const tensor_core_model &model)
{
    const mmaemu_format layout = mmaemu_format_of(format);
    mmaemu_number number = mmaemu_decode(layout, code);
    const int size = number.significand < 0 ? -number.significand : number.significand;
    const int unit = 1 << layout.fraction_bits;
    if (size == 0 || size >= unit)
        return number;
    if (model.flush_operands)
        number.significand = 0;
    while (model.operand_floor != MMAEMU_NO_FLOOR && number.significand != 0 &&
           number.exponent > model.operand_floor && number.significand < unit &&
           number.significand > -unit) {
        number.significand *= 2;
        number.exponent -= 1;
    }
    return number;
}

static inline int is_special(mmaemu_u32 code, int format)
{
    const mmaemu_format layout = mmaemu_format_of(format);
    const int bits = layout.exponent_bits + layout.fraction_bits;
    const mmaemu_u32 size = code & ((1u << bits) - 1u);
    if (layout.specials == MMAEMU_SPECIALS_FN)
        return size == (1u << bits) - 1u;
    return size >> layout.fraction_bits == (1u << layout.exponent_bits) - 1u;
}

/* What one lane brings to mma.sync: up to four registers of A, two of B, four accumulators. */
struct fragments {
    int unit;
    int format_a;
    int format_b;
    int depth;
    const mmaemu_u32 *a;
    const mmaemu_u32 *b;
    float *d;
};

/* A row or a column of an operand: decoded, and whether a code is Inf or NaN. */
struct vector {
    mmaemu_number values[32];
    int special;
};

/* Code k of row `row` of A (16 x depth), in the fragments of a warp. Register r of a lane holds
 * row lane / 4 + 8 * (r & 1), and the k from 4 / element_bytes * (lane % 4) on in the half r / 2.
 */
static inline mmaemu_u32 code_of_a(lane *const *lanes, int row, int k, int element_bytes)
{
    const int per_register = 4 / element_bytes;
    const int half = k / (4 * per_register);
    const int rest = k % (4 * per_register);
    const fragments *owner =
        (const fragments *)lanes[(row % 8) * 4 + rest / per_register]->operands;
    const mmaemu_u32 word = owner->a[half * 2 + row / 8];
    return word >> (8 * element_bytes * (rest % per_register)) & ((1u << (8 * element_bytes)) - 1u);
}

/* Code k of column `column` of B (depth x 8). */
static inline mmaemu_u32 code_of_b(lane *const *lanes, int column, int k, int element_bytes)
{
    const int per_register = 4 / element_bytes;
    const int half = k / (4 * per_register);
    const int rest = k % (4 * per_register);
    const fragments *owner = (const fragments *)lanes[column * 4 + rest / per_register]->operands;
    return owner->b[half] >> (8 * element_bytes * (rest % per_register)) &
           ((1u << (8 * element_bytes)) - 1u);
}

static inline void multiply_fragments(lane *const *lanes)
{
    const fragments *any = (const fragments *)lanes[0]->operands;
    const tensor_core_model &model = tensor_core[any->unit];
    const int depth = any->depth;
    const int bytes = mmaemu_format_of(any->format_a).storage_bytes;
    const int fraction_a = mmaemu_format_of(any->format_a).fraction_bits;
    const int fraction_b = mmaemu_format_of(any->format_b).fraction_bits;
    vector rows[16];
    vector columns[8];
    for (int i = 0; i < 16; ++i) {
        rows[i].special = 0;
        for (int k = 0; k < depth; ++k) {
            const mmaemu_u32 code = code_of_a(lanes, i, k, bytes);
            rows[i].values[k] = operand(code, any->format_a, model);
            rows[i].special |= is_special(code, any->format_a);
        }
    }
    for (int j = 0; j < 8; ++j) {
        columns[j].special = 0;
        for (int k = 0; k < depth; ++k) {
            const mmaemu_u32 code = code_of_b(lanes, j, k, bytes);
            columns[j].values[k] = operand(code, any->format_b, model);
            columns[j].special |= is_special(code, any->format_b);
        }
    }
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
            const fragments *owner = (const fragments *)lanes[(i % 8) * 4 + j / 2]->operands;
            float *d = &owner->d[(i / 8) * 2 + j % 2];
            mmaemu_u32 result = MMAEMU_FP32_NAN;
            if (!rows[i].special && !columns[j].special)
                result = one_output(rows[i].values, columns[j].values, depth, fraction_a,
                                    fraction_b, model, float_bits(*d));
            *d = bits_float(result);
        }
    }
}

/* mma.sync.m16n8k8 and m16n8k16 of halves, m16n8k32 of bytes: d += a * b. */
static inline void multiply_warp(float *d, const mmaemu_u32 *a, const mmaemu_u32 *b, int unit,
                                 int format_a, int format_b, int depth, site where)
{
    fragments mine = {unit, format_a, format_b, depth, a, b, d};
    lane request = {WARP_FUNCTION, 0xFFFFFFFFu, 0, 0, 32, multiply_fragments, &mine, where};
    warp_wait(request);
}

/* An operand of wgmma in shared memory, in blocks of 8 lines x 16 bytes. */
struct operand_in_memory {
    const unsigned char *start;
    unsigned k_stride;    /* Bytes to the next block in k. */
    unsigned line_stride; /* Bytes to the next 8 lines. */
};

/* 32 codes of one line. */
static inline void read_line(const operand_in_memory &from, unsigned line, int format,
                             const tensor_core_model &model, vector &to)
{
    to.special = 0;
    for (unsigned k = 0; k < 32; ++k) {
        const unsigned char code = from.start[k / 16 * from.k_stride + line / 8 * from.line_stride +
                                              line % 8 * 16 + k % 16];
        to.values[k] = operand(code, format, model);
        to.special |= is_special(code, format);
    }
}

/* wgmma.m64n64k32 for one of its 128 threads, which computes its own part: warp w has the rows
 * from 16 w on, d[4 j + 2 i + h] is row lane / 4 + 8 i, column 8 j + 2 (lane % 4) + h. */
static inline void multiply_in_memory(float (&d)[32], const operand_in_memory &a,
                                      const operand_in_memory &b, int format_a, int format_b,
                                      unsigned thread)
{
    const tensor_core_model &model = tensor_core[UNIT_WGMMA_FP8];
    const int fraction_a = mmaemu_format_of(format_a).fraction_bits;
    const int fraction_b = mmaemu_format_of(format_b).fraction_bits;
    const unsigned lane_index = thread % WARP_SIZE;
    vector rows[2];
    vector column;
    for (unsigned i = 0; i < 2; ++i)
        read_line(a, thread / WARP_SIZE * 16 + lane_index / 4 + 8 * i, format_a, model, rows[i]);
    for (unsigned j = 0; j < 16; ++j) {
        read_line(b, j / 2 * 8 + lane_index % 4 * 2 + j % 2, format_b, model, column);
        for (unsigned i = 0; i < 2; ++i) {
            float &target = d[j / 2 * 4 + i * 2 + j % 2];
            mmaemu_u32 result = MMAEMU_FP32_NAN;
            if (!rows[i].special && !column.special)
                result = one_output(rows[i].values, column.values, 32, fraction_a, fraction_b,
                                    model, float_bits(target));
            target = bits_float(result);
        }
    }
}

} // namespace mmaemu_host

#endif
