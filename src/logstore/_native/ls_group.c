/*
 * ls_group.c - the bytes that a commit of a consumer group writes, made from the previous commit's bytes: they
 * differ in numbers only.
 *
 * Trusts the addresses that it is given; writes within the sizes.
 */
#include "ls_internal.h"

int32_t ls_group_renumber(uint8_t *batch, int64_t size, const int64_t *places, int64_t base_offset, int64_t now_ms,
                          int64_t offset, int64_t proof)
{
    const int64_t offset_pos = places[0], time_pos = places[1], proof_pos = places[2];
    if (offset_pos < LS_BATCH_HEADER_BYTES || offset_pos > size - 8 || time_pos < LS_BATCH_HEADER_BYTES
        || time_pos > size - 8 || (proof_pos != 0 && (proof_pos < LS_BATCH_HEADER_BYTES || proof_pos > size - 4))) {
        return -1;
    }
    ls_bytes_store_i64(batch + LS_BATCH_BASE_OFFSET_POS, base_offset);
    ls_bytes_store_i64(batch + LS_BATCH_BASE_TIMESTAMP_POS, now_ms);
    ls_bytes_store_i64(batch + LS_BATCH_MAX_TIMESTAMP_POS, now_ms);
    ls_bytes_store_i64(batch + offset_pos, offset);
    ls_bytes_store_i64(batch + time_pos, now_ms);
    if (proof_pos != 0) {
        ls_bytes_store_u32(batch + proof_pos, (uint32_t)proof);
    }
    uint32_t crc = ls_crc32c(0, batch + LS_BATCH_ATTRIBUTES_POS, size - LS_BATCH_ATTRIBUTES_POS);
    ls_bytes_store_u32(batch + LS_BATCH_CRC_POS, crc);
    return 0;
}

void ls_group_move_point(uint8_t *point, int64_t size)
{
    memcpy(point + LS_GROUP_POINT_SIZE_POS, &size, sizeof size);
    uint32_t crc = ls_crc32c(0, point, LS_GROUP_POINT_BYTES - (int64_t)sizeof crc);
    memcpy(point + LS_GROUP_POINT_BYTES - sizeof crc, &crc, sizeof crc);
}
