/*
 * ls_varint.c - zigzag varints as in protocol buffers.
 *
 * Reads only inside the bounds given.  Bits beyond the type in the last byte are dropped and forms that are
 * longer than needed are accepted, as Kafka does; a continuation bit in the last byte is an error.
 */
#include "ls_varint.h"

/* Returns the bytes read, LS_E_NO_SPACE or LS_E_VARINT. */
static int32_t ls_varint_get(const uint8_t *data, int64_t size, int32_t bytes_max, uint64_t *value)
{
    uint64_t v = 0;
    for (int32_t i = 0; i < bytes_max; i++) {
        if (i >= size) {
            return LS_E_NO_SPACE;
        }
        v |= (uint64_t)(data[i] & 0x7f) << (7 * i);
        if (data[i] < 0x80) {
            *value = v;
            return i + 1;
        }
    }
    return LS_E_VARINT;
}

int32_t ls_varint_put(uint8_t *out, int64_t size, int64_t value)
{
    int32_t bytes = ls_varint_bytes(value);
    if (bytes > size) {
        return LS_E_NO_SPACE;
    }
    ls_varint_write(out, value);
    return bytes;
}

int32_t ls_varint_get32(const uint8_t *data, int64_t size, int32_t *value)
{
    uint64_t v = 0;
    int32_t result = ls_varint_get(data, size, LS_VARINT32_BYTES_MAX, &v);
    if (result > 0) {
        uint32_t low = (uint32_t)v;
        *value = (int32_t)((low >> 1) ^ (0 - (low & 1)));
    }
    return result;
}

int32_t ls_varint_get64(const uint8_t *data, int64_t size, int64_t *value)
{
    uint64_t v = 0;
    int32_t result = ls_varint_get(data, size, LS_VARINT64_BYTES_MAX, &v);
    if (result > 0) {
        *value = ls_varint_unzigzag(v);
    }
    return result;
}

const uint8_t *ls_varint_read32_long(const uint8_t *p, const uint8_t *end, int32_t *value)
{
    int32_t result = ls_varint_get32(p, end - p, value);
    return result > 0 ? p + result : NULL;
}

const uint8_t *ls_varint_read64_long(const uint8_t *p, const uint8_t *end, int64_t *value)
{
    int32_t result = ls_varint_get64(p, end - p, value);
    return result > 0 ? p + result : NULL;
}

int32_t ls_varint_why(const uint8_t *p, const uint8_t *end, int32_t bytes_max)
{
    return end - p < bytes_max ? LS_E_RECORD : LS_E_VARINT;
}
