/*
 * ls_bytes.h - big-endian numbers in memory, and short copies.  The only place where a multi-byte
 * value is read from or written to a buffer.  Nothing is checked: the caller has the bounds.
 */
#ifndef LS_BYTES_H
#define LS_BYTES_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LS_BYTES_SWAP32(v) __builtin_bswap32(v)
#define LS_BYTES_SWAP64(v) __builtin_bswap64(v)
#define LS_BYTES_SWAP16(v) __builtin_bswap16(v)
#else
#error "big-endian machines have never been tried"
#endif

static inline int16_t ls_bytes_load_i16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return (int16_t)LS_BYTES_SWAP16(v);
}

static inline uint32_t ls_bytes_load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return LS_BYTES_SWAP32(v);
}

static inline int32_t ls_bytes_load_i32(const uint8_t *p)
{
    return (int32_t)ls_bytes_load_u32(p);
}

static inline int64_t ls_bytes_load_i64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return (int64_t)LS_BYTES_SWAP64(v);
}

static inline void ls_bytes_store_i16(uint8_t *p, int16_t value)
{
    uint16_t v = LS_BYTES_SWAP16((uint16_t)value);
    memcpy(p, &v, sizeof v);
}

static inline void ls_bytes_store_u32(uint8_t *p, uint32_t value)
{
    uint32_t v = LS_BYTES_SWAP32(value);
    memcpy(p, &v, sizeof v);
}

static inline void ls_bytes_store_i32(uint8_t *p, int32_t value)
{
    ls_bytes_store_u32(p, (uint32_t)value);
}

static inline void ls_bytes_store_i64(uint8_t *p, int64_t value)
{
    uint64_t v = LS_BYTES_SWAP64((uint64_t)value);
    memcpy(p, &v, sizeof v);
}

/* Little-endian loads, for checksums and hashes that are defined over such words. */
static inline uint32_t ls_bytes_load_le32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t ls_bytes_load_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Copy `size` bytes that do not overlap.  Keys and values are short and each has another length: a
   call of memcpy costs as much as the whole record, two fixed copies that overlap do not. */
static inline void ls_bytes_copy(uint8_t *restrict out, const uint8_t *restrict in, int64_t size)
{
    if (size >= 16) {
        if (size > 128) {
            memcpy(out, in, (size_t)size);
            return;
        }
        if (size > 64) {
            memcpy(out + 32, in + 32, 32);
            memcpy(out + size - 64, in + size - 64, 32);
        }
        if (size > 32) {
            memcpy(out + 16, in + 16, 16);
            memcpy(out + size - 32, in + size - 32, 16);
        }
        memcpy(out, in, 16);
        memcpy(out + size - 16, in + size - 16, 16);
    } else if (size >= 8) {
        memcpy(out, in, 8);
        memcpy(out + size - 8, in + size - 8, 8);
    } else if (size >= 4) {
        memcpy(out, in, 4);
        memcpy(out + size - 4, in + size - 4, 4);
    } else if (size > 0) {
        out[0] = in[0];
        out[size / 2] = in[size / 2];
        out[size - 1] = in[size - 1];
    }
}

#endif
