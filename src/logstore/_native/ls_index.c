/*
 * ls_index.c - offset and time indexes: looking up, checking, and planning what an append adds to them.
 *
 * Lookups trust the caller's count of entries, not their content: an index in disorder gives some slot, never
 * a read outside.  Planning trusts nothing in the batches but looks at their headers only.
 */
#include "ls_internal.h"

static inline int32_t ls_index_offset(const uint8_t *entries, int64_t slot)
{
    return ls_bytes_load_i32(entries + slot * LS_INDEX_ENTRY_BYTES + LS_INDEX_OFFSET_POS);
}

static inline int32_t ls_index_position(const uint8_t *entries, int64_t slot)
{
    return ls_bytes_load_i32(entries + slot * LS_INDEX_ENTRY_BYTES + LS_INDEX_POSITION_POS);
}

static inline int64_t ls_index_time(const uint8_t *entries, int64_t slot)
{
    return ls_bytes_load_i64(entries + slot * LS_TIME_ENTRY_BYTES + LS_TIME_TIMESTAMP_POS);
}

static inline int32_t ls_index_time_offset(const uint8_t *entries, int64_t slot)
{
    return ls_bytes_load_i32(entries + slot * LS_TIME_ENTRY_BYTES + LS_TIME_OFFSET_POS);
}

/* ------------------------------------------------------------------ lookup */

int64_t ls_offset_index_floor(const uint8_t *entries, int64_t count, int64_t relative_offset,
                              int64_t *found_offset, int64_t *found_pos)
{
    /* Invariant: entries below `low` are <= the target, entries from `high` on are greater. */
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ls_index_offset(entries, middle) <= relative_offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int64_t slot = low - 1;
    *found_offset = slot >= 0 ? ls_index_offset(entries, slot) : -1;
    *found_pos = slot >= 0 ? ls_index_position(entries, slot) : 0;
    return slot;
}

int64_t ls_time_index_floor(const uint8_t *entries, int64_t count, int64_t timestamp,
                            int64_t *found_timestamp, int64_t *found_offset)
{
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ls_index_time(entries, middle) <= timestamp) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int64_t slot = low - 1;
    *found_timestamp = slot >= 0 ? ls_index_time(entries, slot) : -1;
    *found_offset = slot >= 0 ? ls_index_time_offset(entries, slot) : 0;
    return slot;
}

/* ------------------------------------------------------------------ checking */

int64_t ls_offset_index_check(const uint8_t *entries, int64_t count, int64_t file_size)
{
    int64_t offset_before = -1;
    int64_t pos_before = 0;
    for (int64_t slot = 0; slot < count; slot++) {
        int64_t offset = ls_index_offset(entries, slot);
        int64_t pos = ls_index_position(entries, slot);
        if (offset <= offset_before || pos < pos_before || pos >= file_size) {
            return slot;
        }
        offset_before = offset;
        pos_before = pos;
    }
    return count > 0 ? count : 0;
}

int64_t ls_time_index_check(const uint8_t *entries, int64_t count)
{
    int64_t time_before = -1;
    int64_t offset_before = 0;
    for (int64_t slot = 0; slot < count; slot++) {
        int64_t timestamp = ls_index_time(entries, slot);
        int64_t offset = ls_index_time_offset(entries, slot);
        /* Kafka drops an entry of the same time, but lets a later time have the same offset. */
        if (timestamp <= time_before || offset < offset_before) {
            return slot;
        }
        time_before = timestamp;
        offset_before = offset;
    }
    return count > 0 ? count : 0;
}

/* ------------------------------------------------------------------ planning */

/* What of a batch decides about segments and index entries. */
typedef struct ls_index_batch {
    int64_t size;
    int64_t last_offset;
    int64_t max_timestamp;
} ls_index_batch;

static inline ls_index_batch ls_index_look(const uint8_t *p, const ls_frame *frame)
{
    ls_index_batch batch = {frame->size, ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS), -1};
    if (frame->magic == 2) {
        int32_t last_delta = ls_bytes_load_i32(p + LS_BATCH_LAST_DELTA_POS);
        batch.last_offset = ls_wrapping_add(batch.last_offset, last_delta);
        batch.max_timestamp = ls_bytes_load_i64(p + LS_BATCH_MAX_TIMESTAMP_POS);
    } else if (frame->magic == 1) {
        batch.max_timestamp = ls_bytes_load_i64(p + LS_MESSAGE_TIMESTAMP_POS);
    }
    return batch;
}

/* Where an offset fits into an index entry of this segment. */
static inline int ls_index_relative(const ls_segment_state *state, int64_t offset, int32_t *relative)
{
    int64_t difference;
    if (__builtin_sub_overflow(offset, state->base_offset, &difference) || difference < 0
        || difference > INT32_MAX) {
        return 0;
    }
    *relative = (int32_t)difference;
    return 1;
}

/* Count the next batch of a segment; its timestamps first, because an index entry for it has them. */
static inline void ls_index_take_timestamp(ls_segment_state *state, const ls_index_batch *batch)
{
    if (state->size == 0) {
        state->first_timestamp = batch->max_timestamp;
    }
    if (batch->max_timestamp > state->max_timestamp) {
        state->max_timestamp = batch->max_timestamp;
        state->max_timestamp_offset = batch->last_offset;
    }
}

static inline void ls_index_take_size(ls_segment_state *state, const ls_index_batch *batch)
{
    state->bytes_since += batch->size;
    state->size += batch->size;
    state->last_offset = batch->last_offset;
}

/* Whether the batch belongs in a new segment: an enum ls_stop, or LS_OK. */
static int32_t ls_index_roll(const ls_segment_state *state, const ls_roll_limits *limits,
                             const ls_index_batch *batch, int may_roll_by_time)
{
    int32_t relative;
    if (limits != NULL && state->size > 0) {
        int64_t waited = state->first_timestamp >= 0
            ? ls_saturating_sub(batch->max_timestamp, state->first_timestamp)
            : ls_saturating_sub(limits->now_ms, state->created_ms);
        if (state->size > ls_saturating_sub(limits->segment_bytes, batch->size)) {
            return LS_STOP_ROLL_SIZE;
        }
        if (waited > limits->segment_ms && may_roll_by_time) {
            return LS_STOP_ROLL_TIME;
        }
        if (state->index_entries >= limits->index_entries_max
            || state->time_entries >= ls_saturating_sub(limits->time_entries_max, 1)) {
            return LS_STOP_ROLL_INDEX;
        }
    }
    return ls_index_relative(state, batch->last_offset, &relative) ? LS_OK : LS_STOP_ROLL_OFFSET;
}

int32_t ls_plan_append(const uint8_t *buf, int64_t size, const ls_roll_limits *limits,
                       int64_t index_interval_bytes, ls_segment_state *state, uint8_t *index_out,
                       int64_t index_capacity, uint8_t *time_out, int64_t time_capacity, ls_plan *plan,
                       ls_error *error)
{
    const int64_t interval = limits != NULL ? limits->index_interval_bytes : index_interval_bytes;
    ls_segment_state s = *state;
    int32_t status = LS_OK;
    memset(plan, 0, sizeof *plan);
    memset(error, 0, sizeof *error);
    if (size < 0 || size > INT32_MAX || (buf == NULL && size > 0) || s.size < 0
        || s.size > INT64_MAX - size || s.bytes_since < 0 || s.bytes_since > INT64_MAX - size) {
        return ls_error_set(error, LS_E_ARGUMENT, 0, -1, s.size, size);
    }
    /* Kafka looks at the largest timestamp of all that it appends at once: after other batches, either all of it is
       too late or nothing; in an empty segment, nothing is. */
    const int is_at_once = limits == NULL || limits->is_in_parts == 0;
    const int may_roll_by_time = s.size > 0 || !is_at_once;
    while (status == LS_OK) {
        ls_frame frame;
        status = ls_frame_next(buf, size, plan->bytes, &frame, error);
        if (status != LS_OK) {
            break;
        }
        ls_index_batch batch = ls_index_look(buf + plan->bytes, &frame);
        status = ls_index_roll(&s, limits, &batch, may_roll_by_time);
        if (status == LS_STOP_ROLL_TIME && is_at_once) {
            s = *state;
            memset(plan, 0, sizeof *plan);
        }
        if (status != LS_OK) {
            break;
        }
        int entry_due = s.bytes_since > interval;
        if (entry_due && (plan->index_count >= index_capacity || plan->time_count >= time_capacity)) {
            status = LS_STOP_FULL;
            break;
        }
        ls_index_take_timestamp(&s, &batch);
        int32_t relative;
        int32_t time_relative;
        /* An entry of a position beyond 31 bits would point elsewhere: such batches get no entry. */
        if (entry_due && s.size <= INT32_MAX && ls_index_relative(&s, batch.last_offset, &relative)) {
            uint8_t *entry = index_out + plan->index_count * LS_INDEX_ENTRY_BYTES;
            ls_bytes_store_i32(entry + LS_INDEX_OFFSET_POS, relative);
            ls_bytes_store_i32(entry + LS_INDEX_POSITION_POS, (int32_t)s.size);
            plan->index_count += 1;
            s.index_entries += 1;
            s.bytes_since = 0;
            if (s.max_timestamp > s.time_last
                && ls_index_relative(&s, s.max_timestamp_offset, &time_relative)) {
                entry = time_out + plan->time_count * LS_TIME_ENTRY_BYTES;
                ls_bytes_store_i64(entry + LS_TIME_TIMESTAMP_POS, s.max_timestamp);
                ls_bytes_store_i32(entry + LS_TIME_OFFSET_POS, time_relative);
                plan->time_count += 1;
                s.time_entries += 1;
                s.time_last = s.max_timestamp;
            }
        }
        ls_index_take_size(&s, &batch);
        plan->bytes += batch.size;
        plan->batches += 1;
    }
    *state = s;
    if (status > 0) {
        plan->stop = status;
        status = LS_OK;
    }
    return status;
}

/* ------------------------------------------------------------------ comparing with the log */

/* Place of the next entry that has not been compared: the position of an offset index entry, the offset of a time
   index entry. */
static inline int64_t ls_index_next_position(const ls_index_cursor *cursor)
{
    return cursor->slot < cursor->count ? ls_index_position(cursor->entries, cursor->slot) : INT64_MAX;
}

static inline int64_t ls_index_next_time_offset(const ls_index_cursor *cursor)
{
    return cursor->slot < cursor->count ? ls_index_time_offset(cursor->entries, cursor->slot) : INT64_MAX;
}

/* Step over the entries for the batch that begins at `pos`, after the offset `before`.  False: one of them is not
   true. */
static int ls_index_check_offsets(ls_index_cursor *cursor, int64_t pos, int64_t before)
{
    while (ls_index_next_position(cursor) <= pos) {
        if (ls_index_next_position(cursor) != pos || ls_index_offset(cursor->entries, cursor->slot) <= before
            || (cursor->slot > 0 && ls_index_offset(cursor->entries, cursor->slot - 1) > before)) {
            return 0;
        }
        cursor->slot += 1;
    }
    return 1;
}

/* Step over the entries for the offsets of a batch: after `before`, up to `last`.  `largest` is the largest timestamp
   with this batch, `largest_before` without.  False: one of them is not true. */
static int ls_index_check_times(ls_index_cursor *cursor, int64_t before, int64_t last, int64_t largest_before,
                                int64_t largest)
{
    while (ls_index_next_time_offset(cursor) <= last) {
        int64_t offset = ls_index_next_time_offset(cursor);
        int64_t timestamp = ls_index_time(cursor->entries, cursor->slot);
        /* Where the largest timestamp of a batch stands inside of it is not known here. */
        int64_t least = offset < last ? largest_before : largest;
        if (offset <= before || timestamp < least || timestamp > largest) {
            return 0;
        }
        cursor->slot += 1;
    }
    return 1;
}

/* What a loop over batches keeps in registers. */
typedef struct ls_index_walk {
    ls_index_cursor offsets;
    ls_index_cursor times;
    int64_t next_position;
    int64_t next_time_offset;
    int64_t base_offset;
    int64_t pos;       /* in the file */
    int64_t before;    /* last relative offset so far */
    int64_t largest;   /* timestamp */
    int64_t largest_offset;
} ls_index_walk;

static inline ls_index_walk ls_index_walk_begin(const ls_index_check *check)
{
    const ls_segment_state *state = &check->state;
    return (ls_index_walk){
        .offsets = check->offsets,
        .times = check->times,
        .next_position = ls_index_next_position(&check->offsets),
        .next_time_offset = ls_index_next_time_offset(&check->times),
        .base_offset = state->base_offset,
        .pos = state->size,
        .before = ls_saturating_sub(state->last_offset, state->base_offset),
        .largest = state->max_timestamp,
        .largest_offset = state->max_timestamp_offset,
    };
}

/* Step over one batch.  False: an entry about it is not plainly true, or it cannot have an entry. */
static inline __attribute__((always_inline)) int ls_index_walk_over(ls_index_walk *walk, const ls_index_batch *batch)
{
    uint64_t last = (uint64_t)batch->last_offset - (uint64_t)walk->base_offset;
    if (last > INT32_MAX) {
        return 0;
    }
    if (LS_UNLIKELY(walk->next_position <= walk->pos)) {
        if (!ls_index_check_offsets(&walk->offsets, walk->pos, walk->before)) {
            return 0;
        }
        walk->next_position = ls_index_next_position(&walk->offsets);
    }
    int64_t largest_before = walk->largest;
    if (batch->max_timestamp > walk->largest) {
        walk->largest = batch->max_timestamp;
        walk->largest_offset = batch->last_offset;
    }
    if (LS_UNLIKELY(walk->next_time_offset <= (int64_t)last)) {
        if (!ls_index_check_times(&walk->times, walk->before, (int64_t)last, largest_before, walk->largest)) {
            return 0;
        }
        walk->next_time_offset = ls_index_next_time_offset(&walk->times);
    }
    walk->pos += batch->size;
    walk->before = (int64_t)last;
    return 1;
}

/* Take over `batches` batches, if all went well: as if each of them had got its entries, so that a plan with an
   interval of 0 may continue from here. */
static void ls_index_walk_end(ls_index_check *check, const ls_index_walk *walk, int64_t batches,
                              int64_t first_timestamp, int is_true)
{
    ls_segment_state *state = &check->state;
    if (!is_true || walk->pos > INT32_MAX) {
        check->is_doubtful = 1;
        return;
    }
    if (batches == 0) {
        return;
    }
    if (state->size == 0) {
        state->first_timestamp = first_timestamp;
    }
    state->bytes_since += walk->pos - state->size;
    state->size = walk->pos;
    state->last_offset = walk->base_offset + walk->before;
    state->max_timestamp = walk->largest;
    state->max_timestamp_offset = walk->largest_offset;
    state->time_last = walk->largest;
    check->offsets = walk->offsets;
    check->times = walk->times;
    check->batches += batches;
}

void ls_check_indexes(const uint8_t *buf, int64_t size, ls_index_check *check)
{
    ls_index_walk walk = ls_index_walk_begin(check);
    int64_t first_timestamp = -1;
    int64_t batches = 0;
    int64_t pos = 0;
    int is_true = check->is_doubtful == 0 && size >= 0 && walk.pos >= 0 && walk.pos <= INT32_MAX;
    while (is_true && pos < size) {
        ls_frame frame;
        ls_error error;
        is_true = ls_frame_next(buf, size, pos, &frame, &error) == LS_OK;
        if (is_true) {
            ls_index_batch batch = ls_index_look(buf + pos, &frame);
            first_timestamp = batches == 0 ? batch.max_timestamp : first_timestamp;
            is_true = ls_index_walk_over(&walk, &batch);
            pos += batch.size;
            batches += 1;
        }
    }
    ls_index_walk_end(check, &walk, batches, first_timestamp, is_true);
}

void ls_index_check_messages(const uint8_t *buf, const ls_message_block *block, int32_t count,
                             ls_index_check *check)
{
    ls_index_walk walk = ls_index_walk_begin(check);
    int64_t first_timestamp = -1;
    int is_true = check->is_doubtful == 0 && walk.pos >= 0 && walk.pos <= INT32_MAX;
    for (int32_t i = 0; is_true && i < count; i++) {
        const uint8_t *p = buf + block->crc_pos[i] - LS_MESSAGE_MAGIC_POS;
        int64_t timestamp = p[LS_MESSAGE_MAGIC_POS] == 0 ? -1 : ls_bytes_load_i64(p + LS_MESSAGE_TIMESTAMP_POS);
        ls_index_batch batch = {(int64_t)block->crc_size[i] + LS_MESSAGE_MAGIC_POS, block->offset[i], timestamp};
        first_timestamp = i == 0 ? timestamp : first_timestamp;
        is_true = ls_index_walk_over(&walk, &batch);
    }
    ls_index_walk_end(check, &walk, count, first_timestamp, is_true);
}
