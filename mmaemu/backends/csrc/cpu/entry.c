/* The exported functions: what this CPU supports, what a request needs, and running it. */
#include "abi.h"
#include "floats.h"

#if defined(__x86_64__)

static void cpuid(mmaemu_u32 leaf, mmaemu_u32 subleaf, mmaemu_u32 *regs)
{
    __asm__ volatile("cpuid"
                     : "=a"(regs[0]), "=b"(regs[1]), "=c"(regs[2]), "=d"(regs[3])
                     : "a"(leaf), "c"(subleaf));
}

static mmaemu_u32 xgetbv(void)
{
    mmaemu_u32 low;
    mmaemu_u32 high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* An instruction set counts only if the operating system saves its registers too (XCR0). */
static mmaemu_u32 detect(void)
{
    mmaemu_u32 regs[4];
    mmaemu_u32 highest;
    mmaemu_u32 saved;
    mmaemu_u32 mask = 1u << MMAEMU_ISA_SCALAR | 1u << MMAEMU_ISA_SSE2;
    const mmaemu_u32 avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F DQ BW VL */
    const mmaemu_u32 vnni_vbmi = 1u << 11 | 1u << 1;
    const mmaemu_u32 leaf1 = 1u << 27 | 1u << 28 | 1u << 12; /* OSXSAVE AVX FMA */
    cpuid(0, 0, regs);
    highest = regs[0];
    cpuid(1, 0, regs);
    if (highest < 7 || (regs[2] & leaf1) != leaf1)
        return mask;
    saved = xgetbv();
    cpuid(7, 0, regs);
    if ((saved & 0x06u) == 0x06u && (regs[1] & 1u << 5))
        mask |= 1u << MMAEMU_ISA_AVX2;
    if ((saved & 0xE6u) == 0xE6u && (regs[1] & avx512) == avx512 &&
        (regs[2] & vnni_vbmi) == vnni_vbmi)
        mask |= 1u << MMAEMU_ISA_AVX512;
    return mask;
}

#else

static mmaemu_u32 detect(void)
{
    return 1u << MMAEMU_ISA_SCALAR | 1u << MMAEMU_ISA_NEON; /* Part of every AArch64 system. */
}

#endif

/* Detection is remembered, since cpuid takes microseconds in a virtual machine. Threads that get
 * here at the same time all store the same value. */
static mmaemu_u32 supported(void)
{
    static mmaemu_u32 known;
    mmaemu_u32 mask = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!mask) {
        mask = detect();
        __atomic_store_n(&known, mask, __ATOMIC_RELAXED);
    }
    return mask;
}

/* The kernels by [kernel][isa]; a missing one is null. */
static const struct mmaemu_entry *entry_of(int kernel, int isa)
{
#if defined(__x86_64__)
    static const struct mmaemu_entry *const table[MMAEMU_KERNEL_COUNT][MMAEMU_ISA_COUNT] = {
        {&mmaemu_scalar, &mmaemu_scalar, &mmaemu_scalar, &mmaemu_scalar, 0},
        {&mmaemu_cvtt_sse2, &mmaemu_cvtt_sse2, &mmaemu_cvtt_avx2, &mmaemu_cvtt_avx512, 0},
        {&mmaemu_wide_sse2, &mmaemu_wide_sse2, &mmaemu_wide_avx2, &mmaemu_wide_avx512, 0},
        {0, &mmaemu_floor_fma_sse2, &mmaemu_floor_fma_avx2, &mmaemu_floor_fma_avx512, 0},
        {0, &mmaemu_floor_fma_double_sse2, &mmaemu_floor_fma_double_avx2,
         &mmaemu_floor_fma_double_avx512, 0},
    };
#else
    static const struct mmaemu_entry *const table[MMAEMU_KERNEL_COUNT][MMAEMU_ISA_COUNT] = {
        {&mmaemu_scalar, 0, 0, 0, &mmaemu_scalar},
        {&mmaemu_cvtt_neon, 0, 0, 0, &mmaemu_cvtt_neon},
        {&mmaemu_wide_neon, 0, 0, 0, &mmaemu_wide_neon},
        {0, 0, 0, 0, &mmaemu_floor_fma_neon},
        {0, 0, 0, 0, &mmaemu_floor_fma_double_neon},
    };
#endif
    if (kernel < 0 || kernel >= MMAEMU_KERNEL_COUNT || isa < 0 || isa >= MMAEMU_ISA_COUNT)
        return 0;
    return table[kernel][isa];
}

static int check_sizes(const struct mmaemu_request *r)
{
    if (r->abi != MMAEMU_CPU_ABI || r->tile_columns < 0 || r->tile_columns % 64 || r->m < 0 ||
        r->n < 0 || r->k < 0 || !r->out)
        return MMAEMU_BAD_SIZE;
    if (r->k > 0 && (!r->a || !r->b))
        return MMAEMU_BAD_SIZE;
    return MMAEMU_OK;
}

static int check_plan(const struct mmaemu_request *r)
{
    const mmaemu_i64 step = r->dot_length;
    if (r->partition < MMAEMU_UNSPLIT || r->partition > MMAEMU_CONTIGUOUS || r->promotion < 0 ||
        r->slices < 1)
        return 0;
    if ((r->partition == MMAEMU_UNSPLIT) != (r->slices == 1))
        return 0;
    if (r->slices > 1 && (r->tile < 1 || r->tile % step || r->promotion % r->tile))
        return 0;
    return r->promotion % step == 0;
}

/* Groups are no more than residues, and each residue belongs to one of them. */
static int check_groups(const struct mmaemu_request *r)
{
    int i;
    if (r->residues < 1 || r->residues > 8 || r->dot_length % r->residues || r->groups < 1 ||
        r->groups > r->residues)
        return 0;
    for (i = 0; i < r->residues; ++i)
        if ((int)(r->group_of >> (4 * i) & 15u) >= r->groups)
            return 0;
    return r->groups == 1 || r->late;
}

static int check_model(const struct mmaemu_request *r)
{
    if (r->format_a < 0 || r->format_a >= MMAEMU_FORMAT_COUNT || r->format_b < 0 ||
        r->format_b >= MMAEMU_FORMAT_COUNT)
        return 0;
    if (r->dot_length < 1 || r->dot_length > 4096 || r->fraction_bits < 0 || r->fraction_bits > 40)
        return 0;
    if (r->result_fraction_bits < 0 || r->result_fraction_bits > 23)
        return 0;
    return check_groups(r);
}

static int both_8_bit(const struct mmaemu_request *r)
{
    return r->format_a < MMAEMU_FP16 && r->format_b < MMAEMU_FP16;
}

/* Products of the longest group of a step. */
static int products_per_sum(const struct mmaemu_request *r)
{
    int longest = 0;
    int group;
    int i;
    for (group = 0; group < r->groups; ++group) {
        int residues = 0;
        for (i = 0; i < r->residues; ++i)
            residues += (int)((r->group_of >> (4 * i)) & 15u) == group;
        longest = residues > longest ? residues : longest;
    }
    return longest * (r->dot_length / r->residues);
}

/* What both floor-FMA kernels need; nothing is cut while E - F <= -32. */
static int floor_fma_takes(const struct mmaemu_request *r)
{
    return r->format_a <= MMAEMU_E5M2 && r->format_b <= MMAEMU_E5M2 &&
           (r->dot_length == 16 || r->dot_length == 32) && r->groups == 1 && !r->late &&
           r->operand_floor == MMAEMU_NO_FLOOR && r->min_exponent <= r->fraction_bits - 32 &&
           r->k < 1 << 25;
}

/* What a kernel cannot do is refused here, so that no kernel needs to look again. */
static int check_kernel(const struct mmaemu_request *r)
{
    if (r->kernel == MMAEMU_KERNEL_FLOOR_FMA)
        return floor_fma_takes(r) && r->fraction_bits == 13 && r->result_fraction_bits == 13;
    if (r->kernel == MMAEMU_KERNEL_FLOOR_FMA_DOUBLE)
        return floor_fma_takes(r) && r->fraction_bits >= 13;
    if (r->kernel == MMAEMU_KERNEL_CVTT)
        return both_8_bit(r) && r->dot_length <= 32 && r->min_exponent <= -32 &&
               products_per_sum(r) * 113 + 64 <
                   1 << (36 - (r->fraction_bits < 36 ? r->fraction_bits : 36));
    if (r->kernel == MMAEMU_KERNEL_WIDE)
        return r->dot_length <= 64 && r->fraction_bits <= 40 && r->min_exponent <= 512;
    return 1;
}

static int check(const struct mmaemu_request *request)
{
    if (check_sizes(request) != MMAEMU_OK)
        return MMAEMU_BAD_SIZE;
    if (!check_model(request) || !check_plan(request) || !check_kernel(request))
        return MMAEMU_BAD_MODEL;
    if (!entry_of(request->kernel, request->isa) || !(supported() >> request->isa & 1u))
        return MMAEMU_BAD_ISA;
    return MMAEMU_OK;
}

/* The version of struct mmaemu_request that this library takes. */
MMAEMU_EXPORT mmaemu_u32 mmaemu_cpu_abi(void)
{
    return MMAEMU_CPU_ABI;
}

/* Bit i is set if instruction set i (enum mmaemu_isa) can be used on this CPU. */
MMAEMU_EXPORT mmaemu_u32 mmaemu_cpu_isas(void)
{
    return supported();
}

/* MMAEMU_OK, or why the request cannot be run. Reads no operand. */
MMAEMU_EXPORT mmaemu_i32 mmaemu_cpu_check(const struct mmaemu_request *request)
{
    return check(request);
}

/* Bytes of scratch memory that each concurrent call needs. The request must have passed. */
MMAEMU_EXPORT mmaemu_i64 mmaemu_cpu_scratch_bytes(const struct mmaemu_request *request)
{
    return entry_of(request->kernel, request->isa)->scratch(request) + 64;
}

static mmaemu_i64 columns_of_tile(const struct mmaemu_request *request)
{
    return request->tile_columns > 0 ? request->tile_columns
                                     : entry_of(request->kernel, request->isa)->tile_columns;
}

static mmaemu_i64 ceiling(mmaemu_i64 value, mmaemu_i64 divisor)
{
    return (value + divisor - 1) / divisor;
}

/* Tiles the output is cut into: more threads than tiles are of no use. */
MMAEMU_EXPORT mmaemu_i64 mmaemu_cpu_tiles(const struct mmaemu_request *request)
{
    const int rows = entry_of(request->kernel, request->isa)->tile_rows;
    return ceiling(request->m, rows) * ceiling(request->n, columns_of_tile(request));
}

/* Computes tiles until all are taken. Safe from several threads at once with one request. */
MMAEMU_EXPORT mmaemu_i32 mmaemu_cpu_run(struct mmaemu_request *request, void *scratch,
                                        mmaemu_i64 scratch_bytes)
{
    const struct mmaemu_entry *entry;
    const int status = check(request);
    mmaemu_i64 down;
    mmaemu_i64 columns;
    mmaemu_i64 tiles;
    float_state saved;
    if (status != MMAEMU_OK)
        return status;
    if (!scratch || scratch_bytes < mmaemu_cpu_scratch_bytes(request))
        return MMAEMU_BAD_SCRATCH;
    scratch = (void *)(((mmaemu_u64)scratch + 63ull) & ~63ull);
    entry = entry_of(request->kernel, request->isa);
    down = ceiling(request->m, entry->tile_rows);
    columns = columns_of_tile(request);
    tiles = mmaemu_cpu_tiles(request);
    saved = float_state_default();
    for (;;) {
        const mmaemu_i64 index = __atomic_fetch_add(&request->next, 1, __ATOMIC_RELAXED);
        struct mmaemu_tile tile;
        if (index >= tiles)
            break;
        tile.row = index % down * entry->tile_rows;
        tile.column = index / down * columns;
        tile.rows = mmaemu_smaller(entry->tile_rows, request->m - tile.row);
        tile.columns = mmaemu_smaller(columns, request->n - tile.column);
        entry->run(request, &tile, scratch);
    }
    float_state_restore(saved);
    return MMAEMU_OK;
}
