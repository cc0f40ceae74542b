/*
 * ls_key.c - which partition a key belongs to: Kafka's murmur2, so that both put a key in the same place.
 */
#include "ls_internal.h"

int32_t ls_murmur2(const uint8_t *data, int64_t size)
{
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28cu ^ (uint32_t)size;
    int64_t left = size > 0 ? size : 0;
    while (left >= 4) {
        uint32_t k = ls_bytes_load_le32(data) * m;
        k = (k ^ k >> 24) * m;
        h = h * m ^ k;
        data += 4;
        left -= 4;
    }
    if (left > 0) {
        uint32_t k = data[0];
        if (left > 1) {
            k |= (uint32_t)data[1] << 8;
        }
        if (left > 2) {
            k |= (uint32_t)data[2] << 16;
        }
        h = (h ^ k) * m;
    }
    h = (h ^ h >> 13) * m;
    return (int32_t)(h ^ h >> 15);
}

void ls_partition_keys(const ls_slices *keys, int64_t n, int32_t partitions, int32_t *out)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *key;
        int32_t len = ls_slices_next(keys, i, &at, &key);
        out[i] = len < 0 || partitions <= 0 ? -1 : (ls_murmur2(key, len) & 0x7fffffff) % partitions;
    }
}
