/* The CUDA C++ that the kernels use, for a host compiler: every CUDA thread is a fiber.
 *
 * A kernel source is compiled unchanged. Keywords are empty, threadIdx and its kin are globals that
 * the scheduler sets, intrinsics are exact functions, and whatever waits for other threads goes
 * through the scheduler of launch.h. Where CUDA leaves the behaviour open (a lane of the mask that
 * never comes, a barrier that some threads do not reach), the launch fails with a message. */
#ifndef MMAEMU_CUDA_ON_HOST_H
#define MMAEMU_CUDA_ON_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "rounding.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#if defined(__linux__)
/* One section, so that every block starts with noise in it. */
#define __shared__ static __attribute__((section("mmaemu_shared"), aligned(128)))
#else
#define __shared__ static
#endif
#define MMAEMU_SHARED(type, name) type *const name = (type *)mmaemu_host::shared_memory()

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
struct __align__(8) int2 {
    int x, y;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) int4 {
    int x, y, z, w;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(16) float4 {
    float x, y, z, w;
};

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
static const int warpSize = 32;

static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

namespace mmaemu_host
{

/* Where a thread waits, for messages. */
struct site {
    const char *file;
    int line;
};

enum block_operation { BLOCK_BARRIER, BLOCK_OR, BLOCK_AND, BLOCK_COUNT };

enum warp_operation {
    WARP_BARRIER,
    WARP_BALLOT,
    WARP_SHUFFLE,
    WARP_SHUFFLE_UP,
    WARP_SHUFFLE_DOWN,
    WARP_SHUFFLE_XOR,
    WARP_REDUCE_OR,
    WARP_REDUCE_AND,
    WARP_REDUCE_MAX,
    WARP_REDUCE_MIN,
    WARP_REDUCE_ADD,
    WARP_FUNCTION /* A function of all lanes' operands, such as a matrix product. */
};

/* What a lane brings to an operation of its warp, and what it takes away. */
struct lane {
    warp_operation operation;
    uint32_t mask;
    uint64_t value;
    int argument; /* Lane, distance or lane mask of a shuffle. */
    int width;
    void (*function)(lane *const *lanes); /* Of 32 lanes. */
    void *operands;
    site where;
};

void *shared_memory();
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
int block_wait(block_operation operation, int value, site where);
uint64_t warp_wait(const lane &mine);

static inline uint64_t of_warp(warp_operation operation, uint32_t mask, uint64_t value,
                               int argument, int width, site where)
{
    lane mine = {operation, mask, value, argument, width, nullptr, nullptr, where};
    return warp_wait(mine);
}

template <class T> static inline uint64_t to_bits(T value)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T> static inline T from_bits(uint64_t bits)
{
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

} // namespace mmaemu_host

#define MMAEMU_HERE                                                                                \
    mmaemu_host::site                                                                              \
    {                                                                                              \
        file, line                                                                                 \
    }
#define MMAEMU_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(MMAEMU_CALLER)
{
    mmaemu_host::block_wait(mmaemu_host::BLOCK_BARRIER, 0, MMAEMU_HERE);
}
static inline int __syncthreads_or(int predicate, MMAEMU_CALLER)
{
    return mmaemu_host::block_wait(mmaemu_host::BLOCK_OR, predicate, MMAEMU_HERE);
}
static inline int __syncthreads_and(int predicate, MMAEMU_CALLER)
{
    return mmaemu_host::block_wait(mmaemu_host::BLOCK_AND, predicate, MMAEMU_HERE);
}
static inline int __syncthreads_count(int predicate, MMAEMU_CALLER)
{
    return mmaemu_host::block_wait(mmaemu_host::BLOCK_COUNT, predicate, MMAEMU_HERE);
}
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, MMAEMU_CALLER)
{
    mmaemu_host::of_warp(mmaemu_host::WARP_BARRIER, mask, 0, 0, 32, MMAEMU_HERE);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, MMAEMU_CALLER)
{
    return (unsigned)mmaemu_host::of_warp(mmaemu_host::WARP_BALLOT, mask, predicate != 0, 0, 32,
                                          MMAEMU_HERE);
}
static inline int __any_sync(unsigned mask, int predicate, MMAEMU_CALLER)
{
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, MMAEMU_CALLER)
{
    return __ballot_sync(mask, predicate, file, line) == mask;
}

#define MMAEMU_SHUFFLE(NAME, OPERATION, TYPE)                                                      \
    template <class T>                                                                             \
    static inline T NAME(unsigned mask, T value, TYPE argument, int width = 32, MMAEMU_CALLER)     \
    {                                                                                              \
        return mmaemu_host::from_bits<T>(mmaemu_host::of_warp(mmaemu_host::OPERATION, mask,        \
                                                              mmaemu_host::to_bits(value),         \
                                                              (int)argument, width, MMAEMU_HERE)); \
    }
MMAEMU_SHUFFLE(__shfl_sync, WARP_SHUFFLE, int)
MMAEMU_SHUFFLE(__shfl_up_sync, WARP_SHUFFLE_UP, unsigned)
MMAEMU_SHUFFLE(__shfl_down_sync, WARP_SHUFFLE_DOWN, unsigned)
MMAEMU_SHUFFLE(__shfl_xor_sync, WARP_SHUFFLE_XOR, int)
#undef MMAEMU_SHUFFLE

#define MMAEMU_REDUCE(NAME, OPERATION)                                                             \
    static inline unsigned NAME(unsigned mask, unsigned value, MMAEMU_CALLER)                      \
    {                                                                                              \
        return (unsigned)mmaemu_host::of_warp(mmaemu_host::OPERATION, mask, value, 0, 32,          \
                                              MMAEMU_HERE);                                        \
    }
MMAEMU_REDUCE(__reduce_or_sync, WARP_REDUCE_OR)
MMAEMU_REDUCE(__reduce_and_sync, WARP_REDUCE_AND)
MMAEMU_REDUCE(__reduce_max_sync, WARP_REDUCE_MAX)
MMAEMU_REDUCE(__reduce_min_sync, WARP_REDUCE_MIN)
MMAEMU_REDUCE(__reduce_add_sync, WARP_REDUCE_ADD)
#undef MMAEMU_REDUCE

static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
static inline void __trap(MMAEMU_CALLER)
{
    mmaemu_host::fail("__trap at %s:%d, thread %u", file, line, threadIdx.x);
}

/* Fibers change places only where they wait, so a plain read and write are one step. */
#define MMAEMU_ATOMIC(NAME, EXPRESSION)                                                            \
    template <class T> static inline T NAME(T *address, T value)                                   \
    {                                                                                              \
        const T old = *address;                                                                    \
        *address = EXPRESSION;                                                                     \
        return old;                                                                                \
    }
MMAEMU_ATOMIC(atomicAdd, old + value)
MMAEMU_ATOMIC(atomicOr, old | value)
MMAEMU_ATOMIC(atomicAnd, old &value)
MMAEMU_ATOMIC(atomicMax, old > value ? old : value)
MMAEMU_ATOMIC(atomicMin, old < value ? old : value)
MMAEMU_ATOMIC(atomicExch, value)
#undef MMAEMU_ATOMIC

template <class T> static inline T __ldg(const T *address)
{
    return *address;
}

template <class T> static inline T min(T x, T y)
{
    return y < x ? y : x;
}
template <class T> static inline T max(T x, T y)
{
    return x < y ? y : x;
}

/* Bits. */
static inline unsigned __float_as_uint(float x)
{
    return mmaemu_host::float_bits(x);
}
static inline int __float_as_int(float x)
{
    return (int)mmaemu_host::float_bits(x);
}
static inline float __uint_as_float(unsigned x)
{
    return mmaemu_host::bits_float(x);
}
static inline float __int_as_float(int x)
{
    return mmaemu_host::bits_float((unsigned)x);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x)
{
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __brev(unsigned x)
{
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit)
        reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31u) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31u));
}
/* Byte i of the result is byte (selector nibble i) of y:x; nibble bit 3 spreads the byte's sign. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> (4 * i) & 0xFu;
        unsigned byte = (unsigned)(both >> (8 * (nibble & 7u))) & 0xFFu;
        if (nibble & 8u)
            byte = byte & 0x80u ? 0xFFu : 0u;
        result |= byte << (8 * i);
    }
    return result;
}

/* Four bytes at a time. */
static inline int __dp4a(int a, int b, int c)
{
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 4; ++i)
        sum += (unsigned)((int)(int8_t)((unsigned)a >> (8 * i)) *
                          (int)(int8_t)((unsigned)b >> (8 * i)));
    return (int)sum;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; ++i)
        c += (a >> (8 * i) & 0xFFu) * (b >> (8 * i) & 0xFFu);
    return c;
}

#define MMAEMU_BYTES(NAME, TYPE, EXPRESSION)                                                       \
    static inline unsigned NAME(unsigned a, unsigned b)                                            \
    {                                                                                              \
        unsigned result = 0;                                                                       \
        for (int i = 0; i < 4; ++i) {                                                              \
            const int x = (TYPE)(a >> (8 * i));                                                    \
            const int y = (TYPE)(b >> (8 * i));                                                    \
            result |= ((unsigned)(EXPRESSION) & 0xFFu) << (8 * i);                                 \
        }                                                                                          \
        return result;                                                                             \
    }
MMAEMU_BYTES(__vadd4, uint8_t, x + y)
MMAEMU_BYTES(__vsub4, uint8_t, x - y)
MMAEMU_BYTES(__vaddus4, uint8_t, x + y > 255 ? 255 : x + y)
MMAEMU_BYTES(__vsubus4, uint8_t, x < y ? 0 : x - y)
MMAEMU_BYTES(__vaddss4, int8_t, x + y > 127 ? 127 : x + y < -128 ? -128 : x + y)
MMAEMU_BYTES(__vsubss4, int8_t, x - y > 127 ? 127 : x - y < -128 ? -128 : x - y)
MMAEMU_BYTES(__vmaxu4, uint8_t, x > y ? x : y)
MMAEMU_BYTES(__vminu4, uint8_t, x < y ? x : y)
MMAEMU_BYTES(__vmaxs4, int8_t, x > y ? x : y)
MMAEMU_BYTES(__vmins4, int8_t, x < y ? x : y)
MMAEMU_BYTES(__vcmpeq4, uint8_t, x == y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpne4, uint8_t, x != y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpgtu4, uint8_t, x > y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpgeu4, uint8_t, x >= y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpltu4, uint8_t, x < y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpleu4, uint8_t, x <= y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpgts4, int8_t, x > y ? 0xFF : 0)
MMAEMU_BYTES(__vcmpges4, int8_t, x >= y ? 0xFF : 0)
MMAEMU_BYTES(__vcmplts4, int8_t, x < y ? 0xFF : 0)
MMAEMU_BYTES(__vcmples4, int8_t, x <= y ? 0xFF : 0)
MMAEMU_BYTES(__vsetgtu4, uint8_t, x > y)
MMAEMU_BYTES(__vsetltu4, uint8_t, x < y)
MMAEMU_BYTES(__vsetgts4, int8_t, x > y)
MMAEMU_BYTES(__vsetlts4, int8_t, x < y)
MMAEMU_BYTES(__vseteq4, uint8_t, x == y)
#undef MMAEMU_BYTES

/* fp32: a NaN result is the canonical one, as on the device. */
#define MMAEMU_FLOAT(NAME, PARAMETERS, FUNCTION)                                                   \
    static inline float NAME PARAMETERS                                                            \
    {                                                                                              \
        return mmaemu_host::canonical(mmaemu_host::FUNCTION);                                      \
    }
MMAEMU_FLOAT(__fadd_rn, (float x, float y), add_nearest(x, y))
MMAEMU_FLOAT(__fsub_rn, (float x, float y), add_nearest(x, -y))
MMAEMU_FLOAT(__fmul_rn, (float x, float y), multiply_nearest(x, y))
MMAEMU_FLOAT(__fmaf_rn, (float x, float y, float z), fma_nearest(x, y, z))
MMAEMU_FLOAT(__fadd_rz, (float x, float y), add_toward_zero(x, y))
MMAEMU_FLOAT(__fsub_rz, (float x, float y), add_toward_zero(x, -y))
MMAEMU_FLOAT(__fmul_rz, (float x, float y), fma_toward_zero(x, y, -0.0f))
MMAEMU_FLOAT(__fmaf_rz, (float x, float y, float z), fma_toward_zero(x, y, z))
#undef MMAEMU_FLOAT

/* Renamed, as the host's C library has functions of these names. */
#define fabsf mmaemu_host_fabsf
#define fmaxf mmaemu_host_fmaxf
#define fminf mmaemu_host_fminf
static inline float fabsf(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0x7FFFFFFFu);
}
/* The number, where one is NaN; +0 is more than -0. */
static inline float fmaxf(float x, float y)
{
    const bool second = x < y || (x == y && __float_as_int(x) < 0);
    return mmaemu_host::canonical(y != y ? x : x != x || second ? y : x);
}
static inline float fminf(float x, float y)
{
    const bool second = y < x || (x == y && __float_as_int(y) < 0);
    return mmaemu_host::canonical(y != y ? x : x != x || second ? y : x);
}
/* Out of range saturates, NaN gives 0. */
static inline int __float2int_rz(float x)
{
    return x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : (int)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __int2float_rz(int x)
{
    return mmaemu_host::to_float_toward_zero((double)x);
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}

#include "tensor_core.h"

#endif
