/*
 * pyrecords_look.c - a look at a directory, and at files in it and next to it: a reader takes one before each read and
 * after it.
 */
#include "pyrecords.h"

#include <errno.h>

enum { PLACE_BYTES = 16, STAMP_BYTES = 32, FILES_MAX = 64 };

/*
 * look(dir_fd, name, names, count, before) -> (time, found)
 *
 * As ls_sys_look: `names` are `count` names, each with its zero byte; the time is that of the call in ms; found are 16
 * bytes of the directory and 32 of each file.  `before` is found of another look at these names, or None.  If they are
 * the same now, the result has that object.
 */
PyObject *pyrecords_look(PyObject *module, PyObject *args)
{
    (void)module;
    int dir_fd, count;
    PyObject *path, *name = NULL, *before, *result = NULL;
    const char *names;
    Py_ssize_t names_bytes;
    int32_t status;
    int64_t out[(8 + PLACE_BYTES + STAMP_BYTES * FILES_MAX) / 8];
    if (!PyArg_ParseTuple(args, "iUy#iO", &dir_fd, &path, &names, &names_bytes, &count, &before)
        || !PyUnicode_FSConverter(path, &name)) {
        return NULL;
    }
    Py_ssize_t bytes = PLACE_BYTES + STAMP_BYTES * (Py_ssize_t)count;
    const uint8_t *known = before == Py_None ? NULL : (const uint8_t *)PyBytes_AsString(before);
    if (known == NULL && before != Py_None) {
        goto done;
    }
    if (pyrecords_core.look == NULL || count < 0 || count > FILES_MAX
        || (known != NULL && PyBytes_Size(before) != bytes)) {
        PyErr_SetString(PyExc_ValueError, "too many names, or other ones before, or the core is not connected");
        goto done;
    }
    do {
        status = pyrecords_core.look(dir_fd, PyBytes_AsString(name), names, names_bytes, count, known, out);
    } while (status == -EINTR && PyErr_CheckSignals() == 0);
    if (status == -EINTR) {
        goto done; /* a handler has raised */
    }
    if (status < 0) {
        errno = -status;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
    } else if (status > 0) {
        result = Py_BuildValue("LO", (long long)out[0], before);
    } else {
        result = Py_BuildValue("Ly#", (long long)out[0], (const char *)(out + 1), bytes);
    }
done:
    Py_DECREF(name);
    return result;
}
