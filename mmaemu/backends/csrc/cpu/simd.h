/* The few vector operations that the GNU vector extensions do not express, per instruction set.
 *
 * WIDTH is the number of fp32 lanes of a vector, UNITS the number of units (see floor_fma.c) that
 * are worked on at a time: what the register file holds. Compile with exactly one of the macros
 * MMAEMU_ISA_IS_{AVX512,AVX2,SSE2,NEON} and the matching -m flags. */
#ifndef MMAEMU_CPU_SIMD_H
#define MMAEMU_CPU_SIMD_H

#include "../numerics/types.h"

#if defined(MMAEMU_ISA_IS_AVX512)
#include <immintrin.h>
#define WIDTH 16
#define UNITS 4
#define UNITS_OF_DOUBLES 2
#define ISA avx512
#elif defined(MMAEMU_ISA_IS_AVX2)
#include <immintrin.h>
#define WIDTH 8
#define UNITS 2
#define UNITS_OF_DOUBLES 1
#define ISA avx2
#elif defined(MMAEMU_ISA_IS_SSE2)
#include <emmintrin.h>
#define WIDTH 4
#define UNITS 2
#define UNITS_OF_DOUBLES 1
#define ISA sse2
#else
#include <arm_neon.h>
#define WIDTH 4
#define UNITS 4
#define UNITS_OF_DOUBLES 2
#define ISA neon
#endif

#define LANES (4 * WIDTH) /* Bytes of a vector. */
#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * WIDTH)));
typedef mmaemu_u32 vu __attribute__((vector_size(4 * WIDTH)));
typedef mmaemu_i32 vi __attribute__((vector_size(4 * WIDTH)));
typedef mmaemu_u8 vb __attribute__((vector_size(4 * WIDTH)));
typedef signed char vs __attribute__((vector_size(4 * WIDTH)));
typedef double vd __attribute__((vector_size(8 * WIDTH)));
typedef vf vf_loose __attribute__((aligned(4), may_alias));
typedef mmaemu_u8 v16 __attribute__((vector_size(16)));
typedef v16 v16_loose __attribute__((aligned(1), may_alias));
typedef mmaemu_u16 v16h __attribute__((vector_size(16)));
typedef mmaemu_u32 v16w __attribute__((vector_size(16)));
typedef mmaemu_u64 v16d __attribute__((vector_size(16)));

/* Rounding of the kernel's own arithmetic. The memory clobber keeps the compiler from moving loads
 * and stores, and with them the arithmetic between them, across the switch. */
#if defined(__x86_64__)
INLINE void round_with(mmaemu_u32 control)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(control) : "memory");
}
#define ROUND_TOWARD_ZERO() round_with(0x7F80u)
#define ROUND_NEAREST() round_with(0x1F80u)
#else
INLINE void round_with(mmaemu_u64 control)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
}
#define ROUND_TOWARD_ZERO() round_with(3ull << 22)
#define ROUND_NEAREST() round_with(0ull)
#endif

INLINE vu splat(mmaemu_u32 x)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    return (vu)_mm512_set1_epi32((int)x);
#elif defined(MMAEMU_ISA_IS_AVX2)
    return (vu)_mm256_set1_epi32((int)x);
#elif defined(MMAEMU_ISA_IS_SSE2)
    return (vu)_mm_set1_epi32((int)x);
#else
    return (vu)vdupq_n_u32(x);
#endif
}

INLINE vb splat_byte(int x)
{
    return (vb)splat(0x01010101u * (mmaemu_u32)(x & 255));
}

INLINE vf splat_float(float x)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    return (vf)_mm512_set1_ps(x);
#elif defined(MMAEMU_ISA_IS_AVX2)
    return (vf)_mm256_set1_ps(x);
#elif defined(MMAEMU_ISA_IS_SSE2)
    return (vf)_mm_set1_ps(x);
#else
    return (vf)vdupq_n_f32(x);
#endif
}

/* The fp32 at `from` in every lane. Zen 4 loads two integer broadcasts a cycle but one of the
 * floating-point kind, which compilers would choose for an operand of an FMA. */
INLINE vf splat_load(const float *from)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    vf result;
    __asm__("vpbroadcastd %1, %0" : "=v"(result) : "m"(*from));
    return result;
#else
    return splat_float(*from);
#endif
}

/* a * b + c with a product that fp32 holds exactly, so a multiply and an add are as good as an FMA.
 */
INLINE vf multiply_add(vf a, vf b, vf c)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(MMAEMU_ISA_IS_AVX2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(MMAEMU_ISA_IS_SSE2)
    return c + a * b;
#else
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

INLINE vd splat_double(const double *from)
{
    return (vd){0} + *from;
}

INLINE vd multiply_add_double(vd a, vd b, vd c)
{
#if defined(MMAEMU_ISA_IS_SSE2) || !defined(__clang__)
    return c + a * b;
#else
    return __builtin_elementwise_fma(a, b, c);
#endif
}

INLINE vb max_bytes(vb x, vb y)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    return (vb)_mm512_max_epu8((__m512i)x, (__m512i)y);
#elif defined(MMAEMU_ISA_IS_AVX2)
    return (vb)_mm256_max_epu8((__m256i)x, (__m256i)y);
#elif defined(MMAEMU_ISA_IS_SSE2)
    return (vb)_mm_max_epu8((__m128i)x, (__m128i)y);
#else
    return (vb)vmaxq_u8((uint8x16_t)x, (uint8x16_t)y);
#endif
}

/* count + 1 in every byte where x < limit as signed bytes. */
INLINE vb count_below(vb count, vb x, vb limit)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    const __mmask64 below = _mm512_cmplt_epi8_mask((__m512i)x, (__m512i)limit);
    return (vb)_mm512_mask_sub_epi8((__m512i)count, below, (__m512i)count, _mm512_set1_epi8(-1));
#elif defined(MMAEMU_ISA_IS_AVX2)
    return count - (vb)_mm256_cmpgt_epi8((__m256i)limit, (__m256i)x);
#elif defined(MMAEMU_ISA_IS_SSE2)
    return count - (vb)_mm_cmpgt_epi8((__m128i)limit, (__m128i)x);
#else
    return count - (vb)vcltq_s8((int8x16_t)x, (int8x16_t)limit);
#endif
}

/* x plus byte `byte` of every lane of `bytes`. */
INLINE vu add_byte(vu x, vb bytes, int byte)
{
#if defined(MMAEMU_ISA_IS_AVX512)
    return (vu)_mm512_dpbusd_epi32((__m512i)x, (__m512i)bytes, _mm512_set1_epi32(1 << (8 * byte)));
#else
    if (byte == 3)
        return x + ((vu)bytes >> 24);
    return x + (((vu)bytes >> (8 * byte)) & splat(255u));
#endif
}

#endif
