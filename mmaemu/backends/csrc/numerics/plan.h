/* What a GEMM makes of K: chains, promotions and split-K slices, as one walk over k (N14-N17).
 *
 * The walk yields runs of consecutive k in the order in which a kernel may process them, and after
 * each run says which running sums are to be folded: chain into slice, slice into slot, slot into
 * total. Every fold is one IEEE fp32 addition to nearest even followed by resetting the source to
 * +0. No partial result is ever -0, so folding onto +0 copies. */
#ifndef MMAEMU_NUMERICS_PLAN_H
#define MMAEMU_NUMERICS_PLAN_H

#include "types.h"

enum mmaemu_partition {
    MMAEMU_UNSPLIT = 0,
    MMAEMU_STRIDED_SERIAL = 1, /* Slice s owns tiles s, s + S, ...; slices are added in order. */
    MMAEMU_STRIDED_PAIRWISE =
        2,                /* The same tiles; slices are added in pairs, the last one first. */
    MMAEMU_CONTIGUOUS = 3 /* Slice s owns tiles s * ceil(T / S) onward, added in order. */
};

enum mmaemu_fold {
    MMAEMU_FOLD_NOTHING = 0,
    MMAEMU_FOLD_CHAIN = 1,
    MMAEMU_FOLD_SLICE = 2,
    MMAEMU_FOLD_SLOT = 4
};

struct mmaemu_plan {
    mmaemu_i64 k;
    mmaemu_i64 slices;    /* S; 1 when unsplit. */
    mmaemu_i64 tile;      /* Width of a tile in k; ignored when unsplit. */
    mmaemu_i64 promotion; /* A chain restarts after this many k of its slice; 0: never. */
    int partition;
};

struct mmaemu_run {
    mmaemu_i64 begin;
    mmaemu_i64 end;
    int fold;
};

struct mmaemu_walk {
    mmaemu_i64 turn; /* Position in the order in which slices are visited. */
    mmaemu_i64 own;  /* k already taken from this slice. */
};

MMAEMU_FN struct mmaemu_walk mmaemu_walk_start(void)
{
    struct mmaemu_walk walk;
    walk.turn = 0;
    walk.own = 0;
    return walk;
}

/* The slice visited at `turn`, and what is folded when it ends. Pairwise: the last slice opens the
 * total, then slot i = p_i + p_(i+h) for i + h < S - 1, else p_i, with h = ceil(S / 2). */
MMAEMU_FN mmaemu_i64 mmaemu_slice_at(const struct mmaemu_plan *plan, mmaemu_i64 turn, int *fold)
{
    const mmaemu_i64 half = (plan->slices + 1) / 2;
    const mmaemu_i64 pairs = plan->slices - 1 - half; /* Slots with two slices; they come first. */
    mmaemu_i64 index;
    *fold = MMAEMU_FOLD_CHAIN | MMAEMU_FOLD_SLICE | MMAEMU_FOLD_SLOT;
    if (plan->partition != MMAEMU_STRIDED_PAIRWISE)
        return turn;
    if (turn == 0)
        return plan->slices - 1;
    index = turn - 1;
    if (index >= 2 * pairs)
        return index - pairs;
    if (index % 2 == 0) {
        *fold = MMAEMU_FOLD_CHAIN | MMAEMU_FOLD_SLICE;
        return index / 2;
    }
    return index / 2 + half;
}

MMAEMU_FN mmaemu_i64 mmaemu_smaller(mmaemu_i64 x, mmaemu_i64 y)
{
    return x < y ? x : y;
}

/* The next run, or 0 at the end. Slices without a tile are +0 and are left out, but a fold they
 * would have ended is reported as an empty run. */
MMAEMU_FN int mmaemu_walk_next(const struct mmaemu_plan *plan, struct mmaemu_walk *walk,
                               struct mmaemu_run *run)
{
    const int strided =
        plan->partition == MMAEMU_STRIDED_SERIAL || plan->partition == MMAEMU_STRIDED_PAIRWISE;
    const mmaemu_i64 tiles = plan->slices > 1 ? (plan->k + plan->tile - 1) / plan->tile : 1;
    const mmaemu_i64 share = (tiles + plan->slices - 1) / plan->slices;
    mmaemu_i64 slice;
    mmaemu_i64 stop;
    int slice_fold;
    if (walk->turn >= plan->slices)
        return 0;
    slice = mmaemu_slice_at(plan, walk->turn, &slice_fold);
    if (strided) {
        const mmaemu_i64 index = slice + walk->own / plan->tile * plan->slices;
        run->begin = mmaemu_smaller(index * plan->tile, plan->k);
        run->end = mmaemu_smaller(run->begin + plan->tile, plan->k);
        stop = (index + plan->slices) * plan->tile >= plan->k;
        walk->own += plan->tile;
    } else {
        const mmaemu_i64 width = plan->slices > 1 ? share * plan->tile : plan->k;
        const mmaemu_i64 last = mmaemu_smaller((slice + 1) * width, plan->k);
        run->begin = mmaemu_smaller(slice * width + walk->own, plan->k);
        run->end = plan->promotion ? mmaemu_smaller(run->begin + plan->promotion, last) : last;
        stop = run->end >= last;
        walk->own += plan->promotion;
    }
    run->fold = plan->promotion && walk->own % plan->promotion == 0 ? MMAEMU_FOLD_CHAIN
                                                                    : MMAEMU_FOLD_NOTHING;
    if (stop) {
        run->fold = slice_fold;
        walk->turn += 1;
        walk->own = 0;
    }
    return 1;
}

#endif
