/*
 * ls_varint.h - zigzag varints inline, for the loops over records.  ls_varint.c has the rest.
 */
#ifndef LS_VARINT_H
#define LS_VARINT_H

#include "ls_internal.h"

static inline uint64_t ls_varint_zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline int64_t ls_varint_unzigzag(uint64_t v)
{
    return (int64_t)((v >> 1) ^ (0 - (v & 1)));
}

/* Bytes of a value; of a 32 bit value the same as of the 64 bit one. */
static inline int32_t ls_varint_bytes(int64_t value)
{
    int32_t top_bit = 63 - __builtin_clzll(ls_varint_zigzag(value) | 1);
    return (top_bit * 9 + 73) / 64; /* top_bit / 7 + 1, for 0 .. 63 */
}

/* Write without looking at the room: the caller has measured. */
static inline uint8_t *ls_varint_write(uint8_t *out, int64_t value)
{
    uint64_t v = ls_varint_zigzag(value);
    while (v >= 0x80) {
        *out++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *out++ = (uint8_t)v;
    return out;
}

/* Out of line: three bytes and more, and all that is wrong.  NULL if it is wrong. */
const uint8_t *ls_varint_read32_long(const uint8_t *p, const uint8_t *end, int32_t *value);
const uint8_t *ls_varint_read64_long(const uint8_t *p, const uint8_t *end, int64_t *value);

/* Why a read from p returned NULL: LS_E_VARINT or, when `end` is inside it, LS_E_RECORD. */
int32_t ls_varint_why(const uint8_t *p, const uint8_t *end, int32_t bytes_max);

/* Read in [p, end): returns what follows, or NULL. */
static inline const uint8_t *ls_varint_read32(const uint8_t *p, const uint8_t *end, int32_t *value)
{
    if (LS_LIKELY(p < end)) {
        uint32_t v = p[0];
        if (v < 0x80) {
            *value = (int32_t)((v >> 1) ^ (0 - (v & 1)));
            return p + 1;
        }
        if (LS_LIKELY(end - p >= 2 && p[1] < 0x80)) {
            v = (v & 0x7f) | (uint32_t)p[1] << 7;
            *value = (int32_t)((v >> 1) ^ (0 - (v & 1)));
            return p + 2;
        }
    }
    return ls_varint_read32_long(p, end, value);
}

static inline const uint8_t *ls_varint_read64(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    if (LS_LIKELY(p < end && *p < 0x80)) {
        *value = ls_varint_unzigzag(*p);
        return p + 1;
    }
    return ls_varint_read64_long(p, end, value);
}

#endif
