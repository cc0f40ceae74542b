/*
 * ls_internal.h - what the C files share and Python does not see.  Include it first.
 */
#ifndef LS_INTERNAL_H
#define LS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The flags of the extension hold for the file that cffi generates too, which does not pass these.  A test
   compiles our files alone with all warnings as errors. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic error "-Wconversion"
#pragma GCC diagnostic error "-Wshadow"
#pragma GCC diagnostic error "-Wstrict-prototypes"
#pragma GCC diagnostic error "-Wmissing-prototypes"
#pragma GCC diagnostic error "-Wunused-parameter"
#endif

#include "ls_api.h"
#include "ls_compact_api.h"
#include "ls_group_api.h"
#include "ls_bytes.h"
#include "ls_format.h"

#define LS_LIKELY(x) __builtin_expect(!!(x), 1)
#define LS_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Fill in an error and return its status. */
static inline int32_t ls_error_set(ls_error *error, int32_t status, int64_t pos, int64_t offset,
                                   int64_t expected, int64_t found)
{
    error->pos = pos;
    error->offset = offset;
    error->expected = expected;
    error->found = found;
    error->status = status;
    error->pad = 0;
    return status;
}

/* a + b as two's complement: damaged timestamps may overflow, and then any result will do. */
static inline int64_t ls_wrapping_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

/* a - b, held at the ends of the type. */
static inline int64_t ls_saturating_sub(int64_t a, int64_t b)
{
    int64_t result;
    if (__builtin_sub_overflow(a, b, &result)) {
        return a < b ? INT64_MIN : INT64_MAX;
    }
    return result;
}

/* ------------------------------------------------------------------ checksums (ls_crc*.c) */

typedef uint32_t (*ls_crc_function)(uint32_t crc, const uint8_t *data, int64_t size);

/* The fastest function of this machine: a loop over many short inputs asks once. */
ls_crc_function ls_crc_select32(void);
ls_crc_function ls_crc_select32c(void);

/* The CRC-32 of `count` pieces of a buffer, each of 4 bytes or more: size[i] bytes at pos[i].  Reads nothing in front of
   the buffer, and nothing after a piece. */
typedef void (*ls_crc_pieces_function)(const uint8_t *buf, const int32_t *pos, const int32_t *size,
                                       int32_t count, uint32_t *out);

ls_crc_pieces_function ls_crc_select_pieces32(void);

/* ------------------------------------------------------------------ framing (ls_scan.c) */

/* The next entry of any magic: its whole size, and which magic. */
typedef struct ls_frame {
    int64_t size;
    int32_t magic;
} ls_frame;

/* Look at the entry at `pos`: LS_OK with `frame` filled when it is whole, an enum ls_stop when the walk
   ends here, or a negative status.  Reads no further than `size`. */
int32_t ls_frame_look(const uint8_t *buf, int64_t size, int64_t pos, ls_frame *frame, ls_error *error);

/* The same, with the ordinary case inline: for loops over many short entries. */
static inline int32_t ls_frame_next(const uint8_t *buf, int64_t size, int64_t pos, ls_frame *frame,
                                    ls_error *error)
{
    static const int32_t length_min[LS_MAGIC_MAX + 1] = {
        LS_MESSAGE_MIN_LENGTH_V0, LS_MESSAGE_MIN_LENGTH_V1, LS_BATCH_MIN_LENGTH};
    if (LS_LIKELY(size - pos >= LS_FRAME_MIN_BYTES)) {
        int32_t length = ls_bytes_load_i32(buf + pos + LS_FRAME_LENGTH_POS);
        int32_t magic = buf[pos + LS_FRAME_MAGIC_POS];
        if (LS_LIKELY(magic <= LS_MAGIC_MAX && length >= length_min[magic]
                      && length <= size - pos - LS_FRAME_PREFIX_BYTES)) {
            frame->size = LS_FRAME_PREFIX_BYTES + (int64_t)length;
            frame->magic = magic;
            return LS_OK;
        }
    }
    return ls_frame_look(buf, size, pos, frame, error);
}

/* ------------------------------------------------------------------ messages (ls_message.c) */

/* Fill `batch` from the whole message (or wrapper) at `pos`, checking it as `checks` says. */
int32_t ls_message_parse(const uint8_t *buf, int64_t pos, const ls_frame *frame, uint32_t checks,
                         ls_batch *batch, ls_error *error);

/* Messages that have been found by their lengths, before their checksums are compared: this number at once, because a
   checksum takes half as long if the next one is begun before it is known. */
enum { LS_MESSAGE_BLOCK = 64 };

typedef struct ls_message_block {
    int64_t offset[LS_MESSAGE_BLOCK];
    int32_t crc_pos[LS_MESSAGE_BLOCK]; /* what the checksum covers: from the magic to the end of the message */
    int32_t crc_size[LS_MESSAGE_BLOCK];
    uint32_t crc[LS_MESSAGE_BLOCK];
} ls_message_block;

/* Put out some uncompressed messages, while all is well; stops in front of whatever is not an ordinary whole
   message (damage too): the caller finds out why.  The order of offsets is always looked at.  Returns how many: there
   may be more, until it returns 0.  `check` may be NULL. */
int32_t ls_message_decode_block(const uint8_t *buf, int64_t size, uint32_t checks, int64_t start_offset,
                            int64_t stop_offset, ls_columns *columns, ls_index_check *check, ls_walk *walk);

int32_t ls_message_decode_wrapper(const ls_batch *batch, const uint8_t *payload, int64_t size,
                                  uint32_t checks, int64_t start_offset, int64_t stop_offset,
                                  ls_columns *columns, int64_t *base_offset, ls_error *error);

/* ------------------------------------------------------------------ record batches (ls_batch.c) */

int32_t ls_batch_parse(const uint8_t *buf, int64_t pos, const ls_frame *frame, uint32_t checks,
                       ls_batch *batch, ls_error *error);

/* Put out the records of buf[pos, pos + size), the plain record area of `batch`. */
int32_t ls_batch_decode_area(const ls_batch *batch, const uint8_t *buf, int64_t pos, int64_t size,
                             int64_t start_offset, int64_t stop_offset, ls_columns *columns,
                             ls_error *error);

/* ------------------------------------------------------------------ indexes (ls_index.c) */

/* ls_check_indexes of the first `count` messages of a block. */
void ls_index_check_messages(const uint8_t *buf, const ls_message_block *block, int32_t count,
                             ls_index_check *check);

/* ------------------------------------------------------------------ compaction (ls_offset_map.c) */

/* What a map says of a record. */
enum ls_record_state {
    LS_RECORD_LAST = 1,        /* no later one of its key is known */
    LS_RECORD_SUPERSEDED = 2,
    LS_RECORD_NO_KEY = 3,
    LS_RECORD_BEYOND = 4,      /* the map does not reach it */
    LS_RECORD_OTHER_CLASS = 5  /* its key is of a class that is not looked at */
};

/* Fill `states` (enum ls_record_state) for decoded records, whose keys are in `buf`. */
void ls_map_superseded(const ls_offset_map *map, const ls_columns *columns, const uint8_t *buf, uint8_t *states);

/* Whether a batch of magic 2 is part of an aborted transaction. */
int ls_is_aborted(const ls_outcomes *outcomes, const ls_batch *batch);

/* Whether ordered offsets have this one. */
int ls_has_offset(const int64_t *offsets, int64_t count, int64_t offset);

/* ------------------------------------------------------------------ slices (ls_columns.c) */

/* Element i of slices: its bytes in *data (moving *at along if they follow one another), its length or
   -1 as the result. */
static inline int32_t ls_slices_next(const ls_slices *slices, int64_t i, int64_t *at,
                                     const uint8_t **data)
{
    if (slices->len == NULL || slices->len[i] < 0) {
        *data = NULL;
        return -1;
    }
    int32_t len = slices->len[i];
    if (slices->pos != NULL) {
        *data = slices->data + slices->pos[i];
    } else {
        *data = slices->data + *at;
        *at += len;
    }
    return len;
}

#endif
