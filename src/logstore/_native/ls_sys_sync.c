/*
 * ls_sys_sync.c - syncs, of one file, and of several that the disk begins to write at once.
 */
#define _GNU_SOURCE 1
#include "ls_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

int32_t ls_sys_sync(int32_t fd)
{
#if defined(__APPLE__)
    return fcntl(fd, F_FULLFSYNC) < 0 ? -errno : 0; /* fsync stops at the cache of the disk */
#else
    return fdatasync(fd) < 0 ? -errno : 0;
#endif
}

/* At most this number of threads, one for each further five files, sync along with the caller.  For few files none is
   worth its start: the disk has begun with all of them, and the first sync commits the file system journal for all. */
#define LS_SYS_SYNC_THREADS 3
#define LS_SYS_SYNC_FILES 5

/* Several syncs; the threads that make them and the caller use it, and the last one of them frees it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t has_ended;
    ls_sync_function sync;
    int32_t count;
    int32_t done; /* `lock` guards it, and the results */
    _Atomic int32_t next;
    _Atomic int32_t users;
    int32_t *results; /* of each file, after the descriptors */
    int32_t fds[];
} ls_sys_sync_work;

/* Sync one file after the other that no thread has taken. */
static void ls_sys_sync_taken(ls_sys_sync_work *work)
{
    for (;;) {
        int32_t at = atomic_fetch_add(&work->next, 1);
        if (at >= work->count) {
            return;
        }
        int32_t status;
        do {
            status = work->sync(work->fds[at]);
        } while (status == -EINTR);
        (void)pthread_mutex_lock(&work->lock);
        work->results[at] = status;
        work->done += 1;
        (void)pthread_cond_signal(&work->has_ended);
        (void)pthread_mutex_unlock(&work->lock);
    }
}

static void ls_sys_sync_release(ls_sys_sync_work *work)
{
    if (atomic_fetch_sub(&work->users, 1) == 1) {
        (void)pthread_cond_destroy(&work->has_ended);
        (void)pthread_mutex_destroy(&work->lock);
        free(work);
    }
}

static void *ls_sys_sync_thread(void *argument)
{
    ls_sys_sync_taken(argument);
    ls_sys_sync_release(argument);
    return NULL;
}

/* Start threads, which take no signals: those are for the interpreter's. */
static void ls_sys_sync_start(ls_sys_sync_work *work)
{
    pthread_attr_t detached;
    sigset_t all, before;
    if (pthread_attr_init(&detached) != 0) {
        return;
    }
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) == 0) {
        for (int32_t i = 0; i < work->count / LS_SYS_SYNC_FILES && i < LS_SYS_SYNC_THREADS; i++) {
            pthread_t thread;
            (void)atomic_fetch_add(&work->users, 1);
            if (pthread_create(&thread, &detached, ls_sys_sync_thread, work) != 0) {
                (void)atomic_fetch_sub(&work->users, 1);
                break;
            }
        }
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    (void)pthread_attr_destroy(&detached);
}

int32_t ls_sys_sync_files(const int32_t *fds, int32_t *results, int32_t count, ls_sync_function other)
{
    size_t bytes = sizeof(ls_sys_sync_work) + 2 * (size_t)count * sizeof(int32_t);
    ls_sys_sync_work *work = calloc(1, bytes);
    if (work == NULL) {
        return -ENOMEM;
    }
    (void)pthread_mutex_init(&work->lock, NULL);
    (void)pthread_cond_init(&work->has_ended, NULL);
    atomic_init(&work->next, 0);
    atomic_init(&work->users, 1);
    work->sync = other != NULL ? other : ls_sys_sync;
    work->count = count;
    work->results = work->fds + count;
    for (int32_t i = 0; i < count; i++) {
        work->fds[i] = fds[i];
        if (count > 1 && other == NULL) {
            (void)ls_sys_write_back(fds[i], 0, 0); /* the disk begins with all of them; the syncs report errors */
        }
    }
    if (count >= LS_SYS_SYNC_FILES) {
        ls_sys_sync_start(work);
    }
    ls_sys_sync_taken(work);
    /* Not for the threads: one that has not begun finds nothing to do, and a busy machine may start it late. */
    (void)pthread_mutex_lock(&work->lock);
    while (work->done < count) {
        (void)pthread_cond_wait(&work->has_ended, &work->lock);
    }
    (void)pthread_mutex_unlock(&work->lock);
    for (int32_t i = 0; i < count; i++) {
        results[i] = work->results[i];
    }
    ls_sys_sync_release(work);
    return 0;
}

int32_t ls_sys_sync_all(int32_t fd)
{
    return fsync(fd) < 0 ? -errno : 0;
}
