/*
 * pyrecords.c - the one thing that cffi cannot do fast enough: Python objects for decoded columns, one record
 * at a time.  A module of its own (stable ABI, CPython 3.10 and later); everything else is in the C core.
 *
 * Trusts the addresses and the count that logstore._binding passes: columns that ls_decode has filled, whose
 * positions it has checked against the buffer they point into.  Holds the GIL throughout.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

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

/*
 * make(type, count, base, offset, timestamp, key_pos, key_len, value_pos, value_len, headers, kinds) -> list
 *
 * `type` is a subclass of tuple without further fields; `base` and the columns are addresses; `headers` and
 * `kinds` are lists with one object for each record, or one object (not a list) for all.
 */
static PyObject *pyrecords_make(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *type, *headers, *kinds;
    Py_ssize_t count;
    unsigned long long base_at, offset_at, timestamp_at, key_pos_at, key_len_at, value_pos_at, value_len_at;
    if (!PyArg_ParseTuple(args, "OnKKKKKKKOO", &type, &count, &base_at, &offset_at, &timestamp_at, &key_pos_at,
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
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *record = PyType_GenericAlloc((PyTypeObject *)type, 6);
        if (record == NULL) {
            Py_DECREF(list);
            return NULL;
        }
        int ok = pyrecords_put(record, 0, PyLong_FromLongLong(offset[i])) &&
                 pyrecords_put(record, 1, PyLong_FromLongLong(timestamp[i])) &&
                 pyrecords_put(record, 2, pyrecords_slice(base, key_pos[i], key_len[i])) &&
                 pyrecords_put(record, 3, pyrecords_slice(base, value_pos[i], value_len[i])) &&
                 pyrecords_put(record, 4, pyrecords_shared(many_headers ? PyList_GetItem(headers, i) : headers)) &&
                 pyrecords_put(record, 5, pyrecords_shared(many_kinds ? PyList_GetItem(kinds, i) : kinds));
        if (!ok) {
            Py_DECREF(record);
            Py_DECREF(list);
            return NULL;
        }
        /* Numbers, bytes and headers cannot refer back to it: the collector need not look at it. */
        PyObject_GC_UnTrack(record);
        PyList_SetItem(list, i, record);
    }
    return list;
}

static PyMethodDef pyrecords_methods[] = {
    {"make", pyrecords_make, METH_VARARGS, "Records of decoded columns."},
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
