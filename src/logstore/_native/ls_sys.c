/*
 * ls_sys.c - what Python's os module cannot ask of the system: disk space reserved behind the end of a file,
 * writing back that begins before a sync, and which kind of file system a file is on.
 */
#define _GNU_SOURCE 1
#include "ls_internal.h"

#include <errno.h>

#if defined(__linux__)
#include <fcntl.h>
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
    /* The numbers have 32 bits; where the field has no more, the high ones come out negative. */
    return result == 0 ? (int64_t)(uint32_t)about.f_type : -(int64_t)errno;
}

#else

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
