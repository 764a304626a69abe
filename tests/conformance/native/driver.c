/* Random requests to the CPU kernels, each compared with the scalar kernel bit for bit, and whole
 * GEMMs, compared with the scalar kernel and the epilogue of numerics/epilogue.h.
 *
 * As a program: `driver SECONDS SEED` runs until the time is over; it prints its seed, and for the
 * first mismatch the request and both bit patterns. With -DMMAEMU_FUZZ it is a libFuzzer target.
 * Operands and outputs are heap blocks of exactly their size, so that AddressSanitizer sees every
 * access beside them, and the output has guard words as well. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi.h"
#include "../numerics/epilogue.h"

#define GUARD 64
#define GUARD_BITS 0x7FC0BEEFu

uint32_t mmaemu_cpu_isas(void);
int32_t mmaemu_cpu_check(const struct mmaemu_request *request);
int64_t mmaemu_cpu_scratch_bytes(const struct mmaemu_request *request);
int32_t mmaemu_cpu_gemm(struct mmaemu_request *request, void *scratch, int64_t scratch_bytes);

/* Bytes of the input first, then a generator that the input seeds. */
struct source {
    const uint8_t *data;
    size_t size;
    uint64_t state;
};

static uint8_t next_byte(struct source *source)
{
    if (source->size > 0) {
        source->size -= 1;
        source->state = source->state * 31 + *source->data;
        return *source->data++;
    }
    source->state ^= source->state << 13;
    source->state ^= source->state >> 7;
    source->state ^= source->state << 17;
    return (uint8_t)(source->state >> 32);
}

static int below(struct source *source, int limit)
{
    return (next_byte(source) * 256 + next_byte(source)) % limit;
}

static uint32_t next_word(struct source *source)
{
    uint32_t word = 0;
    int i;
    for (i = 0; i < 4; ++i)
        word = word << 8 | next_byte(source);
    return word;
}

static const char *const KERNELS[] = {"scalar", "cvtt", "wide", "floor_fma", "floor_fma_double"};
static const char *const ISAS[] = {"scalar", "sse2", "avx2", "avx512", "neon"};

/* Codes of one kind: anything, near one exponent, small, or mostly zero. */
static void fill(struct source *source, uint8_t *codes, size_t count, int kind)
{
    size_t i;
    for (i = 0; i < count; ++i) {
        const uint8_t byte = next_byte(source);
        codes[i] = kind == 0   ? byte
                   : kind == 1 ? (uint8_t)((byte & 0x87) | 0x38)
                   : kind == 2 ? (uint8_t)(byte & 0x8F)
                   : byte < 32 ? next_byte(source)
                               : 0;
    }
}

static void choose_model(struct source *source, struct mmaemu_request *r)
{
    static const int lengths[] = {16, 32, 8, 4, 64};
    static const int fractions[] = {13, 13, 23, 24, 25, 35};
    const int emulated = below(source, 4) == 0;
    r->format_a = below(source, 2) ? below(source, 2) : below(source, MMAEMU_FP16);
    r->format_b = below(source, 2) ? below(source, 2) : below(source, MMAEMU_FP16);
    if (below(source, 4) == 0)
        r->format_a = r->format_b = MMAEMU_FP16 + below(source, 3);
    r->dot_length = lengths[below(source, below(source, 2) ? 2 : 5)];
    r->fraction_bits = fractions[below(source, 6)];
    r->result_fraction_bits = r->fraction_bits == 13 ? 13 : 23;
    r->min_exponent = below(source, 2) ? MMAEMU_NO_FLOOR : -(131 + below(source, 3));
    r->operand_floor = MMAEMU_NO_FLOOR;
    r->late = below(source, 4) == 0;
    r->groups = 1;
    r->residues = 1;
    r->group_of = 0;
    if (emulated) {
        r->late = 1;
        r->groups = 2;
        r->residues = 4;
        r->group_of = 0x1100;
        r->operand_floor = -14;
    }
}

static void choose_plan(struct source *source, struct mmaemu_request *r)
{
    r->partition = below(source, 2) ? 0 : below(source, 4);
    r->slices = r->partition == MMAEMU_UNSPLIT ? 1 : 2 + below(source, 5);
    r->tile = r->partition == MMAEMU_CONTIGUOUS ? 128 : 64;
    r->promotion = below(source, 2) ? 128 : 0;
    r->m = 1 + below(source, below(source, 8) ? 20 : 150);
    r->n = 1 + below(source, below(source, 8) ? 40 : 150);
    r->k = 1 + below(source, below(source, 8) ? 200 : 600);
    r->tile_columns = 64 * below(source, 3);
}

/* One field becomes anything at all: the library refuses the request, or computes it. */
static void spoil(struct source *source, struct mmaemu_request *r)
{
    int32_t *const fields[] = {
        &r->format_a,
        &r->format_b,
        &r->dot_length,
        &r->fraction_bits,
        &r->result_fraction_bits,
        &r->min_exponent,
        &r->late,
        &r->groups,
        &r->residues,
        &r->operand_floor,
        &r->partition,
        &r->tile_columns,
        (int32_t *)&r->group_of,
        (int32_t *)&r->abi,
    };
    mmaemu_i64 *const wide[] = {&r->slices, &r->tile, &r->promotion, &r->m, &r->n, &r->k};
    const int any = below(source, 3) == 0;
    const int which = below(source, 20);
    const int small = below(source, 300) - 20;
    if (which < 14)
        *fields[which] = any ? (int32_t)next_word(source) : small;
    else
        *wide[which - 14] = small;
}

static size_t output_words(const struct mmaemu_request *r)
{
    return (size_t)((r->m - 1) * r->ldc + r->n);
}

static uint32_t *compute(struct mmaemu_request *r)
{
    const size_t words = output_words(r) + 2 * GUARD;
    uint32_t *block = malloc(words * sizeof(uint32_t));
    const int64_t bytes = mmaemu_cpu_scratch_bytes(r);
    void *scratch = malloc((size_t)bytes);
    size_t i;
    if (!block || !scratch)
        abort();
    for (i = 0; i < words; ++i)
        block[i] = GUARD_BITS;
    r->out = (float *)(block + GUARD);
    r->next = 0;
    if (mmaemu_cpu_run(r, scratch, bytes) != MMAEMU_OK)
        abort();
    free(scratch);
    return block;
}

static int report(const struct mmaemu_request *r, size_t index, uint32_t expected, uint32_t actual)
{
    printf(
        "MISMATCH kernel %s isa %s formats %d %d L %d F %d Emin %d late %d groups %d plan %d S %d "
        "promotion %d M %d N %d K %d at word %d: expected %08x, got %08x\n",
        KERNELS[r->kernel], ISAS[r->isa], r->format_a, r->format_b, r->dot_length, r->fraction_bits,
        r->min_exponent, r->late, r->groups, r->partition, (int)r->slices, (int)r->promotion,
        (int)r->m, (int)r->n, (int)r->k, (int)index - GUARD, expected, actual);
    return 1;
}

/* 1 if a kernel differs; *compared counts outputs. */
static int compare_all(struct mmaemu_request *r, long long *compared)
{
    uint32_t *expected;
    int bad = 0;
    int kernel;
    int isa;
    r->kernel = MMAEMU_KERNEL_SCALAR;
    r->isa = MMAEMU_ISA_SCALAR;
    if (mmaemu_cpu_check(r) != MMAEMU_OK)
        return 0;
    expected = compute(r);
    for (kernel = 1; kernel < MMAEMU_KERNEL_COUNT; ++kernel)
        for (isa = 1; isa < MMAEMU_ISA_COUNT; ++isa) {
            const size_t words = output_words(r) + 2 * GUARD;
            uint32_t *actual;
            size_t i;
            r->kernel = kernel;
            r->isa = isa;
            if (mmaemu_cpu_check(r) != MMAEMU_OK)
                continue;
            actual = compute(r);
            for (i = 0; i < words && !bad; ++i)
                if (actual[i] != expected[i])
                    bad = report(r, i, expected[i], actual[i]);
            *compared += (long long)output_words(r);
            free(actual);
        }
    free(expected);
    return bad;
}

static int any_nonfinite(const uint8_t *codes, int64_t rows, int64_t k, int64_t ld, int format)
{
    int64_t row;
    int64_t i;
    for (row = 0; row < rows; ++row)
        for (i = 0; i < k; ++i)
            if ((codes[row * ld + i] & 0x7F) >= (format == MMAEMU_E4M3 ? 0x7F : 0x7C))
                return 1;
    return 0;
}

/* The code of output `index`, whatever its type. */
static uint32_t code_at(const void *result, int64_t index, size_t bytes)
{
    if (bytes == 4)
        return ((const uint32_t *)result)[index];
    return bytes == 2 ? ((const uint16_t *)result)[index] : ((const uint8_t *)result)[index];
}

/* 1 if a whole GEMM of a random kernel, scale and output type differs. */
static int compare_gemm(struct source *source, struct mmaemu_request *r, long long *compared)
{
    static const size_t sizes[MMAEMU_OUT_COUNT] = {4, 2, 2, 1, 1};
    const int64_t count = r->m * r->n;
    uint32_t *expected;
    uint32_t *accumulators;
    void *result;
    void *scratch;
    size_t bytes;
    int64_t i;
    int wanted;
    int status;
    int bad = 0;
    r->output = below(source, MMAEMU_OUT_COUNT);
    r->alpha = below(source, 4) ? next_word(source) : 0x3F800000u;
    r->has_scale_result = below(source, 2);
    r->scale_result = next_word(source);
    r->ldc = r->n;
    r->kernel = MMAEMU_KERNEL_SCALAR;
    r->isa = MMAEMU_ISA_SCALAR;
    if (r->format_a > MMAEMU_E5M2 || r->format_b > MMAEMU_E5M2 || mmaemu_cpu_check(r))
        return 0;
    expected = compute(r);
    r->kernel = below(source, MMAEMU_KERNEL_COUNT);
    r->isa = below(source, MMAEMU_ISA_COUNT);
    if (mmaemu_cpu_check(r)) {
        r->kernel = MMAEMU_KERNEL_SCALAR;
        r->isa = MMAEMU_ISA_SCALAR;
    }
    bytes = sizes[r->output];
    accumulators = malloc((size_t)count * 4);
    result = bytes == 4 ? accumulators : malloc((size_t)count * bytes);
    scratch = malloc((size_t)mmaemu_cpu_scratch_bytes(r));
    if (!accumulators || !result || !scratch)
        abort();
    r->out = (float *)accumulators;
    r->result = result;
    r->next = 0;
    wanted = any_nonfinite(r->a, r->m, r->k, r->lda, r->format_a) ||
                     any_nonfinite(r->b, r->n, r->k, r->ldb, r->format_b)
                 ? MMAEMU_NONFINITE
                 : MMAEMU_OK;
    status = mmaemu_cpu_gemm(r, scratch, mmaemu_cpu_scratch_bytes(r));
    if (status != wanted) {
        printf("MISMATCH of a GEMM's status: expected %d, got %d\n", wanted, status);
        bad = 1;
    }
    for (i = 0; i < count && status == MMAEMU_OK && !bad; ++i) {
        const uint32_t code = mmaemu_epilogue(expected[GUARD + i], r->alpha, r->has_scale_result,
                                              r->scale_result, r->output);
        const uint32_t actual = code_at(result, i, bytes);
        if (actual != code) {
            printf("MISMATCH of a GEMM's output %d, alpha %08x, scale %d %08x: ", r->output,
                   r->alpha, r->has_scale_result, r->scale_result);
            bad = report(r, (size_t)(GUARD + i), code, actual);
        }
    }
    *compared += status == MMAEMU_OK ? (long long)count : 0;
    if (result != accumulators)
        free(result);
    free(accumulators);
    free(scratch);
    free(expected);
    return bad;
}

static int one_input(const uint8_t *data, size_t size, long long *compared)
{
    struct source source = {data, size, 88172645463325252ull};
    struct mmaemu_request r;
    int storage_a;
    int storage_b;
    size_t bytes_a;
    size_t bytes_b;
    uint8_t *a;
    uint8_t *b;
    int bad;
    memset(&r, 0, sizeof r);
    r.abi = MMAEMU_CPU_ABI;
    choose_model(&source, &r);
    choose_plan(&source, &r);
    if (below(&source, 4) == 0)
        spoil(&source, &r);
    r.a = r.b = &r; /* For the check only; operands and outputs come after it. */
    r.out = (float *)&r;
    if (mmaemu_cpu_check(&r) != MMAEMU_OK || r.m == 0 || r.n == 0 || r.k == 0)
        return 0;
    r.lda = r.k + below(&source, 3);
    r.ldb = r.k + below(&source, 3);
    r.ldc = r.n + below(&source, 2);
    storage_a = mmaemu_format_of(r.format_a).storage_bytes;
    storage_b = mmaemu_format_of(r.format_b).storage_bytes;
    bytes_a = (size_t)((r.m - 1) * r.lda + r.k) * (size_t)storage_a;
    bytes_b = (size_t)((r.n - 1) * r.ldb + r.k) * (size_t)storage_b;
    a = malloc(bytes_a);
    b = malloc(bytes_b);
    if (!a || !b)
        abort();
    fill(&source, a, bytes_a, below(&source, 4));
    fill(&source, b, bytes_b, below(&source, 4));
    r.a = a;
    r.b = b;
    bad = compare_all(&r, compared) || compare_gemm(&source, &r, compared);
    free(a);
    free(b);
    return bad;
}

#if defined(MMAEMU_FUZZ)
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    long long compared = 0;
    if (one_input(data, size, &compared))
        abort();
    return 0;
}
#else
int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 5;
    uint64_t seed = argc > 2 ? strtoull(argv[2], 0, 10) : (uint64_t)time(0);
    const time_t end = time(0) + (time_t)seconds;
    long long compared = 0;
    long inputs = 0;
    printf("seed %llu, instruction sets %x\n", (unsigned long long)seed, mmaemu_cpu_isas());
    do {
        if (one_input((const uint8_t *)&seed, sizeof seed, &compared))
            return 1;
        seed += 0x9E3779B97F4A7C15ull;
        inputs += 1;
    } while (time(0) < end);
    printf("%ld requests, %lld outputs compared, 0 differ\n", inputs, compared);
    return compared == 0;
}
#endif
