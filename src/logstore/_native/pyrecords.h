/*
 * pyrecords.h - what the files of the module _records share.
 */
#ifndef PYRECORDS_H
#define PYRECORDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* pyrecords_record.c: add the types Record and TopicRecord to the module; -1 with an error set. */
int pyrecords_add_types(PyObject *module);

/*
 * A new Record; NULL with an error set.  `key` and `value` are stolen, and may be NULL if an error is set already.
 * `timestamp_type` is -1, 0 or 1.
 */
PyObject *pyrecords_record(int64_t offset, int64_t timestamp_ms, PyObject *key, PyObject *value, PyObject *headers,
                           int timestamp_type);

/* pyrecords_iterators.c: the bytes of a slice, or None if its length says null. */
PyObject *pyrecords_slice(const char *base, int32_t pos, int32_t len);

/* Methods of the module. */
PyObject *pyrecords_connect(PyObject *module, PyObject *args);
PyObject *pyrecords_find(PyObject *module, PyObject *args);
PyObject *pyrecords_configure(PyObject *module, PyObject *kinds);
PyObject *pyrecords_of_topic(PyObject *module, PyObject *args);

/* pyrecords_iterators.c: add the types DecodedRecords and Flattened to the module; -1 with an error set. */
int pyrecords_add_iterators(PyObject *module);

#endif
