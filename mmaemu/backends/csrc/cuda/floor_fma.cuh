/* Floor by a toward-zero FMA plus a count of negative inexact products, for F = 13.
 *
 * Exponents finds E of a step: `field` is the exponent field of the bf16 power of two that stands
 * for a code of that exponent, and `find` makes (E + BIAS) << 23 of the powers and the sums. */
#ifndef MMAEMU_CUDA_FLOOR_FMA_CUH
#define MMAEMU_CUDA_FLOOR_FMA_CUH

#include "simt.cuh"

/* Sums are scaled by 2^SCALE, so that the exponent byte of an accumulator is E + BIAS. */
#define MMAEMU_BIAS 31
#define MMAEMU_FLOOR (-19) /* E starts here. */
#define MMAEMU_LOW_ZERO                                                                            \
    47 /* Low byte of a code: 47 - (exponent of its lowest bit), 0 for zero.                       \
        */
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
