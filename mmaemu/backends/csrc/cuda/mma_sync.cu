/* The device's own FP8 products, m16n8k32: qmma, for devices whose unit is that of the model ada.
 *
 * Computes: what mma.sync does with e4m3 and e5m2 on sm_89 (N2-N6 with L = 16, F = 13: a product of
 * 32 is a chain of two steps). On a device with another unit the self-test refuses it.
 * Exact because: nothing is rounded here but by the instruction, whose accumulator is the chain.
 * Zeros that pad a ragged end leave the accumulator as it is, which has 13 fraction bits already.
 * A code that is not finite makes NaN of outputs that the non-finite rule replaces.
 * Layout: as in exponent_product.cuh, with four codes in the place of two numbers. At most 128
 * registers and 22 KiB of shared memory: two blocks share an SM.
 * Preconditions: those of simt.cuh; runs of the plan begin at multiples of 32. */
#include "exponent_product.cuh"

template <int PAIR> struct mmaemu_matrix_unit {
    static const int SCALE = 0;
    static const int DECODES = 0;

    struct panels {
        mmaemu_u32 codes[MMAEMU_LENGTH / 4][MMAEMU_LINES];
    };

    /* The instruction's rows are columns of the output: its first format is b's. */
    MMAEMU_DEVICE void product(float (&d)[4], const mmaemu_u32 (&b)[4], const mmaemu_u32 (&a)[2])
    {
        if constexpr (PAIR == 0)
            mmaemu_mma_e4m3_e4m3(d, b, a);
        else if constexpr (PAIR == 1)
            mmaemu_mma_e5m2_e4m3(d, b, a);
        else if constexpr (PAIR == 2)
            mmaemu_mma_e4m3_e5m2(d, b, a);
        else
            mmaemu_mma_e5m2_e5m2(d, b, a);
    }

    MMAEMU_DEVICE void block(const struct panels &panels, int row, int column, mmaemu_sums &chain)
    {
        MMAEMU_EACH_INSTRUCTION(y, x)
        {
            mmaemu_u32 b[4];
            mmaemu_u32 a[2];
            float d[4];
            int i;
            mmaemu_fragment_a(panels.codes, column, x, b);
            mmaemu_fragment_b(panels.codes, row, y, a);
#pragma unroll
            for (i = 0; i < 4; ++i)
                d[i] = chain[2 * y + i % 2][2 * x + i / 2];
            product(d, b, a);
#pragma unroll
            for (i = 0; i < 4; ++i)
                chain[2 * y + i % 2][2 * x + i / 2] = d[i];
        }
    }
};

/* Each pair of formats, a's first, has its own loop over shared memory of one layout. */
extern "C" __global__ void __launch_bounds__(MMAEMU_THREADS, 2)
    MMAEMU_ENTRY(struct mmaemu_cuda_request request)
{
    __shared__ struct mmaemu_simt_memory<mmaemu_matrix_unit<0>> memory;
    void *const place = &memory;
    switch (request.format_a * 2 + request.format_b) {
    case 0:
        mmaemu_simt_gemm(request, memory);
        break;
    case 1:
        mmaemu_simt_gemm(request, *(mmaemu_simt_memory<mmaemu_matrix_unit<1>> *)place);
        break;
    case 2:
        mmaemu_simt_gemm(request, *(mmaemu_simt_memory<mmaemu_matrix_unit<2>> *)place);
        break;
    default:
        mmaemu_simt_gemm(request, *(mmaemu_simt_memory<mmaemu_matrix_unit<3>> *)place);
    }
}
