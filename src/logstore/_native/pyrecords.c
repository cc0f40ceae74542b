/*
 * pyrecords.c - what cffi cannot do fast enough: Python objects for decoded columns, and columns of Python
 * objects, one record at a time.  A module of its own (stable ABI, CPython 3.10 and later); everything else is
 * in the C core.
 *
 * Trusts the addresses and the count that logstore._native passes: columns that ls_decode has filled, whose
 * positions it has checked against the buffer they point into.  Holds the GIL throughout.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Bytes of a slice, or None where its length says null. */
static PyObject *pyrecords_slice(const char *base, int32_t pos, int32_t len)
{
    if (len < 0) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    return PyBytes_FromStringAndSize(base + pos, len);
}

/* Put a new reference into a tuple; 0 where it could not be made. */
static int pyrecords_put(PyObject *record, Py_ssize_t slot, PyObject *item)
{
    if (item == NULL) {
        return 0;
    }
    return PyTuple_SetItem(record, slot, item) == 0;
}

static PyObject *pyrecords_shared(PyObject *item)
{
    Py_INCREF(item);
    return item;
}

static PyObject *pyrecords_new(PyObject *type)
{
    return type == (PyObject *)&PyTuple_Type ? PyTuple_New(6) : PyType_GenericAlloc((PyTypeObject *)type, 6);
}

/*
 * make(type, count, base, offset, timestamp, key_pos, key_len, value_pos, value_len, headers, kinds) -> list
 *
 * `type` is tuple, or a subclass without further fields (not on CPython 3.14 and later, whose tuples keep a hash
 * that the stable ABI cannot set up for a subclass); `base` and the columns are addresses; `headers` and
 * `kinds` are lists with one object for each record, or one object (not a list) for all.
 */
static PyObject *pyrecords_make(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *type, *headers, *kinds;
    Py_ssize_t count;
    unsigned long long base_at, offset_at, timestamp_at, key_pos_at, key_len_at, value_pos_at, value_len_at;
    if (!PyArg_ParseTuple(args, "O!nKKKKKKKOO", &PyType_Type, &type, &count, &base_at, &offset_at, &timestamp_at, &key_pos_at,
                          &key_len_at, &value_pos_at, &value_len_at, &headers, &kinds)) {
        return NULL;
    }
    const char *base = (const char *)(uintptr_t)base_at;
    const int64_t *offset = (const int64_t *)(uintptr_t)offset_at;
    const int64_t *timestamp = (const int64_t *)(uintptr_t)timestamp_at;
    const int32_t *key_pos = (const int32_t *)(uintptr_t)key_pos_at;
    const int32_t *key_len = (const int32_t *)(uintptr_t)key_len_at;
    const int32_t *value_pos = (const int32_t *)(uintptr_t)value_pos_at;
    const int32_t *value_len = (const int32_t *)(uintptr_t)value_len_at;
    int many_headers = PyList_Check(headers);
    int many_kinds = PyList_Check(kinds);
    if ((many_headers && PyList_Size(headers) < count) || (many_kinds && PyList_Size(kinds) < count)) {
        PyErr_SetString(PyExc_ValueError, "a list is shorter than count");
        return NULL;
    }
    PyObject *list = PyList_New(count);
    if (list == NULL) {
        return NULL;
    }
    PyObject *stamp = NULL; /* records that were appended together share their timestamp */
    for (Py_ssize_t i = 0; i < count; i++) {
        if (stamp == NULL || timestamp[i] != timestamp[i - 1]) {
            Py_XDECREF(stamp);
            stamp = PyLong_FromLongLong(timestamp[i]);
        }
        PyObject *record = stamp == NULL ? NULL : pyrecords_new(type);
        if (record == NULL) {
            Py_XDECREF(stamp);
            Py_DECREF(list);
            return NULL;
        }
        int ok = pyrecords_put(record, 0, PyLong_FromLongLong(offset[i])) &&
                 pyrecords_put(record, 1, pyrecords_shared(stamp)) &&
                 pyrecords_put(record, 2, pyrecords_slice(base, key_pos[i], key_len[i])) &&
                 pyrecords_put(record, 3, pyrecords_slice(base, value_pos[i], value_len[i])) &&
                 pyrecords_put(record, 4, pyrecords_shared(many_headers ? PyList_GetItem(headers, i) : headers)) &&
                 pyrecords_put(record, 5, pyrecords_shared(many_kinds ? PyList_GetItem(kinds, i) : kinds));
        if (!ok) {
            Py_XDECREF(stamp);
            Py_DECREF(record);
            Py_DECREF(list);
            return NULL;
        }
        /* Numbers, bytes and headers cannot refer back to it: the collector need not look at it. */
        PyObject_GC_UnTrack(record);
        PyList_SetItem(list, i, record);
    }
    Py_XDECREF(stamp);
    return list;
}

static PyObject *pyrecords_item(PyObject *items, int is_list, Py_ssize_t i)
{
    return is_list ? PyList_GetItem(items, i) : PyTuple_GetItem(items, i);
}

/* Lengths of the items into `len`, -1 for None; their sum, or -1 where one is neither bytes nor None. */
static Py_ssize_t pyrecords_lengths(PyObject *items, int is_list, Py_ssize_t count, int32_t *len)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = pyrecords_item(items, is_list, i);
        if (item == Py_None) {
            len[i] = -1;
            continue;
        }
        if (!PyBytes_CheckExact(item) || PyBytes_Size(item) > INT32_MAX
            || PyBytes_Size(item) > PY_SSIZE_T_MAX - total) {
            return -1;
        }
        len[i] = (int32_t)PyBytes_Size(item);
        total += len[i];
    }
    return total;
}

/*
 * pack(items) -> (data, lengths) or None
 *
 * `items` is a list or tuple of bytes and None: their bytes one after the other, and their lengths as int32, -1
 * for None.  None where an item is something else.  No Python code runs in here, so the items stay as they are.
 */
static PyObject *pyrecords_pack(PyObject *self, PyObject *items)
{
    (void)self;
    int is_list = PyList_Check(items);
    Py_ssize_t count = is_list ? PyList_Size(items) : PyTuple_Size(items);
    if (count < 0) {
        return NULL;
    }
    PyObject *lengths = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t));
    if (lengths == NULL) {
        return NULL;
    }
    int32_t *len = (int32_t *)PyBytes_AsString(lengths);
    Py_ssize_t total = pyrecords_lengths(items, is_list, count, len);
    if (total < 0) {
        Py_DECREF(lengths);
        Py_RETURN_NONE;
    }
    PyObject *data = PyBytes_FromStringAndSize(NULL, total);
    if (data == NULL) {
        Py_DECREF(lengths);
        return NULL;
    }
    char *out = PyBytes_AsString(data);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (len[i] > 0) {
            memcpy(out, PyBytes_AsString(pyrecords_item(items, is_list, i)), (size_t)len[i]);
            out += len[i];
        }
    }
    return Py_BuildValue("(NN)", data, lengths);
}

static PyMethodDef pyrecords_methods[] = {
    {"make", pyrecords_make, METH_VARARGS, "Records of decoded columns."},
    {"pack", pyrecords_pack, METH_O, "Bytes and lengths of a list of bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef pyrecords_module = {
    PyModuleDef_HEAD_INIT, "_records", "Python objects for decoded columns.", -1, pyrecords_methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__records(void);

PyMODINIT_FUNC PyInit__records(void)
{
    return PyModule_Create(&pyrecords_module);
}
