/*
 * ls_offset_map.c - the last offset of each key of a part of a log, for compaction.
 *
 * A key is represented by 96 bits of its SipHash-2-4-128 under a secret that is new for each map, and by the slot that
 * 32 other bits choose.  So no client can make two keys that look like one, and among n keys the probability that any
 * two are is below n * n / 2^97: 10^-16 for 4 million.
 *
 * Trusts nothing in the buffers that it reads; trusts the map.
 */
#include "ls_internal.h"

/* ------------------------------------------------------------------ hash */

static inline uint64_t ls_map_rotate(uint64_t x, int32_t bits)
{
    return x << bits | x >> (64 - bits);
}

static inline uint64_t ls_map_load(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

typedef struct ls_sip {
    uint64_t v0, v1, v2, v3;
} ls_sip;

static inline void ls_sip_rounds(ls_sip *s, int32_t rounds)
{
    for (int32_t i = 0; i < rounds; i++) {
        s->v0 += s->v1;
        s->v1 = ls_map_rotate(s->v1, 13) ^ s->v0;
        s->v0 = ls_map_rotate(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = ls_map_rotate(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = ls_map_rotate(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = ls_map_rotate(s->v1, 17) ^ s->v2;
        s->v2 = ls_map_rotate(s->v2, 32);
    }
}

static inline void ls_sip_absorb(ls_sip *s, uint64_t word)
{
    s->v3 ^= word;
    ls_sip_rounds(s, 2);
    s->v0 ^= word;
}

void ls_hash_key(const uint64_t *secret, const uint8_t *key, int64_t size, uint64_t *out)
{
    ls_sip s = {
        UINT64_C(0x736f6d6570736575) ^ secret[0],
        UINT64_C(0x646f72616e646f6d) ^ secret[1] ^ 0xee,
        UINT64_C(0x6c7967656e657261) ^ secret[0],
        UINT64_C(0x7465646279746573) ^ secret[1],
    };
    int64_t left = size;
    for (; left >= 8; left -= 8, key += 8) {
        ls_sip_absorb(&s, ls_map_load(key));
    }
    uint64_t last = (uint64_t)size << 56;
    for (int64_t i = 0; i < left; i++) {
        last |= (uint64_t)key[i] << (8 * i);
    }
    ls_sip_absorb(&s, last);
    s.v2 ^= 0xee;
    ls_sip_rounds(&s, 4);
    out[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    ls_sip_rounds(&s, 4);
    out[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* ------------------------------------------------------------------ slots */

/* Sixteen bytes.  An offset of 0 says that the slot is empty; others are one more than the relative offset. */
typedef struct ls_map_slot {
    uint64_t high;
    uint32_t low;
    uint32_t offset;
} ls_map_slot;

_Static_assert(sizeof(ls_map_slot) == LS_MAP_SLOT_BYTES, "size of a slot");

static inline ls_map_slot *ls_map_begin(const ls_offset_map *map, const uint64_t *hash)
{
    uint64_t at = (hash[0] >> 32) * (uint64_t)map->capacity >> 32;
    return (ls_map_slot *)(void *)map->slots + at;
}

/* The slot of a key, or the empty one to put it in.  There is always an empty one: count_max < capacity. */
static inline ls_map_slot *ls_map_find(const ls_offset_map *map, const uint64_t *hash)
{
    ls_map_slot *first = (ls_map_slot *)(void *)map->slots;
    ls_map_slot *end = first + map->capacity;
    ls_map_slot *slot = ls_map_begin(map, hash);
    while (slot->offset != 0 && (slot->high != hash[1] || slot->low != (uint32_t)hash[0])) {
        slot += 1;
        slot = slot == end ? first : slot;
    }
    return slot;
}

static inline int ls_map_has_class(const ls_offset_map *map, const uint64_t *hash)
{
    return map->classes <= 1 || (int64_t)(hash[1] % (uint64_t)map->classes) == map->class_number;
}

/* Number of keys that are hashed at once, and their slots fetched into the cache meanwhile. */
enum { LS_MAP_AHEAD = 16 };

static inline int64_t ls_map_hash_some(const ls_offset_map *map, const ls_columns *columns, int64_t first,
                                       const uint8_t *buf, uint64_t hashes[LS_MAP_AHEAD][2])
{
    int64_t n = columns->count - first;
    n = n < LS_MAP_AHEAD ? n : LS_MAP_AHEAD;
    for (int64_t i = 0; i < n; i++) {
        int32_t len = columns->key_len[first + i];
        if (len >= 0) {
            ls_hash_key(map->secret, buf + columns->key_pos[first + i], len, hashes[i]);
            __builtin_prefetch(ls_map_begin(map, hashes[i]));
        }
    }
    return n;
}

/* Put the keys of decoded records from map->first_offset on into the map.  LS_OK; LS_STOP_FULL with *done records
   looked at. */
static int32_t ls_map_put(ls_offset_map *map, const ls_columns *columns, const uint8_t *buf, int64_t *done)
{
    uint64_t hashes[LS_MAP_AHEAD][2];
    for (int64_t at = 0; at < columns->count;) {
        int64_t n = ls_map_hash_some(map, columns, at, buf, hashes);
        for (int64_t i = 0; i < n; i++) {
            int64_t offset = columns->offset[at + i];
            if (columns->key_len[at + i] < 0 || offset < map->first_offset || !ls_map_has_class(map, hashes[i])) {
                continue;
            }
            int64_t relative = offset - map->first_offset;
            ls_map_slot *slot = ls_map_find(map, hashes[i]);
            if (relative >= UINT32_MAX || (slot->offset == 0 && map->count >= map->count_max)) {
                *done = at + i;
                return LS_STOP_FULL;
            }
            map->count += slot->offset == 0;
            slot->high = hashes[i][1];
            slot->low = (uint32_t)hashes[i][0];
            slot->offset = (uint32_t)relative + 1;
        }
        at += n;
    }
    *done = columns->count;
    return LS_OK;
}

void ls_map_superseded(const ls_offset_map *map, const ls_columns *columns, const uint8_t *buf, uint8_t *states)
{
    uint64_t hashes[LS_MAP_AHEAD][2];
    for (int64_t at = 0; at < columns->count;) {
        int64_t n = ls_map_hash_some(map, columns, at, buf, hashes);
        for (int64_t i = 0; i < n; i++) {
            uint8_t state = LS_RECORD_NO_KEY;
            if (columns->offset[at + i] >= map->end_offset) {
                state = LS_RECORD_BEYOND;
            } else if (columns->key_len[at + i] >= 0) {
                state = LS_RECORD_OTHER_CLASS;
                if (ls_map_has_class(map, hashes[i])) {
                    const ls_map_slot *slot = ls_map_find(map, hashes[i]);
                    int64_t last = slot->offset == 0 ? INT64_MIN : map->first_offset + (int64_t)slot->offset - 1;
                    state = columns->offset[at + i] >= last ? LS_RECORD_LAST : LS_RECORD_SUPERSEDED;
                }
            } else if (map->classes > 1 && map->class_number != 0) {
                state = LS_RECORD_OTHER_CLASS; /* counted once */
            }
            states[at + i] = state;
        }
        at += n;
    }
}

/* ------------------------------------------------------------------ transactions */

int ls_has_offset(const int64_t *offsets, int64_t count, int64_t offset)
{
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (offsets[middle] < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && offsets[low] == offset;
}

int ls_is_aborted(const ls_outcomes *outcomes, const ls_batch *batch)
{
    if ((batch->attributes & LS_ATTRIBUTE_TRANSACTIONAL) == 0 || batch->magic != 2) {
        return 0;
    }
    int64_t low = 0;
    int64_t high = outcomes->aborted_count;
    while (low < high) { /* the first that begins after the batch */
        int64_t middle = low + (high - low) / 2;
        const int64_t *at = outcomes->aborted + 3 * middle;
        if (at[0] < batch->producer_id || (at[0] == batch->producer_id && at[1] <= batch->last_offset)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0) {
        return 0;
    }
    const int64_t *found = outcomes->aborted + 3 * (low - 1);
    return found[0] == batch->producer_id && batch->last_offset <= found[2];
}

/* ------------------------------------------------------------------ building */

static void ls_map_reached(ls_offset_map *map, int64_t end_offset)
{
    map->end_offset = end_offset > map->end_offset ? end_offset : map->end_offset;
}

int32_t ls_map_payload(ls_offset_map *map, const ls_batch *batch, const uint8_t *payload, int64_t size,
                       uint32_t checks, ls_columns *columns, ls_error *error)
{
    int64_t done;
    columns->count = 0;
    int32_t status = ls_decode_payload(batch, payload, size, checks, INT64_MIN, INT64_MAX, columns, NULL, error);
    if (status == LS_OK) {
        status = ls_map_put(map, columns, payload, &done);
    }
    if (status == LS_OK) {
        ls_map_reached(map, ls_wrapping_add(batch->last_offset, 1));
    }
    return status;
}

/* Uncompressed messages of magic 0 and 1, some at once: how many, or LS_STOP_FULL as -1. */
static int64_t ls_map_messages(ls_offset_map *map, const uint8_t *buf, int64_t size, uint32_t checks,
                               ls_columns *columns, ls_walk *walk)
{
    int64_t done;
    columns->count = 0;
    int64_t n = ls_message_decode_block(buf, size, checks, INT64_MIN, INT64_MAX, columns, NULL, walk);
    if (n > 0) {
        int32_t status = ls_map_put(map, columns, buf, &done);
        if (status != LS_OK) {
            ls_map_reached(map, columns->offset[done]);
            return -1;
        }
        ls_map_reached(map, ls_wrapping_add(walk->last_offset, 1));
    }
    return n;
}

/* Put the keys of the batch at walk->pos into the map. */
static int32_t ls_map_one(ls_offset_map *map, const ls_outcomes *outcomes, const uint8_t *buf, int64_t size,
                          uint32_t checks, ls_columns *columns, ls_walk *walk)
{
    ls_batch batch;
    const ls_walk before = *walk;
    int32_t status = ls_scan_batches(buf, size, checks, &batch, 1, walk);
    if (status != LS_OK || walk->count == 0) {
        return status != LS_OK ? status : walk->stop;
    }
    int is_needed = batch.last_offset >= map->first_offset && batch.record_count != 0
        && !(batch.magic == 2 && (batch.attributes & LS_ATTRIBUTE_CONTROL) != 0) && !ls_is_aborted(outcomes, &batch);
    if (!is_needed) {
        ls_map_reached(map, ls_wrapping_add(batch.last_offset, 1));
        return LS_OK;
    }
    if (batch.codec != 0) {
        *walk = before;
        return LS_STOP_COMPRESSED;
    }
    int64_t done;
    columns->count = 0;
    if (batch.magic == 2) {
        /* A count that cannot be true is reported as such, not as missing space. */
        if (batch.record_count > columns->capacity && batch.record_count <= batch.payload_size / LS_RECORD_MIN_BYTES) {
            *walk = before;
            return ls_error_set(&walk->error, LS_E_NO_SPACE, batch.pos, batch.base_offset, batch.record_count,
                                columns->capacity);
        }
        status = ls_batch_decode_area(&batch, buf, batch.pos + batch.payload_pos, batch.payload_size, INT64_MIN,
                                      INT64_MAX, columns, &walk->error);
    } else {
        /* The loop over plain messages takes whatever is well: our own mistake. */
        status = ls_error_set(&walk->error, LS_E_ARGUMENT, batch.pos, batch.base_offset, 2, batch.magic);
    }
    if (status == LS_OK) {
        status = ls_map_put(map, columns, buf, &done);
    }
    if (status != LS_OK) {
        walk->error.pos = batch.pos; /* a record's fault is that of its batch */
        walk->pos = before.pos;
        walk->last_offset = before.last_offset;
        return status;
    }
    ls_map_reached(map, ls_wrapping_add(batch.last_offset, 1));
    return LS_OK;
}

int32_t ls_map_batches(ls_offset_map *map, const ls_outcomes *outcomes, const uint8_t *buf, int64_t size,
                       uint32_t checks, ls_columns *columns, ls_walk *walk)
{
    int32_t status = LS_OK;
    if (columns->capacity < LS_COMPACT_RECORDS_MIN || map->capacity <= map->count_max || size > INT32_MAX) {
        return ls_error_set(&walk->error, LS_E_ARGUMENT, walk->pos, -1, LS_COMPACT_RECORDS_MIN, columns->capacity);
    }
    while (status == LS_OK) {
        int64_t n;
        do {
            n = ls_map_messages(map, buf, size, checks, columns, walk);
        } while (n > 0);
        status = n < 0 ? LS_STOP_FULL : ls_map_one(map, outcomes, buf, size, checks, columns, walk);
    }
    if (status > 0) {
        walk->stop = status;
        status = LS_OK;
    }
    return status;
}
