/* Products truncated in double: models with up to 40 fraction bits and operands of up to 32 bits.
 *
 * Computes: F <= 40, L <= 64 of all formats, aligned or late, with groups, every plan (N2-N8, N10,
 * N14-N18).
 *
 * Exact because (u = 2^(E - F), rounding toward zero):
 * - a product has at most 22 significant bits, and its exponent is in double's normal range.
 * - With B = 2^52 * u and |p| < 2^(F + 2) * u < B, the magnitude of p + sign(p) * B lies in
 *   [B, 2 B), where the ulp is u: the sum is truncated toward zero to a multiple of u, and taking B
 *   away again is exact. c is truncated in the same way.
 * - The sum is below 2^(F + 9) * u < 2^53 * u, hence exact.
 * - The conversion to fp32 rounds toward zero, also to subnormals; what a toward-zero conversion
 *   saturates is set to Inf. A c that is not finite passes through: the products are finite.
 *
 * Layout: columns.h. Preconditions, checked by mmaemu_cpu_run: the limits above, and a floor of at
 * most 512, which keeps B in range. */
#define VALUE double
#define KERNEL_NAME mmaemu_wide_
#include "../numerics/types.h"
#if defined(__x86_64__)
static inline void round_with(mmaemu_u32 control)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(control) : "memory");
}
#define STEP_ROUNDING() round_with(0x7F80u)
#define ROUND_NEAREST() round_with(0x1F80u)
#else
static inline void round_with(mmaemu_u64 control)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
}
#define STEP_ROUNDING() round_with(3ull << 22)
#define ROUND_NEAREST() round_with(0ull)
#endif
#include "columns.h"

/* x truncated toward zero to the ulp of base, a power of two above |x|. */
static inline __attribute__((always_inline)) v_double truncate(v_double x, v_long_bits base)
{
    const v_double signed_base = (v_double)(((v_long_bits)x & (1ull << 63)) | base);
    return (x + signed_base) - signed_base;
}

static __attribute__((noinline)) void step_row(const struct mmaemu_request *request,
                                               const VALUE *a_value, const exponent_t *a_exponent,
                                               const VALUE (*b_value)[COLUMNS],
                                               const exponent_t (*b_exponent)[COLUMNS], int count,
                                               float *c)
{
    const mmaemu_u32 cut = ~((1u << (23 - request->result_fraction_bits)) - 1u);
    const v_float start = *(const v_float_stored *)c;
    const v_int top = block_exponents(request, a_exponent, b_exponent, count, start);
    const v_int exponent = top + (52 - request->fraction_bits + 1023);
    const v_long_bits base = (v_long_bits) __builtin_convertvector(exponent, v_long) << 52;
    v_double sum = truncate(__builtin_convertvector(start, v_double), base);
    v_bits bits;
    v_bits huge;
    int k;
    for (k = 0; k < count; ++k)
        sum += truncate(*(const v_value_stored *)b_value[k] * a_value[k], base);
    bits = (v_bits) __builtin_convertvector(sum, v_float) & cut;
    /* As integers, magnitudes compare like the doubles that they are the bits of. */
    huge = __builtin_convertvector(((v_long)sum & 0x7FFFFFFFFFFFFFFFll) >= (1023ll + 128) << 52,
                                   v_bits);
    bits = SELECT(huge, (bits & MMAEMU_FP32_SIGN) | MMAEMU_FP32_INF, bits);
    bits &= (v_bits)(bits != MMAEMU_FP32_SIGN);
    bits = SELECT((v_bits)(((v_bits)start & 0x7FFFFFFFu) >= MMAEMU_FP32_INF), (v_bits)start, bits);
    *(v_float_stored *)c = (v_float)bits;
}
