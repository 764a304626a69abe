/* Every product truncated by a toward-zero add, for F = 13: v1 and h1. */
#include "simt.cuh"

/* Sums are scaled by 2^SCALE, so that the exponent byte of an accumulator is E + BIAS, which is
 * also the sum of the exponent bytes of two codes. */
#define MMAEMU_BIAS 94
#define MMAEMU_FLOOR (-19) /* E starts here. */

struct mmaemu_decode_table {
    static const int SCALE = MMAEMU_BIAS - 127;
    static const int DECODES = 1;

    struct panels {
        float value[MMAEMU_LENGTH][MMAEMU_LINES];
        mmaemu_u32 exponent[MMAEMU_LENGTH / 4][MMAEMU_LINES];
    };

    MMAEMU_DEVICE mmaemu_u32 rest(const struct mmaemu_number &number, int, int)
    {
        return number.significand == 0 ? 0u : (mmaemu_u32)(number.exponent + MMAEMU_BIAS / 2);
    }

    MMAEMU_DEVICE void pack(struct panels &panels, int quad, int line, mmaemu_u32,
                            const struct mmaemu_entry (&four)[4])
    {
        int j;
#pragma unroll
        for (j = 0; j < 4; ++j)
            panels.value[4 * quad + j][line] = four[j].value;
        panels.exponent[quad][line] =
            __byte_perm(__byte_perm(four[0].rest, four[1].rest, 0x0040),
                        __byte_perm(four[2].rest, four[3].rest, 0x0040), 0x5410);
    }

    /* The larger one of each pair of bytes; all are below 128. The sign of a byte of the difference
     * tells which, and a selector with bit 3 set spreads it over the byte. */
    MMAEMU_DEVICE mmaemu_u32 larger_bytes(mmaemu_u32 x, mmaemu_u32 y)
    {
        const mmaemu_u32 mask = __byte_perm((x | 0x80808080u) - y, 0u, 0xBA98);
        return (x & mask) | (y & ~mask);
    }

    /* (E + BIAS) << 23 of the step, from products and accumulators. */
    MMAEMU_DEVICE void exponents(const struct panels &panels, int row, int column,
                                 const mmaemu_sums &chain, mmaemu_u32 (&exponent)[4][4])
    {
        int quad;
        MMAEMU_EACH
        exponent[i][j] = (mmaemu_u32)(MMAEMU_FLOOR + MMAEMU_BIAS) * 0x01010101u;
#pragma unroll 2
        for (quad = 0; quad < MMAEMU_LENGTH / 4; ++quad) {
            mmaemu_u32 a[4];
            mmaemu_u32 b[4];
            mmaemu_load_four(&panels.exponent[quad][row], a);
            mmaemu_load_four(&panels.exponent[quad][column], b);
            MMAEMU_EACH
            exponent[i][j] = larger_bytes(a[i] + b[j], exponent[i][j]);
        }
        MMAEMU_EACH
        {
            const mmaemu_u32 two = larger_bytes(exponent[i][j], exponent[i][j] >> 16);
            const mmaemu_u32 one = max(two & 0xFFu, two >> 8 & 0xFFu);
            exponent[i][j] = max(one << 23, __float_as_uint(chain[i][j]) & 0x7F800000u);
        }
    }

    MMAEMU_DEVICE void block(const struct panels &panels, int row, int column, mmaemu_sums &chain)
    {
        mmaemu_u32 base[4][4];
        int k;
        exponents(panels, row, column, chain, base);
        MMAEMU_EACH
        {
            const mmaemu_u32 bits = base[i][j] + (10u << 23);
            const float signed_base =
                __uint_as_float(bits | (__float_as_uint(chain[i][j]) & MMAEMU_FP32_SIGN));
            chain[i][j] = __fadd_rn(__fadd_rz(chain[i][j], signed_base), -signed_base);
            base[i][j] = bits;
        }
#pragma unroll 4
        for (k = 0; k < MMAEMU_LENGTH; ++k) {
            float a[4];
            float b[4];
            mmaemu_load_four(&panels.value[k][row], a);
            mmaemu_load_four(&panels.value[k][column], b);
            MMAEMU_EACH
            {
                const mmaemu_u32 sign =
                    (__float_as_uint(a[i]) ^ __float_as_uint(b[j])) & MMAEMU_FP32_SIGN;
                const float signed_base = __uint_as_float(base[i][j] | sign);
                const float sum = __fmaf_rz(a[i], b[j], signed_base);
                chain[i][j] = __fadd_rn(chain[i][j], __fadd_rn(sum, -signed_base));
            }
        }
        MMAEMU_EACH
        chain[i][j] = __uint_as_float(__float_as_uint(chain[i][j]) & 0xFFFFFC00u);
    }
};

extern "C" __global__ void __launch_bounds__(MMAEMU_THREADS, 2)
    MMAEMU_ENTRY(struct mmaemu_cuda_request request)
{
    __shared__ struct mmaemu_simt_memory<mmaemu_decode_table> memory;
    mmaemu_simt_gemm<mmaemu_decode_table>(request, memory);
}
