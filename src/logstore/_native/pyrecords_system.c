/*
 * pyrecords_system.c - the calls of the system that steps make (pyrecords_write.c, pyrecords_sync.c), as a table of
 * functions that is bound to an object of the type Files.
 *
 * A method that a subclass of Files has replaced is called as from Python: the methods are handed over once.  All else
 * is called here.  So a test that fails a call fails it on the path that every append takes.
 *
 * A step whose calls are all made here needs no protection but the interpreter lock.  A method in Python
 * lets other threads run, and may itself append, close the log or fork: a step that calls one holds the lock of the log
 * (pyrecords_begin_step), as the usual way does, and asks after the call whether it still has it.
 */
#include "pyrecords_append.h"

#include <errno.h>
#include <time.h>

const pylocks_functions *pyrecords_locks;

static PyObject *pyrecords_clock;   /* the module time */
static PyObject *pyrecords_time_ns; /* the name of its function */

/* ---------------------------------------------------------------- the system's */

static int64_t pyrecords_own_now(const pyrecords_system *system)
{
    (void)system;
    /* By its name, as Files.now_ms does: programs replace the clock for their tests. */
    PyObject *function = PyObject_GetAttr(pyrecords_clock, pyrecords_time_ns);
    PyObject *ns = function == NULL ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(function);
    int64_t now = ns == NULL ? -1 : PyLong_AsLongLong(ns);
    Py_XDECREF(ns);
    return now < 0 ? now : now / 1000000;
}

static int32_t pyrecords_own_write(const pyrecords_system *system, int fd, const uint8_t *data, int64_t size,
                                   int64_t pos)
{
    (void)system;
    int64_t done = 0;
    while (done < size) {
        int64_t written = pyrecords_core.write(fd, data + done, size - done, pos + done);
        if (written > 0) {
            done += written;
        } else if (written != -EINTR || done == 0) {
            return written < 0 ? (int32_t)written : -EIO;
        }
    }
    return 0;
}

static int32_t pyrecords_own_sync(const pyrecords_system *system, int fd)
{
    (void)system;
    return pyrecords_core.sync(fd);
}

static int pyrecords_own_hold_lock(const pyrecords_system *system, int fd)
{
    (void)system;
    return pyrecords_core.hold_lock(fd) == 0;
}

static double pyrecords_own_monotonic(const pyrecords_system *system)
{
    (void)system;
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---------------------------------------------------------------- methods of a subclass of Files */

static int64_t pyrecords_called_now(const pyrecords_system *system)
{
    PyObject *ms = PyObject_CallNoArgs(system->methods[PYRECORDS_NOW_MS]);
    int64_t now = ms == NULL ? -1 : PyLong_AsLongLong(ms);
    Py_XDECREF(ms);
    return now;
}

static int32_t pyrecords_called_write(const pyrecords_system *system, int fd, const uint8_t *data, int64_t size,
                                      int64_t pos)
{
    PyObject *result = PyObject_CallFunction(system->methods[PYRECORDS_WRITE], "iy#L", fd, (const char *)data,
                                             (Py_ssize_t)size, (long long)pos);
    Py_XDECREF(result);
    return result == NULL ? PYRECORDS_RAISED : 0;
}

static int32_t pyrecords_called_sync(const pyrecords_system *system, int fd)
{
    PyObject *result = PyObject_CallFunction(system->methods[PYRECORDS_SYNC], "i", fd);
    Py_XDECREF(result);
    return result == NULL ? PYRECORDS_RAISED : 0;
}

static int pyrecords_called_hold_lock(const pyrecords_system *system, int fd)
{
    PyObject *holder = PyObject_CallFunction(system->methods[PYRECORDS_LOCK], "i", fd);
    Py_XDECREF(holder);
    if (holder == NULL && PyErr_ExceptionMatches(PyExc_OSError)) {
        PyErr_Clear(); /* as an errno of the system: the usual way asks again */
        return 0;
    }
    return holder == NULL ? -1 : holder == Py_None;
}

static double pyrecords_called_monotonic(const pyrecords_system *system)
{
    PyObject *seconds = PyObject_CallNoArgs(system->methods[PYRECORDS_MONOTONIC]);
    double now = seconds == NULL ? -1.0 : PyFloat_AsDouble(seconds);
    Py_XDECREF(seconds);
    return now;
}

/* ---------------------------------------------------------------- the table */

int pyrecords_bind_system(pyrecords_system *system, PyObject *methods)
{
    if (PyTuple_Size(methods) != PYRECORDS_CALLS) {
        PyErr_Format(PyExc_TypeError, "there are %d calls of the system", (int)PYRECORDS_CALLS);
        return -1;
    }
    PyObject **called = system->methods;
    for (int i = 0; i < PYRECORDS_CALLS; i++) {
        PyObject *method = PyTuple_GetItem(methods, i);
        if (method != Py_None) {
            Py_INCREF(method);
            called[i] = method;
        }
    }
    system->hold_lock = called[PYRECORDS_LOCK] ? pyrecords_called_hold_lock : pyrecords_own_hold_lock;
    system->monotonic = called[PYRECORDS_MONOTONIC] ? pyrecords_called_monotonic : pyrecords_own_monotonic;
    system->now_ms = called[PYRECORDS_NOW_MS] ? pyrecords_called_now : pyrecords_own_now;
    system->sync = called[PYRECORDS_SYNC] ? pyrecords_called_sync : pyrecords_own_sync;
    system->write = called[PYRECORDS_WRITE] ? pyrecords_called_write : pyrecords_own_write;
    return 0;
}

PyObject *pyrecords_take_error(int32_t status)
{
    if (status != PYRECORDS_RAISED) {
        errno = -status;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace != NULL && error != NULL) {
        PyException_SetTraceback(error, trace);
    }
    if (error == NULL) {
        PyErr_BadInternalCall(); /* no error was set */
    }
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return error;
}

/* ---------------------------------------------------------------- a step */

int pyrecords_has_step(const pyrecords_append *self, const pyrecords_writer *writer, uint64_t takes)
{
    const pylocks_mutex *lock = self->lock;
    return self->writer != NULL && self->writer == writer && lock->takes == self->takes + takes
        && lock->forks == *lock->process_forks;
}

int pyrecords_lock_step(pyrecords_append *self)
{
    if (pyrecords_locks->enter((PyObject *)self->lock) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_Clear(); /* the usual way needs it, too, and says why it cannot have it */
        return 0;
    }
    if (pyrecords_has_step(self, self->writer, 1) && pyrecords_is_open(self)) {
        return 1;
    }
    /* Another thread had it. */
    return pyrecords_unlock_step(self, PyErr_Occurred() ? -1 : 0);
}

int pyrecords_unlock_step(pyrecords_append *self, int status)
{
    if (pyrecords_has_step(self, self->writer, 1)) {
        self->takes += 1; /* what was prepared holds */
    }
    pyrecords_locks->leave((PyObject *)self->lock);
    return pyrecords_run_deferred(status);
}

int pyrecords_run_deferred(int status)
{
    PyObject *kind = NULL, *error = NULL, *trace = NULL;
    PyErr_Fetch(&kind, &error, &trace);
    if (pyrecords_locks->run_deferred() < 0) {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return -1;
    }
    PyErr_Restore(kind, error, trace);
    return status;
}

/* ---------------------------------------------------------------- the module */

/* Find what the module `_locks` gives: -1 with an error set. */
static int pyrecords_find_locks(void)
{
    PyObject *module = PyImport_ImportModule("logstore._native._locks");
    PyObject *capsule = module == NULL ? NULL : PyObject_GetAttrString(module, "api");
    pyrecords_locks = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, PYLOCKS_API);
    Py_XDECREF(module); /* it is never unloaded */
    Py_XDECREF(capsule);
    return pyrecords_locks == NULL ? -1 : 0;
}

int pyrecords_prepare_system(void)
{
    if (pyrecords_find_locks() < 0) {
        return -1;
    }
    pyrecords_time_ns = PyUnicode_InternFromString("time_ns");
    pyrecords_clock = PyImport_ImportModule("time");
    return pyrecords_time_ns == NULL || pyrecords_clock == NULL ? -1 : 0;
}
