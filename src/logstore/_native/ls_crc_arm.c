/*
 * ls_crc_arm.c - both checksums with the CRC instructions of ARMv8, 8 bytes at a time.
 *
 * Trusts its caller for the bounds and for having asked whether the machine has the instructions.
 */
#include "ls_crc_fold.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_acle.h>
#include <sys/auxv.h>

#if defined(__clang__)
#define LS_CRC_ARM_TARGET __attribute__((target("crc")))
#else
#define LS_CRC_ARM_TARGET __attribute__((target("arch=armv8-a+crc")))
#endif
#define LS_CRC_ARM_HWCAP (1u << 7) /* HWCAP_CRC32 of <asm/hwcap.h> */

LS_CRC_ARM_TARGET static uint32_t ls_crc_arm32(uint32_t crc, const uint8_t *data, int64_t size)
{
    uint32_t state = ~crc;
    while (size >= 8) {
        state = __crc32d(state, ls_bytes_load_le64(data));
        data += 8;
        size -= 8;
    }
    if (size >= 4) {
        state = __crc32w(state, ls_bytes_load_le32(data));
        data += 4;
        size -= 4;
    }
    while (size > 0) {
        state = __crc32b(state, *data);
        data += 1;
        size -= 1;
    }
    return ~state;
}

LS_CRC_ARM_TARGET static uint32_t ls_crc_arm32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    uint32_t state = ~crc;
    while (size >= 8) {
        state = __crc32cd(state, ls_bytes_load_le64(data));
        data += 8;
        size -= 8;
    }
    if (size >= 4) {
        state = __crc32cw(state, ls_bytes_load_le32(data));
        data += 4;
        size -= 4;
    }
    while (size > 0) {
        state = __crc32cb(state, *data);
        data += 1;
        size -= 1;
    }
    return ~state;
}

ls_crc_function ls_crc_arm_select32(void)
{
    return (getauxval(AT_HWCAP) & LS_CRC_ARM_HWCAP) != 0 ? ls_crc_arm32 : NULL;
}

ls_crc_function ls_crc_arm_select32c(void)
{
    return (getauxval(AT_HWCAP) & LS_CRC_ARM_HWCAP) != 0 ? ls_crc_arm32c : NULL;
}

#endif
