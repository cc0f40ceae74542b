/*
 * ls_compact.c - what compaction leaves of batches: which of their records stay, and the batches made of those.
 *
 * Offsets never change.  A batch that stays whole is copied byte for byte; another is written again with the same
 * offsets, timestamps, producer and epoch.  Compression is the caller's.
 *
 * Trusts nothing in the batches that it reads; writes within the capacities.
 */
#include "ls_internal.h"
#include "ls_varint.h"

/* Bytes that a record may grow by: its timestamp delta takes up to 10 instead of 1, and its length a byte more. */
enum { LS_COMPACT_GROWTH = 11 };

/* What is known of a batch once its records have been looked at. */
typedef struct ls_compact_batch {
    int64_t kept;
    int64_t kept_tombstones;
    int32_t verdict;
    int32_t gets_horizon;
} ls_compact_batch;

static inline int ls_compact_is_control(const ls_batch *batch)
{
    return batch->magic == 2 && (batch->attributes & LS_ATTRIBUTE_CONTROL) != 0;
}

/* Whether the delete horizon of a batch of magic 2 is over. */
static inline int ls_compact_has_horizon(const ls_batch *batch)
{
    return batch->magic == 2 && (batch->attributes & LS_ATTRIBUTE_DELETE_HORIZON) != 0;
}

static inline int ls_compact_is_over(const ls_compaction *how, const ls_batch *batch)
{
    return ls_compact_has_horizon(batch) && batch->base_timestamp <= how->now_ms;
}

/* What becomes of a batch without records: its header may be needed. */
static int32_t ls_compact_emptied(const ls_compaction *how, const ls_batch *batch)
{
    const ls_outcomes *outcomes = how->outcomes;
    int is_needed = batch->magic == 2 && ls_has_offset(outcomes->needed, outcomes->needed_count, batch->last_offset);
    if (!is_needed) {
        return LS_VERDICT_REMOVE;
    }
    return batch->record_count == 0 && batch->codec == 0 ? LS_VERDICT_KEEP : LS_VERDICT_EMPTY;
}

/* What does not depend on keys is done with the first of several classes, and once. */
static inline int ls_compact_is_first_class(const ls_compaction *how)
{
    return how->map->classes <= 1 || how->map->class_number == 0;
}

/* Whether the records of a batch decide nothing: a header alone, a control batch, part of an aborted transaction.
   Then *out is decided. */
static int ls_compact_decided(const ls_compaction *how, const ls_batch *batch, ls_compact_batch *out)
{
    memset(out, 0, sizeof *out);
    const int is_control = ls_compact_is_control(batch);
    if (!is_control && batch->record_count != 0 && !ls_is_aborted(how->outcomes, batch)) {
        return 0;
    }
    if (!ls_compact_is_first_class(how)) {
        out->kept = batch->record_count;
        out->verdict = LS_VERDICT_KEEP;
        return 1;
    }
    if (is_control) {
        int is_spent = ls_has_offset(how->outcomes->spent, how->outcomes->spent_count, batch->last_offset);
        if (batch->record_count == 0 || (is_spent && ls_compact_is_over(how, batch))) {
            out->verdict = ls_compact_emptied(how, batch);
            return 1;
        }
        out->kept = batch->record_count;
        out->gets_horizon = is_spent && !ls_compact_has_horizon(batch);
        out->verdict = out->gets_horizon ? LS_VERDICT_REWRITE : LS_VERDICT_KEEP;
        return 1;
    }
    out->verdict = ls_compact_emptied(how, batch);
    return 1;
}

/* Decide about the records of a data batch, which are in `columns`: states becomes 1 for records that stay, else 0. */
static void ls_compact_decide(const ls_compaction *how, const ls_batch *batch, const ls_columns *columns,
                              const uint8_t *buf, uint8_t *states, ls_compact_batch *out, ls_compacted *done)
{
    const int keeps_tombstones = batch->magic == 2 ? !ls_compact_is_over(how, batch) : how->keeps_tombstones != 0;
    const int64_t n = columns->count;
    memset(out, 0, sizeof *out);
    ls_map_superseded(how->map, columns, buf, states);
    for (int64_t i = 0; i < n; i++) {
        int is_tombstone = columns->value_len[i] < 0;
        int stays = states[i] == LS_RECORD_BEYOND || states[i] == LS_RECORD_OTHER_CLASS
            || (states[i] == LS_RECORD_LAST && (!is_tombstone || keeps_tombstones));
        done->tombstones += !stays && is_tombstone;
        out->kept_tombstones += stays && is_tombstone;
        out->kept += stays;
        states[i] = (uint8_t)stays;
    }
    done->records += n;
    done->removed += n - out->kept;
    out->gets_horizon = batch->magic == 2 && out->kept_tombstones > 0 && !ls_compact_has_horizon(batch)
        && ls_compact_is_first_class(how);
    if (out->kept == 0) {
        out->verdict = ls_compact_emptied(how, batch);
    } else if (out->kept < n || out->gets_horizon) {
        out->verdict = LS_VERDICT_REWRITE;
    } else {
        out->verdict = LS_VERDICT_KEEP;
    }
}

/* ------------------------------------------------------------------ magic 2 */

/* Write the records that stay (states NULL: all) of the record area of `batch` with timestamps that are relative to
   `made`, and complete `made`: its count and timestamps.  Returns the bytes, or a negative status. */
static int64_t ls_compact_area(const ls_compaction *how, const ls_batch *batch, const ls_compact_batch *fate,
                               const uint8_t *area, int64_t size, const uint8_t *states, uint8_t *out,
                               int64_t capacity, ls_batch *made)
{
    const int append_time = (batch->attributes & LS_ATTRIBUTE_APPEND_TIME) != 0;
    const uint8_t *p = area;
    const uint8_t *end = area + size;
    int64_t base = batch->base_timestamp;
    int has_base = ls_compact_has_horizon(batch);
    int64_t most = INT64_MIN;
    int64_t at = 0;
    if (fate->gets_horizon) {
        base = how->horizon_ms;
        has_base = 1;
        made->attributes |= LS_ATTRIBUTE_DELETE_HORIZON;
    }
    for (int64_t i = 0; i < batch->record_count; i++) {
        int32_t len;
        int64_t delta;
        int32_t offset_delta;
        const uint8_t *body = ls_varint_read32(p, end, &len);
        if (body == NULL || len < LS_RECORD_MIN_BYTES - 1 || len > end - body) {
            return LS_E_RECORD;
        }
        p = body + len;
        if (states != NULL && !states[i]) {
            continue;
        }
        const uint8_t *rest = ls_varint_read64(body + LS_RECORD_ATTRIBUTES_BYTES, p, &delta);
        rest = rest != NULL ? ls_varint_read32(rest, p, &offset_delta) : NULL;
        if (rest == NULL) {
            return LS_E_RECORD;
        }
        int64_t timestamp = append_time ? batch->max_timestamp : ls_wrapping_add(batch->base_timestamp, delta);
        most = timestamp > most ? timestamp : most;
        if (!has_base) {
            base = timestamp;
            has_base = 1;
        }
        delta = (int64_t)((uint64_t)timestamp - (uint64_t)base);
        int64_t bytes = LS_RECORD_ATTRIBUTES_BYTES + ls_varint_bytes(delta) + ls_varint_bytes(offset_delta) + (p - rest);
        if (bytes > INT32_MAX || ls_varint_bytes(bytes) + bytes > capacity - at) {
            return LS_E_NO_SPACE;
        }
        uint8_t *q = ls_varint_write(out + at, bytes);
        *q++ = body[0];
        q = ls_varint_write(q, delta);
        q = ls_varint_write(q, offset_delta);
        memcpy(q, rest, (size_t)(p - rest));
        at = q + (p - rest) - out;
    }
    made->base_timestamp = base;
    made->max_timestamp = append_time ? batch->max_timestamp : most;
    made->record_count = (int32_t)fate->kept;
    return at;
}

/* The header of a batch that keeps no record, as Kafka writes it. */
static void ls_compact_empty(const ls_batch *batch, ls_batch *made)
{
    *made = *batch;
    made->attributes &= ~(LS_ATTRIBUTE_CODEC_MASK | LS_ATTRIBUTE_DELETE_HORIZON);
    made->base_timestamp = -1;
    made->record_count = 0;
    made->payload_pos = LS_BATCH_HEADER_BYTES;
    made->payload_size = 0;
}

/* Put a whole batch of magic 2 into `out`: the bytes, or a negative status. */
static int64_t ls_compact_put(const ls_compaction *how, const ls_batch *batch, const ls_compact_batch *fate,
                              const uint8_t *area, int64_t size, const uint8_t *states, uint8_t *out,
                              int64_t capacity)
{
    ls_batch made = *batch;
    if (fate->verdict == LS_VERDICT_EMPTY) {
        ls_compact_empty(batch, &made);
    } else {
        int64_t bytes = ls_compact_area(how, batch, fate, area, size, states, out + LS_BATCH_HEADER_BYTES,
                                        capacity - LS_BATCH_HEADER_BYTES, &made);
        if (bytes < 0) {
            return bytes;
        }
        made.payload_size = (int32_t)bytes;
    }
    int32_t status = ls_seal_batch(out, capacity, &made);
    return status < 0 ? status : made.size;
}

/* The bytes that `batch` may need in the output, at the most. */
static int64_t ls_compact_room(const ls_batch *batch)
{
    int64_t most = batch->payload_size / LS_RECORD_MIN_BYTES;
    int64_t count = batch->record_count < most ? batch->record_count : most;
    return batch->size + (count > 0 ? LS_COMPACT_GROWTH * count : 0);
}

/* Copy, write again or leave out the batch of magic 2 at batch->pos. */
static int32_t ls_compact_batch2(const ls_compaction *how, const ls_batch *batch, const uint8_t *buf,
                                 ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity,
                                 int64_t *bytes, ls_compacted *done, ls_error *error)
{
    ls_compact_batch fate;
    const uint8_t *area = buf + batch->pos + batch->payload_pos;
    const uint8_t *kept = NULL;
    if (ls_compact_decided(how, batch, &fate)) {
        if (!ls_compact_is_control(batch) && fate.verdict != LS_VERDICT_KEEP) {
            done->records += batch->record_count;
            done->removed += batch->record_count;
        }
    } else {
        columns->count = 0;
        int32_t status = ls_batch_decode_area(batch, buf, batch->pos + batch->payload_pos, batch->payload_size,
                                              INT64_MIN, INT64_MAX, columns, error);
        if (status != LS_OK) {
            error->pos = batch->pos;
            return status;
        }
        ls_compact_decide(how, batch, columns, buf, states, &fate, done);
        kept = states;
    }
    if (fate.verdict == LS_VERDICT_REMOVE) {
        done->batches_removed += 1;
        return LS_OK;
    }
    if (fate.verdict == LS_VERDICT_KEEP) {
        memcpy(out + *bytes, buf + batch->pos, (size_t)batch->size);
        *bytes += batch->size;
        return LS_OK;
    }
    done->batches_changed += 1;
    int64_t put = ls_compact_put(how, batch, &fate, area, batch->payload_size, kept, out + *bytes, capacity - *bytes);
    if (put < 0) {
        return ls_error_set(error, (int32_t)put, batch->pos, batch->base_offset, 0, 0);
    }
    *bytes += put;
    return LS_OK;
}

/* ------------------------------------------------------------------ magic 0 and 1 */

/* Uncompressed messages, several at once, while `out` has room for all of them: how many. */
static int64_t ls_compact_messages(const ls_compaction *how, const uint8_t *buf, int64_t size, uint32_t checks,
                                   ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity,
                                   int64_t *bytes, ls_walk *walk, ls_compacted *done)
{
    const uint8_t *p = buf + walk->pos;
    int64_t room = capacity - *bytes;
    int64_t end = room < size - walk->pos ? walk->pos + room : size;
    columns->count = 0;
    int64_t n = ls_message_decode_block(buf, end, checks, INT64_MIN, INT64_MAX, columns, NULL, walk);
    if (n == 0) {
        return 0;
    }
    ls_batch message = {.magic = p[LS_FRAME_MAGIC_POS]};
    ls_compact_batch fate;
    ls_compact_decide(how, &message, columns, buf, states, &fate, done);
    done->batches_removed += n - fate.kept;
    if (fate.kept == n) {
        memcpy(out + *bytes, p, (size_t)(buf + walk->pos - p));
        *bytes += buf + walk->pos - p;
        return n;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t length = LS_FRAME_PREFIX_BYTES + (int64_t)ls_bytes_load_i32(p + LS_FRAME_LENGTH_POS);
        if (states[i]) {
            memcpy(out + *bytes, p, (size_t)length);
            *bytes += length;
        }
        p += length;
    }
    return n;
}

/* Put the inner messages of a wrapper that stay into `out`; made gets the offset and largest timestamp of the new one. */
static int32_t ls_compact_inner(const ls_batch *batch, const uint8_t *payload, int64_t size, const ls_columns *columns,
                                const uint8_t *states, uint8_t *out, int64_t capacity, int64_t *bytes, ls_batch *made)
{
    const int is_relative = batch->magic == 1;
    const uint8_t *p = payload;
    int64_t first = -1;
    int64_t last = -1;
    int64_t most = INT64_MIN;
    int64_t at = 0;
    for (int64_t i = 0; i < columns->count; i++) {
        int64_t length = LS_FRAME_PREFIX_BYTES + (int64_t)ls_bytes_load_i32(p + LS_FRAME_LENGTH_POS);
        if (length > payload + size - p || length > capacity - at) {
            return LS_E_NO_SPACE;
        }
        if (states[i]) {
            first = first < 0 ? columns->offset[i] : first;
            last = columns->offset[i];
            most = columns->timestamp[i] > most ? columns->timestamp[i] : most;
            memcpy(out + at, p, (size_t)length);
            ls_bytes_store_i64(out + at + LS_FRAME_OFFSET_POS, is_relative ? last - first : last);
            at += length;
        }
        p += length;
    }
    *made = *batch;
    made->base_offset = first;
    made->last_offset = last;
    made->max_timestamp = batch->timestamp_type == 1 ? batch->max_timestamp : most;
    *bytes = at;
    return LS_OK;
}

/* ------------------------------------------------------------------ all magics */

/* The batch at walk->pos, which ls_compact_messages does not take. */
static int32_t ls_compact_one(const ls_compaction *how, const uint8_t *buf, int64_t size, uint32_t checks,
                              ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity, int64_t *bytes,
                              ls_walk *walk, ls_compacted *done)
{
    ls_batch batch;
    ls_compact_batch fate;
    const ls_walk before = *walk;
    ls_error *error = &walk->error;
    int32_t status = ls_scan_batches(buf, size, checks, &batch, 1, walk);
    if (status != LS_OK || walk->count == 0) {
        return status != LS_OK ? status : walk->stop;
    }
    const int64_t pos = before.pos;
    if (!ls_compact_decided(how, &batch, &fate)) {
        if (batch.codec != 0) {
            *walk = before;
            return LS_STOP_COMPRESSED;
        }
        /* A count that cannot be true is reported as such, not as missing space. */
        if (batch.record_count > columns->capacity && batch.record_count <= batch.payload_size / LS_RECORD_MIN_BYTES) {
            *walk = before;
            return ls_error_set(error, LS_E_NO_SPACE, pos, batch.base_offset, batch.record_count, columns->capacity);
        }
    }
    if (ls_compact_room(&batch) > capacity - *bytes) {
        *walk = before;
        error->expected = ls_compact_room(&batch);
        return LS_STOP_FULL;
    }
    if (batch.magic != 2) {
        /* It is a plain message, for which there was no room before. */
        int64_t n = 0;
        *walk = before;
        n = ls_compact_messages(how, buf, pos + batch.size, checks, columns, states, out, capacity, bytes, walk, done);
        return n > 0 ? LS_OK : ls_error_set(error, LS_E_ARGUMENT, pos, batch.base_offset, 2, batch.magic);
    }
    status = ls_compact_batch2(how, &batch, buf, columns, states, out, capacity, bytes, done, error);
    if (status != LS_OK) {
        walk->pos = before.pos;
        walk->last_offset = before.last_offset;
    }
    return status;
}

int32_t ls_compact_batches(const ls_compaction *how, const uint8_t *buf, int64_t size, uint32_t checks,
                           ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity, int64_t *bytes,
                           ls_walk *walk, ls_compacted *done)
{
    int32_t status = LS_OK;
    *bytes = 0;
    memset(&walk->error, 0, sizeof walk->error);
    if (columns->capacity < LS_COMPACT_RECORDS_MIN || size < 0 || size > INT32_MAX || walk->pos < 0
        || walk->pos > size || capacity > INT32_MAX) {
        return ls_error_set(&walk->error, LS_E_ARGUMENT, walk->pos, -1, LS_COMPACT_RECORDS_MIN, columns->capacity);
    }
    while (status == LS_OK) {
        while (ls_compact_messages(how, buf, size, checks, columns, states, out, capacity, bytes, walk, done) > 0) {
        }
        status = ls_compact_one(how, buf, size, checks, columns, states, out, capacity, bytes, walk, done);
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

int32_t ls_compact_payload(const ls_compaction *how, const ls_batch *batch, const uint8_t *payload, int64_t size,
                           uint32_t checks, ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity,
                           int64_t *bytes, ls_batch *made, ls_compacted *done, ls_error *error)
{
    ls_compact_batch fate;
    *bytes = 0;
    *made = *batch;
    columns->count = 0;
    int32_t status = ls_decode_payload(batch, payload, size, checks, INT64_MIN, INT64_MAX, columns, NULL, error);
    if (status != LS_OK) {
        return status;
    }
    ls_compact_decide(how, batch, columns, payload, states, &fate, done);
    if (fate.verdict == LS_VERDICT_REMOVE) {
        done->batches_removed += 1;
    } else if (fate.verdict == LS_VERDICT_EMPTY) {
        done->batches_changed += 1;
        ls_compact_empty(batch, made);
    } else if (fate.verdict == LS_VERDICT_REWRITE) {
        done->batches_changed += 1;
        if (batch->magic == 2) {
            int64_t put = ls_compact_area(how, batch, &fate, payload, size, states, out, capacity, made);
            status = put < 0 ? (int32_t)put : LS_OK;
            *bytes = put < 0 ? 0 : put;
        } else {
            status = ls_compact_inner(batch, payload, size, columns, states, out, capacity, bytes, made);
        }
    }
    if (status != LS_OK) {
        return ls_error_set(error, status, 0, batch->base_offset, 0, 0);
    }
    return fate.verdict;
}
