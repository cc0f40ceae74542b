/*
 * pyrecords.c - what cffi cannot do fast enough: Python objects for decoded columns, and columns of Python
 * objects, one record at a time.  A module of its own (stable ABI, CPython 3.10 and later); everything else is
 * in the C core.
 *
 * Trusts the addresses and the count that logstore._native passes: columns that ls_decode has filled, whose
 * positions it has checked against the buffer they point into.  Holds the GIL throughout.
 */
#include "pyrecords.h"

#include <string.h>

static PyObject *pyrecords_item_of(PyObject *items, int is_list, Py_ssize_t i)
{
    return is_list ? PyList_GetItem(items, i) : PyTuple_GetItem(items, i);
}

/* Lengths of the items into `len`, -1 for None; their sum, or -1 where one is neither bytes nor None. */
static Py_ssize_t pyrecords_lengths(PyObject *items, int is_list, Py_ssize_t count, int32_t *len)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = pyrecords_item_of(items, is_list, i);
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
            memcpy(out, PyBytes_AsString(pyrecords_item_of(items, is_list, i)), (size_t)len[i]);
            out += len[i];
        }
    }
    return Py_BuildValue("(NN)", data, lengths);
}

/*
 * pack_times(items) -> bytes or None
 *
 * `items` is a list or tuple of timestamps to store, of the type int and not below -1: their int64.  None where an item
 * is something else.
 */
static PyObject *pyrecords_pack_times(PyObject *self, PyObject *items)
{
    (void)self;
    int is_list = PyList_Check(items);
    Py_ssize_t count = is_list ? PyList_Size(items) : PyTuple_Size(items);
    PyObject *times = count < 0 ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    if (times == NULL) {
        return NULL;
    }
    char *out = PyBytes_AsString(times);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = pyrecords_item_of(items, is_list, i);
        int64_t time = PyLong_CheckExact(item) ? PyLong_AsLongLong(item) : -2;
        if (time < -1 || (time == -1 && PyErr_Occurred())) {
            PyErr_Clear();
            Py_DECREF(times);
            Py_RETURN_NONE;
        }
        memcpy(out + (size_t)i * sizeof(time), &time, sizeof(time));
    }
    return times;
}

static PyMethodDef pyrecords_methods[] = {
    {"configure", pyrecords_configure, METH_O, "Give the objects of the timestamp types."},
    {"connect", pyrecords_connect, METH_VARARGS, "Give the addresses of functions of the core."},
    {"find", pyrecords_find, METH_VARARGS, "One record by its offset."},
    {"find_time", pyrecords_find_time, METH_VARARGS, "The first offset of a segment since a time."},
    {"of_topic", pyrecords_of_topic, METH_VARARGS, "A record with its topic and partition."},
    {"pack", pyrecords_pack, METH_O, "Bytes and lengths of a list of bytes."},
    {"pack_times", pyrecords_pack_times, METH_O, "A list of timestamps as int64."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef pyrecords_module = {
    PyModuleDef_HEAD_INIT, "_records", "Python objects for decoded columns.", -1, pyrecords_methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__records(void);

PyMODINIT_FUNC PyInit__records(void)
{
    PyObject *module = PyModule_Create(&pyrecords_module);
    if (module != NULL
        && (pyrecords_add_types(module) < 0 || pyrecords_add_iterators(module) < 0
            || pyrecords_add_append(module) < 0)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
