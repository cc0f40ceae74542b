/*
 * pyrecords.c - what cffi cannot do fast enough: Python objects for decoded columns, and columns of Python
 * objects, one record at a time; and the small questions that each read asks.  A separate module (stable ABI, CPython
 * 3.10 and later); everything else is in the C core.
 *
 * Trusts the addresses and the count that logstore._native passes: columns that ls_decode has filled, whose
 * positions it has checked against the buffer they point into.  Holds the GIL throughout.
 */
#include "pyrecords.h"

static PyMethodDef pyrecords_methods[] = {
    {"configure", pyrecords_configure, METH_O, "Give the objects of the timestamp types."},
    {"connect", pyrecords_connect, METH_VARARGS, "Give the addresses of functions of the core."},
    {"encode_lists", pyrecords_encode_lists, METH_VARARGS, "Lists of keys and values as batches."},
    {"find", pyrecords_find, METH_VARARGS, "One record by its offset."},
    {"find_time", pyrecords_find_time, METH_VARARGS, "The first offset of a segment since a time."},
    {"floor", pyrecords_floor, METH_VARARGS, "The greatest entry of an index up to a target."},
    {"look", pyrecords_look, METH_VARARGS, "Examine a directory and files."},
    {"of_topic", pyrecords_of_topic, METH_VARARGS, "A record with its topic and partition."},
    {"pack_times", pyrecords_pack_times, METH_O, "A list of timestamps as int64."},
    {"point", pyrecords_point, METH_O, "Where the bytes of a list of bytes are, and their lengths."},
    {NULL, NULL, 0, NULL},
};

/*
 * The types are kept in static variables, so a process has the module once: a second interpreter in it is refused.
 * A failed import may be tried again.
 */
static int pyrecords_exec(PyObject *module)
{
    static int is_loaded;
    if (is_loaded) {
        PyErr_SetString(PyExc_ImportError, "logstore can be used by one interpreter of a process only");
        return -1;
    }
    if (pyrecords_add_types(module) < 0 || pyrecords_add_iterators(module) < 0 || pyrecords_add_parts(module) < 0
        || pyrecords_add_append(module) < 0 || pyrecords_add_sync(module) < 0) {
        return -1;
    }
    is_loaded = 1;
    return 0;
}

static PyModuleDef_Slot pyrecords_slots[] = {
    {Py_mod_exec, (void *)pyrecords_exec},
    {0, NULL},
};

static struct PyModuleDef pyrecords_module = {
    PyModuleDef_HEAD_INIT, "_records", "Python objects for decoded columns.", 0, pyrecords_methods, pyrecords_slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__records(void);

PyMODINIT_FUNC PyInit__records(void)
{
    return PyModuleDef_Init(&pyrecords_module);
}
