/* What the floor-FMA kernels share up to the arithmetic of a block: layout, decoding, packing.
 *
 * The including file describes the layout and defines SUM, the type of values and sums, and vsum, a
 * vector of WIDTH of them. */
#ifndef MMAEMU_CPU_FLOOR_FMA_TILE_H
#define MMAEMU_CPU_FLOOR_FMA_TILE_H

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
    vsum value[MAX_L * 4];
    vb exponent[MAX_L];
    vb low[MAX_L];
};

/* Scratch memory, cut to the size of the request: a small problem touches few pages.
 * sums: chain, slice, slot and total, UNIT outputs a unit each.
 * a_value: L values of type SUM per row; a_exponent, a_low: L dwords of four bytes per unit. */
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
    SUM *a_value;
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
                   layout.units * layout.blocks * request->dot_length * (8 + (int)sizeof(SUM));
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
    job->a_value = (SUM *)(job->total + vectors);
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

/* decoder_values in the type of the sums. */
INLINE void decoder_sums(const struct decoder *decoder, vb code, int count, vsum *values,
                         int stride)
{
    vf value[4];
    int j;
    decoder_values(decoder, code, count, value, 1);
    for (j = 0; j < count; ++j)
        values[j * stride] = __builtin_convertvector(value[j], vsum);
}

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

/* Asks for a share of the codes of b two cache lines ahead, L rows of every CHUNK: its rows are too
 * many streams for the hardware's prefetchers, and too many misses at once. A prefetch beside the
 * operand is harmless. */
INLINE void prefetch_b(const struct job *job, mmaemu_i64 column, mmaemu_i64 begin, int L)
{
    const struct mmaemu_request *request = job->request;
    const mmaemu_u8 *codes =
        (const mmaemu_u8 *)request->b + column * request->ldb + begin / CHUNK * CHUNK + 2 * CHUNK;
    const mmaemu_i64 width = job->narrow ? WIDTH : 4 * WIDTH;
    const mmaemu_i64 share = width * L / CHUNK;
    const mmaemu_i64 first = begin % CHUNK / L * share;
    const mmaemu_i64 last = mmaemu_smaller(first + share, request->n - column);
    mmaemu_i64 row;
    for (row = first; row < last; ++row)
        __builtin_prefetch(codes + row * request->ldb, 0, 2);
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
    prefetch_b(job, column, begin, L);
    codes = job->codes + (begin - job->chunk_begin);
    for (k = 0; k < L; ++k) {
        const vb code = (vb)codes[k];
        const struct decoded bytes = decoder_bytes(&job->decoder_b, code);
        panel->exponent[k] = bytes.exponent;
        panel->low[k] = bytes.low;
        if (job->narrow)
            decoder_sums(&job->decoder_b, code, 1, panel->value + k, 1);
        else
            decoder_sums(&job->decoder_b, code, 4, panel->value + 4 * k, 1);
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
        vsum *value = (vsum *)(job->a_value + (slot * job->rows + row) * L);
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
            decoder_sums(&job->decoder_a, code, rows_per_unit, value + v, L / WIDTH);
        }
    }
}

#endif
