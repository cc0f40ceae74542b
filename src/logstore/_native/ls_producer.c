/*
 * ls_producer.c - batches as a producer sends them: checked, and given their offsets, many in one call.  Only plain
 * ones, for which that is all that a broker does; the caller looks at the others one by one.
 */
#include "ls_internal.h"

/* Whether its header allows that a batch is plain. */
static int ls_producer_is_plain(const ls_batch *batch, int64_t max_bytes, int64_t timestamp_min)
{
    if (batch->codec != 0 || batch->size > max_bytes) {
        return 0;
    }
    if (batch->magic < 2) {
        return batch->magic == 0 || batch->max_timestamp >= timestamp_min;
    }
    return (batch->attributes & (LS_ATTRIBUTE_CONTROL | LS_ATTRIBUTE_TRANSACTIONAL)) == 0 && batch->record_count > 0
           && batch->base_offset >= 0 && batch->last_offset < INT64_MAX
           && batch->last_offset - batch->base_offset + 1 == batch->record_count
           && (batch->producer_id < 0 || batch->base_sequence >= 0);
}

/* Whether the records of a batch of magic 2 are numbered 0, 1, 2, ..., have no headers, and the times that the batch
   says. */
static int ls_producer_has_plain_records(const uint8_t *buf, const ls_batch *batch, int64_t timestamp_min,
                                         ls_columns *columns)
{
    ls_error error;
    columns->count = 0;
    int32_t status = ls_decode_payload(batch, buf + batch->pos + batch->payload_pos, batch->payload_size,
                                       LS_CHECK_CRC | LS_CHECK_ORDER, 0, INT64_MAX, columns, NULL, &error);
    if (status < 0 || columns->count != batch->record_count) {
        return 0;
    }
    int64_t oldest = INT64_MAX, newest = INT64_MIN, wrong = 0;
    for (int64_t i = 0; i < columns->count; i++) {
        int64_t timestamp = columns->timestamp[i];
        oldest = timestamp < oldest ? timestamp : oldest;
        newest = timestamp > newest ? timestamp : newest;
        wrong |= columns->offset[i] ^ (batch->base_offset + i);
        wrong |= columns->header_count[i];
    }
    return wrong == 0 && oldest >= timestamp_min && newest == batch->max_timestamp;
}

int32_t ls_check_producer(const uint8_t *buf, int64_t size, int64_t max_bytes, int64_t timestamp_min,
                          ls_columns *columns, ls_walk *walk, int64_t *records)
{
    if (size < 0 || walk->pos < 0 || walk->pos > size || columns->header_count == NULL) {
        return LS_E_ARGUMENT;
    }
    walk->count = 0;
    *records = 0;
    while (walk->pos < size) {
        ls_batch batch;
        /* The header alone first: the checksum of what is left to the caller costs nothing. */
        for (int checked = 0; checked < 2; checked++) {
            ls_walk at = {.pos = walk->pos, .last_offset = LS_OFFSET_UNKNOWN};
            /* If the next batch is damaged, the walk says so, and has this one all the same. */
            (void)ls_scan_batches(buf, size, checked ? LS_CHECK_CRC : 0, &batch, 1, &at);
            if (at.count != 1 || !ls_producer_is_plain(&batch, max_bytes, timestamp_min)) {
                return LS_OK;
            }
        }
        if (batch.magic == 2 && !ls_producer_has_plain_records(buf, &batch, timestamp_min, columns)) {
            return LS_OK;
        }
        *records += batch.magic == 2 ? batch.record_count : 1;
        walk->count += 1;
        walk->pos += batch.size;
    }
    return LS_OK;
}

int32_t ls_place_batches(uint8_t *buf, int64_t size, int64_t offset, int32_t leader_epoch, int64_t timestamp)
{
    int32_t status = size < 0 || offset < 0 ? LS_E_ARGUMENT : LS_OK;
    for (int64_t pos = 0; status == LS_OK && pos < size;) {
        ls_batch batch;
        ls_walk at = {.pos = pos, .last_offset = LS_OFFSET_UNKNOWN};
        (void)ls_scan_batches(buf, size, 0, &batch, 1, &at);
        if (at.count != 1) {
            return LS_E_ARGUMENT;
        }
        status = ls_assign_offset(buf, &batch, offset, leader_epoch);
        if (status == LS_OK && timestamp >= 0) {
            status = ls_restamp(buf, &batch, timestamp);
        }
        offset += batch.magic == 2 ? batch.record_count : 1;
        pos += batch.size;
    }
    return status;
}
