/*
 * fuzz_compact.h - arbitrary bytes through the compaction of the C core: the map, and what stays of batches.
 *
 * Included by fuzz_decode.c.  What holds: a call writes within its memory; what it puts out are whole batches with
 * right checksums, of which a second compaction with the same map removes no record.
 */
#ifndef FUZZ_COMPACT_H
#define FUZZ_COMPACT_H

#include "fuzz_made.h"
#include "ls_compact_api.h"

enum { MAP_SLOTS = 24, COMPACT_COLUMNS = 6 };

typedef struct work {
    ls_columns columns;
    uint8_t *states;
    void *memory[COMPACT_COLUMNS];
    ls_offset_map map;
    int64_t aborted[6];
    int64_t spent[2];
    int64_t needed[2];
    ls_outcomes outcomes;
    ls_compaction how;
} work;

static void work_open(work *w)
{
    static const size_t bytes[COMPACT_COLUMNS] = {8, 8, 4, 4, 4, 4};
    int64_t capacity = LS_COMPACT_RECORDS_MIN + draw(8);
    memset(w, 0, sizeof *w);
    for (int i = 0; i < COMPACT_COLUMNS; i++) {
        w->memory[i] = malloc(bytes[i] * (size_t)capacity);
        CHECK(w->memory[i] != NULL);
    }
    w->states = malloc((size_t)capacity);
    w->columns.capacity = capacity;
    w->columns.offset = w->memory[0];
    w->columns.timestamp = w->memory[1];
    w->columns.key_pos = w->memory[2];
    w->columns.key_len = w->memory[3];
    w->columns.value_pos = w->memory[4];
    w->columns.value_len = w->memory[5];
    w->map.capacity = 2 + draw(MAP_SLOTS - 2);
    w->map.slots = calloc((size_t)w->map.capacity, LS_MAP_SLOT_BYTES);
    CHECK(w->states != NULL && w->map.slots != NULL);
    w->map.count_max = draw((uint32_t)w->map.capacity);
    w->map.first_offset = w->map.end_offset = draw(30);
    w->map.classes = draw(3);
    w->map.class_number = draw(2);
    for (int i = 0; i < 6; i++) {
        w->aborted[i] = draw(i % 3 == 0 ? 4 : 40);
    }
    w->spent[0] = draw(20);
    w->spent[1] = w->spent[0] + draw(20);
    w->needed[0] = draw(20);
    w->needed[1] = w->needed[0] + draw(20);
    w->outcomes = (ls_outcomes){w->aborted, draw(3), w->spent, draw(3), w->needed, draw(3)};
    w->how = (ls_compaction){&w->map, &w->outcomes, (int64_t)random_state, (int64_t)random_state, draw(2)};
}

static void work_close(work *w)
{
    for (int i = 0; i < COMPACT_COLUMNS; i++) {
        free(w->memory[i]);
    }
    free(w->states);
    free(w->map.slots);
}

/* Compact a buffer as far as it is plain: the bytes put out, in memory of exactly the capacity. */
static uint8_t *compacted(work *w, const uint8_t *buf, int64_t size, uint32_t checks, int64_t capacity, int64_t *bytes,
                          ls_compacted *done)
{
    ls_walk walk = {.last_offset = LS_OFFSET_UNKNOWN};
    uint8_t *out = malloc(capacity > 0 ? (size_t)capacity : 1);
    CHECK(out != NULL);
    memset(done, 0, sizeof *done);
    int32_t status = ls_compact_batches(&w->how, buf, size, checks, &w->columns, w->states, out, capacity, bytes,
                                        &walk, done);
    CHECK(walk.pos >= 0 && walk.pos <= size);
    CHECK(*bytes >= 0 && *bytes <= capacity);
    CHECK(status < 0 || walk.stop > 0);
    CHECK(done->removed <= done->records && done->tombstones <= done->removed);
    return out;
}

static void try_compact(const uint8_t *buf, int64_t size, uint32_t checks)
{
    work w;
    ls_walk walk = {.last_offset = LS_OFFSET_UNKNOWN};
    ls_batch found[8];
    ls_compacted done;
    int64_t bytes;
    work_open(&w);
    int32_t status = ls_map_batches(&w.map, &w.outcomes, buf, size, checks, &w.columns, &walk);
    CHECK(walk.pos >= 0 && walk.pos <= size && w.map.count <= w.map.count_max);
    CHECK(status < 0 || walk.stop > 0);
    int64_t capacity = draw(4) == 0 ? draw(2 * BYTES_MAX) : size + 11 * RECORDS_MAX * 8;
    uint8_t *out = compacted(&w, buf, size, checks, capacity, &bytes, &done);
    if ((checks & LS_CHECK_CRC) != 0) {
        memset(&walk, 0, sizeof walk);
        walk.last_offset = LS_OFFSET_UNKNOWN;
        CHECK(ls_scan_batches(out, bytes, LS_CHECK_CRC, NULL, 0, &walk) == LS_OK);
        CHECK(walk.pos == bytes);
        ls_compacted again;
        int64_t more;
        w.how.now_ms = INT64_MIN; /* no delete horizon is over */
        w.how.keeps_tombstones = 1;
        free(compacted(&w, out, bytes, LS_CHECK_CRC, bytes + 11 * RECORDS_MAX * 8, &more, &again));
        CHECK(again.removed == 0);
    }
    memset(&walk, 0, sizeof walk);
    if (ls_scan_producers(buf, size, checks, found, 8, &walk) == LS_OK) {
        CHECK(walk.count <= 8 && walk.pos <= size);
    }
    /* A batch whose payload is what it says, or anything else. */
    memset(&walk, 0, sizeof walk);
    walk.last_offset = LS_OFFSET_UNKNOWN;
    if (ls_scan_batches(buf, size, 0, found, 1, &walk) == LS_OK && walk.count == 1) {
        ls_error error;
        ls_batch made;
        int64_t at = draw((uint32_t)size + 1);
        uint8_t *payload = exact(buf + at, size - at);
        int64_t room = size - at + 11 * w.columns.capacity;
        uint8_t *inside = malloc((size_t)room);
        CHECK(inside != NULL);
        status = ls_map_payload(&w.map, found, payload, size - at, checks, &w.columns, &error);
        CHECK(status <= LS_STOP_FULL);
        status = ls_compact_payload(&w.how, found, payload, size - at, checks, &w.columns, w.states, inside, room,
                                    &bytes, &made, &done, &error);
        CHECK(bytes >= 0 && bytes <= room && status <= LS_VERDICT_EMPTY);
        free(inside);
        free(payload);
    }
    free(out);
    work_close(&w);
}

#endif
