/* Every product truncated by a toward-zero add, for F = 13: v1 and h1.
 *
 * Computes: the models ada (L = 16) and hopper (L = 32) for all pairs of e4m3 and e5m2, every plan,
 * the non-finite rule and the epilogue (N2-N8, N14-N19), with IEEE instructions only.
 *
 * Exact because (u = 2^(E - 13) is the grid of a step, p a product, c the accumulator; the hardware
 * flushes nothing, and intrinsics state every rounding):
 * - A product has at most 8 significant bits, and an FMA rounds only once, so p is exact in it.
 * - With B = 2^(E + 10), |p| < 2^(E + 2) < B: p + sign(p) * B has its magnitude in [B, 2 B), where
 *   the ulp is u. Rounded toward zero it is trunc_u(p) + sign(p) * B, and taking B away again is
 *   exact. The sign is that of the operands' sign bits, also where p is zero: then the sum is
 *   exactly sign * B, and the rest +0. c, below 2^(E + 1), is truncated in the same way.
 * - The sum of the truncated terms is a multiple of u below 2^(E + 1) + 32 * 3.52 * 2^E < 2^7 *
 * 2^E, that is 2^20 * u: fp32 additions of it are exact, in any order. A sum of 0 is +0, since no
 * term is -0. Clearing the low 10 bits truncates to 13 fraction bits.
 * - E in bytes: a code of exponent e has e + 47 in [33, 62], zero has 0. The sum of two codes is
 *   e_a + e_b + 94 <= 124, or at most 62 where one is zero, which is less than the start, 75. So
 *   bytes neither carry nor reach bit 7, which larger_bytes needs free. The start means E = -19:
 *   every product and every c is a multiple of 2^-32, so nothing is cut while E <= -19.
 * - Sums are scaled by 2^-33, which makes the exponent field of c the same byte, E_c + 94. Scaled
 *   values are multiples of 2^-65, and E + 94 + 10 <= 254 holds for K < 2^118: no subnormal, no
 *   overflow, any K.
 *
 * Layout: simt.cuh; panels of fp32 values [k], of their signs [k], and of exponent bytes of four k
 * [k / 4]. Cost: 7.5 instructions a product for L = 16 and 6.8 for L = 32 (machine code of sm_90, a
 * whole step over aligned operands), one of them the FMA: 13 and 15 % of the FMA pipe's limit. 128
 * registers: two blocks share an SM, but for L = 32 on sm_75, whose shared memory holds one.
 * Preconditions: those of simt.cuh. */
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
        mmaemu_u32 sign[MMAEMU_LENGTH][MMAEMU_LINES]; /* Of the value, and nothing else. */
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
        for (j = 0; j < 4; ++j) {
            panels.value[4 * quad + j][line] = four[j].value;
            panels.sign[4 * quad + j][line] = __float_as_uint(four[j].value) & MMAEMU_FP32_SIGN;
        }
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
#pragma unroll 1
        for (k = 0; k < MMAEMU_LENGTH; ++k) {
            float a[4];
            float b[4];
            mmaemu_u32 sign_a[4];
            mmaemu_u32 sign_b[4];
            mmaemu_load_four(&panels.value[k][row], a);
            mmaemu_load_four(&panels.value[k][column], b);
            mmaemu_load_four(&panels.sign[k][row], sign_a);
            mmaemu_load_four(&panels.sign[k][column], sign_b);
            MMAEMU_EACH
            {
                const float signed_base = __uint_as_float(base[i][j] ^ sign_a[i] ^ sign_b[j]);
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
