/*
 * pyrecords_append.c - PreparedAppend: small appends to a log, each in one step (pyrecords_write.c).
 *
 * The usual way of an append (Appender.append_rows) takes the lock of the log, makes sure that the log takes
 * appends, writes, and informs all parts of the log.  After it has done so once, nearly all of it holds for the next
 * append, until that lock is taken: all that changes the log takes it.  So it leaves here what it knows
 * (`prepare`), and the lock counts how often it is taken.  An append that needs other work (another
 * segment, a sync, a waiting reader, an object that is not of the type bytes, more bytes than there is room for, ...)
 * goes the usual way again, which prepares once more.
 *
 * From the check of the lock to its end, an append keeps the interpreter lock and runs no Python code: to all other
 * threads, signal handlers and finalizers it is one step, and needs no lock itself.  What may run Python code comes
 * before that check, what may fail for lack of memory before the write.  With a subclass of Files, whose write is a
 * method in Python, the step is the same, and holds the lock (pyrecords_system.c).
 */
#include "pyrecords_append.h"

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

PyObject *pyrecords_append_one(pyrecords_append *self, PyObject *const *args, Py_ssize_t count)
{
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
        .rows = {.count = 1, .timestamp_all = timestamp},
        .base = self->facts->state->last_offset + 1,
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

static PyObject *pyrecords_append_append(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return pyrecords_append_one((pyrecords_append *)self, args, count);
}

/* Append `from`, whose number of rows is known: their offsets, or None if they need the usual way. */
static PyObject *pyrecords_append_range(pyrecords_append *self, pyrecords_source *from)
{
    int64_t rows = from->rows.count;
    if (self->writer == NULL || rows <= 0 || rows > PYRECORDS_ROWS_MAX || self->facts->state->last_offset > INT64_MAX - 1 - rows) {
        Py_RETURN_NONE;
    }
    from->base = self->facts->state->last_offset + 1;
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
 * append_arrow(schema, batch, value, value_bytes, key, key_bytes, timestamp) -> range of offsets, or None: nothing was
 * done, they go the usual way.
 *
 * Capsules of Arrow's C data interface, of a record batch that Arrow has validated; the numbers of its columns, -1 for
 * none; and the sizes of the data of its values and keys.
 */
static PyObject *pyrecords_append_arrow(PyObject *object, PyObject *args)
{
    PyObject *schema_capsule, *batch_capsule;
    long long value, value_bytes, key, key_bytes, timestamp;
    if (!PyArg_ParseTuple(args, "OOLLLLL", &schema_capsule, &batch_capsule, &value, &value_bytes, &key, &key_bytes,
                          &timestamp)) {
        return NULL;
    }
    const struct ArrowSchema *schema = PyCapsule_GetPointer(schema_capsule, "arrow_schema");
    const struct ArrowArray *batch = schema == NULL ? NULL : PyCapsule_GetPointer(batch_capsule, "arrow_array");
    if (batch == NULL) {
        return NULL;
    }
    const pyrecords_arrow_place places[PYRECORDS_ARROW_COLUMNS] = {
        [PYRECORDS_ARROW_VALUES] = {value, value_bytes},
        [PYRECORDS_ARROW_KEYS] = {key, key_bytes},
        [PYRECORDS_ARROW_TIMES] = {timestamp, 0},
    };
    pyrecords_source from = {.rows = {.timestamp_all = -1}};
    if (!pyrecords_open_arrow(schema, batch, places, &from.arrow)) {
        Py_RETURN_NONE;
    }
    from.rows.count = from.arrow.count;
    return pyrecords_append_range((pyrecords_append *)object, &from);
}

/*
 * append_batches(data, check_producers) -> range of offsets, or None: nothing was done, they go the usual way.
 *
 * Plain batches as a producer sends them, in an object of the type bytes.  Batches of producers that number their
 * records are appended here if `check_producers` is true, and each is the next one of a producer that the table has.
 */
static PyObject *pyrecords_append_batches(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "append_batches takes batches, and whether to check producers");
        return NULL;
    }
    pyrecords_append *self = (pyrecords_append *)object;
    PyObject *data = args[0];
    pyrecords_source from = {.batches = 0};
    if (self->writer == NULL || !PyBytes_CheckExact(data)
        || !pyrecords_take_batches(self, (const uint8_t *)PyBytes_AsString(data), PyBytes_Size(data), &from)
        || (from.has_producer && (args[1] != Py_True || self->table == NULL))) {
        Py_RETURN_NONE;
    }
    return pyrecords_append_range(self, &from);
}

static int pyrecords_append_forget(pyrecords_append *self)
{
    Py_CLEAR(self->writer);
    Py_CLEAR(self->segment);
    Py_CLEAR(self->index);
    Py_CLEAR(self->times);
    return 0;
}

/* The bytes of an object of the type bytes or bytearray; NULL for another one. */
static const uint8_t *pyrecords_bytes_of(PyObject *object, int64_t *size)
{
    if (PyByteArray_CheckExact(object)) {
        *size = PyByteArray_Size(object);
        return (const uint8_t *)PyByteArray_AsString(object);
    }
    *size = PyBytes_CheckExact(object) ? PyBytes_Size(object) : 0;
    return PyBytes_CheckExact(object) ? (const uint8_t *)PyBytes_AsString(object) : NULL;
}

/*
 * append_encoded(data, count, is_mine=False) -> range of offsets, or None: nothing was done, they go the usual way.
 *
 * Batches of `count` records, which were checked, or which this topic's encoder has made; their offsets are without
 * gaps.  `is_mine`: this thread has the lock of the log, has called `prepare` since it took it, and has checked that the
 * log takes appends; the batches come of several.
 */
static PyObject *pyrecords_append_encoded(PyObject *object, PyObject *args)
{
    pyrecords_append *self = (pyrecords_append *)object;
    PyObject *data;
    long long count;
    int is_mine = 0;
    if (!PyArg_ParseTuple(args, "OL|p", &data, &count, &is_mine)) {
        return NULL;
    }
    pyrecords_source from = {.rows = {.count = count}, .is_held = is_mine, .is_checked = is_mine};
    int64_t size;
    const uint8_t *bytes = pyrecords_bytes_of(data, &size);
    PyObject *range = NULL;
    if (bytes == NULL) {
        PyErr_SetString(PyExc_TypeError, "batches are bytes or a bytearray");
    } else if (self->writer == NULL || !pyrecords_take_encoded(self, bytes, size, &from)) {
        range = Py_None;
        Py_INCREF(range);
    } else {
        range = pyrecords_append_range(self, &from);
    }
    if (is_mine && (range == NULL || range == Py_None)) {
        /* The usual way may undo its append, and give the writer another state; or this append was undone. */
        pyrecords_append_forget(self);
    }
    return range;
}

/*
 * append_rows(address, base, is_held) -> range of offsets, or None: nothing was done, they go the usual way.
 *
 * The address of an ls_records without headers, whose rows do not change meanwhile.  Its timestamp_all is the time of
 * the append: the caller reports it, and LogAppendTime must store the same.  The offsets begin at `base`, -1: anywhere.
 * `is_held`: this thread has the lock of the log, and has called `prepare` since it took it.
 */
static PyObject *pyrecords_append_rows(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "append_rows takes an address, a base offset, and whether the lock is held");
        return NULL;
    }
    pyrecords_append *self = (pyrecords_append *)object;
    unsigned long long at = PyLong_AsUnsignedLongLong(args[0]);
    long long base = PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[1]);
    int is_held = args[2] == Py_True;
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (self->writer == NULL || (base >= 0 && self->facts->state->last_offset + 1 != base)) {
        Py_RETURN_NONE;
    }
    pyrecords_source from = {.rows = *(const ls_records *)(uintptr_t)at, .is_held = is_held, .is_timed = 1};
    PyObject *range = pyrecords_append_range(self, &from);
    if (is_held && (range == NULL || range == Py_None)) {
        pyrecords_append_forget(self); /* as above */
    }
    return range;
}

/*
 * watch(table, address, count, expiry_ms): the producers at an address, which `table` owns, are those whose batches may
 * be appended here.  The caller holds the lock whenever it changes them; so it does now.
 */
static PyObject *pyrecords_append_watch(PyObject *object, PyObject *args)
{
    pyrecords_append *self = (pyrecords_append *)object;
    PyObject *table;
    unsigned long long address;
    int count;
    long long expiry_ms;
    if (!PyArg_ParseTuple(args, "OKiL", &table, &address, &count, &expiry_ms)) {
        return NULL;
    }
    PyObject *before = self->table;
    Py_INCREF(table);
    self->table = table;
    self->producers = (ls_producer *)(uintptr_t)address;
    self->producer_count = count;
    self->expiry_ms = expiry_ms;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *pyrecords_append_clear(PyObject *self, PyObject *unused)
{
    (void)unused;
    pyrecords_append_forget((pyrecords_append *)self);
    Py_RETURN_NONE;
}

/*
 * keep(durable, quiet_size): the caller holds the lock, and of the prepared state has changed only these.  What
 * held until it took the lock still holds.
 */
static PyObject *pyrecords_append_keep(PyObject *object, PyObject *args)
{
    pyrecords_append *self = (pyrecords_append *)object;
    long long durable, quiet_size;
    if (!PyArg_ParseTuple(args, "LL", &durable, &quiet_size)) {
        return NULL;
    }
    if (self->takes == self->lock->takes - 1) {
        self->takes = self->lock->takes;
        self->facts->end = pyrecords_sum(durable, self->facts->flush_messages);
        self->facts->quiet_size = quiet_size;
    }
    Py_RETURN_NONE;
}

/*
 * prepare(writer, segment, index, times): what was written to `facts` holds until the lock is taken again.  The caller
 * holds the lock of the log.
 */
static PyObject *pyrecords_append_prepare(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    pyrecords_append *self = (pyrecords_append *)object;
    PyTypeObject *types[] = {pyrecords_writer_type, pyrecords_segment_type, pyrecords_entries_type,
                             pyrecords_entries_type};
    const Py_ssize_t parts = sizeof(types) / sizeof(types[0]);
    for (Py_ssize_t i = 0; i < parts; i++) {
        if (count != parts || !PyObject_TypeCheck(args[i], types[i])) {
            PyErr_SetString(PyExc_TypeError, "prepare takes a writer, a segment and two indexes");
            return NULL;
        }
    }
    PyObject *before[] = {(PyObject *)self->writer, (PyObject *)self->segment, (PyObject *)self->index,
                          (PyObject *)self->times};
    for (Py_ssize_t i = 0; i < parts; i++) {
        Py_INCREF(args[i]);
    }
    self->writer = (pyrecords_writer *)args[0];
    self->segment = (pyrecords_segment *)args[1];
    self->index = (pyrecords_entries *)args[2];
    self->times = (pyrecords_entries *)args[3];
    self->takes = self->lock->takes;
    /* Only now: this may run Python code, which finds the new ones. */
    for (Py_ssize_t i = 0; i < parts; i++) {
        Py_XDECREF(before[i]);
    }
    Py_RETURN_NONE;
}

/*
 * PreparedAppend(log, health, lock, undo, bounds, quiet, methods, facts, address): `undo(writer, error)` is called with
 * the lock: it undoes a write that has failed, and returns the error to be raised.  `methods` are called in place of the
 * system, as pyrecords_bind_system has them.  `facts` owns an ls_step_facts, which has that address.
 */
static PyObject *pyrecords_append_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"log", "health", "lock", "undo", "bounds", "quiet", "methods", "facts", "address", NULL};
    PyObject *log, *health, *lock, *undo, *bounds, *quiet, *methods, *facts;
    unsigned long long address;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!OO!O!O!OK", names, pyrecords_log_type, &log,
                                     pyrecords_health_type, &health, pyrecords_locks->mutex, &lock, &undo, &PyType_Type,
                                     &bounds, &PyTuple_Type, &quiet, &PyTuple_Type, &methods, &facts, &address)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)bounds, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "bounds is no type of tuples");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pyrecords_append *self = (pyrecords_append *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    PyObject *items[] = {log, health, lock, undo, bounds, quiet, facts};
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
        Py_INCREF(items[i]);
    }
    self->log = (pyrecords_log *)log;
    self->health = (pyrecords_health *)health;
    self->lock = (pylocks_mutex *)lock;
    self->undo = undo;
    self->bounds = bounds;
    self->quiet = quiet;
    self->facts_owner = facts;
    self->facts = (ls_step_facts *)(uintptr_t)address;
    if (pyrecords_bind_system(&self->system, methods) < 0) {
        Py_DECREF(self);
        return NULL;
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
    Py_VISIT(self->undo);
    Py_VISIT(self->bounds);
    Py_VISIT(self->quiet);
    Py_VISIT(self->facts_owner);
    for (int i = 0; i < PYRECORDS_CALLS; i++) {
        Py_VISIT(self->system.methods[i]);
    }
    Py_VISIT(self->table);
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
    Py_CLEAR(self->undo);
    Py_CLEAR(self->bounds);
    Py_CLEAR(self->quiet);
    Py_CLEAR(self->facts_owner);
    for (int i = 0; i < PYRECORDS_CALLS; i++) {
        Py_CLEAR(self->system.methods[i]);
    }
    Py_CLEAR(self->table);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef pyrecords_append_methods[] = {
    {"append", (PyCFunction)(void (*)(void))pyrecords_append_append, METH_FASTCALL,
     "Append a record: its offset, or -1 where nothing was done."},
    {"append_batches", (PyCFunction)(void (*)(void))pyrecords_append_batches, METH_FASTCALL,
     "Append batches of a producer: their offsets, or None where nothing was done."},
    {"append_encoded", pyrecords_append_encoded, METH_VARARGS,
     "Append batches that are encoded: their offsets, or None where nothing was done."},
    {"append_arrow", pyrecords_append_arrow, METH_VARARGS,
     "Append the rows of an Arrow record batch: their offsets, or None where nothing was done."},
    {"append_many", (PyCFunction)(void (*)(void))pyrecords_append_many, METH_FASTCALL,
     "Append lists of records: their offsets, or None where nothing was done."},
    {"append_rows", (PyCFunction)(void (*)(void))pyrecords_append_rows, METH_FASTCALL,
     "Append rows: their offsets, or None where nothing was done."},
    {"clear", pyrecords_append_clear, METH_NOARGS, "Nothing is prepared any more."},
    {"keep", pyrecords_append_keep, METH_VARARGS, "What was prepared holds, though the lock was taken."},
    {"watch", pyrecords_append_watch, METH_VARARGS, "The producers whose batches may be appended."},
    {"prepare", (PyCFunction)(void (*)(void))pyrecords_append_prepare, METH_FASTCALL,
     "What holds until the lock is taken again."},
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

PyTypeObject *pyrecords_append_type;

int pyrecords_add_append(PyObject *module)
{
    if (pyrecords_prepare_system() < 0 || pyrecords_prepare_steps() < 0) {
        return -1;
    }
    pyrecords_append_type = pyrecords_add_type(module, "PreparedAppend", &pyrecords_append_spec);
    return pyrecords_append_type == NULL ? -1 : 0;
}
