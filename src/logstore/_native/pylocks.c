/*
 * pylocks.c - the module `_locks`, and its locks.  It is a separate module (stable ABI, CPython 3.10 and later),
 * because what is promised here cannot be had in Python: a signal handler, a finalizer or a log handler may run
 * between any two bytecodes, and a `with` over a Python object has bytecodes between "acquired" and "will be
 * released".  pylocks_thread.c has what a thread holds, and the functions; pylocks_file.c has OpenFile;
 * pylocks_turns.c has Turns; pylocks_calls.c has Calls.
 *
 * Mutex(rank, name, group=0): a context manager.  Entering and leaving are one C call each.
 *   - It is not re-entrant: a second entry of the same thread raises ReentrantCallError.
 *   - A thread that holds a lock waits only for locks of a higher rank.  One of the same rank it tries: if another
 *     thread holds it, ReentrantCallError.  One of a lower rank is ReentrantCallError always.  Only a call that
 *     comes in from inside another one can meet that, since the engine takes its locks in the order of their
 *     ranks; so no two threads wait for each other.
 *   - Ranks are per group (a store).  A lock of a group of which the thread holds no lock is tried.
 * Mutex.may_wait: whether it would be waited for now, by the rules above; else entering it may be refused.
 * Mutex.attempt(): a context manager that never waits; its value is whether it has the lock.
 * Group(mutexes): enters all of them, which are of one group, in order, or none.
 * defer(function, *args): called when this thread has released its last lock; at once if it holds none.
 * places(), assume(places): a thread that works for another one, which waits for it, counts as holding its locks.
 *
 * Everything here runs with the GIL, but where a thread waits.  After a fork, in the child, all locks are free:
 * their holders are not there.
 */
#include "pylocks_api.h"
#include "pylocks_thread.h"

PyObject *pylocks_reentrant;
static PyTypeObject *pylocks_attempt_type;

typedef struct {
    PyObject_HEAD
    pylocks_mutex *mutex;
    int taken;
} pylocks_attempt;

typedef struct {
    PyObject_HEAD
    PyObject *mutexes; /* a tuple */
    Py_ssize_t taken;
} pylocks_group;

/* ---------------------------------------------------------------- taking and releasing */

/* In the child of a fork the lock may be held by a thread that is not there: it gets a new one. */
static int pylocks_renew(pylocks_mutex *self)
{
    if (self->forks == pylocks_forks) {
        return 0;
    }
    PyThread_type_lock fresh = PyThread_allocate_lock();
    if (fresh == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->lock = fresh; /* the old one is left: freeing a held lock is undefined */
    self->owner = 0;
    self->forks = pylocks_forks;
    return 0;
}

static void pylocks_note(pylocks_mutex *self, unsigned long me)
{
    pylocks_ranks *ranks = pylocks_find(self->group); /* there is one: see pylocks_take */
    self->owner = me;
    self->takes++;
    pylocks_count(ranks, self->group, self->rank);
}

/*
 * Take the lock: 1 taken, 0 another thread has it (only without `wait`), -1 with an exception.  `top`: the
 * highest rank that this thread held before.
 */
static int pylocks_take(pylocks_mutex *self, int top, int wait)
{
    unsigned long me = PyThread_get_thread_ident();
    if (pylocks_renew(self) < 0) {
        return -1;
    }
    if (self->owner == me) {
        if (wait) {
            PyErr_Format(pylocks_reentrant,
                         "a call came in from inside another one that holds %U in this thread; nothing was changed",
                         self->name);
            return -1;
        }
        return 0;
    }
    if (pylocks_ensure_me() < 0) {
        return -1;
    }
    if (pylocks_find(self->group) == NULL || (wait && self->rank < top)) {
        PyErr_Format(pylocks_reentrant,
                     "a call that needs %U came in from inside another one of this thread; nothing was changed",
                     self->name);
        return -1;
    }
    PyLockStatus status = PyThread_acquire_lock_timed(self->lock, 0, 0);
    if (status != PY_LOCK_ACQUIRED && !wait) {
        return 0;
    }
    if (status != PY_LOCK_ACQUIRED && (self->rank == top || pylocks_holds_others(self->group))) {
        PyErr_Format(pylocks_reentrant,
                     "a call came in from inside another one, and another thread holds %U: waiting for it could "
                     "last for ever. Nothing was changed",
                     self->name);
        return -1;
    }
    while (status != PY_LOCK_ACQUIRED) {
        PyThread_type_lock lock = self->lock;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(lock, -1, 1);
        Py_END_ALLOW_THREADS
        /* A handler may have forked: in the child the lock is a new one, and this thread holds nothing. */
        if (status == PY_LOCK_INTR && (PyErr_CheckSignals() < 0 || pylocks_renew(self) < 0)) {
            return -1;
        }
    }
    pylocks_note(self, me);
    return 1;
}

static void pylocks_release(pylocks_mutex *self)
{
    if (self->forks != pylocks_forks || self->owner != PyThread_get_thread_ident()) {
        return; /* taken before a fork */
    }
    self->owner = 0;
    pylocks_uncount(self->group, self->rank);
    PyThread_release_lock(self->lock);
}

/* ---------------------------------------------------------------- Mutex */

static PyObject *pylocks_mutex_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"rank", "name", "group", NULL};
    int rank;
    PyObject *name;
    unsigned long group = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iU|k", names, &rank, &name, &group)) {
        return NULL;
    }
    if (rank < 0 || rank >= PYLOCKS_RANKS) {
        PyErr_SetString(PyExc_ValueError, "rank is outside [0, 31]");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pylocks_mutex *self = (pylocks_mutex *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->lock = PyThread_allocate_lock();
    self->rank = rank;
    self->group = group;
    self->forks = pylocks_forks;
    self->process_forks = &pylocks_forks;
    Py_INCREF(name);
    self->name = name;
    if (self->lock == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void pylocks_mutex_dealloc(PyObject *object)
{
    pylocks_mutex *self = (pylocks_mutex *)object;
    if (self->lock != NULL && self->owner == 0 && self->forks == pylocks_forks) {
        PyThread_free_lock(self->lock);
    }
    Py_XDECREF(self->name);
    pylocks_free(object);
}

static int pylocks_enter(PyObject *self)
{
    return pylocks_take((pylocks_mutex *)self, pylocks_top(((pylocks_mutex *)self)->group), 1);
}

static PyObject *pylocks_mutex_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (pylocks_enter(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static void pylocks_leave(PyObject *self)
{
    pylocks_release((pylocks_mutex *)self);
}

static PyObject *pylocks_mutex_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    pylocks_release((pylocks_mutex *)self);
    return pylocks_left();
}

static PyObject *pylocks_mutex_attempt(PyObject *self, PyObject *unused)
{
    (void)unused;
    allocfunc allocate = (allocfunc)PyType_GetSlot(pylocks_attempt_type, Py_tp_alloc);
    pylocks_attempt *made = (pylocks_attempt *)allocate(pylocks_attempt_type, 0);
    if (made != NULL) {
        Py_INCREF(self);
        made->mutex = (pylocks_mutex *)self;
    }
    return (PyObject *)made;
}

static PyObject *pylocks_mutex_is_mine(PyObject *object, void *unused)
{
    (void)unused;
    pylocks_mutex *self = (pylocks_mutex *)object;
    return PyBool_FromLong(self->forks == pylocks_forks && self->owner == PyThread_get_thread_ident());
}

static PyObject *pylocks_mutex_top(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromLong(pylocks_top(((pylocks_mutex *)object)->group));
}

static PyObject *pylocks_mutex_may_wait(PyObject *object, void *unused)
{
    (void)unused;
    pylocks_mutex *self = (pylocks_mutex *)object;
    return PyBool_FromLong(pylocks_top(self->group) < self->rank && !pylocks_holds_others(self->group));
}

static PyObject *pylocks_mutex_repr(PyObject *object)
{
    pylocks_mutex *self = (pylocks_mutex *)object;
    return PyUnicode_FromFormat("<Mutex %U, rank %d, held by thread %lu>", self->name, self->rank, self->owner);
}

static PyMethodDef pylocks_mutex_methods[] = {
    {"__enter__", pylocks_mutex_enter, METH_NOARGS, "Take the lock."},
    {"__exit__", PYLOCKS_FAST(pylocks_mutex_exit), METH_FASTCALL, "Let go of it."},
    {"attempt", pylocks_mutex_attempt, METH_NOARGS, "A context manager that does not wait."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pylocks_mutex_getset[] = {
    {"is_mine", pylocks_mutex_is_mine, NULL, "Whether this thread holds the lock.", NULL},
    {"top", pylocks_mutex_top, NULL, "The highest rank that this thread holds in the group; -1: none.", NULL},
    {"may_wait", pylocks_mutex_may_wait, NULL, "Whether this thread may wait for it: else it is tried, or refused.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pylocks_mutex_slots[] = {
    {Py_tp_doc, "A lock with a place in the order of locks."},
    {Py_tp_new, pylocks_mutex_new},
    {Py_tp_dealloc, pylocks_mutex_dealloc},
    {Py_tp_repr, pylocks_mutex_repr},
    {Py_tp_methods, pylocks_mutex_methods},
    {Py_tp_getset, pylocks_mutex_getset},
    {0, NULL},
};

static PyType_Spec pylocks_mutex_spec = {
    "logstore._native._locks.Mutex", sizeof(pylocks_mutex), 0, Py_TPFLAGS_DEFAULT, pylocks_mutex_slots,
};

/* ---------------------------------------------------------------- Mutex.attempt() */

static void pylocks_attempt_dealloc(PyObject *object)
{
    Py_XDECREF((PyObject *)((pylocks_attempt *)object)->mutex);
    pylocks_free(object);
}

static PyObject *pylocks_attempt_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    pylocks_attempt *self = (pylocks_attempt *)object;
    int taken = pylocks_take(self->mutex, PYLOCKS_RANKS, 0);
    if (taken < 0) {
        return NULL;
    }
    self->taken = taken;
    return PyBool_FromLong(taken);
}

static PyObject *pylocks_attempt_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    pylocks_attempt *self = (pylocks_attempt *)object;
    if (self->taken) {
        self->taken = 0;
        pylocks_release(self->mutex);
    }
    return pylocks_left();
}

static PyMethodDef pylocks_attempt_methods[] = {
    {"__enter__", pylocks_attempt_enter, METH_NOARGS, "Take the lock if nobody holds it."},
    {"__exit__", PYLOCKS_FAST(pylocks_attempt_exit), METH_FASTCALL, "Let go of it, if it was taken."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pylocks_attempt_slots[] = {
    {Py_tp_doc, "An attempt to take a Mutex."},
    {Py_tp_dealloc, pylocks_attempt_dealloc},
    {Py_tp_methods, pylocks_attempt_methods},
    {0, NULL},
};

static PyType_Spec pylocks_attempt_spec = {
    "logstore._native._locks.Attempt", sizeof(pylocks_attempt), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, pylocks_attempt_slots,
};

/* ---------------------------------------------------------------- Group */

static PyTypeObject *pylocks_mutex_type;

static PyObject *pylocks_group_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mutexes", NULL};
    PyObject *mutexes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &mutexes)) {
        return NULL;
    }
    mutexes = PySequence_Tuple(mutexes);
    if (mutexes == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(mutexes); i++) {
        if (Py_TYPE(PyTuple_GetItem(mutexes, i)) != pylocks_mutex_type) {
            Py_DECREF(mutexes);
            PyErr_SetString(PyExc_TypeError, "a Group is made of Mutex objects");
            return NULL;
        }
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pylocks_group *self = (pylocks_group *)allocate(type, 0);
    if (self == NULL) {
        Py_DECREF(mutexes);
        return NULL;
    }
    self->mutexes = mutexes;
    return (PyObject *)self;
}

static void pylocks_group_dealloc(PyObject *object)
{
    Py_XDECREF(((pylocks_group *)object)->mutexes);
    pylocks_free(object);
}

static void pylocks_group_release(pylocks_group *self)
{
    while (self->taken > 0) {
        self->taken--;
        pylocks_release((pylocks_mutex *)PyTuple_GetItem(self->mutexes, self->taken));
    }
}

static PyObject *pylocks_group_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    pylocks_group *self = (pylocks_group *)object;
    int top = -1;
    if (PyTuple_Size(self->mutexes)) {
        top = pylocks_top(((pylocks_mutex *)PyTuple_GetItem(self->mutexes, 0))->group);
    }
    if (self->taken) {
        PyErr_SetString(PyExc_RuntimeError, "the group is entered already");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->mutexes); i++) {
        if (pylocks_take((pylocks_mutex *)PyTuple_GetItem(self->mutexes, i), top, 1) < 0) {
            pylocks_group_release(self);
            return NULL;
        }
        self->taken = i + 1;
    }
    Py_RETURN_NONE;
}

static PyObject *pylocks_group_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    pylocks_group_release((pylocks_group *)object);
    return pylocks_left();
}

static PyMethodDef pylocks_group_methods[] = {
    {"__enter__", pylocks_group_enter, METH_NOARGS, "Take all locks, in order."},
    {"__exit__", PYLOCKS_FAST(pylocks_group_exit), METH_FASTCALL, "Let go of them."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pylocks_group_slots[] = {
    {Py_tp_doc, "Several Mutex objects, taken in order or not at all."},
    {Py_tp_new, pylocks_group_new},
    {Py_tp_dealloc, pylocks_group_dealloc},
    {Py_tp_methods, pylocks_group_methods},
    {0, NULL},
};

static PyType_Spec pylocks_group_spec = {
    "logstore._native._locks.Group", sizeof(pylocks_group), 0, Py_TPFLAGS_DEFAULT, pylocks_group_slots,
};

/* ---------------------------------------------------------------- the module */

PyTypeObject *pylocks_add(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL) {
        return NULL;
    }
    Py_INCREF(type); /* one for the module, one for this file */
    if (PyModule_AddObject(module, name, type) < 0) {
        Py_DECREF(type);
        Py_DECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type;
}

static PyTypeObject *pylocks_file_type;
static pylocks_functions pylocks_api;

/* Add what other modules use: -1 with an error set. */
static int pylocks_add_api(PyObject *module)
{
    pylocks_api.file = pylocks_file_type;
    pylocks_api.mutex = pylocks_mutex_type;
    pylocks_api.enter = pylocks_enter;
    pylocks_api.leave = pylocks_leave;
    pylocks_api.run_deferred = pylocks_run_due;
    pylocks_give_turns(&pylocks_api);
    PyObject *capsule = PyCapsule_New(&pylocks_api, PYLOCKS_API, NULL);
    if (capsule == NULL) {
        return -1;
    }
    if (PyModule_AddObject(module, "api", capsule) < 0) {
        Py_DECREF(capsule);
        return -1;
    }
    return 0;
}

/* As pyrecords_exec: one interpreter of a process has the module, and what failed may be tried again. */
static int pylocks_exec(PyObject *module)
{
    static int is_loaded;
    if (is_loaded) {
        PyErr_SetString(PyExc_ImportError, "logstore can be used by one interpreter of a process only");
        return -1;
    }
    if (pylocks_begin() < 0) {
        return -1;
    }
    PyObject *errors = PyImport_ImportModule("logstore.errors");
    if (errors == NULL) {
        return -1;
    }
    pylocks_reentrant = PyObject_GetAttrString(errors, "ReentrantCallError");
    Py_DECREF(errors);
    if (pylocks_reentrant == NULL) {
        return -1;
    }
    pylocks_mutex_type = pylocks_add(module, "Mutex", &pylocks_mutex_spec);
    pylocks_attempt_type = pylocks_add(module, "Attempt", &pylocks_attempt_spec);
    pylocks_file_type = pylocks_add(module, "OpenFile", &pylocks_file_spec);
    if (pylocks_mutex_type == NULL || pylocks_attempt_type == NULL || pylocks_file_type == NULL
        || pylocks_add(module, "Group", &pylocks_group_spec) == NULL || pylocks_add_turns(module) < 0
        || pylocks_add_calls(module) < 0 || pylocks_add_api(module) < 0) {
        return -1;
    }
    is_loaded = 1;
    return 0;
}

static PyModuleDef_Slot pylocks_slots[] = {
    {Py_mod_exec, (void *)pylocks_exec},
    {0, NULL},
};

static struct PyModuleDef pylocks_module = {
    PyModuleDef_HEAD_INIT, "_locks", "Locks, and open files.", 0, pylocks_methods, pylocks_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__locks(void);

PyMODINIT_FUNC PyInit__locks(void)
{
    return PyModuleDef_Init(&pylocks_module);
}
