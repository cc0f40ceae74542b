/*
 * ls_crc_portable.c - CRC-32 and CRC-32C by tables, 16 bytes at a time, on any machine; and byte by byte, for
 * the ends that a hardware path leaves.
 *
 * Trusts its caller for the bounds.  Any number of calls may run at once: all tables are constants.
 */
#include "ls_crc_fold.h"

#include "ls_crc_tables.h"

static inline uint32_t ls_crc_step(const ls_crc_slices table, uint32_t state, uint8_t byte)
{
    return (state >> 8) ^ table[0][(state ^ byte) & 0xff];
}

static inline uint32_t ls_crc_slicing(const ls_crc_slices table, uint32_t crc, const uint8_t *data,
                                      int64_t size)
{
    uint32_t state = ~crc;
    while (size >= 16) {
        uint32_t a = ls_bytes_load_le32(data) ^ state;
        uint32_t b = ls_bytes_load_le32(data + 4);
        uint32_t c = ls_bytes_load_le32(data + 8);
        uint32_t d = ls_bytes_load_le32(data + 12);
        state = table[15][a & 0xff] ^ table[14][(a >> 8) & 0xff] ^ table[13][(a >> 16) & 0xff]
              ^ table[12][a >> 24] ^ table[11][b & 0xff] ^ table[10][(b >> 8) & 0xff]
              ^ table[9][(b >> 16) & 0xff] ^ table[8][b >> 24] ^ table[7][c & 0xff]
              ^ table[6][(c >> 8) & 0xff] ^ table[5][(c >> 16) & 0xff] ^ table[4][c >> 24]
              ^ table[3][d & 0xff] ^ table[2][(d >> 8) & 0xff] ^ table[1][(d >> 16) & 0xff]
              ^ table[0][d >> 24];
        data += 16;
        size -= 16;
    }
    while (size > 0) {
        state = ls_crc_step(table, state, *data);
        data += 1;
        size -= 1;
    }
    return ~state;
}

uint32_t ls_crc_portable32(uint32_t crc, const uint8_t *data, int64_t size)
{
    return ls_crc_slicing(ls_crc_slices32, crc, data, size);
}

uint32_t ls_crc_portable32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    return ls_crc_slicing(ls_crc_slices32c, crc, data, size);
}

uint32_t ls_crc_few_bytes32(uint32_t crc, const uint8_t *data, int64_t size)
{
    uint32_t state = ~crc;
    for (int64_t i = 0; i < size; i++) {
        state = ls_crc_step(ls_crc_slices32, state, data[i]);
    }
    return ~state;
}

uint32_t ls_crc_few_bytes32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    uint32_t state = ~crc;
    for (int64_t i = 0; i < size; i++) {
        state = ls_crc_step(ls_crc_slices32c, state, data[i]);
    }
    return ~state;
}
