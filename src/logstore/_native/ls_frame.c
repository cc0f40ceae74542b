/*
 * ls_frame.c - framing: where a batch or message of any magic ends, by its length and magic alone.
 *
 * Trusts nothing in the buffer.
 */
#include "ls_internal.h"

static int ls_frame_all_zero(const uint8_t *p, int64_t n)
{
    uint8_t any = 0;
    for (int64_t i = 0; i < n; i++) {
        any |= p[i];
    }
    return any == 0;
}

int32_t ls_frame_look(const uint8_t *buf, int64_t size, int64_t pos, ls_frame *frame, ls_error *error)
{
    static const int32_t length_min[LS_MAGIC_MAX + 1] = {
        LS_MESSAGE_MIN_LENGTH_V0, LS_MESSAGE_MIN_LENGTH_V1, LS_BATCH_MIN_LENGTH};
    int64_t left = size - pos;
    if (left == 0) {
        return LS_STOP_END;
    }
    const uint8_t *p = buf + pos;
    if (left < LS_FRAME_MIN_BYTES) {
        return ls_frame_all_zero(p, left) ? LS_STOP_ZEROS : LS_STOP_PARTIAL;
    }
    int64_t offset = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
    int32_t length = ls_bytes_load_i32(p + LS_FRAME_LENGTH_POS);
    int32_t magic = (int8_t)p[LS_FRAME_MAGIC_POS];
    if (magic < 0) {
        return ls_error_set(error, LS_E_NO_MAGIC, pos, offset, 0, magic);
    }
    if (magic > LS_MAGIC_MAX) {
        return ls_error_set(error, LS_E_MAGIC, pos, offset, LS_MAGIC_MAX, magic);
    }
    if (length < length_min[magic]) {
        if (ls_frame_all_zero(p, LS_FRAME_HEADER_BYTES)) {
            return LS_STOP_ZEROS;
        }
        return ls_error_set(error, LS_E_LENGTH, pos, offset, length_min[magic], length);
    }
    if (length > left - LS_FRAME_PREFIX_BYTES) {
        return LS_STOP_PARTIAL;
    }
    frame->size = LS_FRAME_PREFIX_BYTES + (int64_t)length;
    frame->magic = magic;
    return LS_OK;
}
