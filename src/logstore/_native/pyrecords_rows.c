/*
 * pyrecords_rows.c - columns of Python objects: lists of bytes and of timestamps, as the core takes them.
 *
 * Nothing is copied: the core reads the bytes in place.  An object of the type bytes never changes, and never
 * moves.  No Python code runs in here, so the lists do not change either.
 */
#include "pyrecords.h"

/* How far ahead objects are prefetched: a long list's objects are not in the cache. */
enum { AHEAD = 8, LINE = 64 };

static PyObject *pyrecords_item_of(PyObject *items, int is_list, Py_ssize_t i)
{
    return is_list ? PyList_GetItem(items, i) : PyTuple_GetItem(items, i);
}

/* Where the bytes of an object of the type bytes begin, counted from the object: the same for all of them. */
static Py_ssize_t pyrecords_bytes_at(PyObject *item)
{
    static Py_ssize_t at = -1;
    if (at < 0) {
        at = PyBytes_AsString(item) - (const char *)item;
    }
    return at;
}

/* Where the items of a list or tuple are, counted from *data, and their lengths, -1 for None.  Returns how many there
   are, or -1 if one is something else. */
static Py_ssize_t pyrecords_point_at(PyObject *items, int64_t *pos, int32_t *len, const uint8_t **data)
{
    int is_list = PyList_Check(items);
    Py_ssize_t count = is_list ? PyList_Size(items) : PyTuple_Size(items);
    const uint8_t *base = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = pyrecords_item_of(items, is_list, i);
        if (i + AHEAD < count) {
            const char *next = (const char *)pyrecords_item_of(items, is_list, i + AHEAD);
            __builtin_prefetch(next);
            __builtin_prefetch(next + LINE);
        }
        if (item == Py_None) {
            pos[i] = 0;
            len[i] = -1;
            continue;
        }
        if (!PyBytes_CheckExact(item) || PyBytes_Size(item) > INT32_MAX) {
            return -1;
        }
        const uint8_t *bytes = (const uint8_t *)item + pyrecords_bytes_at(item);
        base = base == NULL ? bytes : base;
        pos[i] = (int64_t)((intptr_t)bytes - (intptr_t)base);
        len[i] = (int32_t)PyBytes_Size(item);
    }
    *data = base;
    return count;
}

/*
 * point(items) -> (tuple of items, address, positions, lengths) or None
 *
 * `items` is a list or tuple of bytes and None: their positions as int64, counted from the address, and their lengths
 * as int32, -1 for None.  They hold as long as the tuple lives.  None if an item is something else.
 */
PyObject *pyrecords_point(PyObject *module, PyObject *items)
{
    (void)module;
    PyObject *kept = NULL;
    if (PyTuple_CheckExact(items)) {
        Py_INCREF(items);
        kept = items;
    } else if (PyList_Check(items)) {
        kept = PyList_AsTuple(items);
    } else if (PyTuple_Check(items)) {
        kept = PyTuple_GetSlice(items, 0, PyTuple_Size(items));
    } else {
        PyErr_BadInternalCall();
    }
    Py_ssize_t count = kept == NULL ? 0 : PyTuple_Size(kept);
    PyObject *positions = kept == NULL ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *lengths = positions == NULL ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t));
    PyObject *result = NULL;
    if (lengths != NULL) {
        const uint8_t *data = NULL;
        if (pyrecords_point_at(kept, (int64_t *)(void *)PyBytes_AsString(positions),
                               (int32_t *)(void *)PyBytes_AsString(lengths), &data)
            < 0) {
            result = Py_None;
            Py_INCREF(result);
        } else {
            result = Py_BuildValue("(OKOO)", kept, (unsigned long long)(uintptr_t)data, positions, lengths);
        }
    }
    Py_XDECREF(kept);
    Py_XDECREF(positions);
    Py_XDECREF(lengths);
    return result;
}

/* The items of a list or tuple of ints from -1 on.  Returns how many there are, or -1 if one is something else. */
static Py_ssize_t pyrecords_times_of(PyObject *items, int64_t *times)
{
    int is_list = PyList_Check(items);
    Py_ssize_t count = is_list ? PyList_Size(items) : PyTuple_Size(items);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = pyrecords_item_of(items, is_list, i);
        int64_t time = PyLong_CheckExact(item) ? PyLong_AsLongLong(item) : -2;
        if (time < -1 || (time == -1 && PyErr_Occurred())) {
            PyErr_Clear();
            return -1;
        }
        times[i] = time;
    }
    return count;
}

/*
 * pack_times(items) -> bytes or None
 *
 * `items` is a list or tuple of timestamps to store, of the type int and not below -1: their int64.  None where an item
 * is something else.
 */
PyObject *pyrecords_pack_times(PyObject *module, PyObject *items)
{
    (void)module;
    Py_ssize_t count = PyList_Check(items) ? PyList_Size(items) : PyTuple_Size(items);
    PyObject *times = count < 0 ? NULL : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    if (times != NULL && pyrecords_times_of(items, (int64_t *)(void *)PyBytes_AsString(times)) < 0) {
        Py_DECREF(times);
        Py_RETURN_NONE;
    }
    return times;
}

pyrecords_column pyrecords_values, pyrecords_keys;
int64_t pyrecords_times[PYRECORDS_ROWS_MAX];

static int pyrecords_is_of_length(PyObject *items, int64_t count)
{
    return (PyList_Check(items) ? PyList_Size(items) : PyTuple_Size(items)) == count;
}

int pyrecords_rows_of(const pyrecords_lists *lists, ls_records *rows)
{
    PyObject *items[] = {lists->values, lists->keys, lists->times};
    for (int i = 0; i < 3; i++) {
        if (items[i] != NULL && !pyrecords_is_of_length(items[i], rows->count)) {
            return 0;
        }
    }
    int is_whole = 1;
    if (lists->values != NULL) {
        rows->value.pos = pyrecords_values.pos;
        rows->value.len = pyrecords_values.len;
        is_whole = pyrecords_point_at(lists->values, pyrecords_values.pos, pyrecords_values.len, &rows->value.data) >= 0;
    }
    if (is_whole && lists->keys != NULL) {
        rows->key.pos = pyrecords_keys.pos;
        rows->key.len = pyrecords_keys.len;
        is_whole = pyrecords_point_at(lists->keys, pyrecords_keys.pos, pyrecords_keys.len, &rows->key.data) >= 0;
    }
    if (is_whole && lists->times != NULL) {
        rows->timestamp = pyrecords_times;
        is_whole = pyrecords_times_of(lists->times, pyrecords_times) >= 0;
    }
    return is_whole;
}
