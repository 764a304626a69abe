/* The one parameter of every GEMM kernel, passed by value.
 *
 * The kernel computes rows [0, m) of the output: the host cuts a long M into launches. The grid is
 * (tiles of n, tiles of m), the block (threads, 1, 1). Codes that are not finite count as zero in
 * the chains; where a block meets one, it applies the non-finite rule (N18) to its own outputs, so
 * the host need not look at the operands and never waits for the device. */
#ifndef MMAEMU_CUDA_ABI_H
#define MMAEMU_CUDA_ABI_H

#include "../numerics/epilogue.h"
#include "../numerics/plan.h"

#define MMAEMU_CUDA_ABI 1

/* Beside the outputs of numerics/epilogue.h: the fp32 accumulators, without scales. */
#define MMAEMU_OUT_ACCUMULATOR (-1)

struct mmaemu_cuda_request {
    mmaemu_i64 m;
    mmaemu_i64 n;
    mmaemu_i64 k;
    mmaemu_i64 lda; /* Codes from one row of a to the next; a[m][k]. */
    mmaemu_i64 ldb; /* b[n][k] */
    mmaemu_i64 ldc; /* Outputs from one row to the next; out[m][n]. */
    mmaemu_i64 slices;
    mmaemu_i64 tile;
    mmaemu_i64 promotion;
    const mmaemu_u8 *a;
    const mmaemu_u8 *b;
    void *out;
    const mmaemu_u32 *scale_a; /* Bits of one fp32 in device memory; alpha is their product. */
    const mmaemu_u32 *scale_b;
    const mmaemu_u32 *scale_result; /* Or null. */
    mmaemu_i32 partition;           /* enum mmaemu_partition */
    mmaemu_i32 format_a;            /* MMAEMU_E4M3 or MMAEMU_E5M2 */
    mmaemu_i32 format_b;
    mmaemu_i32 output; /* enum mmaemu_output, or MMAEMU_OUT_ACCUMULATOR. */
};

#endif
