/*
 * pyrecords_find.c - one record by its offset, in one call: the index, one read, a walk over the headers, and the
 * checksum of the batch that has the record.  Anything out of the ordinary (a compressed batch, a gap, damage, a short read) has None as its result: the caller then reads as any reader does, which finds out why.
 */
#include "pyrecords.h"

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
    step.bytes = end - step.pos;
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
                return 1;
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

/* The record of a batch, checksum checked; NULL without an error where there is none. */
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
        step->bytes = bytes < READ_BYTES ? READ_BYTES : 0;
        return step->bytes > 0;
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
        step->bytes = size;
        return first <= t->offset;
    }
    step->pos += size;
    step->before = last;
    step->expected = -1;
    step->bytes = LS_BATCH_HEADER_BYTES;
    return 1;
}

/* The record; NULL without an error where it cannot be had this way. */
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

/*
 * find(fd, entries, count, base_offset, next_offset, size, checks, offset) -> Record or None
 *
 * `entries` are the bytes of an offset index, of which `count` entries are used; `size` is where the valid bytes of the
 * log end.
 */
PyObject *pyrecords_find(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    Py_ssize_t count;
    long long base_offset, next_offset, size, offset;
    pyrecords_target target;
    if (!PyArg_ParseTuple(args, "iOnLLLIL", &target.fd, &entries, &count, &base_offset, &next_offset, &size,
                          &target.checks, &offset)) {
        return NULL;
    }
    target.base_offset = base_offset;
    target.next_offset = next_offset;
    target.size = size;
    target.offset = offset;
    const char *data;
    Py_ssize_t bytes;
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
    if (pyrecords_core.decode == NULL || count < 0 || bytes / LS_INDEX_ENTRY_BYTES < count) {
        PyErr_SetString(PyExc_ValueError, "count is not that of the entries, or the core is not connected");
        return NULL;
    }
    PyObject *record = pyrecords_search(&target, pyrecords_begin(&target, (const uint8_t *)data, count));
    if (record == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return record;
}
