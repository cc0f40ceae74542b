/*
 * pyrecords_system.c - the calls of the system that steps make (pyrecords_write.c, pyrecords_sync.c), as a table of
 * functions that is bound to an object of the type Files.
 *
 * What a subclass of Files has replaced is called as it is from Python; all else is called here.  So a test that fails
 * a call fails it on the path that every append takes.
 *
 * To a step of which all calls are made here, the interpreter lock is all the protection it needs.  A method in Python
 * lets other threads run, and may itself append, close the log or fork: a step that calls one holds the lock of the log
 * (pyrecords_begin_step), as the usual way does, and asks behind the call whether it still has it.
 */
#include "pyrecords_append.h"

#include <errno.h>
#include <time.h>

const pylocks_functions *pyrecords_locks;

static PyObject *pyrecords_clock; /* the module time */
static struct {
    PyObject *lock, *monotonic, *now_ms, *sync, *time_ns, *write;
} pyrecords_system_names;

/* ---------------------------------------------------------------- the system's */

static int64_t pyrecords_own_now(const pyrecords_system *system)
{
    (void)system;
    PyObject *function = PyObject_GetAttr(pyrecords_clock, pyrecords_system_names.time_ns);
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

/* ---------------------------------------------------------------- those of a subclass of Files */

static int64_t pyrecords_called_now(const pyrecords_system *system)
{
    PyObject *method = PyObject_GetAttr(system->files, pyrecords_system_names.now_ms);
    PyObject *ms = method == NULL ? NULL : PyObject_CallNoArgs(method);
    Py_XDECREF(method);
    int64_t now = ms == NULL ? -1 : PyLong_AsLongLong(ms);
    Py_XDECREF(ms);
    return now;
}

static int32_t pyrecords_called_write(const pyrecords_system *system, int fd, const uint8_t *data, int64_t size,
                                      int64_t pos)
{
    PyObject *method = PyObject_GetAttr(system->files, pyrecords_system_names.write);
    PyObject *result = method == NULL ? NULL
                                      : PyObject_CallFunction(method, "iy#L", fd, (const char *)data, (Py_ssize_t)size,
                                                              (long long)pos);
    Py_XDECREF(method);
    Py_XDECREF(result);
    return result == NULL ? PYRECORDS_RAISED : 0;
}

static int32_t pyrecords_called_sync(const pyrecords_system *system, int fd)
{
    PyObject *method = PyObject_GetAttr(system->files, pyrecords_system_names.sync);
    PyObject *result = method == NULL ? NULL : PyObject_CallFunction(method, "i", fd);
    Py_XDECREF(method);
    Py_XDECREF(result);
    return result == NULL ? PYRECORDS_RAISED : 0;
}

static int pyrecords_called_hold_lock(const pyrecords_system *system, int fd)
{
    PyObject *method = PyObject_GetAttr(system->files, pyrecords_system_names.lock);
    PyObject *holder = method == NULL ? NULL : PyObject_CallFunction(method, "i", fd);
    Py_XDECREF(method);
    Py_XDECREF(holder);
    if (holder == NULL && PyErr_ExceptionMatches(PyExc_OSError)) {
        PyErr_Clear(); /* as an errno of the system: the usual way asks again */
        return 0;
    }
    return holder == NULL ? -1 : holder == Py_None;
}

static double pyrecords_called_monotonic(const pyrecords_system *system)
{
    PyObject *method = PyObject_GetAttr(system->files, pyrecords_system_names.monotonic);
    PyObject *seconds = method == NULL ? NULL : PyObject_CallNoArgs(method);
    Py_XDECREF(method);
    double now = seconds == NULL ? -1.0 : PyFloat_AsDouble(seconds);
    Py_XDECREF(seconds);
    return now;
}

/* ---------------------------------------------------------------- the table */

int pyrecords_bind_system(pyrecords_system *system, PyObject *files, PyObject *replaced)
{
    const int has_lock = PySet_Contains(replaced, pyrecords_system_names.lock);
    const int has_monotonic = PySet_Contains(replaced, pyrecords_system_names.monotonic);
    const int has_now = PySet_Contains(replaced, pyrecords_system_names.now_ms);
    const int has_sync = PySet_Contains(replaced, pyrecords_system_names.sync);
    const int has_write = PySet_Contains(replaced, pyrecords_system_names.write);
    if (PyErr_Occurred()) {
        return -1;
    }
    system->hold_lock = has_lock ? pyrecords_called_hold_lock : pyrecords_own_hold_lock;
    system->monotonic = has_monotonic ? pyrecords_called_monotonic : pyrecords_own_monotonic;
    system->now_ms = has_now ? pyrecords_called_now : pyrecords_own_now;
    system->sync = has_sync ? pyrecords_called_sync : pyrecords_own_sync;
    system->write = has_write ? pyrecords_called_write : pyrecords_own_write;
    system->calls_to_lock = has_lock;
    system->calls_to_write = has_write;
    Py_INCREF(files);
    system->files = files;
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

int pyrecords_has_step(const pyrecords_append *self, const PyObject *writer, uint64_t takes)
{
    const pylocks_mutex *lock = (const pylocks_mutex *)self->lock;
    return self->writer != NULL && self->writer == writer && lock->takes == self->takes + takes
        && lock->forks == *lock->process_forks;
}

int pyrecords_lock_step(pyrecords_append *self)
{
    if (pyrecords_locks->enter(self->lock) < 0) {
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
    pyrecords_locks->leave(self->lock);
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
    static const pyrecords_name names[] = {
        {&pyrecords_system_names.lock, "lock"},       {&pyrecords_system_names.monotonic, "monotonic"},
        {&pyrecords_system_names.now_ms, "now_ms"},   {&pyrecords_system_names.sync, "sync"},
        {&pyrecords_system_names.time_ns, "time_ns"}, {&pyrecords_system_names.write, "write"},
    };
    if (pyrecords_find_locks() < 0 || pyrecords_intern(names, sizeof(names) / sizeof(names[0])) < 0) {
        return -1;
    }
    pyrecords_clock = PyImport_ImportModule("time");
    return pyrecords_clock == NULL ? -1 : 0;
}
