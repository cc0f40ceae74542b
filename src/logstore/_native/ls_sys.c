/*
 * ls_sys.c - system calls that Python's os module does not offer: disk space reserved after the end of a
 * file, writing back that begins before a sync, reports of changes by other processes, several files examined or several
 * calls made at once, which kind of file system a file is on.  Also calls that os offers, but with another use of the
 * interpreter lock: reads and writes that keep it, and calls of writers, which readers let have it back at once
 * (ls_gil.h).
 */
#define _GNU_SOURCE 1
#include "ls_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int64_t ls_sys_result(ssize_t n)
{
    return n < 0 ? -(int64_t)errno : (int64_t)n;
}

int64_t ls_sys_read(int32_t fd, uint8_t *out, int64_t size, int64_t file_pos)
{
    return ls_sys_result(pread(fd, out, (size_t)size, (off_t)file_pos));
}

int64_t ls_sys_write(int32_t fd, const uint8_t *data, int64_t size, int64_t file_pos)
{
    return ls_sys_result(pwrite(fd, data, (size_t)size, (off_t)file_pos));
}

int64_t ls_sys_read_cached(int32_t fd, uint8_t *out, int64_t size, int64_t file_pos)
{
#if defined(RWF_NOWAIT)
    struct iovec part = {out, (size_t)size};
    return ls_sys_result(preadv2(fd, &part, 1, (off_t)file_pos, RWF_NOWAIT));
#else
    (void)fd;
    (void)out;
    (void)size;
    (void)file_pos;
    return -EOPNOTSUPP;
#endif
}

int32_t ls_sys_open(int32_t dir_fd, const char *name, int32_t flags, int32_t mode)
{
    int fd = openat(dir_fd, name, flags, (mode_t)mode);
    return fd < 0 ? -errno : fd;
}

int32_t ls_sys_open_file(int32_t dir_fd, const char *name, int32_t flags, int32_t mode)
{
    int fd = openat(dir_fd, name, flags, (mode_t)mode);
    if (fd < 0) {
        return -errno;
    }
    struct stat found;
    int32_t status = fstat(fd, &found) < 0 ? -errno : S_ISREG(found.st_mode) ? 0 : -EINVAL;
    if (status == 0 && (flags & O_CREAT) != 0 && (found.st_mode & 0777) != (mode_t)mode) {
        status = fchmod(fd, (mode_t)mode) < 0 ? -errno : 0;
    }
    if (status < 0) {
        (void)close(fd);
        return status;
    }
    return fd;
}

int64_t ls_sys_read_name(int32_t dir_fd, const char *name, uint8_t *out, int64_t capacity, int64_t *size)
{
    int fd = ls_sys_open_file(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) {
        return fd;
    }
    struct stat found;
    int64_t done = fstat(fd, &found) < 0 ? -(int64_t)errno : 0;
    *size = done < 0 ? 0 : (int64_t)found.st_size;
    while (done >= 0 && *size <= capacity && done < *size) {
        int64_t n = ls_sys_read(fd, out + done, *size - done, done);
        if (n == -EINTR) {
            continue;
        }
        if (n <= 0) {
            done = n < 0 ? n : done;
            break;
        }
        done += n;
    }
    (void)close(fd);
    return done;
}

int32_t ls_sys_close(int32_t fd)
{
    return close(fd) < 0 ? -errno : 0;
}

int32_t ls_sys_truncate(int32_t fd, int64_t size)
{
    return ftruncate(fd, (off_t)size) < 0 ? -errno : 0;
}

int32_t ls_sys_rename(int32_t from_fd, const char *from, int32_t to_fd, const char *to)
{
    return renameat(from_fd, from, to_fd, to) < 0 ? -errno : 0;
}

int32_t ls_sys_unlink(int32_t dir_fd, const char *name)
{
    return unlinkat(dir_fd, name, 0) < 0 ? -errno : 0;
}

static _Atomic int32_t ls_sys_returning;

int32_t ls_sys_returning_writers(int32_t change)
{
    return atomic_fetch_add(&ls_sys_returning, change) + change;
}

int32_t ls_sys_hold_lock(int32_t fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &whole) < 0 ? -errno : 0;
}

#if defined(__APPLE__)
#define LS_SYS_MTIME st_mtimespec
#define LS_SYS_CTIME st_ctimespec
#else
#define LS_SYS_MTIME st_mtim
#define LS_SYS_CTIME st_ctim
#endif

static int64_t ls_sys_ns(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + (int64_t)time.tv_nsec;
}

int32_t ls_sys_stat(int32_t fd, const char *name, int64_t *out)
{
    struct stat found;
    int result = name == NULL ? fstat(fd, &found) : fstatat(fd, name, &found, AT_SYMLINK_NOFOLLOW);
    if (result < 0) {
        return -errno;
    }
    out[0] = (int64_t)found.st_size;
    out[1] = ls_sys_ns(found.LS_SYS_MTIME);
    out[2] = ls_sys_ns(found.LS_SYS_CTIME);
    out[3] = (int64_t)found.st_dev;
    out[4] = (int64_t)found.st_ino;
    out[5] = (int64_t)found.st_uid;
    out[6] = (int64_t)found.st_gid;
    out[7] = (int64_t)found.st_mode;
    return 0;
}

/* The numbers of an examined file. */
static void ls_sys_numbers(const struct stat *found, int64_t *out)
{
    out[0] = (int64_t)found->st_ino;
    out[1] = ls_sys_ns(found->LS_SYS_MTIME);
    out[2] = ls_sys_ns(found->LS_SYS_CTIME);
    out[3] = (int64_t)found->st_size;
}

/* Examine one file: 4 numbers in `out`. */
static int32_t ls_sys_stamp(int32_t dir_fd, const char *name, int64_t *out)
{
    struct stat found;
    if (fstatat(dir_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0) {
        ls_sys_numbers(&found, out);
        return 0;
    }
    out[0] = 0;
    out[1] = out[2] = out[3] = -1;
    return errno == ENOENT ? 0 : -errno;
}

/* Examine the names of an opened directory `fd`, which is in `dir_fd`. */
static int32_t ls_sys_look_at(int32_t dir_fd, int32_t fd, const char *names, const char *end, int32_t count, int64_t *out)
{
    struct stat place;
    if (fstat(fd, &place) < 0) {
        return -errno;
    }
    out[0] = (int64_t)place.st_dev;
    out[1] = (int64_t)place.st_ino;
    out += 2;
    for (int32_t i = 0; i < count; i++, out += 4) {
        const char *zero = names < end ? memchr(names, 0, (size_t)(end - names)) : NULL;
        if (zero == NULL) {
            return -EINVAL;
        }
        int32_t status = 0;
        if (strcmp(names, ".") == 0) {
            ls_sys_numbers(&place, out);
        } else if (strncmp(names, "../", 3) == 0) {
            status = ls_sys_stamp(dir_fd, names + 3, out);
        } else {
            status = ls_sys_stamp(fd, names, out);
        }
        if (status < 0) {
            return status;
        }
        names = zero + 1;
    }
    return 0;
}

/* Most bytes of a path that a look builds to do without opening the directory. */
#define LS_SYS_PATH_BYTES 512

/* Whether a look finds what another one has found `before`, without opening the directory: for two calls less.  1;
   0: not, or it is unknown.  Two directories cannot be confused: an inode number is in one of them only. */
static int32_t ls_sys_finds_again(int32_t dir_fd, const char *name, const char *names, const char *end, int32_t count,
                                  const uint8_t *before)
{
    struct stat place;
    char path[LS_SYS_PATH_BYTES];
    const size_t name_bytes = strnlen(name, sizeof path);
    if (name_bytes + 1 >= sizeof path || fstatat(dir_fd, name, &place, AT_SYMLINK_NOFOLLOW) < 0
        || !S_ISDIR(place.st_mode)) {
        return 0;
    }
    const int64_t found[2] = {(int64_t)place.st_dev, (int64_t)place.st_ino};
    if (memcmp(before, found, sizeof found) != 0) {
        return 0;
    }
    before += sizeof found;
    memcpy(path, name, name_bytes);
    path[name_bytes] = '/';
    for (int32_t i = 0; i < count; i++) {
        const char *zero = names < end ? memchr(names, 0, (size_t)(end - names)) : NULL;
        int64_t stamp[4];
        if (zero == NULL || (size_t)(zero - names) >= sizeof path - name_bytes - 1) {
            return 0;
        }
        if (strcmp(names, ".") == 0) {
            ls_sys_numbers(&place, stamp);
        } else if (strncmp(names, "../", 3) == 0) {
            if (ls_sys_stamp(dir_fd, names + 3, stamp) < 0) {
                return 0;
            }
        } else {
            memcpy(path + name_bytes + 1, names, (size_t)(zero - names) + 1);
            if (ls_sys_stamp(dir_fd, path, stamp) < 0) {
                return 0;
            }
        }
        if (memcmp(before, stamp, sizeof stamp) != 0) {
            return 0;
        }
        before += sizeof stamp;
        names = zero + 1;
    }
    return 1;
}

int32_t ls_sys_look(int32_t dir_fd, const char *name, const char *names, int64_t names_bytes, int32_t count,
                    const uint8_t *before, int64_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0) {
        return -errno;
    }
    out[0] = ls_sys_ns(now) / 1000000;
    int fd = dir_fd;
    if (strcmp(name, ".") != 0) {
        if (before != NULL && ls_sys_finds_again(dir_fd, name, names, names + names_bytes, count, before) == 1) {
            memcpy(out + 1, before, 16 + 32 * (size_t)count);
            return 1;
        }
        fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) {
            return -errno;
        }
    }
    int32_t status = ls_sys_look_at(dir_fd, fd, names, names + names_bytes, count, out + 1);
    if (fd != dir_fd) {
        (void)close(fd);
    }
    if (status < 0) {
        return status;
    }
    return before != NULL && memcmp(before, out + 1, 16 + 32 * (size_t)count) == 0;
}

/* Lock one byte for an open file, or give its lock back. */
static int32_t ls_sys_lock_byte(int32_t fd, int64_t pos, short type)
{
#if defined(F_OFD_SETLK)
    struct flock one = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)pos, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &one) < 0 ? -errno : 0;
#else
    (void)fd;
    (void)pos;
    (void)type;
    return -EOPNOTSUPP;
#endif
}

/* Sync one file, or several at the same time: 0, or the first error. */
static int32_t ls_sys_step_sync(const ls_step *step)
{
    if (step->size == 0) {
        return ls_sys_sync(step->fd);
    }
    int32_t count = (int32_t)(step->size / (int64_t)sizeof(int32_t));
    int32_t status = ls_sys_sync_files((const int32_t *)(const void *)step->data, step->results, count, NULL);
    for (int32_t i = 0; i < count && status == 0; i++) {
        status = step->results[i];
    }
    return status;
}

/* Make one step: 1, 0 if its result is not the required one, or -errno. */
static int32_t ls_sys_step(const ls_step *step)
{
    int32_t status = -EINVAL;
    switch (step->kind) {
    case LS_STEP_LOCK:
        status = ls_sys_lock_byte(step->fd, step->pos, F_WRLCK);
        return status == -EAGAIN || status == -EACCES ? 0 : status < 0 ? status : 1;
    case LS_STEP_UNLOCK:
        status = ls_sys_lock_byte(step->fd, step->pos, F_UNLCK);
        break;
    case LS_STEP_FILE: {
        struct stat found;
        if (fstatat(step->fd, (const char *)step->data, &found, AT_SYMLINK_NOFOLLOW) < 0) {
            return errno == ENOENT ? 0 : -errno;
        }
        return (int64_t)found.st_dev == step->device && (int64_t)found.st_ino == step->inode
            && (step->size < 0 || (int64_t)found.st_size == step->size);
    }
    case LS_STEP_STAMP: {
        int64_t stamp[4];
        if (step->size <= (int64_t)sizeof stamp || step->data[step->size - 1] != 0) {
            break;
        }
        status = ls_sys_stamp(step->fd, (const char *)step->data + sizeof stamp, stamp);
        return status < 0 ? status : memcmp(stamp, step->data, sizeof stamp) == 0;
    }
    case LS_STEP_BYTES: {
        uint8_t there[LS_STEP_BYTES_MAX];
        if (step->size < 0 || step->size > LS_STEP_BYTES_MAX) {
            break;
        }
        int64_t n = ls_sys_read(step->fd, there, step->size, step->pos);
        return n < 0 ? (int32_t)n : n == step->size && memcmp(there, step->data, (size_t)n) == 0;
    }
    case LS_STEP_WRITE: {
        int64_t done = 0;
        while (done < step->size) {
            int64_t n = ls_sys_write(step->fd, step->data + done, step->size - done, step->pos + done);
            if (n < 0) {
                return (int32_t)n;
            }
            done += n;
        }
        status = 0;
        break;
    }
    case LS_STEP_SYNC:
        status = ls_sys_step_sync(step);
        break;
    default:
        break;
    }
    return status < 0 ? status : 1;
}

int32_t ls_sys_steps(const ls_step *steps, int32_t count, int32_t *error)
{
    *error = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t status;
        do {
            status = ls_sys_step(&steps[i]);
        } while (status == -EINTR);
        if (status <= 0) {
            *error = -status;
            return i;
        }
    }
    return count;
}

#if defined(__linux__)
#include <poll.h>
#include <sys/inotify.h>
#include <sys/vfs.h>

int32_t ls_sys_reserve(int32_t fd, int64_t file_pos, int64_t bytes)
{
    int result;
    do {
        result = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)file_pos, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : -errno;
}

int32_t ls_sys_write_back(int32_t fd, int64_t file_pos, int64_t bytes)
{
    int result;
    do {
        result = sync_file_range(fd, (off64_t)file_pos, (off64_t)bytes, SYNC_FILE_RANGE_WRITE);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : -errno;
}

int64_t ls_sys_fs_type(int32_t fd)
{
    struct statfs about;
    int result;
    do {
        result = fstatfs(fd, &about);
    } while (result != 0 && errno == EINTR);
    /* The numbers have 32 bits; if the field has no more, the high ones come out negative. */
    return result == 0 ? (int64_t)(uint32_t)about.f_type : -(int64_t)errno;
}

int32_t ls_sys_new_watch(void)
{
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

#define LS_SYS_NAMES                                                                                                  \
    (IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR)
_Static_assert(LS_WATCH_NAMES == LS_SYS_NAMES, "inotify has other bits");
_Static_assert(LS_WATCH_ENTRIES == (LS_SYS_NAMES | IN_MODIFY), "inotify has other bits");
_Static_assert(LS_WATCH_RENAMES == (IN_MOVED_TO | IN_ONLYDIR), "inotify has other bits");
_Static_assert(LS_WATCH_FILE == (IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF), "inotify has other bits");
_Static_assert(LS_WATCH_CLOSES == IN_CLOSE_WRITE, "inotify has other bits");
_Static_assert(LS_WATCH_WRITES == (IN_MODIFY | IN_CLOSE_WRITE), "inotify has other bits");
_Static_assert(LS_WATCH_ENDED == (IN_UNMOUNT | IN_IGNORED), "inotify has other bits");

int32_t ls_sys_add_watch(int32_t fd, const char *path, int32_t what)
{
    const int32_t known = LS_WATCH_ENTRIES | LS_WATCH_FILE | LS_WATCH_WRITES;
    if (what <= 0 || (what & ~known) != 0) {
        return -EINVAL;
    }
    int number = inotify_add_watch(fd, path, (uint32_t)what | IN_MASK_ADD);
    return number < 0 ? -errno : number;
}

int32_t ls_sys_remove_watch(int32_t fd, int32_t number)
{
    return inotify_rm_watch(fd, number) < 0 ? -errno : 0;
}

int64_t ls_sys_read_reports(int32_t fd, int32_t event, int32_t milliseconds, uint8_t *out, int64_t capacity)
{
    /* poll ignores a descriptor of -1. */
    struct pollfd both[] = {{.fd = fd, .events = POLLIN}, {.fd = event, .events = POLLIN}};
    int ready = poll(both, 2, milliseconds);
    if (ready <= 0) {
        return ready < 0 ? -(int64_t)errno : 0;
    }
    if (both[1].revents != 0) {
        uint64_t times;
        if (read(event, &times, sizeof times) < 0 && errno != EAGAIN) {
            return -(int64_t)errno;
        }
    }
    if (both[0].revents == 0) {
        return 0;
    }
    int64_t done = ls_sys_result(read(fd, out, (size_t)capacity));
    return done == -EAGAIN ? 0 : done; /* another thread was faster */
}

#else

int64_t ls_sys_read_reports(int32_t fd, int32_t event, int32_t milliseconds, uint8_t *out, int64_t capacity)
{
    (void)fd;
    (void)event;
    (void)milliseconds;
    (void)out;
    (void)capacity;
    return -EOPNOTSUPP;
}

int32_t ls_sys_new_watch(void)
{
    return -EOPNOTSUPP;
}

int32_t ls_sys_add_watch(int32_t fd, const char *path, int32_t what)
{
    (void)fd;
    (void)path;
    (void)what;
    return -EOPNOTSUPP;
}

int32_t ls_sys_remove_watch(int32_t fd, int32_t number)
{
    (void)fd;
    (void)number;
    return -EOPNOTSUPP;
}

int32_t ls_sys_reserve(int32_t fd, int64_t file_pos, int64_t bytes)
{
    (void)fd;
    (void)file_pos;
    (void)bytes;
    return -EOPNOTSUPP;
}

int32_t ls_sys_write_back(int32_t fd, int64_t file_pos, int64_t bytes)
{
    (void)fd;
    (void)file_pos;
    (void)bytes;
    return -EOPNOTSUPP;
}

int64_t ls_sys_fs_type(int32_t fd)
{
    (void)fd;
    return -EOPNOTSUPP;
}

#endif
