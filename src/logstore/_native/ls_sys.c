/*
 * ls_sys.c - what Python's os module cannot ask of the system: disk space reserved behind the end of a file.
 */
#define _GNU_SOURCE 1
#include "ls_internal.h"

#include <errno.h>

#if defined(__linux__)
#include <fcntl.h>

int32_t ls_sys_reserve(int32_t fd, int64_t file_pos, int64_t bytes)
{
    int result;
    do {
        result = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)file_pos, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : -errno;
}

#else

int32_t ls_sys_reserve(int32_t fd, int64_t file_pos, int64_t bytes)
{
    (void)fd;
    (void)file_pos;
    (void)bytes;
    return -EOPNOTSUPP;
}

#endif
