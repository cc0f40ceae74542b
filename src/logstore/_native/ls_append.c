/*
 * ls_append.c - the short way in: one record at a time, encoded and planned in one call.
 *
 * Trusts the lengths and addresses that it is given; writes within the capacities.
 */
#include "ls_internal.h"

/* A batch of magic 2 with one record: its bytes, or a negative status. */
static int32_t ls_append_encode_batch(const ls_records *records, int32_t attributes, int64_t offset,
                                      int32_t leader_epoch, uint8_t *out, int64_t room, ls_written *written)
{
    ls_cursor cursor = {0};
    if (room < LS_BATCH_HEADER_BYTES) {
        return LS_E_NO_SPACE;
    }
    int32_t status = ls_encode_area(records, &cursor, 1, out + LS_BATCH_HEADER_BYTES, room - LS_BATCH_HEADER_BYTES,
                                    written);
    if (status < 0) {
        return status;
    }
    ls_batch batch = {
        .magic = 2,
        .base_offset = offset,
        .last_offset = offset,
        .base_timestamp = written->base_timestamp,
        .max_timestamp = written->max_timestamp,
        .producer_id = -1,
        .producer_epoch = -1,
        .base_sequence = -1,
        .leader_epoch = leader_epoch,
        .record_count = 1,
        .attributes = attributes,
        .payload_pos = LS_BATCH_HEADER_BYTES,
        .payload_size = (int32_t)written->bytes,
    };
    status = ls_seal_batch(out, room, &batch);
    written->bytes = batch.size;
    return status;
}

int32_t ls_append_record(const uint8_t *key, int64_t key_len, const uint8_t *value, int64_t value_len,
                         int64_t timestamp, int32_t magic, int32_t attributes, int32_t leader_epoch, int64_t max_bytes,
                         const ls_roll_limits *limits, ls_segment_state *state, uint8_t *out, int64_t capacity,
                         uint8_t *index_out, uint8_t *time_out, ls_plan *plan, ls_error *error)
{
    if (magic < 0 || magic > LS_MAGIC_MAX || state->last_offset == INT64_MAX) {
        return LS_E_ARGUMENT;
    }
    /* A length that does not fit its field is too large for any limit; so is what overflows the sum. */
    if (key_len > INT32_MAX || value_len > INT32_MAX) {
        return 0;
    }
    int32_t key_length = key_len < 0 ? -1 : (int32_t)key_len;
    int32_t value_length = value_len < 0 ? -1 : (int32_t)value_len;
    ls_records records = {.count = 1, .timestamp_all = timestamp};
    records.key = (ls_slices){.data = key, .pos = NULL, .len = &key_length};
    records.value = (ls_slices){.data = value, .pos = NULL, .len = &value_length};
    ls_cursor cursor = {0};
    ls_written written;
    int64_t room = max_bytes < capacity ? max_bytes : capacity;
    if (room < 0) {
        return LS_E_ARGUMENT;
    }
    int64_t offset = state->last_offset + 1;
    int32_t status =
        magic == 2 ? ls_append_encode_batch(&records, attributes, offset, leader_epoch, out, room, &written)
                   : ls_encode_messages(&records, &cursor, 1, magic, attributes, offset, out, room, &written);
    if (status == LS_E_NO_SPACE) {
        return 0;
    }
    if (status < 0) {
        return status;
    }
    status = ls_plan_append(out, written.bytes, limits, limits->index_interval_bytes, state, index_out, 1,
                            time_out, 1, plan, error);
    if (status < 0) {
        return status;
    }
    return plan->bytes == written.bytes ? (int32_t)written.bytes : 0;
}
