/*
 * pylocks_turns.c - Turns: of the threads that wait for the same work, one does it for all.
 *
 * turns = Turns(rank, name, group=0)
 * with turns.take(upto) as is_mine: ...
 *   True: this thread works now; no other thread does until it leaves.  False: another thread has announced that the
 *   work is done up to `upto`.  While another thread works this one waits, without the GIL, and is woken once: with the
 *   result, or to work next.  A thread that leaves wakes the one that has waited longest.
 * turns.announce(upto): wake the threads that wait for no more than this.
 * turn.gather(microseconds): before the work, wait until as many threads wait as the last announcement has woken, but
 *   not longer, and less if no thread came the last time.  They most probably come back, and the work is then done for
 *   all of them instead of every other time.
 *
 * A thread that works holds the rank of the turns, as it would hold a Mutex (pylocks.c): code called
 * from inside its work must not wait for others that wait for it.  By the same rules it waits for its turn, or is
 * refused.
 *
 * Everything here runs with the GIL, but where a thread waits, so entering and leaving are one step each to signal
 * handlers.  A handler that runs in a waiting thread may take a turn itself: until it returns, its thread is not chosen
 * to work.  After a fork, in the child, no thread waits or works.
 */
#include "pylocks_thread.h"

#include <pythread.h>
#include <time.h>

enum { OUTSIDE, WAITING, SERVED, WORKING };

/*
 * Threads whose work is done are woken one after the other: each wakes the next one when it has the GIL.  Woken at once,
 * all would wake only to wait for the GIL.  But if a thread waits this long for it, other threads keep it busy: then
 * the rest are woken at once, to wait side by side.
 */
enum { SLOW_NS = 500 * 1000 };

/* If no thread came back, the next one waits this many times shorter. */
enum { HURRY = 5 };

typedef struct pylocks_turn pylocks_turn;

typedef struct {
    PyObject_HEAD
    pylocks_turn *first; /* of the waiting threads */
    pylocks_turn *last;
    pylocks_turn *first_served; /* of threads whose work is done, and that are not woken yet */
    pylocks_turn *last_served;
    pylocks_turn *gathering; /* of the thread that works, while it waits for others */
    long waiting;            /* how many */
    long served;             /* how many the last announcement has woken */
    unsigned long worker;    /* thread; 0: no thread works */
    unsigned long forks;
    unsigned long group;
    int rank;
    int is_hurried; /* no thread came while the last one gathered */
    PyObject *name;
} pylocks_turns;

struct pylocks_turn {
    PyObject_HEAD
    pylocks_turns *turns;
    pylocks_turn *next;
    pylocks_turn *previous;
    PyThread_type_lock lock; /* held; the waking thread releases it */
    long long upto;
    long long woken_ns; /* when */
    int state;
    int is_busy;    /* its thread runs a signal handler */
    int is_pending; /* not woken yet */
};

static PyTypeObject *pylocks_turn_type;

/* ---------------------------------------------------------------- the waiting threads */

static void pylocks_link(pylocks_turn *self)
{
    pylocks_turns *turns = self->turns;
    self->previous = turns->last;
    self->next = NULL;
    *(turns->last == NULL ? &turns->first : &turns->last->next) = self;
    turns->last = self;
    self->state = WAITING;
    turns->waiting++;
    if (turns->gathering != NULL && turns->waiting >= turns->served) {
        PyThread_release_lock(turns->gathering->lock);
        turns->gathering = NULL;
    }
}

static void pylocks_unlink(pylocks_turn *self, int state)
{
    pylocks_turns *turns = self->turns;
    *(self->previous == NULL ? &turns->first : &self->previous->next) = self->next;
    *(self->next == NULL ? &turns->last : &self->next->previous) = self->previous;
    self->state = state;
    turns->waiting--;
}

static void pylocks_wake(pylocks_turn *self, int state)
{
    pylocks_unlink(self, state);
    PyThread_release_lock(self->lock);
}

static long long pylocks_now_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Its work is done: it is woken when it is the first of those. */
static void pylocks_serve(pylocks_turn *self)
{
    pylocks_turns *turns = self->turns;
    pylocks_unlink(self, SERVED);
    self->is_pending = 1;
    self->previous = turns->last_served;
    self->next = NULL;
    *(turns->last_served == NULL ? &turns->first_served : &turns->last_served->next) = self;
    turns->last_served = self;
}

static void pylocks_unlink_served(pylocks_turn *self)
{
    pylocks_turns *turns = self->turns;
    *(self->previous == NULL ? &turns->first_served : &self->previous->next) = self->next;
    *(self->next == NULL ? &turns->last_served : &self->next->previous) = self->previous;
    self->is_pending = 0;
}

/* Wake one of those whose work is done, or all of them. */
static void pylocks_wake_served(pylocks_turns *turns, int all)
{
    int is_woken = 0;
    while (turns->first_served != NULL && (all || !is_woken)) {
        pylocks_turn *one = turns->first_served;
        pylocks_unlink_served(one);
        one->woken_ns = pylocks_now_ns();
        is_woken = !one->is_busy;
        PyThread_release_lock(one->lock);
    }
}

/* This thread runs again, with its work done: the next one may. */
static void pylocks_go_on(pylocks_turn *self)
{
    pylocks_turns *turns = self->turns;
    if (self->is_pending) {
        pylocks_unlink_served(self);
        return;
    }
    int all = pylocks_now_ns() - self->woken_ns > SLOW_NS;
    pylocks_wake_served(turns, all);
}

/* No thread works any more: the next one does, if one waits. */
static void pylocks_pass_on(pylocks_turns *turns)
{
    pylocks_turn *next = turns->first;
    while (next != NULL && next->is_busy) {
        next = next->next;
    }
    /* Its thread sets the worker: it is not known here. */
    turns->worker = next == NULL ? 0 : (unsigned long)-1;
    if (next != NULL) {
        pylocks_wake(next, WORKING);
    }
}

/* In the child of a fork the threads that wait or work are not there. */
static void pylocks_renew_turns(pylocks_turns *turns)
{
    if (turns->forks != pylocks_forks) {
        turns->first = turns->last = turns->gathering = NULL;
        turns->first_served = turns->last_served = NULL;
        turns->waiting = turns->served = 0;
        turns->worker = 0;
        turns->forks = pylocks_forks;
    }
}

/* ---------------------------------------------------------------- entering and leaving */

/* Wait until it is woken: 0, or -1 with an exception of a signal handler. */
static int pylocks_wait_turn(pylocks_turn *self)
{
    pylocks_turns *turns = self->turns;
    pylocks_link(self);
    while (self->state == WAITING) {
        PyThread_type_lock lock = self->lock;
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(lock, -1, 1);
        Py_END_ALLOW_THREADS
        if (status != PY_LOCK_INTR || self->state != WAITING) {
            continue;
        }
        self->is_busy = 1;
        int status_of_handler = PyErr_CheckSignals();
        self->is_busy = 0;
        if (turns->forks != pylocks_forks) {
            /* The handler forked, and this is the child: the list is the parent's, and so is the lock. */
            self->lock = NULL;
            self->state = OUTSIDE;
            self->is_pending = 0;
            pylocks_renew_turns(turns);
            if (status_of_handler == 0) {
                self->state = WORKING;
            }
        } else if (status_of_handler < 0 && self->state == WAITING) {
            pylocks_unlink(self, OUTSIDE);
        } else if (self->state == WAITING && turns->worker == 0) {
            pylocks_unlink(self, WORKING); /* it was passed over meanwhile */
        }
        if (status_of_handler < 0) {
            if (self->state == SERVED) {
                pylocks_go_on(self);
            }
            return -1;
        }
    }
    if (self->state == SERVED) {
        pylocks_go_on(self);
    }
    return 0;
}

/* The lock of a turn, held by itself: 0, or -1 with an error set. */
static int pylocks_ensure_lock(pylocks_turn *self)
{
    if (self->lock == NULL) {
        self->lock = PyThread_allocate_lock();
        if (self->lock == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        PyThread_acquire_lock(self->lock, 0);
    }
    return 0;
}

static int pylocks_gather(PyObject *object, long long limit)
{
    pylocks_turn *self = (pylocks_turn *)object;
    pylocks_turns *turns = self->turns;
    if (self->state != WORKING) {
        PyErr_SetString(PyExc_RuntimeError, "it is not this thread's turn");
        return -1;
    }
    if (turns->forks != pylocks_forks || turns->waiting >= turns->served || limit <= 0) {
        return 0;
    }
    long waiting = turns->waiting;
    if (turns->is_hurried) {
        limit /= HURRY;
    }
    if (pylocks_ensure_lock(self) < 0) {
        return -1;
    }
    turns->gathering = self;
    PyThread_type_lock lock = self->lock;
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS
    status = PyThread_acquire_lock_timed(lock, limit, 0);
    Py_END_ALLOW_THREADS
    if (status != PY_LOCK_ACQUIRED && turns->gathering == NULL) {
        PyThread_acquire_lock(lock, 0); /* released just now */
    }
    turns->gathering = NULL;
    turns->is_hurried = turns->waiting == waiting;
    return 0;
}

static PyObject *pylocks_turn_gather(PyObject *self, PyObject *microseconds)
{
    long long limit = PyLong_AsLongLong(microseconds);
    if ((limit == -1 && PyErr_Occurred()) || pylocks_gather(self, limit) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether it is this thread's turn; -1 with an error set. */
static int pylocks_enter_turn(PyObject *object)
{
    pylocks_turn *self = (pylocks_turn *)object;
    pylocks_turns *turns = self->turns;
    unsigned long me = PyThread_get_thread_ident();
    if (self->state == WAITING || self->state == WORKING) {
        PyErr_SetString(PyExc_RuntimeError, "the turn is taken already");
        return -1;
    }
    pylocks_renew_turns(turns);
    if (turns->worker == me) {
        PyErr_SetString(pylocks_reentrant, "a call came in from inside another one, for which others wait; nothing was "
                                           "changed");
        return -1;
    }
    if (pylocks_ensure_me() < 0) {
        return -1;
    }
    int top = pylocks_top(turns->group);
    if (pylocks_find(turns->group) == NULL || turns->rank < top
        || (turns->worker != 0 && (turns->rank == top || pylocks_holds_others(turns->group)))) {
        PyErr_Format(pylocks_reentrant,
                     "a call that needs %U came in from inside another one of this thread; nothing was changed",
                     turns->name);
        return -1;
    }
    if (turns->worker == 0) {
        self->state = WORKING;
    } else {
        if (pylocks_ensure_lock(self) < 0 || pylocks_wait_turn(self) < 0) {
            return -1;
        }
    }
    if (self->state == WORKING) {
        turns->worker = me;
        /* A handler that ran while this waited holds nothing any more: there is a place. */
        pylocks_count(pylocks_find(turns->group), turns->group, turns->rank);
    }
    return self->state == WORKING;
}

static PyObject *pylocks_turn_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    int is_mine = pylocks_enter_turn(self);
    return is_mine < 0 ? NULL : PyBool_FromLong(is_mine);
}

static void pylocks_leave_turn(PyObject *object)
{
    pylocks_turn *self = (pylocks_turn *)object;
    pylocks_turns *turns = self->turns;
    int was_working = self->state == WORKING && turns->forks == pylocks_forks;
    self->state = OUTSIDE;
    if (was_working) {
        if (turns->worker == PyThread_get_thread_ident()) {
            pylocks_uncount(turns->group, turns->rank);
        }
        pylocks_pass_on(turns);
    }
}

static PyObject *pylocks_turn_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)args;
    (void)count;
    pylocks_leave_turn(self);
    return pylocks_left();
}

static void pylocks_turn_dealloc(PyObject *object)
{
    pylocks_turn *self = (pylocks_turn *)object;
    pylocks_leave_turn(object);
    if (self->lock != NULL) {
        PyThread_release_lock(self->lock);
        PyThread_free_lock(self->lock);
    }
    Py_DECREF((PyObject *)self->turns);
    pylocks_free(object);
}

static PyMethodDef pylocks_turn_methods[] = {
    {"__enter__", pylocks_turn_enter, METH_NOARGS, "Wait until it is this thread's turn, or its work is done."},
    {"__exit__", PYLOCKS_FAST(pylocks_turn_exit), METH_FASTCALL, "The next thread works, if one waits."},
    {"gather", pylocks_turn_gather, METH_O, "Wait for those that the last announcement has woken, at most so long."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pylocks_turn_slots[] = {
    {Py_tp_doc, "A turn of a thread, as a context manager."},
    {Py_tp_dealloc, pylocks_turn_dealloc},
    {Py_tp_methods, pylocks_turn_methods},
    {0, NULL},
};

static PyType_Spec pylocks_turn_spec = {
    "logstore._native._locks.Turn", sizeof(pylocks_turn), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    pylocks_turn_slots,
};

/* ---------------------------------------------------------------- Turns */

static PyObject *pylocks_turns_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
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
    pylocks_turns *self = (pylocks_turns *)allocate(type, 0);
    if (self != NULL) {
        self->rank = rank;
        self->group = group;
        self->forks = pylocks_forks;
        Py_INCREF(name);
        self->name = name;
    }
    return (PyObject *)self;
}

static PyObject *pylocks_take_turn(PyObject *self, long long upto)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(pylocks_turn_type, Py_tp_alloc);
    pylocks_turn *made = (pylocks_turn *)allocate(pylocks_turn_type, 0);
    if (made != NULL) {
        Py_INCREF(self);
        made->turns = (pylocks_turns *)self;
        made->upto = upto;
    }
    return (PyObject *)made;
}

static PyObject *pylocks_turns_take(PyObject *self, PyObject *upto)
{
    long long number = PyLong_AsLongLong(upto);
    return number == -1 && PyErr_Occurred() ? NULL : pylocks_take_turn(self, number);
}

static void pylocks_announce(PyObject *object, long long upto)
{
    pylocks_turns *turns = (pylocks_turns *)object;
    pylocks_renew_turns(turns);
    turns->served = 0;
    for (pylocks_turn *one = turns->first, *next; one != NULL; one = next) {
        next = one->next;
        if (one->upto <= upto) {
            turns->served++;
            pylocks_serve(one);
        }
    }
    pylocks_wake_served(turns, 0);
}

static PyObject *pylocks_turns_announce(PyObject *self, PyObject *upto)
{
    long long number = PyLong_AsLongLong(upto);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    pylocks_announce(self, number);
    Py_RETURN_NONE;
}

static void pylocks_turns_dealloc(PyObject *self)
{
    Py_XDECREF(((pylocks_turns *)self)->name);
    pylocks_free(self); /* no thread waits: a turn holds a reference */
}

static PyMethodDef pylocks_turns_methods[] = {
    {"announce", pylocks_turns_announce, METH_O, "Wake those that wait for no more than this."},
    {"take", pylocks_turns_take, METH_O, "A context manager that waits for a turn, or for the work to be done."},
    {NULL, NULL, 0, NULL},
};

static int pylocks_may_wait(PyObject *object)
{
    pylocks_turns *self = (pylocks_turns *)object;
    return pylocks_top(self->group) < self->rank && !pylocks_holds_others(self->group);
}

static PyObject *pylocks_turns_may_wait(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(pylocks_may_wait(self));
}

static PyObject *pylocks_turns_waiting(PyObject *object, void *unused)
{
    (void)unused;
    pylocks_turns *self = (pylocks_turns *)object;
    pylocks_renew_turns(self);
    return PyLong_FromLong(self->waiting);
}

static PyGetSetDef pylocks_turns_getset[] = {
    {"may_wait", pylocks_turns_may_wait, NULL, "Whether this thread may wait for its turn: else it may be refused.",
     NULL},
    {"waiting", pylocks_turns_waiting, NULL, "How many threads wait for their turn.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot pylocks_turns_slots[] = {
    {Py_tp_doc, "Of the threads that wait for the same work, one does it for all."},
    {Py_tp_new, pylocks_turns_new},
    {Py_tp_dealloc, pylocks_turns_dealloc},
    {Py_tp_methods, pylocks_turns_methods},
    {Py_tp_getset, pylocks_turns_getset},
    {0, NULL},
};

static PyType_Spec pylocks_turns_spec = {
    "logstore._native._locks.Turns", sizeof(pylocks_turns), 0, Py_TPFLAGS_DEFAULT, pylocks_turns_slots,
};

static PyTypeObject *pylocks_turns_type;

int pylocks_add_turns(PyObject *module)
{
    pylocks_turn_type = pylocks_add(module, "Turn", &pylocks_turn_spec);
    if (pylocks_turn_type != NULL) {
        pylocks_turns_type = pylocks_add(module, "Turns", &pylocks_turns_spec);
    }
    return pylocks_turns_type == NULL ? -1 : 0;
}

void pylocks_give_turns(pylocks_functions *api)
{
    api->turns = pylocks_turns_type;
    api->take_turn = pylocks_take_turn;
    api->enter_turn = pylocks_enter_turn;
    api->gather = pylocks_gather;
    api->leave_turn = pylocks_leave_turn;
    api->announce = pylocks_announce;
    api->may_wait = pylocks_may_wait;
}
