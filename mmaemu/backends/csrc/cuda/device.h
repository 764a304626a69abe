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

#else

#include <cuda_on_host.h>

#define MMAEMU_DEVICE static inline

MMAEMU_DEVICE mmaemu_u32 mmaemu_fma_bf16x2(mmaemu_u32 x, mmaemu_u32 y, mmaemu_u32 z)
{
    return mmaemu_host::fma16x2(x, y, z, 7, -126);
}

MMAEMU_DEVICE mmaemu_u32 mmaemu_fma_fp16x2(mmaemu_u32 x, mmaemu_u32 y, mmaemu_u32 z)
{
    return mmaemu_host::fma16x2(x, y, z, 10, -14);
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

#endif

#endif
