/* Floor-FMA with the block exponent from sums of bf16 powers of two: v4 and h4.
 *
 * Computes: what floor_fma.cuh says, for all four pairs of e4m3 and e5m2, with IEEE instructions
 * only.
 * Exact because, beside that header's proof, E is found so: a code of exponent e becomes 2^(4e) in
 * a and 2^(4e - 3) in b, zero becomes 0. With e in [-14, 15] these and their products,
 * 2^(4(e_a + e_b) - 3) = 2^(4(e + 31) - 127), lie in bf16's normal range. One half of a word sums
 * the even k, the other one the odd k, from the start 2^(4(-19 + 31) - 127): at most 9 terms. Let
 * the largest be t = 2^(4(m + 31) - 127). Rounding to nearest is monotonic and t, 2t, ... 9t are
 * bf16 numbers, so however the FMAs round, the sum lies in [t, 9t], below 2^4 * t: the upper six
 * bits of its exponent field are m + 31. For L = 32 the sum of the first 16 k is cut down to its t
 * and is the start of the next ones. The larger half and the accumulator's own field decide E.
 * Layout: floor_fma.cuh.
 * Cost: 4.4 instructions a product for L = 16 and 3.7 for L = 32 (machine code of sm_80 and sm_90,
 * a whole step over aligned operands), one of them the FMA: 23 and 27 % of the FMA pipe's limit.
 * 128 registers; two blocks share an SM of every architecture.
 * Preconditions: those of floor_fma.cuh, and a device with bf16 FMAs (sm_80). */
#include "floor_fma.cuh"

struct mmaemu_fma_exponents {
    /* Of 2^(4e) in a and 2^(4e - 3) in b. */
    MMAEMU_DEVICE int field(int exponent, int is_b)
    {
        return 127 + 4 * exponent - (is_b ? 3 : 0);
    }

    /* (E + BIAS) << 23 of the step, from products and accumulators. */
    MMAEMU_DEVICE void find(const mmaemu_u32 (&power)[MMAEMU_LENGTH / 2][MMAEMU_LINES], int row,
                            int column, const mmaemu_sums &chain, mmaemu_u32 (&exponent)[4][4])
    {
        const mmaemu_u32 floor = (mmaemu_u32)(4 * (MMAEMU_FLOOR + MMAEMU_BIAS)) << 7;
        int part;
        int pair;
        MMAEMU_EACH
        exponent[i][j] = floor << 16 | floor;
#pragma unroll
        for (part = 0; part < MMAEMU_LENGTH / 16; ++part) {
            MMAEMU_EACH
            exponent[i][j] &= 0x7E007E00u;
#pragma unroll 4
            for (pair = 8 * part; pair < 8 * part + 8; ++pair) {
                mmaemu_u32 a[4];
                mmaemu_u32 b[4];
                mmaemu_load_four(&power[pair][row], a);
                mmaemu_load_four(&power[pair][column], b);
                MMAEMU_EACH
                exponent[i][j] = mmaemu_fma_bf16x2(a[i], b[j], exponent[i][j]);
            }
        }
        MMAEMU_EACH
        {
            const mmaemu_u32 larger = max(exponent[i][j], exponent[i][j] << 16);
            exponent[i][j] =
                max(larger >> 2 & 0x1F800000u, __float_as_uint(chain[i][j]) & 0x7F800000u);
        }
    }
};

extern "C" __global__ void __launch_bounds__(MMAEMU_THREADS, 2)
    MMAEMU_ENTRY(struct mmaemu_cuda_request request)
{
    __shared__ struct mmaemu_simt_memory<mmaemu_floor_fma<mmaemu_fma_exponents>> memory;
    mmaemu_simt_gemm<mmaemu_floor_fma<mmaemu_fma_exponents>>(request, memory);
}
