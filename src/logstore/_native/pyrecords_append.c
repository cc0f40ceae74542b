/*
 * pyrecords_append.c - PreparedAppend: small appends to a log, each in one step.
 *
 * The usual way of an append (Appender.append_one, append_rows) takes the lock of the log, makes sure that the log takes
 * appends, writes, and tells all parts of the log.  After it has done so once, nearly all of it holds for the next
 * append, for as long as nobody takes that lock: all that changes the log takes it.  So it leaves here what it knows
 * (`prepare`), and the lock counts how often it is taken.  An append for which something else is to be done (another
 * segment, a sync, a waiting reader, an object that is not of the type bytes, more bytes than there is room for, ...)
 * goes the usual way again, which prepares anew.
 *
 * From the check of the lock to its end, an append keeps the interpreter lock and runs no Python code: to all other
 * threads, signal handlers and finalizers it is one step, and needs no lock itself.  What may run Python code comes
 * before that check, what may fail for lack of memory before the write.
 */
#include "pyrecords.h"

#include <errno.h>
#include <string.h>

#include "ls_format.h"
#include "pylocks_mutex.h"

enum {
    STEP_BYTES = 256 * 1024, /* what is encoded with the interpreter lock held (LS_GIL_BYTES) */
    STEP_ENTRIES = 1024,
    EXTENT_ITEMS = 6,
    EXTENT_END = 2
};

typedef struct {
    PyObject_HEAD
    /* For all its life. */
    PyObject *log;    /* LogWriter */
    PyObject *health; /* of the log */
    PyObject *lock;   /* of the log */
    PyObject *extent; /* the type Extent */
    PyObject *quiet;  /* a tuple of containers: while one of them is not empty, records go the usual way */
    /* Until the lock is taken; NULL: nothing is prepared. */
    PyObject *writer; /* SegmentWriter; it owns what the addresses below point to, and `fd` */
    PyObject *segment;
    PyObject *index; /* OffsetEntries */
    PyObject *times; /* TimeEntries */
    ls_segment_state *state;
    ls_roll_limits limits;
    int64_t max_bytes;
    int64_t batch_target;
    int64_t reserved; /* bytes of the file that the disk has room for */
    int64_t end;      /* the log stays below this offset */
    uint64_t takes;   /* of the lock */
    int fd;
    int magic;
    int attributes;
    int leader_epoch;
    int is_append_time;
} pyrecords_append;

/* Entries that one index gets. */
typedef struct {
    PyObject *entries; /* Entries */
    PyObject *data;    /* its buffer */
    PyObject *count;   /* its new count */
    Py_ssize_t pos;
    Py_ssize_t bytes;
} pyrecords_addition;

/* Records that are encoded, with the objects that say so. */
typedef struct {
    ls_segment_state state;
    ls_plan plan;
    pyrecords_addition index;
    pyrecords_addition times;
    PyObject *extent;
    PyObject *end;
    PyObject *size;
} pyrecords_next;

/* Where the records of an append come from. */
typedef struct {
    pyrecords_lists lists;
    ls_records rows; /* without what is in lists */
    int64_t base;    /* the offset of the first one */
} pyrecords_source;

static struct {
    PyObject *count, *data, *dirty, *extent, *is_blocked, *next_offset, *size, *time_ns;
} pyrecords_names;
static PyObject *pyrecords_clock;  /* the module time */
static PyObject *pyrecords_intact; /* SegmentWriter.dirty where no index entry was added */
/* Used from one check to the end of its append only. */
static uint8_t pyrecords_bytes[STEP_BYTES];
static uint8_t pyrecords_index_entries[STEP_ENTRIES * LS_INDEX_ENTRY_BYTES];
static uint8_t pyrecords_time_entries[STEP_ENTRIES * LS_TIME_ENTRY_BYTES];

/* ---------------------------------------------------------------- what may run Python code */

/* Unix milliseconds, by time.time_ns(); -1 with an error set. */
static int64_t pyrecords_now(void)
{
    PyObject *function = PyObject_GetAttr(pyrecords_clock, pyrecords_names.time_ns);
    PyObject *ns = function == NULL ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(function);
    int64_t now = ns == NULL ? -1 : PyLong_AsLongLong(ns);
    Py_XDECREF(ns);
    return now < 0 ? now : now / 1000000;
}

static PyObject *pyrecords_new_extent(PyObject *type)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    return allocate((PyTypeObject *)type, EXTENT_ITEMS);
}

/* ---------------------------------------------------------------- the step: no Python code */

/* Whether nothing speaks against an append of this kind. */
static int pyrecords_is_ready(const pyrecords_append *self)
{
    if (self->writer == NULL || !pylocks_is_untouched((const pylocks_mutex *)self->lock, self->takes)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->quiet); i++) {
        if (PyObject_Size(PyTuple_GetItem(self->quiet, i)) != 0) {
            return 0;
        }
    }
    PyObject *is_blocked = PyObject_GetAttr(self->health, pyrecords_names.is_blocked);
    Py_XDECREF(is_blocked);
    return is_blocked == Py_False;
}

/* Encode records: their bytes, or 0 where they go the usual way. */
static int64_t pyrecords_encode(pyrecords_append *self, const pyrecords_source *from, int64_t now, pyrecords_next *next)
{
    ls_error error;
    ls_records rows = from->rows;
    if (from->base != self->state->last_offset + 1 || !pyrecords_rows_of(&from->lists, &rows)) {
        return 0;
    }
    if (self->is_append_time) {
        rows.timestamp = NULL;
    }
    if (rows.timestamp_all < 0) {
        rows.timestamp_all = now;
    }
    self->limits.now_ms = now;
    next->state = *self->state;
    int64_t bytes = pyrecords_core.append_records(&rows, self->magic, self->attributes, self->leader_epoch,
                                                  self->max_bytes, self->batch_target, &self->limits, &next->state,
                                                  pyrecords_bytes, STEP_BYTES, pyrecords_index_entries,
                                                  pyrecords_time_entries, STEP_ENTRIES, &next->plan, &error);
    if (bytes <= 0 || next->state.size > self->reserved || next->state.last_offset >= self->end - 1) {
        return 0;
    }
    return bytes;
}

/* Make what adds entries to an index: 1; 0 where its buffer has no room; -1 with an error set. */
static int pyrecords_make_addition(pyrecords_addition *addition, PyObject *entries, int64_t count, Py_ssize_t size)
{
    if (count == 0) {
        return 1;
    }
    PyObject *before = PyObject_GetAttr(entries, pyrecords_names.count);
    Py_ssize_t number = before == NULL ? -1 : PyLong_AsSsize_t(before);
    Py_XDECREF(before);
    if (number < 0) {
        return -1;
    }
    addition->data = PyObject_GetAttr(entries, pyrecords_names.data);
    addition->count = PyLong_FromSsize_t(number + (Py_ssize_t)count);
    if (addition->data == NULL || addition->count == NULL) {
        return -1;
    }
    addition->pos = number * size;
    addition->bytes = (Py_ssize_t)count * size;
    if (!PyByteArray_CheckExact(addition->data) || PyByteArray_Size(addition->data) - addition->pos < addition->bytes) {
        return 0;
    }
    addition->entries = entries;
    return 1;
}

/* Fill the new extent, and make the other objects: 1; 0 where the log does not end here; -1 with an error set. */
static int pyrecords_make_objects(pyrecords_append *self, pyrecords_next *next)
{
    PyObject *before = PyObject_GetAttr(self->log, pyrecords_names.extent);
    if (before == NULL || (PyObject *)Py_TYPE(before) != self->extent || PyTuple_Size(before) != EXTENT_ITEMS
        || PyLong_AsLongLong(PyTuple_GetItem(before, EXTENT_END)) != self->state->last_offset + 1) {
        Py_XDECREF(before);
        return PyErr_Occurred() ? -1 : 0;
    }
    next->end = PyLong_FromLongLong(next->state.last_offset + 1);
    next->size = PyLong_FromLongLong(next->state.size);
    int is_made = next->end != NULL && next->size != NULL;
    for (Py_ssize_t i = 0; is_made && i < EXTENT_ITEMS; i++) {
        PyObject *item = i == EXTENT_END ? next->end : PyTuple_GetItem(before, i);
        Py_INCREF(item);
        is_made = PyTuple_SetItem(next->extent, i, item) == 0;
    }
    Py_DECREF(before);
    return is_made ? 1 : -1;
}

/* Set an attribute that has a slot.  It cannot fail: the objects have it. */
static void pyrecords_set(PyObject *object, PyObject *name, PyObject *value)
{
    if (PyObject_SetAttr(object, name, value) < 0) {
        PyErr_WriteUnraisable(object);
    }
}

static void pyrecords_add(const pyrecords_addition *addition, const uint8_t *entry)
{
    if (addition->entries != NULL) {
        memcpy(PyByteArray_AsString(addition->data) + addition->pos, entry, (size_t)addition->bytes);
        pyrecords_set(addition->entries, pyrecords_names.count, addition->count);
    }
}

/*
 * Write what is encoded: 1; 0 where nothing is written; -1 where a part is.  The frame of the first of several batches
 * is written last: until then zeros in its place end the log for readers of other processes, and for recovery.
 */
static int pyrecords_write(const pyrecords_append *self, int64_t batches, int64_t bytes)
{
    int64_t held = batches > 1 ? LS_FRAME_HEADER_BYTES : 0;
    int64_t pos = self->state->size;
    int64_t written = pyrecords_core.write(self->fd, pyrecords_bytes + held, bytes - held, pos + held);
    if (written == -EINTR) {
        return 0;
    }
    int is_written = written == bytes - held;
    if (is_written && held > 0) {
        is_written = pyrecords_core.write(self->fd, pyrecords_bytes, held, pos) == held;
    }
    return is_written ? 1 : -1;
}

/* Let everybody see what is written. */
static void pyrecords_show(pyrecords_append *self, const pyrecords_next *next)
{
    pyrecords_add(&next->index, pyrecords_index_entries);
    pyrecords_add(&next->times, pyrecords_time_entries);
    *self->state = next->state;
    pyrecords_set(self->segment, pyrecords_names.next_offset, next->end);
    pyrecords_set(self->segment, pyrecords_names.size, next->size);
    pyrecords_set(self->log, pyrecords_names.extent, next->extent);
}

/* The whole step: 1; 0 where the records go the usual way; -1 with an error set. */
static int pyrecords_step(pyrecords_append *self, const pyrecords_source *from, int64_t now, pyrecords_next *next)
{
    if (!pyrecords_is_ready(self)) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int64_t bytes = pyrecords_encode(self, from, now, next);
    if (bytes == 0) {
        return 0;
    }
    int status = pyrecords_make_addition(&next->index, self->index, next->plan.index_count, LS_INDEX_ENTRY_BYTES);
    if (status > 0) {
        status = pyrecords_make_addition(&next->times, self->times, next->plan.time_count, LS_TIME_ENTRY_BYTES);
    }
    if (status > 0) {
        status = pyrecords_make_objects(self, next);
    }
    if (status <= 0) {
        return status;
    }
    status = pyrecords_write(self, next->plan.batches, bytes);
    if (status > 0) {
        pyrecords_show(self, next);
        return 1;
    }
    if (status < 0) {
        /* The usual way cuts what was written, tries again, and has a better error. */
        pyrecords_set(self->writer, pyrecords_names.dirty, pyrecords_intact);
        pyrecords_set(self->health, pyrecords_names.is_blocked, Py_True);
    }
    return 0;
}

/* Append records: 1; 0 where they go the usual way; -1 with an error set. */
static int pyrecords_append_source(pyrecords_append *self, const pyrecords_source *from)
{
    int64_t now = pyrecords_now();
    if (now < 0) {
        return PyErr_Occurred() ? -1 : 0;
    }
    pyrecords_next next = {.extent = pyrecords_new_extent(self->extent)};
    int status = next.extent == NULL ? -1 : pyrecords_step(self, from, now, &next);
    Py_XDECREF(next.index.data);
    Py_XDECREF(next.index.count);
    Py_XDECREF(next.times.data);
    Py_XDECREF(next.times.count);
    Py_XDECREF(next.end);
    Py_XDECREF(next.size);
    Py_XDECREF(next.extent);
    return status;
}

/* ---------------------------------------------------------------- the type */

static int pyrecords_is_payload(PyObject *object)
{
    return object == Py_None || (PyBytes_CheckExact(object) && PyBytes_Size(object) <= INT32_MAX);
}

/* One value or key as a column. */
static ls_slices pyrecords_single(PyObject *item, int32_t *len)
{
    ls_slices column = {0};
    *len = -1;
    if (item != Py_None) {
        column.data = (const uint8_t *)PyBytes_AsString(item);
        *len = (int32_t)PyBytes_Size(item);
    }
    column.len = len;
    return column;
}

/*
 * append(value, key, timestamp_ms) -> offset, or -1: nothing was done, the record goes the usual way.
 */
static PyObject *pyrecords_append_append(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    pyrecords_append *self = (pyrecords_append *)object;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "append takes a value, a key and a timestamp");
        return NULL;
    }
    int64_t timestamp = -1;
    if (args[2] != Py_None) {
        timestamp = PyLong_CheckExact(args[2]) ? PyLong_AsLongLong(args[2]) : -1;
        if (timestamp < 0) {
            PyErr_Clear(); /* too large */
            return PyLong_FromLong(-1);
        }
    }
    if (self->writer == NULL || !pyrecords_is_payload(args[0]) || !pyrecords_is_payload(args[1])) {
        return PyLong_FromLong(-1);
    }
    int32_t value_len, key_len;
    pyrecords_source from = {
        .rows = {.count = 1, .timestamp_all = self->is_append_time ? -1 : timestamp},
        .base = self->state->last_offset + 1,
    };
    from.rows.value = pyrecords_single(args[0], &value_len);
    from.rows.key = pyrecords_single(args[1], &key_len);
    PyObject *offset = PyLong_FromLongLong(from.base);
    int status = offset == NULL ? -1 : pyrecords_append_source(self, &from);
    if (status > 0) {
        return offset;
    }
    Py_XDECREF(offset);
    return status < 0 ? NULL : PyLong_FromLong(-1);
}

/* Append `from`, whose number of rows is known: their offsets, or None where they go the usual way. */
static PyObject *pyrecords_append_range(pyrecords_append *self, pyrecords_source *from)
{
    int64_t rows = from->rows.count;
    if (self->writer == NULL || rows <= 0 || rows > PYRECORDS_ROWS_MAX || self->state->last_offset > INT64_MAX - 1 - rows) {
        Py_RETURN_NONE;
    }
    from->base = self->state->last_offset + 1;
    PyObject *range = PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)from->base,
                                            (long long)(from->base + rows));
    int status = range == NULL ? -1 : pyrecords_append_source(self, from);
    if (status > 0) {
        return range;
    }
    Py_XDECREF(range);
    if (status < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int pyrecords_is_list(PyObject *object)
{
    return PyList_CheckExact(object) || PyTuple_CheckExact(object);
}

/*
 * append_many(values, keys, timestamps_ms) -> range of offsets, or None: nothing was done, they go the usual way.
 */
static PyObject *pyrecords_append_many(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "append_many takes values, keys and timestamps");
        return NULL;
    }
    for (int i = 0; i < 3; i++) {
        if (!pyrecords_is_list(args[i]) && (i == 0 || args[i] != Py_None)) {
            Py_RETURN_NONE;
        }
    }
    pyrecords_source from = {
        .lists = {args[0], args[1] == Py_None ? NULL : args[1], args[2] == Py_None ? NULL : args[2]},
        .rows = {.timestamp_all = -1},
    };
    from.rows.count = PyObject_Size(args[0]);
    return pyrecords_append_range((pyrecords_append *)object, &from);
}

/*
 * append_rows(address) -> range of offsets, or None: nothing was done, they go the usual way.
 *
 * The address of an ls_records without headers, whose rows stay as they are meanwhile.
 */
static PyObject *pyrecords_append_rows(PyObject *object, PyObject *address)
{
    unsigned long long at = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred()) {
        return NULL;
    }
    pyrecords_source from = {.rows = *(const ls_records *)(uintptr_t)at};
    return pyrecords_append_range((pyrecords_append *)object, &from);
}

static int pyrecords_append_forget(pyrecords_append *self)
{
    Py_CLEAR(self->writer);
    Py_CLEAR(self->segment);
    Py_CLEAR(self->index);
    Py_CLEAR(self->times);
    return 0;
}

static PyObject *pyrecords_append_clear(PyObject *self, PyObject *unused)
{
    (void)unused;
    pyrecords_append_forget((pyrecords_append *)self);
    Py_RETURN_NONE;
}

/*
 * keep(end): the caller holds the lock, and has changed nothing of what was prepared but where it ends.  What held
 * until it took the lock goes on to hold.
 */
static PyObject *pyrecords_append_keep(PyObject *object, PyObject *end)
{
    pyrecords_append *self = (pyrecords_append *)object;
    long long number = PyLong_AsLongLong(end);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    uint64_t takes = ((const pylocks_mutex *)self->lock)->takes;
    if (self->takes == takes - 1) {
        self->takes = takes;
        self->end = number;
    }
    Py_RETURN_NONE;
}

/*
 * prepare(writer, segment, index, times, state, limits, fd, magic, attributes, leader_epoch, max_bytes, is_append_time,
 *         reserved, end, batch_target)
 *
 * The caller holds the lock of the log.  `state` and `limits` are addresses of what the writer owns.
 */
static PyObject *pyrecords_append_prepare(PyObject *object, PyObject *args)
{
    pyrecords_append *self = (pyrecords_append *)object;
    PyObject *writer, *segment, *index, *times;
    unsigned long long state, limits;
    int fd, magic, attributes, leader_epoch, is_append_time;
    long long max_bytes, reserved, end, batch_target;
    if (!PyArg_ParseTuple(args, "OOOOKKiiiiLpLLL", &writer, &segment, &index, &times, &state, &limits, &fd, &magic,
                          &attributes, &leader_epoch, &max_bytes, &is_append_time, &reserved, &end, &batch_target)) {
        return NULL;
    }
    if (writer != self->writer) {
        pyrecords_append_forget(self);
        Py_INCREF(segment);
        self->segment = segment;
        Py_INCREF(index);
        self->index = index;
        Py_INCREF(times);
        self->times = times;
        Py_INCREF(writer);
        self->writer = writer;
    }
    self->state = (ls_segment_state *)(uintptr_t)state;
    self->limits = *(const ls_roll_limits *)(uintptr_t)limits;
    self->fd = fd;
    self->magic = magic;
    self->attributes = attributes;
    self->leader_epoch = leader_epoch;
    self->max_bytes = max_bytes;
    self->batch_target = batch_target;
    self->is_append_time = is_append_time;
    self->reserved = reserved;
    self->end = end;
    self->takes = ((const pylocks_mutex *)self->lock)->takes;
    Py_RETURN_NONE;
}

/* PreparedAppend(log, health, lock, extent, quiet) */
static PyObject *pyrecords_append_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"log", "health", "lock", "extent", "quiet", NULL};
    PyObject *log, *health, *lock, *extent, *quiet;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O!", names, &log, &health, &lock, &PyType_Type, &extent,
                                     &PyTuple_Type, &quiet)) {
        return NULL;
    }
    PyObject *locks = PyImport_ImportModule("logstore._native._locks");
    PyObject *mutex = locks == NULL ? NULL : PyObject_GetAttrString(locks, "Mutex");
    Py_XDECREF(locks);
    Py_XDECREF(mutex); /* the module has it */
    if (mutex == NULL) {
        return NULL;
    }
    if ((PyObject *)Py_TYPE(lock) != mutex || !PyType_IsSubtype((PyTypeObject *)extent, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "lock is no Mutex, or extent no type of tuples");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pyrecords_append *self = (pyrecords_append *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    PyObject *items[] = {log, health, lock, extent, quiet};
    PyObject **places[] = {&self->log, &self->health, &self->lock, &self->extent, &self->quiet};
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
        Py_INCREF(items[i]);
        *places[i] = items[i];
    }
    return (PyObject *)self;
}

static int pyrecords_append_traverse(PyObject *object, visitproc visit, void *arg)
{
    pyrecords_append *self = (pyrecords_append *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->log);
    Py_VISIT(self->health);
    Py_VISIT(self->lock);
    Py_VISIT(self->extent);
    Py_VISIT(self->quiet);
    Py_VISIT(self->writer);
    Py_VISIT(self->segment);
    Py_VISIT(self->index);
    Py_VISIT(self->times);
    return 0;
}

static int pyrecords_append_gc_clear(PyObject *self)
{
    /* What is for all its life stays: an append checks `writer` alone. */
    return pyrecords_append_forget((pyrecords_append *)self);
}

static void pyrecords_append_dealloc(PyObject *object)
{
    pyrecords_append *self = (pyrecords_append *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    pyrecords_append_forget(self);
    Py_CLEAR(self->log);
    Py_CLEAR(self->health);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->extent);
    Py_CLEAR(self->quiet);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef pyrecords_append_methods[] = {
    {"append", (PyCFunction)(void (*)(void))pyrecords_append_append, METH_FASTCALL,
     "Append a record: its offset, or -1 where nothing was done."},
    {"append_many", (PyCFunction)(void (*)(void))pyrecords_append_many, METH_FASTCALL,
     "Append lists of records: their offsets, or None where nothing was done."},
    {"append_rows", pyrecords_append_rows, METH_O,
     "Append rows: their offsets, or None where nothing was done."},
    {"clear", pyrecords_append_clear, METH_NOARGS, "Nothing is prepared any more."},
    {"keep", pyrecords_append_keep, METH_O, "What was prepared holds, though the lock was taken."},
    {"prepare", pyrecords_append_prepare, METH_VARARGS, "What holds until the lock is taken again."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pyrecords_append_slots[] = {
    {Py_tp_doc, "Small appends to a log, each in one step."},
    {Py_tp_new, pyrecords_append_new},
    {Py_tp_dealloc, pyrecords_append_dealloc},
    {Py_tp_traverse, pyrecords_append_traverse},
    {Py_tp_clear, pyrecords_append_gc_clear},
    {Py_tp_methods, pyrecords_append_methods},
    {0, NULL},
};

static PyType_Spec pyrecords_append_spec = {
    "logstore._native._records.PreparedAppend", sizeof(pyrecords_append), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    pyrecords_append_slots,
};

int pyrecords_add_append(PyObject *module)
{
    static const struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&pyrecords_names.count, "count"},
        {&pyrecords_names.data, "_data"},
        {&pyrecords_names.dirty, "dirty"},
        {&pyrecords_names.extent, "extent"},
        {&pyrecords_names.is_blocked, "is_blocked"},
        {&pyrecords_names.next_offset, "next_offset"},
        {&pyrecords_names.size, "size"},
        {&pyrecords_names.time_ns, "time_ns"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *names[i].place = PyUnicode_InternFromString(names[i].text);
        if (*names[i].place == NULL) {
            return -1;
        }
    }
    pyrecords_clock = PyImport_ImportModule("time");
    /* As many entries as there are. */
    pyrecords_intact = Py_BuildValue("(nn)", PY_SSIZE_T_MAX, PY_SSIZE_T_MAX);
    if (pyrecords_clock == NULL || pyrecords_intact == NULL) {
        return -1;
    }
    return pyrecords_add_type(module, "PreparedAppend", &pyrecords_append_spec) == NULL ? -1 : 0;
}
