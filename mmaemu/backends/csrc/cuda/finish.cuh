/* What every GEMM kernel does beside accumulating: the plan of a request, the non-finite rule, the
 * epilogue and the stores.
 *
 * Computes: N18 and N19 for a tile of fp32 accumulators in shared memory.
 * Exact because: fp32 multiplications are IEEE's, to nearest even and without flushing, by
 * intrinsics; numerics/epilogue.h says the same in integers, and narrows. N18 is decided by
 * classes of codes alone.
 * Layout: sums[row * stride + column] of the tile; met[line] is not zero where a row of a or of b
 * in the tile has a code that is not finite.
 * Preconditions: all threads of the block call mmaemu_finish_tile, after a barrier that follows
 * the last write to sums and met; out is aligned to its element. */
#ifndef MMAEMU_CUDA_FINISH_CUH
#define MMAEMU_CUDA_FINISH_CUH

#include "abi.h"
#include "device.h"

MMAEMU_DEVICE struct mmaemu_plan mmaemu_plan_of(const struct mmaemu_cuda_request &request)
{
    struct mmaemu_plan plan;
    plan.k = request.k;
    plan.slices = request.slices;
    plan.tile = request.tile;
    plan.promotion = request.promotion;
    plan.partition = request.partition;
    return plan;
}

/* Where a kernel stands in the walk over k: one step of at most dot_length products. */
struct mmaemu_cursor {
    struct mmaemu_walk walk;
    struct mmaemu_run run;
    mmaemu_i64 begin; /* This step's products; none where a run is empty. */
    mmaemu_i64 end;
    int fold; /* What is folded after this step. */
};

/* The next step, or 0 at the end. A cursor starts as mmaemu_cursor_start says. */
MMAEMU_DEVICE int mmaemu_cursor_next(const struct mmaemu_plan &plan, struct mmaemu_cursor &cursor,
                                     int dot_length)
{
    cursor.begin = cursor.end;
    if (cursor.begin >= cursor.run.end) {
        if (!mmaemu_walk_next(&plan, &cursor.walk, &cursor.run))
            return 0;
        cursor.begin = cursor.run.begin;
    }
    cursor.end = mmaemu_smaller(cursor.begin + dot_length, cursor.run.end);
    cursor.fold = cursor.end == cursor.run.end ? cursor.run.fold : MMAEMU_FOLD_NOTHING;
    return 1;
}

MMAEMU_DEVICE struct mmaemu_cursor mmaemu_cursor_start()
{
    struct mmaemu_cursor cursor;
    cursor.walk = mmaemu_walk_start();
    cursor.run.begin = 0;
    cursor.run.end = 0;
    cursor.run.fold = MMAEMU_FOLD_NOTHING;
    cursor.begin = 0;
    cursor.end = 0;
    cursor.fold = MMAEMU_FOLD_NOTHING;
    return cursor;
}

/* into += from, to nearest even; from = +0. */
MMAEMU_DEVICE void mmaemu_fold_into(float &into, float &from)
{
    into = __fadd_rn(into, from);
    from = 0.0f;
}

/* The magnitude of Inf; above it, or from it on in e4m3, is NaN. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_infinite_magnitude(int format)
{
    return format == MMAEMU_E4M3 ? 0x7Eu : 0x7Cu;
}

MMAEMU_DEVICE int mmaemu_is_nan(mmaemu_u32 code, int format)
{
    return (code & 0x7Fu) > mmaemu_infinite_magnitude(format);
}

MMAEMU_DEVICE int mmaemu_is_infinite(mmaemu_u32 code, int format)
{
    return format == MMAEMU_E5M2 && (code & 0x7Fu) == 0x7Cu;
}

/* Not zero where one of four codes is not finite. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_not_finite(mmaemu_u32 codes, int format)
{
    const mmaemu_u32 first = format == MMAEMU_E4M3 ? 0x7F7F7F7Fu : 0x7C7C7C7Cu;
    return __vcmpgeu4(codes & 0x7F7F7F7Fu, first);
}

/* The IEEE sum of one output if it is not finite, else 0 (N18). Reads all codes of both lines. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_nonfinite_sum(const struct mmaemu_cuda_request &request,
                                              mmaemu_i64 row, mmaemu_i64 column)
{
    const mmaemu_u8 *const a = request.a + row * request.lda;
    const mmaemu_u8 *const b = request.b + column * request.ldb;
    int positive = 0;
    int negative = 0;
    mmaemu_i64 k;
#pragma unroll 1
    for (k = 0; k < request.k; ++k) {
        const mmaemu_u32 x = a[k];
        const mmaemu_u32 y = b[k];
        if (mmaemu_is_nan(x, request.format_a) || mmaemu_is_nan(y, request.format_b))
            return MMAEMU_FP32_NAN;
        if (!mmaemu_is_infinite(x, request.format_a) && !mmaemu_is_infinite(y, request.format_b))
            continue;
        if ((x & 0x7Fu) == 0 || (y & 0x7Fu) == 0)
            return MMAEMU_FP32_NAN;
        negative |= (int)((x ^ y) & 0x80u);
        positive |= (int)(~(x ^ y) & 0x80u);
    }
    if (positive && negative)
        return MMAEMU_FP32_NAN;
    return positive ? MMAEMU_FP32_INF : negative ? MMAEMU_FP32_SIGN | MMAEMU_FP32_INF : 0u;
}

/* The scales of a request, as the epilogue wants them. */
struct mmaemu_scales {
    float alpha;
    float result;
    int has_result; /* For an fp8 output only. */
};

MMAEMU_DEVICE struct mmaemu_scales mmaemu_scales_of(const struct mmaemu_cuda_request &request)
{
    struct mmaemu_scales scales;
    scales.alpha = 1.0f;
    scales.result = 1.0f;
    scales.has_result = 0;
    if (request.output == MMAEMU_OUT_ACCUMULATOR)
        return scales;
    scales.alpha = __fmul_rn(__uint_as_float(*request.scale_a), __uint_as_float(*request.scale_b));
    scales.has_result = request.scale_result != 0 && request.output >= MMAEMU_OUT_E4M3;
    if (scales.has_result)
        scales.result = __uint_as_float(*request.scale_result);
    return scales;
}

/* The output of one accumulator: fma(sum, alpha, +0), times scale_result, narrowed. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_finish(mmaemu_u32 sum, const struct mmaemu_scales &scales,
                                       int output)
{
    const mmaemu_u32 alpha = __float_as_uint(scales.alpha);
    float product;
    mmaemu_u32 y;
    if (output == MMAEMU_OUT_ACCUMULATOR)
        return sum;
    product = __fmul_rn(__uint_as_float(sum), scales.alpha);
    y = __float_as_uint(product);
    if ((y & 0x7FFFFFFFu) > MMAEMU_FP32_INF)
        y = MMAEMU_FP32_NAN;
    else if ((sum & 0x7FFFFFFFu) == 0 || (alpha & 0x7FFFFFFFu) == 0)
        y = 0u;
    if (scales.has_result) {
        y = __float_as_uint(__fmul_rn(__uint_as_float(y), scales.result));
        if ((y & 0x7FFFFFFFu) > MMAEMU_FP32_INF)
            y = MMAEMU_FP32_NAN;
    }
    return output == MMAEMU_OUT_FP32 ? y : mmaemu_narrow(y, output);
}

MMAEMU_DEVICE void mmaemu_store(void *out, mmaemu_i64 index, mmaemu_u32 bits, int output)
{
    if (output == MMAEMU_OUT_ACCUMULATOR || output == MMAEMU_OUT_FP32)
        ((mmaemu_u32 *)out)[index] = bits;
    else if (output == MMAEMU_OUT_BF16 || output == MMAEMU_OUT_FP16)
        ((mmaemu_u16 *)out)[index] = (mmaemu_u16)bits;
    else
        ((mmaemu_u8 *)out)[index] = (mmaemu_u8)bits;
}

/* All outputs of a tile of rows x columns, whose first one is (row, column) of the problem. What
 * lies outside the problem is not written. scale: a power of two that the sums are still to be
 * multiplied by, exactly. */
MMAEMU_DEVICE void mmaemu_finish_tile(const struct mmaemu_cuda_request &request, const float *sums,
                                      int stride, float scale, const mmaemu_u32 *met_a,
                                      const mmaemu_u32 *met_b, mmaemu_i64 row, mmaemu_i64 column,
                                      int rows, int columns)
{
    const struct mmaemu_scales scales = mmaemu_scales_of(request);
    int index;
#pragma unroll 1
    for (index = (int)threadIdx.x; index < rows * columns; index += (int)blockDim.x) {
        const int i = index / columns;
        const int j = index - i * columns;
        mmaemu_u32 sum = __float_as_uint(__fmul_rn(sums[i * stride + j], scale));
        if (row + i >= request.m || column + j >= request.n)
            continue;
        if (met_a[i] | met_b[j]) {
            const mmaemu_u32 other = mmaemu_nonfinite_sum(request, row + i, column + j);
            sum = other ? other : sum;
        }
        mmaemu_store(request.out, (row + i) * request.ldc + column + j,
                     mmaemu_finish(sum, scales, request.output), request.output);
    }
}

#endif
