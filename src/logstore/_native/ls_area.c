/*
 * ls_area.c - writing magic 2: the record area, the header in front of it, other offsets in place.
 *
 * Trusts the slices that it is given; never writes beyond the capacity.  Calls may run at once as long as
 * they write to different memory.
 */
#include "ls_internal.h"
#include "ls_varint.h"

static inline int64_t ls_area_slice_bytes(int32_t len)
{
    return ls_varint_bytes(len < 0 ? -1 : len) + (len < 0 ? 0 : (int64_t)len);
}

static inline uint8_t *ls_area_write_slice(uint8_t *p, const uint8_t *data, int32_t len)
{
    p = ls_varint_write(p, len);
    if (len > 0) {
        ls_bytes_copy(p, data, len);
        p += len;
    }
    return p;
}

/* Bytes of the next `count` headers, moving `cursor` over them. */
static int64_t ls_area_measure_headers(const ls_records *records, ls_cursor *cursor, int32_t count)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *data;
        bytes += ls_area_slice_bytes(
            ls_slices_next(&records->header_key, cursor->header, &cursor->header_key_at, &data));
        bytes += ls_area_slice_bytes(
            ls_slices_next(&records->header_value, cursor->header, &cursor->header_value_at, &data));
        cursor->header += 1;
    }
    return bytes;
}

static uint8_t *ls_area_write_headers(uint8_t *p, const ls_records *records, ls_cursor *cursor,
                                      int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *data;
        int32_t len = ls_slices_next(&records->header_key, cursor->header, &cursor->header_key_at, &data);
        p = ls_area_write_slice(p, data, len);
        len = ls_slices_next(&records->header_value, cursor->header, &cursor->header_value_at, &data);
        p = ls_area_write_slice(p, data, len);
        cursor->header += 1;
    }
    return p;
}

/* Write the records of [done->index, end) that fit, none of which has headers: the short form of the loop in
   ls_encode_area.  Moves *done over them and returns the bytes. */
static int64_t ls_area_write_plain(const ls_records *records, ls_cursor *done, int64_t end, uint8_t *out,
                                   int64_t capacity, int64_t base_timestamp, int64_t *max_timestamp)
{
    const ls_records in = *records;
    const int64_t first = done->index;
    int64_t key_at = done->key_at;
    int64_t value_at = done->value_at;
    int64_t most = *max_timestamp;
    int64_t at = 0;
    int64_t index = first;
    while (index < end) {
        const uint8_t *key;
        const uint8_t *value;
        int64_t key_next = key_at;
        int64_t value_next = value_at;
        int32_t key_len = ls_slices_next(&in.key, index, &key_next, &key);
        int32_t value_len = ls_slices_next(&in.value, index, &value_next, &value);
        int64_t timestamp = in.timestamp != NULL ? in.timestamp[index] : in.timestamp_all;
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)base_timestamp);
        int64_t body = LS_RECORD_ATTRIBUTES_BYTES + ls_varint_bytes(delta) + ls_varint_bytes(index - first)
                     + ls_area_slice_bytes(key_len) + ls_area_slice_bytes(value_len) + ls_varint_bytes(0);
        if (body > INT32_MAX || ls_varint_bytes(body) + body > capacity - at) {
            break;
        }
        uint8_t *p = ls_varint_write(out + at, body);
        *p++ = 0; /* attributes: none are defined */
        p = ls_varint_write(p, delta);
        p = ls_varint_write(p, index - first);
        p = ls_area_write_slice(p, key, key_len);
        p = ls_area_write_slice(p, value, value_len);
        *p++ = 0; /* no headers */
        most = timestamp > most ? timestamp : most;
        at = p - out;
        key_at = key_next;
        value_at = value_next;
        index += 1;
    }
    done->index = index;
    done->key_at = key_at;
    done->value_at = value_at;
    *max_timestamp = most;
    return at;
}

int32_t ls_encode_area(const ls_records *records, ls_cursor *cursor, int64_t count_max, uint8_t *out,
                       int64_t capacity, ls_written *written)
{
    memset(written, 0, sizeof *written);
    written->base_timestamp = -1;
    written->max_timestamp = -1;
    if (capacity < 0 || cursor->index < 0) {
        return LS_E_ARGUMENT;
    }
    const ls_records in = *records;
    const int64_t first = cursor->index;
    ls_cursor done = *cursor; /* moves on with each whole record */
    int64_t left = in.count - first;
    left = left < count_max ? left : count_max;
    left = left < INT32_MAX ? left : INT32_MAX; /* offset deltas are 32 bits */
    if (left <= 0) {
        return LS_OK;
    }
    const int64_t base_timestamp = in.timestamp != NULL ? in.timestamp[first] : in.timestamp_all;
    int64_t max_timestamp = base_timestamp;
    int64_t at = 0;
    int32_t count = 0;
    if (in.header_count == NULL) {
        at = ls_area_write_plain(&in, &done, first + left, out, capacity, base_timestamp, &max_timestamp);
        count = (int32_t)(done.index - first);
        left = 0;
    }
    while (count < left) {
        ls_cursor next = done;
        const uint8_t *key;
        const uint8_t *value;
        int32_t key_len = ls_slices_next(&in.key, next.index, &next.key_at, &key);
        int32_t value_len = ls_slices_next(&in.value, next.index, &next.value_at, &value);
        int32_t header_count = in.header_count != NULL ? in.header_count[next.index] : 0;
        int64_t timestamp = in.timestamp != NULL ? in.timestamp[next.index] : in.timestamp_all;
        /* Wraps if a delta has more than 64 bits; the reader adds with the same wrap. */
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)base_timestamp);
        int64_t header_bytes = 0;
        if (header_count > 0) {
            header_bytes = ls_area_measure_headers(&in, &next, header_count);
        }
        int64_t body = LS_RECORD_ATTRIBUTES_BYTES + ls_varint_bytes(delta) + ls_varint_bytes(count)
                     + ls_area_slice_bytes(key_len) + ls_area_slice_bytes(value_len)
                     + ls_varint_bytes(header_count) + header_bytes;
        if (header_count < 0 || body > INT32_MAX || ls_varint_bytes(body) + body > capacity - at) {
            break;
        }
        uint8_t *p = ls_varint_write(out + at, body);
        *p++ = 0; /* attributes: none are defined */
        p = ls_varint_write(p, delta);
        p = ls_varint_write(p, count);
        p = ls_area_write_slice(p, key, key_len);
        p = ls_area_write_slice(p, value, value_len);
        p = ls_varint_write(p, header_count);
        if (header_count > 0) {
            p = ls_area_write_headers(p, &in, &done, header_count);
        }
        max_timestamp = timestamp > max_timestamp ? timestamp : max_timestamp;
        at = p - out;
        count += 1;
        next.index += 1;
        done = next;
    }
    if (count == 0) {
        return LS_E_NO_SPACE;
    }
    written->bytes = at;
    written->count = count;
    written->base_timestamp = base_timestamp;
    written->max_timestamp = max_timestamp;
    *cursor = done;
    return LS_OK;
}

int32_t ls_seal_batch(uint8_t *out, int64_t capacity, ls_batch *batch)
{
    int64_t last_delta;
    if (batch->payload_size < 0 || batch->payload_size > INT32_MAX - LS_BATCH_HEADER_BYTES
        || batch->magic != 2) {
        return LS_E_ARGUMENT;
    }
    int64_t size = LS_BATCH_HEADER_BYTES + (int64_t)batch->payload_size;
    if (size > capacity) {
        return LS_E_NO_SPACE;
    }
    if (batch->base_offset < 0
        || __builtin_sub_overflow(batch->last_offset, batch->base_offset, &last_delta) || last_delta < 0
        || last_delta > INT32_MAX) {
        return LS_E_OFFSET;
    }
    if (batch->record_count < 0 || batch->record_count > last_delta + 1) {
        return LS_E_COUNT;
    }
    if ((batch->attributes & LS_ATTRIBUTE_CODEC_MASK) > LS_CODEC_MAX_BATCH) {
        return LS_E_CODEC;
    }
    ls_bytes_store_i64(out + LS_BATCH_BASE_OFFSET_POS, batch->base_offset);
    ls_bytes_store_i32(out + LS_BATCH_LENGTH_POS, (int32_t)(size - LS_FRAME_PREFIX_BYTES));
    ls_bytes_store_i32(out + LS_BATCH_LEADER_EPOCH_POS, batch->leader_epoch);
    out[LS_BATCH_MAGIC_POS] = 2;
    ls_bytes_store_i16(out + LS_BATCH_ATTRIBUTES_POS, (int16_t)batch->attributes);
    ls_bytes_store_i32(out + LS_BATCH_LAST_DELTA_POS, (int32_t)last_delta);
    ls_bytes_store_i64(out + LS_BATCH_BASE_TIMESTAMP_POS, batch->base_timestamp);
    ls_bytes_store_i64(out + LS_BATCH_MAX_TIMESTAMP_POS, batch->max_timestamp);
    ls_bytes_store_i64(out + LS_BATCH_PRODUCER_ID_POS, batch->producer_id);
    ls_bytes_store_i16(out + LS_BATCH_PRODUCER_EPOCH_POS, (int16_t)batch->producer_epoch);
    ls_bytes_store_i32(out + LS_BATCH_BASE_SEQUENCE_POS, batch->base_sequence);
    ls_bytes_store_i32(out + LS_BATCH_RECORD_COUNT_POS, batch->record_count);
    batch->crc = ls_crc32c(0, out + LS_BATCH_ATTRIBUTES_POS, size - LS_BATCH_ATTRIBUTES_POS);
    ls_bytes_store_u32(out + LS_BATCH_CRC_POS, batch->crc);
    batch->size = size;
    return LS_OK;
}

int32_t ls_assign_offset(uint8_t *buf, const ls_batch *batch, int64_t offset, int32_t leader_epoch)
{
    if (batch->pos < 0 || offset < 0 || batch->magic < 0 || batch->magic > LS_MAGIC_MAX) {
        return LS_E_ARGUMENT;
    }
    uint8_t *p = buf + batch->pos;
    ls_bytes_store_i64(p + LS_FRAME_OFFSET_POS, offset);
    if (batch->magic == 2) {
        ls_bytes_store_i32(p + LS_BATCH_LEADER_EPOCH_POS, leader_epoch);
    }
    return LS_OK;
}

int32_t ls_restamp(uint8_t *buf, const ls_batch *batch, int64_t timestamp)
{
    static const int32_t bytes_min[LS_MAGIC_MAX + 1] = {
        LS_MESSAGE_MIN_BYTES_V0, LS_MESSAGE_MIN_BYTES_V1, LS_BATCH_HEADER_BYTES};
    if (batch->pos < 0 || batch->magic < 0 || batch->magic > LS_MAGIC_MAX
        || batch->size < bytes_min[batch->magic]) {
        return LS_E_ARGUMENT;
    }
    uint8_t *p = buf + batch->pos;
    if (batch->magic == 2) {
        p[LS_BATCH_ATTRIBUTES_POS + 1] |= LS_ATTRIBUTE_APPEND_TIME;
        ls_bytes_store_i64(p + LS_BATCH_MAX_TIMESTAMP_POS, timestamp);
        uint32_t crc = ls_crc32c(0, p + LS_BATCH_ATTRIBUTES_POS, batch->size - LS_BATCH_ATTRIBUTES_POS);
        ls_bytes_store_u32(p + LS_BATCH_CRC_POS, crc);
    } else if (batch->magic == 1) {
        p[LS_MESSAGE_ATTRIBUTES_POS] |= LS_ATTRIBUTE_APPEND_TIME;
        ls_bytes_store_i64(p + LS_MESSAGE_TIMESTAMP_POS, timestamp);
        uint32_t crc = ls_crc32(0, p + LS_MESSAGE_MAGIC_POS, batch->size - LS_MESSAGE_MAGIC_POS);
        ls_bytes_store_u32(p + LS_MESSAGE_CRC_POS, crc);
    }
    return LS_OK;
}
