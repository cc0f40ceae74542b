/*
 * pylocks_thread.c - what a thread holds, and the functions of the module `_locks`: calls that wait until a thread
 * holds no lock, threads that work for another one, and forks.  pylocks.c has the rules.
 */
#include "pylocks_thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

_Thread_local pylocks_thread *pylocks_me PYLOCKS_TLS;
unsigned long pylocks_forks;
static pthread_key_t pylocks_key; /* has the same pointer: its destructor frees what a thread had */

/*
 * At the end of a thread, without the GIL: what was deferred, if anything is left of it, cannot be freed here.  If
 * the destructor of another library takes a lock after this, that allocates again, and this is called once more.
 */
static void pylocks_end_me(void *block)
{
    pylocks_me = NULL;
    free(block);
}

int pylocks_make_me(void)
{
    pylocks_thread *block = calloc(1, sizeof *block);
    if (block == NULL || pthread_setspecific(pylocks_key, block) != 0) {
        free(block);
        PyErr_NoMemory();
        return -1;
    }
    pylocks_me = block;
    return 0;
}

/*
 * In the child of a fork, inside of fork() itself: before any Python runs there, finalizers that the collector calls
 * among the handlers of os.register_at_fork too.  What was deferred is the parent's; freeing it is not safe here.
 * The block itself stays: the fork may be that of a signal handler, in a thread that waits for a lock.
 */
static void pylocks_in_child(void)
{
    pylocks_forks++;
    if (pylocks_me != NULL) {
        memset(pylocks_me, 0, sizeof *pylocks_me);
    }
}

/* Once in a process, though the module may be imported again after a failure. */
int pylocks_begin(void)
{
    static int has_key, has_handler;
    if (!has_key) {
        has_key = pthread_key_create(&pylocks_key, pylocks_end_me) == 0;
    }
    if (has_key && !has_handler) {
        has_handler = pthread_atfork(NULL, NULL, pylocks_in_child) == 0;
    }
    if (!has_handler) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/*
 * Call what was deferred, once no lock is held.  An exception that a call raises is reported and dropped, as in a
 * finalizer; but an interrupt is raised when all were called.
 */
int pylocks_run_deferred(void)
{
    pylocks_thread *me = pylocks_me;
    PyObject *kind = NULL, *value = NULL, *trace = NULL;
    while (me->held == 0 && me->deferred != NULL) {
        PyObject *calls = me->deferred;
        me->deferred = NULL;
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
    return PyBool_FromLong(pylocks_holds_any());
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
    if (!pylocks_holds_any()) {
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
    pylocks_thread *me = pylocks_me; /* there is one: it holds something */
    if (me->deferred == NULL) {
        /* It may start the collector, and that a finalizer, which comes in here first. */
        PyObject *list = PyList_New(0);
        if (me->deferred == NULL) {
            me->deferred = list;
        } else {
            Py_XDECREF(list);
        }
    }
    int status = me->deferred == NULL ? -1 : PyList_Append(me->deferred, call);
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
    pylocks_thread *me = pylocks_me;
    PyObject *found = PyList_New(0);
    for (int i = 0; me != NULL && found != NULL && i < PYLOCKS_GROUPS; i++) {
        pylocks_ranks *ranks = &me->groups[i];
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
        if (pylocks_ensure_me() < 0) {
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
    if (pylocks_me != NULL) {
        memset(pylocks_me->groups, 0, sizeof pylocks_me->groups);
        pylocks_me->held = 0;
    }
    return pylocks_left();
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
