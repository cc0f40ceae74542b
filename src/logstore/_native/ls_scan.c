/*
 * ls_scan.c - walks over batches of all magics: ls_scan_batches, ls_seek_batch, ls_scan_producers, and ls_decode,
 * which hands each batch to the file of its magic.
 *
 * Trusts nothing in the buffer.  Checks go in this order: framing, checksum, structure, order of offsets; the
 * first failure is reported.  Until the checksum has passed, all other fields are unreliable.
 */
#include "ls_internal.h"

/* ------------------------------------------------------------------ one batch */

/* Whether a batch with a known first offset would leave a gap, or overlap, in a log that must be gapless. */
static int ls_scan_breaks(uint32_t checks, int64_t base_offset, int64_t last_before)
{
    return (checks & LS_CHECK_GAPLESS) != 0 && last_before != LS_OFFSET_UNKNOWN
        && base_offset != ls_wrapping_add(last_before, 1);
}

static int32_t ls_scan_order(const ls_batch *batch, uint32_t checks, int64_t last_before, ls_error *error)
{
    int64_t stored = batch->base_offset;
    int64_t delta = 0;
    if (batch->magic == 2) {
        if (__builtin_sub_overflow(batch->last_offset, stored, &delta) || delta < 0) {
            return ls_error_set(error, LS_E_OFFSET, batch->pos, stored, stored, batch->last_offset);
        }
    } else {
        stored = batch->last_offset; /* a wrapper has no base offset to look at */
    }
    int is_wrapper = batch->magic < 2 && batch->codec != 0;
    if (stored < 0 || stored <= last_before || (!is_wrapper && ls_scan_breaks(checks, stored, last_before))) {
        int64_t expected = last_before < 0 ? 0 : ls_wrapping_add(last_before, 1);
        return ls_error_set(error, LS_E_OFFSET, batch->pos, stored, expected, stored);
    }
    /* The end of the log is an offset as well, so no record may have the largest one. */
    if (batch->last_offset == INT64_MAX) {
        return ls_error_set(error, LS_E_OFFSET, batch->pos, stored, INT64_MAX - 1, INT64_MAX);
    }
    return LS_OK;
}

static int32_t ls_scan_parse(const uint8_t *buf, const ls_frame *frame, uint32_t checks,
                             const ls_walk *walk, ls_batch *batch, ls_error *error)
{
    int32_t status = frame->magic == 2
        ? ls_batch_parse(buf, walk->pos, frame, checks, batch, error)
        : ls_message_parse(buf, walk->pos, frame, checks, batch, error);
    if (status == LS_OK && (checks & LS_CHECK_ORDER) != 0) {
        status = ls_scan_order(batch, checks, walk->last_offset, error);
    }
    if (status == LS_OK && (checks & LS_CHECK_EPOCH) != 0 && batch->magic == 2 && batch->leader_epoch != 0) {
        status = ls_error_set(error, LS_E_EPOCH, batch->pos, batch->base_offset, 0, batch->leader_epoch);
    }
    return status;
}

static void ls_scan_step_over(ls_walk *walk, const ls_batch *batch)
{
    walk->pos += batch->size;
    walk->last_offset = batch->last_offset;
    walk->batches += 1;
    walk->wrappers |= batch->magic < 2 && batch->codec != 0;
}

static int32_t ls_scan_begin(const uint8_t *buf, int64_t size, ls_walk *walk)
{
    walk->count = 0;
    walk->batches = 0;
    walk->stop = 0;
    memset(&walk->error, 0, sizeof walk->error);
    if (size < 0 || size > INT32_MAX || walk->pos < 0 || walk->pos > size
        || (buf == NULL && size > 0)) {
        return ls_error_set(&walk->error, LS_E_ARGUMENT, walk->pos, -1, size, walk->pos);
    }
    return LS_OK;
}

/* Step over the batch at walk->pos, which becomes *batch: LS_OK, an enum ls_stop, or a negative status. */
static int32_t ls_scan_next(const uint8_t *buf, int64_t size, uint32_t checks, ls_batch *batch, ls_walk *walk)
{
    ls_frame frame;
    int32_t status = ls_frame_look(buf, size, walk->pos, &frame, &walk->error);
    if (status == LS_OK) {
        status = ls_scan_parse(buf, &frame, checks, walk, batch, &walk->error);
    }
    if (status == LS_OK) {
        ls_scan_step_over(walk, batch);
    }
    return status;
}

int32_t ls_scan_batches(const uint8_t *buf, int64_t size, uint32_t checks, ls_batch *out,
                        int64_t capacity, ls_walk *walk)
{
    ls_columns counted = {.capacity = INT64_MAX};
    ls_batch only;
    int32_t status = ls_scan_begin(buf, size, walk);
    while (status == LS_OK) {
        if (out == NULL) {
            while (ls_message_decode_block(buf, size, checks, INT64_MIN, INT64_MAX, &counted, NULL, walk) > 0) {
            }
        } else if (walk->count >= capacity) {
            status = LS_STOP_FULL; /* before what follows is looked at: that is not asked for */
            break;
        }
        status = ls_scan_next(buf, size, checks, out != NULL ? &out[walk->count] : &only, walk);
        walk->count += status == LS_OK;
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

int32_t ls_seek_batch(const uint8_t *buf, int64_t size, uint32_t checks, int64_t offset, ls_batch *last, ls_walk *walk)
{
    int32_t status = ls_scan_begin(buf, size, walk);
    while (status == LS_OK) {
        ls_batch batch;
        const int64_t before = walk->last_offset;
        status = ls_scan_next(buf, size, checks, &batch, walk);
        if (status == LS_OK) {
            *last = batch;
            if (batch.last_offset >= offset && offset != INT64_MAX) {
                walk->pos = batch.pos;
                walk->last_offset = before;
                status = LS_STOP_OFFSET;
            }
        }
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

int32_t ls_find_contradicted(const uint8_t *buf, int64_t size, int64_t following, ls_walk *walk)
{
    int32_t status = ls_scan_begin(buf, size, walk);
    while (status == LS_OK) {
        ls_frame frame;
        if (ls_frame_next(buf, size, walk->pos, &frame, &walk->error) != LS_OK) {
            status = LS_STOP_END; /* decoding these bytes reports the error */
            break;
        }
        const uint8_t *p = buf + walk->pos;
        const int64_t end = walk->pos + frame.size;
        const int64_t base = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
        const int64_t before = walk->last_offset;
        int64_t last = base;
        int is_next = base == before + 1;
        if (frame.magic == 2) {
            last = ls_wrapping_add(base, ls_bytes_load_i32(p + LS_BATCH_LAST_DELTA_POS));
        } else if ((p[LS_MESSAGE_ATTRIBUTES_POS] & LS_ATTRIBUTE_CODEC_MASK) != 0) {
            is_next = 0; /* a wrapper has its last offset */
        }
        const int is_here = size - end >= LS_FRAME_LENGTH_POS;
        const int64_t begin = is_here ? ls_bytes_load_i64(buf + end + LS_FRAME_OFFSET_POS) : following;
        if (begin == LS_OFFSET_UNKNOWN && !is_here) {
            status = LS_STOP_FULL;
            break;
        }
        if (begin <= last) {
            /* Otherwise the next batch is the wrong one: no walk passes over it. */
            status = begin > before && !is_next && before != LS_OFFSET_UNKNOWN ? LS_STOP_OFFSET : LS_STOP_END;
            break;
        }
        walk->pos = end;
        walk->last_offset = last;
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

/* Whether two batches are of one state of a producer, belong to no transaction, and all offsets between them were of
   that producer, too: its sequence is as far on as the offsets are. */
static int ls_scan_continues(const ls_batch *before, const ls_batch *batch)
{
    const int32_t special = LS_ATTRIBUTE_TRANSACTIONAL | LS_ATTRIBUTE_CONTROL;
    const uint64_t offsets = (uint64_t)batch->base_offset - (uint64_t)before->base_offset;
    const uint32_t sequences = (uint32_t)batch->base_sequence - (uint32_t)before->base_sequence;
    if ((offsets & INT32_MAX) != (sequences & INT32_MAX) || offsets > INT32_MAX) {
        return 0;
    }
    return before->producer_id == batch->producer_id && before->producer_epoch == batch->producer_epoch
        && ((before->attributes | batch->attributes) & special) == 0;
}

int32_t ls_scan_producers(const uint8_t *buf, int64_t size, uint32_t checks, ls_batch *out, int64_t capacity,
                          ls_walk *walk)
{
    ls_columns counted = {.capacity = INT64_MAX};
    int64_t count = 0;
    int32_t status = ls_scan_begin(buf, size, walk);
    while (status == LS_OK) {
        while (ls_message_decode_block(buf, size, checks, INT64_MIN, INT64_MAX, &counted, NULL, walk) > 0) {
        }
        if (count >= capacity) {
            status = LS_STOP_FULL;
            break;
        }
        ls_batch *batch = &out[count];
        status = ls_scan_next(buf, size, checks, batch, walk);
        if (status != LS_OK || batch->magic < 2 || batch->producer_id < 0) {
            continue;
        }
        if (count > 0 && ls_scan_continues(batch - 1, batch)) {
            batch[-1] = *batch;
        } else {
            count += 1;
        }
    }
    walk->count = count; /* the loop over plain messages has counted these */
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

/* Whether a whole batch is one that may be moved as `shift` says. */
static int32_t ls_scan_movable(const ls_batch *batch, const ls_shift *shift, ls_error *error)
{
    int64_t last;
    int64_t last_delta;
    if ((batch->magic == 0 && batch->codec != 0) || (shift->magic >= 0 && batch->magic != shift->magic)) {
        return ls_error_set(error, LS_E_MAGIC, batch->pos, batch->last_offset,
                            shift->magic >= 0 ? shift->magic : 1, batch->magic);
    }
    if (batch->size > shift->max_bytes) {
        return ls_error_set(error, LS_E_TOO_LARGE, batch->pos, batch->last_offset, shift->max_bytes, batch->size);
    }
    if (__builtin_add_overflow(batch->last_offset, shift->offsets, &last) || last == INT64_MAX || last < 0) {
        return ls_error_set(error, LS_E_OFFSET, batch->pos, batch->last_offset, shift->offsets,
                            batch->last_offset);
    }
    if (batch->magic == 2) {
        const int32_t allowed = LS_ATTRIBUTE_CODEC_MASK | LS_ATTRIBUTE_APPEND_TIME;
        if ((batch->attributes & ~allowed) != 0) {
            return ls_error_set(error, LS_E_CODEC, batch->pos, batch->base_offset, allowed, batch->attributes);
        }
        if (__builtin_sub_overflow(batch->last_offset, batch->base_offset, &last_delta)
            || last_delta + 1 != batch->record_count) {
            return ls_error_set(error, LS_E_COUNT, batch->pos, batch->base_offset, batch->last_offset,
                                batch->record_count);
        }
    }
    return LS_OK;
}

int32_t ls_shift_offsets(uint8_t *buf, int64_t size, const ls_shift *shift, ls_walk *walk)
{
    const uint32_t checks = LS_CHECK_CRC | LS_CHECK_ORDER | LS_CHECK_GAPLESS;
    int32_t status = ls_scan_begin(buf, size, walk);
    while (status == LS_OK) {
        ls_frame frame;
        ls_batch batch;
        ls_error *error = &walk->error;
        status = ls_frame_look(buf, size, walk->pos, &frame, error);
        if (status == LS_OK) {
            status = ls_scan_parse(buf, &frame, checks, walk, &batch, error);
        }
        if (status == LS_OK) {
            status = ls_scan_movable(&batch, shift, error);
        }
        if (status == LS_OK) {
            int64_t stored = batch.magic == 2 ? batch.base_offset : batch.last_offset;
            status = ls_assign_offset(buf, &batch, ls_wrapping_add(stored, shift->offsets), shift->leader_epoch);
        }
        if (status == LS_OK && shift->timestamp >= 0 && (shift->stamps_all || batch.timestamp_type == 1)) {
            status = ls_restamp(buf, &batch, shift->timestamp);
        }
        if (status == LS_OK) {
            walk->count += 1;
            ls_scan_step_over(walk, &batch);
        }
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

/* ------------------------------------------------------------------ records */

/* What decides whether the batch at `p` is looked at, before its checksum: so a batch that is left for a
   later call costs nothing now. */
static int32_t ls_decode_stop(const uint8_t *p, const ls_frame *frame, uint32_t checks, int64_t start_offset,
                              int64_t stop_offset, const ls_columns *columns, const ls_walk *walk)
{
    int64_t base = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
    int64_t last = base;
    int64_t count = 1;
    int codec;
    if (frame->magic == 2) {
        last = ls_wrapping_add(base, ls_bytes_load_i32(p + LS_BATCH_LAST_DELTA_POS));
        count = ls_bytes_load_i32(p + LS_BATCH_RECORD_COUNT_POS);
        codec = ls_bytes_load_i16(p + LS_BATCH_ATTRIBUTES_POS) & LS_ATTRIBUTE_CODEC_MASK;
    } else {
        codec = p[LS_MESSAGE_ATTRIBUTES_POS] & LS_ATTRIBUTE_CODEC_MASK;
        if (codec != 0 && walk->last_offset < INT64_MAX) {
            base = walk->last_offset + 1; /* the least that it can be */
        }
    }
    if (ls_scan_breaks(checks, base, walk->last_offset)) {
        return LS_OK; /* the offset, which no checksum covers, is no reason to stop: it is looked at closely */
    }
    if (base >= stop_offset) {
        return LS_STOP_OFFSET;
    }
    if (last < start_offset) {
        return LS_OK;
    }
    if (codec != 0) {
        return LS_STOP_COMPRESSED;
    }
    /* If nothing has been put out yet, the checksum must confirm the count first. */
    if (walk->count > 0 && count > columns->capacity - columns->count) {
        return LS_STOP_FULL;
    }
    return LS_OK;
}

/* Decode one batch that the loop over plain messages has left. */
static int32_t ls_decode_one(const uint8_t *buf, int64_t size, uint32_t checks, int64_t start_offset,
                             int64_t stop_offset, ls_columns *columns, ls_walk *walk)
{
    ls_frame frame;
    ls_batch batch;
    ls_error *error = &walk->error;
    int32_t status = ls_frame_look(buf, size, walk->pos, &frame, error);
    if (status == LS_OK) {
        status = ls_decode_stop(buf + walk->pos, &frame, checks, start_offset, stop_offset, columns, walk);
    }
    if (status == LS_OK) {
        status = ls_scan_parse(buf, &frame, checks, walk, &batch, error);
    }
    if (status != LS_OK) {
        return status;
    }
    int walked_over = batch.last_offset < start_offset
        || (batch.magic == 2 && (batch.attributes & LS_ATTRIBUTE_CONTROL) != 0);
    if (!walked_over) {
        int64_t before = columns->count;
        /* A count that cannot be true is reported as such, not as missing space. */
        if (batch.record_count > columns->capacity - columns->count
            && (batch.magic != 2 || batch.record_count <= batch.payload_size / LS_RECORD_MIN_BYTES)) {
            return ls_error_set(error, LS_E_NO_SPACE, batch.pos, batch.base_offset,
                                batch.record_count, columns->capacity - columns->count);
        }
        if (batch.magic != 2) {
            /* The loop over plain messages takes whatever passes here: our own mistake. */
            return ls_error_set(error, LS_E_ARGUMENT, batch.pos, batch.base_offset, 2, batch.magic);
        }
        status = ls_batch_decode_area(&batch, buf, batch.pos + batch.payload_pos, batch.payload_size,
                                      start_offset, stop_offset, columns, error);
        if (status != LS_OK) {
            error->pos = batch.pos;
            return status;
        }
        walk->count += columns->count - before;
    }
    ls_scan_step_over(walk, &batch);
    return LS_OK;
}

static int32_t ls_decode_all(const uint8_t *buf, int64_t size, uint32_t checks, int64_t start_offset,
                             int64_t stop_offset, ls_columns *columns, ls_index_check *check, ls_walk *walk)
{
    int32_t status = ls_scan_begin(buf, size, walk);
    if (status == LS_OK && (columns->count < 0 || columns->count > columns->capacity)) {
        status = ls_error_set(&walk->error, LS_E_ARGUMENT, walk->pos, -1, columns->capacity,
                              columns->count);
    }
    while (status == LS_OK) {
        while (ls_message_decode_block(buf, size, checks, start_offset, stop_offset, columns, check, walk) > 0) {
        }
        int64_t from = walk->pos;
        status = ls_decode_one(buf, size, checks, start_offset, stop_offset, columns, walk);
        if (check != NULL) {
            ls_check_indexes(buf + from, walk->pos - from, check);
        }
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}

int32_t ls_decode(const uint8_t *buf, int64_t size, uint32_t checks, int64_t start_offset,
                  int64_t stop_offset, ls_columns *columns, ls_walk *walk)
{
    return ls_decode_all(buf, size, checks, start_offset, stop_offset, columns, NULL, walk);
}

int32_t ls_verify(const uint8_t *buf, int64_t size, uint32_t checks, ls_columns *columns, ls_index_check *check,
                  ls_walk *walk)
{
    return ls_decode_all(buf, size, checks, 0, INT64_MAX, columns, check, walk);
}

int32_t ls_decode_payload(const ls_batch *batch, const uint8_t *payload, int64_t size, uint32_t checks,
                          int64_t start_offset, int64_t stop_offset, ls_columns *columns,
                          int64_t *base_offset, ls_error *error)
{
    memset(error, 0, sizeof *error);
    if (size < 0 || size > INT32_MAX || (payload == NULL && size > 0) || batch->magic < 0
        || batch->magic > LS_MAGIC_MAX || (batch->magic < 2 && batch->codec == 0)
        || columns->count < 0 || columns->count > columns->capacity) {
        return ls_error_set(error, LS_E_ARGUMENT, 0, batch->base_offset, batch->magic, size);
    }
    static const uint8_t nothing = 0; /* arithmetic on NULL is undefined, even + 0 */
    payload = payload != NULL ? payload : &nothing;
    if (batch->magic < 2) {
        return ls_message_decode_wrapper(batch, payload, size, checks, start_offset, stop_offset,
                                         columns, base_offset, error);
    }
    int64_t space = columns->capacity - columns->count;
    /* A count that cannot be true is reported as such, not as missing space. */
    if (batch->record_count > space && batch->record_count <= size / LS_RECORD_MIN_BYTES) {
        return ls_error_set(error, LS_E_NO_SPACE, 0, batch->base_offset, batch->record_count, space);
    }
    if (base_offset != NULL) {
        *base_offset = batch->base_offset;
    }
    return ls_batch_decode_area(batch, payload, 0, size, start_offset, stop_offset, columns, error);
}
