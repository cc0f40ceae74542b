/*
 * ls_append.c - the short way in: the records of a call encoded and planned in one step.
 *
 * Trusts the lengths and addresses that it is given; writes within the capacities.
 */
#include "ls_internal.h"

/* The next batch of magic 2, of at most `room` bytes: LS_OK and its bytes, or a negative status. */
static int32_t ls_append_encode_batch(const ls_records *records, ls_cursor *cursor, int32_t attributes, int64_t offset,
                                      int32_t leader_epoch, uint8_t *out, int64_t room, ls_written *written)
{
    if (room < LS_BATCH_HEADER_BYTES) {
        return LS_E_NO_SPACE;
    }
    int32_t status = ls_encode_area(records, cursor, INT64_MAX, out + LS_BATCH_HEADER_BYTES,
                                    room - LS_BATCH_HEADER_BYTES, written);
    if (status < 0) {
        return status;
    }
    ls_batch batch = {
        .magic = 2,
        .base_offset = offset,
        .last_offset = ls_wrapping_add(offset, written->count - 1),
        .base_timestamp = written->base_timestamp,
        .max_timestamp = written->max_timestamp,
        .producer_id = -1,
        .producer_epoch = -1,
        .base_sequence = -1,
        .leader_epoch = leader_epoch,
        .record_count = (int32_t)written->count,
        .attributes = attributes,
        .payload_pos = LS_BATCH_HEADER_BYTES,
        .payload_size = (int32_t)written->bytes,
    };
    status = ls_seal_batch(out, room, &batch);
    written->bytes = batch.size;
    return status;
}

/* All records as batches one after the other, each of at most `batch_max` bytes: their bytes, or a negative status. */
static int64_t ls_append_encode(const ls_records *records, int32_t magic, int32_t attributes, int64_t offset,
                                int32_t leader_epoch, int64_t batch_max, uint8_t *out, int64_t capacity)
{
    ls_cursor cursor = {0};
    ls_written written;
    if (magic < 2) {
        int32_t status = ls_encode_messages(records, &cursor, INT64_MAX, magic, attributes, offset, out, capacity,
                                            &written);
        if (status < 0) {
            return status;
        }
        return cursor.index < records->count ? LS_E_NO_SPACE : written.bytes;
    }
    int64_t at = 0;
    while (cursor.index < records->count) {
        int64_t room = batch_max < capacity - at ? batch_max : capacity - at;
        int64_t base = ls_wrapping_add(offset, cursor.index);
        int32_t status =
            ls_append_encode_batch(records, &cursor, attributes, base, leader_epoch, out + at, room, &written);
        if (status < 0) {
            return status;
        }
        at += written.bytes;
    }
    return at;
}

/* Whether the records may fit: each of them as a message into `max_bytes`, all of them into `capacity`. */
static int ls_append_may_fit(const ls_records *records, int32_t magic, int64_t max_bytes, int64_t capacity)
{
    static const int64_t fixed_bytes[LS_MAGIC_MAX + 1] = {LS_MESSAGE_MIN_BYTES_V0, LS_MESSAGE_MIN_BYTES_V1,
                                                          LS_RECORD_MIN_BYTES};
    const int64_t fixed = fixed_bytes[magic];
    const int32_t *key_len = records->key.len;
    const int32_t *value_len = records->value.len;
    int64_t sum = 0;
    int64_t most = 0;
    if (records->count > capacity / fixed) {
        return 0;
    }
    for (int64_t i = 0; i < records->count; i++) {
        int64_t bytes = key_len != NULL && key_len[i] > 0 ? key_len[i] : 0;
        bytes += value_len != NULL && value_len[i] > 0 ? value_len[i] : 0;
        sum += bytes;
        most = bytes > most ? bytes : most;
    }
    return sum <= capacity - records->count * fixed && most <= max_bytes - fixed;
}

int64_t ls_encode_records(const ls_records *records, int32_t magic, int32_t attributes, int64_t offset,
                          int32_t leader_epoch, int64_t max_bytes, int64_t batch_max, uint8_t *out, int64_t capacity)
{
    if (magic < 0 || magic > LS_MAGIC_MAX || records->count <= 0 || capacity < 0) {
        return LS_E_ARGUMENT;
    }
    int64_t last_offset;
    if (__builtin_add_overflow(offset, records->count - 1, &last_offset) || records->header_count != NULL
        || !ls_append_may_fit(records, magic, max_bytes, capacity)) {
        return 0;
    }
    int64_t most = batch_max < max_bytes ? batch_max : max_bytes;
    int64_t bytes = ls_append_encode(records, magic, attributes, offset, leader_epoch, most, out, capacity);
    return bytes == LS_E_NO_SPACE ? 0 : bytes;
}

int64_t ls_append_records(const ls_records *records, int32_t magic, int32_t attributes, int32_t leader_epoch,
                          int64_t max_bytes, int64_t batch_target, const ls_roll_limits *limits,
                          ls_segment_state *state, uint8_t *out, int64_t capacity, uint8_t *index_out,
                          uint8_t *time_out, int64_t entries_max, ls_plan *plan, ls_error *error)
{
    if (state->last_offset == INT64_MAX) {
        return LS_E_ARGUMENT;
    }
    int64_t bytes = ls_encode_records(records, magic, attributes, state->last_offset + 1, leader_epoch, max_bytes,
                                      batch_target, out, capacity);
    if (bytes <= 0) {
        return bytes;
    }
    int32_t status = ls_plan_append(out, bytes, limits, limits->index_interval_bytes, state, index_out, entries_max,
                                    time_out, entries_max, plan, error);
    if (status < 0) {
        return status;
    }
    return plan->bytes == bytes ? bytes : 0;
}
