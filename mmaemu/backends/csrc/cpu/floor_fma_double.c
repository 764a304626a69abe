/* Floor by a toward-zero FMA plus a count of negative inexact products, in double, for F > 13.
 *
 * Computes: the accumulators of 13 <= F <= 40 with L = 16 and 32, all pairs of e4m3 and e5m2, every
 * plan (N2-N8, N14-N18): the models of tcgen05 and sm_120.
 *
 * Exact because, beside what floor_fma.c says (u = 2^(E - F)):
 * - B = 1.5 * 2^(E - F + 52) has the ulp u, and |trunc_u(c)| + sum |p| < 2^(E + 7) <
 *   2^(E - F + 51), so every toward-zero FMA adds floor_u(p) exactly.
 * - S = acc - B is exact; its conversion to fp32 rounds toward zero, which is the truncation to 23
 *   fraction bits, and cleared low bits truncate to fewer. |S| >= 2^-32 or S = +0: no subnormal.
 * - Every product and every c is a multiple of 2^-32, so nothing is cut while E - F <= -32: E may
 *   start at F - 36. The exponent byte of E is E + 153 and the limit of the count E - F - 90: with
 *   that start, limits lie in [-126, -46] for every F.
 *
 * Layout: floor_fma.c; vectors of values and sums are WIDTH doubles, so panels are up to 20 KB.
 *
 * Preconditions, checked by mmaemu_cpu_run: the limits above, no floor above F - 32, K < 2^25. */
#include "simd.h"
#undef UNITS
#define UNITS UNITS_OF_DOUBLES
#define SUM double
#define vsum vd
#define ENTRY mmaemu_floor_fma_double_
#include "floor_fma_tile.h"

typedef mmaemu_i64 vl __attribute__((vector_size(8 * WIDTH)));

/* B of vector j of a unit: the exponent field is E - F + 52 + SCALE + 1023. */
INLINE vd base_of(vb exponent, int j, int fraction_bits)
{
    const vu byte = ((vu)exponent >> (8 * j)) & splat(255u);
    const vl field = __builtin_convertvector(
        byte + splat((mmaemu_u32)(1023 + 52 + SCALE - EXPONENT_BIAS - fraction_bits)), vl);
    return (vd)((field << 52) | (1ll << 51));
}

/* The exponent bytes of the four accumulators of a unit, on the scale of the products'. */
INLINE vb accumulator_exponents(const vf *c, int fraction_bits)
{
    const vu lanes = (((vu)c[0] >> 23) & splat(0xFFu)) | (((vu)c[1] >> 15) & splat(0xFF00u)) |
                     (((vu)c[2] >> 7) & splat(0xFF0000u)) | (((vu)c[3] << 1) & splat(0xFF000000u));
    return max_bytes((vb)lanes + splat_byte(EXPONENT_BIAS - 127 - SCALE),
                     splat_byte(EXPONENT_START + fraction_bits - 13));
}

/* One block for UNITS units. a_*: of the first unit, L dwords (values: L doubles a row) each. */
INLINE void block(const struct mmaemu_request *request, const struct panel *panel,
                  const double *a_value, const mmaemu_u32 *a_exponent, const mmaemu_u32 *a_low,
                  vf *chain, int L, int narrow)
{
    const int fraction_bits = request->fraction_bits;
    const vu cut = splat(~((1u << (23 - request->result_fraction_bits)) - 1u));
    vb exponent[UNITS];
    vb limit[UNITS];
    vb count[UNITS];
    vd acc[UNITS][4];
    int u;
    int j;
    int k;
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u)
        exponent[u] = accumulator_exponents(chain + 4 * u, fraction_bits);
#pragma GCC unroll 4
    for (k = 0; k < L; ++k)
#pragma GCC unroll 4
        for (u = 0; u < UNITS; ++u)
            exponent[u] =
                max_bytes(exponent[u], panel->exponent[k] + (vb)splat(a_exponent[u * L + k]));
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u) {
        count[u] = splat_byte(0);
        limit[u] = exponent[u] - splat_byte(fraction_bits - 13);
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vd base = base_of(exponent[u], j, fraction_bits);
            const vd c = __builtin_convertvector(chain[4 * u + j], vd);
            const vd signed_base = (vd)((vl)base | ((vl)c & (-0x7FFFFFFFFFFFFFFFll - 1)));
            acc[u][j] = ((c + signed_base) - signed_base) + base;
        }
    }
#pragma GCC unroll 2
    for (k = 0; k < L; ++k) {
        const vb low = panel->low[k];
        vd a[UNITS];
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vd b = panel->value[narrow ? k : 4 * k + j];
#pragma GCC unroll 4
            for (u = 0; u < UNITS; ++u) {
                if (narrow || j == 0)
                    a[u] = splat_double(a_value + (narrow ? 4 * u + j : u) * L + k);
                acc[u][j] = multiply_add_double(a[u], b, acc[u][j]);
            }
        }
#pragma GCC unroll 4
        for (u = 0; u < UNITS; ++u)
            count[u] = count_below(count[u], low + (vb)splat(a_low[u * L + k]), limit[u]);
    }
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vu byte = ((vu)count[u] >> (8 * j)) & splat(255u);
            const vd sum = (vd)((vl)acc[u][j] + __builtin_convertvector(byte, vl)) -
                           base_of(exponent[u], j, fraction_bits);
            chain[4 * u + j] = (vf)((vu) __builtin_convertvector(sum, vf) & cut);
        }
}

#include "floor_fma_run.h"
