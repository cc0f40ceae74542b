/*
 * pyrecords.h - what the files of the module _records share.
 */
#ifndef PYRECORDS_H
#define PYRECORDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "ls_api.h"

/*
 * Functions of the core, which is another shared object.  They are called with the interpreter lock, and give it away
 * by themselves if they take long (ls_gil.h).
 */
typedef struct {
    int64_t (*index_floor)(const uint8_t *, int64_t, int64_t, int64_t *, int64_t *);
    int32_t (*scan_batches)(const uint8_t *, int64_t, uint32_t, ls_batch *, int64_t, ls_walk *);
    int32_t (*decode)(const uint8_t *, int64_t, uint32_t, int64_t, int64_t, ls_columns *, ls_walk *);
    int32_t (*decode_payload)(const ls_batch *, const uint8_t *, int64_t, uint32_t, int64_t, int64_t, ls_columns *,
                              int64_t *, ls_error *);
    int32_t (*decode_headers)(const uint8_t *, int64_t, int64_t, int32_t, int32_t *, int32_t *, int32_t *, int32_t *,
                              ls_error *);
    int32_t (*locate_record)(const uint8_t *, int64_t, int64_t, int64_t *, int64_t *);
    int64_t (*read)(int32_t, uint8_t *, int64_t, int64_t);
    int64_t (*append_records)(const ls_records *, int32_t, int32_t, int32_t, int64_t, int64_t, const ls_roll_limits *,
                              ls_segment_state *, uint8_t *, int64_t, uint8_t *, uint8_t *, int64_t, ls_plan *,
                              ls_error *);
    int64_t (*write)(int32_t, const uint8_t *, int64_t, int64_t);
    int64_t (*time_floor)(const uint8_t *, int64_t, int64_t, int64_t *, int64_t *);
    int32_t (*locate_time)(const uint8_t *, int64_t, int32_t, int64_t, int64_t *);
    int32_t (*check_producer)(const uint8_t *, int64_t, int64_t, int64_t, ls_columns *, ls_walk *, int64_t *);
    int32_t (*place_batches)(uint8_t *, int64_t, int64_t, int32_t, int64_t);
    int32_t (*plan_append)(const uint8_t *, int64_t, const ls_roll_limits *, int64_t, ls_segment_state *, uint8_t *,
                           int64_t, uint8_t *, int64_t, ls_plan *, ls_error *);
    int32_t (*sync)(int32_t);
    int32_t (*hold_lock)(int32_t);
    int32_t (*returning_writers)(int32_t);
    int32_t (*has_producer)(const uint8_t *, int64_t);
    int32_t (*check_sequences)(ls_producer *, int32_t, const uint8_t *, int64_t, int64_t, int64_t);
    void (*add_sequences)(ls_producer *, int32_t, const uint8_t *, int64_t);
    int32_t (*look)(int32_t, const char *, const char *, int64_t, int32_t, const uint8_t *, int64_t *);
    int64_t (*encode_records)(const ls_records *, int32_t, int32_t, int64_t, int32_t, int64_t, int64_t, uint8_t *,
                              int64_t);
} pyrecords_functions;

enum { FUNCTIONS = sizeof(pyrecords_functions) / sizeof(void (*)(void)) };

/* pyrecords_core.c: filled by `connect`. */
extern pyrecords_functions pyrecords_core;

/* The headers of a record in data[0, size), which were checked: a tuple of (str, bytes or None). */
PyObject *pyrecords_headers(const uint8_t *data, int64_t size, int32_t pos, int32_t count);

/* pyrecords_record.c: add the types Record and TopicRecord to the module; -1 with an error set. */
int pyrecords_add_types(PyObject *module);

/* A new type, which the module and the caller own from now on; NULL with an error set. */
PyTypeObject *pyrecords_add_type(PyObject *module, const char *name, PyType_Spec *spec);

/*
 * A new Record; NULL with an error set.  `key` and `value` are stolen, and may be NULL if an error is set already.
 * `timestamp_type` is -1, 0 or 1.
 */
PyObject *pyrecords_record(int64_t offset, int64_t timestamp_ms, PyObject *key, PyObject *value, PyObject *headers,
                           int timestamp_type);

/* The same for a TopicRecord. */
PyObject *pyrecords_topic_record(PyObject *topic, int64_t partition, int64_t offset, int64_t timestamp_ms, PyObject *key,
                                 PyObject *value, PyObject *headers, int timestamp_type);

/* pyrecords_iterators.c: the bytes of a slice, or None if its length says null. */
PyObject *pyrecords_slice(const char *base, int32_t pos, int32_t len);

/* Columns of an append: lists or tuples of one length, or NULL. */
typedef struct {
    PyObject *values; /* bytes or None */
    PyObject *keys;
    PyObject *times; /* int */
} pyrecords_lists;

enum { PYRECORDS_ROWS_MAX = 8192 };

/* Where the bytes of a column are, for one append: used from one check of the lock to its end. */
typedef struct {
    int64_t pos[PYRECORDS_ROWS_MAX];
    int32_t len[PYRECORDS_ROWS_MAX];
} pyrecords_column;

/* pyrecords_rows.c */
extern pyrecords_column pyrecords_values, pyrecords_keys;
extern int64_t pyrecords_times[PYRECORDS_ROWS_MAX];

/*
 * pyrecords_rows.c: give `rows`, which has a count of at most PYRECORDS_ROWS_MAX, the columns of lists; they hold until
 * the next call, or until the lists change.  1; 0 if a list has another length, or an item that is
 * not of exactly these types, or cannot be stored.
 */
int pyrecords_rows_of(const pyrecords_lists *lists, ls_records *rows);

/* Methods of the module. */
PyObject *pyrecords_connect(PyObject *module, PyObject *args);
PyObject *pyrecords_encode_lists(PyObject *module, PyObject *args);
PyObject *pyrecords_find(PyObject *module, PyObject *args);
PyObject *pyrecords_find_time(PyObject *module, PyObject *args);
PyObject *pyrecords_floor(PyObject *module, PyObject *args);
PyObject *pyrecords_look(PyObject *module, PyObject *args);
PyObject *pyrecords_configure(PyObject *module, PyObject *kinds);
PyObject *pyrecords_of_topic(PyObject *module, PyObject *args);
PyObject *pyrecords_pack_times(PyObject *module, PyObject *items);
PyObject *pyrecords_point(PyObject *module, PyObject *items);

/* pyrecords_parts.c: add the types whose fields steps read and write to the module; -1 with an error set. */
int pyrecords_add_parts(PyObject *module);

/* pyrecords_append.c: add the type PreparedAppend to the module; -1 with an error set. */
int pyrecords_add_append(PyObject *module);

/* pyrecords_sync.c: add the types Durations and SharedSync to the module; -1 with an error set. */
int pyrecords_add_sync(PyObject *module);

/* pyrecords_iterators.c: add the types DecodedRecords and Flattened to the module; -1 with an error set. */
int pyrecords_add_iterators(PyObject *module);

#endif
