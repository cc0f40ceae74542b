/*
 * pyrecords_arrow.c - columns of an Arrow record batch, as the core takes them, by Arrow's C data interface
 * (https://arrow.apache.org/docs/format/CDataInterface.html).
 *
 * The interface gives addresses, but no sizes.  The caller has had Arrow validate the batch: its buffers have the bytes
 * that its rows need.  The caller also passes the sizes of the data.  Each position is read once and checked, since
 * other programs may change the buffers at any time.  Values are not copied: the core reads them in place.  No Python
 * code runs in here.
 */
#include "pyrecords_append.h"

#include <string.h>

/* The structures of the interface, whose layout it fixes. */
struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

enum { BINARY_BUFFERS = 3, NUMBER_BUFFERS = 2 };

/* Whether a column is of a kind that is read here: plain values, no dictionary and no extension. */
static int pyrecords_is_kind(const struct ArrowSchema *kind, const struct ArrowArray *column, int64_t buffers)
{
    return kind->metadata == NULL && kind->dictionary == NULL && column->n_buffers == buffers && column->offset >= 0;
}

static int pyrecords_is_binary(const struct ArrowSchema *kind, const struct ArrowArray *column)
{
    return pyrecords_is_kind(kind, column, BINARY_BUFFERS)
        && (strcmp(kind->format, "z") == 0 || strcmp(kind->format, "u") == 0);
}

static int pyrecords_is_milliseconds(const struct ArrowSchema *kind, const struct ArrowArray *column)
{
    return pyrecords_is_kind(kind, column, NUMBER_BUFFERS)
        && (strncmp(kind->format, "tsm:", 4) == 0 || strcmp(kind->format, "l") == 0);
}

/* Column number `at` of a batch; NULL if it does not exist, or has another length. */
static const struct ArrowArray *pyrecords_child(const struct ArrowArray *batch, int64_t at)
{
    const struct ArrowArray *column = at >= 0 && at < batch->n_children ? batch->children[at] : NULL;
    return column != NULL && column->length == batch->length ? column : NULL;
}

int pyrecords_open_arrow(const struct ArrowSchema *schema, const struct ArrowArray *batch,
                         const pyrecords_arrow_place places[PYRECORDS_ARROW_COLUMNS],
                         pyrecords_arrow *columns)
{
    if (strcmp(schema->format, "+s") != 0 || schema->n_children != batch->n_children || batch->offset != 0
        || batch->null_count != 0) {
        return 0;
    }
    for (int i = 0; i < PYRECORDS_ARROW_COLUMNS; i++) {
        if (places[i].number < 0) {
            continue;
        }
        const struct ArrowArray *column = pyrecords_child(batch, places[i].number);
        if (column == NULL) {
            return 0;
        }
        const struct ArrowSchema *kind = schema->children[places[i].number];
        int is_known = i == PYRECORDS_ARROW_TIMES ? pyrecords_is_milliseconds(kind, column)
                                                  : pyrecords_is_binary(kind, column);
        if (!is_known) {
            return 0;
        }
        columns->column[i] = column;
        columns->bytes[i] = places[i].bytes;
    }
    columns->count = batch->length;
    return 1;
}

/* Where the elements of a column are: 1, or 0 where a position falls, or is not in the `bytes` of its data. */
static int pyrecords_positions(const struct ArrowArray *column, int64_t bytes, int64_t count, pyrecords_column *out,
                               ls_slices *slices)
{
    const uint8_t *validity = column->buffers[0]; /* a bit for each element; NULL: all are there */
    const uint8_t *positions = (const uint8_t *)column->buffers[1];
    if (positions == NULL) {
        return 0;
    }
    positions += (size_t)column->offset * sizeof(int32_t);
    int32_t begin;
    memcpy(&begin, positions, sizeof(begin));
    int is_ordered = begin >= 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t end;
        memcpy(&end, positions + (size_t)(i + 1) * sizeof(end), sizeof(end));
        is_ordered &= begin <= end;
        out->pos[i] = begin;
        out->len[i] = (int32_t)((uint32_t)end - (uint32_t)begin);
        begin = end;
    }
    /* Positions never decrease, so none is after the last one. */
    if (!is_ordered || begin > bytes) {
        return 0;
    }
    for (int64_t i = 0; validity != NULL && i < count; i++) {
        int64_t bit = column->offset + i;
        if ((validity[bit / 8] >> (bit % 8) & 1) == 0) {
            out->len[i] = -1;
        }
    }
    *slices = (ls_slices){.data = column->buffers[2], .pos = out->pos, .len = out->len};
    return 1;
}

/* The timestamps of a column: 1, or 0 if one is missing or cannot be stored. */
static int pyrecords_stamps(const struct ArrowArray *column, int64_t count, int64_t *out)
{
    if ((column->null_count != 0 && column->buffers[0] != NULL) || column->buffers[1] == NULL) {
        return 0;
    }
    memcpy(out, (const uint8_t *)column->buffers[1] + (size_t)column->offset * sizeof(int64_t),
           (size_t)count * sizeof(int64_t));
    int64_t smallest = 0;
    for (int64_t i = 0; i < count; i++) {
        smallest = out[i] < smallest ? out[i] : smallest;
    }
    return smallest >= -1;
}

int pyrecords_rows_of_arrow(const pyrecords_arrow *columns, ls_records *rows)
{
    const struct ArrowArray *values = columns->column[PYRECORDS_ARROW_VALUES];
    const struct ArrowArray *keys = columns->column[PYRECORDS_ARROW_KEYS];
    const struct ArrowArray *times = columns->column[PYRECORDS_ARROW_TIMES];
    int is_whole = columns->count == rows->count;
    if (is_whole && values != NULL) {
        is_whole = pyrecords_positions(values, columns->bytes[PYRECORDS_ARROW_VALUES], rows->count, &pyrecords_values,
                                       &rows->value);
    }
    if (is_whole && keys != NULL) {
        is_whole = pyrecords_positions(keys, columns->bytes[PYRECORDS_ARROW_KEYS], rows->count, &pyrecords_keys,
                                       &rows->key);
    }
    if (is_whole && times != NULL) {
        rows->timestamp = pyrecords_times;
        is_whole = pyrecords_stamps(times, rows->count, pyrecords_times);
    }
    return is_whole;
}
