/*
 * pyrecords_find.c - one record by its offset, or the first offset since a time, in one call: the indexes, one or two
 * reads, a walk over the headers, and the checksum of the batch that has the record.  Anything out of the ordinary (a
 * compressed batch, a gap, damage, a short read) gives None: the caller then reads as any reader does,
 * which finds out why.
 */
#include "pyrecords_append.h"

#include "ls_bytes.h"
#include "ls_format.h"

enum {
    READ_BYTES = 8192, /* two intervals of an offset index */
    BATCH_BYTES_MAX = 4 << 20,
    HEADERS = 16,
};

/* What is looked for, and in which segment. */
typedef struct {
    int fd;
    uint32_t checks;
    int64_t base_offset;
    int64_t next_offset;
    int64_t size;
    int64_t offset;
} pyrecords_target;

/* A step of the search: which bytes are read next. */
typedef struct {
    int64_t pos;
    int64_t bytes;
    int64_t before;   /* last offset of the batch before; LS_OFFSET_UNKNOWN */
    int64_t expected; /* last offset of the first batch, as the index has it; -1: nothing is known */
} pyrecords_step;

/* Memory that is used again: fresh pages cost as much as the read.  The interpreter lock guards it. */
static struct {
    uint8_t *data;
    size_t bytes;
    int is_taken;
} scratch;

static uint8_t *pyrecords_take(size_t bytes)
{
    if (scratch.is_taken || bytes > BATCH_BYTES_MAX / 4) {
        return PyMem_Malloc(bytes);
    }
    if (bytes > scratch.bytes) {
        uint8_t *grown = PyMem_Realloc(scratch.data, bytes);
        if (grown == NULL) {
            return NULL;
        }
        scratch.data = grown;
        scratch.bytes = bytes;
    }
    scratch.is_taken = 1;
    return scratch.data;
}

static void pyrecords_give_back(uint8_t *data)
{
    if (data == scratch.data) {
        scratch.is_taken = 0;
    } else {
        PyMem_Free(data);
    }
}

/* How many bytes after a batch `pyrecords_is_followed` looks at. */
static int64_t pyrecords_behind(const pyrecords_target *t)
{
    return t->checks & LS_CHECK_GAPLESS ? 0 : LS_FRAME_MIN_BYTES;
}

/* Whether the offset of a batch, which no checksum covers, is right: if there may be gaps, only the next batch shows
   that.  0 also if the next batch is not among these bytes, or is a wrapper, whose first offset they do not say. */
static int pyrecords_is_followed(const pyrecords_target *t, const uint8_t *data, int64_t bytes, const ls_batch *batch)
{
    if (pyrecords_behind(t) == 0) {
        return 1;
    }
    int64_t pos = batch->pos + batch->size;
    if (bytes - pos < LS_FRAME_MIN_BYTES) {
        return 0;
    }
    const uint8_t *next = data + pos;
    int is_wrapper =
        next[LS_FRAME_MAGIC_POS] < 2 && (next[LS_MESSAGE_ATTRIBUTES_POS] & LS_ATTRIBUTE_CODEC_MASK) != 0;
    return !is_wrapper && ls_bytes_load_i64(next) > batch->last_offset;
}

/* Begin at the last index entry that is not after the offset.  It is in one of the batches up to the next entry's. */
static pyrecords_step pyrecords_begin(const pyrecords_target *t, const uint8_t *entries, Py_ssize_t count)
{
    pyrecords_step step = {0, 0, t->base_offset - 1, -1};
    int64_t relative = 0;
    int64_t slot = pyrecords_core.index_floor(entries, count, t->offset - t->base_offset, &relative, &step.pos);
    if (slot >= 0) {
        step.before = LS_OFFSET_UNKNOWN;
        step.expected = t->checks & LS_CHECK_GAPLESS ? t->base_offset + relative : -1;
    }
    int64_t end = t->size;
    if (slot + 1 < count) {
        const uint8_t *next = entries + (slot + 1) * LS_INDEX_ENTRY_BYTES;
        end = (int64_t)ls_bytes_load_u32(next + LS_INDEX_POSITION_POS);
    }
    step.bytes = end - step.pos + pyrecords_behind(t);
    if (step.bytes > READ_BYTES) {
        step.bytes = LS_BATCH_HEADER_BYTES; /* a large batch, most probably one before: its header will do */
    }
    return step;
}

/* Fill a buffer from the file. */
static int pyrecords_read(const pyrecords_target *t, uint8_t *out, int64_t bytes, int64_t pos)
{
    return pyrecords_core.read(t->fd, out, bytes, pos) == bytes;
}

/*
 * Walk to the batch that has the offset.  1: it is in `batch`; 0: it is not in these bytes, and the walk has ended at
 * walk->pos; -1: nothing that can be read here.
 */
static int pyrecords_walk(const pyrecords_target *t, const uint8_t *data, int64_t bytes, int64_t first_last_offset,
                          ls_walk *walk, ls_batch *batch)
{
    ls_batch headers[HEADERS];
    do {
        if (pyrecords_core.scan_batches(data, bytes, t->checks & ~(uint32_t)LS_CHECK_CRC, headers, HEADERS, walk) < 0) {
            return -1;
        }
        for (int64_t i = 0; i < walk->count; i++) {
            if (headers[i].codec != 0 || headers[i].base_offset > t->offset
                || (first_last_offset >= 0 && headers[i].last_offset != first_last_offset)) {
                return -1;
            }
            first_last_offset = -1;
            if (headers[i].last_offset >= t->offset) {
                *batch = headers[i];
                return pyrecords_is_followed(t, data, bytes, batch) ? 1 : -1;
            }
        }
    } while (walk->stop == LS_STOP_FULL);
    return walk->stop == LS_STOP_PARTIAL || walk->stop == LS_STOP_END ? 0 : -1;
}

/* The record in columns of one element, if it is one; NULL without an error if not. */
static PyObject *pyrecords_of_columns(const pyrecords_target *t, const uint8_t *data, int64_t size,
                                      const ls_columns *columns)
{
    if (columns->count != 1 || columns->offset[0] != t->offset) {
        return NULL;
    }
    PyObject *headers = pyrecords_headers(data, size, columns->header_pos[0], columns->header_count[0]);
    if (headers == NULL) {
        return NULL;
    }
    PyObject *key = pyrecords_slice((const char *)data, columns->key_pos[0], columns->key_len[0]);
    PyObject *value =
        key == NULL ? NULL : pyrecords_slice((const char *)data, columns->value_pos[0], columns->value_len[0]);
    PyObject *record =
        pyrecords_record(t->offset, columns->timestamp[0], key, value, headers, columns->timestamp_type[0]);
    Py_DECREF(headers);
    return record;
}

/* The record of a batch, checksum checked; NULL without an error if the batch does not hold it. */
static PyObject *pyrecords_decode_one(const pyrecords_target *t, const uint8_t *data, const ls_batch *batch)
{
    int64_t offset = 0, timestamp = 0;
    int32_t key_pos = 0, key_len = 0, value_pos = 0, value_len = 0, header_pos = 0, header_count = 0;
    int8_t timestamp_type = 0;
    ls_columns one = {1, 0, &offset, &timestamp, &key_pos, &key_len, &value_pos, &value_len, &header_pos,
                      &header_count, &timestamp_type};
    ls_walk walk = {.pos = batch->pos, .last_offset = LS_OFFSET_UNKNOWN};
    int64_t end = batch->pos + batch->size;
    if (batch->last_offset >= t->next_offset) {
        return NULL;
    }
    if (batch->magic < 2) {
        int32_t status = pyrecords_core.decode(data, end, t->checks, t->offset, t->offset + 1, &one, &walk);
        return status < 0 ? NULL : pyrecords_of_columns(t, data, end, &one);
    }
    /* One by one, so that the number of a record follows from its offset. */
    int is_contiguous = batch->last_offset - batch->base_offset + 1 == batch->record_count;
    if ((batch->attributes & LS_ATTRIBUTE_CONTROL) != 0 || !is_contiguous) {
        return NULL;
    }
    ls_batch checked;
    if (pyrecords_core.scan_batches(data, end, t->checks, &checked, 1, &walk) < 0 || walk.count != 1) {
        return NULL;
    }
    const uint8_t *area = data + batch->pos + batch->payload_pos;
    int64_t number = t->offset - batch->base_offset, pos, bytes;
    if (pyrecords_core.locate_record(area, batch->payload_size, number, &pos, &bytes) < 0) {
        return NULL;
    }
    ls_error error;
    checked.record_count = 1;
    int32_t status = pyrecords_core.decode_payload(&checked, area + pos, bytes, t->checks, t->offset, t->offset + 1,
                                                   &one, NULL, &error);
    return status < 0 ? NULL : pyrecords_of_columns(t, area + pos, bytes, &one);
}

/*
 * The batch at `data` is not whole: skip it if it is before the offset, else have all of it read next.  0 where the
 * bytes do not say which.
 */
static int pyrecords_step_on(const pyrecords_target *t, const uint8_t *data, int64_t bytes, pyrecords_step *step)
{
    if (bytes < LS_BATCH_LAST_DELTA_POS + LS_BATCH_LAST_DELTA_BYTES) {
        /* None are left where damage has moved the last batch: the same bytes would be read for ever. */
        step->bytes = READ_BYTES;
        return bytes < t->size - step->pos;
    }
    int64_t first = ls_bytes_load_i64(data), last = first;
    int64_t size = (int64_t)ls_bytes_load_u32(data + LS_FRAME_LENGTH_POS) + LS_FRAME_PREFIX_BYTES;
    int magic = data[LS_FRAME_MAGIC_POS];
    if (magic == 2) {
        last += ls_bytes_load_u32(data + LS_BATCH_LAST_DELTA_POS);
    } else if (magic > LS_MAGIC_MAX || (data[LS_MESSAGE_ATTRIBUTES_POS] & LS_ATTRIBUTE_CODEC_MASK) != 0) {
        return 0;
    }
    if (first < 0 || last < first || size <= bytes || size > BATCH_BYTES_MAX || size > t->size - step->pos
        || (step->expected >= 0 && last != step->expected)
        || (step->before != LS_OFFSET_UNKNOWN && first <= step->before)) {
        return 0;
    }
    if (last >= t->offset) {
        step->bytes = size + pyrecords_behind(t);
        return first <= t->offset;
    }
    step->pos += size;
    step->before = last;
    step->expected = -1;
    step->bytes = LS_BATCH_HEADER_BYTES;
    return 1;
}

/* The record; NULL without an error if it cannot be found this way. */
static PyObject *pyrecords_search(const pyrecords_target *t, pyrecords_step step)
{
    uint8_t first[READ_BYTES];
    uint8_t *larger = NULL;
    PyObject *record = NULL;
    while (step.pos < t->size) {
        if (step.bytes > t->size - step.pos) {
            step.bytes = t->size - step.pos;
        }
        uint8_t *data = first;
        if (step.bytes > READ_BYTES) {
            /* Only the batch that has the record: the last step. */
            data = larger = pyrecords_take((size_t)step.bytes);
            if (larger == NULL) {
                return PyErr_NoMemory();
            }
        }
        if (step.bytes <= 0 || !pyrecords_read(t, data, step.bytes, step.pos)) {
            break;
        }
        ls_walk walk = {.pos = 0, .last_offset = step.before};
        ls_batch batch;
        int found = pyrecords_walk(t, data, step.bytes, step.expected, &walk, &batch);
        if (found > 0) {
            record = pyrecords_decode_one(t, data, &batch);
        }
        if (found != 0 || larger != NULL) {
            break;
        }
        if (walk.pos != 0) {
            step.before = walk.last_offset;
            step.expected = -1;
        }
        step.pos += walk.pos;
        if (walk.pos == step.bytes) {
            step.bytes = READ_BYTES;
        } else if (!pyrecords_step_on(t, data + walk.pos, step.bytes - walk.pos, &step)) {
            break;
        }
    }
    if (larger != NULL) {
        pyrecords_give_back(larger);
    }
    return record;
}

/* The bytes of an argument; NULL with an error set. */
static const uint8_t *pyrecords_bytes_of(PyObject *entries, Py_ssize_t count, Py_ssize_t entry_bytes)
{
    const char *data = NULL;
    Py_ssize_t bytes = 0;
    if (entries == NULL) {
        PyErr_SetString(PyExc_TypeError, "there are no entries");
        return NULL;
    }
    if (PyByteArray_Check(entries)) {
        data = PyByteArray_AsString(entries);
        bytes = PyByteArray_Size(entries);
    } else if (PyBytes_Check(entries)) {
        data = PyBytes_AsString(entries);
        bytes = PyBytes_Size(entries);
    } else {
        PyErr_SetString(PyExc_TypeError, "entries are bytes or a bytearray");
        return NULL;
    }
    if (pyrecords_core.decode == NULL || count < 0 || bytes / entry_bytes < count) {
        PyErr_SetString(PyExc_ValueError, "count is not that of the entries, or the core is not connected");
        return NULL;
    }
    return (const uint8_t *)data;
}

/*
 * find(fd, entries, base_offset, next_offset, size, checks, offset) -> Record or None
 *
 * `entries` are an offset index's, which are not used any more when the log is read: then other threads may
 * add some.  `size` is where the valid bytes of the log end.
 */
PyObject *pyrecords_find(PyObject *module, PyObject *args)
{
    (void)module;
    pyrecords_entries *entries;
    long long base_offset, next_offset, size, offset;
    pyrecords_target target;
    if (!PyArg_ParseTuple(args, "iO!LLLIL", &target.fd, pyrecords_entries_type, &entries, &base_offset, &next_offset,
                          &size, &target.checks, &offset)) {
        return NULL;
    }
    target.base_offset = base_offset;
    target.next_offset = next_offset;
    target.size = size;
    target.offset = offset;
    const uint8_t *data = pyrecords_bytes_of(entries->data, entries->count, LS_INDEX_ENTRY_BYTES);
    if (data == NULL) {
        return NULL;
    }
    PyObject *record = pyrecords_search(&target, pyrecords_begin(&target, data, entries->count));
    if (record == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return record;
}

/* ------------------------------------------------------------------ by time */

enum { TIME_RECORDS = 512, TIME_STEPS = 4 };

/* Where a search for a time stands. */
typedef struct {
    int64_t start;     /* offsets before it do not count */
    int64_t timestamp; /* the least that counts */
    int64_t pos;       /* of the next batch */
    int64_t before;    /* last offset of the batch before; LS_OFFSET_UNKNOWN */
    int64_t offset;    /* the result */
} pyrecords_since;

/*
 * Step over the batch that a time index entry names: it has the largest timestamp so far, and that is too old.  0
 * if the bytes do not agree with the entry.
 */
static int pyrecords_step_over(const uint8_t *data, int64_t bytes, int64_t offset, int64_t timestamp,
                               pyrecords_since *since)
{
    if (bytes < LS_BATCH_HEADER_BYTES) {
        return 0;
    }
    int64_t last = ls_bytes_load_i64(data), largest;
    if (data[LS_FRAME_MAGIC_POS] == 2) {
        last += ls_bytes_load_u32(data + LS_BATCH_LAST_DELTA_POS);
        largest = ls_bytes_load_i64(data + LS_BATCH_MAX_TIMESTAMP_POS);
    } else if (data[LS_FRAME_MAGIC_POS] == 1) {
        largest = ls_bytes_load_i64(data + LS_MESSAGE_TIMESTAMP_POS);
    } else {
        return 0;
    }
    if (last != offset || largest != timestamp) {
        return 0;
    }
    since->pos += (int64_t)ls_bytes_load_u32(data + LS_FRAME_LENGTH_POS) + LS_FRAME_PREFIX_BYTES;
    since->before = last;
    return 1;
}

/* Small batches, all of them decoded: 1 found, 0 continue, -1 nothing that can be read here. */
static int pyrecords_since_small(const pyrecords_target *t, const uint8_t *data, int64_t bytes, pyrecords_since *since)
{
    int64_t offset[TIME_RECORDS], timestamp[TIME_RECORDS];
    int32_t key_pos[TIME_RECORDS], key_len[TIME_RECORDS], value_pos[TIME_RECORDS], value_len[TIME_RECORDS];
    ls_columns columns = {TIME_RECORDS, 0, offset, timestamp, key_pos, key_len, value_pos, value_len, NULL, NULL, NULL};
    ls_walk walk = {.pos = 0, .last_offset = since->before};
    if (pyrecords_core.decode(data, bytes, t->checks, since->start, INT64_MAX, &columns, &walk) < 0) {
        return -1;
    }
    for (int64_t i = 0; i < columns.count; i++) {
        if (timestamp[i] >= since->timestamp) {
            pyrecords_target found = *t;
            ls_walk again = {.pos = 0, .last_offset = since->before};
            ls_batch batch;
            since->offset = found.offset = offset[i];
            return pyrecords_walk(&found, data, bytes, -1, &again, &batch);
        }
    }
    since->pos += walk.pos;
    since->before = walk.last_offset;
    return walk.pos == 0 || walk.stop == LS_STOP_COMPRESSED || walk.stop == LS_STOP_ZEROS ? -1 : 0;
}

/* One large batch of magic 2, of `bytes` bytes, and the bytes read after it: as above. */
static int pyrecords_since_large(const pyrecords_target *t, const uint8_t *data, int64_t size, int64_t bytes,
                                 pyrecords_since *since)
{
    ls_batch batch;
    ls_walk walk = {.pos = 0, .last_offset = since->before};
    if (pyrecords_core.scan_batches(data, size, t->checks, &batch, 1, &walk) < 0 || walk.count != 1 || batch.codec != 0
        || (batch.attributes & LS_ATTRIBUTE_CONTROL) != 0) {
        return -1;
    }
    since->pos += batch.size;
    since->before = batch.last_offset;
    if (batch.max_timestamp < since->timestamp || batch.last_offset < since->start) {
        return 0;
    }
    int64_t delta, offset_delta = 0;
    if (batch.base_offset < since->start || __builtin_sub_overflow(since->timestamp, batch.base_timestamp, &delta)) {
        return -1;
    }
    if (batch.timestamp_type == 0
        && (pyrecords_core.locate_time(data + batch.payload_pos, batch.payload_size, batch.record_count, delta,
                                       &offset_delta) < 0
            || offset_delta < 0)) {
        return -1;
    }
    since->offset = batch.base_offset + offset_delta;
    return since->offset <= batch.last_offset && pyrecords_is_followed(t, data, bytes, &batch) ? 1 : -1;
}

/* One step from since->pos: as above.  `first`: the `have` bytes read there. */
static int pyrecords_since_step(const pyrecords_target *t, const uint8_t *first, int64_t have, pyrecords_since *since)
{
    int64_t size = (int64_t)ls_bytes_load_u32(first + LS_FRAME_LENGTH_POS) + LS_FRAME_PREFIX_BYTES;
    if (size <= have) {
        return pyrecords_since_small(t, first, have, since);
    }
    if (first[LS_FRAME_MAGIC_POS] != 2 || size > BATCH_BYTES_MAX || size > t->size - since->pos) {
        return -1;
    }
    int64_t bytes = size + pyrecords_behind(t), left = t->size - since->pos;
    bytes = bytes < left ? bytes : left;
    uint8_t *larger = pyrecords_take((size_t)bytes);
    if (larger == NULL) {
        return -1;
    }
    int found =
        pyrecords_read(t, larger, bytes, since->pos) ? pyrecords_since_large(t, larger, size, bytes, since) : -1;
    pyrecords_give_back(larger);
    return found;
}

/* Whether there is a record since the time within a few steps. */
static int pyrecords_search_time(const pyrecords_target *t, pyrecords_since *since, int64_t entry_offset,
                                 int64_t entry_timestamp)
{
    uint8_t data[READ_BYTES];
    int is_entry = entry_offset >= 0;
    for (int step = 0; step < TIME_STEPS && since->pos < t->size; step++) {
        int64_t at = since->pos;
        int64_t bytes = t->size - at < READ_BYTES ? t->size - at : READ_BYTES;
        if (bytes < LS_FRAME_MIN_BYTES || !pyrecords_read(t, data, bytes, at)) {
            return 0;
        }
        if (is_entry) {
            if (!pyrecords_step_over(data, bytes, entry_offset, entry_timestamp, since)) {
                return 0;
            }
            is_entry = 0;
            if (since->pos - at > bytes - LS_FRAME_MIN_BYTES) {
                continue;
            }
        }
        int found = pyrecords_since_step(t, data + (since->pos - at), bytes - (since->pos - at), since);
        if (found != 0) {
            return found > 0;
        }
    }
    return 0;
}

/*
 * find_time(fd, times, entries, base_offset, next_offset, size, checks, start, timestamp) -> offset or None
 *
 * The first offset from `start` on whose record has this timestamp or a later one, in one segment.  `times` and
 * `entries` are its two indexes' entries; the others as for `find`.  `timestamp` is not INT64_MIN.
 */
PyObject *pyrecords_find_time(PyObject *module, PyObject *args)
{
    (void)module;
    pyrecords_entries *times, *entries;
    long long base_offset, next_offset, size, start, timestamp;
    pyrecords_target t;
    if (!PyArg_ParseTuple(args, "iO!O!LLLILL", &t.fd, pyrecords_entries_type, &times, pyrecords_entries_type, &entries,
                          &base_offset, &next_offset, &size, &t.checks, &start, &timestamp)) {
        return NULL;
    }
    const Py_ssize_t time_count = times->count, count = entries->count;
    const uint8_t *time_data = pyrecords_bytes_of(times->data, time_count, LS_TIME_ENTRY_BYTES);
    const uint8_t *data = time_data == NULL ? NULL : pyrecords_bytes_of(entries->data, count, LS_INDEX_ENTRY_BYTES);
    if (data == NULL) {
        return NULL;
    }
    t.base_offset = base_offset;
    t.next_offset = next_offset;
    t.size = size;
    pyrecords_since since = {start, timestamp, 0, base_offset - 1, -1};
    int64_t entry_timestamp = 0, relative = 0, entry_offset = -1;
    if (pyrecords_core.time_floor(time_data, time_count, timestamp - 1, &entry_timestamp, &relative) >= 0) {
        int64_t indexed = -1;
        if (pyrecords_core.index_floor(data, count, relative, &indexed, &since.pos) < 0 || indexed != relative) {
            Py_RETURN_NONE;
        }
        entry_offset = base_offset + relative;
        since.before = LS_OFFSET_UNKNOWN;
    }
    if (!pyrecords_search_time(&t, &since, entry_offset, entry_timestamp) || since.offset < start
        || since.offset >= next_offset) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(since.offset);
}

/* ------------------------------------------------------------------ one entry */

/*
 * floor(entries, count, target, is_time) -> (slot, first, second): the greatest entry of an index whose first number is
 * at most a target, and its two numbers; slot -1: not found.
 */
PyObject *pyrecords_floor(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    Py_ssize_t count;
    long long target;
    int is_time;
    if (!PyArg_ParseTuple(args, "OnLp", &entries, &count, &target, &is_time)) {
        return NULL;
    }
    const uint8_t *data = pyrecords_bytes_of(entries, count, is_time ? LS_TIME_ENTRY_BYTES : LS_INDEX_ENTRY_BYTES);
    if (data == NULL) {
        return NULL;
    }
    int64_t first = 0, second = 0;
    int64_t slot = is_time ? pyrecords_core.time_floor(data, count, target, &first, &second)
                           : pyrecords_core.index_floor(data, count, target, &first, &second);
    return Py_BuildValue("LLL", (long long)slot, (long long)first, (long long)second);
}
