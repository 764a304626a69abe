/* The frame of the kernels on plain IEEE instructions: a block of 256 threads computes 64 x 64
 * outputs, every thread 4 x 4 of them.
 *
 * Computes: the walk over k (N8, N14-N17) with one Algorithm::block per step, and all that
 * finish.cuh does.
 * Exact because: partial results are added by IEEE additions to nearest even, as plan.h says; the
 * decoding is a table made from numerics/formats.h, and codes that are not finite are zeros in it.
 * Partial results may be scaled by a power of two: they are multiples of 2^-32, and neither they
 * nor the scaled ones leave the exponents of fp32, where subnormals count in full.
 * Layout: a "line" is a row of a (lines 0-63 of the block) or of b (lines 64-127). Shared memory
 * holds one step of k of all lines, in panels of words [k or a group of k][line]: threads that
 * decode write neighbouring words, and a thread reads its four rows and four columns as one 16-byte
 * word each. Two barriers a step; the codes of the next step are on their way meanwhile. Every
 * thread decodes half of a line's step. Chain, slice, slot and total stay in registers, so every
 * plan takes one launch.
 * Preconditions: 256 threads; a grid of (tiles of n, tiles of m); runs of the plan begin at
 * multiples of MMAEMU_DOT_LENGTH, 16 or 32. Any size, leading dimension and byte address. */
#ifndef MMAEMU_CUDA_SIMT_CUH
#define MMAEMU_CUDA_SIMT_CUH

#include "finish.cuh"

#define MMAEMU_LENGTH MMAEMU_DOT_LENGTH
#define MMAEMU_THREADS 256
#define MMAEMU_TILE 64
#define MMAEMU_LINES (2 * MMAEMU_TILE)
#define MMAEMU_PART (MMAEMU_LENGTH / 2) /* Codes that a thread decodes in a step. */

/* Set in the second word of a table's entry where the code is not finite. */
#define MMAEMU_NOT_FINITE 0x100u

/* A decoded code: its value as fp32, and what else the algorithm wants to know. */
struct __align__(8) mmaemu_entry {
    float value;
    mmaemu_u32 rest;
};

/* Static shared memory of a block. */
template <class Algorithm> struct __align__(16) mmaemu_simt_memory {
    struct mmaemu_entry table[2][256]; /* Of a and of b. */
    mmaemu_u32 met[MMAEMU_LINES];      /* Not zero where a line has a code that is not finite. */
    struct mmaemu_walk walk;
    struct mmaemu_run run;
    int more;             /* Whether there is a run. */
    union __align__(16) { /* Read in words of 16 bytes. */
        typename Algorithm::panels panels;
        float sums[MMAEMU_TILE][MMAEMU_TILE];
    };
};

/* The exponent of the lowest set bit of a significand, relative to its unit. */
MMAEMU_DEVICE int mmaemu_low_bit(mmaemu_i32 significand)
{
    return __ffs(significand) - 1;
}

/* significand * 2^exponent, which must be a normal number or zero. */
MMAEMU_DEVICE float mmaemu_exact_float(mmaemu_i32 significand, int exponent)
{
    return __fmul_rn(__int2float_rn(significand),
                     __uint_as_float((mmaemu_u32)(exponent + 127) << 23));
}

template <class Algorithm>
MMAEMU_DEVICE void mmaemu_fill_table(struct mmaemu_entry *table, int format, int is_b)
{
    const struct mmaemu_format spec = mmaemu_format_of(format);
    const mmaemu_u32 code = threadIdx.x;
    const struct mmaemu_number number = mmaemu_decode(spec, code);
    const int scale = is_b ? Algorithm::SCALE : 0;
    const int finite = !mmaemu_is_nan(code, format) && !mmaemu_is_infinite(code, format);
    table[code].value =
        mmaemu_exact_float(number.significand, number.exponent - spec.fraction_bits + scale);
    table[code].rest =
        Algorithm::rest(number, spec.fraction_bits, is_b) | (finite ? 0u : MMAEMU_NOT_FINITE);
}

/* The codes of one thread: half a step of one line. */
struct mmaemu_source {
    const mmaemu_u8 *line; /* From this thread's part of the step on; null outside the problem. */
    int aligned;           /* Whether the codes can be read as words of their size. */
};

/* Where this thread's codes begin in a step. */
MMAEMU_DEVICE int mmaemu_part_of_thread()
{
    return (int)threadIdx.x / MMAEMU_LINES * MMAEMU_PART;
}

MMAEMU_DEVICE struct mmaemu_source mmaemu_source_of(const struct mmaemu_cuda_request &request)
{
    const int line = (int)threadIdx.x % MMAEMU_LINES;
    const int is_b = line >= MMAEMU_TILE;
    const mmaemu_i64 index =
        (mmaemu_i64)(is_b ? blockIdx.x : blockIdx.y) * MMAEMU_TILE + line % MMAEMU_TILE;
    struct mmaemu_source source;
    source.line = is_b ? request.b + index * request.ldb : request.a + index * request.lda;
    source.line += mmaemu_part_of_thread();
    source.aligned = (mmaemu_u64)source.line % MMAEMU_PART == 0;
    if (index >= (is_b ? request.n : request.m))
        source.line = 0;
    return source;
}

/* Codes [begin, end) of the source's half step; zeros where there is none. */
MMAEMU_DEVICE void mmaemu_load_codes(const struct mmaemu_source &source, mmaemu_i64 begin,
                                     mmaemu_i64 end, mmaemu_u32 (&codes)[MMAEMU_PART / 4])
{
    const mmaemu_i64 left = end - begin - mmaemu_part_of_thread();
    const mmaemu_u8 *const first = source.line + begin;
    int i;
#pragma unroll
    for (i = 0; i < MMAEMU_PART / 4; ++i)
        codes[i] = 0;
    if (!source.line)
        return;
    if (source.aligned && left >= MMAEMU_PART) {
#if MMAEMU_LENGTH == 32
        const uint4 words = __ldg((const uint4 *)first);
        codes[0] = words.x;
        codes[1] = words.y;
        codes[2] = words.z;
        codes[3] = words.w;
#else
        const uint2 words = __ldg((const uint2 *)first);
        codes[0] = words.x;
        codes[1] = words.y;
#endif
        return;
    }
#pragma unroll
    for (i = 0; i < MMAEMU_PART; ++i)
        if (i < left)
            codes[i / 4] |= (mmaemu_u32)__ldg(first + i) << (8 * (i % 4));
}

template <class Algorithm>
MMAEMU_DEVICE void mmaemu_pack(struct mmaemu_simt_memory<Algorithm> &memory,
                               const mmaemu_u32 (&codes)[MMAEMU_PART / 4])
{
    const int line = (int)threadIdx.x % MMAEMU_LINES;
    const int offset = (int)threadIdx.x / MMAEMU_LINES * MMAEMU_PART;
    const struct mmaemu_entry *const table = memory.table[line / MMAEMU_TILE];
    mmaemu_u32 rest = 0;
    int i;
#pragma unroll
    for (i = 0; i < MMAEMU_PART / 4; ++i) {
        struct mmaemu_entry four[4];
        int j;
#pragma unroll
        for (j = 0; j < 4; ++j) {
            four[j] = table[codes[i] >> (8 * j) & 0xFFu];
            rest |= four[j].rest;
        }
        Algorithm::pack(memory.panels, offset / 4 + i, line, codes[i], four);
    }
    if (rest & MMAEMU_NOT_FINITE)
        memory.met[line] = 1;
}

/* The same for an algorithm that wants codes only: words of four, and no table. */
template <class Algorithm>
MMAEMU_DEVICE void mmaemu_pack_codes(const struct mmaemu_cuda_request &request,
                                     struct mmaemu_simt_memory<Algorithm> &memory,
                                     const mmaemu_u32 (&codes)[MMAEMU_PART / 4])
{
    const int line = (int)threadIdx.x % MMAEMU_LINES;
    const int first = (int)threadIdx.x / MMAEMU_LINES * MMAEMU_PART / 4;
    const int format = line < MMAEMU_TILE ? request.format_a : request.format_b;
    mmaemu_u32 met = 0;
    int i;
#pragma unroll
    for (i = 0; i < MMAEMU_PART / 4; ++i) {
        memory.panels.codes[first + i][line] = codes[i];
        met |= mmaemu_not_finite(codes[i], format);
    }
    if (met)
        memory.met[line] = 1;
}

/* Four rows or columns as one word of 16 bytes. */
MMAEMU_DEVICE void mmaemu_load_four(const mmaemu_u32 *from, mmaemu_u32 (&to)[4])
{
    const uint4 words = *(const uint4 *)from;
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
}

MMAEMU_DEVICE void mmaemu_load_four(const float *from, float (&to)[4])
{
    const float4 words = *(const float4 *)from;
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
}

#define MMAEMU_EACH                                                                                \
    _Pragma("unroll") for (int i = 0; i < 4; ++i) _Pragma("unroll") for (int j = 0; j < 4; ++j)

typedef float mmaemu_sums[4][4];

MMAEMU_DEVICE void mmaemu_fold(mmaemu_sums &into, mmaemu_sums &from)
{
    MMAEMU_EACH
    mmaemu_fold_into(into[i][j], from[i][j]);
}

/* The walk's next run, for the whole block. One thread takes the step, which divides. Its barriers
 * keep the run in place while it is used, and separate what the runs write to shared memory. */
MMAEMU_DEVICE int mmaemu_next_run(const struct mmaemu_plan &plan, struct mmaemu_walk &walk,
                                  struct mmaemu_run &run, int &more)
{
    __syncthreads();
    if (threadIdx.x == 0)
        more = mmaemu_walk_next(&plan, &walk, &run);
    __syncthreads();
    return more;
}

/* The accumulators of one thread on their way through the plan. */
struct mmaemu_partial {
    mmaemu_sums chain;
    mmaemu_sums slice;
    mmaemu_sums slot;
    mmaemu_sums total;
};

/* A warp computes 16 x 32 outputs: few lines to read, and what matrix instructions want. */
MMAEMU_DEVICE int mmaemu_row_of_thread()
{
    return (int)threadIdx.x / 64 * 16 + (int)threadIdx.x % 4 * 4;
}

MMAEMU_DEVICE int mmaemu_column_of_thread()
{
    return (int)threadIdx.x / 32 % 2 * 32 + (int)threadIdx.x % 32 / 4 * 4;
}

/* One run of the plan: all of its steps, then its folds. */
template <class Algorithm>
MMAEMU_DEVICE void mmaemu_simt_run(const struct mmaemu_cuda_request &request,
                                   struct mmaemu_simt_memory<Algorithm> &memory,
                                   const struct mmaemu_source &source, const struct mmaemu_run &run,
                                   struct mmaemu_partial &partial)
{
    const int row = mmaemu_row_of_thread();
    const int column = MMAEMU_TILE + mmaemu_column_of_thread();
    mmaemu_u32 codes[MMAEMU_PART / 4];
    mmaemu_i64 k;
    mmaemu_load_codes(source, run.begin, run.end, codes);
#pragma unroll 1
    for (k = run.begin; k < run.end; k += MMAEMU_LENGTH) {
        __syncthreads();
        if constexpr (Algorithm::DECODES)
            mmaemu_pack<Algorithm>(memory, codes);
        else
            mmaemu_pack_codes<Algorithm>(request, memory, codes);
        __syncthreads();
        mmaemu_load_codes(source, k + MMAEMU_LENGTH, run.end, codes);
        Algorithm::block(memory.panels, row, column, partial.chain);
    }
    if (run.fold & MMAEMU_FOLD_CHAIN)
        mmaemu_fold(partial.slice, partial.chain);
    if (run.fold & MMAEMU_FOLD_SLICE)
        mmaemu_fold(partial.slot, partial.slice);
    if (run.fold & MMAEMU_FOLD_SLOT)
        mmaemu_fold(partial.total, partial.slot);
}

template <class Algorithm>
MMAEMU_DEVICE void mmaemu_simt_gemm(const struct mmaemu_cuda_request &request,
                                    struct mmaemu_simt_memory<Algorithm> &memory)
{
    const struct mmaemu_plan plan = mmaemu_plan_of(request);
    const struct mmaemu_source source = mmaemu_source_of(request);
    const int row = mmaemu_row_of_thread();
    const int column = mmaemu_column_of_thread();
    struct mmaemu_partial partial;
    MMAEMU_EACH
    {
        partial.chain[i][j] = 0.0f;
        partial.slice[i][j] = 0.0f;
        partial.slot[i][j] = 0.0f;
        partial.total[i][j] = 0.0f;
    }
    if constexpr (Algorithm::DECODES) {
        mmaemu_fill_table<Algorithm>(memory.table[0], request.format_a, 0);
        mmaemu_fill_table<Algorithm>(memory.table[1], request.format_b, 1);
    }
    if (threadIdx.x < MMAEMU_LINES)
        memory.met[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        memory.walk = mmaemu_walk_start();
#pragma unroll 1
    while (mmaemu_next_run(plan, memory.walk, memory.run, memory.more))
        mmaemu_simt_run<Algorithm>(request, memory, source, memory.run, partial);
    MMAEMU_EACH
    memory.sums[row + i][column + j] = partial.total[i][j];
    __syncthreads();
    mmaemu_finish_tile(request, &memory.sums[0][0], MMAEMU_TILE,
                       mmaemu_exact_float(1, -Algorithm::SCALE), memory.met,
                       memory.met + MMAEMU_TILE, (mmaemu_i64)blockIdx.y * MMAEMU_TILE,
                       (mmaemu_i64)blockIdx.x * MMAEMU_TILE, MMAEMU_TILE, MMAEMU_TILE);
}

#endif
