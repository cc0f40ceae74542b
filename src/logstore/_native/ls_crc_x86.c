/*
 * ls_crc_x86.c - both checksums by carry-less multiplication, with 16, 32 or 64 bytes at a time, and CRC-32C by
 * its own instruction.
 *
 * Trusts its caller for the bounds and for having asked whether the machine has the instructions.
 *
 * Carry-less multiplication.  The input is taken as lanes of 16 bytes that end where the input ends; only the first may be
 * partial, and zeros in front of it change nothing, because the register is added to the first 4 real bytes.
 * So there is no tail to handle.  A lane d lanes before the last is multiplied by x^(128d): all lanes of a
 * short input at once, none waiting for another.  The sum is 16 bytes with the same checksum as the input;
 * `reduce` turns them into 4.  Longer inputs first fold four accumulators forward over the rest.
 *
 * The instruction.  SSE4.2's crc32 takes 8 bytes in one cycle but has its result after three.  So three parts of
 * equal length run at once, each with a separate register; the registers of the first two are then moved over
 * the length of the parts after them, by tables.  Short inputs and what is left go one after the other.
 */
#include "ls_crc_fold.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define LS_CRC_INLINE static inline __attribute__((always_inline))
#define LS_CRC_NARROW_TARGET __attribute__((target("pclmul,ssse3,sse4.1")))
#define LS_CRC_SSE42_TARGET __attribute__((target("sse4.2")))
#define LS_CRC_DOUBLE_TARGET __attribute__((target("avx2,vpclmulqdq,pclmul,ssse3,sse4.1")))
#define LS_CRC_WIDE_TARGET \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq,pclmul,sse4.1")))

/* 16 bytes to 4: x^96 brings them to 12, Barrett's method (quotient by x^96 / P, times P) to the rest. */
LS_CRC_INLINE LS_CRC_NARROW_TARGET uint32_t ls_crc_reduce(const ls_crc_fold *fold, __m128i v)
{
    __m128i last = _mm_load_si128((const __m128i *)fold->last);
    __m128i poly = _mm_load_si128((const __m128i *)fold->poly);
    v = _mm_xor_si128(_mm_clmulepi64_si128(v, last, 0x00), _mm_srli_si128(v, 8));
    __m128i quotient = _mm_clmulepi64_si128(v, last, 0x10);
    v = _mm_xor_si128(v, _mm_clmulepi64_si128(quotient, poly, 0x00));
    return ~(uint32_t)_mm_extract_epi32(v, 2);
}

/* ------------------------------------------------------------------ 16 bytes at a time */

LS_CRC_INLINE LS_CRC_NARROW_TARGET __m128i ls_crc_load(const uint8_t *data)
{
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

LS_CRC_INLINE LS_CRC_NARROW_TARGET __m128i ls_crc_forward(__m128i lane, __m128i by)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00), _mm_clmulepi64_si128(lane, by, 0x11));
}

/* Move bytes up by 16 - n: read the shuffle at [n]. */
static const uint8_t ls_crc_shift_up[32] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15};

/* 4 to 15 bytes in the low end of a lane, never reading beyond them. */
LS_CRC_INLINE LS_CRC_NARROW_TARGET __m128i ls_crc_load_few(const uint8_t *data, int64_t size)
{
    uint64_t low;
    uint64_t high = 0;
    if (size >= 8) {
        low = ls_bytes_load_le64(data);
        if (size > 8) {
            high = ls_bytes_load_le64(data + size - 8) >> (8 * (16 - size));
        }
    } else {
        low = ls_bytes_load_le32(data);
        low |= (uint64_t)ls_bytes_load_le32(data + size - 4) << (8 * (size - 4));
    }
    return _mm_set_epi64x((long long)high, (long long)low);
}

LS_CRC_INLINE LS_CRC_NARROW_TARGET uint32_t ls_crc_narrow(const ls_crc_fold *fold, uint32_t crc,
                                                          const uint8_t *data, int64_t size)
{
    uint32_t state = ~crc;
    int64_t lanes = (size + LS_CRC_LANE_BYTES - 1) / LS_CRC_LANE_BYTES;
    int64_t first_bytes = size - (lanes - 1) * LS_CRC_LANE_BYTES; /* 1 .. 16 */
    __m128i lane = size >= LS_CRC_LANE_BYTES ? ls_crc_load(data) : ls_crc_load_few(data, size);
    lane = _mm_xor_si128(lane, _mm_cvtsi32_si128((int32_t)state));
    lane = _mm_shuffle_epi8(lane, ls_crc_load(ls_crc_shift_up + first_bytes));
    if (lanes == 1) {
        return ls_crc_reduce(fold, lane);
    }
    data += first_bytes;
    /* The part of the register for the second lane, if the first has fewer than 4 bytes. */
    int64_t taken = first_bytes < 4 ? first_bytes : 4;
    __m128i next = _mm_cvtsi32_si128((int32_t)(uint32_t)((uint64_t)state >> (8 * taken)));
    next = _mm_xor_si128(next, ls_crc_load(data));
    data += LS_CRC_LANE_BYTES;

    const __m128i *forward = (const __m128i *)fold->forward;
    __m128i sum = _mm_setzero_si128();
    int64_t left = lanes - 2; /* to be loaded */
    if (left >= 6) {
        __m128i a = lane;
        __m128i b = next;
        __m128i c = ls_crc_load(data);
        __m128i d = ls_crc_load(data + 16);
        data += 32;
        left -= 2;
        __m128i by4 = _mm_load_si128(forward + (LS_CRC_FOLD_ROWS - 1 - 4));
        while (left >= 4) {
            a = _mm_xor_si128(ls_crc_forward(a, by4), ls_crc_load(data));
            b = _mm_xor_si128(ls_crc_forward(b, by4), ls_crc_load(data + 16));
            c = _mm_xor_si128(ls_crc_forward(c, by4), ls_crc_load(data + 32));
            d = _mm_xor_si128(ls_crc_forward(d, by4), ls_crc_load(data + 48));
            data += 64;
            left -= 4;
        }
        forward += LS_CRC_FOLD_ROWS - 4 - left;
        sum = ls_crc_forward(a, _mm_load_si128(forward));
        sum = _mm_xor_si128(sum, ls_crc_forward(b, _mm_load_si128(forward + 1)));
        lane = c;
        next = d;
        forward += 2;
    } else {
        forward += LS_CRC_FOLD_ROWS - 2 - left;
    }
    /* `lane` and `next` wait, `left` more follow; the last one is not moved. */
    while (left > 0) {
        sum = _mm_xor_si128(sum, ls_crc_forward(lane, _mm_load_si128(forward)));
        lane = next;
        next = ls_crc_load(data);
        data += LS_CRC_LANE_BYTES;
        forward += 1;
        left -= 1;
    }
    sum = _mm_xor_si128(sum, ls_crc_forward(lane, _mm_load_si128(forward)));
    return ls_crc_reduce(fold, _mm_xor_si128(sum, next));
}

LS_CRC_NARROW_TARGET static uint32_t ls_crc_narrow32(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size < 4) {
        return ls_crc_few_bytes32(crc, data, size);
    }
    return ls_crc_narrow(&ls_crc_fold32, crc, data, size);
}

LS_CRC_NARROW_TARGET static uint32_t ls_crc_narrow32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size < 4) {
        return ls_crc_few_bytes32c(crc, data, size);
    }
    return ls_crc_narrow(&ls_crc_fold32c, crc, data, size);
}

/* ------------------------------------------------------------------ 32 bytes at a time */

LS_CRC_INLINE LS_CRC_DOUBLE_TARGET __m256i ls_crc_load_two(const void *data)
{
    return _mm256_loadu_si256((const __m256i *)data);
}

LS_CRC_INLINE LS_CRC_DOUBLE_TARGET __m256i ls_crc_forward_two(__m256i lanes, __m256i by)
{
    return _mm256_xor_si256(_mm256_clmulepi64_epi128(lanes, by, 0x00), _mm256_clmulepi64_epi128(lanes, by, 0x11));
}

LS_CRC_INLINE LS_CRC_DOUBLE_TARGET uint32_t ls_crc_double(const ls_crc_fold *fold, uint32_t crc,
                                                          const uint8_t *data, int64_t size)
{
    if (size <= LS_CRC_LANE_BYTES) {
        return ls_crc_narrow(fold, crc, data, size);
    }
    uint32_t state = ~crc;
    int64_t lanes = (size + LS_CRC_LANE_BYTES - 1) / LS_CRC_LANE_BYTES;
    int64_t first_bytes = size - (lanes - 1) * LS_CRC_LANE_BYTES; /* 1 .. 16 */
    __m128i lane = _mm_xor_si128(ls_crc_load(data), _mm_cvtsi32_si128((int32_t)state));
    lane = _mm_shuffle_epi8(lane, ls_crc_load(ls_crc_shift_up + first_bytes));
    data += first_bytes;
    /* The part of the register for the second lane, if the first has fewer than 4 bytes. */
    int64_t taken = first_bytes < 4 ? first_bytes : 4;
    __m128i rest = _mm_cvtsi32_si128((int32_t)(uint32_t)((uint64_t)state >> (8 * taken)));
    /* Lanes are loaded in pairs; if their number is odd, a lane of zeros precedes the first. */
    int64_t left = (lanes - 1) / 2; /* twos to be loaded */
    __m256i block;
    if ((lanes & 1) == 0) {
        block = _mm256_set_m128i(_mm_xor_si128(ls_crc_load(data), rest), lane);
        rest = _mm_setzero_si128();
        data += LS_CRC_LANE_BYTES;
    } else {
        block = _mm256_set_m128i(lane, _mm_setzero_si128());
    }
    __m256i carry = _mm256_zextsi128_si256(rest); /* belongs to the next two */
    __m256i sum = _mm256_setzero_si256();
    const uint64_t(*row)[2] = fold->forward + (LS_CRC_FOLD_ROWS - 2);
    if (left >= LS_CRC_FOLD_ROWS / 2) {
        __m256i a = block;
        __m256i b = _mm256_xor_si256(ls_crc_load_two(data), carry);
        __m256i c = ls_crc_load_two(data + 32);
        __m256i d = ls_crc_load_two(data + 64);
        carry = _mm256_setzero_si256();
        data += 96;
        left -= 3;
        __m256i by8 = _mm256_broadcastsi128_si256(
            _mm_load_si128((const __m128i *)fold->forward[LS_CRC_FOLD_ROWS - 1 - 8]));
        while (left >= 4) {
            a = _mm256_xor_si256(ls_crc_forward_two(a, by8), ls_crc_load_two(data));
            b = _mm256_xor_si256(ls_crc_forward_two(b, by8), ls_crc_load_two(data + 32));
            c = _mm256_xor_si256(ls_crc_forward_two(c, by8), ls_crc_load_two(data + 64));
            d = _mm256_xor_si256(ls_crc_forward_two(d, by8), ls_crc_load_two(data + 96));
            data += 128;
            left -= 4;
        }
        row -= 2 * (left + 3);
        sum = ls_crc_forward_two(a, ls_crc_load_two(row));
        sum = _mm256_xor_si256(sum, ls_crc_forward_two(b, ls_crc_load_two(row + 2)));
        sum = _mm256_xor_si256(sum, ls_crc_forward_two(c, ls_crc_load_two(row + 4)));
        row += 6;
        block = d;
    } else {
        row -= 2 * left;
    }
    while (left > 0) {
        sum = _mm256_xor_si256(sum, ls_crc_forward_two(block, ls_crc_load_two(row)));
        block = _mm256_xor_si256(ls_crc_load_two(data), carry);
        carry = _mm256_setzero_si256();
        data += 32;
        row += 2;
        left -= 1;
    }
    /* The last row moves one lane; the other stays (its constants are 0). */
    sum = _mm256_xor_si256(sum, ls_crc_forward_two(block, ls_crc_load_two(row)));
    __m128i last = _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return ls_crc_reduce(fold, _mm_xor_si128(last, _mm256_extracti128_si256(block, 1)));
}

LS_CRC_DOUBLE_TARGET static uint32_t ls_crc_double32(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size < 4) {
        return ls_crc_few_bytes32(crc, data, size);
    }
    return ls_crc_double(&ls_crc_fold32, crc, data, size);
}

LS_CRC_DOUBLE_TARGET static uint32_t ls_crc_double32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size < 4) {
        return ls_crc_few_bytes32c(crc, data, size);
    }
    return ls_crc_double(&ls_crc_fold32c, crc, data, size);
}

/* Many short pieces of one buffer.  Whole blocks of 32 bytes that end where a piece ends: bytes before the piece are
   read and masked off, so that no piece needs more than one kind of load.  All its blocks are moved to the last one at
   once.  Two pieces are reduced together. */
enum { LS_CRC_BLOCK_BYTES = 32, LS_CRC_PIECE_MAX = LS_CRC_FOLD_ROWS * LS_CRC_LANE_BYTES };

/* Read at [32 - pad]: `pad` bytes of the first block do not belong to the piece; the register, which is all ones to
   begin with, is added to the 4 bytes after them. */
static const uint8_t ls_crc_mask[64] = {
    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
static const uint8_t ls_crc_register[96] = {[32] = 0xff, [33] = 0xff, [34] = 0xff, [35] = 0xff};

/* Two lanes, each moved to the last one: `row` is that of the first. */
LS_CRC_INLINE LS_CRC_DOUBLE_TARGET __m256i ls_crc_to_last(__m256i lanes, const __m128i *row)
{
    return ls_crc_forward_two(lanes, ls_crc_load_two(row));
}

/* Whether a piece can be read in this way. */
LS_CRC_INLINE int ls_crc_is_piece(int64_t pos, int64_t size)
{
    return pos >= LS_CRC_BLOCK_BYTES && size <= LS_CRC_PIECE_MAX;
}

/* The piece as 16 bytes with the same checksum. */
LS_CRC_INLINE LS_CRC_DOUBLE_TARGET __m128i ls_crc_double_piece(const uint8_t *buf, int64_t pos, int64_t size)
{
    int64_t blocks = (size + LS_CRC_BLOCK_BYTES - 1) / LS_CRC_BLOCK_BYTES;
    int64_t pad = blocks * LS_CRC_BLOCK_BYTES - size;
    const uint8_t *data = buf + pos - pad;
    const __m128i *row = (const __m128i *)ls_crc_fold32.forward + (LS_CRC_FOLD_ROWS - 2 * blocks);
    __m256i block = _mm256_and_si256(ls_crc_load_two(data), ls_crc_load_two(ls_crc_mask + 32 - pad));
    block = _mm256_xor_si256(block, ls_crc_load_two(ls_crc_register + 32 - pad));
    __m256i sum = ls_crc_to_last(block, row);
    if (LS_LIKELY(blocks > 1)) {
        /* The register may reach into the second block. */
        block = _mm256_xor_si256(ls_crc_load_two(data + 32), ls_crc_load_two(ls_crc_register + 64 - pad));
        sum = _mm256_xor_si256(sum, ls_crc_to_last(block, row + 2));
        for (int64_t i = 2; i < blocks; i++) {
            block = ls_crc_load_two(data + 32 * i);
            sum = _mm256_xor_si256(sum, ls_crc_to_last(block, row + 2 * i));
        }
    }
    /* The last lane is not moved: its row is 0. */
    sum = _mm256_xor_si256(sum, _mm256_permute2x128_si256(block, block, 0x81));
    return _mm_xor_si128(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
}

LS_CRC_DOUBLE_TARGET static void ls_crc_double_pieces32(const uint8_t *buf, const int32_t *pos, const int32_t *size,
                                                    int32_t count, uint32_t *out)
{
    const ls_crc_fold *fold = &ls_crc_fold32;
    const __m256i last = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)fold->last));
    const __m256i poly = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)fold->poly));
    int32_t i = 0;
    while (i < count) {
        if (i + 1 == count || !ls_crc_is_piece(pos[i], size[i]) || !ls_crc_is_piece(pos[i + 1], size[i + 1])) {
            out[i] = ls_crc_double32(0, buf + pos[i], size[i]);
            i += 1;
            continue;
        }
        __m256i v = _mm256_set_m128i(ls_crc_double_piece(buf, pos[i + 1], size[i + 1]),
                                     ls_crc_double_piece(buf, pos[i], size[i]));
        /* As ls_crc_reduce. */
        v = _mm256_xor_si256(_mm256_clmulepi64_epi128(v, last, 0x00), _mm256_srli_si256(v, 8));
        __m256i quotient = _mm256_clmulepi64_epi128(v, last, 0x10);
        v = _mm256_xor_si256(v, _mm256_clmulepi64_epi128(quotient, poly, 0x00));
        out[i] = ~(uint32_t)_mm256_extract_epi32(v, 2);
        out[i + 1] = ~(uint32_t)_mm256_extract_epi32(v, 6);
        i += 2;
    }
}

/* ------------------------------------------------------------------ 64 bytes at a time */

LS_CRC_INLINE LS_CRC_WIDE_TARGET __m512i ls_crc_add_forward(__m512i sum, __m512i lanes, __m512i by)
{
    return _mm512_ternarylogic_epi64(sum, _mm512_clmulepi64_epi128(lanes, by, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, by, 0x11), 0x96);
}

LS_CRC_INLINE LS_CRC_WIDE_TARGET uint32_t ls_crc_wide(const ls_crc_fold *fold, uint32_t crc,
                                                      const uint8_t *data, int64_t size)
{
    /* Bytes in front of the input are masked off: they are not read, and count as zeros. */
    int64_t blocks = (size + 63) / 64;
    unsigned pad = (unsigned)(blocks * 64 - size);
    unsigned turn = 8 * (pad & 3);
    uint32_t state = ~crc;
    state = (state << turn) | (state >> ((32 - turn) & 31));
    __m512i init = _mm512_set1_epi32((int32_t)state);
    __m512i block = _mm512_maskz_loadu_epi8(~(uint64_t)0 << pad, data - pad);
    block = _mm512_xor_si512(block, _mm512_maskz_mov_epi8((uint64_t)0xf << pad, init));
    data += 64 - pad;

    const uint64_t(*row)[2] = fold->forward + (LS_CRC_FOLD_ROWS - 4);
    __m512i sum = _mm512_setzero_si512();
    int64_t left = blocks - 1; /* to be loaded */
    if (left > 0) {
        __m512i next = _mm512_loadu_si512(data);
        data += 64;
        left -= 1;
        if (LS_UNLIKELY(pad > 60)) { /* the register reaches into the second block */
            next = _mm512_xor_si512(next, _mm512_maskz_mov_epi8((uint64_t)0xf >> (64 - pad), init));
        }
        if (left >= 6) {
            __m512i a = block;
            __m512i b = next;
            __m512i c = _mm512_loadu_si512(data);
            __m512i d = _mm512_loadu_si512(data + 64);
            data += 128;
            left -= 2;
            __m512i by16 = _mm512_broadcast_i32x4(
                _mm_load_si128((const __m128i *)fold->forward[LS_CRC_FOLD_ROWS - 1 - 16]));
            while (left >= 4) {
                a = ls_crc_add_forward(_mm512_loadu_si512(data), a, by16);
                b = ls_crc_add_forward(_mm512_loadu_si512(data + 64), b, by16);
                c = ls_crc_add_forward(_mm512_loadu_si512(data + 128), c, by16);
                d = ls_crc_add_forward(_mm512_loadu_si512(data + 192), d, by16);
                data += 256;
                left -= 4;
            }
            row -= 4 * (3 + left);
            sum = ls_crc_add_forward(sum, a, _mm512_load_si512(row));
            sum = ls_crc_add_forward(sum, b, _mm512_load_si512(row + 4));
            row += 8;
            block = c;
            next = d;
        } else {
            row -= 4 * (1 + left);
        }
        while (left > 0) {
            sum = ls_crc_add_forward(sum, block, _mm512_load_si512(row));
            block = next;
            next = _mm512_loadu_si512(data);
            data += 64;
            row += 4;
            left -= 1;
        }
        sum = ls_crc_add_forward(sum, block, _mm512_load_si512(row));
        block = next;
        row += 4;
    }
    /* The row of the last block moves three lanes; the fourth stays (its constants are 0). */
    sum = ls_crc_add_forward(sum, block, _mm512_load_si512(row));
    sum = _mm512_xor_si512(sum, _mm512_maskz_mov_epi64(0xc0, block));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    return ls_crc_reduce(fold, _mm_xor_si128(_mm256_castsi256_si128(half),
                                             _mm256_extracti128_si256(half, 1)));
}

LS_CRC_WIDE_TARGET static uint32_t ls_crc_wide32(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size < 4) {
        return ls_crc_few_bytes32(crc, data, size);
    }
    return ls_crc_wide(&ls_crc_fold32, crc, data, size);
}

LS_CRC_WIDE_TARGET static uint32_t ls_crc_wide32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size < 4) {
        return ls_crc_few_bytes32c(crc, data, size);
    }
    return ls_crc_wide(&ls_crc_fold32c, crc, data, size);
}

/* ------------------------------------------------------------------ 8 bytes at a time, CRC-32C only */

/* The register after as many zero bytes as the table is for. */
LS_CRC_INLINE LS_CRC_SSE42_TARGET uint32_t ls_crc_move(const ls_crc_zeros table, uint64_t state)
{
    return table[0][state & 0xff] ^ table[1][(state >> 8) & 0xff] ^ table[2][(state >> 16) & 0xff]
         ^ table[3][(state >> 24) & 0xff];
}

/* Three parts of `part` bytes, a multiple of 8 that `table` is for. */
LS_CRC_INLINE LS_CRC_SSE42_TARGET uint32_t ls_crc_three_parts(const ls_crc_zeros table, uint32_t state,
                                                              const uint8_t *data, int64_t part)
{
    uint64_t a = state;
    uint64_t b = 0;
    uint64_t c = 0;
    for (int64_t i = 0; i < part; i += 8) {
        a = _mm_crc32_u64(a, ls_bytes_load_le64(data + i));
        b = _mm_crc32_u64(b, ls_bytes_load_le64(data + part + i));
        c = _mm_crc32_u64(c, ls_bytes_load_le64(data + 2 * part + i));
    }
    return ls_crc_move(table, ls_crc_move(table, a) ^ b) ^ (uint32_t)c;
}

LS_CRC_INLINE LS_CRC_SSE42_TARGET uint32_t ls_crc_one_part(uint32_t state, const uint8_t *data, int64_t size)
{
    uint64_t wide = state;
    while (size >= 8) {
        wide = _mm_crc32_u64(wide, ls_bytes_load_le64(data));
        data += 8;
        size -= 8;
    }
    state = (uint32_t)wide;
    if (size >= 4) {
        state = _mm_crc32_u32(state, ls_bytes_load_le32(data));
        data += 4;
        size -= 4;
    }
    while (size > 0) {
        state = _mm_crc32_u8(state, *data);
        data += 1;
        size -= 1;
    }
    return state;
}

LS_CRC_SSE42_TARGET static uint32_t ls_crc_sse42_32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    uint32_t state = ~crc;
    while (size >= 3 * LS_CRC_PART_LONG) {
        state = ls_crc_three_parts(ls_crc_zeros_long, state, data, LS_CRC_PART_LONG);
        data += 3 * LS_CRC_PART_LONG;
        size -= 3 * LS_CRC_PART_LONG;
    }
    while (size >= 3 * LS_CRC_PART_SHORT) {
        state = ls_crc_three_parts(ls_crc_zeros_short, state, data, LS_CRC_PART_SHORT);
        data += 3 * LS_CRC_PART_SHORT;
        size -= 3 * LS_CRC_PART_SHORT;
    }
    return ~ls_crc_one_part(state, data, size);
}

/* Up to here the instruction needs less time than the fixed costs of carry-less multiplication are. */
enum { LS_CRC_MIXED_SHORT_MAX = 128 };

LS_CRC_SSE42_TARGET static uint32_t ls_crc_mixed32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size <= LS_CRC_MIXED_SHORT_MAX) {
        return ~ls_crc_one_part(~crc, data, size);
    }
    return ls_crc_wide32c(crc, data, size);
}

LS_CRC_SSE42_TARGET static uint32_t ls_crc_mixed_double32c(uint32_t crc, const uint8_t *data, int64_t size)
{
    if (size <= LS_CRC_MIXED_SHORT_MAX) {
        return ~ls_crc_one_part(~crc, data, size);
    }
    return ls_crc_double32c(crc, data, size);
}

/* ------------------------------------------------------------------ what the machine has */

static int ls_crc_has_sse42(void)
{
    return __builtin_cpu_supports("sse4.2") != 0;
}

static int ls_crc_has_narrow(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("ssse3")
        && __builtin_cpu_supports("sse4.1");
}

static int ls_crc_has_double(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq") && ls_crc_has_narrow();
}

static int ls_crc_has_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("vpclmulqdq") && ls_crc_has_narrow();
}

ls_crc_function ls_crc_x86_narrow32(void)
{
    return ls_crc_has_narrow() ? ls_crc_narrow32 : NULL;
}

ls_crc_function ls_crc_x86_narrow32c(void)
{
    return ls_crc_has_narrow() ? ls_crc_narrow32c : NULL;
}

ls_crc_function ls_crc_x86_sse42_32c(void)
{
    return ls_crc_has_sse42() ? ls_crc_sse42_32c : NULL;
}

ls_crc_function ls_crc_x86_double32(void)
{
    return ls_crc_has_double() ? ls_crc_double32 : NULL;
}

ls_crc_function ls_crc_x86_double32c(void)
{
    return ls_crc_has_double() ? ls_crc_double32c : NULL;
}

ls_crc_function ls_crc_x86_best32(void)
{
    if (ls_crc_has_wide()) {
        return ls_crc_wide32;
    }
    return ls_crc_has_double() ? ls_crc_double32 : ls_crc_x86_narrow32();
}

/* NULL also if one piece after the other is faster. */
ls_crc_pieces_function ls_crc_x86_pieces32(void)
{
    return ls_crc_has_double() && !ls_crc_has_wide() ? ls_crc_double_pieces32 : NULL;
}

ls_crc_function ls_crc_x86_best32c(void)
{
    if (ls_crc_has_wide()) {
        return ls_crc_has_sse42() ? ls_crc_mixed32c : ls_crc_wide32c;
    }
    if (ls_crc_has_double() && ls_crc_has_sse42()) {
        return ls_crc_mixed_double32c;
    }
    return ls_crc_has_sse42() ? ls_crc_sse42_32c : ls_crc_x86_narrow32c();
}

#endif
