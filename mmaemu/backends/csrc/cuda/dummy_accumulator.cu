/* Products truncated by fp16 tensor cores, beside a dummy accumulator: tc3, e4m3 only.
 *
 * Computes: N2-N6 with L = 16, F = 13. A step takes, for each output, E of its 16 products and the
 * accumulator c, raised to -5; then, for each half of 8 products, m16n8k8 products onto D and onto
 * -D, D = 2^(E + 11).
 *
 * Assumes of the matrix unit, for 8 products of fp16 numbers p_k = a_k b_k whose exponents
 * e_a + e_b are at most E, and an accumulator of +-D:
 *   (T) every p_k is cut toward zero to a multiple of 2^(E + 11 - 24) = 2^(E - 13) = u, and the
 *       exact sum of these and the accumulator is the result where it is an fp32 number;
 *   (R) where it is none, the result is one of its two fp32 neighbours.
 * That is N3-N6 with L >= 8, F = 24 and an aligned accumulator. The probes `dummy-grid` and
 * `dummy-sum` show it on the device, for every place of k and distance of the grid. L = 4 would
 * round between two halves of four, another F moves the grid, a late accumulator does not set it.
 *
 * Exact because:
 * 1. E comes from exponent_product.cuh, and raising it to -5 is harmless, as is shown there.
 * 2. Every e4m3 number is a normal fp16 number, of its own exponent or, if subnormal, a lower one.
 *    |p_k| < 2^(E + 2), as significands are below 2. So s, the sum of the 8 cut products, is a
 *    multiple of u with |s| < 2^(E + 5).
 * 3. If s < 0, D + s lies in (2^(E + 10), 2^(E + 11)), where fp32 numbers are u apart: the result
 *    is D + s exactly, and less than D. If s > 0, -D + s is exact in the same way, while D + s lies
 *    above D, so that neither it nor a neighbour is less than D. If s = 0 the result is D. So s is
 *    result - D where result < D, else D + the result of -D; both differences are exact, being
 *    multiples of u up to 2^(E + 5).
 * 4. c is cut at u by a toward-zero addition onto 2^(E + 10) with c's sign: |c| < 2^(E + 1), fp32
 *    numbers are u apart from 2^(E + 10) to 2^(E + 11), and subtracting is exact.
 * 5. The cut c and the two sums are multiples of u, below 2^(E + 7) together: fp32 additions of
 *    them are exact, a zero sum is +0, and clearing the low 10 bits truncates to 13 fraction bits.
 * 6. E is at least -5, and |c| < 2^18 * K, so D and u are normal numbers for K < 2^97: any K.
 *
 * Layout: simt.cuh; panels of bf16 powers of two and of fp16 values, two k each [k / 2], read as
 * the fragments of exponent_product.cuh; an m16n8k8 product takes half of a fragment's registers.
 * At most 128 registers and 21 KiB of shared memory: two blocks share an SM of every architecture.
 * Preconditions: those of simt.cuh and exponent_product.cuh. */
#include "exponent_product.cuh"

struct mmaemu_dummy_accumulator {
    static const int SCALE = 0;
    static const int DECODES = 1;

    struct panels {
        mmaemu_u32 power[MMAEMU_LENGTH / 2][MMAEMU_LINES]; /* bf16, two k each. */
        mmaemu_u32 value[MMAEMU_LENGTH / 2][MMAEMU_LINES]; /* fp16 */
    };

    /* The power of two in the high half; the magnitude as fp16 without its 7 low bits, which are
     * zero, in the low byte. */
    MMAEMU_DEVICE mmaemu_u32 rest(const struct mmaemu_number &number, int fraction_bits, int is_b)
    {
        const int size = number.significand < 0 ? -number.significand : number.significand;
        const int top = size == 0 ? 0 : mmaemu_high_bit((mmaemu_u64)size);
        const int exponent = number.exponent - fraction_bits + top;
        (void)is_b;
        if (size == 0)
            return 0u;
        return (mmaemu_u32)mmaemu_power_field(number.exponent) << (7 + 16) |
               (mmaemu_u32)(exponent + 15) << 3 | ((mmaemu_u32)size << (3 - top) & 7u);
    }

    /* Two magnitudes and the signs of the codes at bits 7 and 15 of `codes`. */
    MMAEMU_DEVICE mmaemu_u32 pair(const struct mmaemu_entry &first,
                                  const struct mmaemu_entry &second, mmaemu_u32 codes)
    {
        const mmaemu_u32 sizes = (first.rest & 0xFFu) | (second.rest & 0xFFu) << 16;
        return sizes << 7 | (codes & 0x80u) << 8 | (codes & 0x8000u) << 16;
    }

    MMAEMU_DEVICE void pack(struct panels &panels, int quad, int line, mmaemu_u32 codes,
                            const struct mmaemu_entry (&four)[4])
    {
        panels.power[2 * quad][line] = __byte_perm(four[0].rest, four[1].rest, 0x7632);
        panels.power[2 * quad + 1][line] = __byte_perm(four[2].rest, four[3].rest, 0x7632);
        panels.value[2 * quad][line] = pair(four[0], four[1], codes);
        panels.value[2 * quad + 1][line] = pair(four[2], four[3], codes >> 16);
    }

    /* The sum of 8 products, each cut, from the results of both dummies. */
    MMAEMU_DEVICE float cut_sum(float plus, float minus, float dummy)
    {
        return plus < dummy ? __fadd_rn(plus, -dummy) : __fadd_rn(minus, dummy);
    }

    /* One instruction's four outputs. */
    MMAEMU_DEVICE void products(const mmaemu_u32 (&a)[4], const mmaemu_u32 (&b)[2],
                                const float (&dummy)[4], float (&sum)[4])
    {
        int half;
        int i;
#pragma unroll
        for (half = 0; half < 2; ++half) {
            const mmaemu_u32 rows[2] = {a[2 * half], a[2 * half + 1]};
            float plus[4] = {dummy[0], dummy[1], dummy[2], dummy[3]};
            float minus[4] = {-dummy[0], -dummy[1], -dummy[2], -dummy[3]};
            mmaemu_mma_fp16_k8(plus, rows, b[half]);
            mmaemu_mma_fp16_k8(minus, rows, b[half]);
#pragma unroll
            for (i = 0; i < 4; ++i)
                sum[i] = __fadd_rn(sum[i], cut_sum(plus[i], minus[i], dummy[i]));
        }
    }

    MMAEMU_DEVICE void block(const struct panels &panels, int row, int column, mmaemu_sums &chain)
    {
        MMAEMU_EACH_INSTRUCTION(x, y)
        {
            mmaemu_u32 a[4];
            mmaemu_u32 b[2];
            float dummy[4];
            float sum[4];
            int i;
            mmaemu_fragment_a(panels.power, column, x, a);
            mmaemu_fragment_b(panels.power, row, y, b);
            mmaemu_exponent_product(a, b, dummy);
#pragma unroll
            for (i = 0; i < 4; ++i) {
                const float c = chain[2 * y + i % 2][2 * x + i / 2];
                const mmaemu_u32 field =
                    max(mmaemu_read_exponent(dummy[i]) + ((127u - MMAEMU_READ_BIAS) << 23),
                        __float_as_uint(c) & 0x7F800000u);
                const float cutter = __uint_as_float((field + (10u << 23)) |
                                                     (__float_as_uint(c) & MMAEMU_FP32_SIGN));
                dummy[i] = __uint_as_float(field + (11u << 23));
                sum[i] = __fadd_rn(__fadd_rz(c, cutter), -cutter);
            }
            mmaemu_fragment_a(panels.value, column, x, a);
            mmaemu_fragment_b(panels.value, row, y, b);
            products(a, b, dummy, sum);
#pragma unroll
            for (i = 0; i < 4; ++i)
                chain[2 * y + i % 2][2 * x + i / 2] =
                    __uint_as_float(__float_as_uint(sum[i]) & 0xFFFFFC00u);
        }
    }
};

extern "C" __global__ void __launch_bounds__(MMAEMU_THREADS, 2)
    MMAEMU_ENTRY(struct mmaemu_cuda_request request)
{
    __shared__ struct mmaemu_simt_memory<mmaemu_dummy_accumulator> memory;
    mmaemu_simt_gemm<mmaemu_dummy_accumulator>(request, memory);
}
