/*
 * pyrecords_write.c - one append of PreparedAppend: encoded, planned, written and shown, with the interpreter lock held
 * and no Python code in between.
 */
#include "pyrecords_append.h"

#include <errno.h>
#include <string.h>

#include "ls_format.h"

enum {
    STEP_BYTES = 256 * 1024, /* what is encoded with the interpreter lock held (LS_GIL_BYTES) */
    STEP_ENTRIES = 1024
};

/* Records that are encoded, with the objects that say so. */
typedef struct {
    ls_segment_state state;
    ls_plan plan;
    PyObject *bounds;
    PyObject *end;
    PyObject *size;
    const uint8_t *bytes; /* ready to be written */
    const uint8_t *index_entries;
    const uint8_t *time_entries;
    PyObject *copies; /* of these, where methods in Python are called: another append may come between */
    pyrecords_writer *writer; /* NULL: no such method is called, and no write has failed */
    int32_t failure;  /* of a write, of which a part may be in the file */
    PyObject *error; /* that a method has raised */
} pyrecords_next;

static PyObject *pyrecords_intact; /* SegmentWriter.dirty if no index entry was added */
/* Used from one check to the end of its append only. */
static uint8_t pyrecords_bytes[STEP_BYTES];
static uint8_t pyrecords_index_entries[STEP_ENTRIES * LS_INDEX_ENTRY_BYTES];
static uint8_t pyrecords_time_entries[STEP_ENTRIES * LS_TIME_ENTRY_BYTES];
static uint64_t pyrecords_uses; /* of pyrecords_bytes */
static struct {
    int64_t offset[PYRECORDS_ROWS_MAX], timestamp[PYRECORDS_ROWS_MAX];
    int32_t key_pos[PYRECORDS_ROWS_MAX], key_len[PYRECORDS_ROWS_MAX];
    int32_t value_pos[PYRECORDS_ROWS_MAX], value_len[PYRECORDS_ROWS_MAX];
    int32_t header_pos[PYRECORDS_ROWS_MAX], header_count[PYRECORDS_ROWS_MAX];
} pyrecords_decoded;

/* ---------------------------------------------------------------- what may run Python code */

PyObject *pyrecords_new_bounds(PyObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    return allocate((PyTypeObject *)type, PYRECORDS_BOUNDS_ITEMS);
}

/* Take batches for the next call of pyrecords_append_source: 1, or 0 if they are too large. */
static int pyrecords_take(const uint8_t *data, int64_t size, pyrecords_source *from)
{
    if (size <= 0 || size > STEP_BYTES) {
        return 0;
    }
    memcpy(pyrecords_bytes, data, (size_t)size);
    pyrecords_uses += 1;
    from->taken = pyrecords_uses;
    from->batches = size;
    return 1;
}

int pyrecords_take_encoded(const pyrecords_append *self, const uint8_t *data, int64_t size, pyrecords_source *from)
{
    return !self->facts->needs_keys && self->facts->magic == 2 && !self->facts->is_append_time && pyrecords_take(data, size, from);
}

int pyrecords_take_batches(const pyrecords_append *self, const uint8_t *data, int64_t size, pyrecords_source *from)
{
    ls_columns columns = {
        .capacity = PYRECORDS_ROWS_MAX,
        .offset = pyrecords_decoded.offset,
        .timestamp = pyrecords_decoded.timestamp,
        .key_pos = pyrecords_decoded.key_pos,
        .key_len = pyrecords_decoded.key_len,
        .value_pos = pyrecords_decoded.value_pos,
        .value_len = pyrecords_decoded.value_len,
        .header_pos = pyrecords_decoded.header_pos,
        .header_count = pyrecords_decoded.header_count,
    };
    ls_walk walk = {0};
    int64_t least = self->facts->is_append_time ? INT64_MIN : -1;
    if (self->facts->needs_keys || !pyrecords_take(data, size, from)
        || pyrecords_core.check_producer(pyrecords_bytes, size, self->facts->max_bytes, least, &columns, &walk,
                                         &from->rows.count)
               != LS_OK
        || walk.pos != size) {
        return 0;
    }
    from->has_producer = pyrecords_core.has_producer(pyrecords_bytes, size);
    return 1;
}

/* ---------------------------------------------------------------- the step: no Python code */

int pyrecords_is_open(const pyrecords_append *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->quiet); i++) {
        if (PyObject_Size(PyTuple_GetItem(self->quiet, i)) != 0) {
            return 0;
        }
    }
    return !self->health->is_blocked;
}

int pyrecords_is_ready(const pyrecords_append *self)
{
    if (self->writer == NULL || !pylocks_is_untouched(self->lock, self->takes)) {
        return 0;
    }
    return pyrecords_is_open(self);
}

/* Whether this thread has the lock, and has prepared a step since it took it. */
static int pyrecords_is_held(const pyrecords_append *self)
{
    return self->lock->owner == PyThread_get_thread_ident() && pyrecords_has_step(self, self->writer, 0);
}

int pyrecords_is_held_ready(const pyrecords_append *self)
{
    return pyrecords_is_held(self) && !self->health->is_blocked;
}

/* Give batches their offsets, and plan their append: their bytes, or 0 if they need the usual way. */
static int64_t pyrecords_place(pyrecords_append *self, const pyrecords_source *from, int64_t now, pyrecords_next *next)
{
    ls_error error;
    int64_t time = self->facts->is_append_time ? now : -1;
    if (from->taken != pyrecords_uses
        || pyrecords_core.place_batches(pyrecords_bytes, from->batches, from->base, self->facts->leader_epoch, time) != LS_OK
        || pyrecords_core.plan_append(pyrecords_bytes, from->batches, &self->facts->limits, self->facts->limits.index_interval_bytes,
                                      &next->state, pyrecords_index_entries, STEP_ENTRIES, pyrecords_time_entries,
                                      STEP_ENTRIES, &next->plan, &error)
               != LS_OK) {
        return 0;
    }
    int is_whole = next->plan.bytes == from->batches
                && next->state.last_offset == self->facts->state->last_offset + from->rows.count;
    int is_next = !from->has_producer
               || pyrecords_core.check_sequences(self->producers, self->producer_count, pyrecords_bytes, from->batches,
                                                 now, self->expiry_ms);
    return is_whole && is_next ? from->batches : 0;
}

/* Whether each row has a key. */
static int pyrecords_has_keys(const ls_records *rows)
{
    for (int64_t i = 0; i < rows->count; i++) {
        if (rows->key.len == NULL || rows->key.len[i] < 0) {
            return 0;
        }
    }
    return 1;
}

/* Encode rows, and plan their append: their bytes, or 0 if they need the usual way. */
static int64_t pyrecords_encode(pyrecords_append *self, const pyrecords_source *from, int64_t now, pyrecords_next *next)
{
    ls_error error;
    ls_records rows = from->rows;
    pyrecords_uses += 1;
    int is_whole = from->arrow.count > 0 ? pyrecords_rows_of_arrow(&from->arrow, &rows)
                                         : pyrecords_rows_of(&from->lists, &rows);
    if (!is_whole || (self->facts->needs_keys && !pyrecords_has_keys(&rows))) {
        return 0;
    }
    /* Here, and not before the check: the settings may have changed meanwhile. */
    if (self->facts->is_append_time) {
        rows.timestamp = NULL;
        rows.timestamp_all = -1;
    }
    if (rows.timestamp_all < 0) {
        rows.timestamp_all = now;
    }
    return pyrecords_core.append_records(&rows, self->facts->magic, self->facts->attributes, self->facts->leader_epoch, self->facts->max_bytes,
                                         self->facts->batch_target, &self->facts->limits, &next->state, pyrecords_bytes, STEP_BYTES,
                                         pyrecords_index_entries, pyrecords_time_entries, STEP_ENTRIES, &next->plan,
                                         &error);
}

/* Make the bytes to write: how many, or 0 if the records need the usual way. */
static int64_t pyrecords_make_bytes(pyrecords_append *self, const pyrecords_source *from, int64_t now,
                                    pyrecords_next *next)
{
    int has_epoch = self->facts->leader_epoch >= 0 || (self->facts->magic < 2 && from->batches == 0);
    if (from->base != self->facts->state->last_offset + 1 || !has_epoch || (from->batches == 0 && !self->facts->is_plain)) {
        return 0;
    }
    self->facts->limits.now_ms = now;
    self->facts->limits.is_in_parts = from->is_checked;
    next->state = *self->facts->state;
    int64_t bytes =
        from->batches > 0 ? pyrecords_place(self, from, now, next) : pyrecords_encode(self, from, now, next);
    if (bytes <= 0 || next->state.size > self->facts->steps_end || next->state.last_offset >= self->facts->end - 1) {
        return 0;
    }
    return bytes;
}

/* Whether an index has room for `count` more entries. */
static int pyrecords_has_room(const pyrecords_entries *entries, int64_t count, Py_ssize_t entry_bytes)
{
    if (count == 0) {
        return 1;
    }
    return entries->count >= 0 && entries->data != NULL && PyByteArray_CheckExact(entries->data)
        && PyByteArray_Size(entries->data) / entry_bytes - entries->count >= count;
}

static int pyrecords_have_room(const pyrecords_append *self, const ls_plan *plan)
{
    return pyrecords_has_room(self->index, plan->index_count, LS_INDEX_ENTRY_BYTES)
        && pyrecords_has_room(self->times, plan->time_count, LS_TIME_ENTRY_BYTES);
}

int pyrecords_fill_bounds(const pyrecords_append *self, PyObject *next, Py_ssize_t place, PyObject *other)
{
    PyObject *before = self->log->bounds;
    if (before == NULL || (PyObject *)Py_TYPE(before) != self->bounds
        || PyTuple_Size(before) != PYRECORDS_BOUNDS_ITEMS) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PYRECORDS_BOUNDS_ITEMS; i++) {
        PyObject *item = i == place ? other : PyTuple_GetItem(before, i);
        Py_INCREF(item);
        if (PyTuple_SetItem(next, i, item) < 0) {
            return -1;
        }
    }
    return 1;
}

int64_t pyrecords_extent_offset(const pyrecords_append *self, Py_ssize_t place)
{
    PyObject *bounds = self->log->bounds;
    if (bounds == NULL || (PyObject *)Py_TYPE(bounds) != self->bounds) {
        PyErr_SetString(PyExc_AttributeError, "the log has no bounds");
        return -1;
    }
    PyObject *offset = PyTuple_GetItem(bounds, place);
    return offset == NULL ? -1 : PyLong_AsLongLong(offset);
}

/* Fill the new bounds, and make the other objects: 1; 0 if the log does not end here; -1 with an error set. */
static int pyrecords_make_objects(const pyrecords_append *self, pyrecords_next *next)
{
    next->end = PyLong_FromLongLong(next->state.last_offset + 1);
    next->size = PyLong_FromLongLong(next->state.size);
    int status = next->end == NULL || next->size == NULL
                     ? -1
                     : pyrecords_fill_bounds(self, next->bounds, PYRECORDS_BOUNDS_END, next->end);
    if (status > 0) {
        status = pyrecords_extent_offset(self, PYRECORDS_BOUNDS_END) == self->facts->state->last_offset + 1;
    }
    return PyErr_Occurred() ? -1 : status;
}

static void pyrecords_add(pyrecords_entries *entries, const uint8_t *added, int64_t count, Py_ssize_t entry_bytes)
{
    if (count > 0) {
        char *end = PyByteArray_AsString(entries->data) + entries->count * entry_bytes;
        memcpy(end, added, (size_t)(count * entry_bytes));
        entries->count += (Py_ssize_t)count; /* last: so other threads see no half of it */
    }
}

/* Keep what is encoded until it is shown: 0, or -1 with an error set. */
static int pyrecords_keep_encoded(const pyrecords_append *self, pyrecords_next *next, int64_t bytes)
{
    next->bytes = pyrecords_bytes;
    next->index_entries = pyrecords_index_entries;
    next->time_entries = pyrecords_time_entries;
    if (!pyrecords_calls(self, PYRECORDS_WRITE)) {
        return 0;
    }
    next->writer = self->writer;
    Py_INCREF(next->writer);
    const int64_t index_bytes = next->plan.index_count * LS_INDEX_ENTRY_BYTES;
    const int64_t time_bytes = next->plan.time_count * LS_TIME_ENTRY_BYTES;
    next->copies = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(bytes + index_bytes + time_bytes));
    if (next->copies == NULL) {
        return -1;
    }
    uint8_t *copy = (uint8_t *)PyBytes_AsString(next->copies);
    next->bytes = memcpy(copy, pyrecords_bytes, (size_t)bytes);
    copy += bytes;
    next->index_entries = memcpy(copy, pyrecords_index_entries, (size_t)index_bytes);
    copy += index_bytes;
    next->time_entries = memcpy(copy, pyrecords_time_entries, (size_t)time_bytes);
    return 0;
}

/*
 * Write what is encoded: 0; -EINTR if nothing is written; another negative number if a part may be.  The frame of
 * the first of several batches is written last: until then zeros in its place end the log for readers of other
 * processes, and for recovery.
 */
static int32_t pyrecords_write(const pyrecords_append *self, const pyrecords_next *next, int64_t bytes)
{
    const pyrecords_system *system = &self->system;
    int fd = self->facts->fd;
    int64_t held = next->plan.batches > 1 ? LS_FRAME_HEADER_BYTES : 0;
    int64_t pos = self->facts->state->size;
    int32_t status = system->write(system, fd, next->bytes + held, bytes - held, pos + held);
    if (status < 0 || held == 0) {
        return status;
    }
    do {
        status = system->write(system, fd, next->bytes, held, pos);
    } while (status == -EINTR);
    return status;
}

/* Make the written records visible to all threads. */
static void pyrecords_show(pyrecords_append *self, const pyrecords_source *from, const pyrecords_next *next)
{
    if (from->has_producer) {
        pyrecords_core.add_sequences(self->producers, self->producer_count, next->bytes, from->batches);
    }
    pyrecords_add(self->index, next->index_entries, next->plan.index_count, LS_INDEX_ENTRY_BYTES);
    pyrecords_add(self->times, next->time_entries, next->plan.time_count, LS_TIME_ENTRY_BYTES);
    *self->facts->state = next->state;
    pyrecords_set(&self->segment->next_offset, next->end);
    pyrecords_set(&self->segment->size, next->size);
    pyrecords_set(&self->log->bounds, next->bounds);
}

/* A write has failed: from now on all threads see that it must first be undone. */
static void pyrecords_tear(pyrecords_append *self, pyrecords_next *next, int32_t status)
{
    next->failure = status;
    if (next->writer == NULL) {
        next->writer = self->writer;
        Py_INCREF(next->writer);
    }
    if (status == PYRECORDS_RAISED) {
        next->error = pyrecords_take_error(status);
    }
    pyrecords_set(&next->writer->dirty, pyrecords_intact);
    self->health->is_blocked = 1;
    self->health->is_torn = 1;
}

/* The whole step: 1; 0 where the records go the usual way; -1 with an error set, or `next->failure`. */
static int pyrecords_step(pyrecords_append *self, const pyrecords_source *from, int64_t now, pyrecords_next *next)
{
    int64_t bytes = pyrecords_make_bytes(self, from, now, next);
    if (bytes == 0 || !pyrecords_have_room(self, &next->plan)) {
        return 0;
    }
    int status = pyrecords_make_objects(self, next);
    if (status <= 0) {
        return status;
    }
    if (pyrecords_keep_encoded(self, next, bytes) < 0) {
        return -1;
    }
    int32_t written = pyrecords_write(self, next, bytes);
    if (written == -EINTR) {
        return 0;
    }
    if (written < 0) {
        pyrecords_tear(self, next, written);
        return -1;
    }
    if (pyrecords_calls(self, PYRECORDS_WRITE)
        && !(pyrecords_has_step(self, next->writer, !from->is_held) && pyrecords_have_room(self, &next->plan))) {
        return 0; /* this is the child of a fork: the usual way says so */
    }
    pyrecords_show(self, from, next);
    return 1;
}

/* Undo a write that has failed, with the lock of the log, and raise its error. */
static void pyrecords_undo(const pyrecords_append *self, const pyrecords_next *next)
{
    PyObject *error = PyObject_CallFunction(self->undo, "OO", (PyObject *)next->writer, next->error);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

/* The same, for a step that took the lock itself, or not at all, unless `is_held`: -1. */
static int pyrecords_raise_failure(const pyrecords_append *self, pyrecords_next *next, int is_held)
{
    if (next->error == NULL) {
        next->error = pyrecords_take_error(next->failure);
    }
    if (next->error == NULL || (!is_held && pyrecords_locks->enter((PyObject *)self->lock) < 0)) {
        return -1; /* the log is torn: the next call undoes it */
    }
    pyrecords_undo(self, next);
    if (is_held) {
        return -1;
    }
    pyrecords_locks->leave((PyObject *)self->lock);
    return pyrecords_run_deferred(-1);
}

/* Begin a step of a thread that has the lock: as pyrecords_begin_step. */
static int pyrecords_begin_held_step(const pyrecords_append *self, int is_checked)
{
    int is_ready = is_checked ? pyrecords_is_held(self) : pyrecords_is_held_ready(self);
    return PyErr_Occurred() ? -1 : is_ready;
}

int pyrecords_append_source(pyrecords_append *self, const pyrecords_source *from)
{
    int64_t now = from->is_timed ? from->rows.timestamp_all : self->system.now_ms(&self->system);
    if (now < 0) {
        return PyErr_Occurred() ? -1 : 0;
    }
    pyrecords_next next = {.bounds = pyrecords_new_bounds(self->bounds)};
    int status = next.bounds == NULL ? -1 : from->is_held ? pyrecords_begin_held_step(self, from->is_checked)
                                                         : pyrecords_begin_step(self);
    if (status > 0) {
        status = pyrecords_step(self, from, now, &next);
        status = from->is_held ? status : pyrecords_end_step(self, status);
    }
    if (next.failure != 0 && !PyErr_Occurred()) {
        status = pyrecords_raise_failure(self, &next, from->is_held);
    }
    Py_XDECREF(next.end);
    Py_XDECREF(next.size);
    Py_XDECREF(next.bounds);
    if (next.writer != NULL) {
        Py_XDECREF(next.copies);
        Py_XDECREF(next.error);
        Py_DECREF(next.writer);
    }
    return status;
}

int pyrecords_prepare_steps(void)
{
    /* As many entries as there are. */
    pyrecords_intact = Py_BuildValue("(nn)", PY_SSIZE_T_MAX, PY_SSIZE_T_MAX);
    return pyrecords_intact == NULL ? -1 : 0;
}
