/*
 * pyrecords_append.h - PreparedAppend: what its methods (pyrecords_append.c) and the step that they make
 * (pyrecords_write.c) share.
 */
#ifndef PYRECORDS_APPEND_H
#define PYRECORDS_APPEND_H

#include "pylocks_api.h"
#include "pyrecords.h"

/*
 * The parts of a log, as far as steps read and write them (pyrecords_parts.c).  Another thread may write them, too,
 * while a method in Python or a sync runs.
 */
typedef struct {
    PyObject_HEAD
    PyObject *bounds; /* LogBounds */
} pyrecords_log;

typedef struct {
    PyObject_HEAD
    char is_blocked;
    char is_poisoned;
    char is_torn;
} pyrecords_health;

typedef struct {
    PyObject_HEAD
    PyObject *dirty;
} pyrecords_writer;

typedef struct {
    PyObject_HEAD
    PyObject *next_offset; /* ints: in a file that other software wrote it may be 2**63 */
    PyObject *size;
} pyrecords_segment;

typedef struct {
    PyObject_HEAD
    PyObject *data; /* a bytearray that has room, or something else */
    Py_ssize_t count;
    Py_ssize_t written;
} pyrecords_entries;

/*
 * Calls of the system that a step makes (pyrecords_system.c).  If a method in Python raises, a function returns
 * a negative number, and the error is set.
 */
enum { /* as logstore.io.files.replaced_calls */
    PYRECORDS_LOCK,
    PYRECORDS_MONOTONIC,
    PYRECORDS_NOW_MS,
    PYRECORDS_SYNC,
    PYRECORDS_WRITE,
    PYRECORDS_CALLS,
};

typedef struct pyrecords_system pyrecords_system;
struct pyrecords_system {
    int64_t (*now_ms)(const pyrecords_system *); /* Unix milliseconds */
    /* 0: all of it is written; -EINTR: nothing; else -errno or PYRECORDS_RAISED, and a part may be. */
    int32_t (*write)(const pyrecords_system *, int fd, const uint8_t *data, int64_t size, int64_t pos);
    int32_t (*sync)(const pyrecords_system *, int fd);  /* 0, -errno or PYRECORDS_RAISED */
    int (*hold_lock)(const pyrecords_system *, int fd); /* 1: this process has the lock; 0: not for certain */
    double (*monotonic)(const pyrecords_system *);      /* seconds */
    PyObject *methods[PYRECORDS_CALLS];                 /* that are called in place of the system; NULL: none is */
};

enum { PYRECORDS_RAISED = INT32_MIN };

typedef struct {
    PyObject_HEAD
    /* For all its life. */
    pyrecords_system system;
    pyrecords_log *log; /* LogWriter */
    pyrecords_health *health;
    pylocks_mutex *lock;
    PyObject *undo;   /* a method of the log: undoes a write of a writer that has failed, and returns its error */
    PyObject *bounds; /* the type LogBounds */
    PyObject *quiet;  /* a tuple of containers: while one of them is not empty, records go the usual way */
    PyObject *facts_owner; /* StepFacts: it owns `facts`, whose fields hold until the lock is taken, and their state */
    ls_step_facts *facts;
    PyObject *table;  /* it owns `producers`; NULL: batches of producers go the usual way */
    ls_producer *producers;
    int64_t expiry_ms;
    int32_t producer_count;
    /* Until the lock is taken; NULL: nothing is prepared. */
    pyrecords_writer *writer; /* SegmentWriter; it owns `facts->fd` */
    pyrecords_segment *segment;
    pyrecords_entries *index; /* OffsetEntries */
    pyrecords_entries *times; /* TimeEntries */
    uint64_t takes;           /* of the lock */
} pyrecords_append;

/* Arrow's C data interface. */
struct ArrowSchema;
struct ArrowArray;

/* Values and keys are binary or string, times are 64 bit milliseconds. */
enum { PYRECORDS_ARROW_VALUES, PYRECORDS_ARROW_KEYS, PYRECORDS_ARROW_TIMES, PYRECORDS_ARROW_COLUMNS };

/* Columns of a record batch, or NULL, and the bytes of their data. */
typedef struct {
    const struct ArrowArray *column[PYRECORDS_ARROW_COLUMNS];
    int64_t bytes[PYRECORDS_ARROW_COLUMNS];
    int64_t count; /* of rows */
} pyrecords_arrow;

/* The number of a column, -1 for none, and the bytes of its data. */
typedef struct {
    int64_t number;
    int64_t bytes;
} pyrecords_arrow_place;

/* pyrecords_arrow.c: the columns of a batch.  1; 0 if one is of a kind that is not read here. */
int pyrecords_open_arrow(const struct ArrowSchema *schema, const struct ArrowArray *batch,
                         const pyrecords_arrow_place places[PYRECORDS_ARROW_COLUMNS], pyrecords_arrow *columns);

/* As pyrecords_rows_of.  The batch was validated. */
int pyrecords_rows_of_arrow(const pyrecords_arrow *columns, ls_records *rows);

/* Where the records of an append come from. */
typedef struct {
    pyrecords_lists lists;
    pyrecords_arrow arrow;
    ls_records rows; /* without what is in lists or arrow; of batches, no more than their count */
    int64_t base;    /* the offset of the first one */
    int64_t batches; /* bytes of the batches that were taken */
    uint64_t taken;  /* which ones */
    int has_producer; /* one of them is of a producer that numbers its records */
    int is_held;      /* this thread has the lock, and has prepared the append */
    int is_checked;   /* it has also checked that the log takes appends; the batches come of several */
    int is_timed;     /* rows.timestamp_all is the time of the append; else the clock says it */
} pyrecords_source;

/*
 * Take plain batches that a producer sent for the next call of pyrecords_append_source: they are checked, and their
 * records counted.  1, or 0 if one is not such a batch, or they are too large.
 */
int pyrecords_take_batches(const pyrecords_append *self, const uint8_t *data, int64_t size, pyrecords_source *from);

/* The same for batches of magic 2, compressed or not, that were encoded here, or checked, for another offset; the caller
 * has set the number of their records. */
int pyrecords_take_encoded(const pyrecords_append *self, const uint8_t *data, int64_t size, pyrecords_source *from);

/*
 * append(value, key, timestamp_ms) -> offset, or -1: nothing was done, the record goes the usual way; NULL with an error
 * set.
 */
PyObject *pyrecords_append_one(pyrecords_append *self, PyObject *const *args, Py_ssize_t count);

/* Append records: 1; 0 if they need the usual way; -1 with an error set. */
int pyrecords_append_source(pyrecords_append *self, const pyrecords_source *from);

/* The sum of two numbers that are not negative, or the largest number. */
static inline int64_t pyrecords_sum(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

/* Make the object that steps need; -1 with an error set. */
int pyrecords_prepare_steps(void);

/* ---------------------------------------------------------------- what steps are made of (pyrecords_write.c) */

enum { PYRECORDS_BOUNDS_ITEMS = 6, PYRECORDS_BOUNDS_END = 2, PYRECORDS_BOUNDS_DURABLE = 3 };

/* Whether nothing speaks against an append, or a sync, of this kind.  Runs no Python code. */
int pyrecords_is_ready(const pyrecords_append *self);

/* The same, but for the lock. */
int pyrecords_is_open(const pyrecords_append *self);

/* The same for a thread that has the lock: it reports what has failed in the background, and wakes readers itself. */
int pyrecords_is_held_ready(const pyrecords_append *self);

/* LogBounds without items; NULL with an error set. */
PyObject *pyrecords_new_bounds(PyObject *type);

/*
 * Give LogBounds the items of the log's LogBounds, except for one of them: 1; 0 if the log has no LogBounds; -1 with an
 * error set.
 */
int pyrecords_fill_bounds(const pyrecords_append *self, PyObject *next, Py_ssize_t place, PyObject *other);

/* An offset of the log's bounds; -1 with an error set. */
int64_t pyrecords_extent_offset(const pyrecords_append *self, Py_ssize_t place);

/* Set a field of a part. */
void pyrecords_set(PyObject **field, PyObject *value);

/* ---------------------------------------------------------------- the system (pyrecords_system.c) */

extern const pylocks_functions *pyrecords_locks;

/*
 * Give a table the functions of the system, and methods in Python, which it owns from now on: a tuple as `methods`, with
 * None for the others.  0, or -1 with an error set.
 */
int pyrecords_bind_system(pyrecords_system *system, PyObject *methods);

/* The error that is set, or that of an errno, as an object, which is the caller's; no error is set any more. */
PyObject *pyrecords_take_error(int32_t status);

/* Take and release the lock of a log, for a step that calls methods in Python; as the functions below. */
int pyrecords_lock_step(pyrecords_append *self);
int pyrecords_unlock_step(pyrecords_append *self, int status);

/* Whether a call of the system is a method in Python. */
static inline int pyrecords_calls(const pyrecords_append *self, int call)
{
    return self->system.methods[call] != NULL;
}

/* Begin a step: 1; 0 where something speaks against it; -1 with an error set.  1 needs a call of pyrecords_end_step. */
static inline int pyrecords_begin_step(pyrecords_append *self)
{
    if (!pyrecords_is_ready(self)) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return pyrecords_calls(self, PYRECORDS_WRITE) ? pyrecords_lock_step(self) : 1;
}

/* The step has ended with a status, which is returned; -1 with an error set if unlocking raises one. */
static inline int pyrecords_end_step(pyrecords_append *self, int status)
{
    return pyrecords_calls(self, PYRECORDS_WRITE) ? pyrecords_unlock_step(self, status) : status;
}

/* After a method in Python returned: whether the step may continue, and writes for this writer.  `takes`: how often the
 * lock was taken since it was prepared. */
int pyrecords_has_step(const pyrecords_append *self, const pyrecords_writer *writer, uint64_t takes);

/* Call what was deferred, also after an error, which stays set: the status, or -1 with an error set. */
int pyrecords_run_deferred(int status);

/* Make the objects that the calls need; -1 with an error set. */
int pyrecords_prepare_system(void);

/* ---------------------------------------------------------------- types */

extern PyTypeObject *pyrecords_append_type; /* PreparedAppend: pyrecords_append.c */
extern PyTypeObject *pyrecords_log_type, *pyrecords_health_type, *pyrecords_writer_type, *pyrecords_segment_type;
extern PyTypeObject *pyrecords_entries_type;

#endif
