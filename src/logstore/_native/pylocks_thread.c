/*
 * pylocks_thread.c - what a thread holds, and the functions of the module `_locks`: calls that wait until a thread
 * holds no lock, threads that work for another one, and forks.  pylocks.c has the rules.
 */
#include "pylocks_thread.h"

#include <string.h>

_Thread_local pylocks_thread pylocks_me;
unsigned long pylocks_forks;

/*
 * Call what was deferred, once no lock is held.  What a call raises is told and forgotten, as for a finalizer;
 * but an interrupt is not: it goes on when all were called.
 */
int pylocks_run_deferred(void)
{
    PyObject *kind = NULL, *value = NULL, *trace = NULL;
    while (pylocks_me.held == 0 && pylocks_me.deferred != NULL) {
        PyObject *calls = pylocks_me.deferred;
        pylocks_me.deferred = NULL;
        for (Py_ssize_t i = 0; i < PyList_Size(calls); i++) {
            PyObject *call = PyList_GetItem(calls, i);
            PyObject *result = PyObject_CallObject(PyTuple_GetItem(call, 0), PyTuple_GetItem(call, 1));
            if (result == NULL && (PyErr_ExceptionMatches(PyExc_Exception) || kind != NULL)) {
                PyErr_WriteUnraisable(PyTuple_GetItem(call, 0));
            } else if (result == NULL) {
                PyErr_Fetch(&kind, &value, &trace);
            }
            Py_XDECREF(result);
        }
        Py_DECREF(calls);
    }
    if (kind != NULL) {
        PyErr_Restore(kind, value, trace);
        return -1;
    }
    return 0;
}

static PyObject *pylocks_held(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyBool_FromLong(pylocks_me.held > 0);
}

static PyObject *pylocks_defer(PyObject *self, PyObject *args)
{
    (void)self;
    if (PyTuple_Size(args) < 1 || !PyCallable_Check(PyTuple_GetItem(args, 0))) {
        PyErr_SetString(PyExc_TypeError, "defer(function, *args)");
        return NULL;
    }
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_Size(args));
    if (rest == NULL) {
        return NULL;
    }
    if (pylocks_me.held == 0) {
        PyObject *result = PyObject_CallObject(PyTuple_GetItem(args, 0), rest);
        Py_DECREF(rest);
        Py_XDECREF(result);
        if (result == NULL) {
            return NULL;
        }
        Py_RETURN_NONE;
    }
    PyObject *call = PyTuple_Pack(2, PyTuple_GetItem(args, 0), rest);
    Py_DECREF(rest);
    if (call == NULL) {
        return NULL;
    }
    if (pylocks_me.deferred == NULL) {
        /* It may start the collector, and that a finalizer, which comes in here first. */
        PyObject *list = PyList_New(0);
        if (pylocks_me.deferred == NULL) {
            pylocks_me.deferred = list;
        } else {
            Py_XDECREF(list);
        }
    }
    int status = pylocks_me.deferred == NULL ? -1 : PyList_Append(pylocks_me.deferred, call);
    Py_DECREF(call);
    if (status < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* places() -> ((group, highest rank), ...): what this thread holds, for `assume` in a thread that works for it. */
static PyObject *pylocks_places(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyObject *found = PyList_New(0);
    for (int i = 0; found != NULL && i < PYLOCKS_GROUPS; i++) {
        pylocks_ranks *ranks = &pylocks_me.groups[i];
        if (ranks->mask == 0) {
            continue;
        }
        PyObject *place = Py_BuildValue("(ki)", ranks->group, 31 - __builtin_clz(ranks->mask));
        if (place == NULL || PyList_Append(found, place) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(place);
    }
    PyObject *places = found == NULL ? NULL : PyList_AsTuple(found);
    Py_XDECREF(found);
    return places;
}

/* assume(places): this thread counts as holding them, as long as it lives. */
static PyObject *pylocks_assume(PyObject *self, PyObject *places)
{
    (void)self;
    if (!PyTuple_Check(places)) {
        PyErr_SetString(PyExc_TypeError, "assume(places): a tuple");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(places); i++) {
        unsigned long group;
        int rank;
        if (!PyArg_ParseTuple(PyTuple_GetItem(places, i), "ki", &group, &rank)) {
            return NULL;
        }
        pylocks_ranks *ranks = pylocks_find(group);
        if (ranks == NULL || rank < 0 || rank >= PYLOCKS_RANKS) {
            PyErr_SetString(PyExc_ValueError, "no place for a rank");
            return NULL;
        }
        pylocks_count(ranks, group, rank);
    }
    Py_RETURN_NONE;
}

/* resign(): this thread, which ends, holds nothing any more, and calls what was deferred. */
static PyObject *pylocks_resign(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    memset(pylocks_me.groups, 0, sizeof pylocks_me.groups);
    pylocks_me.held = 0;
    return pylocks_left();
}

/*
 * In the child of a fork, inside of fork() itself: before any Python runs there, finalizers that the collector calls
 * among the handlers of os.register_at_fork too.  What was deferred is the parent's; freeing it is not safe here.
 */
void pylocks_in_child(void)
{
    pylocks_forks++;
    memset(pylocks_me.groups, 0, sizeof pylocks_me.groups);
    pylocks_me.held = 0;
    pylocks_me.deferred = NULL;
}

static PyObject *pylocks_fork_count(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return PyLong_FromUnsignedLong(pylocks_forks);
}

PyMethodDef pylocks_methods[] = {
    {"held", pylocks_held, METH_NOARGS, "Whether this thread holds a lock."},
    {"defer", pylocks_defer, METH_VARARGS, "Call a function when this thread holds no lock."},
    {"places", pylocks_places, METH_NOARGS, "What this thread holds: ((group, highest rank), ...)."},
    {"assume", pylocks_assume, METH_O, "Count as holding places, as long as the thread lives."},
    {"resign", pylocks_resign, METH_NOARGS, "Hold nothing that was assumed, at the end of a thread."},
    {"forks", pylocks_fork_count, METH_NOARGS, "How often this process is the child of a fork, since its start."},
    {NULL, NULL, 0, NULL},
};
