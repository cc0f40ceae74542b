/*
 * fuzz_decode.c - arbitrary bytes through every decoder of the C core, for the sanitizers.
 *
 *     fuzz_decode SEED EXECUTIONS
 *
 * Each execution makes entries of all magics with the encoders, or random bytes, damages them (or not),
 * mends the checksums (or not) and passes an exact-size heap copy to every function that reads.  Reads outside
 * end the process; so does a property that does not hold:
 *   (1) undamaged entries come back as they were written;
 *   (2) a walk returns an error or a stop, at a position in the buffer;
 *   (3) slices that are put out lie in the buffer, offsets in the range asked for;
 *   (4) what a call counts fits the space that it was given;
 *   (5) a batch with another time has a right checksum, and one message at a time is written as many are.
 * The same seed does the same.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_made.h"
#include "fuzz_compact.h"

enum { COLUMNS = 9 };

static volatile uint64_t sink; /* so that every byte put out is really read */

/* ------------------------------------------------------------------ reading */

typedef struct space {
    ls_columns columns;
    void *memory[COLUMNS];
} space;

static void space_open(space *s, int64_t capacity)
{
    static const int64_t bytes[COLUMNS] = {8, 8, 4, 4, 4, 4, 4, 4, 1};
    for (int i = 0; i < COLUMNS; i++) {
        s->memory[i] = malloc((size_t)(bytes[i] * (capacity > 0 ? capacity : 1)));
        CHECK(s->memory[i] != NULL);
    }
    int headers = draw(4) != 0;
    s->columns = (ls_columns){capacity,     0,
                              s->memory[0], s->memory[1],
                              s->memory[2], s->memory[3],
                              s->memory[4], s->memory[5],
                              headers ? s->memory[6] : NULL, headers ? s->memory[7] : NULL,
                              draw(4) != 0 ? s->memory[8] : NULL};
}

static void space_close(space *s)
{
    for (int i = 0; i < COLUMNS; i++) {
        free(s->memory[i]);
    }
}

static void read_slice(const uint8_t *buf, int64_t size, int32_t pos, int32_t len)
{
    CHECK(len >= -1);
    if (len > 0) {
        CHECK(pos >= 0 && pos <= size - len);
        sink += buf[pos] + buf[pos + len - 1];
    }
}

/* Everything in the columns from `first` on, headers too (3). */
static void read_columns(const uint8_t *buf, int64_t size, const ls_columns *c, int64_t first,
                         int64_t start, int64_t stop)
{
    for (int64_t i = first; i < c->count; i++) {
        CHECK(c->offset[i] >= start && c->offset[i] < stop);
        read_slice(buf, size, c->key_pos[i], c->key_len[i]);
        read_slice(buf, size, c->value_pos[i], c->value_len[i]);
        if (c->header_count != NULL && c->header_count[i] > 0) {
            int32_t n = c->header_count[i];
            int32_t *slices = malloc(4 * sizeof(int32_t) * (size_t)n);
            ls_error error;
            CHECK(slices != NULL);
            CHECK(ls_decode_headers(buf, size, c->header_pos[i], n, slices, slices + n, slices + 2 * n,
                                    slices + 3 * n, &error) == LS_OK);
            for (int32_t k = 0; k < n; k++) {
                CHECK(slices[n + k] >= 0);
                read_slice(buf, size, slices[k], slices[n + k]);
                read_slice(buf, size, slices[2 * n + k], slices[3 * n + k]);
            }
            free(slices);
        }
    }
    /* The same as columns of Arrow's: values one after the other, keys as views. */
    int64_t total = ls_sum_lengths(c->value_len + first, c->count - first);
    int64_t n = c->count - first;
    uint8_t *data = malloc((size_t)total + 1);
    uint8_t *views = malloc(LS_VIEW_BYTES * (size_t)n + 1);
    uint8_t *validity = calloc((size_t)n / 4 + 2, 1);
    int32_t *offsets = calloc((size_t)n + 1, sizeof *offsets);
    CHECK(data != NULL && views != NULL && validity != NULL && offsets != NULL);
    ls_arrow_rows rows = {.capacity = n};
    rows.value = (ls_arrow_column){.data = data, .data_capacity = total, .offsets = offsets, .validity = validity};
    rows.key = (ls_arrow_column){.views = views, .validity = validity + n / 8 + 1};
    CHECK(ls_fill_rows(c, first, n, buf, &rows) == n);
    CHECK(rows.count == n && offsets[n] == total);
    free(data);
    free(views);
    free(validity);
    free(offsets);
}

static void try_payload(const ls_batch *batch, const uint8_t *data, int64_t size, uint32_t checks)
{
    space s;
    ls_error error;
    int64_t base;
    int64_t count;
    ls_batch header = *batch;
    if (header.codec == 0 && header.magic < 2) {
        header.codec = 1;
    }
    uint8_t *payload = exact(data, size);
    space_open(&s, draw(3) == 0 ? draw(4) : RECORDS_MAX);
    int64_t start = draw(3) == 0 ? draw(40) : INT64_MIN;
    int64_t stop = draw(3) == 0 ? draw(40) : INT64_MAX;
    int32_t status = ls_decode_payload(&header, payload, size, checks, start, stop, &s.columns, &base, &error);
    CHECK(status == LS_OK || (status < 0 && status == error.status));
    CHECK(s.columns.count <= s.columns.capacity);
    CHECK(status == LS_OK || s.columns.count == 0);
    CHECK(error.pos >= 0 && error.pos <= size);
    read_columns(payload, size, &s.columns, 0, start, stop);
    status = ls_count_inner(payload, size, &count, &error);
    CHECK(status <= 0);
    space_close(&s);
    free(payload);
}

/* Another time in place: the checksum is right afterwards, and the rest of the walk as before (5). */
static void try_restamp(const uint8_t *buf, const ls_batch *batch)
{
    uint8_t *copy = exact(buf + batch->pos, batch->size);
    ls_batch header = *batch;
    ls_batch again;
    ls_walk walk = {.last_offset = -1};
    int64_t timestamp = (int64_t)random_state;
    header.pos = 0;
    CHECK(ls_restamp(copy, &header, timestamp) == LS_OK);
    int32_t status = ls_scan_batches(copy, header.size, header.magic == 0 ? 0 : LS_CHECK_CRC, &again, 1, &walk);
    CHECK(status == LS_OK && walk.stop == LS_STOP_FULL && walk.count == 1);
    CHECK(header.magic == 0 || (again.timestamp_type == 1 && again.max_timestamp == timestamp));
    CHECK(again.attributes == (header.magic == 0 ? header.attributes : header.attributes | 8));
    free(copy);
}

/* Where a walk may be told to begin; what was made follows `first`. */
static int64_t draw_last_offset(int64_t first, uint32_t checks, int intact)
{
    int64_t before[] = {first - 1, LS_OFFSET_UNKNOWN, -1, INT64_MAX, INT64_MIN, draw(40)};
    if (intact && (checks & LS_CHECK_GAPLESS) == 0) {
        return -1;
    }
    return before[draw(intact ? 2 : 6)];
}

static void try_scan(const made *m, const uint8_t *buf, uint32_t checks, int intact)
{
    int64_t size = m->size;
    int64_t capacity = draw(4) == 0 ? draw(3) : 16;
    ls_batch *out = malloc(sizeof *out * (size_t)(capacity > 0 ? capacity : 1));
    const int64_t first = draw_last_offset(m->first_offset, checks, intact);
    ls_walk walk = {.last_offset = first};
    CHECK(out != NULL);
    int32_t status = ls_scan_batches(buf, size, checks, out, capacity, &walk);
    CHECK(!intact || status == LS_OK);
    CHECK(status < 0 ? walk.error.status == status && walk.error.pos == walk.pos : walk.stop > 0);
    CHECK(walk.pos >= 0 && walk.pos <= size && walk.count <= capacity);
    for (int64_t i = 0; i < walk.count; i++) {
        ls_batch found;
        ls_walk seek = {.last_offset = first};
        CHECK(ls_seek_batch(buf, size, checks, out[i].last_offset, &found, &seek) == LS_OK);
        CHECK(seek.stop == LS_STOP_OFFSET && seek.pos == found.pos && found.last_offset >= out[i].last_offset);
        CHECK(found.pos <= out[i].pos && found.pos + found.size <= size);
    }
    for (int64_t i = 0; i < walk.count; i++) {
        CHECK(out[i].pos + out[i].size <= size);
        CHECK(out[i].payload_size >= -1);
        if (out[i].payload_size >= 0) {
            CHECK(out[i].payload_pos + (int64_t)out[i].payload_size <= out[i].size);
            try_payload(&out[i], buf + out[i].pos + out[i].payload_pos, out[i].payload_size, checks);
        }
        try_payload(&out[i], buf, size, checks);
        try_restamp(buf, &out[i]);
    }
    free(out);
}

/* Other offsets in place: what was walked over is as sound as before, and its bytes under a checksum the same. */
static void try_shift(const made *m, const uint8_t *buf)
{
    int64_t shift = draw(2) == 0 ? draw(1000) : (int64_t)random_state;
    int64_t first = draw_last_offset(m->first_offset, LS_CHECK_GAPLESS, 0);
    uint8_t *copy = exact(buf, m->size);
    ls_walk walk = {.last_offset = first};
    ls_batch *out = malloc(sizeof *out * 64);
    CHECK(out != NULL);
    ls_shift how = {.offsets = shift, .max_bytes = INT64_MAX, .timestamp = -1, .leader_epoch = 3, .magic = -1};
    if (draw(2) == 0) {
        how.max_bytes = draw(400);
        how.timestamp = (int64_t)draw(3) - 1;
        how.stamps_all = (int32_t)draw(2);
        how.magic = (int32_t)draw(3);
    }
    int32_t status = ls_shift_offsets(copy, m->size, &how, &walk);
    CHECK(status == LS_OK ? walk.stop > 0 : status < 0);
    CHECK(walk.pos >= 0 && walk.pos <= m->size);
    CHECK(memcmp(copy + walk.pos, buf + walk.pos, (size_t)(m->size - walk.pos)) == 0);
    if (walk.pos > 0 && walk.count <= 64) {
        ls_walk again = {.last_offset = LS_OFFSET_UNKNOWN};
        CHECK(ls_scan_batches(copy, walk.pos, LS_CHECK_CRC | LS_CHECK_ORDER, out, 64, &again) == LS_OK);
        CHECK(again.count == walk.count && again.last_offset == walk.last_offset + shift);
    }
    free(out);
    free(copy);
}

/* A column of somebody's: what comes out lies in its data, whatever its positions say. */
static void try_arrow(const uint8_t *buf, int64_t size)
{
    int64_t n = draw(12);
    int64_t first = draw(8) == 0 ? (int64_t)(random_state >> draw(64)) : (int64_t)draw(4);
    int64_t offsets_bytes = draw(120);
    int64_t validity_bytes = draw(4);
    uint8_t *offsets = malloc((size_t)offsets_bytes + 1);
    uint8_t *validity = malloc((size_t)validity_bytes + 1);
    int64_t pos[12];
    int32_t len[12];
    ls_error error;
    CHECK(offsets != NULL && validity != NULL);
    for (int64_t i = 0; i < offsets_bytes; i++) {
        offsets[i] = (uint8_t)(draw(3) == 0 ? draw(256) : 0);
    }
    for (int64_t i = 0; i < offsets_bytes / 8 && draw(2) == 0; i++) {
        int64_t rising = i * 3;
        memcpy(offsets + i * 8, &rising, 8);
    }
    for (int64_t i = 0; i < validity_bytes; i++) {
        validity[i] = (uint8_t)draw(256);
    }
    ls_arrow_binary column = {.validity = draw(2) == 0 ? NULL : validity,
                              .validity_bytes = validity_bytes,
                              .offsets = draw(16) == 0 ? NULL : offsets,
                              .offsets_bytes = offsets_bytes,
                              .data_bytes = size,
                              .large = (int64_t)draw(2)};
    int32_t status = ls_slices_from_arrow(&column, first, n, pos, len, &error);
    CHECK(status == LS_OK || (status == error.status && (status == LS_E_LENGTH || status == LS_E_TOO_LARGE)));
    for (int64_t i = 0; status == LS_OK && i < n; i++) {
        CHECK(pos[i] >= 0 && pos[i] <= size && len[i] >= -1 && len[i] <= size - pos[i]);
        if (len[i] > 0) {
            (void)ls_crc32(0, buf + pos[i], len[i]);
        }
    }
    free(offsets);
    free(validity);
}

static void try_decode(const made *m, const uint8_t *buf, uint32_t checks, int intact)
{
    space s;
    int64_t size = m->size;
    int64_t start = draw(4) == 0 ? draw(20) : INT64_MIN;
    int64_t stop = draw(4) == 0 ? draw(20) : INT64_MAX;
    ls_walk walk = {.last_offset = draw_last_offset(m->first_offset, checks, intact)};
    int32_t status;
    int64_t records = 0;
    space_open(&s, draw(4) == 0 ? 1 + draw(8) : RECORDS_MAX);
    do {
        s.columns.count = 0;
        status = ls_decode(buf, size, checks, start, stop, &s.columns, &walk);
        CHECK(status < 0 ? walk.error.status == status && walk.error.pos == walk.pos : walk.stop > 0);
        CHECK(walk.pos >= 0 && walk.pos <= size);
        CHECK(s.columns.count == walk.count && walk.count <= s.columns.capacity);
        CHECK(walk.stop != LS_STOP_FULL || walk.count > 0);
        read_columns(buf, size, &s.columns, 0, start, stop);
        records += walk.count;
    } while (status == LS_OK && walk.stop == LS_STOP_FULL);
    if (intact && start < 0 && stop == INT64_MAX && status != LS_E_NO_SPACE) {
        CHECK(status == LS_OK && records == m->records);
        CHECK(walk.stop == (m->compressed ? LS_STOP_COMPRESSED : LS_STOP_END));
    }
    space_close(&s);
}

static void try_plan(const uint8_t *buf, int64_t size)
{
    int64_t index_capacity = draw(5);
    int64_t time_capacity = draw(5);
    uint8_t *index = malloc((size_t)index_capacity * 8 + 1);
    uint8_t *times = malloc((size_t)time_capacity * 12 + 1);
    ls_roll_limits limits = {draw(500), draw(1000), 1700000000000, draw(200), draw(6), draw(6), (int64_t)draw(2)};
    ls_segment_state state = {.last_offset = -1,     .max_timestamp = -1, .max_timestamp_offset = -1,
                              .first_timestamp = -1, .time_last = -1,     .created_ms = 1700000000000};
    ls_plan plan;
    ls_error error;
    CHECK(index != NULL && times != NULL);
    if (draw(4) == 0) {
        state.size = (int64_t)draw(2) << 31;
        state.bytes_since = draw(1000);
        state.base_offset = (int64_t)(random_state >> draw(64));
    }
    int32_t status = ls_plan_append(buf, size, draw(2) == 0 ? NULL : &limits, draw(200), &state, index,
                                    index_capacity, times, time_capacity, &plan, &error);
    CHECK(status < 0 ? error.status == status : plan.stop > 0);
    CHECK(plan.bytes >= 0 && plan.bytes <= size);
    CHECK(plan.index_count <= index_capacity && plan.time_count <= time_capacity);
    CHECK(ls_offset_index_check(index, plan.index_count, INT64_MAX) <= plan.index_count);
    free(index);
    free(times);
}

/* Records one at a time, against all in one call (5). */
static void try_append(void)
{
    source s;
    int32_t magic = (int32_t)draw(2);
    ls_cursor cursor = {0};
    ls_written written;
    int64_t room = draw(6) == 0 ? draw(300) : BYTES_MAX;
    uint8_t *whole = malloc(BYTES_MAX);
    uint8_t *index = malloc(8);
    uint8_t *times = malloc(12);
    CHECK(whole != NULL && index != NULL && times != NULL);
    make_source(&s, magic);
    ls_roll_limits limits = {draw(4) == 0 ? draw(500) : INT32_MAX, INT64_MAX, 0, draw(100), 100, 100, (int64_t)draw(2)};
    ls_segment_state state = {.max_timestamp = -1, .max_timestamp_offset = -1, .first_timestamp = -1, .time_last = -1};
    state.base_offset = draw(8) == 0 ? INT64_MAX - (int64_t)draw(4) : (int64_t)draw(100);
    state.last_offset = state.base_offset - 1;
    int64_t first = state.base_offset;
    CHECK(ls_encode_messages(&s.records, &cursor, INT64_MAX, magic, 0, first, whole, BYTES_MAX, &written) == LS_OK);
    const uint8_t *key = s.data;
    const uint8_t *value = s.data;
    int64_t done = 0;
    for (int64_t i = 0; i < s.records.count; i++) {
        ls_plan plan;
        ls_error error;
        int64_t timestamp = s.records.timestamp != NULL ? s.timestamp[i] : s.records.timestamp_all;
        uint8_t *out = malloc((size_t)room + 1);
        CHECK(out != NULL);
        ls_records one = {.count = 1, .timestamp_all = timestamp};
        one.key = (ls_slices){.data = key, .len = &s.key_len[i]};
        one.value = (ls_slices){.data = value, .len = &s.value_len[i]};
        int64_t size = ls_append_records(&one, magic, 0, 0, BYTES_MAX, BYTES_MAX, &limits, &state, out, room, index,
                                         times, 1, &plan, &error);
        int at_end = first > INT64_MAX - i;
        CHECK(at_end ? size == LS_E_ARGUMENT : size >= 0 && size <= room);
        if (size > 0) {
            CHECK(plan.bytes == size && plan.index_count <= 1 && plan.time_count <= 1);
            CHECK(memcmp(out, whole + done, (size_t)size) == 0);
            CHECK(state.last_offset == first + i && state.size == done + size);
        }
        free(out);
        if (size <= 0) {
            break;
        }
        done += size;
        key += s.key_len[i] > 0 ? s.key_len[i] : 0;
        value += s.value_len[i] > 0 ? s.value_len[i] : 0;
    }
    free(whole);
    free(index);
    free(times);
}

/* Every path has the same checksum, at any address and from any value. */
static void try_crc(const uint8_t *buf, int64_t size)
{
    uint32_t begin = draw(UINT32_MAX);
    int64_t skip = draw((uint32_t)size + 1);
    int32_t ok;
    uint32_t crc32 = ls_crc32_path(LS_CRC_PORTABLE, begin, buf + skip, size - skip, &ok);
    uint32_t crc32c = ls_crc32c_path(LS_CRC_PORTABLE, begin, buf + skip, size - skip, &ok);
    CHECK(ok);
    for (int32_t path = LS_CRC_HARDWARE; path <= LS_CRC_DOUBLE; path++) {
        uint32_t found = ls_crc32_path(path, begin, buf + skip, size - skip, &ok);
        CHECK(found == (ok ? crc32 : begin));
        found = ls_crc32c_path(path, begin, buf + skip, size - skip, &ok);
        CHECK(found == (ok ? crc32c : begin));
    }
}

static void try_small(const uint8_t *buf, int64_t size)
{
    int64_t a;
    int64_t b;
    int32_t v32;
    int64_t count = size / 12;
    int64_t slot = ls_offset_index_floor(buf, size / 8, (int64_t)draw(1u << 31), &a, &b);
    CHECK(slot >= -1 && slot < (size / 8 > 0 ? size / 8 : 1));
    slot = ls_time_index_floor(buf, count, (int64_t)random_state, &a, &b);
    CHECK(slot >= -1 && slot < (count > 0 ? count : 1));
    sink += (uint64_t)ls_offset_index_check(buf, size / 8, size);
    sink += (uint64_t)ls_time_index_check(buf, count);
    sink += (uint64_t)ls_murmur2(buf, size);
    int32_t status = ls_varint_get32(buf, size, &v32);
    CHECK(status <= 5 && status <= size);
    status = ls_varint_get64(buf, size, &a);
    CHECK(status <= 10 && status <= size);
    int32_t slices[4][8];
    ls_error error;
    int64_t pos = draw((uint32_t)size + 1);
    if (ls_decode_headers(buf, size, pos, (int32_t)draw(8), slices[0], slices[1], slices[2], slices[3], &error)
        == LS_OK) {
        sink += 1;
    }
}

static void run_one(void)
{
    static const uint32_t all_checks[] = {3, 7, 7, 0, LS_CHECK_CRC, LS_CHECK_ORDER, LS_CHECK_GAPLESS};
    made m;
    int intact = draw(8) == 0;
    m.size = 0;
    m.records = 0;
    m.compressed = 0;
    m.first_offset = draw(20);
    m.next_offset = m.first_offset;
    if (draw(16) == 0) {
        intact = 0;
        m.size = draw(200);
        for (int64_t i = 0; i < m.size; i++) {
            m.bytes[i] = (uint8_t)(draw(3) == 0 ? draw(256) : draw(4));
        }
    } else {
        for (uint32_t n = draw(4); n > 0; n--) {
            make_entry(&m);
        }
    }
    if (!intact) {
        damage(&m);
    }
    if (!intact && draw(4) != 0) {
        mend(&m);
    }
    uint32_t checks = all_checks[draw(7)];
    uint8_t *buf = exact(m.bytes, m.size);
    try_scan(&m, buf, checks, intact);
    try_shift(&m, buf);
    try_arrow(buf, m.size);
    try_decode(&m, buf, checks, intact);
    try_plan(buf, m.size);
    try_small(buf, m.size);
    try_crc(buf, m.size);
    try_append();
    try_compact(buf, m.size, checks);
    free(buf);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: fuzz_decode SEED EXECUTIONS\n");
        return 2;
    }
    long long executions = atoll(argv[2]);
    random_state = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    for (execution = 0; execution < executions; execution++) {
        run_one();
    }
    printf("%lld executions\n", executions);
    return 0;
}
