/*
 * ls_crc.c - CRC-32 (magic 0 and 1) and CRC-32C (magic 2): the choice of a path.
 *
 * Trusts its caller for the bounds.  Any number of calls may run at once.
 * The paths are in ls_crc_portable.c, ls_crc_x86.c and ls_crc_arm.c.
 *
 * The choice, made at run time; the first that the machine has:
 *
 *               x86-64                                                    ARMv8
 *     CRC-32    VPCLMULQDQ (64 bytes; 32 bytes without AVX-512),           crc32, portable
 *               PCLMULQDQ (16 bytes), portable
 *     CRC-32C   VPCLMULQDQ, but crc32 up to 128 bytes; crc32 of SSE4.2,    crc32c, portable
 *               mostly faster than PCLMULQDQ; PCLMULQDQ; portable
 *
 * Measured on one machine each, nanoseconds for CRC-32C:
 *
 *     bytes        16     64    128    256    1024    8192     1 MiB
 *     VPCLMULQDQ   14     14     14     15      21     123    15,300
 *     PCLMULQDQ     8     12     14     19      60     476    60,600
 *     crc32         2      6     12     17      60     284    34,700
 *
 * And on one without AVX-512 (Zen 3):
 *
 *     bytes                32    126    256    1024    4096   120,000
 *     VPCLMULQDQ (32)       6      9     13      49     162     4,720
 *     PCLMULQDQ             6     13     21      86     318     9,350
 *     crc32 (CRC-32C)       4     17     13      74     208     5,690
 *
 * The messages of a log of magic 1 are short, and have a CRC-32 each.  For many pieces of 126 bytes at once there is a
 * function that takes 7.1 ns a piece (Zen 3), against 8.9 (VPCLMULQDQ) and 11.9 (PCLMULQDQ) in separate calls.
 */
#include "ls_crc_fold.h"

/* ------------------------------------------------------------------ the choice */

/* NULL if the machine has no such path.  Asking costs a few loads: the C library has asked the
   processor when the process began. */
static ls_crc_function ls_crc_path32(int32_t path)
{
    ls_crc_function found = NULL;
    if (path == LS_CRC_PORTABLE) {
        found = ls_crc_portable32;
    }
#if defined(__x86_64__)
    if (path == LS_CRC_HARDWARE) {
        found = ls_crc_x86_best32();
    } else if (path == LS_CRC_NARROW) {
        found = ls_crc_x86_narrow32();
    } else if (path == LS_CRC_DOUBLE) {
        found = ls_crc_x86_double32();
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (path == LS_CRC_HARDWARE) {
        found = ls_crc_arm_select32();
    }
#endif
    return found;
}

static ls_crc_function ls_crc_path32c(int32_t path)
{
    ls_crc_function found = NULL;
    if (path == LS_CRC_PORTABLE) {
        found = ls_crc_portable32c;
    }
#if defined(__x86_64__)
    if (path == LS_CRC_HARDWARE) {
        found = ls_crc_x86_best32c();
    } else if (path == LS_CRC_NARROW) {
        found = ls_crc_x86_narrow32c();
    } else if (path == LS_CRC_DOUBLE) {
        found = ls_crc_x86_double32c();
    } else if (path == LS_CRC_SSE42) {
        found = ls_crc_x86_sse42_32c();
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (path == LS_CRC_HARDWARE) {
        found = ls_crc_arm_select32c();
    }
#endif
    return found;
}

ls_crc_function ls_crc_select32(void)
{
    ls_crc_function found = ls_crc_path32(LS_CRC_HARDWARE);
    return found != NULL ? found : ls_crc_portable32;
}

ls_crc_function ls_crc_select32c(void)
{
    ls_crc_function found = ls_crc_path32c(LS_CRC_HARDWARE);
    return found != NULL ? found : ls_crc_portable32c;
}

static void ls_crc_one_by_one32(const uint8_t *buf, const int32_t *pos, const int32_t *size, int32_t count,
                                uint32_t *out)
{
    const ls_crc_function crc = ls_crc_select32();
    for (int32_t i = 0; i < count; i++) {
        out[i] = crc(0, buf + pos[i], size[i]);
    }
}

ls_crc_pieces_function ls_crc_select_pieces32(void)
{
    ls_crc_pieces_function found = NULL;
#if defined(__x86_64__)
    found = ls_crc_x86_pieces32();
#endif
    return found != NULL ? found : ls_crc_one_by_one32;
}

/* ------------------------------------------------------------------ for Python */

uint32_t ls_crc32(uint32_t crc, const uint8_t *data, int64_t size)
{
    return size > 0 ? ls_crc_select32()(crc, data, size) : crc;
}

uint32_t ls_crc32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    return size > 0 ? ls_crc_select32c()(crc, data, size) : crc;
}

uint32_t ls_crc32_path(int32_t path, uint32_t crc, const uint8_t *data, int64_t size, int32_t *ok)
{
    ls_crc_function found = ls_crc_path32(path);
    *ok = found != NULL;
    return found != NULL && size > 0 ? found(crc, data, size) : crc;
}

uint32_t ls_crc32c_path(int32_t path, uint32_t crc, const uint8_t *data, int64_t size, int32_t *ok)
{
    ls_crc_function found = ls_crc_path32c(path);
    *ok = found != NULL;
    return found != NULL && size > 0 ? found(crc, data, size) : crc;
}

void ls_crc32_pieces(const uint8_t *buf, const int32_t *pos, const int32_t *size, int32_t count, uint32_t *out)
{
    ls_crc_select_pieces32()(buf, pos, size, count, out);
}

int32_t ls_crc_hardware(void)
{
    int32_t bits = 0;
    if (ls_crc_path32(LS_CRC_HARDWARE) != NULL) {
        bits |= 1;
    }
    if (ls_crc_path32c(LS_CRC_HARDWARE) != NULL) {
        bits |= 2;
    }
    return bits;
}
