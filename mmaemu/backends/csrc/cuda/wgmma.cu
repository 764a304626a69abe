/* The device's own FP8 products, wgmma m64n64k32: for devices whose unit is that of hopper.
 *
 * Computes: what wgmma does with e4m3 and e5m2 on sm_90 (N2-N6 with L = 32, F = 13), in chains that
 * the plan starts anew, promotes and adds (N8, N15, N17). On a device with another unit the
 * self-test refuses it.
 * Exact because: nothing is rounded here but by the instruction, whose accumulator is the chain,
 * and by IEEE additions of partial results to nearest even. Zeros that pad a ragged end leave the
 * accumulator as it is, which has 13 fraction bits already. A code that is not finite makes NaN of
 * outputs that the non-finite rule replaces.
 * Layout: one warp group computes 64 x 64 outputs; thread and register of an output are those of
 * the instruction. A stage is 128 codes of the 64 rows of a and of b, in blocks of 8 lines x 16
 * codes: block (k / 16, line / 8) lies at 8 * (k / 16) + line / 8. Thread t loads 64 codes of line
 * t / 2 of both, and holds those of the next stage while the unit works on this one.
 * Chain, slice, slot and total are 128 registers of a thread, so a thread may use more than 128;
 * blocks of 128 threads still leave room for two on a multiprocessor.
 * Preconditions: 128 threads; runs of the plan begin at multiples of 32 from the chain's start. */
#include "finish.cuh"

#define MMAEMU_THREADS 128
#define MMAEMU_TILE 64
#define MMAEMU_STAGE 128                   /* Codes of a line. */
#define MMAEMU_BLOCK 128                   /* Bytes of 8 lines x 16 codes. */
#define MMAEMU_SLAB (8 * MMAEMU_BLOCK)     /* Bytes of 64 lines x 16 codes. */
#define MMAEMU_OWN (MMAEMU_STAGE / 2 / 16) /* Words of 16 codes that a thread loads of a line. */

struct __align__(128) mmaemu_wgmma_memory {
    union {
        struct {
            mmaemu_u8 a[MMAEMU_TILE * MMAEMU_STAGE];
            mmaemu_u8 b[MMAEMU_TILE * MMAEMU_STAGE];
        };
        float sums[MMAEMU_TILE][MMAEMU_TILE];
    };
    mmaemu_u32 met_a[MMAEMU_TILE];
    mmaemu_u32 met_b[MMAEMU_TILE];
    struct mmaemu_walk walk;
    struct mmaemu_run run;
    int more;
};

/* A line of a or b in device memory, null outside the problem. */
struct mmaemu_line {
    const mmaemu_u8 *codes;
    int format;
};

MMAEMU_DEVICE struct mmaemu_line mmaemu_line_of(const mmaemu_u8 *codes, mmaemu_i64 stride,
                                                mmaemu_i64 lines, unsigned tile, int format)
{
    const mmaemu_i64 index = (mmaemu_i64)tile * MMAEMU_TILE + threadIdx.x / 2u;
    struct mmaemu_line line;
    line.codes = index < lines ? codes + index * stride : 0;
    line.format = format;
    return line;
}

/* 16 codes from k on, zeros from `end` on. */
MMAEMU_DEVICE uint4 mmaemu_load_16(const struct mmaemu_line &line, mmaemu_i64 k, mmaemu_i64 end)
{
    mmaemu_u32 words[4] = {0, 0, 0, 0};
    int i;
    if (!line.codes || k >= end)
        return make_uint4(0, 0, 0, 0);
    if (k + 16 <= end && (mmaemu_u64)(line.codes + k) % 16 == 0)
        return __ldg((const uint4 *)(line.codes + k));
#pragma unroll
    for (i = 0; i < 16; ++i)
        if (k + i < end)
            words[i / 4] |= (mmaemu_u32)__ldg(line.codes + k + i) << (8 * (i % 4));
    return make_uint4(words[0], words[1], words[2], words[3]);
}

MMAEMU_DEVICE void mmaemu_load_stage(const struct mmaemu_line &line, mmaemu_i64 k, mmaemu_i64 end,
                                     uint4 (&held)[MMAEMU_OWN])
{
    int i;
#pragma unroll
    for (i = 0; i < MMAEMU_OWN; ++i)
        held[i] = mmaemu_load_16(line, k + 16 * (MMAEMU_OWN * (int)(threadIdx.x % 2u) + i), end);
}

MMAEMU_DEVICE void mmaemu_store_stage(mmaemu_u8 *to, mmaemu_u32 *met, int format,
                                      const uint4 (&held)[MMAEMU_OWN])
{
    const unsigned line = threadIdx.x / 2u;
    mmaemu_u32 found = 0;
    int i;
#pragma unroll
    for (i = 0; i < MMAEMU_OWN; ++i) {
        const unsigned slab = MMAEMU_OWN * (threadIdx.x % 2u) + (unsigned)i;
        *(uint4 *)(to + slab * MMAEMU_SLAB + line / 8u * MMAEMU_BLOCK + line % 8u * 16u) = held[i];
        found |= mmaemu_not_finite(held[i].x, format) | mmaemu_not_finite(held[i].y, format) |
                 mmaemu_not_finite(held[i].z, format) | mmaemu_not_finite(held[i].w, format);
    }
    if (found)
        met[line] = 1;
}

template <int PAIR>
MMAEMU_DEVICE void mmaemu_multiply_stage(const struct mmaemu_wgmma_memory &memory,
                                         float (&chain)[32])
{
    int i;
    mmaemu_wgmma_begin();
#pragma unroll
    for (i = 0; i < MMAEMU_STAGE / 32; ++i) {
        const mmaemu_operand a =
            mmaemu_describe(memory.a + 2 * i * MMAEMU_SLAB, MMAEMU_SLAB, MMAEMU_BLOCK);
        const mmaemu_operand b =
            mmaemu_describe(memory.b + 2 * i * MMAEMU_SLAB, MMAEMU_SLAB, MMAEMU_BLOCK);
        if constexpr (PAIR == 0)
            mmaemu_wgmma_e4m3_e4m3(chain, a, b);
        else if constexpr (PAIR == 1)
            mmaemu_wgmma_e4m3_e5m2(chain, a, b);
        else if constexpr (PAIR == 2)
            mmaemu_wgmma_e5m2_e4m3(chain, a, b);
        else
            mmaemu_wgmma_e5m2_e5m2(chain, a, b);
    }
    mmaemu_wgmma_end();
}

MMAEMU_DEVICE void mmaemu_fold_32(float (&into)[32], float (&from)[32])
{
    int i;
#pragma unroll
    for (i = 0; i < 32; ++i)
        mmaemu_fold_into(into[i], from[i]);
}

/* One run of the plan: its stages, then its folds. */
template <int PAIR>
MMAEMU_DEVICE void mmaemu_wgmma_run(struct mmaemu_wgmma_memory &memory, const struct mmaemu_line &a,
                                    const struct mmaemu_line &b, float (&chain)[32])
{
    const mmaemu_i64 end = memory.run.end;
    mmaemu_i64 k = memory.run.begin;
    uint4 held_a[MMAEMU_OWN];
    uint4 held_b[MMAEMU_OWN];
    mmaemu_load_stage(a, k, end, held_a);
    mmaemu_load_stage(b, k, end, held_b);
#pragma unroll 1
    for (; k < end; k += MMAEMU_STAGE) {
        __syncthreads();
        mmaemu_store_stage(memory.a, memory.met_a, a.format, held_a);
        mmaemu_store_stage(memory.b, memory.met_b, b.format, held_b);
        mmaemu_show_to_unit();
        __syncthreads();
        mmaemu_load_stage(a, k + MMAEMU_STAGE, end, held_a);
        mmaemu_load_stage(b, k + MMAEMU_STAGE, end, held_b);
        mmaemu_multiply_stage<PAIR>(memory, chain);
    }
}

template <int PAIR>
MMAEMU_DEVICE void mmaemu_wgmma_gemm(const struct mmaemu_cuda_request &request,
                                     struct mmaemu_wgmma_memory &memory)
{
    const struct mmaemu_plan plan = mmaemu_plan_of(request);
    const struct mmaemu_line a =
        mmaemu_line_of(request.a, request.lda, request.m, blockIdx.y, request.format_a);
    const struct mmaemu_line b =
        mmaemu_line_of(request.b, request.ldb, request.n, blockIdx.x, request.format_b);
    float chain[32] = {};
    float slice[32] = {};
    float slot[32] = {};
    float total[32] = {};
    int i;
    if (threadIdx.x == 0)
        memory.walk = mmaemu_walk_start();
    if (threadIdx.x < MMAEMU_TILE) {
        memory.met_a[threadIdx.x] = 0;
        memory.met_b[threadIdx.x] = 0;
    }
#pragma unroll 1
    for (;;) {
        int fold;
        __syncthreads();
        if (threadIdx.x == 0)
            memory.more = mmaemu_walk_next(&plan, &memory.walk, &memory.run);
        __syncthreads();
        if (!memory.more)
            break;
        fold = memory.run.fold;
        mmaemu_wgmma_run<PAIR>(memory, a, b, chain);
        if (fold & MMAEMU_FOLD_CHAIN)
            mmaemu_fold_32(slice, chain);
        if (fold & MMAEMU_FOLD_SLICE)
            mmaemu_fold_32(slot, slice);
        if (fold & MMAEMU_FOLD_SLOT)
            mmaemu_fold_32(total, slot);
    }
#pragma unroll
    for (i = 0; i < 32; ++i) {
        const unsigned lane = threadIdx.x % 32u;
        const unsigned row = threadIdx.x / 32u * 16u + lane / 4u + (unsigned)i / 2u % 2u * 8u;
        memory.sums[row][(unsigned)i / 4u * 8u + lane % 4u * 2u + (unsigned)i % 2u] = total[i];
    }
    __syncthreads();
    mmaemu_finish_tile(request, &memory.sums[0][0], MMAEMU_TILE, 1.0f, memory.met_a, memory.met_b,
                       (mmaemu_i64)blockIdx.y * MMAEMU_TILE, (mmaemu_i64)blockIdx.x * MMAEMU_TILE,
                       MMAEMU_TILE, MMAEMU_TILE);
}

extern "C" __global__ void __launch_bounds__(MMAEMU_THREADS, 2)
    MMAEMU_ENTRY(struct mmaemu_cuda_request request)
{
    __shared__ struct mmaemu_wgmma_memory memory;
    switch (request.format_a * 2 + request.format_b) {
    case 0:
        mmaemu_wgmma_gemm<0>(request, memory);
        break;
    case 1:
        mmaemu_wgmma_gemm<1>(request, memory);
        break;
    case 2:
        mmaemu_wgmma_gemm<2>(request, memory);
        break;
    default:
        mmaemu_wgmma_gemm<3>(request, memory);
    }
}
