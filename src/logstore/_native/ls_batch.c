/*
 * ls_batch.c - record batches of magic 2: parsing, decoding, encoding of the record area, sealing.
 *
 * Trusts no byte that it reads; trusts the slices that it writes.  Compression is the caller's: what is
 * decoded or encoded here is the plain record area.
 */
#include "ls_internal.h"
#include "ls_varint.h"

/* ------------------------------------------------------------------ parsing */

int32_t ls_batch_parse(const uint8_t *buf, int64_t pos, const ls_frame *frame, uint32_t checks,
                       ls_batch *batch, ls_error *error)
{
    const uint8_t *p = buf + pos;
    int64_t base_offset = ls_bytes_load_i64(p + LS_BATCH_BASE_OFFSET_POS);
    uint32_t stored = ls_bytes_load_u32(p + LS_BATCH_CRC_POS);
    if ((checks & LS_CHECK_CRC) != 0) {
        uint32_t computed = ls_crc_select32c()(0, p + LS_BATCH_ATTRIBUTES_POS,
                                               frame->size - LS_BATCH_ATTRIBUTES_POS);
        if (stored != computed) {
            return ls_error_set(error, LS_E_CRC, pos, base_offset, stored, computed);
        }
    }
    int32_t attributes = (uint16_t)ls_bytes_load_i16(p + LS_BATCH_ATTRIBUTES_POS);
    int32_t codec = attributes & LS_ATTRIBUTE_CODEC_MASK;
    int32_t last_delta = ls_bytes_load_i32(p + LS_BATCH_LAST_DELTA_POS);
    int32_t record_count = ls_bytes_load_i32(p + LS_BATCH_RECORD_COUNT_POS);
    if (codec > LS_CODEC_MAX_BATCH) {
        return ls_error_set(error, LS_E_CODEC, pos, base_offset, LS_CODEC_MAX_BATCH, codec);
    }
    if (record_count < 0 || record_count > (int64_t)last_delta + 1) {
        return ls_error_set(error, LS_E_COUNT, pos, base_offset, (int64_t)last_delta + 1, record_count);
    }
    batch->pos = pos;
    batch->size = frame->size;
    batch->base_offset = base_offset;
    batch->last_offset = ls_wrapping_add(base_offset, last_delta);
    batch->base_timestamp = ls_bytes_load_i64(p + LS_BATCH_BASE_TIMESTAMP_POS);
    batch->max_timestamp = ls_bytes_load_i64(p + LS_BATCH_MAX_TIMESTAMP_POS);
    batch->producer_id = ls_bytes_load_i64(p + LS_BATCH_PRODUCER_ID_POS);
    batch->producer_epoch = ls_bytes_load_i16(p + LS_BATCH_PRODUCER_EPOCH_POS);
    batch->base_sequence = ls_bytes_load_i32(p + LS_BATCH_BASE_SEQUENCE_POS);
    batch->leader_epoch = ls_bytes_load_i32(p + LS_BATCH_LEADER_EPOCH_POS);
    batch->record_count = record_count;
    batch->crc = stored;
    batch->attributes = attributes;
    batch->payload_pos = LS_BATCH_HEADER_BYTES;
    batch->payload_size = (int32_t)(frame->size - LS_BATCH_HEADER_BYTES);
    batch->magic = 2;
    batch->codec = codec;
    batch->timestamp_type = (attributes & LS_ATTRIBUTE_APPEND_TIME) != 0;
    batch->pad = 0;
    return LS_OK;
}

/* ------------------------------------------------------------------ decoding */

/* One record, with positions in the buffer. */
typedef struct ls_batch_record {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_len;
    int32_t value_len;
    int32_t header_count;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers;
} ls_batch_record;

/* Facts for the error of a record, kept apart so that the loop stays small. */
static int32_t ls_batch_fail(ls_error *error, int32_t status, const uint8_t *buf, const uint8_t *at,
                             int64_t expected, int64_t found)
{
    return ls_error_set(error, status, at - buf, -1, expected, found);
}

/* Read the length and bytes of a key or value; NULL with *status if they leave [p, end). */
static inline const uint8_t *ls_batch_read_bytes(const uint8_t *p, const uint8_t *end,
                                                 const uint8_t **data, int32_t *len, int32_t *status)
{
    const uint8_t *next = ls_varint_read32(p, end, len);
    if (LS_UNLIKELY(next == NULL)) {
        *status = ls_varint_why(p, end, LS_VARINT32_BYTES_MAX);
        return NULL;
    }
    *data = next;
    if (*len > 0) {
        if (LS_UNLIKELY(*len > end - next)) {
            *status = LS_E_RECORD;
            return NULL;
        }
        return next + *len;
    }
    if (LS_UNLIKELY(*len < -1)) {
        *status = LS_E_RECORD;
        return NULL;
    }
    return next;
}

/* Step over `count` headers, in and out as ls_batch_read_bytes. */
static const uint8_t *ls_batch_skip_headers(const uint8_t *p, const uint8_t *end, int32_t count,
                                            int32_t *status)
{
    if (count < 0 || count > (end - p) / LS_HEADER_MIN_BYTES) {
        *status = LS_E_COUNT;
        return NULL;
    }
    if (count > LS_HEADERS_MAX) {
        *status = LS_E_TOO_LARGE;
        return NULL;
    }
    for (int32_t i = 0; i < count && p != NULL; i++) {
        const uint8_t *data;
        int32_t len;
        p = ls_batch_read_bytes(p, end, &data, &len, status);
        if (p != NULL && len < 0) {
            *status = LS_E_HEADER_KEY;
            return NULL;
        }
        if (p != NULL) {
            p = ls_batch_read_bytes(p, end, &data, &len, status);
        }
    }
    return p;
}

/* Read the record that begins at p, in [p, end).  Returns what follows it, or NULL with *status. */
static inline const uint8_t *ls_batch_read_record(const uint8_t *p, const uint8_t *end,
                                                  ls_batch_record *record, int32_t *status)
{
    int32_t len;
    const uint8_t *q = ls_varint_read32(p, end, &len);
    if (LS_UNLIKELY(q == NULL)) {
        *status = ls_varint_why(p, end, LS_VARINT32_BYTES_MAX);
        return NULL;
    }
    if (LS_UNLIKELY(len < LS_RECORD_MIN_BYTES - 1 || len > end - q)) {
        *status = LS_E_LENGTH;
        return NULL;
    }
    const uint8_t *record_end = q + len;
    q += LS_RECORD_ATTRIBUTES_BYTES;
    const uint8_t *at = q;
    q = ls_varint_read64(at, record_end, &record->timestamp_delta);
    if (LS_UNLIKELY(q == NULL)) {
        *status = ls_varint_why(at, record_end, LS_VARINT64_BYTES_MAX);
        return NULL;
    }
    at = q;
    q = ls_varint_read32(at, record_end, &record->offset_delta);
    if (LS_UNLIKELY(q == NULL)) {
        *status = ls_varint_why(at, record_end, LS_VARINT32_BYTES_MAX);
        return NULL;
    }
    q = ls_batch_read_bytes(q, record_end, &record->key, &record->key_len, status);
    if (LS_LIKELY(q != NULL)) {
        q = ls_batch_read_bytes(q, record_end, &record->value, &record->value_len, status);
    }
    if (LS_UNLIKELY(q == NULL)) {
        return NULL;
    }
    at = q;
    q = ls_varint_read32(q, record_end, &record->header_count);
    if (LS_UNLIKELY(q == NULL)) {
        *status = ls_varint_why(at, record_end, LS_VARINT32_BYTES_MAX);
        return NULL;
    }
    record->headers = q;
    if (LS_UNLIKELY(record->header_count != 0)) {
        q = ls_batch_skip_headers(q, record_end, record->header_count, status);
        if (q == NULL) {
            return NULL;
        }
    }
    if (LS_UNLIKELY(q != record_end)) {
        *status = LS_E_RECORD;
        return NULL;
    }
    return q;
}

static inline void ls_batch_put(const ls_columns *columns, int64_t n, int64_t offset, int64_t timestamp,
                                int32_t type, const uint8_t *buf, const ls_batch_record *record)
{
    columns->offset[n] = offset;
    columns->timestamp[n] = timestamp;
    columns->key_pos[n] = (int32_t)(record->key - buf);
    columns->key_len[n] = record->key_len;
    columns->value_pos[n] = (int32_t)(record->value - buf);
    columns->value_len[n] = record->value_len;
    if (columns->header_pos != NULL) {
        columns->header_pos[n] = (int32_t)(record->headers - buf);
        columns->header_count[n] = record->header_count;
    }
    if (columns->timestamp_type != NULL) {
        columns->timestamp_type[n] = (int8_t)type;
    }
}

int32_t ls_batch_decode_area(const ls_batch *batch, const uint8_t *buf, int64_t pos, int64_t size,
                             int64_t start_offset, int64_t stop_offset, ls_columns *columns,
                             ls_error *error)
{
    const ls_columns out = *columns; /* a copy: stores into the columns cannot change it */
    const int append_time = (batch->attributes & LS_ATTRIBUTE_APPEND_TIME) != 0;
    const int64_t base = batch->base_offset;
    const int64_t count = batch->record_count;
    const uint8_t *p = buf + pos;
    const uint8_t *end = p + size;
    int64_t last_delta;
    if (base < 0 || __builtin_sub_overflow(batch->last_offset, base, &last_delta) || last_delta < 0) {
        return ls_error_set(error, LS_E_OFFSET, pos, base, base < 0 ? 0 : base, batch->last_offset);
    }
    int64_t count_max = size / LS_RECORD_MIN_BYTES;
    count_max = last_delta + 1 < count_max ? last_delta + 1 : count_max;
    if (count < 0 || count > count_max) {
        return ls_error_set(error, LS_E_COUNT, pos, base, count_max, count);
    }
    int64_t n = out.count;
    int64_t delta_before = -1;
    for (int64_t i = 0; i < count; i++) {
        ls_batch_record record;
        int32_t status = LS_E_RECORD;
        const uint8_t *next = ls_batch_read_record(p, end, &record, &status);
        if (LS_UNLIKELY(next == NULL)) {
            status = ls_batch_fail(error, status, buf, p, count, i);
            error->offset = base;
            return status;
        }
        if (LS_UNLIKELY(record.offset_delta <= delta_before || record.offset_delta > last_delta)) {
            status = ls_batch_fail(error, LS_E_OFFSET, buf, p, delta_before + 1, record.offset_delta);
            error->offset = base;
            return status;
        }
        delta_before = record.offset_delta;
        int64_t offset = base + record.offset_delta;
        if (offset >= start_offset && offset < stop_offset) {
            if (out.offset != NULL) {
                int64_t timestamp = append_time
                    ? batch->max_timestamp
                    : ls_wrapping_add(batch->base_timestamp, record.timestamp_delta);
                ls_batch_put(&out, n, offset, timestamp, batch->timestamp_type, buf, &record);
            }
            n += 1;
        }
        p = next;
    }
    if (p != end) {
        int32_t status = ls_batch_fail(error, LS_E_RECORD, buf, p, 0, end - p);
        error->offset = base;
        return status;
    }
    columns->count = n;
    return LS_OK;
}

int32_t ls_locate_record(const uint8_t *area, int64_t size, int64_t number, int64_t *pos, int64_t *bytes)
{
    const uint8_t *p = area;
    const uint8_t *end = area + size;
    for (;;) {
        int32_t len;
        const uint8_t *q = ls_varint_read32(p, end, &len);
        if (q == NULL || len < LS_RECORD_MIN_BYTES - 1 || len > end - q) {
            return LS_E_RECORD;
        }
        if (number == 0) {
            *pos = p - area;
            *bytes = q + len - p;
            return LS_OK;
        }
        number -= 1;
        p = q + len;
    }
}

int32_t ls_locate_time(const uint8_t *area, int64_t size, int32_t count, int64_t delta, int64_t *offset_delta)
{
    const uint8_t *p = area;
    const uint8_t *end = area + size;
    for (int32_t i = 0; i < count; i++) {
        int32_t len, offset;
        int64_t timestamp;
        const uint8_t *q = ls_varint_read32(p, end, &len);
        if (q == NULL || len < LS_RECORD_MIN_BYTES - 1 || len > end - q) {
            return LS_E_RECORD;
        }
        p = q + len;
        q = ls_varint_read64(q + 1, p, &timestamp);
        if (q == NULL) {
            return LS_E_RECORD;
        }
        if (timestamp >= delta) {
            if (ls_varint_read32(q, p, &offset) == NULL) {
                return LS_E_RECORD;
            }
            *offset_delta = offset;
            return LS_OK;
        }
    }
    *offset_delta = -1;
    return LS_OK;
}

int32_t ls_decode_headers(const uint8_t *buf, int64_t size, int64_t pos, int32_t count,
                          int32_t *key_pos, int32_t *key_len, int32_t *value_pos, int32_t *value_len,
                          ls_error *error)
{
    memset(error, 0, sizeof *error);
    if (size < 0 || size > INT32_MAX || pos < 0 || pos > size || (buf == NULL && size > 0)) {
        return ls_error_set(error, LS_E_ARGUMENT, pos, -1, size, pos);
    }
    if (count < 0 || count > (size - pos) / LS_HEADER_MIN_BYTES) {
        return ls_error_set(error, LS_E_COUNT, pos, -1, (size - pos) / LS_HEADER_MIN_BYTES, count);
    }
    if (count == 0) {
        return LS_OK;
    }
    const uint8_t *p = buf + pos;
    const uint8_t *end = buf + size;
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *data;
        int32_t status = LS_OK;
        const uint8_t *next = ls_batch_read_bytes(p, end, &data, &key_len[i], &status);
        if (next != NULL && key_len[i] < 0) {
            status = LS_E_HEADER_KEY;
            next = NULL;
        }
        if (next == NULL) {
            return ls_batch_fail(error, status, buf, p, count, i);
        }
        key_pos[i] = (int32_t)(data - buf);
        p = next;
        next = ls_batch_read_bytes(p, end, &data, &value_len[i], &status);
        if (next == NULL) {
            return ls_batch_fail(error, status, buf, p, count, i);
        }
        value_pos[i] = (int32_t)(data - buf);
        p = next;
    }
    return LS_OK;
}
