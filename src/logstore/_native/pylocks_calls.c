/*
 * pylocks_calls.c - one call at a time, of the module `_locks`.
 *
 * Calls(name): of an object that is for one thread at a time.  No lock: no thread waits for it, and it has no rank.
 * Calls.call(value, inside): a context manager, entered and left in one C call each, whose value is `value`.  It
 *   raises ReentrantCallError while another thread is in a call, and in the same thread where a signal handler, a
 *   finalizer or a callback makes it; that of a callback, with `inside`, is let in.
 * Calls.is_open: set by the call that is under way, while it runs a callback.
 */
#include "pylocks_thread.h"

static PyTypeObject *pylocks_call_type;

typedef struct {
    PyObject_HEAD
    PyObject *name;
    unsigned long owner; /* the thread of the call; 0: no call */
    unsigned long forks;
    int depth;
    int is_open;
} pylocks_calls;

typedef struct {
    PyObject_HEAD
    pylocks_calls *calls;
    PyObject *value;
    int inside;
    int taken;
} pylocks_call;

static PyObject *pylocks_calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", NULL};
    PyObject *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U", names, &name)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pylocks_calls *self = (pylocks_calls *)allocate(type, 0);
    if (self != NULL) {
        Py_INCREF(name);
        self->name = name;
        self->forks = pylocks_forks;
    }
    return (PyObject *)self;
}

static void pylocks_calls_dealloc(PyObject *object)
{
    Py_XDECREF(((pylocks_calls *)object)->name);
    pylocks_free(object);
}

static PyObject *pylocks_calls_call(PyObject *self, PyObject *args)
{
    PyObject *value;
    int inside;
    if (!PyArg_ParseTuple(args, "Op", &value, &inside)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(pylocks_call_type, Py_tp_alloc);
    pylocks_call *made = (pylocks_call *)allocate(pylocks_call_type, 0);
    if (made != NULL) {
        Py_INCREF(self);
        Py_INCREF(value);
        made->calls = (pylocks_calls *)self;
        made->value = value;
        made->inside = inside;
    }
    return (PyObject *)made;
}

static PyObject *pylocks_calls_is_open(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((pylocks_calls *)self)->is_open);
}

static int pylocks_calls_open(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    int is_open = value == NULL ? 0 : PyObject_IsTrue(value);
    if (is_open >= 0) {
        ((pylocks_calls *)self)->is_open = is_open;
    }
    return is_open < 0 ? -1 : 0;
}

static void pylocks_call_dealloc(PyObject *object)
{
    Py_XDECREF((PyObject *)((pylocks_call *)object)->calls);
    Py_XDECREF(((pylocks_call *)object)->value);
    pylocks_free(object);
}

static PyObject *pylocks_call_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    pylocks_call *self = (pylocks_call *)object;
    pylocks_calls *calls = self->calls;
    unsigned long me = PyThread_get_thread_ident();
    if (calls->forks != pylocks_forks) { /* in the child of a fork no call is running */
        calls->forks = pylocks_forks;
        calls->owner = 0;
        calls->depth = calls->is_open = 0;
    }
    if (calls->depth > 0 && calls->owner != me) {
        return PyErr_Format(pylocks_reentrant,
                            "%U is in a call of another thread; it is for one thread at a time. Nothing was done",
                            calls->name);
    }
    if (calls->depth > 0 && !calls->is_open) {
        return PyErr_Format(pylocks_reentrant,
                            "%U is in a call of this thread, which a signal handler or a finalizer has interrupted "
                            "with another one. Nothing was done",
                            calls->name);
    }
    if (calls->depth > 0 && !self->inside) {
        return PyErr_Format(pylocks_reentrant,
                            "%U cannot be polled, closed or given other topics from inside one of its callbacks. "
                            "Nothing was done",
                            calls->name);
    }
    calls->owner = me;
    calls->depth++;
    calls->is_open = 0;
    self->taken++;
    Py_INCREF(self->value);
    return self->value;
}

static PyObject *pylocks_call_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    pylocks_call *self = (pylocks_call *)object;
    pylocks_calls *calls = self->calls;
    if (self->taken > 0 && calls->forks == pylocks_forks) {
        self->taken--;
        calls->depth--;
        calls->is_open = calls->depth > 0; /* it was made by a callback, which continues */
    }
    Py_RETURN_NONE;
}

static PyMethodDef pylocks_calls_methods[] = {
    {"call", pylocks_calls_call, METH_VARARGS, "A context manager: one call."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pylocks_calls_getset[] = {
    {"is_open", pylocks_calls_is_open, pylocks_calls_open, "Whether a callback runs.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pylocks_calls_slots[] = {
    {Py_tp_doc, "The calls of an object that is for one thread at a time."},
    {Py_tp_new, pylocks_calls_new},
    {Py_tp_dealloc, pylocks_calls_dealloc},
    {Py_tp_methods, pylocks_calls_methods},
    {Py_tp_getset, pylocks_calls_getset},
    {0, NULL},
};

static PyType_Spec pylocks_calls_spec = {
    "logstore._native._locks.Calls", sizeof(pylocks_calls), 0, Py_TPFLAGS_DEFAULT, pylocks_calls_slots,
};

static PyMethodDef pylocks_call_methods[] = {
    {"__enter__", pylocks_call_enter, METH_NOARGS, "Begin the call, or raise."},
    {"__exit__", PYLOCKS_FAST(pylocks_call_exit), METH_FASTCALL, "It has ended."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pylocks_call_slots[] = {
    {Py_tp_doc, "One call."},
    {Py_tp_dealloc, pylocks_call_dealloc},
    {Py_tp_methods, pylocks_call_methods},
    {0, NULL},
};

static PyType_Spec pylocks_call_spec = {
    "logstore._native._locks.Call", sizeof(pylocks_call), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    pylocks_call_slots,
};

int pylocks_add_calls(PyObject *module)
{
    pylocks_call_type = pylocks_add(module, "Call", &pylocks_call_spec);
    return pylocks_call_type == NULL || pylocks_add(module, "Calls", &pylocks_calls_spec) == NULL ? -1 : 0;
}
