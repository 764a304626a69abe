/* One-warp products that show what v9 and tc3 borrow from the matrix units of the device.
 *
 * Computes: d = a * b + c of one instruction. What d must be is in backends/cuda/probes.py.
 * Exact because: nothing is computed here but by the instruction.
 * Layout: each block computes one case, as it stands in memory: a is 16 x depth and b 8 x depth
 * two-byte numbers, c and d are 16 x 8 fp32.
 * Preconditions: blocks of one warp, one for each case. */
#include "../numerics/types.h"
#include "device.h"

struct mmaemu_probe_request {
    const mmaemu_u32 *a;
    const mmaemu_u32 *b;
    const mmaemu_u32 *c;
    mmaemu_u32 *d;
};

/* Where accumulator i of this lane lies in a case of c or d. */
MMAEMU_DEVICE unsigned mmaemu_probe_place(unsigned i)
{
    return blockIdx.x * 128u + (threadIdx.x / 4u + i / 2u * 8u) * 8u + threadIdx.x % 4u * 2u +
           i % 2u;
}

/* Word `word` of a line of this lane's case, which has `lines` lines of `words` words. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_probe_word(const mmaemu_u32 *from, unsigned lines, unsigned words,
                                           unsigned line, unsigned word)
{
    return from[(blockIdx.x * lines + line) * words + word];
}

extern "C" __global__ void __launch_bounds__(32)
    mmaemu_probe_bf16(struct mmaemu_probe_request request)
{
    const unsigned group = threadIdx.x / 4u;
    const unsigned member = threadIdx.x % 4u;
    mmaemu_u32 a[4];
    mmaemu_u32 b[2];
    float d[4];
    unsigned i;
#pragma unroll
    for (i = 0; i < 4; ++i) {
        a[i] = mmaemu_probe_word(request.a, 16, 8, group + i % 2 * 8, member + i / 2 * 4);
        d[i] = __uint_as_float(request.c[mmaemu_probe_place(i)]);
    }
    b[0] = mmaemu_probe_word(request.b, 8, 8, group, member);
    b[1] = mmaemu_probe_word(request.b, 8, 8, group, member + 4);
    mmaemu_mma_bf16(d, a, b);
#pragma unroll
    for (i = 0; i < 4; ++i)
        request.d[mmaemu_probe_place(i)] = __float_as_uint(d[i]);
}

extern "C" __global__ void __launch_bounds__(32)
    mmaemu_probe_fp16_k8(struct mmaemu_probe_request request)
{
    const unsigned group = threadIdx.x / 4u;
    const unsigned member = threadIdx.x % 4u;
    const mmaemu_u32 a[2] = {mmaemu_probe_word(request.a, 16, 4, group, member),
                             mmaemu_probe_word(request.a, 16, 4, group + 8, member)};
    float d[4];
    unsigned i;
#pragma unroll
    for (i = 0; i < 4; ++i)
        d[i] = __uint_as_float(request.c[mmaemu_probe_place(i)]);
    mmaemu_mma_fp16_k8(d, a, mmaemu_probe_word(request.b, 8, 4, group, member));
#pragma unroll
    for (i = 0; i < 4; ++i)
        request.d[mmaemu_probe_place(i)] = __float_as_uint(d[i]);
}
