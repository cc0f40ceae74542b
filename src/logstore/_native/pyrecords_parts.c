/*
 * pyrecords_parts.c - what steps read and write of the parts of a log (pyrecords_write.c, pyrecords_sync.c): small types
 * that the classes of these parts inherit, so that an attribute of them in Python is a field of a struct in C.
 *
 * C reads a field after each call that may have run Python code, and never keeps it over one.  Whether an object has the
 * fields is asked once, when it is handed over.
 */
#include "pyrecords_append.h"

#include <structmember.h>

PyTypeObject *pyrecords_log_type, *pyrecords_health_type, *pyrecords_writer_type, *pyrecords_segment_type;
PyTypeObject *pyrecords_entries_type;

/* A part whose first field is an object: LogFields, WriterFields, EntriesFields. */
typedef struct {
    PyObject_HEAD
    PyObject *object;
} pyrecords_owner;

static int pyrecords_owner_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((pyrecords_owner *)self)->object);
    return 0;
}

static int pyrecords_owner_clear(PyObject *self)
{
    Py_CLEAR(((pyrecords_owner *)self)->object);
    return 0;
}

static void pyrecords_part_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static void pyrecords_owner_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)pyrecords_owner_clear(self);
    pyrecords_part_dealloc(self);
}

/* No cycle goes through its ints. */
static void pyrecords_segment_dealloc(PyObject *self)
{
    Py_CLEAR(((pyrecords_segment *)self)->next_offset);
    Py_CLEAR(((pyrecords_segment *)self)->size);
    pyrecords_part_dealloc(self);
}

void pyrecords_set(PyObject **field, PyObject *value)
{
    PyObject *before = *field;
    Py_INCREF(value);
    *field = value;
    Py_XDECREF(before);
}

/* ---------------------------------------------------------------- the types */

static PyMemberDef pyrecords_log_members[] = {
    {"bounds", T_OBJECT_EX, offsetof(pyrecords_log, bounds), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef pyrecords_writer_members[] = {
    {"dirty", T_OBJECT_EX, offsetof(pyrecords_writer, dirty), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef pyrecords_entries_members[] = {
    {"_data", T_OBJECT_EX, offsetof(pyrecords_entries, data), 0, NULL},
    {"count", T_PYSSIZET, offsetof(pyrecords_entries, count), 0, NULL},
    {"written", T_PYSSIZET, offsetof(pyrecords_entries, written), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef pyrecords_health_members[] = {
    {"is_blocked", T_BOOL, offsetof(pyrecords_health, is_blocked), 0, NULL},
    {"is_poisoned", T_BOOL, offsetof(pyrecords_health, is_poisoned), 0, NULL},
    {"is_torn", T_BOOL, offsetof(pyrecords_health, is_torn), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef pyrecords_segment_members[] = {
    {"next_offset", T_OBJECT_EX, offsetof(pyrecords_segment, next_offset), 0, NULL},
    {"size", T_OBJECT_EX, offsetof(pyrecords_segment, size), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

typedef struct {
    PyTypeObject **type;
    const char *name;
    const char *full_name;
    size_t size;
    PyMemberDef *members;
    destructor dealloc;
} pyrecords_part;

#define PART(name) name, "logstore._native._records." name

#define MEMBERS(part) sizeof(pyrecords_##part), pyrecords_##part##_members

static const pyrecords_part pyrecords_parts[] = {
    {&pyrecords_log_type, PART("LogFields"), MEMBERS(log), pyrecords_owner_dealloc},
    {&pyrecords_writer_type, PART("WriterFields"), MEMBERS(writer), pyrecords_owner_dealloc},
    {&pyrecords_entries_type, PART("EntriesFields"), MEMBERS(entries), pyrecords_owner_dealloc},
    {&pyrecords_health_type, PART("HealthFields"), MEMBERS(health), pyrecords_part_dealloc},
    {&pyrecords_segment_type, PART("SegmentFields"), MEMBERS(segment), pyrecords_segment_dealloc},
};

int pyrecords_add_parts(PyObject *module)
{
    for (size_t i = 0; i < sizeof(pyrecords_parts) / sizeof(pyrecords_parts[0]); i++) {
        const pyrecords_part *part = &pyrecords_parts[i];
        const int is_owner = part->dealloc == pyrecords_owner_dealloc;
        PyType_Slot slots[] = {
            {Py_tp_doc, "What steps of C read and write of a part of a log."},
            {Py_tp_members, part->members},
            {Py_tp_dealloc, part->dealloc},
            /* 0 ends the slots: a part without an object is not for the collector. */
            {is_owner ? Py_tp_traverse : 0, pyrecords_owner_traverse},
            {Py_tp_clear, pyrecords_owner_clear},
            {0, NULL},
        };
        unsigned int flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | (is_owner ? Py_TPFLAGS_HAVE_GC : 0U);
        PyType_Spec spec = {part->full_name, (int)part->size, 0, flags, slots};
        *part->type = pyrecords_add_type(module, part->name, &spec);
        if (*part->type == NULL) {
            return -1;
        }
    }
    return 0;
}
