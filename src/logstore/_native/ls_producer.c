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

/* Take some messages of magic 0 or 1, their checksums together, if all of them are plain; returns how many.  After 0
   the next one is looked at by itself. */
static int32_t ls_producer_take_messages(const uint8_t *buf, int64_t size, int64_t max_bytes, int64_t timestamp_min,
                                         ls_columns *columns, ls_walk *walk)
{
    if (size - walk->pos < LS_FRAME_MIN_BYTES || columns->capacity < LS_MESSAGE_BLOCK) {
        return 0;
    }
    int magic = buf[walk->pos + LS_FRAME_MAGIC_POS];
    ls_walk at = {.pos = walk->pos, .last_offset = LS_OFFSET_UNKNOWN};
    columns->count = 0;
    int32_t count = ls_message_decode_block(buf, size, LS_CHECK_CRC, INT64_MIN, INT64_MAX, columns, NULL, &at);
    int64_t end = walk->pos;
    for (int64_t i = 0; i < count; i++) {
        int64_t pos = end;
        end += LS_FRAME_PREFIX_BYTES + (int64_t)ls_bytes_load_u32(buf + pos + LS_FRAME_LENGTH_POS);
        if (end - pos > max_bytes || (magic == 1 && columns->timestamp[i] < timestamp_min)) {
            return 0;
        }
    }
    if (count > 0) {
        walk->pos = end;
        walk->count += count;
    }
    return count;
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
        int32_t messages = ls_producer_take_messages(buf, size, max_bytes, timestamp_min, columns, walk);
        if (messages > 0) {
            *records += messages;
            continue;
        }
        ls_batch batch;
        /* The header alone first: a batch left to the caller is not checksummed here. */
        for (int checked = 0; checked < 2; checked++) {
            ls_walk at = {.pos = walk->pos, .last_offset = LS_OFFSET_UNKNOWN};
            /* If the next batch is damaged, the walk says so, but still returns this one. */
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
        ls_frame frame;
        ls_error error;
        if (ls_frame_next(buf, size, pos, &frame, &error) != LS_OK) {
            return LS_E_ARGUMENT;
        }
        /* What is needed of a batch that was checked. */
        const ls_batch batch = {.pos = pos, .size = frame.size, .magic = frame.magic};
        int32_t count = frame.magic == 2 ? ls_bytes_load_i32(buf + pos + LS_BATCH_RECORD_COUNT_POS) : 1;
        if (count <= 0) {
            return LS_E_ARGUMENT;
        }
        status = ls_assign_offset(buf, &batch, offset, leader_epoch);
        if (status == LS_OK && timestamp >= 0) {
            status = ls_restamp(buf, &batch, timestamp);
        }
        offset += count;
        pos += frame.size;
    }
    return status;
}

/* The next batch of a producer in buf[0, size), from a position on, which is then after it; NULL: no more. */
static const uint8_t *ls_producer_next(const uint8_t *buf, int64_t size, int64_t *pos)
{
    while (size - *pos >= LS_FRAME_HEADER_BYTES) {
        const uint8_t *batch = buf + *pos;
        int is_numbered = batch[LS_BATCH_MAGIC_POS] == 2 && size - *pos >= LS_BATCH_HEADER_BYTES
                       && ls_bytes_load_i64(batch + LS_BATCH_PRODUCER_ID_POS) >= 0;
        *pos += LS_FRAME_PREFIX_BYTES + (int64_t)ls_bytes_load_u32(batch + LS_FRAME_LENGTH_POS);
        if (is_numbered) {
            return batch;
        }
    }
    return NULL;
}

static ls_producer *ls_producer_of(ls_producer *table, int32_t producers, const uint8_t *batch)
{
    int64_t id = ls_bytes_load_i64(batch + LS_BATCH_PRODUCER_ID_POS);
    for (int32_t i = 0; i < producers; i++) {
        if (table[i].id == id) {
            return &table[i];
        }
    }
    return NULL;
}

/* The sequence `records` after another one: 0 follows the largest. */
static int32_t ls_producer_sequence(int32_t sequence, int32_t records)
{
    return (int32_t)(((uint32_t)sequence + (uint32_t)records) & INT32_MAX);
}

int32_t ls_has_producer(const uint8_t *buf, int64_t size)
{
    int64_t pos = 0;
    return ls_producer_next(buf, size, &pos) != NULL;
}

int32_t ls_check_sequences(ls_producer *table, int32_t producers, const uint8_t *buf, int64_t size, int64_t now_ms,
                           int64_t expiry_ms)
{
    const uint8_t *batch;
    for (int64_t pos = 0; (batch = ls_producer_next(buf, size, &pos)) != NULL;) {
        ls_producer *producer = ls_producer_of(table, producers, batch);
        if (producer == NULL || now_ms - producer->timestamp >= expiry_ms || producer->count == INT32_MAX
            || ls_bytes_load_i16(batch + LS_BATCH_PRODUCER_EPOCH_POS) != producer->epoch) {
            return 0;
        }
        producer->checked_sequence = producer->last_sequence;
    }
    for (int64_t pos = 0; (batch = ls_producer_next(buf, size, &pos)) != NULL;) {
        ls_producer *producer = ls_producer_of(table, producers, batch);
        int32_t first = ls_bytes_load_i32(batch + LS_BATCH_BASE_SEQUENCE_POS);
        if (first != ls_producer_sequence(producer->checked_sequence, 1)) {
            return 0;
        }
        int32_t records = ls_bytes_load_i32(batch + LS_BATCH_RECORD_COUNT_POS);
        producer->checked_sequence = ls_producer_sequence(first, records - 1);
    }
    return 1;
}

void ls_add_sequences(ls_producer *table, int32_t producers, const uint8_t *buf, int64_t size)
{
    const uint8_t *batch;
    for (int64_t pos = 0; (batch = ls_producer_next(buf, size, &pos)) != NULL;) {
        ls_producer *producer = ls_producer_of(table, producers, batch);
        if (producer == NULL) {
            continue;
        }
        int32_t first = ls_bytes_load_i32(batch + LS_BATCH_BASE_SEQUENCE_POS);
        int32_t records = ls_bytes_load_i32(batch + LS_BATCH_RECORD_COUNT_POS);
        int64_t base = ls_bytes_load_i64(batch);
        producer->batches[producer->count % LS_PRODUCER_BATCHES] =
            (ls_sent_batch){.last_offset = base + records - 1, .first_sequence = first, .size = records};
        producer->count += 1;
        producer->last_sequence = ls_producer_sequence(first, records - 1);
        producer->timestamp = ls_bytes_load_i64(batch + LS_BATCH_MAX_TIMESTAMP_POS);
    }
}
