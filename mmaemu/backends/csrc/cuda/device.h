/* What the kernels take from the device: the only place with inline PTX.
 *
 * Compiled by NVRTC or nvcc, it wraps instructions; compiled by a host compiler, it takes the same
 * functions from a header that simulates them, which lies outside the package. */
#ifndef MMAEMU_CUDA_DEVICE_H
#define MMAEMU_CUDA_DEVICE_H

#include "../numerics/formats.h"

#if defined(__CUDACC__)

/* Dynamic shared memory of the block, aligned to 16 bytes. */
extern __shared__ __align__(128) unsigned char mmaemu_dynamic_shared[];
#define MMAEMU_SHARED(type, name) type *const name = reinterpret_cast<type *>(mmaemu_dynamic_shared)

#define MMAEMU_DEVICE static __device__ __forceinline__

/* Two fused multiply-adds x * y + z in bf16 or fp16, to nearest even, subnormals kept. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_fma_bf16x2(mmaemu_u32 x, mmaemu_u32 y, mmaemu_u32 z)
{
    mmaemu_u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(z));
    return d;
}

MMAEMU_DEVICE mmaemu_u32 mmaemu_fma_fp16x2(mmaemu_u32 x, mmaemu_u32 y, mmaemu_u32 z)
{
    mmaemu_u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(z));
    return d;
}

/* d += a * b of one warp: A is 16 x depth, B is depth x 8, in the fragments of the PTX ISA. */
#define MMAEMU_MMA(NAME, SHAPE, TYPE_A, TYPE_B)                                                    \
    MMAEMU_DEVICE void NAME(float (&d)[4], const mmaemu_u32(&a)[4], const mmaemu_u32(&b)[2])       \
    {                                                                                              \
        asm("mma.sync.aligned." SHAPE ".row.col.f32." TYPE_A "." TYPE_B ".f32 "                    \
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"                                   \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
    }
MMAEMU_MMA(mmaemu_mma_bf16, "m16n8k16", "bf16", "bf16")
MMAEMU_MMA(mmaemu_mma_fp16, "m16n8k16", "f16", "f16")
MMAEMU_MMA(mmaemu_mma_e4m3_e4m3, "m16n8k32", "e4m3", "e4m3")
MMAEMU_MMA(mmaemu_mma_e4m3_e5m2, "m16n8k32", "e4m3", "e5m2")
MMAEMU_MMA(mmaemu_mma_e5m2_e4m3, "m16n8k32", "e5m2", "e4m3")
MMAEMU_MMA(mmaemu_mma_e5m2_e5m2, "m16n8k32", "e5m2", "e5m2")
#undef MMAEMU_MMA

MMAEMU_DEVICE void mmaemu_mma_fp16_k8(float (&d)[4], const mmaemu_u32 (&a)[2], mmaemu_u32 b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* d += a * b of 128 threads: 64 x 32 times 32 x 64 bytes in shared memory, d as the PTX ISA says
 * for wgmma.m64n64k32. An operand lies in blocks of 8 lines x 16 bytes. */
typedef mmaemu_u64 mmaemu_operand;

/* start: of the first block; strides in bytes: to the next block in k, and to the next 8 lines. */
MMAEMU_DEVICE mmaemu_operand mmaemu_describe(const mmaemu_u8 *start, mmaemu_u32 k_stride,
                                             mmaemu_u32 line_stride)
{
    const mmaemu_u32 address = (mmaemu_u32)__cvta_generic_to_shared(start);
    return (mmaemu_u64)(address >> 4 & 0x3FFFu) | (mmaemu_u64)(k_stride >> 4) << 16 |
           (mmaemu_u64)(line_stride >> 4) << 32;
}

/* What was written to shared memory is there for the matrix unit; before a barrier. */
MMAEMU_DEVICE void mmaemu_show_to_unit()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

MMAEMU_DEVICE void mmaemu_wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

MMAEMU_DEVICE void mmaemu_wgmma_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::
                     : "memory");
}

#define MMAEMU_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MMAEMU_WGMMA(NAME, TYPE_A, TYPE_B)                                                         \
    MMAEMU_DEVICE void NAME(float (&d)[32], mmaemu_operand a, mmaemu_operand b)                    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.f32." TYPE_A "." TYPE_B " "           \
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20," \
                     "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},%32,%33,1,1,1;"                 \
                     : MMAEMU_FOUR(d, 0), MMAEMU_FOUR(d, 4), MMAEMU_FOUR(d, 8),                    \
                       MMAEMU_FOUR(d, 12), MMAEMU_FOUR(d, 16), MMAEMU_FOUR(d, 20),                 \
                       MMAEMU_FOUR(d, 24), MMAEMU_FOUR(d, 28)                                      \
                     : "l"(a), "l"(b));                                                            \
    }
MMAEMU_WGMMA(mmaemu_wgmma_e4m3_e4m3, "e4m3", "e4m3")
MMAEMU_WGMMA(mmaemu_wgmma_e4m3_e5m2, "e4m3", "e5m2")
MMAEMU_WGMMA(mmaemu_wgmma_e5m2_e4m3, "e5m2", "e4m3")
MMAEMU_WGMMA(mmaemu_wgmma_e5m2_e5m2, "e5m2", "e5m2")
#undef MMAEMU_WGMMA
#undef MMAEMU_FOUR

#else

#include <cuda_on_host.h>

#define MMAEMU_DEVICE static inline

MMAEMU_DEVICE mmaemu_u32 mmaemu_fma_bf16x2(mmaemu_u32 x, mmaemu_u32 y, mmaemu_u32 z)
{
    return mmaemu_host::fma_bf16x2(x, y, z);
}

MMAEMU_DEVICE mmaemu_u32 mmaemu_fma_fp16x2(mmaemu_u32 x, mmaemu_u32 y, mmaemu_u32 z)
{
    return mmaemu_host::fma_fp16x2(x, y, z);
}

#define MMAEMU_MMA(NAME, UNIT, FORMAT_A, FORMAT_B, DEPTH)                                          \
    MMAEMU_DEVICE void NAME(float (&d)[4], const mmaemu_u32(&a)[4], const mmaemu_u32(&b)[2],       \
                            MMAEMU_CALLER)                                                         \
    {                                                                                              \
        mmaemu_host::multiply_warp(d, a, b, mmaemu_host::UNIT, FORMAT_A, FORMAT_B, DEPTH,          \
                                   MMAEMU_HERE);                                                   \
    }
MMAEMU_MMA(mmaemu_mma_bf16, UNIT_BF16, MMAEMU_BF16, MMAEMU_BF16, 16)
MMAEMU_MMA(mmaemu_mma_fp16, UNIT_FP16, MMAEMU_FP16, MMAEMU_FP16, 16)
MMAEMU_MMA(mmaemu_mma_e4m3_e4m3, UNIT_FP8, MMAEMU_E4M3, MMAEMU_E4M3, 32)
MMAEMU_MMA(mmaemu_mma_e4m3_e5m2, UNIT_FP8, MMAEMU_E4M3, MMAEMU_E5M2, 32)
MMAEMU_MMA(mmaemu_mma_e5m2_e4m3, UNIT_FP8, MMAEMU_E5M2, MMAEMU_E4M3, 32)
MMAEMU_MMA(mmaemu_mma_e5m2_e5m2, UNIT_FP8, MMAEMU_E5M2, MMAEMU_E5M2, 32)
#undef MMAEMU_MMA

MMAEMU_DEVICE void mmaemu_mma_fp16_k8(float (&d)[4], const mmaemu_u32 (&a)[2], mmaemu_u32 b,
                                      MMAEMU_CALLER)
{
    mmaemu_host::multiply_warp(d, a, &b, mmaemu_host::UNIT_FP16, MMAEMU_FP16, MMAEMU_FP16, 8,
                               MMAEMU_HERE);
}

typedef mmaemu_host::operand_in_memory mmaemu_operand;

MMAEMU_DEVICE mmaemu_operand mmaemu_describe(const mmaemu_u8 *start, mmaemu_u32 k_stride,
                                             mmaemu_u32 line_stride)
{
    return {start, k_stride, line_stride};
}

MMAEMU_DEVICE void mmaemu_show_to_unit()
{
}

MMAEMU_DEVICE void mmaemu_wgmma_begin()
{
}

MMAEMU_DEVICE void mmaemu_wgmma_end()
{
}

#define MMAEMU_WGMMA(NAME, FORMAT_A, FORMAT_B)                                                     \
    MMAEMU_DEVICE void NAME(float (&d)[32], mmaemu_operand a, mmaemu_operand b)                    \
    {                                                                                              \
        mmaemu_host::multiply_in_memory(d, a, b, FORMAT_A, FORMAT_B, threadIdx.x % 128u);          \
    }
MMAEMU_WGMMA(mmaemu_wgmma_e4m3_e4m3, MMAEMU_E4M3, MMAEMU_E4M3)
MMAEMU_WGMMA(mmaemu_wgmma_e4m3_e5m2, MMAEMU_E4M3, MMAEMU_E5M2)
MMAEMU_WGMMA(mmaemu_wgmma_e5m2_e4m3, MMAEMU_E5M2, MMAEMU_E4M3)
MMAEMU_WGMMA(mmaemu_wgmma_e5m2_e5m2, MMAEMU_E5M2, MMAEMU_E5M2)
#undef MMAEMU_WGMMA

#endif

#endif
