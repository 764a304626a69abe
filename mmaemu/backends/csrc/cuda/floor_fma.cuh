/* Floor by a toward-zero FMA plus a count of negative inexact products, for F = 13.
 *
 * Computes: the models ada (L = 16) and hopper (L = 32) for pairs of e4m3 and e5m2, every plan, the
 * non-finite rule and the epilogue (N2-N8, N14-N19). The exponent E of a step comes from
 * Exponents: `field` is the exponent field of the bf16 power of two that stands for a code of that
 * exponent, and `find` makes (E + BIAS) << 23 of the powers and the sums.
 *
 * Exact because (u = 2^(E - 13) is the grid of a step, p a product, c the accumulator; the hardware
 * flushes nothing, and intrinsics state every rounding):
 * - A product has at most 8 significant bits, and an FMA rounds only once, so p is exact in it.
 * - The sum starts as B + trunc_u(c) + N * u with B = 1.5 * 2^(E + 10) and N <= 32. |trunc_u(c)| +
 *   N * u + sum |p| < 2^(E + 1) + 2^(E - 8) + 32 * 3.52 * 2^E < 2^(E + 7), so it stays in the
 *   binade of B, whose ulp is u: every FMA rounded toward zero adds floor_u(p) exactly.
 * - trunc_u(c): c, below 2^(E + 1), plus B with the sign of c, rounded toward zero, has its
 *   magnitude in the binade of B too; taking that B away is exact, and so is adding B + N * u.
 * - trunc_u(p) = floor_u(p), plus u where p is negative and no multiple of u; N counts those. p is
 *   a multiple of u iff v = la + lb - (E - 13) >= 0, with la and lb the exponents of the lowest set
 *   bits, in [-16, 15].
 * - N in bytes: low bytes are 47 - la, and 0 for zero, as if its la were 47. Their sum plus E + 31,
 *   with E capped at 44, less 11, is 127 - v: bit 7 says v < 0. It never leaves [1, 190]: at most
 *   63 + 63 + 75 - 11, and at least 0 + 0 + 12 - 11. So no byte borrows from the next one, although
 *   the words of a have the 11 taken off beforehand. A cap of 44 keeps both kinds right: with
 *   E - 13 >= 31 every product but zero is inexact (la + lb <= 30), and a zero is not
 *   (47 - 16 - 31 >= 0). The sign words are zero but for bit 7, so one logical operation keeps the
 *   negative inexact ones of four k, and a byte dot product adds 2 * 128 for each: at most 2^13,
 *   below the exponent in the same word.
 * - S = sum - B is exact, +0 where it is zero, and clearing its low 10 bits truncates to 13
 *   fraction bits.
 * - Every product and every c is a multiple of 2^-32, so nothing is cut while E <= -19: E starts
 *   there.
 * - Values of b, and with them all sums, are scaled by 2^-96, which makes the exponent field of c
 *   equal to E_c + 31. Scaled sums are multiples of 2^-128, which fp32 holds, if as subnormals; B
 *   is at least 2^-105, and E + 31 + 10 <= 254 for K < 2^181: any K.
 *
 * Layout: simt.cuh; panels of fp32 values [k], powers of two of two k [k / 2], and low bytes and
 * sign bits of four k [k / 4].
 * Preconditions: those of simt.cuh; what Exponents demands of the formats. */
#ifndef MMAEMU_CUDA_FLOOR_FMA_CUH
#define MMAEMU_CUDA_FLOOR_FMA_CUH

#include "simt.cuh"

/* Sums are scaled by 2^SCALE, so that the exponent byte of an accumulator is E + BIAS. The low byte
 * of a code is LOW_ZERO less the exponent of its lowest bit, and 0 for zero. */
#define MMAEMU_BIAS 31
#define MMAEMU_FLOOR (-19) /* E starts here. */
#define MMAEMU_LOW_ZERO 47
#define MMAEMU_LOW_EXCESS 11
#define MMAEMU_HIGHEST 44 /* From this E on, every product is inexact. */

template <class Exponents> struct mmaemu_floor_fma {
    static const int SCALE = MMAEMU_BIAS - 127;
    static const int DECODES = 1;

    struct panels {
        float value[MMAEMU_LENGTH][MMAEMU_LINES];
        mmaemu_u32 power[MMAEMU_LENGTH / 2][MMAEMU_LINES];
        mmaemu_u32 low[MMAEMU_LENGTH / 4][MMAEMU_LINES];
        mmaemu_u32 sign[MMAEMU_LENGTH / 4][MMAEMU_LINES];
    };

    /* The bf16 power of two in the high half, the low byte below. */
    MMAEMU_DEVICE mmaemu_u32 rest(const struct mmaemu_number &number, int fraction_bits, int is_b)
    {
        const int low = number.exponent - fraction_bits + mmaemu_low_bit(number.significand);
        const int field = Exponents::field(number.exponent, is_b);
        if (number.significand == 0)
            return 0u;
        return (mmaemu_u32)field << (7 + 16) | (mmaemu_u32)(MMAEMU_LOW_ZERO - low);
    }

    MMAEMU_DEVICE void pack(struct panels &panels, int quad, int line, mmaemu_u32 codes,
                            const struct mmaemu_entry (&four)[4])
    {
        const mmaemu_u32 low = __byte_perm(__byte_perm(four[0].rest, four[1].rest, 0x0040),
                                           __byte_perm(four[2].rest, four[3].rest, 0x0040), 0x5410);
        int j;
#pragma unroll
        for (j = 0; j < 4; ++j)
            panels.value[4 * quad + j][line] = four[j].value;
        panels.power[2 * quad][line] = __byte_perm(four[0].rest, four[1].rest, 0x7632);
        panels.power[2 * quad + 1][line] = __byte_perm(four[2].rest, four[3].rest, 0x7632);
        panels.low[quad][line] = line < MMAEMU_TILE ? low - MMAEMU_LOW_EXCESS * 0x01010101u : low;
        panels.sign[quad][line] = codes & 0x80808080u;
    }

    /* Adds 256 * N to the exponents of two rows; two at a time need fewer registers. */
    MMAEMU_DEVICE void count(const struct panels &panels, int row, int column,
                             mmaemu_u32 (&first)[4], mmaemu_u32 (&second)[4])
    {
        mmaemu_u32 limit[2][4];
        int quad;
        int j;
#pragma unroll
        for (j = 0; j < 4; ++j) {
            limit[0][j] = limits(first[j]);
            limit[1][j] = limits(second[j]);
        }
#pragma unroll 2
        for (quad = 0; quad < MMAEMU_LENGTH / 4; ++quad) {
            const uint2 low_a = *(const uint2 *)&panels.low[quad][row];
            const uint2 sign_a = *(const uint2 *)&panels.sign[quad][row];
            mmaemu_u32 low_b[4];
            mmaemu_u32 sign_b[4];
            mmaemu_load_four(&panels.low[quad][column], low_b);
            mmaemu_load_four(&panels.sign[quad][column], sign_b);
#pragma unroll
            for (j = 0; j < 4; ++j) {
                const mmaemu_u32 x = low_a.x + low_b[j] + limit[0][j];
                const mmaemu_u32 y = low_a.y + low_b[j] + limit[1][j];
                first[j] = __dp4a(x & (sign_a.x ^ sign_b[j]), 0x02020202u, first[j]);
                second[j] = __dp4a(y & (sign_a.y ^ sign_b[j]), 0x02020202u, second[j]);
            }
        }
    }

    /* E + BIAS, at most HIGHEST + BIAS, in each of four bytes. */
    MMAEMU_DEVICE mmaemu_u32 limits(mmaemu_u32 exponent)
    {
        const mmaemu_u32 capped = min(exponent, (mmaemu_u32)(MMAEMU_HIGHEST + MMAEMU_BIAS) << 23);
        return __byte_perm(capped << 1, 0u, 0x3333);
    }

    MMAEMU_DEVICE void block(const struct panels &panels, int row, int column, mmaemu_sums &chain)
    {
        mmaemu_u32 exponent[4][4];
        float base[4][4];
        int k;
        Exponents::find(panels.power, row, column, chain, exponent);
        count(panels, row, column, exponent[0], exponent[1]);
        count(panels, row + 2, column, exponent[2], exponent[3]);
        MMAEMU_EACH
        {
            const mmaemu_u32 bits = (exponent[i][j] & 0x7F800000u) + (10u << 23 | 0x400000u);
            const mmaemu_u32 negative = __byte_perm(exponent[i][j], 0u, 0x4441);
            const float signed_base =
                __uint_as_float(bits | (__float_as_uint(chain[i][j]) & MMAEMU_FP32_SIGN));
            const float cut = __fadd_rn(__fadd_rz(chain[i][j], signed_base), -signed_base);
            base[i][j] = __uint_as_float(bits);
            chain[i][j] = __fadd_rn(cut, __uint_as_float(bits + negative));
        }
#pragma unroll 8
        for (k = 0; k < MMAEMU_LENGTH; ++k) {
            float a[4];
            float b[4];
            mmaemu_load_four(&panels.value[k][row], a);
            mmaemu_load_four(&panels.value[k][column], b);
            MMAEMU_EACH
            chain[i][j] = __fmaf_rz(a[i], b[j], chain[i][j]);
        }
        MMAEMU_EACH
        {
            const float sum = __fadd_rn(chain[i][j], -base[i][j]);
            chain[i][j] = __uint_as_float(__float_as_uint(sum) & 0xFFFFFC00u);
        }
    }
};

#endif
