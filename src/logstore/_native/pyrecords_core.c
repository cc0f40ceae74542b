/*
 * pyrecords_core.c - functions of the core that the module _records calls, and the headers of a record as objects.
 */
#include "pyrecords.h"

#include <string.h>

pyrecords_functions pyrecords_core;

/* connect(address, ...): of each member of pyrecords_functions, in order. */
PyObject *pyrecords_connect(PyObject *module, PyObject *args)
{
    (void)module;
    if (PyTuple_Size(args) != FUNCTIONS) {
        PyErr_Format(PyExc_TypeError, "connect takes %d addresses", (int)FUNCTIONS);
        return NULL;
    }
    for (int i = 0; i < FUNCTIONS; i++) {
        uintptr_t address = (uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GetItem(args, i));
        if (PyErr_Occurred()) {
            return NULL;
        }
        memcpy((char *)&pyrecords_core + (size_t)i * sizeof(address), &address, sizeof(address));
    }
    Py_RETURN_NONE;
}

enum { FEW_HEADERS = 16 };

static PyObject *pyrecords_header(const char *data, int32_t key_pos, int32_t key_len, int32_t value_pos,
                                  int32_t value_len)
{
    /* Names that are not UTF-8: as Kafka's consumer reads them. */
    PyObject *name = PyUnicode_DecodeUTF8(data + key_pos, key_len, "replace");
    PyObject *value = name == NULL ? NULL : pyrecords_slice(data, value_pos, value_len);
    PyObject *header = value == NULL ? NULL : PyTuple_Pack(2, name, value);
    Py_XDECREF(name);
    Py_XDECREF(value);
    return header;
}

PyObject *pyrecords_headers(const uint8_t *data, int64_t size, int32_t pos, int32_t count)
{
    if (count <= 0) {
        return PyTuple_New(0);
    }
    int32_t few[4 * FEW_HEADERS];
    int32_t *places = count <= FEW_HEADERS ? few : PyMem_Malloc(4 * sizeof(int32_t) * (size_t)count);
    if (places == NULL) {
        return PyErr_NoMemory();
    }
    int32_t *key_pos = places, *key_len = places + count, *value_pos = places + 2 * count;
    int32_t *value_len = places + 3 * count;
    ls_error error;
    PyObject *headers = NULL;
    int32_t status =
        pyrecords_core.decode_headers(data, size, pos, count, key_pos, key_len, value_pos, value_len, &error);
    if (status < 0) {
        PyErr_Format(PyExc_ValueError, "headers that were checked cannot be read: status %d", (int)status);
    } else {
        headers = PyTuple_New(count);
    }
    for (Py_ssize_t i = 0; headers != NULL && i < count; i++) {
        PyObject *header = pyrecords_header((const char *)data, key_pos[i], key_len[i], value_pos[i], value_len[i]);
        if (header == NULL || PyTuple_SetItem(headers, i, header) < 0) {
            Py_CLEAR(headers);
        }
    }
    if (places != few) {
        PyMem_Free(places);
    }
    return headers;
}
