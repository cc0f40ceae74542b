/*
 * ls_columns.c - columns of slices: into and from Arrow columns, and the size of records before they are written.
 *
 * Trusts the positions and lengths that it is given (the decoders have checked them), except in Arrow columns,
 * which come from callers; never writes beyond the capacity.
 */
#include "ls_internal.h"
#include "ls_varint.h"

/* ------------------------------------------------------------------ into Arrow */

int64_t ls_sum_lengths(const int32_t *len, int64_t n)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += len[i] > 0 ? len[i] : 0;
    }
    return sum;
}

int64_t ls_smallest(const int64_t *numbers, int64_t n)
{
    int64_t smallest = INT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        smallest = numbers[i] < smallest ? numbers[i] : smallest;
    }
    return smallest;
}

int64_t ls_first_null(const int32_t *len, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (len[i] < 0) {
            return i;
        }
    }
    return -1;
}

/* Set bits at .. at + n - 1 to "len is not null"; the other bits of the first and last byte stay.  Returns the number
   of nulls. */
static int64_t ls_columns_validity(const int32_t *len, int64_t n, uint8_t *validity, int64_t at)
{
    int64_t nulls = 0;
    int64_t i = 0;
    while (i < n) {
        int64_t bit = at + i;
        if ((bit & 7) == 0 && n - i >= 8) {
            unsigned missing = 0;
            for (int k = 0; k < 8; k++) {
                missing |= (unsigned)(len[i + k] < 0) << k;
            }
            validity[bit >> 3] = (uint8_t)~missing;
            for (; LS_UNLIKELY(missing != 0); missing &= missing - 1) {
                nulls += 1;
            }
            i += 8;
        } else {
            unsigned mask = 1u << (bit & 7);
            unsigned byte = validity[bit >> 3];
            byte = len[i] >= 0 ? byte | mask : byte & ~mask;
            validity[bit >> 3] = (uint8_t)byte;
            nulls += len[i] < 0;
            i += 1;
        }
    }
    return nulls;
}

/* How many of the next n slices fit after the bytes that a binary column has. */
static int64_t ls_columns_fitting(const ls_arrow_column *column, int64_t at, const int32_t *len, int64_t n)
{
    if (column->offsets == NULL) {
        return n;
    }
    int64_t limit = column->data_capacity < INT32_MAX ? column->data_capacity : INT32_MAX;
    int64_t room = limit - column->offsets[at];
    if (ls_sum_lengths(len, n) <= room) {
        return n;
    }
    int64_t fitting = 0;
    while (fitting < n && (len[fitting] <= 0 || len[fitting] <= room)) {
        room -= len[fitting] > 0 ? len[fitting] : 0;
        fitting += 1;
    }
    return fitting;
}

static void ls_columns_gather(const uint8_t *buf, const int32_t *pos, const int32_t *len, int64_t n,
                              const ls_arrow_column *column, int64_t at)
{
    uint8_t *data = column->data;
    int32_t *ends = column->offsets + at + 1;
    int64_t end = column->offsets[at];
    for (int64_t i = 0; i < n; i++) {
        if (len[i] > 0) {
            ls_bytes_copy(data + end, buf + pos[i], len[i]);
            end += len[i];
        }
        ends[i] = (int32_t)end;
    }
}

/* A view of Arrow's has the length, and all of the bytes, or four of them and their position.  Returns how many are
    in the buffer. */
static int64_t ls_columns_point(const uint8_t *buf, const int32_t *pos, const int32_t *len, int64_t n,
                                const ls_arrow_column *column, int64_t at)
{
    const uint64_t buffer = (uint32_t)column->buffer;
    uint8_t *out = column->views + at * LS_VIEW_BYTES;
    int64_t apart = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *p = buf + pos[i];
        uint64_t low = len[i] > 0 ? (uint64_t)len[i] : 0;
        uint64_t high = 0;
        if (len[i] > LS_VIEW_INLINE_MAX) {
            low |= (uint64_t)ls_bytes_load_le32(p) << 32;
            high = buffer | (uint64_t)pos[i] << 32;
            apart += 1;
        } else if (len[i] >= 8) {
            low |= (uint64_t)ls_bytes_load_le32(p) << 32;
            /* The last bytes, and above them nothing. */
            high = ls_bytes_load_le64(p + len[i] - 8) >> (8 * (LS_VIEW_INLINE_MAX - len[i]));
        } else {
            for (int32_t k = 0; k < len[i]; k++) {
                if (k < 4) {
                    low |= (uint64_t)p[k] << (32 + 8 * k);
                } else {
                    high |= (uint64_t)p[k] << (8 * (k - 4));
                }
            }
        }
        memcpy(out, &low, sizeof low);
        memcpy(out + sizeof low, &high, sizeof high);
        out += LS_VIEW_BYTES;
    }
    return apart;
}

static void ls_columns_put(const uint8_t *buf, const int32_t *pos, const int32_t *len, int64_t n,
                           ls_arrow_column *column, int64_t at)
{
    if (column->views != NULL) {
        column->apart += ls_columns_point(buf, pos, len, n, column, at);
    } else if (column->offsets != NULL) {
        ls_columns_gather(buf, pos, len, n, column, at);
    } else {
        return;
    }
    column->nulls += ls_columns_validity(len, n, column->validity, at);
}

static void ls_columns_put_types(const int8_t *types, int64_t n, int32_t *restrict out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = types[i];
    }
}

/* Validity bits of the timestamps: cleared in magic 0, and if a producer set no timestamp. */
static void ls_columns_put_timed(const int64_t *timestamps, int64_t n, ls_arrow_rows *rows, int64_t at)
{
    int64_t none = 0;
    for (int64_t i = 0; i < n; i++) {
        none |= -(int64_t)(timestamps[i] == LS_NO_TIMESTAMP);
    }
    /* A bitmap that says nothing is not written: rows->untimed 0 says it, too. */
    if (!none && rows->untimed == 0) {
        return;
    }
    if (rows->untimed == 0) {
        memset(rows->timed, 0xff, (size_t)(at / 8 + 1));
    }
    for (int64_t i = 0; i < n; i++) {
        int is_untimed = timestamps[i] == LS_NO_TIMESTAMP;
        uint8_t mask = (uint8_t)(1u << ((at + i) & 7));
        uint8_t *byte = &rows->timed[(at + i) >> 3];
        *byte = (uint8_t)(is_untimed ? *byte & ~mask : *byte | mask);
        rows->untimed += is_untimed;
    }
}

int64_t ls_fill_rows(const ls_columns *columns, int64_t first, int64_t n, const uint8_t *buf, ls_arrow_rows *rows)
{
    const int64_t at = rows->count;
    if (first < 0 || n < 0 || n > columns->count - first || at < 0 || at > rows->capacity) {
        return LS_E_ARGUMENT;
    }
    n = n < rows->capacity - at ? n : rows->capacity - at;
    n = ls_columns_fitting(&rows->key, at, columns->key_len + first, n);
    n = ls_columns_fitting(&rows->value, at, columns->value_len + first, n);
    if (n == 0) {
        return 0;
    }
    if (rows->offset != NULL) {
        memcpy(rows->offset + at, columns->offset + first, (size_t)n * sizeof *rows->offset);
    }
    if (rows->timestamp != NULL) {
        memcpy(rows->timestamp + at, columns->timestamp + first, (size_t)n * sizeof *rows->timestamp);
    }
    if (rows->timed != NULL) {
        ls_columns_put_timed(columns->timestamp + first, n, rows, at);
    }
    if (rows->timestamp_type != NULL) {
        ls_columns_put_types(columns->timestamp_type + first, n, rows->timestamp_type + at);
    }
    ls_columns_put(buf, columns->key_pos + first, columns->key_len + first, n, &rows->key, at);
    ls_columns_put(buf, columns->value_pos + first, columns->value_len + first, n, &rows->value, at);
    rows->count = at + n;
    return n;
}

/* ------------------------------------------------------------------ from Arrow */

static inline int ls_columns_is_valid(const uint8_t *validity, int64_t i)
{
    return validity == NULL || (validity[i >> 3] >> (i & 7) & 1) != 0;
}

/* `offsets` may be unaligned: Arrow promises alignment only for its own allocations. */
static inline int64_t ls_columns_arrow_offset(const uint8_t *offsets, int32_t large, int64_t i)
{
    if (large) {
        int64_t wide;
        memcpy(&wide, offsets + i * (int64_t)sizeof wide, sizeof wide);
        return wide;
    }
    int32_t narrow;
    memcpy(&narrow, offsets + i * (int64_t)sizeof narrow, sizeof narrow);
    return narrow;
}

/* Whether the buffers have what n elements from `first` on need. */
static int ls_columns_arrow_fits(const ls_arrow_binary *column, int64_t first, int64_t n)
{
    const int64_t width = column->large ? (int64_t)sizeof(int64_t) : (int64_t)sizeof(int32_t);
    int64_t end;
    if (first < 0 || n < 0 || column->data_bytes < 0 || __builtin_add_overflow(first, n, &end)) {
        return 0;
    }
    if (n == 0) {
        return 1; /* Arrow allows an empty column without positions */
    }
    if (column->offsets == NULL || end >= column->offsets_bytes / width) {
        return 0;
    }
    return column->validity == NULL || (end - 1) / 8 < column->validity_bytes;
}

int32_t ls_slices_from_arrow(const ls_arrow_binary *column, int64_t first, int64_t n, int64_t *pos, int32_t *len,
                             ls_error *error)
{
    memset(error, 0, sizeof *error);
    if (!ls_columns_arrow_fits(column, first, n)) {
        return ls_error_set(error, LS_E_LENGTH, 0, -1, n, column->offsets_bytes);
    }
    const ls_arrow_binary in = *column;
    int64_t begin = n > 0 ? ls_columns_arrow_offset(in.offsets, in.large, first) : 0;
    if (begin < 0) {
        return ls_error_set(error, LS_E_LENGTH, begin, 0, in.data_bytes, begin);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t end = ls_columns_arrow_offset(in.offsets, in.large, first + i + 1);
        if (LS_UNLIKELY(end < begin || end > in.data_bytes)) {
            return ls_error_set(error, LS_E_LENGTH, begin, i, in.data_bytes, end);
        }
        if (LS_UNLIKELY(end - begin > INT32_MAX)) {
            return ls_error_set(error, LS_E_TOO_LARGE, begin, i, INT32_MAX, end - begin);
        }
        pos[i] = begin;
        len[i] = ls_columns_is_valid(in.validity, first + i) ? (int32_t)(end - begin) : -1;
        begin = end;
    }
    return LS_OK;
}

/* ------------------------------------------------------------------ measuring */

/* Whether the bytes are UTF-8 (shortest forms, no surrogates, up to U+10FFFF). */
static int ls_columns_is_utf8(const uint8_t *p, int64_t size)
{
    int64_t i = 0;
    while (i < size) {
        uint32_t c = p[i++];
        int more = c < 0x80 ? 0 : c < 0xc2 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : -1;
        if (more < 0 || more > size - i) {
            return 0;
        }
        uint32_t point = more == 0 ? c : c & (0x3fu >> more);
        for (int k = 0; k < more; k++) {
            if ((p[i] & 0xc0) != 0x80) {
                return 0;
            }
            point = point << 6 | (p[i++] & 0x3f);
        }
        if ((more == 2 && (point < 0x800 || (point >= 0xd800 && point < 0xe000)))
            || (more == 3 && (point < 0x10000 || point > 0x10ffff))) {
            return 0;
        }
    }
    return 1;
}

static inline int64_t ls_columns_slice_bytes(int32_t len)
{
    return ls_varint_bytes(len) + (len < 0 ? 0 : (int64_t)len);
}

/* Bytes of the headers of one record, in *bytes. */
static int32_t ls_columns_measure_headers(const ls_records *records, ls_cursor *cursor, int32_t count,
                                          int64_t *bytes)
{
    *bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *data;
        int32_t len = ls_slices_next(&records->header_key, cursor->header, &cursor->header_key_at, &data);
        if (len < 0 || !ls_columns_is_utf8(data, len)) {
            return LS_E_HEADER_KEY;
        }
        *bytes += ls_columns_slice_bytes(len);
        len = ls_slices_next(&records->header_value, cursor->header, &cursor->header_value_at, &data);
        *bytes += ls_columns_slice_bytes(len);
        cursor->header += 1;
    }
    return LS_OK;
}

/* The most that a timestamp delta takes in a batch of any of these records. */
static int32_t ls_columns_delta_bytes(const ls_records *records)
{
    if (records->timestamp == NULL || records->count == 0) {
        return 1;
    }
    int64_t least = records->timestamp[0];
    int64_t most = least;
    for (int64_t i = 1; i < records->count; i++) {
        int64_t t = records->timestamp[i];
        least = t < least ? t : least;
        most = t > most ? t : most;
    }
    int64_t span;
    /* A span of 2^62 and more does not survive the zigzag: any delta may then wrap. */
    if (__builtin_sub_overflow(most, least, &span) || span > INT64_MAX / 2) {
        return LS_VARINT64_BYTES_MAX;
    }
    return ls_varint_bytes(span);
}

/* As ls_varint_bytes of a length, in a form that a compiler makes vectors of. */
static inline int64_t ls_columns_length_bytes(int64_t len)
{
    return 1 + (len >= 1 << 6) + (len >= 1 << 13) + (len >= 1 << 20) + (len >= 1 << 27);
}

/* Bytes of a key or value, with its length (magic 2), or without it. */
static inline int64_t ls_columns_bytes_of(const int32_t *len, int64_t i, int32_t magic)
{
    int64_t known = len[i] > 0 ? len[i] : 0;
    return magic == 2 ? known + ls_columns_length_bytes(known) : known;
}

/* Measure records without headers: `fixed` bytes of each are its other fields.  Returns 0 if one of them might be
    larger than the limit, or has a length below -1: then a slower pass finds it. */
static inline int ls_columns_measure_plain(const ls_records *records, int32_t magic, int64_t fixed, int64_t limit,
                                           int64_t *total)
{
    static const int32_t null = -1;
    const int32_t *key = records->key.len != NULL ? records->key.len : &null;
    const int32_t *value = records->value.len != NULL ? records->value.len : &null;
    const int64_t key_step = records->key.len != NULL;
    const int64_t value_step = records->value.len != NULL;
    int32_t least = 0;
    int64_t most = 0;
    int64_t sum = 0;
    for (int64_t i = 0; i < records->count; i++) {
        int64_t k = i * key_step;
        int64_t v = i * value_step;
        int64_t bytes = fixed + ls_columns_bytes_of(key, k, magic) + ls_columns_bytes_of(value, v, magic);
        bytes += magic == 2 ? ls_columns_length_bytes(bytes) : 0;
        least = key[k] < least ? key[k] : least;
        least = value[v] < least ? value[v] : least;
        most = bytes > most ? bytes : most;
        sum += bytes;
    }
    *total = sum;
    return least >= -1 && most + (magic == 2 ? LS_BATCH_HEADER_BYTES : 0) <= limit;
}

int32_t ls_measure(const ls_records *records, int32_t magic, int64_t max_bytes, int64_t *total,
                   ls_error *error)
{
    memset(error, 0, sizeof *error);
    *total = 0;
    if (magic < 0 || magic > LS_MAGIC_MAX || records->count < 0
        || (magic < 2 && records->header_count != NULL)) {
        return ls_error_set(error, LS_E_ARGUMENT, 0, -1, LS_MAGIC_MAX, magic);
    }
    const int64_t limit = max_bytes < INT32_MAX ? max_bytes : INT32_MAX;
    const int64_t fixed = magic == 0 ? LS_MESSAGE_MIN_BYTES_V0 : LS_MESSAGE_MIN_BYTES_V1;
    const int32_t delta_bytes = ls_columns_delta_bytes(records);
    const int32_t count_bytes = ls_varint_bytes(records->count);
    const int64_t others = LS_RECORD_ATTRIBUTES_BYTES + delta_bytes + count_bytes + ls_varint_bytes(0);
    if (records->header_count == NULL
        && ls_columns_measure_plain(records, magic, magic == 2 ? others : fixed, limit, total)) {
        return LS_OK;
    }
    *total = 0;
    ls_cursor headers = {0};
    int64_t sum = 0;
    for (int64_t i = 0; i < records->count; i++) {
        int32_t key_len = records->key.len != NULL ? records->key.len[i] : -1;
        int32_t value_len = records->value.len != NULL ? records->value.len[i] : -1;
        int64_t alone; /* the message, or the batch of this record only */
        if (key_len < -1 || value_len < -1) {
            return ls_error_set(error, LS_E_LENGTH, 0, i, -1, key_len < -1 ? key_len : value_len);
        }
        if (magic < 2) {
            alone = fixed + (key_len < 0 ? 0 : key_len) + (value_len < 0 ? 0 : (int64_t)value_len);
            sum += alone;
        } else {
            int32_t header_count = records->header_count != NULL ? records->header_count[i] : 0;
            int64_t header_bytes;
            if (header_count < 0) {
                return ls_error_set(error, LS_E_COUNT, 0, i, 0, header_count);
            }
            if (ls_columns_measure_headers(records, &headers, header_count, &header_bytes) != LS_OK) {
                return ls_error_set(error, LS_E_HEADER_KEY, 0, i, 0, headers.header);
            }
            int64_t body = LS_RECORD_ATTRIBUTES_BYTES + ls_columns_slice_bytes(key_len)
                         + ls_columns_slice_bytes(value_len) + ls_varint_bytes(header_count)
                         + header_bytes;
            alone = body + 2; /* both deltas are 0 */
            alone += ls_varint_bytes(alone) + LS_BATCH_HEADER_BYTES;
            body += delta_bytes + count_bytes;
            sum += ls_varint_bytes(body) + body;
        }
        if (alone > limit) {
            return ls_error_set(error, LS_E_TOO_LARGE, 0, i, limit, alone);
        }
    }
    *total = sum;
    return LS_OK;
}
