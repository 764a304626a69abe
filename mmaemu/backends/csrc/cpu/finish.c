/* What surrounds an accumulation: the search for non-finite codes, and the epilogue.
 *
 * Computes: N18 (whether there is anything to do) and N19 for arrays.
 * Exact because: numerics/epilogue.h defines the epilogue. The loops for fp32 and bf16 use the
 * hardware's fp32 multiplication, which is IEEE's in the state that mmaemu_cpu_finish sets, and
 * repair exact zeros and NaNs as the definition says.
 * Layout: arrays in order. Preconditions: count >= 0 and arrays of that size. */
#include "abi.h"
#include "../numerics/epilogue.h"
#include "floats.h"

#define PIECE 4096

/* Whether any of the codes is Inf or NaN; stops at the first piece that has one. */
MMAEMU_EXPORT mmaemu_i32 mmaemu_cpu_nonfinite(const mmaemu_u8 *codes, mmaemu_i64 rows,
                                              mmaemu_i64 columns, mmaemu_i64 ld, mmaemu_i32 format)
{
    const mmaemu_u8 limit = format == MMAEMU_E4M3 ? 0x7F : 0x7C;
    mmaemu_i64 row;
    for (row = 0; row < rows; ++row) {
        mmaemu_i64 begin;
        for (begin = 0; begin < columns; begin += PIECE) {
            const mmaemu_i64 end = mmaemu_smaller(begin + PIECE, columns);
            mmaemu_u8 largest = 0;
            mmaemu_i64 i;
            for (i = begin; i < end; ++i) {
                const mmaemu_u8 magnitude = codes[row * ld + i] & 0x7F;
                largest = magnitude > largest ? magnitude : largest;
            }
            if (largest >= limit)
                return 1;
        }
    }
    return 0;
}

typedef union {
    mmaemu_u32 bits;
    float value;
} word;

static inline mmaemu_u32 scaled(float acc, word alpha)
{
    word in;
    word y;
    mmaemu_u32 magnitude;
    in.value = acc;
    y.value = acc * alpha.value;
    magnitude = y.bits & 0x7FFFFFFFu;
    /* A zero factor and a finite other one: +0. An infinite other one made it NaN already. */
    y.bits = (in.bits & 0x7FFFFFFFu) == 0 || (alpha.bits & 0x7FFFFFFFu) == 0 ? 0u : y.bits;
    return magnitude > MMAEMU_FP32_INF ? MMAEMU_FP32_NAN : y.bits;
}

static void finish_fp32(const float *acc, mmaemu_i64 count, word alpha, mmaemu_u32 *out)
{
    mmaemu_i64 i;
    for (i = 0; i < count; ++i)
        out[i] = scaled(acc[i], alpha);
}

static void finish_bf16(const float *acc, mmaemu_i64 count, word alpha, mmaemu_u16 *out)
{
    mmaemu_i64 i;
    for (i = 0; i < count; ++i) {
        const mmaemu_u32 y = scaled(acc[i], alpha);
        const mmaemu_u32 rounded = (y + 0x7FFFu + (y >> 16 & 1u)) >> 16;
        out[i] = (mmaemu_u16)(y == MMAEMU_FP32_NAN ? 0x7FFFu : rounded);
    }
}

/* The outputs of `count` accumulators. `out` may be `acc` for fp32 outputs.
 * alpha, scale_result: bits of fp32 numbers; scale_result counts if has_scale_result. */
MMAEMU_EXPORT mmaemu_i32 mmaemu_cpu_finish(const float *acc, mmaemu_i64 count, mmaemu_u32 alpha,
                                           mmaemu_i32 has_scale_result, mmaemu_u32 scale_result,
                                           mmaemu_i32 output, void *out)
{
    float_state saved;
    word scale;
    mmaemu_i64 i;
    if (output < 0 || output >= MMAEMU_OUT_COUNT)
        return MMAEMU_BAD_MODEL;
    saved = float_state_default();
    scale.bits = alpha;
    if (output == MMAEMU_OUT_FP32)
        finish_fp32(acc, count, scale, (mmaemu_u32 *)out);
    else if (output == MMAEMU_OUT_BF16)
        finish_bf16(acc, count, scale, (mmaemu_u16 *)out);
    else
        for (i = 0; i < count; ++i) {
            const mmaemu_u32 code = mmaemu_epilogue(((const mmaemu_u32 *)acc)[i], alpha,
                                                    has_scale_result, scale_result, output);
            if (output == MMAEMU_OUT_FP16)
                ((mmaemu_u16 *)out)[i] = (mmaemu_u16)code;
            else
                ((mmaemu_u8 *)out)[i] = (mmaemu_u8)code;
        }
    float_state_restore(saved);
    return MMAEMU_OK;
}

/* The whole of a small GEMM in one call: the search, the accumulation into `out`, the epilogue
 * into `result`. 8-bit formats; ldc must be n. */
MMAEMU_EXPORT mmaemu_i32 mmaemu_cpu_gemm(struct mmaemu_request *r, void *scratch,
                                         mmaemu_i64 scratch_bytes)
{
    int status;
    if (r->format_a > MMAEMU_E5M2 || r->format_b > MMAEMU_E5M2 || r->ldc != r->n || !r->result)
        return MMAEMU_BAD_SIZE;
    if (mmaemu_cpu_nonfinite((const mmaemu_u8 *)r->a, r->m, r->k, r->lda, r->format_a) ||
        mmaemu_cpu_nonfinite((const mmaemu_u8 *)r->b, r->n, r->k, r->ldb, r->format_b))
        return MMAEMU_NONFINITE;
    status = mmaemu_cpu_run(r, scratch, scratch_bytes);
    if (status != MMAEMU_OK)
        return status;
    return mmaemu_cpu_finish(r->out, r->m * r->n, r->alpha, r->has_scale_result, r->scale_result,
                             r->output, r->result);
}
