/* Floor by a toward-zero FMA plus a count of negative inexact products, for F = 13.
 *
 * Computes: the accumulators of L = 16 and 32, all pairs of e4m3 and e5m2, every plan (N2-N8,
 * N14-N18).
 *
 * Exact because (u = 2^(E - 13) is the grid of a block, p a product, c the accumulator):
 * - A product has at most 8 significant bits, so fp32 holds it, and none is subnormal (>= 2^-32).
 * - acc starts as B + trunc_u(c) with B = 1.5 * 2^(E + 10). |trunc_u(c)| + sum |p| < 2^(E + 1) +
 *   32 * 3.52 * 2^E < 2^(E + 7), so acc stays in the binade of B, whose ulp is u: every
 *   acc = acc + p rounded toward zero adds floor_u(p) exactly.
 * - trunc_u(p) = floor_u(p), plus u where p is negative and no multiple of u. The latter are
 * counted in bytes: p is a multiple of u iff la + lb >= E - 13 (exponents of the lowest set bits),
 * and the tables put the sign into the top bit, so that one signed comparison decides both.
 * - The count is added to the bits of acc: one unit in the last place is u.
 * - S = acc - B is exact, and clearing its low 10 bits truncates to 13 fraction bits. S = 0 is +0.
 * - Every product and every c is a multiple of 2^-32, so nothing is cut while E <= -19: E may start
 *   at -23 instead of the true maximum, which keeps bytes and exponents in range.
 *
 * Layout: a unit is a byte vector of 4 * WIDTH outputs: WIDTH lanes of four bytes, byte j of a lane
 * belonging to fp32 vector j. A wide unit is one row and 4 * WIDTH columns (vector j holds columns
 * j * WIDTH + lane); a narrow one is four rows (vector j is row j) and WIDTH columns, for small N.
 * The operand b is packed per block of L: fp32 values, exponent bytes, lowest-bit bytes (6 KB for
 * L = 16 with WIDTH = 16), and stays in L1 while all rows of the tile pass over it. Values of b,
 * and with them every sum, are scaled by 2^16: the exponent byte of B is then E + 153, which is
 * also the limit E - 103 of the count modulo 256.
 *
 * Preconditions, checked by mmaemu_cpu_run: the formats and L above, no floor above -19, and
 * K < 2^25, which bounds E by 57. */
#include "abi.h"
#include "simd.h"

#define TILE_ROWS 256
#define TILE_COLUMNS 1024
#define WINDOW 4096 /* k of the operand a kept packed at a time. */
#define MAX_L 32
#define CHUNK 64         /* k of the operand b transposed at a time: a cache line of codes. */
#define UNIT (4 * WIDTH) /* Outputs of a unit. */

#define SCALE 16           /* Sums are scaled by 2^SCALE. */
#define EXPONENT_BIAS 153  /* Of the exponent byte of a product: 127 + 10 + SCALE. */
#define EXPONENT_START 130 /* E = -23, see above. */
#define LOW_ZERO_A 60      /* Lowest-bit bytes of zeros: never below a limit, whatever the other */
#define LOW_ZERO_B (-20)   /* operand is, for limits from -126 to -46. */
#define LOW_BIAS 38        /* la + lb + 38 >= 6 for positive, - 128 for negative products. */
#define EXPONENT_ZERO_A                                                                            \
    (-63)                  /* Exponent bytes of zeros: the sum stays below EXPONENT_START and      \
                            */
#define EXPONENT_ZERO_B 63 /* does not wrap. */

struct panel {
    vf value[MAX_L * 4];
    vb exponent[MAX_L];
    vb low[MAX_L];
};

/* Scratch memory, cut to the size of the request: a small problem touches few pages.
 * sums: chain, slice, slot and total, UNIT outputs a unit each.
 * a_value: L values per row; a_exponent, a_low: L dwords of four bytes per unit. */
struct layout {
    mmaemu_i64 units;  /* Of the largest tile: one per row, rounded up. */
    mmaemu_i64 blocks; /* Packed blocks of a that fit at the same time. */
    mmaemu_i64 bytes;
};

/* How the codes of one operand are decoded while it is packed. AVX-512 looks 64 codes up at a time,
 * in tables that decode_bytes and decode_float fill once per tile; elsewhere those are called. */
struct decoder {
    int format;
    int is_b;
#if defined(MMAEMU_ISA_IS_AVX512)
    vb exponent[2]; /* Codes 0..63 and 64..127. */
    vb low[2];
    vb top[2];  /* Bits 31..24 of the value. */
    vb next[2]; /* Bits 23..16; the others are zero. */
#endif
};

/* One tile on its way: what has been packed, and how. */
struct job {
    const struct mmaemu_request *request;
    const struct mmaemu_tile *tile;
    struct panel *panel;
    vu *codes;
    vf *chain;
    vf *slice;
    vf *slot;
    vf *total;
    float *a_value;
    mmaemu_u32 *a_exponent;
    mmaemu_u32 *a_low;
    mmaemu_i64 blocks;      /* layout.blocks */
    mmaemu_i64 chunk_begin; /* Transposed k of b. */
    mmaemu_i64 chunk_end;
    mmaemu_i64 packed; /* Blocks of the walk that are packed, if all of them fit. */
    int narrow;
    int units; /* A multiple of UNITS. */
    int rows;  /* Packed rows of a: those of all units. */
    struct decoder decoder_a;
    struct decoder decoder_b;
};

static mmaemu_i64 round_up(mmaemu_i64 value, mmaemu_i64 multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static struct layout layout_of(const struct mmaemu_request *request)
{
    struct layout layout;
    /* A narrow unit has four rows, and UNITS of them are worked on at a time. */
    layout.units = round_up(mmaemu_smaller(request->m, TILE_ROWS), 4 * UNITS);
    layout.blocks =
        request->k > WINDOW ? 1 : (request->k + request->dot_length - 1) / request->dot_length;
    layout.bytes = (mmaemu_i64)sizeof(struct panel) + (mmaemu_i64)sizeof(vu) * CHUNK +
                   layout.units * 4 * UNIT * 4 +
                   layout.units * layout.blocks * request->dot_length * 12;
    return layout;
}

static mmaemu_i64 scratch(const struct mmaemu_request *request)
{
    return layout_of(request).bytes;
}

static void make_job(struct job *job, const struct mmaemu_request *request,
                     const struct mmaemu_tile *tile, void *scratch_memory)
{
    const struct layout layout = layout_of(request);
    const mmaemu_i64 vectors = 4 * layout.units;
    job->request = request;
    job->tile = tile;
    job->panel = (struct panel *)scratch_memory;
    job->codes = (vu *)(job->panel + 1);
    job->chain = (vf *)(job->codes + CHUNK);
    job->slice = job->chain + vectors;
    job->slot = job->slice + vectors;
    job->total = job->slot + vectors;
    job->a_value = (float *)(job->total + vectors);
    job->a_exponent =
        (mmaemu_u32 *)(job->a_value + layout.units * layout.blocks * request->dot_length);
    job->a_low = job->a_exponent + layout.units * layout.blocks * request->dot_length;
    job->blocks = layout.blocks;
    job->chunk_begin = 0;
    job->chunk_end = 0;
    job->packed = 0;
    job->narrow = 0;
    job->units = 0;
    job->rows = 0;
}

/* ---- decoding, exact and without a branch ---- */

struct decoded {
    vb exponent;
    vb low;
};

INLINE vb select_bytes(vb mask, vb yes, vb no)
{
    return (yes & mask) | (no & ~mask);
}

/* The codes with non-finite ones replaced by zero (N18). */
INLINE vb finite(vb code, int format)
{
    const vb magnitude = code & splat_byte(0x7F);
    const vb bad = format == MMAEMU_E4M3 ? (vb)((vs)magnitude == (vs)splat_byte(0x7F))
                                         : (vb)((vs)magnitude > (vs)splat_byte(0x7B));
    return code & ~bad;
}

INLINE struct decoded decode_bytes(vb code, int format, int is_b)
{
    const int fraction_bits = format == MMAEMU_E4M3 ? 3 : 2;
    const int bias = format == MMAEMU_E4M3 ? 7 : 15;
    const vb field = (code & splat_byte(0x7F)) >> fraction_bits;
    const vb exponent = field - (vb)(field == splat_byte(0)) - splat_byte(bias);
    const vb significand =
        (code & splat_byte((1 << fraction_bits) - 1)) | splat_byte(1 << fraction_bits);
    const vb lowest = significand & (splat_byte(0) - significand);
    /* lowest is 1, 2, 4 or 8: its position is (lowest >> 1) - (lowest >> 3). */
    const vb position = (lowest >> 1) - (lowest >> 3);
    const vb low = exponent + position + splat_byte((is_b ? LOW_BIAS : 0) - fraction_bits);
    const vb zero = (vb)((code & splat_byte(0x7F)) == splat_byte(0));
    struct decoded result;
    result.exponent = select_bytes(zero, splat_byte(is_b ? EXPONENT_ZERO_B : EXPONENT_ZERO_A),
                                   exponent + splat_byte(is_b ? EXPONENT_BIAS : 0));
    result.low = select_bytes(zero, splat_byte(is_b ? LOW_ZERO_B : LOW_ZERO_A),
                              low ^ (code & splat_byte(0x80)));
    return result;
}

/* Byte `byte` of every lane as fp32 times 2^scale. A subnormal code is read with a leading one,
 * which is then subtracted: no subnormal fp32 appears. */
INLINE vf decode_float(vu lanes, int byte, int format, int scale)
{
    const int fraction_bits = format == MMAEMU_E4M3 ? 3 : 2;
    const int bias = format == MMAEMU_E4M3 ? 7 : 15;
    const int exponent_bits = 7 - fraction_bits;
    const vu top = byte == 3 ? lanes : lanes << (24 - 8 * byte);
    const vu placed =
        (vu)((vi)top >> (8 - exponent_bits)) & splat(0x80000000u | 0x7Fu << (23 - fraction_bits));
    const vu field = placed & splat(((1u << exponent_bits) - 1u) << 23);
    const vu subnormal = (vu)(field == splat(0));
    const vu bits =
        placed + splat((mmaemu_u32)(127 - bias + scale) << 23) + (subnormal & splat(1u << 23));
    const vu one = (placed & splat(0x80000000u)) | splat((mmaemu_u32)(128 - bias + scale) << 23);
    return (vf)bits - (vf)(subnormal & one);
}

#if defined(MMAEMU_ISA_IS_AVX512)
static __attribute__((noinline)) void make_decoder(struct decoder *decoder, int format, int is_b)
{
    vu codes = splat(0x03020100u);
    int i;
    int j;
    for (i = 0; i < 16; ++i)
        codes[i] += (mmaemu_u32)i * 0x04040404u;
    decoder->format = format;
    decoder->is_b = is_b;
    for (i = 0; i < 2; ++i) {
        const vb code = finite((vb)codes, format);
        const struct decoded bytes = decode_bytes(code, format, is_b);
        vu top = splat(0);
        vu next = splat(0);
        for (j = 0; j < 4; ++j) {
            const vu bits = (vu)decode_float((vu)code, j, format, is_b ? SCALE : 0);
            top |= (bits >> 24) << (8 * j);
            next |= ((bits >> 16) & splat(0xFFu)) << (8 * j);
        }
        decoder->exponent[i] = bytes.exponent;
        decoder->low[i] = bytes.low;
        decoder->top[i] = (vb)top;
        decoder->next[i] = (vb)next;
        codes += splat(0x40404040u);
    }
}

INLINE vb look_up(const vb *table, vb code)
{
    return (vb)_mm512_permutex2var_epi8((__m512i)table[0], (__m512i)code, (__m512i)table[1]);
}

/* The table of lowest bits knows no sign: zeros keep theirs clear of it. */
INLINE struct decoded decoder_bytes(const struct decoder *decoder, vb code)
{
    const vb low = look_up(decoder->low, code);
    const __mmask64 negative = _mm512_movepi8_mask((__m512i)code);
    const __mmask64 zero = _mm512_cmpeq_epi8_mask(
        (__m512i)low, (__m512i)splat_byte(decoder->is_b ? LOW_ZERO_B : LOW_ZERO_A));
    struct decoded result;
    result.exponent = look_up(decoder->exponent, code);
    result.low = (vb)_mm512_mask_sub_epi8((__m512i)low, negative & ~zero, (__m512i)low,
                                          (__m512i)splat_byte(0x80));
    return result;
}

/* values[j] = byte j of every lane as fp32, for j < count. */
INLINE void decoder_values(const struct decoder *decoder, vb code, int count, vf *values,
                           int stride)
{
    const vb top = look_up(decoder->top, code) | (code & splat_byte(0x80));
    const vb next = look_up(decoder->next, code);
    int j;
    for (j = 0; j < count; ++j) {
        /* Bytes 2 and 3 of lane i come from byte 4 * i + j of next and top. */
        const __m512i from = _mm512_add_epi8(
            _mm512_set_epi32(0x7C3C0000, 0x78380000, 0x74340000, 0x70300000, 0x6C2C0000, 0x68280000,
                             0x64240000, 0x60200000, 0x5C1C0000, 0x58180000, 0x54140000, 0x50100000,
                             0x4C0C0000, 0x48080000, 0x44040000, 0x40000000),
            _mm512_set1_epi8((char)j));
        values[j * stride] = (vf)_mm512_maskz_permutex2var_epi8(0xCCCCCCCCCCCCCCCCull,
                                                                (__m512i)next, from, (__m512i)top);
    }
}
#else
static void make_decoder(struct decoder *decoder, int format, int is_b)
{
    decoder->format = format;
    decoder->is_b = is_b;
}

INLINE struct decoded decoder_bytes(const struct decoder *decoder, vb code)
{
    const int is_b = decoder->is_b;
    if (decoder->format == MMAEMU_E4M3)
        return decode_bytes(finite(code, MMAEMU_E4M3), MMAEMU_E4M3, is_b);
    return decode_bytes(finite(code, MMAEMU_E5M2), MMAEMU_E5M2, is_b);
}

INLINE void decoder_values(const struct decoder *decoder, vb code, int count, vf *values,
                           int stride)
{
    const int scale = decoder->is_b ? SCALE : 0;
    int j;
    for (j = 0; j < count; ++j)
        values[j * stride] =
            decoder->format == MMAEMU_E4M3
                ? decode_float((vu)finite(code, MMAEMU_E4M3), j, MMAEMU_E4M3, scale)
                : decode_float((vu)finite(code, MMAEMU_E5M2), j, MMAEMU_E5M2, scale);
}
#endif

/* ---- packing ---- */

/* 16 codes of a row from `from` on; what lies outside the operand is zero and is not read. */
INLINE v16 load_codes(const mmaemu_u8 *row, mmaemu_i64 available)
{
    v16 codes = {0};
    mmaemu_u8 tail[16] __attribute__((aligned(16)));
    int i;
    if (available >= 16)
        return *(const v16_loose *)row;
    if (available <= 0)
        return codes;
    for (i = 0; i < 16; ++i)
        tail[i] = i < available ? row[i] : 0;
    return *(const v16 *)tail;
}

/* lanes[k] = the codes at k of four rows, the first one in the lowest byte. */
INLINE void interleave(const v16 *rows, v16w *lanes)
{
    const v16 low01 = __builtin_shufflevector(rows[0], rows[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20,
                                              5, 21, 6, 22, 7, 23);
    const v16 low23 = __builtin_shufflevector(rows[2], rows[3], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20,
                                              5, 21, 6, 22, 7, 23);
    const v16 high01 = __builtin_shufflevector(rows[0], rows[1], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                               28, 13, 29, 14, 30, 15, 31);
    const v16 high23 = __builtin_shufflevector(rows[2], rows[3], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                               28, 13, 29, 14, 30, 15, 31);
    lanes[0] = (v16w)__builtin_shufflevector((v16h)low01, (v16h)low23, 0, 8, 1, 9, 2, 10, 3, 11);
    lanes[1] = (v16w)__builtin_shufflevector((v16h)low01, (v16h)low23, 4, 12, 5, 13, 6, 14, 7, 15);
    lanes[2] = (v16w)__builtin_shufflevector((v16h)high01, (v16h)high23, 0, 8, 1, 9, 2, 10, 3, 11);
    lanes[3] =
        (v16w)__builtin_shufflevector((v16h)high01, (v16h)high23, 4, 12, 5, 13, 6, 14, 7, 15);
}

/* Four vectors of four dwords, transposed into columns `stride` dwords apart. */
INLINE void transpose_store(const v16w *x, mmaemu_u32 *out, int stride)
{
    const v16w a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const v16w b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const v16w c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const v16w d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    *(v16d *)(out + 0 * stride) = __builtin_shufflevector((v16d)a, (v16d)b, 0, 2);
    *(v16d *)(out + 1 * stride) = __builtin_shufflevector((v16d)a, (v16d)b, 1, 3);
    *(v16d *)(out + 2 * stride) = __builtin_shufflevector((v16d)c, (v16d)d, 0, 2);
    *(v16d *)(out + 3 * stride) = __builtin_shufflevector((v16d)c, (v16d)d, 1, 3);
}

/* Rows of codes and how much of them exists: `rows` rows, `available` codes each, `ld` apart. */
struct source {
    const mmaemu_u8 *codes;
    mmaemu_i64 ld;
    mmaemu_i64 rows;
    mmaemu_i64 available;
};

/* 16 codes, from `k` on, of the rows first + j * step for j < 4; step 0 is one row four times.
 * `whole` promises that all of them exist. */
INLINE void load_rows(const struct source *source, mmaemu_i64 first, mmaemu_i64 step, int k,
                      int whole, v16 *out)
{
    int j;
    for (j = 0; j < 4; ++j) {
        const mmaemu_i64 row = first + j * step;
        const mmaemu_u8 *codes = source->codes + row * source->ld + k;
        if (j > 0 && step == 0)
            out[j] = out[0];
        else if (whole)
            out[j] = *(const v16_loose *)codes;
        else
            out[j] = row < source->rows ? load_codes(codes, source->available - k) : (v16){0};
    }
}

/* The codes of `length` k of b as [k][lane] dwords: byte j of lane i is column j * step + i. */
INLINE void transpose_b(const struct source *source, mmaemu_u32 *raw, mmaemu_i64 step, int length,
                        int whole)
{
    int lane;
    int part;
    for (lane = 0; lane < WIDTH; lane += 4)
        for (part = 0; part < length; part += 16) {
            v16 rows[4];
            v16w lanes[4][4];
            v16w square[4];
            int i;
            int q;
#pragma GCC unroll 4
            for (i = 0; i < 4; ++i) {
                load_rows(source, lane + i, step, part, whole, rows);
                interleave(rows, lanes[i]);
            }
#pragma GCC unroll 4
            for (q = 0; q < 4; ++q) {
#pragma GCC unroll 4
                for (i = 0; i < 4; ++i)
                    square[i] = lanes[i][q];
                transpose_store(square, raw + (part + 4 * q) * WIDTH + lane, WIDTH);
            }
        }
}

/* Asks for the codes of b two cache lines ahead: its rows are too many streams for the hardware's
 * prefetchers. A prefetch beside the operand is harmless. */
INLINE void prefetch_b(const struct source *source, int rows)
{
    int row;
    for (row = 0; row < rows && row < source->rows; ++row)
        __builtin_prefetch(source->codes + row * source->ld + 2 * CHUNK, 0, 2);
}

/* Transposes the codes of b up to the next multiple of CHUNK in k, so that every cache line of b is
 * read once: rows a power of two apart push each other out of the cache between two blocks. */
static __attribute__((noinline)) void load_chunk(struct job *job, mmaemu_i64 column,
                                                 mmaemu_i64 begin)
{
    const struct mmaemu_request *request = job->request;
    mmaemu_u32 *raw = (mmaemu_u32 *)job->codes;
    const int length = CHUNK - (int)(begin % CHUNK);
    struct source source;
    source.codes = (const mmaemu_u8 *)request->b + column * request->ldb + begin;
    source.ld = request->ldb;
    source.rows = request->n - column;
    source.available = request->k - begin;
    prefetch_b(&source, job->narrow ? WIDTH : 4 * WIDTH);
    if (job->narrow)
        transpose_b(&source, raw, 0, length, 0);
    else if (source.rows >= 4 * WIDTH && source.available >= length)
        transpose_b(&source, raw, WIDTH, length, 1);
    else
        transpose_b(&source, raw, WIDTH, length, 0);
    job->chunk_begin = begin;
    job->chunk_end = begin + length;
}

/* One block of b: columns from `column` on, L of k from `begin` on, zeros where k ends. */
INLINE void pack_b(struct job *job, mmaemu_i64 column, mmaemu_i64 begin, int L)
{
    struct panel *panel = job->panel;
    const vu *codes;
    int k;
    if (begin < job->chunk_begin || begin >= job->chunk_end)
        load_chunk(job, column, begin);
    codes = job->codes + (begin - job->chunk_begin);
    for (k = 0; k < L; ++k) {
        const vb code = (vb)codes[k];
        const struct decoded bytes = decoder_bytes(&job->decoder_b, code);
        panel->exponent[k] = bytes.exponent;
        panel->low[k] = bytes.low;
        if (job->narrow)
            decoder_values(&job->decoder_b, code, 1, panel->value + k, 1);
        else
            decoder_values(&job->decoder_b, code, 4, panel->value + 4 * k, 1);
    }
}

/* One block of a for all units of the tile, to place `slot` among the packed blocks. */
INLINE void pack_a(const struct job *job, mmaemu_i64 slot, mmaemu_i64 begin, mmaemu_i64 end, int L,
                   int narrow)
{
    const struct mmaemu_request *request = job->request;
    const int rows_per_unit = narrow ? 4 : 1;
    struct source source;
    vu raw[MAX_L / WIDTH];
    int unit;
    source.codes = (const mmaemu_u8 *)request->a + job->tile->row * request->lda + begin;
    source.ld = request->lda;
    source.rows = job->tile->rows;
    source.available = end - begin;
    for (unit = 0; unit < job->units; ++unit) {
        const int row = unit * rows_per_unit;
        const int whole = row + rows_per_unit <= source.rows && source.available == L;
        vf *value = (vf *)(job->a_value + (slot * job->rows + row) * L);
        vu *exponent = (vu *)(job->a_exponent + (slot * job->units + unit) * L);
        vu *low = (vu *)(job->a_low + (slot * job->units + unit) * L);
        int half;
        int v;
        for (half = 0; half < L; half += 16) {
            v16 four[4];
            load_rows(&source, row, narrow ? 1 : 0, half, whole, four);
            interleave(four, (v16w *)raw + half / 4);
        }
        for (v = 0; v < L / WIDTH; ++v) {
            const vb code = (vb)raw[v];
            const struct decoded bytes = decoder_bytes(&job->decoder_a, code);
            exponent[v] = (vu)bytes.exponent;
            low[v] = (vu)bytes.low;
            decoder_values(&job->decoder_a, code, rows_per_unit, value + v, L / WIDTH);
        }
    }
}

/* ---- the kernel ---- */

/* Exponent byte of B for vector j of a unit, as fp32 bits of B = 1.5 * 2^(E + 10 + SCALE). */
INLINE vu base_bits(vb exponent, int j)
{
    const vu lanes = (vu)exponent;
    const vu placed = j == 3 ? lanes >> 1 : lanes << (23 - 8 * j);
    return (placed & splat(0x7F800000u)) | splat(0x00400000u);
}

/* The exponent bytes of the four accumulators of a unit, on the scale of the products'. */
INLINE vb accumulator_exponents(const vf *c)
{
    const vu lanes = (((vu)c[0] >> 23) & splat(0xFFu)) | (((vu)c[1] >> 15) & splat(0xFF00u)) |
                     (((vu)c[2] >> 7) & splat(0xFF0000u)) | (((vu)c[3] << 1) & splat(0xFF000000u));
    return max_bytes((vb)lanes + splat_byte(EXPONENT_BIAS - 127 - SCALE),
                     splat_byte(EXPONENT_START));
}

/* One block for UNITS units. a_*: of the first unit, L dwords (values: L floats a row) each. */
INLINE void block(const struct panel *panel, const float *a_value, const mmaemu_u32 *a_exponent,
                  const mmaemu_u32 *a_low, vf *chain, int L, int narrow)
{
    vb exponent[UNITS];
    vb count[UNITS];
    vf acc[UNITS][4];
    int u;
    int j;
    int k;
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u)
        exponent[u] = accumulator_exponents(chain + 4 * u);
#pragma GCC unroll 4
    for (k = 0; k < L; ++k)
#pragma GCC unroll 4
        for (u = 0; u < UNITS; ++u)
            exponent[u] =
                max_bytes(exponent[u], panel->exponent[k] + (vb)splat(a_exponent[u * L + k]));
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u) {
        count[u] = splat_byte(0);
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vu base = base_bits(exponent[u], j);
            const vf signed_base = (vf)(base | ((vu)chain[4 * u + j] & splat(0x80000000u)));
            acc[u][j] = ((chain[4 * u + j] + signed_base) - signed_base) + (vf)base;
        }
    }
#pragma GCC unroll 2
    for (k = 0; k < L; ++k) {
        const vb low = panel->low[k];
        vf a[UNITS];
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vf b = panel->value[narrow ? k : 4 * k + j];
#pragma GCC unroll 4
            for (u = 0; u < UNITS; ++u) {
                if (narrow || j == 0)
                    a[u] = splat_load(a_value + (narrow ? 4 * u + j : u) * L + k);
                acc[u][j] = multiply_add(a[u], b, acc[u][j]);
            }
        }
#pragma GCC unroll 4
        for (u = 0; u < UNITS; ++u)
            count[u] = count_below(count[u], low + (vb)splat(a_low[u * L + k]), exponent[u]);
    }
#pragma GCC unroll 4
    for (u = 0; u < UNITS; ++u)
#pragma GCC unroll 4
        for (j = 0; j < 4; ++j) {
            const vf sum = (vf)add_byte((vu)acc[u][j], count[u], j) - (vf)base_bits(exponent[u], j);
            chain[4 * u + j] = (vf)((vu)sum & splat(0xFFFFFC00u));
        }
}

/* One block for all units of the tile. */
INLINE void all_units(const struct job *job, mmaemu_i64 slot, int L, int narrow)
{
    int unit;
    for (unit = 0; unit < job->units; unit += UNITS) {
        const mmaemu_i64 place = (slot * job->units + unit) * L;
        const mmaemu_i64 value = (slot * job->rows + (narrow ? 4 * unit : unit)) * L;
        block(job->panel, job->a_value + value, job->a_exponent + place, job->a_low + place,
              job->chain + 4 * unit, L, narrow);
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

const struct mmaemu_entry PASTE(mmaemu_floor_fma_, ISA) = {scratch, run, TILE_ROWS, TILE_COLUMNS};
