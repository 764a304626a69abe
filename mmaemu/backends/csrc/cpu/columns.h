/* The common part of the kernels cvtt and wide: vectors of COLUMNS adjacent outputs of a row, which
 * the compiler cuts into registers of any size. The including file defines VALUE, the type of
 * operands and products, and step_row, which computes one step for one row.
 *
 * Layout: a tile is TILE_ROWS x TILE_COLUMNS outputs, taken COLUMNS at a time. Operands are decoded
 * per step into values and exponents; a is kept decoded for all of K if K is at most WINDOW. A step
 * of several groups (N10) is decoded group by group. Scratch memory holds all of it. */
#ifndef MMAEMU_CPU_COLUMNS_H
#define MMAEMU_CPU_COLUMNS_H

#include "abi.h"

#if defined(MMAEMU_ISA_IS_AVX512)
#define ISA avx512
#elif defined(MMAEMU_ISA_IS_AVX2)
#define ISA avx2
#elif defined(MMAEMU_ISA_IS_SSE2)
#define ISA sse2
#else
#define ISA neon
#endif
#define PASTE_(x, y) x##y
#define PASTE(x, y) PASTE_(x, y)

#define COLUMNS 16
#define TILE_ROWS 64
#define TILE_COLUMNS 1024
#define WINDOW 4096
#define MAX_STEP 64
/* Exponent of a zero or non-finite operand: any sum with it stays below NO_EXPONENT. */
#define ZERO_EXPONENT (-8000)
#define NO_EXPONENT (-4200)

typedef short exponent_t;
typedef VALUE v_value __attribute__((vector_size(COLUMNS * sizeof(VALUE))));
typedef exponent_t v_exponent __attribute__((vector_size(COLUMNS * sizeof(exponent_t))));
typedef mmaemu_i32 v_int __attribute__((vector_size(COLUMNS * 4)));
typedef mmaemu_u32 v_bits __attribute__((vector_size(COLUMNS * 4)));
typedef float v_float __attribute__((vector_size(COLUMNS * 4)));
typedef mmaemu_i64 v_long __attribute__((vector_size(COLUMNS * 8)));
typedef mmaemu_u64 v_long_bits __attribute__((vector_size(COLUMNS * 8)));
typedef double v_double __attribute__((vector_size(COLUMNS * 8)));

/* Vectors in memory are aligned to their own size, up to 64 bytes. */
struct panel {
    VALUE value[MAX_STEP][COLUMNS] __attribute__((aligned(64)));
    exponent_t exponent[MAX_STEP][COLUMNS] __attribute__((aligned(64)));
};
typedef v_value v_value_stored __attribute__((aligned(64), may_alias));
typedef v_exponent v_exponent_stored __attribute__((aligned(32), may_alias));
typedef v_float v_float_stored __attribute__((aligned(64), may_alias));

struct table {
    VALUE value[256];
    exponent_t exponent[256];
};

struct sums {
    float chain[TILE_ROWS][COLUMNS] __attribute__((aligned(64)));
    float partial[TILE_ROWS][COLUMNS];
    float slice[TILE_ROWS][COLUMNS];
    float slot[TILE_ROWS][COLUMNS];
    float total[TILE_ROWS][COLUMNS];
};

/* Scratch memory: this, then a's values and exponents, [step][row][k]. */
struct state {
    struct sums sums;
    struct panel panel;
    struct table table_a;
    struct table table_b;
    int order[MAX_STEP];     /* k within a step, sorted by group. */
    int first[MAX_STEP + 1]; /* Of each group, in `order`. */
    mmaemu_i64 packed;       /* Steps of a that are decoded, if all of them fit. */
};

struct job {
    const struct mmaemu_request *request;
    const struct mmaemu_tile *tile;
    struct state *state;
    VALUE *a_value;
    exponent_t *a_exponent;
    mmaemu_i64 steps; /* Steps of a kept decoded; 1 if not all of them fit. */
};

static double power_of_two(int exponent)
{
    union {
        mmaemu_u64 bits;
        double value;
    } result;
    result.bits = (mmaemu_u64)(exponent + 1023) << 52;
    return result.value;
}

static mmaemu_i64 kept_steps(const struct mmaemu_request *request)
{
    return request->k > WINDOW ? 1 : (request->k + request->dot_length - 1) / request->dot_length;
}

static mmaemu_i64 scratch(const struct mmaemu_request *request)
{
    const mmaemu_i64 kept =
        kept_steps(request) * mmaemu_smaller(request->m, TILE_ROWS) * request->dot_length;
    return (mmaemu_i64)sizeof(struct state) +
           kept * (mmaemu_i64)(sizeof(VALUE) + sizeof(exponent_t));
}

static void decode_one(const struct mmaemu_request *request, int id, mmaemu_u32 code, VALUE *value,
                       exponent_t *exponent)
{
    const struct mmaemu_format format = mmaemu_format_of(id);
    const struct mmaemu_number number = mmaemu_operand(format, code, request->operand_floor);
    *value = (VALUE)(number.significand * power_of_two(number.exponent - format.fraction_bits));
    *exponent = (exponent_t)(number.significand ? number.exponent : ZERO_EXPONENT);
}

static void make_table(const struct mmaemu_request *request, int id, struct table *table)
{
    int code;
    if (mmaemu_format_of(id).storage_bytes > 1)
        return;
    for (code = 0; code < 256; ++code)
        decode_one(request, id, (mmaemu_u32)code, &table->value[code], &table->exponent[code]);
}

static void decode_code(const struct mmaemu_request *request, int id, const struct table *table,
                        const void *codes, mmaemu_i64 index, VALUE *value, exponent_t *exponent)
{
    if (id < MMAEMU_FP16) {
        const mmaemu_u8 code = ((const mmaemu_u8 *)codes)[index];
        *value = table->value[code];
        *exponent = table->exponent[code];
        return;
    }
    decode_one(request, id, mmaemu_load_code(codes, index, mmaemu_format_of(id).storage_bytes),
               value, exponent);
}

static void make_order(const struct mmaemu_request *request, struct state *state)
{
    int count = 0;
    int group;
    int k;
    for (group = 0; group < request->groups; ++group) {
        state->first[group] = count;
        for (k = 0; k < request->dot_length; ++k)
            if ((int)((request->group_of >> (4 * (k % request->residues))) & 15u) == group)
                state->order[count++] = k;
    }
    state->first[group] = count;
}

/* One step of a, [begin, end) of k padded with zeros, into place `slot` of the kept steps. */
static void pack_a(const struct job *job, mmaemu_i64 slot, mmaemu_i64 begin, mmaemu_i64 end)
{
    const struct mmaemu_request *request = job->request;
    const int length = request->dot_length;
    mmaemu_i64 row;
    int i;
    for (row = 0; row < job->tile->rows; ++row) {
        const mmaemu_i64 place = (slot * job->tile->rows + row) * length;
        for (i = 0; i < length; ++i) {
            const mmaemu_i64 k = begin + job->state->order[i];
            job->a_value[place + i] = 0;
            job->a_exponent[place + i] = ZERO_EXPONENT;
            if (k < end)
                decode_code(request, request->format_a, &job->state->table_a, request->a,
                            (job->tile->row + row) * request->lda + k, &job->a_value[place + i],
                            &job->a_exponent[place + i]);
        }
    }
}

static void pack_b(const struct job *job, mmaemu_i64 column, mmaemu_i64 begin, mmaemu_i64 end)
{
    const struct mmaemu_request *request = job->request;
    struct panel *panel = &job->state->panel;
    int i;
    int j;
    for (i = 0; i < request->dot_length; ++i) {
        const mmaemu_i64 k = begin + job->state->order[i];
        for (j = 0; j < COLUMNS; ++j) {
            panel->value[i][j] = 0;
            panel->exponent[i][j] = ZERO_EXPONENT;
            if (k < end && column + j < request->n)
                decode_code(request, request->format_b, &job->state->table_b, request->b,
                            (column + j) * request->ldb + k, &panel->value[i][j],
                            &panel->exponent[i][j]);
        }
    }
}

/* yes where mask is set, no elsewhere. */
#define SELECT(mask, yes, no) (((yes) & (mask)) | ((no) & ~(mask)))

/* The block exponents of one row: the maximum over products that are not zero and c, floored; 0
 * where everything is zero (N3). */
static inline __attribute__((always_inline)) v_int
block_exponents(const struct mmaemu_request *request, const exponent_t *a,
                const exponent_t (*b)[COLUMNS], int count, v_float c)
{
    v_exponent best = (v_exponent){0} + (exponent_t)(2 * ZERO_EXPONENT);
    const v_bits magnitude = (v_bits)c & 0x7FFFFFFFu;
    const v_int field = (v_int)(magnitude >> 23);
    const v_int own =
        SELECT((v_int)(magnitude == 0), (v_int){0} + 2 * ZERO_EXPONENT, field - (field == 0) - 127);
    v_int top;
    int k;
    for (k = 0; k < count; ++k) {
        const v_exponent sum = *(const v_exponent_stored *)b[k] + a[k];
        best = SELECT(sum > best, sum, best);
    }
    top = __builtin_convertvector(best, v_int);
    top = SELECT(own > top, own, top);
    top = SELECT((top > NO_EXPONENT) & (top < request->min_exponent),
                 (v_int){0} + request->min_exponent, top);
    return top & (top > NO_EXPONENT);
}

static void step_row(const struct mmaemu_request *request, const VALUE *a_value,
                     const exponent_t *a_exponent, const VALUE (*b_value)[COLUMNS],
                     const exponent_t (*b_exponent)[COLUMNS], int count, float *c);

/* into += from, nearest even; from = +0. */
static __attribute__((noinline)) void fold(float (*into)[COLUMNS], float (*from)[COLUMNS],
                                           mmaemu_i64 rows)
{
    mmaemu_i64 row;
    for (row = 0; row < rows; ++row) {
        *(v_float_stored *)into[row] += *(const v_float_stored *)from[row];
        *(v_float_stored *)from[row] = (v_float){0};
    }
}

/* All groups of one step for all rows, on `c`. */
static __attribute__((noinline)) void step_rows(const struct job *job, mmaemu_i64 slot,
                                                float (*c)[COLUMNS])
{
    struct state *state = job->state;
    const int length = job->request->dot_length;
    int group;
    mmaemu_i64 row;
    STEP_ROUNDING();
    for (group = 0; group < job->request->groups; ++group) {
        const int first = state->first[group];
        for (row = 0; row < job->tile->rows; ++row) {
            const mmaemu_i64 place = (slot * job->tile->rows + row) * length + first;
            step_row(job->request, job->a_value + place, job->a_exponent + place,
                     (const VALUE(*)[COLUMNS])state->panel.value + first,
                     (const exponent_t(*)[COLUMNS])state->panel.exponent + first,
                     state->first[group + 1] - first, c[row]);
        }
    }
    ROUND_NEAREST();
}

static void one_step(const struct job *job, mmaemu_i64 column, mmaemu_i64 index, mmaemu_i64 begin,
                     mmaemu_i64 end)
{
    struct state *state = job->state;
    const mmaemu_i64 slot = job->steps == 1 ? 0 : index;
    if (job->steps == 1 || index >= state->packed) {
        pack_a(job, slot, begin, end);
        state->packed = index + 1;
    }
    pack_b(job, column, begin, end);
    if (!job->request->late) {
        step_rows(job, slot, state->sums.chain);
        return;
    }
    step_rows(job, slot, state->sums.partial);
    fold(state->sums.chain, state->sums.partial, job->tile->rows);
}

static void store(const struct job *job, mmaemu_i64 column)
{
    const struct mmaemu_request *request = job->request;
    mmaemu_i64 row;
    int j;
    for (row = 0; row < job->tile->rows; ++row)
        for (j = 0; j < COLUMNS && column + j < request->n; ++j) {
            union {
                float value;
                mmaemu_u32 bits;
            } total = {job->state->sums.total[row][j]};
            if ((total.bits & 0x7FFFFFFFu) > MMAEMU_FP32_INF)
                total.bits = MMAEMU_FP32_NAN;
            request->out[(job->tile->row + row) * request->ldc + column + j] = total.value;
        }
}

static void one_panel(const struct job *job, mmaemu_i64 column)
{
    const struct mmaemu_plan plan = mmaemu_plan_of(job->request);
    const mmaemu_i64 rows = job->tile->rows;
    struct sums *sums = &job->state->sums;
    struct mmaemu_walk walk = mmaemu_walk_start();
    struct mmaemu_run run;
    mmaemu_i64 index = 0;
    mmaemu_i64 i;
    for (i = 0; i < (mmaemu_i64)(sizeof(struct sums) / sizeof(float)); ++i)
        ((float *)sums)[i] = 0.0f;
    while (mmaemu_walk_next(&plan, &walk, &run)) {
        mmaemu_i64 k;
        for (k = run.begin; k < run.end; k += job->request->dot_length)
            one_step(job, column, index++, k,
                     mmaemu_smaller(k + job->request->dot_length, run.end));
        if (run.fold & MMAEMU_FOLD_CHAIN)
            fold(sums->slice, sums->chain, rows);
        if (run.fold & MMAEMU_FOLD_SLICE)
            fold(sums->slot, sums->slice, rows);
        if (run.fold & MMAEMU_FOLD_SLOT)
            fold(sums->total, sums->slot, rows);
    }
    store(job, column);
}

static void run(const struct mmaemu_request *request, const struct mmaemu_tile *tile,
                void *scratch_memory)
{
    const mmaemu_i64 kept = kept_steps(request) * tile->rows * request->dot_length;
    struct job job;
    mmaemu_i64 column;
    job.request = request;
    job.tile = tile;
    job.state = (struct state *)scratch_memory;
    job.a_value = (VALUE *)(job.state + 1);
    job.a_exponent = (exponent_t *)(job.a_value + kept);
    job.steps = kept_steps(request);
    job.state->packed = 0;
    make_table(request, request->format_a, &job.state->table_a);
    make_table(request, request->format_b, &job.state->table_b);
    make_order(request, job.state);
    for (column = tile->column; column < tile->column + tile->columns; column += COLUMNS)
        one_panel(&job, column);
}

const struct mmaemu_entry PASTE(KERNEL_NAME, ISA) = {scratch, run, TILE_ROWS, TILE_COLUMNS};

#endif
