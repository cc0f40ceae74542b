/*
 * pylocks_mutex.h - what a Mutex of the module `_locks` is, also for the module `_records`, which asks whether it was
 * taken.
 */
#ifndef PYLOCKS_MUTEX_H
#define PYLOCKS_MUTEX_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* thread; 0: nobody */
    unsigned long forks;
    unsigned long group;
    uint64_t takes;                     /* how often it was taken, at least once for each time */
    const unsigned long *process_forks; /* `forks` is this, unless this process is the child of a fork since then */
    int rank;
    PyObject *name;
} pylocks_mutex;

/* Whether nobody holds it, and nobody took it since `takes` was read. */
static inline int pylocks_is_untouched(const pylocks_mutex *self, uint64_t takes)
{
    return self->takes == takes && self->owner == 0 && self->forks == *self->process_forks;
}

#endif
