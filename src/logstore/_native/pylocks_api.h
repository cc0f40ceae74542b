/*
 * pylocks_api.h - what the module `_records` uses of the module `_locks`: what a Mutex is, since it asks whether it was
 * taken, what an OpenFile is, and functions, which it finds in the capsule `api`.
 */
#ifndef PYLOCKS_API_H
#define PYLOCKS_API_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>
#include <stdint.h>

#define PYLOCKS_API "logstore._native._locks.api"

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* thread; 0: free */
    unsigned long forks;
    unsigned long group;
    uint64_t takes;                     /* how often it was taken, at least once for each time */
    const unsigned long *process_forks; /* `forks` is this, unless this process is the child of a fork since then */
    int rank;
    PyObject *name;
} pylocks_mutex;

typedef struct {
    PyObject_HEAD
    int fd;          /* -1 once it is closed */
    PyObject *close; /* called with the descriptor; NULL: the system's */
} pylocks_file;

/* Whether it is free, and was not taken since `takes` was read. */
static inline int pylocks_is_untouched(const pylocks_mutex *self, uint64_t takes)
{
    return self->takes == takes && self->owner == 0 && self->forks == *self->process_forks;
}

/* Each as the method of its name; functions that return a number return -1 with an error set. */
typedef struct {
    PyTypeObject *file;
    PyTypeObject *mutex;
    PyTypeObject *turns;
    int (*enter)(PyObject *mutex);
    void (*leave)(PyObject *mutex);
    PyObject *(*take_turn)(PyObject *turns, long long upto);
    int (*enter_turn)(PyObject *turn); /* 1: this thread works now */
    int (*gather)(PyObject *turn, long long microseconds);
    void (*leave_turn)(PyObject *turn);
    void (*announce)(PyObject *turns, long long upto);
    int (*may_wait)(PyObject *turns);
    int (*run_deferred)(void); /* to be called after this thread has left anything */
} pylocks_functions;

#endif
