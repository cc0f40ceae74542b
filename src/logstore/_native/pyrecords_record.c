/*
 * pyrecords_record.c - Record and TopicRecord: values with C integers and without the header of the garbage
 * collector, made and released in a third of the time that a named tuple takes.  They behave as named tuples do:
 * compared, hashed, unpacked and indexed by their fields.  logstore.record.record adds the methods that are Python.
 *
 * The collector does not visit them: bytes, numbers and headers cannot refer back to the record.
 */
#include "pyrecords.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    long long offset;
    long long timestamp_ms;
    PyObject *key;
    PyObject *value;
    PyObject *headers;
    PyObject *timestamp_type;
} pyrecords_fields;

typedef struct {
    pyrecords_fields fields;
    PyObject *topic;
    long long partition;
} pyrecords_topic_fields;

enum { FIELDS = 6, TOPIC_FIELDS = 8, KINDS = 3 };

static PyTypeObject *pyrecords_type;
static PyTypeObject *pyrecords_topic_type;
static PyObject *pyrecords_kinds[KINDS]; /* of timestamps: -1, 0 and 1 */

static int pyrecords_is_of_topic(PyObject *self)
{
    return Py_TYPE(self) == pyrecords_topic_type;
}

static int pyrecords_is_record(PyObject *object)
{
    return Py_TYPE(object) == pyrecords_type || pyrecords_is_of_topic(object);
}

/* A new object without fields yet: deallocating it is safe. */
static pyrecords_fields *pyrecords_new(PyTypeObject *type)
{
    return (pyrecords_fields *)PyType_GenericAlloc(type, 0);
}

PyObject *pyrecords_record(int64_t offset, int64_t timestamp_ms, PyObject *key, PyObject *value, PyObject *headers,
                           int timestamp_type)
{
    pyrecords_fields *record = NULL;
    if (key != NULL && value != NULL) {
        record = (pyrecords_fields *)_PyObject_New(pyrecords_type);
    }
    if (record == NULL) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        return NULL;
    }
    record->offset = offset;
    record->timestamp_ms = timestamp_ms;
    record->key = key;
    record->value = value;
    Py_INCREF(headers);
    record->headers = headers;
    record->timestamp_type = pyrecords_kinds[timestamp_type + 1];
    Py_INCREF(record->timestamp_type);
    return (PyObject *)record;
}

PyObject *pyrecords_topic_record(PyObject *topic, int64_t partition, int64_t offset, int64_t timestamp_ms, PyObject *key,
                                 PyObject *value, PyObject *headers, int timestamp_type)
{
    pyrecords_topic_fields *record = NULL;
    if (key != NULL && value != NULL) {
        record = (pyrecords_topic_fields *)_PyObject_New(pyrecords_topic_type);
    }
    if (record == NULL) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        return NULL;
    }
    record->fields.offset = offset;
    record->fields.timestamp_ms = timestamp_ms;
    record->fields.key = key;
    record->fields.value = value;
    Py_INCREF(headers);
    record->fields.headers = headers;
    record->fields.timestamp_type = pyrecords_kinds[timestamp_type + 1];
    Py_INCREF(record->fields.timestamp_type);
    Py_INCREF(topic);
    record->topic = topic;
    record->partition = partition;
    return (PyObject *)record;
}

static void pyrecords_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pyrecords_fields *record = (pyrecords_fields *)self;
    if (type == pyrecords_topic_type) {
        Py_XDECREF(((pyrecords_topic_fields *)self)->topic);
    }
    Py_XDECREF(record->key);
    Py_XDECREF(record->value);
    Py_XDECREF(record->headers);
    Py_XDECREF(record->timestamp_type);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ------------------------------------------------------------------ as a tuple */

static PyObject *pyrecords_tuple(PyObject *self)
{
    const pyrecords_fields *r = (pyrecords_fields *)self;
    if (pyrecords_is_of_topic(self)) {
        const pyrecords_topic_fields *t = (pyrecords_topic_fields *)self;
        return Py_BuildValue("(OLLLOOOO)", t->topic, t->partition, r->offset, r->timestamp_ms, r->key, r->value,
                             r->headers, r->timestamp_type);
    }
    return Py_BuildValue("(LLOOOO)", r->offset, r->timestamp_ms, r->key, r->value, r->headers, r->timestamp_type);
}

static PyObject *pyrecords_iter(PyObject *self)
{
    PyObject *tuple = pyrecords_tuple(self);
    PyObject *iterator = tuple == NULL ? NULL : PyObject_GetIter(tuple);
    Py_XDECREF(tuple);
    return iterator;
}

static Py_ssize_t pyrecords_length(PyObject *self)
{
    return pyrecords_is_of_topic(self) ? TOPIC_FIELDS : FIELDS;
}

/* A field by its number, which may be negative, or some by a slice. */
static PyObject *pyrecords_subscript(PyObject *self, PyObject *key)
{
    PyObject *tuple = pyrecords_tuple(self);
    PyObject *item = tuple == NULL ? NULL : PyObject_GetItem(tuple, key);
    Py_XDECREF(tuple);
    return item;
}

static PyObject *pyrecords_item(PyObject *self, Py_ssize_t i)
{
    PyObject *tuple = pyrecords_tuple(self);
    PyObject *item = tuple == NULL ? NULL : PyTuple_GetItem(tuple, i);
    Py_XINCREF(item);
    Py_XDECREF(tuple);
    return item;
}

static Py_hash_t pyrecords_hash(PyObject *self)
{
    PyObject *tuple = pyrecords_tuple(self);
    Py_hash_t hash = tuple == NULL ? -1 : PyObject_Hash(tuple);
    Py_XDECREF(tuple);
    return hash;
}

/* The tuple of a record, or a tuple itself, as a new reference; NULL without an error for anything else. */
static PyObject *pyrecords_as_tuple(PyObject *object)
{
    if (pyrecords_is_record(object)) {
        return pyrecords_tuple(object);
    }
    if (PyTuple_Check(object)) {
        Py_INCREF(object);
        return object;
    }
    return NULL;
}

typedef PyObject *(*pyrecords_operator)(PyObject *, PyObject *, int);

/* An operator of tuples, of which at least one operand is a record. */
static PyObject *pyrecords_of_tuples(PyObject *left, PyObject *right, pyrecords_operator operator, int argument)
{
    PyObject *result = NULL;
    PyObject *a = pyrecords_as_tuple(left);
    PyObject *b = a == NULL ? NULL : pyrecords_as_tuple(right);
    if (b != NULL) {
        result = operator(a, b, argument);
    } else if (!PyErr_Occurred()) {
        Py_INCREF(Py_NotImplemented);
        result = Py_NotImplemented;
    }
    Py_XDECREF(a);
    Py_XDECREF(b);
    return result;
}

static PyObject *pyrecords_compare(PyObject *left, PyObject *right, int operation)
{
    return pyrecords_of_tuples(left, right, PyObject_RichCompare, operation);
}

static PyObject *pyrecords_concat(PyObject *left, PyObject *right, int unused)
{
    (void)unused;
    return PySequence_Concat(left, right);
}

static PyObject *pyrecords_add(PyObject *left, PyObject *right)
{
    return pyrecords_of_tuples(left, right, pyrecords_concat, 0);
}

static PyObject *pyrecords_repr(PyObject *self)
{
    const pyrecords_fields *r = (pyrecords_fields *)self;
    if (pyrecords_is_of_topic(self)) {
        const pyrecords_topic_fields *t = (pyrecords_topic_fields *)self;
        return PyUnicode_FromFormat("TopicRecord(topic=%R, partition=%lld, offset=%lld, timestamp_ms=%lld, key=%R, "
                                    "value=%R, headers=%R, timestamp_type=%R)",
                                    t->topic, t->partition, r->offset, r->timestamp_ms, r->key, r->value, r->headers,
                                    r->timestamp_type);
    }
    return PyUnicode_FromFormat("Record(offset=%lld, timestamp_ms=%lld, key=%R, value=%R, headers=%R, "
                                "timestamp_type=%R)",
                                r->offset, r->timestamp_ms, r->key, r->value, r->headers, r->timestamp_type);
}

static PyObject *pyrecords_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *tuple = pyrecords_tuple(self);
    return tuple == NULL ? NULL : Py_BuildValue("(ON)", (PyObject *)Py_TYPE(self), tuple);
}

/* ------------------------------------------------------------------ made by Python */

static PyObject *pyrecords_reference(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

static PyObject *pyrecords_create(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers",
                            "timestamp_type", NULL};
    int is_of_topic = type == pyrecords_topic_type;
    PyObject *topic = NULL, *key, *value, *headers = NULL, *kind = NULL;
    long long partition = 0, offset, timestamp_ms;
    int ok = is_of_topic ? PyArg_ParseTupleAndKeywords(args, keywords, "OLLLOO|OO:TopicRecord", names, &topic,
                                                       &partition, &offset, &timestamp_ms, &key, &value, &headers,
                                                       &kind)
                         : PyArg_ParseTupleAndKeywords(args, keywords, "LLOO|OO:Record", names + 2, &offset,
                                                       &timestamp_ms, &key, &value, &headers, &kind);
    if (!ok) {
        return NULL;
    }
    pyrecords_fields *record = pyrecords_new(type);
    if (record == NULL) {
        return NULL;
    }
    if (is_of_topic) {
        ((pyrecords_topic_fields *)record)->topic = pyrecords_reference(topic);
        ((pyrecords_topic_fields *)record)->partition = partition;
    }
    record->offset = offset;
    record->timestamp_ms = timestamp_ms;
    record->key = pyrecords_reference(key);
    record->value = pyrecords_reference(value);
    record->timestamp_type = pyrecords_reference(kind == NULL ? pyrecords_kinds[1] : kind);
    record->headers = headers == NULL ? PyTuple_New(0) : pyrecords_reference(headers);
    if (record->headers == NULL) {
        Py_DECREF(record);
        return NULL;
    }
    return (PyObject *)record;
}

/* of_topic(topic, partition, record) -> TopicRecord */
PyObject *pyrecords_of_topic(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *topic, *source;
    long long partition;
    if (!PyArg_ParseTuple(args, "OLO!", &topic, &partition, pyrecords_type, &source)) {
        return NULL;
    }
    pyrecords_fields *record = pyrecords_new(pyrecords_topic_type);
    if (record == NULL) {
        return NULL;
    }
    const pyrecords_fields *from = (pyrecords_fields *)source;
    ((pyrecords_topic_fields *)record)->topic = pyrecords_reference(topic);
    ((pyrecords_topic_fields *)record)->partition = partition;
    record->offset = from->offset;
    record->timestamp_ms = from->timestamp_ms;
    record->key = pyrecords_reference(from->key);
    record->value = pyrecords_reference(from->value);
    record->headers = pyrecords_reference(from->headers);
    record->timestamp_type = pyrecords_reference(from->timestamp_type);
    return (PyObject *)record;
}

/* configure((no timestamp, create time, log append time)): the objects of `timestamp_type` */
PyObject *pyrecords_configure(PyObject *module, PyObject *kinds)
{
    (void)module;
    if (!PyTuple_Check(kinds) || PyTuple_Size(kinds) != KINDS) {
        PyErr_SetString(PyExc_TypeError, "configure takes a tuple of three");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < KINDS; i++) {
        PyObject *old = pyrecords_kinds[i];
        pyrecords_kinds[i] = pyrecords_reference(PyTuple_GetItem(kinds, i));
        Py_XDECREF(old);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ types */

#define FIELD(name, type, member) {name, type, offsetof(pyrecords_topic_fields, member), READONLY, NULL}

static PyMemberDef pyrecords_members[] = {
    FIELD("topic", T_OBJECT_EX, topic),
    FIELD("partition", T_LONGLONG, partition),
    FIELD("offset", T_LONGLONG, fields.offset),
    FIELD("timestamp_ms", T_LONGLONG, fields.timestamp_ms),
    FIELD("key", T_OBJECT_EX, fields.key),
    FIELD("value", T_OBJECT_EX, fields.value),
    FIELD("headers", T_OBJECT_EX, fields.headers),
    FIELD("timestamp_type", T_OBJECT_EX, fields.timestamp_type),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef pyrecords_methods[] = {
    {"__reduce__", pyrecords_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define SLOTS(members)                                                                                                 \
    {                                                                                                                  \
        {Py_tp_new, pyrecords_create}, {Py_tp_dealloc, pyrecords_dealloc}, {Py_tp_members, members},                   \
            {Py_tp_methods, pyrecords_methods}, {Py_tp_repr, pyrecords_repr}, {Py_tp_hash, pyrecords_hash},            \
            {Py_tp_richcompare, pyrecords_compare}, {Py_tp_iter, pyrecords_iter}, {Py_sq_length, pyrecords_length},    \
            {Py_sq_item, pyrecords_item}, {Py_mp_length, pyrecords_length}, {Py_mp_subscript, pyrecords_subscript},    \
            {Py_nb_add, pyrecords_add}, {0, NULL}                                                                      \
    }

static PyType_Slot pyrecords_slots[] = SLOTS(pyrecords_members + 2);
static PyType_Slot pyrecords_topic_slots[] = SLOTS(pyrecords_members);

static PyType_Spec pyrecords_spec = {
    "logstore.Record", sizeof(pyrecords_fields), 0, Py_TPFLAGS_DEFAULT, pyrecords_slots,
};
static PyType_Spec pyrecords_topic_spec = {
    "logstore.TopicRecord", sizeof(pyrecords_topic_fields), 0, Py_TPFLAGS_DEFAULT, pyrecords_topic_slots,
};

PyTypeObject *pyrecords_add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL || PyModule_AddObjectRef(module, name, type) < 0) {
        Py_XDECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type;
}

int pyrecords_add_types(PyObject *module)
{
    for (int i = 0; i < KINDS; i++) {
        pyrecords_kinds[i] = pyrecords_reference(Py_None); /* until it is configured */
    }
    pyrecords_type = pyrecords_add_type(module, "Record", &pyrecords_spec);
    pyrecords_topic_type = pyrecords_add_type(module, "TopicRecord", &pyrecords_topic_spec);
    return pyrecords_type == NULL || pyrecords_topic_type == NULL ? -1 : 0;
}
