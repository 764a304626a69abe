/* The largest exponent of the products of a step, by a matrix product of powers of two.
 *
 * Computes: for the 16 x 32 outputs of a warp, a number r in whose exponent field max(E, -5) of 16
 * products can be read. A code of exponent e stands as the bf16 number 2^(8e - 5), a zero as +0, so
 * that each non-zero product contributes 2^(8(e_a + e_b) - 10) to the sum, which starts at 2^-50.
 *
 * Assumes of the matrix unit, where x is the largest of these 17 terms:
 *   (P) x <= r < 256 x.
 * The terms are not negative, so r <= 17 x up to a rounding, and r >= x if the largest term is not
 * shortened, whatever else is rounded, in whatever order and groups. So (P) asks that terms from
 * 2^-50 to 2^118 neither overflow nor vanish. The probe `exponent-product` shows it.
 *
 * Exact because: e_a + e_b lies in [-12, 16], so r lies in [2^(8E - 10), 2^(8E - 2)) for E raised
 * to -5, and E + 31 is the exponent field of r, plus 131, divided by 8 and cut: fields 117 + 8E to
 * 124 + 8E. Raising E to -5 is harmless: products of e4m3 numbers, and so all sums, are multiples
 * of 2^-18 = 2^(-5 - 13), so nothing is cut at any E up to -5.
 *
 * Layout: power[pair of k][line]; the pairs of a line are the registers of the fragments. The 16
 * rows of the instruction are columns of the output and its 8 columns are rows of the output, so
 * chosen that a thread gets the 4 x 4 outputs it works on: in the instruction (x, y) of 2 x 2,
 * instruction row g + 8i is output column 4g + 2x + i, and instruction column 2t + j is output row
 * 4t + 2y + j, where g = lane / 4 and t = lane % 4.
 *
 * Preconditions: both operands e4m3 and L = 16, which the kernel's row states and the backend
 * checks; all lanes of a warp take part; the probes have passed on the device. */
#ifndef MMAEMU_CUDA_EXPONENT_PRODUCT_CUH
#define MMAEMU_CUDA_EXPONENT_PRODUCT_CUH

#include "simt.cuh"

#define MMAEMU_READ_BIAS 31 /* Of E where it is read from r. */

MMAEMU_DEVICE int mmaemu_power_field(int exponent)
{
    return 127 + 8 * exponent - 5;
}

/* (E + 31) << 23. */
MMAEMU_DEVICE mmaemu_u32 mmaemu_read_exponent(float r)
{
    return (__float_as_uint(r) + (131u << 23)) >> 3 & 0x1F800000u;
}

/* The line of instruction column g = lane / 4 of instruction y; `first` is the warp's first row. */
MMAEMU_DEVICE int mmaemu_fragment_row(int first, int y)
{
    const int g = (int)threadIdx.x % 32 / 4;
    return first + g / 2 * 4 + 2 * y + g % 2;
}

/* Registers of one fragment: words `member` and `member` + 4 of panel[8][line]. Volatile, as
 * reading the words of two instructions at once costs more registers than there are. */
MMAEMU_DEVICE void mmaemu_fragment_a(const volatile mmaemu_u32 (*panel)[MMAEMU_LINES], int column,
                                     int x, mmaemu_u32 (&a)[4])
{
    const int member = (int)threadIdx.x % 4;
    a[0] = panel[member][column + 2 * x];
    a[1] = panel[member][column + 2 * x + 1];
    a[2] = panel[member + 4][column + 2 * x];
    a[3] = panel[member + 4][column + 2 * x + 1];
}

MMAEMU_DEVICE void mmaemu_fragment_b(const volatile mmaemu_u32 (*panel)[MMAEMU_LINES], int row,
                                     int y, mmaemu_u32 (&b)[2])
{
    const int member = (int)threadIdx.x % 4;
    const int line = mmaemu_fragment_row(row - 4 * member, y);
    b[0] = panel[member][line];
    b[1] = panel[member + 4][line];
}

/* The four sums of instruction (x, y): outputs [2y + j][2x + i] at d[2i + j]. */
MMAEMU_DEVICE void mmaemu_exponent_product(const mmaemu_u32 (&a)[4], const mmaemu_u32 (&b)[2],
                                           float (&d)[4])
{
    const float least = __uint_as_float((127u - 50u) << 23);
    d[0] = least;
    d[1] = least;
    d[2] = least;
    d[3] = least;
    mmaemu_mma_bf16(d, a, b);
}

/* The instructions in this order of x and y; which one needs fewer registers depends. */
#define MMAEMU_EACH_INSTRUCTION(FIRST, SECOND)                                                     \
    _Pragma("unroll") for (int FIRST = 0; FIRST < 2; ++FIRST)                                      \
        _Pragma("unroll") for (int SECOND = 0; SECOND < 2; ++SECOND)

#endif
