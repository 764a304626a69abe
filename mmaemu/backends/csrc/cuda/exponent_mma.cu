/* Floor-FMA with the block exponent from a bf16 matrix product: v9, e4m3 only.
 *
 * Computes: N2-N6 with L = 16, F = 13, as floor_fma.cuh does; E comes from exponent_product.cuh.
 * Exact because: that header proves E, and the rest is the kernel of v4, whatever E's source.
 * The accumulators are scaled by 2^-96, so that their exponent byte is E + 31 like the one read.
 * Layout: floor_fma.cuh, with the powers of two in the fragments of exponent_product.cuh. At most
 * 128 registers and 21 KiB of shared memory: two blocks share an SM of every architecture.
 * Preconditions: those of simt.cuh and exponent_product.cuh. */
#include "floor_fma.cuh"

#include "exponent_product.cuh"

struct mmaemu_mma_exponents {
    MMAEMU_DEVICE int field(int exponent, int is_b)
    {
        (void)is_b;
        return mmaemu_power_field(exponent);
    }

    MMAEMU_DEVICE void find(const mmaemu_u32 (&power)[MMAEMU_LENGTH / 2][MMAEMU_LINES], int row,
                            int column, const mmaemu_sums &chain, mmaemu_u32 (&exponent)[4][4])
    {
        MMAEMU_EACH_INSTRUCTION(y, x)
        {
            mmaemu_u32 a[4];
            mmaemu_u32 b[2];
            float d[4];
            int i;
            mmaemu_fragment_a(power, column, x, a);
            mmaemu_fragment_b(power, row, y, b);
            mmaemu_exponent_product(a, b, d);
#pragma unroll
            for (i = 0; i < 4; ++i)
                exponent[2 * y + i % 2][2 * x + i / 2] =
                    max(mmaemu_read_exponent(d[i]),
                        __float_as_uint(chain[2 * y + i % 2][2 * x + i / 2]) & 0x7F800000u);
        }
    }
};

extern "C" __global__ void __launch_bounds__(MMAEMU_THREADS, 2)
    MMAEMU_ENTRY(struct mmaemu_cuda_request request)
{
    typedef mmaemu_floor_fma<mmaemu_mma_exponents> algorithm;
    __shared__ struct mmaemu_simt_memory<algorithm> memory;
    mmaemu_simt_gemm<algorithm>(request, memory);
}
