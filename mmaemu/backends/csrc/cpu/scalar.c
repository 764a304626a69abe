/* The oracle kernel: numerics/fdpa.h for every output, one after the other.
 *
 * Computes: every model, format and plan a request can express (N2-N8, N10, N14-N18).
 * Exact because: it is the definition; all arithmetic is on integers.
 * Layout: one output at a time; scratch holds two decoded steps.
 * Preconditions: those that mmaemu_cpu_run checks. */
#include "abi.h"

#define MAX_STEP 4096

struct scalar_state {
    struct mmaemu_number a[MAX_STEP];
    struct mmaemu_number b[MAX_STEP];
};

static mmaemu_i64 scratch(const struct mmaemu_request *request)
{
    (void)request;
    return (mmaemu_i64)sizeof(struct scalar_state);
}

/* One step over k in [begin, end) of row `row` and column `column`, on the accumulator c. */
static mmaemu_u32 step(const struct mmaemu_request *request, struct scalar_state *state,
                       mmaemu_i64 row, mmaemu_i64 column, mmaemu_i64 begin, mmaemu_i64 end,
                       mmaemu_u32 c)
{
    const struct mmaemu_format format_a = mmaemu_format_of(request->format_a);
    const struct mmaemu_format format_b = mmaemu_format_of(request->format_b);
    mmaemu_u32 sum = 0;
    int group;
    for (group = 0; group < request->groups; ++group) {
        int count = 0;
        mmaemu_i64 k;
        for (k = begin; k < end; ++k) {
            const int residue = (int)((k - begin) % request->residues);
            if ((int)((request->group_of >> (4 * residue)) & 15u) != group)
                continue;
            state->a[count] = mmaemu_operand(
                format_a,
                mmaemu_load_code(request->a, row * request->lda + k, format_a.storage_bytes),
                request->operand_floor);
            state->b[count] = mmaemu_operand(
                format_b,
                mmaemu_load_code(request->b, column * request->ldb + k, format_b.storage_bytes),
                request->operand_floor);
            count += 1;
        }
        sum =
            mmaemu_fdpa(state->a, state->b, count, format_a.fraction_bits, format_b.fraction_bits,
                        request->fraction_bits, request->result_fraction_bits,
                        request->min_exponent, 0, request->groups == 1 && !request->late ? c : sum);
    }
    return request->late ? mmaemu_add_nearest(sum, c) : sum;
}

static mmaemu_u32 output(const struct mmaemu_request *request, struct scalar_state *state,
                         mmaemu_i64 row, mmaemu_i64 column)
{
    const struct mmaemu_plan plan = mmaemu_plan_of(request);
    struct mmaemu_walk walk = mmaemu_walk_start();
    struct mmaemu_run run;
    mmaemu_u32 chain = 0;
    mmaemu_u32 slice = 0;
    mmaemu_u32 slot = 0;
    mmaemu_u32 total = 0;
    while (mmaemu_walk_next(&plan, &walk, &run)) {
        mmaemu_i64 k;
        for (k = run.begin; k < run.end; k += request->dot_length)
            chain = step(request, state, row, column, k,
                         mmaemu_smaller(k + request->dot_length, run.end), chain);
        if (run.fold & MMAEMU_FOLD_CHAIN) {
            slice = mmaemu_add_nearest(slice, chain);
            chain = 0;
        }
        if (run.fold & MMAEMU_FOLD_SLICE) {
            slot = mmaemu_add_nearest(slot, slice);
            slice = 0;
        }
        if (run.fold & MMAEMU_FOLD_SLOT) {
            total = mmaemu_add_nearest(total, slot);
            slot = 0;
        }
    }
    return total;
}

static void run(const struct mmaemu_request *request, const struct mmaemu_tile *tile,
                void *scratch_memory)
{
    mmaemu_i64 row;
    mmaemu_i64 column;
    for (row = tile->row; row < tile->row + tile->rows; ++row)
        for (column = tile->column; column < tile->column + tile->columns; ++column) {
            union {
                mmaemu_u32 bits;
                float value;
            } result;
            result.bits = output(request, (struct scalar_state *)scratch_memory, row, column);
            request->out[row * request->ldc + column] = result.value;
        }
}

const struct mmaemu_entry mmaemu_scalar = {scratch, run, 16, 64};
