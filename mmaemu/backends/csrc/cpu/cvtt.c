/* Products truncated by conversion to integer: the second oracle, and the fallback of floor_fma.
 *
 * Computes: models of 8-bit formats whose step sums fit in int32 (mmaemu_cpu_run checks
 * L * 3.53 + 2 < 2^(31 - F)), aligned or late, with groups, every plan (N2-N8, N10, N14-N18).
 *
 * Exact because:
 * - a * b has at most 8 significant bits and is scaled by the power of two 2^(F - E): both fp32
 *   products are exact, and (int) truncates toward zero, whatever the rounding mode. c is at least
 *   scaled exactly where its truncation is not zero.
 * - The sum of the truncated terms is below 2^31, so int32 holds it.
 * - int32 to double is exact; clearing low bits of the double truncates to the fraction bits of the
 *   result; scaling by 2^(E - F) and the conversion to fp32 are then exact: results are multiples
 *   of 2^-57 or zero, so none is subnormal.
 *
 * Layout: columns.h. Preconditions: those above, checked by mmaemu_cpu_run. */
#define VALUE float
#define KERNEL_NAME mmaemu_cvtt_
#define STEP_ROUNDING()
#define ROUND_NEAREST()
#include "columns.h"

static void step_row(const struct mmaemu_request *request, const VALUE *a_value,
                     const exponent_t *a_exponent, const VALUE (*b_value)[COLUMNS],
                     const exponent_t (*b_exponent)[COLUMNS], int count, float *c)
{
    const mmaemu_i64 cut = ~((1ll << (52 - request->result_fraction_bits)) - 1ll);
    const v_float start = *(const v_float_stored *)c;
    const v_int shift =
        request->fraction_bits - block_exponents(request, a_exponent, b_exponent, count, start);
    const v_float scale = (v_float)((shift + 127) << 23);
    const v_double unit = (v_double)((1023 - __builtin_convertvector(shift, v_long)) << 52);
    v_int sum = __builtin_convertvector(start * scale, v_int);
    v_long exact;
    int k;
    for (k = 0; k < count; ++k)
        sum += __builtin_convertvector(*(const v_value_stored *)b_value[k] * a_value[k] * scale,
                                       v_int);
    exact = (v_long) __builtin_convertvector(sum, v_double) & cut;
    *(v_float_stored *)c = __builtin_convertvector((v_double)exact * unit, v_float);
}
