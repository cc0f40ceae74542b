/*
 * pyrecords_encode.c - lists of keys and values as the bytes of batches, in one call: what a process hands in to the one
 * that has the lock of the store.
 */
#include "pyrecords.h"

enum { ENCODED_BYTES = 256 * 1024 }; /* what is encoded with the interpreter lock held (LS_GIL_BYTES) */

/* Used within one call, which runs no Python code. */
static uint8_t pyrecords_encoded[ENCODED_BYTES];

static int pyrecords_is_column(PyObject *object)
{
    return PyList_CheckExact(object) || PyTuple_CheckExact(object);
}

/* Read the columns of a call, of which the first is not None: 1 if all are lists or tuples or None, else 0. */
static int pyrecords_columns_of(PyObject *const columns[3], pyrecords_lists *lists)
{
    for (int i = 0; i < 3; i++) {
        if (!pyrecords_is_column(columns[i]) && (i == 0 || columns[i] != Py_None)) {
            return 0;
        }
    }
    lists->values = columns[0];
    lists->keys = columns[1] == Py_None ? NULL : columns[1];
    lists->times = columns[2] == Py_None ? NULL : columns[2];
    return 1;
}

/*
 * encode_lists(values, keys, timestamps_ms, now_ms, magic, max_bytes, batch_max) -> bytes or None
 *
 * Batches of magic 2 of at most `batch_max` bytes, or messages of magic 0 or 1, with offsets from 0 on; they are not
 * compressed.  The columns are lists or tuples of bytes and None, and of ints; the last two may be None.  `now_ms`: the
 * time of the records if `timestamps_ms` is None.  Returns None if an item is something else, a record is more than
 * `max_bytes`, or all of them are too many or zero.
 */
PyObject *pyrecords_encode_lists(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *columns[3];
    long long now, max_bytes, batch_max;
    int magic;
    if (!PyArg_ParseTuple(args, "OOOLiLL", &columns[0], &columns[1], &columns[2], &now, &magic, &max_bytes,
                          &batch_max)) {
        return NULL;
    }
    pyrecords_lists lists;
    if (!pyrecords_columns_of(columns, &lists)) {
        Py_RETURN_NONE;
    }
    ls_records rows = {.count = PyObject_Size(lists.values), .timestamp_all = now};
    if (rows.count <= 0 || rows.count > PYRECORDS_ROWS_MAX || !pyrecords_rows_of(&lists, &rows)) {
        Py_RETURN_NONE;
    }
    int64_t bytes =
        pyrecords_core.encode_records(&rows, magic, 0, 0, 0, max_bytes, batch_max, pyrecords_encoded, ENCODED_BYTES);
    if (bytes <= 0) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)pyrecords_encoded, (Py_ssize_t)bytes);
}
