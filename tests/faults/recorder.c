/*
 * recorder.c - a library to be preloaded into a process: it writes down every call that changes the files of
 * one directory, with its bytes, and can make the n-th of them fail or kill the process.
 *
 * Nothing happens until recorder_begin().  One lock orders the calls, so the order in the trace is the order in
 * which they took effect; a sync is two events, so that what is written meanwhile is seen not to be covered.
 * Files are known by the descriptors that were opened below the directory (recorder.py makes files of them).
 *
 * An event: struct event, then its two texts.  Promises are what is written to one more descriptor.
 */
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, SYNC_BEGIN, SYNC_END, CLOSE, PROMISE, OTHER };

struct event {
    int32_t kind;
    int32_t fd;     /* the file, or the directory that a name is in; -1: no directory */
    int32_t other;  /* of OPEN the flags, of UNLINK too, of RENAME the second directory, of a sync the thread */
    int32_t result;
    int64_t pos;
    uint32_t first; /* bytes of the first text that follows, and of the second */
    uint32_t second;
};

enum { FDS = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[4096];
static size_t root_length;
static int trace = -1, promises = -1;
static unsigned char inside[FDS];
/* The plan: the n-th call of these kinds fails with an errno, once or from then on; 0 kills. */
static int64_t calls, syncs, planned = -1, planned_sync = -1;
static int planned_errno, goes_on, is_short;

#define REAL(type, name) ((type)real(#name))

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static int is_inside(int fd)
{
    return trace >= 0 && fd >= 0 && fd < FDS && inside[fd];
}

static int is_below(int dirfd, const char *path)
{
    if (trace < 0) {
        return 0;
    }
    if (path[0] == '/') {
        return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
    }
    return is_inside(dirfd);
}

static void put(const void *data, size_t size)
{
    /* A limit on the size of files that is put on the program is not meant for the trace. */
    struct rlimit limit, none;
    getrlimit(RLIMIT_FSIZE, &limit);
    none = limit;
    none.rlim_cur = none.rlim_max;
    setrlimit(RLIMIT_FSIZE, &none);
    const char *p = data;
    while (size > 0) {
        ssize_t n = syscall(SYS_write, trace, p, size);
        if (n <= 0) {
            _exit(97);
        }
        p += n;
        size -= (size_t)n;
    }
    setrlimit(RLIMIT_FSIZE, &limit);
}

static void note(int kind, int fd, int other, int64_t result, int64_t pos, const void *first, size_t first_size,
                 const char *second)
{
    size_t second_size = second != NULL ? strlen(second) : 0;
    struct event event = {kind, fd, other, (int32_t)result, pos, (uint32_t)first_size, (uint32_t)second_size};
    put(&event, sizeof event);
    put(first, first_size);
    put(second, second_size);
}

/* Whether the call that is about to be made has to fail (errno is set), or the process to die. */
static int fails(void)
{
    int64_t n = calls++;
    if (planned < 0 || n < planned || (n > planned && !goes_on)) {
        return 0;
    }
    if (planned_errno == 0) {
        syscall(SYS_kill, getpid(), SIGKILL);
    }
    errno = planned_errno;
    return 1;
}

__attribute__((visibility("default"))) void recorder_begin(const char *directory, int trace_fd, int promise_fd,
                                                            int64_t nth, int error, int on, int cut, int64_t nth_sync)
{
    root_length = strlen(directory);
    memcpy(root, directory, root_length + 1);
    memset(inside, 0, sizeof inside);
    calls = 0;
    syncs = 0;
    planned = nth;
    planned_errno = error;
    goes_on = on;
    is_short = cut;
    planned_sync = nth_sync;
    promises = promise_fd;
    trace = trace_fd;
}

__attribute__((visibility("default"))) int64_t recorder_calls(void)
{
    return calls;
}

__attribute__((visibility("default"))) int64_t recorder_syncs(void)
{
    return syncs;
}

/* ------------------------------------------------------------------ names */

static int opened(int (*call)(int, const char *, int, ...), int dirfd, const char *path, int flags, mode_t mode)
{
    if (!is_below(dirfd, path)) {
        return call(dirfd, path, flags, mode);
    }
    pthread_mutex_lock(&lock);
    int fd = fails() ? -1 : call(dirfd, path, flags, mode);
    if (fd >= FDS) {
        note(OTHER, fd, 0, 0, 0, "descriptor", 10, NULL);
    } else if (fd >= 0) {
        inside[fd] = 1;
        note(OPEN, path[0] == '/' ? -1 : dirfd, flags, fd, 0, path, strlen(path), NULL);
    }
    int code = errno;
    pthread_mutex_unlock(&lock);
    errno = code;
    return fd;
}

typedef int (*openat_call)(int, const char *, int, ...);

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = (mode_t)va_arg(list, int); \
        va_end(list); \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags)
    return opened(REAL(openat_call, openat), AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags)
    return opened(REAL(openat_call, openat), AT_FDCWD, path, flags, mode);
}

int openat(int dirfd, const char *path, int flags, ...)
{
    MODE(flags)
    return opened(REAL(openat_call, openat), dirfd, path, flags, mode);
}

int openat64(int dirfd, const char *path, int flags, ...)
{
    MODE(flags)
    return opened(REAL(openat_call, openat), dirfd, path, flags, mode);
}

/* A call on names: real it, unless it has to fail, and note it if it was done. */
#define NAMED(is_ours, real_call, noted) \
    if (!(is_ours)) { \
        return real_call; \
    } \
    pthread_mutex_lock(&lock); \
    int result = fails() ? -1 : real_call; \
    int code = errno; \
    if (result == 0) { \
        noted; \
    } \
    pthread_mutex_unlock(&lock); \
    errno = code; \
    return result;

#define AT(dirfd, path) ((path)[0] == '/' ? -1 : (dirfd))

int mkdirat(int dirfd, const char *path, mode_t mode)
{
    NAMED(is_below(dirfd, path), REAL(int (*)(int, const char *, mode_t), mkdirat)(dirfd, path, mode),
          note(MKDIR, AT(dirfd, path), 0, 0, 0, path, strlen(path), NULL))
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int unlinkat(int dirfd, const char *path, int flags)
{
    NAMED(is_below(dirfd, path), REAL(int (*)(int, const char *, int), unlinkat)(dirfd, path, flags),
          note(UNLINK, AT(dirfd, path), flags, 0, 0, path, strlen(path), NULL))
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int renameat(int from, const char *old, int to, const char *new)
{
    NAMED(is_below(from, old) || is_below(to, new),
          REAL(int (*)(int, const char *, int, const char *), renameat)(from, old, to, new),
          note(RENAME, AT(from, old), AT(to, new), 0, 0, old, strlen(old), new))
}

int rename(const char *old, const char *new)
{
    return renameat(AT_FDCWD, old, AT_FDCWD, new);
}

/* ------------------------------------------------------------------ files */

static ssize_t written(int fd, const void *data, size_t size, int64_t pos)
{
    if (fd == promises && trace >= 0 && pos < 0) {
        pthread_mutex_lock(&lock);
        note(PROMISE, fd, 0, 0, 0, data, size, NULL);
        pthread_mutex_unlock(&lock);
        return (ssize_t)size;
    }
    if (!is_inside(fd)) {
        return pos < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, pos);
    }
    pthread_mutex_lock(&lock);
    ssize_t result = -1;
    if (fails()) {
        if (is_short && size > 1) {
            /* Half of it is written, and then the rest fails, if there is a rest to be tried. */
            size /= 2;
            result = syscall(SYS_pwrite64, fd, data, size, pos);
            planned = calls;
            is_short = 0;
        }
    } else {
        result = pos < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, pos);
    }
    int code = errno;
    if (pos < 0) {
        note(OTHER, fd, 0, 0, 0, "write without a position", 24, NULL);
    } else if (result > 0) {
        note(WRITE, fd, 0, result, pos, data, (size_t)result, NULL);
    }
    pthread_mutex_unlock(&lock);
    errno = code;
    return result;
}

ssize_t write(int fd, const void *data, size_t size)
{
    return written(fd, data, size, -1);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t pos)
{
    return written(fd, data, size, pos);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t pos)
{
    return written(fd, data, size, pos);
}

int ftruncate64(int fd, off64_t size)
{
    NAMED(is_inside(fd), (int)syscall(SYS_ftruncate, fd, size), note(TRUNCATE, fd, 0, 0, size, "", 0, NULL))
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

/* With FALLOC_FL_KEEP_SIZE it changes nothing that can be read. */
int fallocate64(int fd, int mode, off64_t pos, off64_t size)
{
    int is_seen = (mode & FALLOC_FL_KEEP_SIZE) == 0;
    NAMED(is_inside(fd), (int)syscall(SYS_fallocate, fd, mode, pos, size),
          if (is_seen) note(OTHER, fd, 0, 0, 0, "fallocate", 9, NULL))
}

int fallocate(int fd, int mode, off_t pos, off_t size)
{
    return fallocate64(fd, mode, pos, size);
}

static int synced(int fd, long number)
{
    if (!is_inside(fd)) {
        return (int)syscall(number, fd);
    }
    pthread_mutex_lock(&lock);
    note(SYNC_BEGIN, fd, (int)syscall(SYS_gettid), 0, 0, "", 0, NULL);
    int failed = fails();
    int code = errno;
    if (syncs++ == planned_sync) {
        failed = 1;
        code = EIO;
    }
    pthread_mutex_unlock(&lock);
    /* Nothing is synced: the trace says what would have been kept.  Other threads write meanwhile. */
    usleep(50);
    pthread_mutex_lock(&lock);
    note(SYNC_END, fd, (int)syscall(SYS_gettid), failed ? -1 : 0, 0, "", 0, NULL);
    pthread_mutex_unlock(&lock);
    errno = code;
    return failed ? -1 : 0;
}

int fsync(int fd)
{
    return synced(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return synced(fd, SYS_fdatasync);
}

int close(int fd)
{
    if (!is_inside(fd)) {
        return (int)syscall(SYS_close, fd);
    }
    pthread_mutex_lock(&lock);
    int failed = fails();
    int code = errno;
    inside[fd] = 0;
    note(CLOSE, fd, 0, 0, 0, "", 0, NULL);
    int result = (int)syscall(SYS_close, fd); /* as Linux does: the descriptor is gone even if it says EIO */
    if (failed) {
        errno = code;
        result = -1;
    }
    code = errno;
    pthread_mutex_unlock(&lock);
    errno = code;
    return result;
}

/* Reads change nothing, and may fail. */
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t pos)
{
    ssize_t (*call)(int, const struct iovec *, int, off64_t) = real("preadv64");
    if (!is_inside(fd)) {
        return call(fd, parts, count, pos);
    }
    pthread_mutex_lock(&lock);
    ssize_t result = fails() ? -1 : call(fd, parts, count, pos);
    int code = errno;
    pthread_mutex_unlock(&lock);
    errno = code;
    return result;
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t pos)
{
    return preadv64(fd, parts, count, pos);
}

/* ------------------------------------------------------------------ what the model does not know */

static int unknown(int fd, const char *name)
{
    if (is_inside(fd)) {
        pthread_mutex_lock(&lock);
        note(OTHER, fd, 0, 0, 0, name, strlen(name), NULL);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t pos)
{
    if ((protection & PROT_WRITE) && (flags & MAP_SHARED)) {
        unknown(fd, "mmap");
    }
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, pos);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t pos)
{
    return mmap64(address, size, protection, flags, fd, pos);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    unknown(fd, "writev");
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t pos)
{
    unknown(fd, "pwritev");
    return REAL(ssize_t (*)(int, const struct iovec *, int, off64_t), pwritev64)(fd, parts, count, pos);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t pos)
{
    return pwritev64(fd, parts, count, pos);
}

int sync_file_range(int fd, off64_t pos, off64_t size, unsigned int flags)
{
    // It begins a write-back, and makes nothing durable: any write may be on the disk before its sync.
    return (int)syscall(SYS_sync_file_range, fd, pos, size, flags);
}

ssize_t copy_file_range(int from, off64_t *from_pos, int to, off64_t *to_pos, size_t size, unsigned int flags)
{
    unknown(to, "copy_file_range");
    return syscall(SYS_copy_file_range, from, from_pos, to, to_pos, size, flags);
}
