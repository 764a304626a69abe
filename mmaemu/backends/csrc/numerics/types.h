/* Integer types and function markers for code that C, C++, nvcc and NVRTC compile alike, without a
 * standard header. Every supported compiler has 32-bit int and 64-bit long long. */
#ifndef MMAEMU_NUMERICS_TYPES_H
#define MMAEMU_NUMERICS_TYPES_H

#if defined(__CUDACC__)
#define MMAEMU_FN static __host__ __device__ __forceinline__
#else
#define MMAEMU_FN static inline
#endif

typedef unsigned char mmaemu_u8;
typedef unsigned short mmaemu_u16;
typedef int mmaemu_i32;
typedef unsigned int mmaemu_u32;
typedef long long mmaemu_i64;
typedef unsigned long long mmaemu_u64;

/* Marks "no floor" for min_exponent. */
#define MMAEMU_NO_FLOOR (-2147483647 - 1)

#define MMAEMU_FP32_SIGN 0x80000000u
#define MMAEMU_FP32_INF 0x7F800000u
/* The only NaN the reference platforms return. */
#define MMAEMU_FP32_NAN 0x7FFFFFFFu

/* Index of the highest set bit of x != 0. */
MMAEMU_FN int mmaemu_high_bit(mmaemu_u64 x)
{
    int position = 0;
    int step;
    for (step = 32; step > 0; step >>= 1) {
        if (x >> step) {
            x >>= step;
            position += step;
        }
    }
    return position;
}

#endif
