/* One kernel for each thing that the host's CUDA must do right, for tests/tools/test_host_cuda.py.
 */
#include "../../../mmaemu/backends/csrc/cuda/device.h"

struct operands {
    int operation;
    int count;
    const unsigned *x;
    const unsigned *y;
    const unsigned *z;
    unsigned *out;
};

static __device__ unsigned of_floats(int operation, float x, float y, float z)
{
    switch (operation) {
    case 0:
        return __float_as_uint(__fadd_rz(x, y));
    case 1:
        return __float_as_uint(__fmul_rz(x, y));
    case 2:
        return __float_as_uint(__fmaf_rz(x, y, z));
    case 3:
        return __float_as_uint(__fadd_rn(x, y));
    case 4:
        return __float_as_uint(__fmul_rn(x, y));
    case 5:
        return __float_as_uint(__fmaf_rn(x, y, z));
    case 6:
        return __float_as_uint(__fsub_rz(x, y));
    case 7:
        return (unsigned)__float2int_rz(x);
    case 8:
        return __float_as_uint(fmaxf(x, y));
    case 9:
        return __float_as_uint(fminf(x, y));
    default:
        return __float_as_uint(__int2float_rz(__float_as_int(x)));
    }
}

static __device__ unsigned of_integers(int operation, unsigned x, unsigned y, unsigned z)
{
    switch (operation) {
    case 20:
        return (unsigned)__dp4a((int)x, (int)y, (int)z);
    case 21:
        return __dp4a(x, y, z);
    case 22:
        return __byte_perm(x, y, z);
    case 23:
        return __vadd4(x, y);
    case 24:
        return __vmaxu4(x, y);
    case 25:
        return __vmaxs4(x, y);
    case 26:
        return __vcmpgts4(x, y);
    case 27:
        return __vcmpltu4(x, y);
    case 28:
        return __vsubss4(x, y);
    case 29:
        return __vsubus4(x, y);
    case 30:
        return __funnelshift_l(x, y, z);
    case 31:
        return __funnelshift_r(x, y, z);
    case 32:
        return (unsigned)__clz((int)x);
    case 33:
        return __brev(x);
    case 34:
        return __umulhi(x, y);
    case 35:
        return (unsigned)__ffs((int)x);
    case 40:
        return mmaemu_fma_bf16x2(x, y, z);
    default:
        return mmaemu_fma_fp16x2(x, y, z);
    }
}

extern "C" __global__ void __launch_bounds__(32) compute(struct operands given)
{
    for (int i = (int)threadIdx.x; i < given.count; i += (int)blockDim.x) {
        const unsigned x = __ldg(given.x + i);
        const unsigned y = __ldg(given.y + i);
        const unsigned z = __ldg(given.z + i);
        given.out[i] = given.operation < 20 ? of_floats(given.operation, __uint_as_float(x),
                                                        __uint_as_float(y), __uint_as_float(z))
                                            : of_integers(given.operation, x, y, z);
    }
}

/* Lane i of each warp works on x[i]; the results of operation o lie at out + o * block. */
extern "C" __global__ void warp_operations(struct operands given)
{
    const unsigned all = 0xFFFFFFFFu;
    const unsigned x = given.x[threadIdx.x];
    const unsigned half = threadIdx.x & 16u ? 0xFFFF0000u : 0x0000FFFFu;
    const unsigned results[] = {
        __shfl_sync(all, x, 5),
        __shfl_sync(all, x, 3, 8),
        __shfl_xor_sync(all, x, 9),
        __shfl_up_sync(all, x, 3),
        __shfl_down_sync(all, x, 3, 16),
        __ballot_sync(all, (int)(x & 1u)),
        (unsigned)__any_sync(half, x == 7u),
        (unsigned)__all_sync(half, x != 7u),
        __reduce_or_sync(all, x),
        __reduce_max_sync(half, x),
        __reduce_add_sync(all, x),
        (unsigned)__syncthreads_or(x == 7u),
        (unsigned)__syncthreads_and(x != 7u),
        (unsigned)__syncthreads_count((int)(x & 1u)),
    };
    for (int i = 0; i < (int)(sizeof results / sizeof results[0]); ++i)
        given.out[i * (int)blockDim.x + (int)threadIdx.x] = results[i];
}

/* operation: 0 bf16, 1 fp16, 2 fp16 with k = 8, 3 to 6 the pairs of e4m3 and e5m2. x: 16 rows of A
 * in bytes, y: 8 columns of B, z: 16 x 8 accumulators, all as they lie in memory. */
extern "C" __global__ void matrix(struct operands given)
{
    const unsigned group = threadIdx.x / 4;
    const unsigned member = threadIdx.x % 4;
    const unsigned words = given.operation == 2 ? 4 : 8; /* Of a row. */
    mmaemu_u32 a[4] = {given.x[group * words + member], given.x[(group + 8) * words + member], 0,
                       0};
    mmaemu_u32 b[2] = {given.y[group * words + member], 0};
    float d[4];
    for (unsigned i = 0; i < 4; ++i)
        d[i] = __uint_as_float(given.z[(group + i / 2 * 8) * 8 + member * 2 + i % 2]);
    if (words == 8) {
        a[2] = given.x[group * words + member + 4];
        a[3] = given.x[(group + 8) * words + member + 4];
        b[1] = given.y[group * words + member + 4];
    }
    if (given.operation == 0)
        mmaemu_mma_bf16(d, a, b);
    if (given.operation == 1)
        mmaemu_mma_fp16(d, a, b);
    if (given.operation == 2) {
        const mmaemu_u32 first[2] = {a[0], a[1]};
        mmaemu_mma_fp16_k8(d, first, b[0]);
    }
    if (given.operation == 3)
        mmaemu_mma_e4m3_e4m3(d, a, b);
    if (given.operation == 4)
        mmaemu_mma_e4m3_e5m2(d, a, b);
    if (given.operation == 5)
        mmaemu_mma_e5m2_e4m3(d, a, b);
    if (given.operation == 6)
        mmaemu_mma_e5m2_e5m2(d, a, b);
    for (unsigned i = 0; i < 4; ++i)
        given.out[(group + i / 2 * 8) * 8 + member * 2 + i % 2] = __float_as_uint(d[i]);
}

/* What CUDA leaves open, one way for each operation. */
struct __align__(128) wide_words {
    unsigned words[32];
};

extern "C" __global__ void mistakes(struct operands given)
{
    MMAEMU_SHARED(unsigned, shared);
    const unsigned thread = threadIdx.x;
    if (given.operation == 0) {
        if (thread == 1)
            return;
        __syncthreads();
    }
    if (given.operation == 1) {
        if (thread < 32)
            __syncthreads();
        else
            __syncthreads();
    }
    if (given.operation == 2 && thread != 40)
        __syncwarp();
    if (given.operation == 3)
        __shfl_sync(0xFFFFu << (thread & 16u), thread, 20 - (int)(thread & 16u));
    if (given.operation == 4)
        shared[64] = 0;
    if (given.operation == 5)
        __shfl_sync(0xFFFFFFFEu, thread, 1);
    if (given.operation == 6 && thread == 5)
        __trap();
    if (given.operation == 7) {
        if (thread % 32 < 16)
            __syncwarp();
        else
            __ballot_sync(0xFFFFFFFFu, 1);
    }
    if (given.operation == 12) {
        if (thread % 2)
            __syncwarp();
        else
            __syncwarp();
    }
    if (given.operation == 8)
        given.out[thread] = shared[thread]; /* Never written. */
    if (given.operation == 9) {
        /* The barrier between the write and the read of another's value is missing. */
        shared[thread] = thread;
        given.out[thread] = shared[(thread + 33) % 64];
    }
    if (given.operation == 10)
        given.out[0] = (unsigned)((int)given.x[0] + 1); /* Overflows, for UBSan. */
    if (given.operation == 11)
        given.out[blockIdx.y * gridDim.x + blockIdx.x] = blockIdx.y * 100 + blockIdx.x;
    if (given.operation == 13) {
        __shared__ unsigned char byte;
        __shared__ struct wide_words first;
        __shared__ unsigned char another;
        __shared__ struct wide_words second;
        given.out[0] = (unsigned)((unsigned long long)&first % 128);
        given.out[1] = (unsigned)((unsigned long long)&second % 128);
        byte = another = 1;
        given.out[2] = byte + another;
    }
}
