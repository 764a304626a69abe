/* Floor by a toward-zero FMA plus a count of negative inexact products, for F = 13.
 *
 * Computes: the accumulators of L = 16 and 32, all pairs of e4m3 and e5m2, every plan (N2-N8,
 * N14-N18).
 *
 * Exact because (u = 2^(E - 13) is the grid of a block, p a product, c the accumulator):
 * - A product has at most 8 significant bits, so fp32 holds it, and none is subnormal (>= 2^-32).
 * - acc starts as B + trunc_u(c) with B = 1.5 * 2^(E + 10). |trunc_u(c)| + sum |p| < 2^(E + 1) +
 *   32 * 3.52 * 2^E < 2^(E + 7), so acc stays in the binade of B, whose ulp is u: every
 *   acc = acc + p rounded toward zero adds floor_u(p) exactly.
 * - trunc_u(p) = floor_u(p), plus u where p is negative and no multiple of u. The latter are
 * counted in bytes: p is a multiple of u iff la + lb >= E - 13 (exponents of the lowest set bits),
 * and the tables put the sign into the top bit, so that one signed comparison decides both.
 * - The count is added to the bits of acc: one unit in the last place is u.
 * - S = acc - B is exact, and clearing its low 10 bits truncates to 13 fraction bits. S = 0 is +0.
 * - Every product and every c is a multiple of 2^-32, so nothing is cut while E <= -19: E may start
 *   at -23 instead of the true maximum, which keeps bytes and exponents in range.
 *
 * Layout: a unit is a byte vector of 4 * WIDTH outputs: WIDTH lanes of four bytes, byte j of a lane
 * belonging to fp32 vector j. A wide unit is one row and 4 * WIDTH columns (vector j holds columns
 * j * WIDTH + lane); a narrow one is four rows (vector j is row j) and WIDTH columns, for small N.
 * The operand b is packed per block of L: fp32 values, exponent bytes, lowest-bit bytes (6 KB for
 * L = 16 with WIDTH = 16), and stays in L1 while all rows of the tile pass over it. Values of b,
 * and with them every sum, are scaled by 2^16: the exponent byte of B is then E + 153, which is
 * also the limit E - 103 of the count modulo 256.
 *
 * Preconditions, checked by mmaemu_cpu_run: the formats and L above, no floor above -19, and
 * K < 2^25, which bounds E by 57. */
#define SUM float
#define vsum vf
#define ENTRY mmaemu_floor_fma_
#include "floor_fma_tile.h"

/* Exponent byte of B for vector j of a unit, as fp32 bits of B = 1.5 * 2^(E + 10 + SCALE). */
INLINE vu base_bits(vb exponent, int j)
{
    const vu lanes = (vu)exponent;
    const vu placed = j == 3 ? lanes >> 1 : lanes << (23 - 8 * j);
    return (placed & splat(0x7F800000u)) | splat(0x00400000u);
}

/* The exponent bytes of the four accumulators of a unit, on the scale of the products'. */
INLINE vb accumulator_exponents(const vf *c)
{
    const vu lanes = (((vu)c[0] >> 23) & splat(0xFFu)) | (((vu)c[1] >> 15) & splat(0xFF00u)) |
                     (((vu)c[2] >> 7) & splat(0xFF0000u)) | (((vu)c[3] << 1) & splat(0xFF000000u));
    return max_bytes((vb)lanes + splat_byte(EXPONENT_BIAS - 127 - SCALE),
                     splat_byte(EXPONENT_START));
}

/* One block for UNITS units. a_*: of the first unit, L dwords (values: L floats a row) each. */
INLINE void block(const struct mmaemu_request *request, const struct panel *panel,
                  const float *a_value, const mmaemu_u32 *a_exponent, const mmaemu_u32 *a_low,
                  vf *chain, int L, int narrow)
{
    vb exponent[UNITS];
    vb count[UNITS];
    vf acc[UNITS][4];
    int u;
    int j;
    int k;
    (void)request; /* F and the fraction bits of the result are 13. */
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u)
        exponent[u] = accumulator_exponents(chain + 4 * u);
#pragma GCC unroll 4
    for (k = 0; k < L; ++k)
#pragma GCC unroll 4
        for (u = 0; u < UNITS; ++u)
            exponent[u] =
                max_bytes(exponent[u], panel->exponent[k] + (vb)splat(a_exponent[u * L + k]));
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u) {
        count[u] = splat_byte(0);
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vu base = base_bits(exponent[u], j);
            const vf signed_base = (vf)(base | ((vu)chain[4 * u + j] & splat(0x80000000u)));
            acc[u][j] = ((chain[4 * u + j] + signed_base) - signed_base) + (vf)base;
        }
    }
#pragma GCC unroll 2
    for (k = 0; k < L; ++k) {
        const vb low = panel->low[k];
        vf a[UNITS];
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vf b = panel->value[narrow ? k : 4 * k + j];
#pragma GCC unroll 4
            for (u = 0; u < UNITS; ++u) {
                if (narrow || j == 0)
                    a[u] = splat_load(a_value + (narrow ? 4 * u + j : u) * L + k);
                acc[u][j] = multiply_add(a[u], b, acc[u][j]);
            }
        }
#pragma GCC unroll 4
        for (u = 0; u < UNITS; ++u)
            count[u] = count_below(count[u], low + (vb)splat(a_low[u * L + k]), exponent[u]);
    }
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vf sum = (vf)add_byte((vu)acc[u][j], count[u], j) - (vf)base_bits(exponent[u], j);
            chain[4 * u + j] = (vf)((vu)sum & splat(0xFFFFFC00u));
        }
}

#include "floor_fma_run.h"
