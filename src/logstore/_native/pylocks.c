/*
 * pylocks.c - locks, and open files.  A module of its own (stable ABI, CPython 3.10 and later), because what is
 * promised here cannot be had in Python: a signal handler, a finalizer or a log handler may run between any two
 * bytecodes, and a `with` over a Python object has bytecodes between "acquired" and "will be released".
 *
 * OpenFile(fd, close=None): a descriptor that is closed with the last reference, and not before: an object with a
 * `__del__` is finalized by the collector although another finalizer of the same garbage may still use it.
 *
 * Mutex(rank, name, group=0): a context manager.  Entering and leaving are one C call each.
 *   - It is not re-entrant: a second entry of the same thread raises ReentrantCallError.
 *   - A thread that holds a lock waits only for locks of a higher rank.  One of the same rank it tries: if another
 *     thread holds it, ReentrantCallError.  One of a lower rank is ReentrantCallError always.  Only a call that
 *     comes in from inside another one can meet that, since the engine takes its locks in the order of their
 *     ranks; so no two threads wait for each other.
 *   - Ranks are those of one group (a store).  A lock of another group than those that a thread holds is tried.
 * Mutex.may_wait: whether it would be waited for now, by the rules above; else entering it may be refused.
 * Mutex.attempt(): a context manager that never waits; its value is whether it has the lock.
 * Group(mutexes): enters all of them, which are of one group, in order, or none.
 * defer(function, *args): called when this thread has let go of its last lock; at once where it holds none.
 * places(), assume(places): a thread that works for another one, which waits for it, counts as holding its locks.
 *
 * Everything here runs with the GIL, but where a thread waits.  After a fork, in the child, all locks are free:
 * their holders are not there.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <pythread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define PYLOCKS_RANKS 32
#define PYLOCKS_GROUPS 8 /* so many stores may call each other in one thread */
#define PYLOCKS_FAST(function) ((PyCFunction)(void (*)(void))(function))

typedef struct {
    unsigned long group;
    uint32_t mask;                 /* ranks that this thread holds; 0: this place is free */
    uint32_t count[PYLOCKS_RANKS]; /* how many of each */
} pylocks_ranks;

typedef struct {
    pylocks_ranks groups[PYLOCKS_GROUPS];
    int held;           /* how many of them are in use */
    PyObject *deferred; /* a list of (function, args), or NULL */
} pylocks_thread;

static _Thread_local pylocks_thread pylocks_me;
static unsigned long pylocks_forks; /* how often this process is the child of a fork */
static PyObject *pylocks_reentrant; /* logstore.errors.ReentrantCallError */
static PyTypeObject *pylocks_attempt_type;

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* thread; 0: nobody */
    unsigned long forks;
    unsigned long group;
    int rank;
    PyObject *name;
} pylocks_mutex;

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

/* Whether this thread holds a lock of another group. */
static int pylocks_holds_others(unsigned long group)
{
    for (int i = 0; i < PYLOCKS_GROUPS; i++) {
        if (pylocks_me.groups[i].mask != 0 && pylocks_me.groups[i].group != group) {
            return 1;
        }
    }
    return 0;
}

/* What this thread holds of a group; a free place where that is nothing; NULL where there is none. */
static pylocks_ranks *pylocks_find(unsigned long group)
{
    pylocks_ranks *free_place = NULL;
    for (int i = 0; i < PYLOCKS_GROUPS; i++) {
        pylocks_ranks *ranks = &pylocks_me.groups[i];
        if (ranks->mask == 0) {
            free_place = free_place == NULL ? ranks : free_place;
        } else if (ranks->group == group) {
            return ranks;
        }
        if (pylocks_me.held == 0) {
            break; /* the usual case */
        }
    }
    return free_place;
}

static int pylocks_top(unsigned long group)
{
    pylocks_ranks *ranks = pylocks_me.held ? pylocks_find(group) : NULL;
    return ranks != NULL && ranks->mask ? 31 - __builtin_clz(ranks->mask) : -1;
}

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
    if (ranks->mask == 0) {
        ranks->group = self->group;
        pylocks_me.held++;
    }
    ranks->count[self->rank]++;
    ranks->mask |= (uint32_t)1 << self->rank;
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
        if (status == PY_LOCK_INTR && PyErr_CheckSignals() < 0) {
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
    pylocks_ranks *ranks = pylocks_find(self->group);
    self->owner = 0;
    if (--ranks->count[self->rank] == 0) {
        ranks->mask &= ~((uint32_t)1 << self->rank);
        pylocks_me.held -= ranks->mask == 0;
    }
    PyThread_release_lock(self->lock);
}

/*
 * Call what was deferred, once no lock is held.  What a call raises is told and forgotten, as for a finalizer;
 * but an interrupt is not: it goes on when all were called.
 */
static int pylocks_run_deferred(void)
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

static PyObject *pylocks_left(void)
{
    if (pylocks_me.held == 0 && pylocks_me.deferred != NULL && pylocks_run_deferred() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static void pylocks_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
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

static PyObject *pylocks_mutex_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    if (pylocks_take((pylocks_mutex *)self, pylocks_top(((pylocks_mutex *)self)->group), 1) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
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

/* ---------------------------------------------------------------- OpenFile */

typedef struct {
    PyObject_HEAD
    int fd;
    PyObject *close; /* called with the descriptor; NULL: the system's */
} pylocks_file;

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

static PyType_Spec pylocks_file_spec = {
    "logstore._native._locks.OpenFile", sizeof(pylocks_file), 0, Py_TPFLAGS_DEFAULT, pylocks_file_slots,
};

/* ---------------------------------------------------------------- functions */

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
        if (ranks->mask == 0) {
            ranks->group = group;
            pylocks_me.held++;
        }
        ranks->count[rank]++;
        ranks->mask |= (uint32_t)1 << rank;
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
static void pylocks_in_child(void)
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

static PyMethodDef pylocks_methods[] = {
    {"held", pylocks_held, METH_NOARGS, "Whether this thread holds a lock."},
    {"defer", pylocks_defer, METH_VARARGS, "Call a function when this thread holds no lock."},
    {"places", pylocks_places, METH_NOARGS, "What this thread holds: ((group, highest rank), ...)."},
    {"assume", pylocks_assume, METH_O, "Count as holding places, as long as the thread lives."},
    {"resign", pylocks_resign, METH_NOARGS, "Hold nothing that was assumed, at the end of a thread."},
    {"forks", pylocks_fork_count, METH_NOARGS, "How often this process is the child of a fork, since its start."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef pylocks_module = {
    PyModuleDef_HEAD_INIT, "_locks", "Locks, and open files.", -1, pylocks_methods, NULL, NULL, NULL, NULL,
};

static PyTypeObject *pylocks_add(PyObject *module, const char *name, PyType_Spec *spec)
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

PyMODINIT_FUNC PyInit__locks(void);

PyMODINIT_FUNC PyInit__locks(void)
{
    if (pthread_atfork(NULL, NULL, pylocks_in_child) != 0) {
        return PyErr_NoMemory();
    }
    PyObject *errors = PyImport_ImportModule("logstore.errors");
    if (errors == NULL) {
        return NULL;
    }
    pylocks_reentrant = PyObject_GetAttrString(errors, "ReentrantCallError");
    Py_DECREF(errors);
    PyObject *module = pylocks_reentrant == NULL ? NULL : PyModule_Create(&pylocks_module);
    if (module == NULL) {
        return NULL;
    }
    pylocks_mutex_type = pylocks_add(module, "Mutex", &pylocks_mutex_spec);
    pylocks_attempt_type = pylocks_add(module, "Attempt", &pylocks_attempt_spec);
    if (pylocks_mutex_type == NULL || pylocks_attempt_type == NULL
        || pylocks_add(module, "Group", &pylocks_group_spec) == NULL
        || pylocks_add(module, "OpenFile", &pylocks_file_spec) == NULL) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
