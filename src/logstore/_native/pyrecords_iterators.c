/*
 * pyrecords_iterators.c - the records of decoded columns, made when they are asked for (`DecodedRecords`), and the
 * items of several such iterators (`Flattened`).
 */
#include "pyrecords.h"

#include <time.h>

/* ------------------------------------------------------------------ decoded records */

typedef struct {
    PyObject_HEAD
    PyObject *owner;
    PyObject *no_headers;
    PyObject *topic; /* NULL: they are no TopicRecords */
    long long partition;
    Py_ssize_t next;
    Py_ssize_t count;
    const char *base;
    Py_ssize_t size;
    const int64_t *offset;
    const int64_t *timestamp;
    const int32_t *key_pos;
    const int32_t *key_len;
    const int32_t *value_pos;
    const int32_t *value_len;
    const int8_t *timestamp_type;
    const int32_t *header_pos; /* NULL: no record has headers */
    const int32_t *header_count;
} pyrecords_decoded;

PyObject *pyrecords_slice(const char *base, int32_t pos, int32_t len)
{
    if (len < 0) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    return PyBytes_FromStringAndSize(base + pos, len);
}

/*
 * DecodedRecords(owner, count, size, base, offset, timestamp, key_pos, key_len, value_pos, value_len, timestamp_type,
 *                header_pos, header_count, topic=None, partition=0)
 *
 * With a topic they are TopicRecords.
 *
 * `owner` keeps the memory alive; `base` (of `size` bytes) and the columns are addresses; the header columns are 0
 * if no record has headers.  The columns must not change until the last record was made.
 */
static PyObject *pyrecords_decoded_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *owner;
    Py_ssize_t count, size;
    unsigned long long at[10];
    PyObject *topic = Py_None;
    long long partition = 0;
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "DecodedRecords takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OnnKKKKKKKKKK|OL", &owner, &count, &size, at, at + 1, at + 2, at + 3, at + 4,
                          at + 5, at + 6, at + 7, at + 8, at + 9, &topic, &partition)) {
        return NULL;
    }
    if (count < 0 || size < 0) {
        PyErr_SetString(PyExc_ValueError, "count or size is negative");
        return NULL;
    }
    pyrecords_decoded *rows = (pyrecords_decoded *)PyType_GenericAlloc(type, 0);
    if (rows == NULL) {
        return NULL;
    }
    rows->no_headers = PyTuple_New(0);
    if (rows->no_headers == NULL) {
        Py_DECREF(rows);
        return NULL;
    }
    Py_INCREF(owner);
    rows->owner = owner;
    if (topic != Py_None) {
        Py_INCREF(topic);
        rows->topic = topic;
        rows->partition = partition;
    }
    rows->count = count;
    rows->size = size;
    rows->base = (const char *)(uintptr_t)at[0];
    rows->offset = (const int64_t *)(uintptr_t)at[1];
    rows->timestamp = (const int64_t *)(uintptr_t)at[2];
    rows->key_pos = (const int32_t *)(uintptr_t)at[3];
    rows->key_len = (const int32_t *)(uintptr_t)at[4];
    rows->value_pos = (const int32_t *)(uintptr_t)at[5];
    rows->value_len = (const int32_t *)(uintptr_t)at[6];
    rows->timestamp_type = (const int8_t *)(uintptr_t)at[7];
    rows->header_pos = (const int32_t *)(uintptr_t)at[8];
    rows->header_count = (const int32_t *)(uintptr_t)at[9];
    return (PyObject *)rows;
}

/* The headers of record i, as a new reference. */
static PyObject *pyrecords_decoded_headers(const pyrecords_decoded *rows, Py_ssize_t i)
{
    if (rows->header_pos == NULL || rows->header_count[i] == 0) {
        Py_INCREF(rows->no_headers);
        return rows->no_headers;
    }
    return pyrecords_headers((const uint8_t *)rows->base, rows->size, rows->header_pos[i], rows->header_count[i]);
}

static PyObject *pyrecords_decoded_next(PyObject *self)
{
    pyrecords_decoded *rows = (pyrecords_decoded *)self;
    Py_ssize_t i = rows->next;
    if (i >= rows->count) {
        return NULL;
    }
    PyObject *headers = pyrecords_decoded_headers(rows, i);
    if (headers == NULL) {
        return NULL;
    }
    PyObject *key = pyrecords_slice(rows->base, rows->key_pos[i], rows->key_len[i]);
    PyObject *value = key == NULL ? NULL : pyrecords_slice(rows->base, rows->value_pos[i], rows->value_len[i]);
    PyObject *record =
        rows->topic == NULL
            ? pyrecords_record(rows->offset[i], rows->timestamp[i], key, value, headers, rows->timestamp_type[i])
            : pyrecords_topic_record(rows->topic, rows->partition, rows->offset[i], rows->timestamp[i], key, value,
                                     headers, rows->timestamp_type[i]);
    Py_DECREF(headers);
    if (record != NULL) {
        rows->next = i + 1;
    }
    return record;
}

/* __length_hint__: how many are left, for list() */
static PyObject *pyrecords_decoded_left(PyObject *self, PyObject *unused)
{
    (void)unused;
    const pyrecords_decoded *rows = (pyrecords_decoded *)self;
    return PyLong_FromSsize_t(rows->count - rows->next);
}

static void pyrecords_decoded_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pyrecords_decoded *rows = (pyrecords_decoded *)self;
    Py_XDECREF(rows->owner);
    Py_XDECREF(rows->no_headers);
    Py_XDECREF(rows->topic);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef pyrecords_decoded_methods[] = {
    {"__length_hint__", pyrecords_decoded_left, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pyrecords_decoded_slots[] = {
    {Py_tp_new, pyrecords_decoded_new},
    {Py_tp_dealloc, pyrecords_decoded_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, pyrecords_decoded_next},
    {Py_tp_methods, pyrecords_decoded_methods},
    {0, NULL},
};

static PyType_Spec pyrecords_decoded_spec = {
    "logstore._native._records.DecodedRecords", sizeof(pyrecords_decoded), 0, Py_TPFLAGS_DEFAULT, pyrecords_decoded_slots,
};

/* ------------------------------------------------------------------ flattened */

typedef struct {
    PyObject_HEAD
    PyObject *source; /* NULL: it is exhausted, or closed */
    PyObject *items;  /* NULL: decode the next run first */
    int is_running;
} pyrecords_flattened;

/* To give way: at most this number of pauses of this length, in which one thread after the other can get the lock. */
enum { GIVE_WAY_PAUSES = 10, GIVE_WAY_NS = 20000 };

/*
 * Let threads that wait for the interpreter lock after a system call for a writer have it.  They would get it when this
 * thread has run for a switch interval (5 ms), and a roll of a segment makes 50 such calls.  To release the lock and to
 * take it again would not do: this thread would have it back before another one is awake.
 */
static void pyrecords_give_way(void)
{
    if (pyrecords_core.returning_writers(0) <= 0) {
        return;
    }
    const struct timespec pause = {0, GIVE_WAY_NS};
    PyThreadState *thread = PyEval_SaveThread();
    for (int i = 0; i < GIVE_WAY_PAUSES && pyrecords_core.returning_writers(0) > 0; i++) {
        (void)nanosleep(&pause, NULL);
    }
    PyEval_RestoreThread(thread);
}

/*
 * Flattened(iterable of iterables): their items; nothing more after an exception, as with a generator.  As with a
 * generator, too, a call while another one runs (code of the source may make it, or another thread) raises ValueError.
 * It gives way to writers before each run.
 */
static PyObject *pyrecords_flattened_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *runs;
    if (keywords != NULL && PyDict_Size(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Flattened takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O", &runs)) {
        return NULL;
    }
    PyObject *source = PyObject_GetIter(runs);
    if (source == NULL) {
        return NULL;
    }
    pyrecords_flattened *self = (pyrecords_flattened *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        Py_DECREF(source);
        return NULL;
    }
    self->source = source;
    return (PyObject *)self;
}

static int pyrecords_flattened_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((pyrecords_flattened *)self)->source);
    Py_VISIT(((pyrecords_flattened *)self)->items);
    return 0;
}

static int pyrecords_flattened_clear(PyObject *self)
{
    Py_CLEAR(((pyrecords_flattened *)self)->items);
    Py_CLEAR(((pyrecords_flattened *)self)->source);
    return 0;
}

static void pyrecords_flattened_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    pyrecords_flattened_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* The next item of an iterator; NULL without an error at its end. */
static PyObject *pyrecords_next_of(PyObject *iterator)
{
    Py_INCREF(iterator); /* its own code may close this */
    PyObject *item = PyIter_Next(iterator);
    Py_DECREF(iterator);
    return item;
}

static PyObject *pyrecords_flattened_step(PyObject *object)
{
    pyrecords_flattened *self = (pyrecords_flattened *)object;
    while (self->source != NULL) {
        if (self->items != NULL) {
            PyObject *item = pyrecords_next_of(self->items);
            if (item != NULL) {
                return item;
            }
            if (PyErr_Occurred()) {
                break;
            }
            Py_CLEAR(self->items);
            continue;
        }
        pyrecords_give_way();
        if (self->source == NULL) {
            break; /* another thread has closed it meanwhile */
        }
        PyObject *run = pyrecords_next_of(self->source);
        PyObject *items = run == NULL ? NULL : PyObject_GetIter(run);
        Py_XDECREF(run);
        if (items == NULL) {
            break;
        }
        self->items = items;
    }
    /* Releasing may run code: not while an error is set. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    pyrecords_flattened_clear(object);
    PyErr_Restore(type, value, traceback);
    return NULL;
}

static PyObject *pyrecords_flattened_next(PyObject *object)
{
    pyrecords_flattened *self = (pyrecords_flattened *)object;
    if (self->is_running) {
        PyErr_SetString(PyExc_ValueError, "Flattened is already executing");
        return NULL;
    }
    self->is_running = 1;
    PyObject *item = pyrecords_flattened_step(object);
    self->is_running = 0;
    return item;
}

/* close(): as a generator's */
static PyObject *pyrecords_flattened_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    pyrecords_flattened_clear(self);
    Py_RETURN_NONE;
}

static PyMethodDef pyrecords_flattened_methods[] = {
    {"close", pyrecords_flattened_close, METH_NOARGS, "End it, and release what it holds."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pyrecords_flattened_slots[] = {
    {Py_tp_new, pyrecords_flattened_new},
    {Py_tp_dealloc, pyrecords_flattened_dealloc},
    {Py_tp_traverse, pyrecords_flattened_traverse},
    {Py_tp_clear, pyrecords_flattened_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, pyrecords_flattened_next},
    {Py_tp_methods, pyrecords_flattened_methods},
    {0, NULL},
};

static PyType_Spec pyrecords_flattened_spec = {
    "logstore._native._records.Flattened", sizeof(pyrecords_flattened), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    pyrecords_flattened_slots,
};

int pyrecords_add_iterators(PyObject *module)
{
    if (pyrecords_add_type(module, "DecodedRecords", &pyrecords_decoded_spec) == NULL) {
        return -1;
    }
    return pyrecords_add_type(module, "Flattened", &pyrecords_flattened_spec) == NULL ? -1 : 0;
}
