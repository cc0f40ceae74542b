/*
 * fuzz_made.h - entries of all magics that fuzz_decode.c makes by chance, damages and mends.
 */
#ifndef FUZZ_MADE_H
#define FUZZ_MADE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ls_api.h"

enum { BYTES_MAX = 4096, RECORDS_MAX = 64 };

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "line %d, execution %lld: %s\n", __LINE__, execution, #condition); \
            abort();                                                                    \
        }                                                                               \
    } while (0)

static long long execution;
static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) * below >> 32);
}

static void *exact(const void *data, int64_t size)
{
    uint8_t *copy = malloc(size > 0 ? (size_t)size : 1);
    CHECK(copy != NULL);
    if (size > 0) {
        memcpy(copy, data, (size_t)size);
    }
    return copy;
}

/* ------------------------------------------------------------------ making */

typedef struct made {
    uint8_t bytes[BYTES_MAX];
    int64_t size;
    int64_t records;     /* that ls_decode puts out up to the first compressed entry */
    int compressed;      /* whether there is one */
    int64_t first_offset;
    int64_t next_offset;
} made;

typedef struct source {
    uint8_t data[1024];
    int32_t key_len[RECORDS_MAX];
    int32_t value_len[RECORDS_MAX];
    int32_t header_count[RECORDS_MAX];
    int32_t header_key_len[4 * RECORDS_MAX];
    int32_t header_value_len[4 * RECORDS_MAX];
    int64_t timestamp[RECORDS_MAX];
    ls_records records;
} source;

static void make_source(source *s, int32_t magic)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < sizeof s->data; i++) {
        s->data[i] = (uint8_t)('a' + draw(26));
    }
    ls_records *r = &s->records;
    r->count = 1 + draw(4);
    int32_t headers = 0;
    for (int64_t i = 0; i < r->count; i++) {
        s->key_len[i] = (int32_t)draw(12) - 1;
        s->value_len[i] = (int32_t)draw(draw(8) == 0 ? 150 : 20) - 1;
        s->timestamp[i] = draw(8) == 0 ? (int64_t)random_state : 1700000000000 + (int64_t)draw(1000);
        s->header_count[i] = draw(4) == 0 ? (int32_t)draw(4) : 0;
        for (int32_t k = 0; k < s->header_count[i]; k++) {
            s->header_key_len[headers] = (int32_t)draw(5);
            s->header_value_len[headers] = (int32_t)draw(6) - 1;
            headers += 1;
        }
    }
    r->key = (ls_slices){s->data, NULL, s->key_len};
    r->value = (ls_slices){s->data, NULL, s->value_len};
    r->timestamp = draw(4) == 0 ? NULL : s->timestamp;
    r->timestamp_all = 1700000000000;
    if (magic == 2) {
        r->header_count = s->header_count;
        r->header_key = (ls_slices){s->data, NULL, s->header_key_len};
        r->header_value = (ls_slices){s->data, NULL, s->header_value_len};
    }
}

/* Put entries of one magic behind what is there; a codec bit makes them look compressed. */
static void make_entry(made *m)
{
    source s;
    int32_t magic = (int32_t)draw(3);
    int codec = draw(6) == 0 ? 1 + (int)draw(3) : 0;
    int64_t total;
    ls_error error;
    ls_cursor cursor = {0};
    ls_written written;
    uint8_t *out = m->bytes + m->size;
    int64_t room = BYTES_MAX - m->size;
    make_source(&s, magic);
    CHECK(ls_measure(&s.records, magic, 1 << 20, &total, &error) == LS_OK);
    if (total + 100 > room) {
        return;
    }
    if (magic == 2) {
        CHECK(ls_encode_area(&s.records, &cursor, INT64_MAX, out + 61, total, &written) == LS_OK);
        ls_batch batch = {0};
        batch.magic = 2;
        batch.base_offset = m->next_offset;
        batch.last_offset = m->next_offset + written.count - 1 + draw(2);
        batch.base_timestamp = written.base_timestamp;
        batch.max_timestamp = written.max_timestamp;
        batch.record_count = (int32_t)written.count;
        batch.attributes = codec | (draw(4) == 0 ? 8 : 0);
        batch.payload_size = (int32_t)written.bytes;
        CHECK(ls_seal_batch(out, room, &batch) == LS_OK);
        m->size += batch.size;
        m->next_offset = batch.last_offset + 1;
    } else if (codec != 0) {
        uint8_t inner[1024];
        int64_t inner_base = magic == 0 ? m->next_offset : 0;
        CHECK(ls_encode_messages(&s.records, &cursor, INT64_MAX, magic, 0, inner_base, inner, sizeof inner,
                                 &written) == LS_OK);
        int32_t len = (int32_t)written.bytes;
        m->next_offset += written.count;
        ls_records wrapper = {.count = 1, .value = {inner, NULL, &len}};
        cursor = (ls_cursor){0};
        if (ls_encode_messages(&wrapper, &cursor, 1, magic, codec, m->next_offset - 1, out, room, &written)
            == LS_OK) {
            m->size += written.bytes;
        }
    } else {
        CHECK(ls_encode_messages(&s.records, &cursor, INT64_MAX, magic, 0, m->next_offset, out, total,
                                 &written) == LS_OK);
        CHECK(written.bytes == total);
        m->size += written.bytes;
        m->next_offset += written.count;
    }
    CHECK(codec != 0 || written.count == s.records.count);
    m->compressed |= codec != 0;
    if (!m->compressed) {
        m->records += s.records.count;
    }
}

static void store(uint8_t *p, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        p[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
    }
}

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void damage(made *m)
{
    static const uint64_t lengths[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0x80000000, 0xffffffff};
    for (uint32_t n = 1 + draw(3); n > 0 && m->size > 0; n--) {
        int64_t pos = draw((uint32_t)m->size);
        switch (draw(7)) {
        case 0:
            m->bytes[pos] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            m->bytes[pos] = (uint8_t)draw(256);
            break;
        case 2:
            m->size = pos;
            break;
        case 3:
            memset(m->bytes + pos, 0, (size_t)(m->size - pos));
            break;
        case 4: /* a number of 1, 2, 4 or 8 bytes */
            if (pos + 8 <= m->size) {
                store(m->bytes + pos, lengths[draw(8)], 1 << draw(4));
            }
            break;
        case 5: /* the end of the entry where it was cut */
            if (m->size >= 18) {
                store(m->bytes + 8, (uint64_t)(m->size - 12), 4);
            }
            break;
        default:
            memmove(m->bytes + pos, m->bytes + pos + 1, (size_t)(m->size - pos - 1));
            m->size -= 1;
            break;
        }
    }
}

/* Give every entry that is whole the checksum of its bytes: what lies behind it gets tested too. */
static void mend(made *m)
{
    int64_t pos = 0;
    while (m->size - pos >= 18) {
        uint8_t *p = m->bytes + pos;
        int64_t size = 12 + (int64_t)load32(p + 8);
        if (size > m->size - pos || size < 26 || (p[16] >= 2 && size < 61)) {
            break;
        }
        if (p[16] >= 2) {
            store(p + 17, ls_crc32c(0, p + 21, size - 21), 4);
        } else {
            store(p + 12, ls_crc32(0, p + 16, size - 16), 4);
        }
        pos += size;
    }
}

#endif
