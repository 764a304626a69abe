/* Input formats as data, and the decoding of one code (NUMERICS N1). */
#ifndef MMAEMU_NUMERICS_FORMATS_H
#define MMAEMU_NUMERICS_FORMATS_H

#include "types.h"

enum mmaemu_format_id {
    MMAEMU_E4M3 = 0,
    MMAEMU_E5M2 = 1,
    MMAEMU_E4M3FNUZ = 2,
    MMAEMU_E5M2FNUZ = 3,
    MMAEMU_E2M3 = 4,
    MMAEMU_E3M2 = 5,
    MMAEMU_E2M1 = 6,
    MMAEMU_FP16 = 7,
    MMAEMU_BF16 = 8,
    MMAEMU_TF32 = 9,
    MMAEMU_FORMAT_COUNT = 10
};

enum mmaemu_specials {
    MMAEMU_SPECIALS_NONE = 0, /* Every code is finite. */
    MMAEMU_SPECIALS_IEEE = 1, /* The highest exponent means Inf and NaN. */
    MMAEMU_SPECIALS_FN = 2,   /* Only the all-ones magnitude is NaN, there is no Inf. */
    MMAEMU_SPECIALS_FNUZ = 3  /* Only the code of -0 is NaN, there is no Inf. */
};

struct mmaemu_format {
    int exponent_bits;
    int fraction_bits;
    int bias;
    int specials;
    int storage_bytes; /* Bytes of one stored code. */
    int unused_bits;   /* Low bits of the stored code that the hardware ignores. */
};

/* value = significand * 2^(exponent - fraction_bits); zero and non-finite codes have significand 0.
 */
struct mmaemu_number {
    mmaemu_i32 significand;
    mmaemu_i32 exponent;
};

MMAEMU_FN struct mmaemu_format mmaemu_make_format(int exponent_bits, int fraction_bits, int bias,
                                                  int specials, int storage_bytes, int unused_bits)
{
    struct mmaemu_format format;
    format.exponent_bits = exponent_bits;
    format.fraction_bits = fraction_bits;
    format.bias = bias;
    format.specials = specials;
    format.storage_bytes = storage_bytes;
    format.unused_bits = unused_bits;
    return format;
}

MMAEMU_FN struct mmaemu_format mmaemu_format_of(int id)
{
    switch (id) {
    case MMAEMU_E4M3:
        return mmaemu_make_format(4, 3, 7, MMAEMU_SPECIALS_FN, 1, 0);
    case MMAEMU_E5M2:
        return mmaemu_make_format(5, 2, 15, MMAEMU_SPECIALS_IEEE, 1, 0);
    case MMAEMU_E4M3FNUZ:
        return mmaemu_make_format(4, 3, 8, MMAEMU_SPECIALS_FNUZ, 1, 0);
    case MMAEMU_E5M2FNUZ:
        return mmaemu_make_format(5, 2, 16, MMAEMU_SPECIALS_FNUZ, 1, 0);
    case MMAEMU_E2M3:
        return mmaemu_make_format(2, 3, 1, MMAEMU_SPECIALS_NONE, 1, 0);
    case MMAEMU_E3M2:
        return mmaemu_make_format(3, 2, 3, MMAEMU_SPECIALS_NONE, 1, 0);
    case MMAEMU_E2M1:
        return mmaemu_make_format(2, 1, 1, MMAEMU_SPECIALS_NONE, 1, 0);
    case MMAEMU_FP16:
        return mmaemu_make_format(5, 10, 15, MMAEMU_SPECIALS_IEEE, 2, 0);
    case MMAEMU_BF16:
        return mmaemu_make_format(8, 7, 127, MMAEMU_SPECIALS_IEEE, 2, 0);
    default:
        return mmaemu_make_format(8, 10, 127, MMAEMU_SPECIALS_IEEE, 4, 13);
    }
}

/* Bits above the format's sign bit are ignored (fp6 and fp4 codes are stored one to a byte). */
MMAEMU_FN struct mmaemu_number mmaemu_decode(struct mmaemu_format format, mmaemu_u32 code)
{
    const mmaemu_u32 fraction_mask = (1u << format.fraction_bits) - 1u;
    const mmaemu_u32 exponent_mask = (1u << format.exponent_bits) - 1u;
    const mmaemu_u32 used = code >> format.unused_bits;
    const mmaemu_u32 fraction = used & fraction_mask;
    const mmaemu_u32 field = (used >> format.fraction_bits) & exponent_mask;
    const mmaemu_u32 sign = (used >> (format.fraction_bits + format.exponent_bits)) & 1u;
    const int finite = format.specials == MMAEMU_SPECIALS_IEEE ? field != exponent_mask
                       : format.specials == MMAEMU_SPECIALS_FN
                           ? (field != exponent_mask || fraction != fraction_mask)
                       : format.specials == MMAEMU_SPECIALS_FNUZ ? (field != 0 || fraction != 0)
                                                                 : 1;
    struct mmaemu_number number;
    number.exponent = (mmaemu_i32)(field == 0 ? 1 : field) - format.bias;
    number.significand = 0;
    if (finite) {
        number.significand = (mmaemu_i32)(field == 0 ? fraction : fraction + fraction_mask + 1u);
        if (sign)
            number.significand = -number.significand;
    }
    return number;
}

#endif
