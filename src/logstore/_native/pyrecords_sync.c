/*
 * pyrecords_sync.c - SharedSync: syncs of one log that threads share; and Durations, of these syncs.
 *
 * The threads that wait for records to be durable take turns (pylocks_turns.c): one syncs what was appended by then,
 * for all.  The steps before and after the call of the system work as an append of PreparedAppend does: each
 * keeps the interpreter lock, runs no Python code, and so needs no lock of the log, provided that this lock was not
 * taken since the last append (pyrecords_append.c).  Otherwise, and if there is other work (an index
 * entry to write, a durable point to record, a reader to wake), it calls `Syncs` (log/write/syncs.py).
 *
 * The turn, and the lock that keeps other work out of a sync, are left here whatever happens.
 */
#include "pyrecords_append.h"

#include <errno.h>

#include "ls_bytes.h"

/*
 * Up to this number of index entries are not written after each sync: opening a file costs more than a short scan.
 * The durable point, which counts entries, writes them before.
 */
#define UNWRITTEN_MAX 64

/* A sync waits for the threads that the last one served, by at most this part of the mean duration of a sync. */
#define GATHER_PART 0.5

enum { IS_CUT = 0, IS_THERE = 1, IS_USUAL = 2 };

enum { USUAL, FINISH, FAILED, METHODS };

typedef struct {
    PyObject_HEAD
    long long count;
    double seconds;
    double most;
} pyrecords_durations;

typedef struct {
    PyObject_HEAD
    PyObject *methods[METHODS]; /* of Syncs: called when a step is not enough */
    pyrecords_append *prepared;
    PyObject *turns;
    PyObject *lock;           /* the Mutex that is held during a sync */
    pylocks_file *store_lock; /* whose lock says that the store is this process's; NULL: none does */
    PyObject *owners;         /* of the two states and the page */
    pyrecords_durations *durations;
    ls_segment_state *marked; /* what the current sync makes durable; the turn guards it */
    ls_segment_state *synced; /* what the last one was for */
    ls_durable_page *page;    /* shows other processes what is durable */
} pyrecords_sync;

/* Where a sync began. */
typedef struct {
    pyrecords_writer *writer; /* SegmentWriter, which keeps its file open */
    PyObject *bounds;         /* for the durable records after the sync */
    PyObject *durable;
    Py_ssize_t index_count;
    Py_ssize_t time_count;
    int fd;
} pyrecords_mark;

static PyTypeObject *pyrecords_durations_type;

/* ---------------------------------------------------------------- Durations */

static void pyrecords_note(pyrecords_durations *self, double seconds)
{
    self->count += 1;
    self->seconds += seconds;
    if (seconds > self->most) {
        self->most = seconds;
    }
}

static PyObject *pyrecords_durations_add(PyObject *self, PyObject *seconds)
{
    double number = PyFloat_AsDouble(seconds);
    if (number == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    pyrecords_note((pyrecords_durations *)self, number);
    Py_RETURN_NONE;
}

static PyObject *pyrecords_durations_get(PyObject *self, PyObject *unused)
{
    (void)unused;
    const pyrecords_durations *durations = (const pyrecords_durations *)self;
    return Py_BuildValue("(Ldd)", durations->count, durations->seconds, durations->most);
}

static void pyrecords_durations_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef pyrecords_durations_methods[] = {
    {"add", pyrecords_durations_add, METH_O, "One more, in seconds."},
    {"get", pyrecords_durations_get, METH_NOARGS, "Their number, their sum, and the largest, in seconds."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pyrecords_durations_slots[] = {
    {Py_tp_doc, "How long calls took."},
    {Py_tp_dealloc, pyrecords_durations_dealloc},
    {Py_tp_methods, pyrecords_durations_methods},
    {0, NULL},
};

static PyType_Spec pyrecords_durations_spec = {
    "logstore._native._records.Durations", sizeof(pyrecords_durations), 0, Py_TPFLAGS_DEFAULT,
    pyrecords_durations_slots,
};

/* ---------------------------------------------------------------- what a sync covers */

/* The offset below which all is durable; -1 with an error set. */
static long long pyrecords_durable(const pyrecords_sync *self)
{
    return pyrecords_extent_offset(self->prepared, PYRECORDS_BOUNDS_DURABLE);
}

/* Whether this process has the store, as far as can be said here: else the usual way finds out.  -1: an error is set. */
static int pyrecords_is_owned(const pyrecords_sync *self)
{
    const pyrecords_system *system = &self->prepared->system;
    return self->store_lock == NULL ? 0 : system->hold_lock(system, self->store_lock->fd);
}

/* Whether nothing speaks against a sync; -1 with an error set. */
static int pyrecords_may_sync(const pyrecords_sync *self)
{
    const pyrecords_append *prepared = self->prepared;
    int is_owned = pyrecords_is_ready(prepared) ? pyrecords_is_owned(self) : 0;
    if (is_owned > 0 && pyrecords_calls(prepared, PYRECORDS_LOCK)) {
        is_owned = pyrecords_is_ready(prepared); /* after a method in Python, which may have closed the log */
    }
    return PyErr_Occurred() ? -1 : is_owned;
}

/* Mark the end of this sync: 1; 0 if a step cannot make this sync; -1 with an error set. */
static int pyrecords_mark_end(pyrecords_sync *self, long long upto, pyrecords_mark *mark)
{
    pyrecords_append *prepared = self->prepared;
    /* What may start the collector, and so Python code, comes first: it may close the log, which frees its state. */
    mark->bounds = pyrecords_new_bounds(prepared->bounds);
    int may_sync = mark->bounds == NULL ? -1 : pyrecords_may_sync(self);
    if (may_sync <= 0) {
        return may_sync;
    }
    *self->marked = *prepared->facts->state;
    if (self->marked->last_offset < upto - 1) {
        return 0;
    }
    mark->durable = PyLong_FromLongLong(self->marked->last_offset + 1);
    if (mark->durable == NULL) {
        return -1;
    }
    mark->index_count = prepared->index->count;
    mark->time_count = prepared->times->count;
    Py_INCREF(prepared->writer);
    mark->writer = prepared->writer;
    mark->fd = prepared->facts->fd;
    return 1;
}

/* ---------------------------------------------------------------- after the call of the system: no Python code */

/*
 * Whether the only work left is to show what is durable.
 *
 * The sync was made without the interpreter lock.  Another thread may have rolled the log, closed it or let it rest
 * meanwhile: then another writer is prepared, or none, and its indexes are not the marked ones.
 */
static int pyrecords_is_shown_only(const pyrecords_sync *self, const pyrecords_mark *mark)
{
    const pyrecords_append *prepared = self->prepared;
    if (prepared->writer != mark->writer || self->marked->size >= prepared->facts->quiet_size
        || self->page->fd == LS_PAGE_TO_OPEN) {
        return 0;
    }
    Py_ssize_t index_written = prepared->index->written;
    Py_ssize_t times_written = prepared->times->written;
    return index_written >= 0 && mark->index_count - index_written < UNWRITTEN_MAX
        && times_written >= 0 && mark->time_count - times_written < UNWRITTEN_MAX;
}

/*
 * Show other processes what is durable now: 0, or -1 with an error set.  A failed write is ignored: they learn of
 * it from the state file.  The sync has made it true before, so what the file says is true whenever the machine stops.
 */
static int pyrecords_tell_durable(pyrecords_sync *self)
{
    const pyrecords_system *system = &self->prepared->system;
    ls_durable_page *page = self->page;
    if (page->fd < 0) {
        return 0;
    }
    uint64_t durable = (uint64_t)self->marked->last_offset + 1;
    ls_bytes_store_i64(page->bytes + LS_PAGE_DURABLE_POS, (int64_t)durable);
    ls_bytes_store_i64(page->bytes + LS_PAGE_CHECK_POS, (int64_t)(durable ^ page->key));
    if (system->write(system, page->fd, page->bytes, LS_PAGE_BYTES, 0) != PYRECORDS_RAISED) {
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1; /* an interrupt */
    }
    PyErr_Clear();
    return 0;
}

/* The same as pyrecords_show_durable, in a step. */
static int pyrecords_show_in_step(pyrecords_sync *self, const pyrecords_mark *mark)
{
    pyrecords_append *prepared = self->prepared;
    long long durable = pyrecords_durable(self);
    if (durable < 0 || durable > self->marked->last_offset) {
        return durable < 0 ? -1 : 1; /* another thread that held the lock has synced more */
    }
    int status = pyrecords_fill_bounds(prepared, mark->bounds, PYRECORDS_BOUNDS_DURABLE, mark->durable);
    if (status > 0) {
        *self->synced = *self->marked;
        prepared->facts->end = pyrecords_sum(self->marked->last_offset + 1, prepared->facts->flush_messages);
        pyrecords_set(&prepared->log->bounds, mark->bounds);
        status = pyrecords_tell_durable(self) < 0 ? -1 : 1;
    }
    return status;
}

/* Show what is durable, if nothing has changed that needs the lock: 1; 0 otherwise; -1 with an error set. */
static int pyrecords_show_durable(pyrecords_sync *self, const pyrecords_mark *mark)
{
    pyrecords_append *prepared = self->prepared;
    int status = prepared->writer != mark->writer ? 0 : pyrecords_begin_step(prepared);
    if (status <= 0) {
        return status;
    }
    return pyrecords_end_step(prepared, prepared->writer == mark->writer ? pyrecords_show_in_step(self, mark) : 0);
}

/* ---------------------------------------------------------------- after the call of the system */

/* `Syncs.finish` has failed: IS_THERE if it can wait for the next sync, else -1 with its error set. */
static int pyrecords_without_finish(pyrecords_sync *self, const pyrecords_mark *mark)
{
    if (!PyErr_ExceptionMatches(PyExc_RecursionError) && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return -1;
    }
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    int status = pyrecords_show_durable(self, mark);
    if (status == 0) {
        PyErr_Restore(kind, error, trace);
        return -1;
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return status < 0 ? -1 : IS_THERE;
}

/* What was marked is synced: IS_THERE, or -1 with an error set. */
static int pyrecords_after_sync(pyrecords_sync *self, const pyrecords_mark *mark)
{
    int status = pyrecords_is_shown_only(self, mark) ? pyrecords_show_durable(self, mark) : 0;
    if (status != 0) {
        return status < 0 ? -1 : IS_THERE;
    }
    PyObject *result = PyObject_CallFunction(self->methods[FINISH], "Onn", (PyObject *)mark->writer, mark->index_count,
                                             mark->time_count);
    Py_XDECREF(result);
    return result == NULL ? pyrecords_without_finish(self, mark) : IS_THERE;
}

/* The sync failed, and is not tried again, also if a signal handler raises in here: -1 with the error set. */
static int pyrecords_sync_failed(const pyrecords_sync *self, const pyrecords_mark *mark, int32_t status)
{
    if (status == PYRECORDS_RAISED && !PyErr_ExceptionMatches(PyExc_OSError)) {
        return -1; /* an interrupt: how much was synced is unknown, and the next sync does it again */
    }
    PyObject *raised = status == PYRECORDS_RAISED ? pyrecords_take_error(status) : NULL;
    self->prepared->health->is_poisoned = 1;
    self->prepared->health->is_blocked = 1;
    PyObject *error = raised == NULL ? pyrecords_take_error(status) : raised;
    PyObject *result = error == NULL ? NULL : PyObject_CallFunction(self->methods[FAILED], "OO",
                                                                    (PyObject *)mark->writer, error);
    Py_XDECREF(error);
    Py_XDECREF(result);
    if (result != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a failed sync was not reported");
    }
    return -1;
}

/* ---------------------------------------------------------------- a sync */

/* Sync what is marked: IS_THERE, or -1 with an error set. */
static int pyrecords_sync_mark(pyrecords_sync *self, const pyrecords_mark *mark)
{
    const pyrecords_system *system = &self->prepared->system;
    for (;;) {
        double begun = system->monotonic(system);
        if (begun < 0 && PyErr_Occurred()) {
            return -1;
        }
        int32_t status = system->sync(system, mark->fd);
        if (status == 0) {
            double ended = system->monotonic(system);
            if (ended < 0 && PyErr_Occurred()) {
                return -1;
            }
            pyrecords_note(self->durations, ended - begun);
            return pyrecords_after_sync(self, mark);
        }
        if (status != -EINTR) {
            return pyrecords_sync_failed(self, mark, status);
        }
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
}

/* Sync what was appended by now, in steps: IS_THERE; IS_USUAL: it needs the usual way; -1 with an error set. */
static int pyrecords_sync_steps(pyrecords_sync *self, long long upto)
{
    if (self->prepared->writer == NULL) {
        return IS_USUAL;
    }
    pyrecords_mark mark = {0};
    int status = pyrecords_mark_end(self, upto, &mark);
    if (status >= 0) {
        status = status > 0 ? pyrecords_sync_mark(self, &mark) : IS_USUAL;
    }
    Py_XDECREF(mark.writer);
    Py_XDECREF(mark.bounds);
    Py_XDECREF(mark.durable);
    return status;
}

/* The usual way: IS_THERE, IS_CUT, or -1 with an error set. */
static int pyrecords_sync_usual(const pyrecords_sync *self, long long upto)
{
    PyObject *result = PyObject_CallFunction(self->methods[USUAL], "L", upto);
    int status = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return status;
}

/* It is this thread's turn: IS_THERE, IS_CUT, or -1 with an error set. */
static int pyrecords_sync_work(pyrecords_sync *self, PyObject *turn, long long upto)
{
    const pyrecords_durations *all = self->durations;
    double mean = all->count > 0 ? all->seconds / (double)all->count : 0.0;
    if (pyrecords_locks->gather(turn, (long long)(GATHER_PART * 1e6 * mean)) < 0
        || pyrecords_locks->enter(self->lock) < 0) {
        return -1;
    }
    /* It may have become durable before it was this thread's turn. */
    long long durable = pyrecords_durable(self);
    int status = durable < 0 ? -1 : durable >= upto ? IS_THERE : pyrecords_sync_steps(self, upto);
    if (status == IS_USUAL) {
        status = pyrecords_sync_usual(self, upto);
    }
    pyrecords_locks->leave(self->lock);
    durable = status < 0 ? -1 : pyrecords_durable(self);
    if (durable < 0) {
        return -1;
    }
    pyrecords_locks->announce(self->turns, durable);
    return status;
}

/* Take a turn: IS_THERE (another thread has synced), IS_CUT, or -1 with an error set. */
static int pyrecords_sync_turn(pyrecords_sync *self, long long upto)
{
    PyObject *turn = pyrecords_locks->take_turn(self->turns, upto);
    if (turn == NULL) {
        return -1;
    }
    int status = pyrecords_locks->enter_turn(turn);
    if (status == 0) {
        status = IS_THERE;
    } else if (status > 0) {
        status = pyrecords_sync_work(self, turn, upto);
        pyrecords_locks->leave_turn(turn);
    }
    Py_DECREF(turn);
    return status;
}

/* Return when all below `upto` is durable, or the log was cut below it: 0, or -1 with an error set. */
static int pyrecords_sync_upto(pyrecords_sync *self, long long upto)
{
    for (;;) {
        long long durable = pyrecords_durable(self);
        if (durable < 0 || durable >= upto) {
            return durable < 0 ? -1 : 0;
        }
        int status = pyrecords_sync_turn(self, upto);
        if (pyrecords_run_deferred(status < 0 ? -1 : 0) < 0) {
            return -1;
        }
        if (status == IS_CUT) {
            return 0;
        }
    }
}

/* sync(upto) */
static PyObject *pyrecords_sync_sync(PyObject *self, PyObject *upto)
{
    long long offset = PyLong_AsLongLong(upto);
    if ((offset == -1 && PyErr_Occurred()) || pyrecords_sync_upto((pyrecords_sync *)self, offset) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/*
 * append(value, key, timestamp_ms) -> offset, whose record is durable; or -1: nothing was done, it goes the usual way.
 */
static PyObject *pyrecords_sync_append(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    pyrecords_sync *self = (pyrecords_sync *)object;
    /* Before the append: else it would have to be said afterwards that it may not wait for its sync. */
    if (!pyrecords_locks->may_wait(self->turns)) {
        return PyLong_FromLong(-1);
    }
    PyObject *offset = pyrecords_append_one(self->prepared, args, count);
    long long number = offset == NULL ? -1 : PyLong_AsLongLong(offset);
    if (number < 0 || pyrecords_sync_upto(self, number + 1) == 0) {
        return offset;
    }
    /* The record is in.  A sync that was done by another thread, or before the error, is as good. */
    if (PyErr_ExceptionMatches(PyExc_RecursionError) || PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (pyrecords_durable(self) > number) {
            Py_XDECREF(kind);
            Py_XDECREF(error);
            Py_XDECREF(trace);
            return offset;
        }
        PyErr_Restore(kind, error, trace);
    }
    Py_DECREF(offset);
    return NULL;
}

/* ---------------------------------------------------------------- the type */

/*
 * SharedSync(usual, finish, failed, prepared, turns, lock, store_lock, durations, owners, marked, synced, page): methods
 * of `Syncs`; and, at the end, addresses of an ls_segment_state twice and an ls_durable_page, which `owners` own.
 */
static PyObject *pyrecords_sync_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"usual", "finish", "failed", "prepared", "turns", "lock", "store_lock", "durations",
                            "owners", "marked", "synced", "page", NULL};
    PyObject *usual, *finish, *failed, *prepared, *turns, *lock, *store_lock, *durations, *owners;
    unsigned long long marked, synced, page;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!O!O!OO!O!KKK", names, &usual, &finish, &failed,
                                     pyrecords_append_type, &prepared, pyrecords_locks->turns, &turns,
                                     pyrecords_locks->mutex, &lock, &store_lock, pyrecords_durations_type, &durations,
                                     &PyTuple_Type, &owners, &marked, &synced, &page)) {
        return NULL;
    }
    if (store_lock != Py_None && Py_TYPE(store_lock) != pyrecords_locks->file) {
        PyErr_SetString(PyExc_TypeError, "store_lock is no OpenFile");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pyrecords_sync *self = (pyrecords_sync *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->store_lock = store_lock == Py_None ? NULL : (pylocks_file *)store_lock;
    PyObject *items[] = {usual, finish, failed, prepared, turns, lock, durations, owners};
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
        Py_INCREF(items[i]);
    }
    Py_XINCREF(self->store_lock);
    self->methods[USUAL] = usual;
    self->methods[FINISH] = finish;
    self->methods[FAILED] = failed;
    self->prepared = (pyrecords_append *)prepared;
    self->turns = turns;
    self->lock = lock;
    self->durations = (pyrecords_durations *)durations;
    self->owners = owners;
    self->marked = (ls_segment_state *)(uintptr_t)marked;
    self->synced = (ls_segment_state *)(uintptr_t)synced;
    self->page = (ls_durable_page *)(uintptr_t)page;
    return (PyObject *)self;
}

/* No member is ever replaced: cycles are broken by clearing the object that holds it. */
static int pyrecords_sync_traverse(PyObject *object, visitproc visit, void *arg)
{
    pyrecords_sync *self = (pyrecords_sync *)object;
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < METHODS; i++) {
        Py_VISIT(self->methods[i]);
    }
    Py_VISIT((PyObject *)self->prepared);
    Py_VISIT(self->owners);
    return 0;
}

static void pyrecords_sync_dealloc(PyObject *object)
{
    pyrecords_sync *self = (pyrecords_sync *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (int i = 0; i < METHODS; i++) {
        Py_XDECREF(self->methods[i]);
    }
    Py_XDECREF((PyObject *)self->prepared);
    Py_XDECREF(self->turns);
    Py_XDECREF(self->lock);
    Py_XDECREF(self->store_lock);
    Py_XDECREF(self->owners);
    Py_XDECREF((PyObject *)self->durations);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef pyrecords_sync_methods[] = {
    {"append", (PyCFunction)(void (*)(void))pyrecords_sync_append, METH_FASTCALL,
     "Append a record, and have it durable: its offset, or -1 where nothing was done."},
    {"sync", pyrecords_sync_sync, METH_O, "Return when all below an offset is durable, or the log was cut below it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pyrecords_sync_slots[] = {
    {Py_tp_doc, "Syncs of a log that threads share."},
    {Py_tp_new, pyrecords_sync_new},
    {Py_tp_dealloc, pyrecords_sync_dealloc},
    {Py_tp_traverse, pyrecords_sync_traverse},
    {Py_tp_methods, pyrecords_sync_methods},
    {0, NULL},
};

static PyType_Spec pyrecords_sync_spec = {
    "logstore._native._records.SharedSync", sizeof(pyrecords_sync), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    pyrecords_sync_slots,
};

int pyrecords_add_sync(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "UNWRITTEN_MAX", UNWRITTEN_MAX) < 0) {
        return -1;
    }
    pyrecords_durations_type = pyrecords_add_type(module, "Durations", &pyrecords_durations_spec);
    if (pyrecords_durations_type == NULL) {
        return -1;
    }
    return pyrecords_add_type(module, "SharedSync", &pyrecords_sync_spec) == NULL ? -1 : 0;
}
