/*
 * pylocks_file.c - open files of the module `_locks`.
 *
 * OpenFile(fd, close=None): a descriptor that is closed with the last reference, and not before: an object with a
 * `__del__` is finalized by the collector although another finalizer of the same garbage may still use it.
 */
#include "pylocks_thread.h"

#include <unistd.h>

static PyObject *pylocks_file_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "close", NULL};
    int fd;
    PyObject *close_with = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|O", names, &fd, &close_with)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pylocks_file *self = (pylocks_file *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->fd = fd;
    if (close_with != Py_None) {
        Py_INCREF(close_with);
        self->close = close_with;
    }
    return (PyObject *)self;
}

/* Close it, once.  What the call says is ignored: what has to be on the disk was synced before. */
static void pylocks_file_end(pylocks_file *self)
{
    int fd = self->fd;
    self->fd = -1;
    if (fd < 0) {
        return;
    }
    if (self->close == NULL) {
        (void)close(fd);
        return;
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *result = PyObject_CallFunction(self->close, "i", fd);
    if (result == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(result);
    PyErr_Restore(kind, value, trace);
}

static void pylocks_file_dealloc(PyObject *object)
{
    pylocks_file *self = (pylocks_file *)object;
    pylocks_file_end(self);
    Py_XDECREF(self->close);
    pylocks_free(object);
}

static PyObject *pylocks_file_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    pylocks_file_end((pylocks_file *)self);
    Py_RETURN_NONE;
}

static PyObject *pylocks_file_fd(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((pylocks_file *)self)->fd);
}

static PyMethodDef pylocks_file_methods[] = {
    {"close", pylocks_file_close, METH_NOARGS, "Close it now; twice is fine."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pylocks_file_getset[] = {
    {"fd", pylocks_file_fd, NULL, "The descriptor; -1 once it is closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pylocks_file_slots[] = {
    {Py_tp_doc, "An open descriptor, closed with the last reference to this object."},
    {Py_tp_new, pylocks_file_new},
    {Py_tp_dealloc, pylocks_file_dealloc},
    {Py_tp_methods, pylocks_file_methods},
    {Py_tp_getset, pylocks_file_getset},
    {0, NULL},
};

PyType_Spec pylocks_file_spec = {
    "logstore._native._locks.OpenFile", sizeof(pylocks_file), 0, Py_TPFLAGS_DEFAULT, pylocks_file_slots,
};
