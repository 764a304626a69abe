/* Floor-FMA with the block exponent from sums of bf16 powers of two: v4 and h4. */
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
