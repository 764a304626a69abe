/* What the floor-FMA kernels share around the arithmetic of a block: all rows, all of K, the tile.
 *
 * The including file has included floor_fma_tile.h and defines `block` and ENTRY. */
#ifndef MMAEMU_CPU_FLOOR_FMA_RUN_H
#define MMAEMU_CPU_FLOOR_FMA_RUN_H

#include "floor_fma_tile.h"

/* One block for all units of the tile. */
INLINE void all_units(const struct job *job, mmaemu_i64 slot, int L, int narrow)
{
    int unit;
    for (unit = 0; unit < job->units; unit += UNITS) {
        const mmaemu_i64 place = (slot * job->units + unit) * L;
        const mmaemu_i64 value = (slot * job->rows + (narrow ? 4 * unit : unit)) * L;
        block(job->request, job->panel, job->a_value + value, job->a_exponent + place,
              job->a_low + place, job->chain + 4 * unit, L, narrow);
    }
}

/* One function for each L and kind of unit, so that the loops over k unroll. Not inlined: the
 * rounding mode is switched around the calls. */
#define INSTANCE(L)                                                                                \
    static __attribute__((noinline)) void wide_##L(const struct job *job, mmaemu_i64 slot)         \
    {                                                                                              \
        all_units(job, slot, L, 0);                                                                \
    }                                                                                              \
    static __attribute__((noinline)) void narrow_##L(const struct job *job, mmaemu_i64 slot)       \
    {                                                                                              \
        all_units(job, slot, L, 1);                                                                \
    }                                                                                              \
    static __attribute__((noinline)) void pack_b_##L(struct job *job, mmaemu_i64 column,           \
                                                     mmaemu_i64 begin)                             \
    {                                                                                              \
        pack_b(job, column, begin, L);                                                             \
    }                                                                                              \
    static __attribute__((noinline)) void pack_a_##L(const struct job *job, mmaemu_i64 slot,       \
                                                     mmaemu_i64 begin, mmaemu_i64 end)             \
    {                                                                                              \
        if (job->narrow)                                                                           \
            pack_a(job, slot, begin, end, L, 1);                                                   \
        else                                                                                       \
            pack_a(job, slot, begin, end, L, 0);                                                   \
    }
INSTANCE(16)
INSTANCE(32)

/* into += from, nearest even; from = +0. */
static __attribute__((noinline)) void fold(vf *into, vf *from, int count)
{
    int i;
    for (i = 0; i < count; ++i) {
        into[i] += from[i];
        from[i] = (vf){0};
    }
}

static void clear(vf *sums, int count)
{
    int i;
    for (i = 0; i < count; ++i)
        sums[i] = (vf){0};
}

/* One block of the walk: its place among all blocks is `index`. */
static void one_block(struct job *job, mmaemu_i64 column, mmaemu_i64 index, mmaemu_i64 begin,
                      mmaemu_i64 end)
{
    const int long_step = job->request->dot_length == 32;
    const mmaemu_i64 slot = job->blocks == 1 ? 0 : index;
    if (job->blocks == 1 || index >= job->packed) {
        (long_step ? pack_a_32 : pack_a_16)(job, slot, begin, end);
        job->packed = index + 1;
    }
    (long_step ? pack_b_32 : pack_b_16)(job, column, begin);
    if (job->narrow)
        (long_step ? narrow_32 : narrow_16)(job, slot);
    else
        (long_step ? wide_32 : wide_16)(job, slot);
}

/* The total of unit and lane, put where the output wants it. */
static void store(const struct job *job, mmaemu_i64 column)
{
    const struct mmaemu_request *request = job->request;
    const mmaemu_i64 width = request->n - column;
    mmaemu_i64 row;
    int j;
    int lane;
    for (row = 0; row < job->tile->rows; ++row) {
        float *out = request->out + (job->tile->row + row) * request->ldc + column;
        for (j = 0; j < (job->narrow ? 1 : 4); ++j) {
            const vf value =
                job->total[job->narrow ? row : 4 * row + j] * splat_float(1.0f / (1 << SCALE));
            if (width >= (j + 1) * WIDTH)
                *(vf_loose *)(out + j * WIDTH) = value;
            else
                for (lane = 0; j * WIDTH + lane < width && lane < WIDTH; ++lane)
                    out[j * WIDTH + lane] = value[lane];
        }
    }
}

/* All of K for the panel of columns that starts at `column`. */
static void one_panel(struct job *job, mmaemu_i64 column)
{
    const struct mmaemu_plan plan = mmaemu_plan_of(job->request);
    const int vectors = 4 * job->units;
    struct mmaemu_walk walk = mmaemu_walk_start();
    struct mmaemu_run run;
    mmaemu_i64 index = 0;
    job->chunk_end = 0;
    clear(job->chain, vectors);
    clear(job->slice, vectors);
    clear(job->slot, vectors);
    clear(job->total, vectors);
    while (mmaemu_walk_next(&plan, &walk, &run)) {
        mmaemu_i64 k;
        ROUND_TOWARD_ZERO();
        for (k = run.begin; k < run.end; k += job->request->dot_length)
            one_block(job, column, index++, k,
                      mmaemu_smaller(k + job->request->dot_length, run.end));
        ROUND_NEAREST();
        if (run.fold & MMAEMU_FOLD_CHAIN)
            fold(job->slice, job->chain, vectors);
        if (run.fold & MMAEMU_FOLD_SLICE)
            fold(job->slot, job->slice, vectors);
        if (run.fold & MMAEMU_FOLD_SLOT)
            fold(job->total, job->slot, vectors);
    }
    store(job, column);
}

static void set_kind(struct job *job, int narrow)
{
    const mmaemu_i64 units = narrow ? (job->tile->rows + 3) / 4 : job->tile->rows;
    job->narrow = narrow;
    job->units = (int)((units + UNITS - 1) / UNITS * UNITS);
    job->rows = job->units * (narrow ? 4 : 1);
    job->packed = 0;
}

static void run(const struct mmaemu_request *request, const struct mmaemu_tile *tile,
                void *scratch_memory)
{
    const mmaemu_i64 end = tile->column + tile->columns;
    mmaemu_i64 column = tile->column;
    struct job job;
    make_job(&job, request, tile, scratch_memory);
    make_decoder(&job.decoder_a, request->format_a, 0);
    make_decoder(&job.decoder_b, request->format_b, 1);
    set_kind(&job, 0);
    /* Narrow panels win up to three of them, and then only if there are rows to fill their units.
     */
    for (; end - column > 3 * WIDTH || (column < end && tile->rows < 3); column += 4 * WIDTH)
        one_panel(&job, column);
    if (column < end)
        set_kind(&job, 1);
    for (; column < end; column += WIDTH)
        one_panel(&job, column);
}

const struct mmaemu_entry PASTE(ENTRY, ISA) = {scratch, run, TILE_ROWS, TILE_COLUMNS};

#endif
