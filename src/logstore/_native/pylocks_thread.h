/*
 * pylocks_thread.h - what a thread holds; all C files of the module `_locks` use it.
 */
#ifndef PYLOCKS_THREAD_H
#define PYLOCKS_THREAD_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "pylocks_api.h"

#define PYLOCKS_RANKS 32
#define PYLOCKS_GROUPS 8 /* number of stores that may call each other in one thread */
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

/*
 * glibc allocates the thread-local data of a library that was loaded at run time when a thread first touches it, and
 * ends the process if it has no memory for them.  `initial-exec` data are part of each thread from its start; glibc
 * has room only for a little of them, so it is a pointer.  Other C libraries need no such thing (macOS), or refuse
 * it (musl, which allocates all of them when it starts a thread or loads a library).
 */
#ifdef __GLIBC__
#define PYLOCKS_TLS __attribute__((tls_model("initial-exec")))
#else
#define PYLOCKS_TLS
#endif

#pragma GCC visibility push(hidden) /* so that the state of a thread is reached as in one file */
/* What this thread holds.  NULL until it first takes a lock: it holds nothing, and nothing is deferred. */
extern _Thread_local pylocks_thread *pylocks_me PYLOCKS_TLS;
extern unsigned long pylocks_forks;   /* how often this process is the child of a fork */
extern PyMethodDef pylocks_methods[]; /* the functions of the module: pylocks_thread.c */
extern PyType_Spec pylocks_file_spec; /* OpenFile: pylocks_file.c */
extern PyObject *pylocks_reentrant;   /* logstore.errors.ReentrantCallError */
int pylocks_begin(void);
/* pylocks.c: add a type to the module; NULL with an error set. */
PyTypeObject *pylocks_add(PyObject *module, const char *name, PyType_Spec *spec);
/* pylocks_turns.c: add Turns to the module (-1 with an error set), and its functions to the API of other modules. */
int pylocks_add_turns(PyObject *module);
void pylocks_give_turns(pylocks_functions *api);
/* pylocks_calls.c: add Calls to the module; -1 with an error set. */
int pylocks_add_calls(PyObject *module);
int pylocks_make_me(void);
int pylocks_run_deferred(void);
#pragma GCC visibility pop

/* ---------------------------------------------------------------- what a thread holds */

/* Give this thread a place for the locks it holds, if needed: before a lock is taken, since memory may run out. */
static inline int pylocks_ensure_me(void)
{
    return pylocks_me != NULL ? 0 : pylocks_make_me();
}

/* Whether this thread holds anything. */
static inline int pylocks_holds_any(void)
{
    return pylocks_me != NULL && pylocks_me->held > 0;
}

/* Whether this thread holds a lock of another group. */
static inline int pylocks_holds_others(unsigned long group)
{
    pylocks_thread *me = pylocks_me;
    for (int i = 0; me != NULL && i < PYLOCKS_GROUPS; i++) {
        if (me->groups[i].mask != 0 && me->groups[i].group != group) {
            return 1;
        }
    }
    return 0;
}

/*
 * The ranks of a group that this thread holds; a free place if it holds none; NULL if all are used.  Only after
 * pylocks_ensure_me().
 */
static inline pylocks_ranks *pylocks_find(unsigned long group)
{
    pylocks_thread *me = pylocks_me;
    pylocks_ranks *free_place = NULL;
    for (int i = 0; i < PYLOCKS_GROUPS; i++) {
        pylocks_ranks *ranks = &me->groups[i];
        if (ranks->mask == 0) {
            free_place = free_place == NULL ? ranks : free_place;
        } else if (ranks->group == group) {
            return ranks;
        }
        if (me->held == 0) {
            break; /* the usual case */
        }
    }
    return free_place;
}

static inline int pylocks_top(unsigned long group)
{
    pylocks_ranks *ranks = pylocks_holds_any() ? pylocks_find(group) : NULL;
    return ranks != NULL && ranks->mask ? 31 - __builtin_clz(ranks->mask) : -1;
}

/* This thread holds one more lock of a rank.  `ranks`: what it holds of the group, by pylocks_find(). */
static inline void pylocks_count(pylocks_ranks *ranks, unsigned long group, int rank)
{
    if (ranks->mask == 0) {
        ranks->group = group;
        pylocks_me->held++;
    }
    ranks->count[rank]++;
    ranks->mask |= (uint32_t)1 << rank;
}

/* This thread holds one less lock of a rank.  One that has ended may have taken it, if this one got its identifier. */
static inline void pylocks_uncount(unsigned long group, int rank)
{
    pylocks_ranks *ranks = pylocks_holds_any() ? pylocks_find(group) : NULL;
    uint32_t bit = (uint32_t)1 << rank;
    if (ranks != NULL && (ranks->mask & bit) && --ranks->count[rank] == 0) {
        ranks->mask &= ~bit;
        pylocks_me->held -= ranks->mask == 0;
    }
}

/* Call what was deferred, if this thread has released its last lock: 0, or -1 with an error set. */
static inline int pylocks_run_due(void)
{
    pylocks_thread *me = pylocks_me;
    return me != NULL && me->held == 0 && me->deferred != NULL ? pylocks_run_deferred() : 0;
}

/* The result of a call that has released a lock: None, once what was deferred is done. */
static inline PyObject *pylocks_left(void)
{
    if (pylocks_run_due() < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Free an object of a type that this module made. */
static inline void pylocks_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

#endif
