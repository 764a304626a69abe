/* One matrix instruction per block on operands and accumulators in memory: for recordings.
 *
 * mma.sync: a is 16 lines, b is 8, c and d are 16 x 8. wgmma: 64 lines each, c and d are 64 x 64. A
 * line of a or b is the instruction's k, 32 bytes or 16. c and d are fp32, or fp16 where the name
 * says so. Which group of kernels is compiled is a macro, since a device or a compiler may lack the
 * others. The instructions that the package has no use for stand here. */
#include "../../mmaemu/backends/csrc/cuda/device.h"

struct mmaemu_step_request {
    const mmaemu_u32 *a;
    const mmaemu_u32 *b;
    const void *c;
    void *d;
};

MMAEMU_DEVICE mmaemu_u32 mmaemu_step_word(const mmaemu_u32 *from, unsigned lines, unsigned words,
                                          unsigned line, unsigned word)
{
    return from[(blockIdx.x * lines + line) * words + word];
}

/* Where accumulator i of a lane lies in 16 x 8. */
MMAEMU_DEVICE unsigned mmaemu_step_place(unsigned i)
{
    return blockIdx.x * 128u + (threadIdx.x / 4u + i / 2u * 8u) * 8u + threadIdx.x % 4u * 2u +
           i % 2u;
}

#define MMAEMU_KERNEL(NAME, THREADS)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(struct mmaemu_step_request request)

#if defined(MMAEMU_STEPS_MMA)
/* Lines of 32 bytes: k = 32 of 8 bits or k = 16 of 16 bits. */
#define MMAEMU_STEP(NAME, MULTIPLY)                                                                \
    MMAEMU_KERNEL(NAME, 32)                                                                        \
    {                                                                                              \
        const unsigned group = threadIdx.x / 4u;                                                   \
        const unsigned member = threadIdx.x % 4u;                                                  \
        mmaemu_u32 a[4];                                                                           \
        mmaemu_u32 b[2];                                                                           \
        float d[4];                                                                                \
        unsigned i;                                                                                \
        for (i = 0; i < 4; ++i) {                                                                  \
            a[i] = mmaemu_step_word(request.a, 16, 8, group + i % 2 * 8, member + i / 2 * 4);      \
            d[i] = ((const float *)request.c)[mmaemu_step_place(i)];                               \
        }                                                                                          \
        b[0] = mmaemu_step_word(request.b, 8, 8, group, member);                                   \
        b[1] = mmaemu_step_word(request.b, 8, 8, group, member + 4);                               \
        MULTIPLY(d, a, b);                                                                         \
        for (i = 0; i < 4; ++i)                                                                    \
            ((float *)request.d)[mmaemu_step_place(i)] = d[i];                                     \
    }
MMAEMU_STEP(mma_bf16_bf16, mmaemu_mma_bf16)
MMAEMU_STEP(mma_fp16_fp16, mmaemu_mma_fp16)
#if defined(MMAEMU_STEPS_FP8)
MMAEMU_STEP(mma_e4m3_e4m3, mmaemu_mma_e4m3_e4m3)
MMAEMU_STEP(mma_e4m3_e5m2, mmaemu_mma_e4m3_e5m2)
MMAEMU_STEP(mma_e5m2_e4m3, mmaemu_mma_e5m2_e4m3)
MMAEMU_STEP(mma_e5m2_e5m2, mmaemu_mma_e5m2_e5m2)
#endif
#endif

#if defined(MMAEMU_STEPS_MMA_K16)
/* Lines of 16 bytes: k = 16 of 8 bits. */
#define MMAEMU_STEP(NAME, TYPE_A, TYPE_B)                                                          \
    MMAEMU_KERNEL(NAME, 32)                                                                        \
    {                                                                                              \
        const unsigned group = threadIdx.x / 4u;                                                   \
        const unsigned member = threadIdx.x % 4u;                                                  \
        const mmaemu_u32 a0 = mmaemu_step_word(request.a, 16, 4, group, member);                   \
        const mmaemu_u32 a1 = mmaemu_step_word(request.a, 16, 4, group + 8, member);               \
        const mmaemu_u32 b = mmaemu_step_word(request.b, 8, 4, group, member);                     \
        float d[4];                                                                                \
        unsigned i;                                                                                \
        for (i = 0; i < 4; ++i)                                                                    \
            d[i] = ((const float *)request.c)[mmaemu_step_place(i)];                               \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE_A "." TYPE_B ".f32 "                     \
            "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"                                            \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a0), "r"(a1), "r"(b));                                                           \
        for (i = 0; i < 4; ++i)                                                                    \
            ((float *)request.d)[mmaemu_step_place(i)] = d[i];                                     \
    }
MMAEMU_STEP(mma_k16_e4m3_e4m3, "e4m3", "e4m3")
MMAEMU_STEP(mma_k16_e4m3_e5m2, "e4m3", "e5m2")
MMAEMU_STEP(mma_k16_e5m2_e4m3, "e5m2", "e4m3")
MMAEMU_STEP(mma_k16_e5m2_e5m2, "e5m2", "e5m2")
#endif

#if defined(MMAEMU_STEPS_WGMMA) || defined(MMAEMU_STEPS_WGMMA_MORE)
#define MMAEMU_BLOCK 128u               /* Bytes of 8 lines x 16 bytes. */
#define MMAEMU_SLAB (8u * MMAEMU_BLOCK) /* Bytes of 64 lines x 16 bytes. */

/* This block's lines of a or b, put where wgmma looks for them. */
MMAEMU_DEVICE void mmaemu_step_stage(mmaemu_u8 *to, const mmaemu_u32 *from)
{
    unsigned word;
    for (word = threadIdx.x; word < 64u * 8u; word += 128u) {
        const unsigned line = word / 8u;
        const unsigned part = word % 8u;
        *(mmaemu_u32 *)(to + part / 4u * MMAEMU_SLAB + line / 8u * MMAEMU_BLOCK + line % 8u * 16u +
                        part % 4u * 4u) = mmaemu_step_word(from, 64, 8, line, part);
    }
}

/* Row and column, in 64 x 64, of accumulator i of a thread. */
MMAEMU_DEVICE unsigned mmaemu_step_place_64(unsigned i)
{
    const unsigned lane = threadIdx.x % 32u;
    const unsigned row = threadIdx.x / 32u * 16u + lane / 4u + i / 2u % 2u * 8u;
    return (blockIdx.x * 64u + row) * 64u + i / 4u * 8u + lane % 4u * 2u + i % 2u;
}

#define MMAEMU_STEP(NAME, TYPE, REGISTERS, LOAD, STORE, MULTIPLY)                                  \
    MMAEMU_KERNEL(NAME, 128)                                                                       \
    {                                                                                              \
        __shared__ __align__(128) mmaemu_u8 a[2 * MMAEMU_SLAB];                                    \
        __shared__ __align__(128) mmaemu_u8 b[2 * MMAEMU_SLAB];                                    \
        TYPE d[REGISTERS];                                                                         \
        unsigned i;                                                                                \
        mmaemu_step_stage(a, request.a);                                                           \
        mmaemu_step_stage(b, request.b);                                                           \
        for (i = 0; i < REGISTERS; ++i)                                                            \
            d[i] = LOAD;                                                                           \
        mmaemu_show_to_unit();                                                                     \
        __syncthreads();                                                                           \
        mmaemu_wgmma_begin();                                                                      \
        MULTIPLY(d, mmaemu_describe(a, MMAEMU_SLAB, MMAEMU_BLOCK),                                 \
                 mmaemu_describe(b, MMAEMU_SLAB, MMAEMU_BLOCK));                                   \
        mmaemu_wgmma_end();                                                                        \
        for (i = 0; i < REGISTERS; ++i)                                                            \
            STORE;                                                                                 \
    }
#define MMAEMU_FP32(NAME, MULTIPLY)                                                                \
    MMAEMU_STEP(NAME, float, 32, ((const float *)request.c)[mmaemu_step_place_64(i)],              \
                ((float *)request.d)[mmaemu_step_place_64(i)] = d[i], MULTIPLY)
#endif

#if defined(MMAEMU_STEPS_WGMMA)
MMAEMU_FP32(wgmma_e4m3_e4m3, mmaemu_wgmma_e4m3_e4m3)
MMAEMU_FP32(wgmma_e4m3_e5m2, mmaemu_wgmma_e4m3_e5m2)
MMAEMU_FP32(wgmma_e5m2_e4m3, mmaemu_wgmma_e5m2_e4m3)
MMAEMU_FP32(wgmma_e5m2_e5m2, mmaemu_wgmma_e5m2_e5m2)
#endif

#if defined(MMAEMU_STEPS_WGMMA_MORE)
#define MMAEMU_FOUR(K, d, i) K(d[i]), K(d[i + 1]), K(d[i + 2]), K(d[i + 3])
#define MMAEMU_F(x) "+f"(x)
#define MMAEMU_R(x) "+r"(x)

#define MMAEMU_WGMMA_16(NAME, TYPE)                                                                \
    MMAEMU_DEVICE void NAME(float (&d)[32], mmaemu_operand a, mmaemu_operand b)                    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "               \
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20," \
                     "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},%32,%33,1,1,1,0,0;"             \
                     : MMAEMU_FOUR(MMAEMU_F, d, 0), MMAEMU_FOUR(MMAEMU_F, d, 4),                   \
                       MMAEMU_FOUR(MMAEMU_F, d, 8), MMAEMU_FOUR(MMAEMU_F, d, 12),                  \
                       MMAEMU_FOUR(MMAEMU_F, d, 16), MMAEMU_FOUR(MMAEMU_F, d, 20),                 \
                       MMAEMU_FOUR(MMAEMU_F, d, 24), MMAEMU_FOUR(MMAEMU_F, d, 28)                  \
                     : "l"(a), "l"(b));                                                            \
    }
MMAEMU_WGMMA_16(mmaemu_wgmma_bf16, "bf16")
MMAEMU_WGMMA_16(mmaemu_wgmma_fp16, "f16")
MMAEMU_FP32(wgmma_bf16_bf16, mmaemu_wgmma_bf16)
MMAEMU_FP32(wgmma_fp16_fp16, mmaemu_wgmma_fp16)

#define MMAEMU_WGMMA_HALF(NAME, TYPE_A, TYPE_B)                                                    \
    MMAEMU_DEVICE void NAME(mmaemu_u32(&d)[16], mmaemu_operand a, mmaemu_operand b)                \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.f16." TYPE_A "." TYPE_B " "           \
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},%16,%17,1,1,1;"      \
                     : MMAEMU_FOUR(MMAEMU_R, d, 0), MMAEMU_FOUR(MMAEMU_R, d, 4),                   \
                       MMAEMU_FOUR(MMAEMU_R, d, 8), MMAEMU_FOUR(MMAEMU_R, d, 12)                   \
                     : "l"(a), "l"(b));                                                            \
    }
/* A register is two neighbouring columns. */
#define MMAEMU_HALF(NAME, MULTIPLY)                                                                \
    MMAEMU_STEP(NAME, mmaemu_u32, 16,                                                              \
                ((const mmaemu_u32 *)request.c)[mmaemu_step_place_64(2u * i) / 2u],                \
                ((mmaemu_u32 *)request.d)[mmaemu_step_place_64(2u * i) / 2u] = d[i], MULTIPLY)
MMAEMU_WGMMA_HALF(mmaemu_wgmma_half_e4m3, "e4m3", "e4m3")
MMAEMU_WGMMA_HALF(mmaemu_wgmma_half_e5m2, "e5m2", "e5m2")
MMAEMU_HALF(wgmma_fp16_out_e4m3_e4m3, mmaemu_wgmma_half_e4m3)
MMAEMU_HALF(wgmma_fp16_out_e5m2_e5m2, mmaemu_wgmma_half_e5m2)
#endif
