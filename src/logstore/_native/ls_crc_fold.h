/*
 * ls_crc_fold.h - between ls_crc.c, which chooses, and the files with the paths of one kind of machine.
 */
#ifndef LS_CRC_FOLD_H
#define LS_CRC_FOLD_H

#include "ls_internal.h"

enum { LS_CRC_FOLD_ROWS = 32, LS_CRC_LANE_BYTES = 16 };

/* Constants for folding; ls_crc_tables.h explains them. */
typedef struct ls_crc_fold {
    _Alignas(64) uint64_t forward[LS_CRC_FOLD_ROWS][2];
    uint64_t last[2];
    uint64_t poly[2];
} ls_crc_fold;

/* Entry [k][b] is the register of CRC-32C that was b << 8k, after the zero bytes of one part. */
typedef uint32_t ls_crc_zeros[4][256];

/* Bytes of each of the three parts that run at once, if there are that many (ls_crc_x86.c). */
enum { LS_CRC_PART_SHORT = 64, LS_CRC_PART_LONG = 512 };

extern const ls_crc_zeros ls_crc_zeros_short;
extern const ls_crc_zeros ls_crc_zeros_long;

extern const ls_crc_fold ls_crc_fold32;
extern const ls_crc_fold ls_crc_fold32c;

/* One kind of machine's functions, or NULL if it lacks the instructions. */
ls_crc_function ls_crc_x86_best32(void);
ls_crc_function ls_crc_x86_best32c(void);
ls_crc_function ls_crc_x86_narrow32(void);
ls_crc_function ls_crc_x86_narrow32c(void);
ls_crc_function ls_crc_x86_double32(void);
ls_crc_function ls_crc_x86_double32c(void);
ls_crc_function ls_crc_x86_sse42_32c(void);
ls_crc_pieces_function ls_crc_x86_pieces32(void);
ls_crc_function ls_crc_arm_select32(void);
ls_crc_function ls_crc_arm_select32c(void);

uint32_t ls_crc_portable32(uint32_t crc, const uint8_t *data, int64_t size);
uint32_t ls_crc_portable32c(uint32_t crc, const uint8_t *data, int64_t size);

/* Below 4 bytes nothing is gained by folding. */
uint32_t ls_crc_few_bytes32(uint32_t crc, const uint8_t *data, int64_t size);
uint32_t ls_crc_few_bytes32c(uint32_t crc, const uint8_t *data, int64_t size);

#endif
