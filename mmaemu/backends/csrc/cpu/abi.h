/* The request that the CPU library takes, and what its translation units share.
 *
 * The library needs no C library: it allocates nothing and starts no thread. The
 * caller brings scratch memory and calls mmaemu_cpu_run from as many threads as it likes with one
 * request; each call takes tiles of the output from the shared counter until none is left. Tiles do
 * not depend on each other, so the result does not depend on the number of threads. */
#ifndef MMAEMU_CPU_ABI_H
#define MMAEMU_CPU_ABI_H

#include "../numerics/fdpa.h"
#include "../numerics/plan.h"

#define MMAEMU_CPU_ABI 1

#if defined(_WIN32)
#define MMAEMU_EXPORT __declspec(dllexport)
#else
#define MMAEMU_EXPORT __attribute__((visibility("default")))
#endif

enum mmaemu_kernel {
    MMAEMU_KERNEL_SCALAR = 0,    /* numerics/fdpa.h, one output at a time: the oracle. */
    MMAEMU_KERNEL_CVTT = 1,      /* Products truncated by float-to-int conversion: second oracle. */
    MMAEMU_KERNEL_WIDE = 2,      /* Products truncated in double: every F up to 40. */
    MMAEMU_KERNEL_FLOOR_FMA = 3, /* Floor by a toward-zero FMA, plus a count: F = 13. */
    MMAEMU_KERNEL_FLOOR_FMA_DOUBLE = 4, /* The same in double: F from 13 to 40. */
    MMAEMU_KERNEL_COUNT = 5
};

enum mmaemu_isa {
    MMAEMU_ISA_SCALAR = 0, /* What the compiler assumes of every CPU of the architecture. */
    MMAEMU_ISA_SSE2 = 1,
    MMAEMU_ISA_AVX2 = 2,
    MMAEMU_ISA_AVX512 = 3,
    MMAEMU_ISA_NEON = 4,
    MMAEMU_ISA_COUNT = 5
};

enum mmaemu_status {
    MMAEMU_OK = 0,
    MMAEMU_BAD_SIZE = 1,    /* Request of another ABI, a negative size, a missing pointer. */
    MMAEMU_BAD_MODEL = 2,   /* The kernel cannot do this model, format or plan. */
    MMAEMU_BAD_ISA = 3,     /* Not built in, or not supported by this CPU. */
    MMAEMU_BAD_SCRATCH = 4, /* Less scratch memory than mmaemu_cpu_scratch_bytes says. */
    MMAEMU_NONFINITE = 5    /* mmaemu_cpu_gemm: an operand holds Inf or NaN; nothing was done. */
};

struct mmaemu_request {
    mmaemu_u32 abi;
    mmaemu_i32 kernel;
    mmaemu_i32 isa;
    mmaemu_i32 format_a;
    mmaemu_i32 format_b;
    mmaemu_i32 dot_length; /* Products of one step, all groups together. */
    mmaemu_i32 fraction_bits;
    mmaemu_i32 result_fraction_bits;
    mmaemu_i32 min_exponent;  /* Or MMAEMU_NO_FLOOR. */
    mmaemu_i32 late;          /* The accumulator is added after the conversion. */
    mmaemu_i32 groups;        /* Partial sums of a step: product k belongs to group */
    mmaemu_i32 residues;      /* group_of[k % residues], and groups are summed in order. */
    mmaemu_i32 operand_floor; /* Operands are normalised down to this exponent, or NO_FLOOR. */
    mmaemu_u32 group_of;      /* Four bits a residue, residue 0 lowest. */
    mmaemu_i32 partition;     /* enum mmaemu_partition */
    mmaemu_i32 tile_columns;  /* Columns of a tile, a multiple of 64; 0: the kernel's default. */
    mmaemu_i64 slices;
    mmaemu_i64 tile;
    mmaemu_i64 promotion;
    mmaemu_i64 m;
    mmaemu_i64 n;
    mmaemu_i64 k;
    mmaemu_i64 lda; /* Codes from one row of a to the next; a[m][k]. */
    mmaemu_i64 ldb; /* b[n][k] */
    mmaemu_i64 ldc; /* out[m][n] */
    const void *a;
    const void *b;
    float *out;
    mmaemu_i64 next;         /* Counter of taken tiles; 0 before the first call. */
    void *result;            /* mmaemu_cpu_gemm: the outputs, m * n in order; may be out. */
    mmaemu_u32 alpha;        /* Bits of the fp32 scale. */
    mmaemu_u32 scale_result; /* Bits; counts if has_scale_result and the output is fp8. */
    mmaemu_i32 has_scale_result;
    mmaemu_i32 output; /* enum mmaemu_output */
};

MMAEMU_EXPORT mmaemu_i32 mmaemu_cpu_run(struct mmaemu_request *request, void *scratch,
                                        mmaemu_i64 scratch_bytes);

/* Rows and columns of one tile of work, and its range. */
struct mmaemu_tile {
    mmaemu_i64 row;
    mmaemu_i64 rows;
    mmaemu_i64 column;
    mmaemu_i64 columns;
};

/* One kernel for one instruction set. `run` computes one tile with MXCSR or FPCR in its default
 * state (nearest even, nothing flushed, nothing trapped) and leaves it so. */
struct mmaemu_entry {
    mmaemu_i64 (*scratch)(const struct mmaemu_request *request);
    void (*run)(const struct mmaemu_request *request, const struct mmaemu_tile *tile,
                void *scratch);
    int tile_rows;
    int tile_columns;
};

extern const struct mmaemu_entry mmaemu_scalar;
#define MMAEMU_DECLARE(isa)                                                                        \
    extern const struct mmaemu_entry mmaemu_cvtt_##isa;                                            \
    extern const struct mmaemu_entry mmaemu_wide_##isa;                                            \
    extern const struct mmaemu_entry mmaemu_floor_fma_##isa;                                       \
    extern const struct mmaemu_entry mmaemu_floor_fma_double_##isa;
#if defined(__x86_64__)
MMAEMU_DECLARE(sse2)
MMAEMU_DECLARE(avx2)
MMAEMU_DECLARE(avx512)
#else
MMAEMU_DECLARE(neon)
#endif

/* The plan part of a request, for mmaemu_walk_next. */
MMAEMU_FN struct mmaemu_plan mmaemu_plan_of(const struct mmaemu_request *request)
{
    struct mmaemu_plan plan;
    plan.k = request->k;
    plan.slices = request->slices;
    plan.tile = request->tile;
    plan.promotion = request->promotion;
    plan.partition = request->partition;
    return plan;
}

MMAEMU_FN mmaemu_u32 mmaemu_load_code(const void *codes, mmaemu_i64 index, int storage_bytes)
{
    if (storage_bytes == 1)
        return ((const mmaemu_u8 *)codes)[index];
    if (storage_bytes == 2)
        return ((const mmaemu_u16 *)codes)[index];
    return ((const mmaemu_u32 *)codes)[index];
}

/* An operand as the instruction sees it: decoded, and normalised where the hardware first converts
 * it to a format with a wider exponent range (N10). */
MMAEMU_FN struct mmaemu_number mmaemu_operand(struct mmaemu_format format, mmaemu_u32 code,
                                              int operand_floor)
{
    struct mmaemu_number number = mmaemu_decode(format, code);
    const mmaemu_i32 one = 1 << format.fraction_bits;
    if (operand_floor == MMAEMU_NO_FLOOR || number.significand == 0)
        return number;
    while (number.significand < one && number.significand > -one &&
           number.exponent > operand_floor) {
        number.significand *= 2;
        number.exponent -= 1;
    }
    return number;
}

#endif
