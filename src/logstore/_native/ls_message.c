/*
 * ls_message.c - messages of magic 0 and 1: parsing, decoding (plain and inside a wrapper), encoding.
 *
 * Trusts no byte that it reads; trusts the slices that it writes.  An uncompressed message is one record.
 * A wrapper is a message whose value, decompressed, is a sequence of uncompressed messages.  They may have the
 * other one of these two magics: the cleaners of Kafka 0.10 left them so (KAFKA-4298), and all releases since read it.
 */
#include "ls_internal.h"

/* Where key and value stand, once the lengths have been found to fill the message exactly. */
typedef struct ls_message_body {
    int64_t key_pos; /* from the start of the message */
    int64_t value_pos;
    int32_t key_len;
    int32_t value_len;
} ls_message_body;

static inline int64_t ls_message_key_pos(int32_t magic)
{
    return magic == 0 ? LS_MESSAGE_KEY_POS_V0 : LS_MESSAGE_KEY_POS_V1;
}

static inline int64_t ls_message_timestamp(const uint8_t *p, int32_t magic)
{
    return magic == 0 ? -1 : ls_bytes_load_i64(p + LS_MESSAGE_TIMESTAMP_POS);
}

static inline int32_t ls_message_timestamp_type(int32_t attributes, int32_t magic)
{
    return magic == 0 ? -1 : (attributes & LS_ATTRIBUTE_APPEND_TIME) != 0;
}

static inline int64_t ls_message_bytes_of(int32_t len)
{
    return len < 0 ? 0 : len;
}

/* The message at p is `size` bytes, at least the smallest of its magic.  False: the lengths do not fit. */
static inline int ls_message_split(const uint8_t *p, int64_t size, int32_t magic, ls_message_body *body)
{
    int64_t key_pos = ls_message_key_pos(magic) + LS_MESSAGE_LENGTH_BYTES;
    int64_t room = size - key_pos - LS_MESSAGE_LENGTH_BYTES; /* for the bytes of key and value */
    int32_t key_len = ls_bytes_load_i32(p + key_pos - LS_MESSAGE_LENGTH_BYTES);
    if (key_len < -1 || key_len > room) {
        return 0;
    }
    int64_t key_bytes = ls_message_bytes_of(key_len);
    int64_t value_pos = key_pos + key_bytes + LS_MESSAGE_LENGTH_BYTES;
    int32_t value_len = ls_bytes_load_i32(p + value_pos - LS_MESSAGE_LENGTH_BYTES);
    body->key_pos = key_pos;
    body->key_len = key_len;
    body->value_pos = value_pos;
    body->value_len = value_len;
    return value_len == room - key_bytes || (value_len == -1 && room == key_bytes);
}

/* The length that does not fit, and the bytes that there are. */
static int32_t ls_message_split_error(const uint8_t *p, int64_t pos, int64_t size, int32_t magic,
                                      ls_error *error)
{
    int64_t offset = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
    int64_t key_pos = ls_message_key_pos(magic);
    int64_t room = size - key_pos - 2 * LS_MESSAGE_LENGTH_BYTES;
    int32_t key_len = ls_bytes_load_i32(p + key_pos);
    int64_t key_bytes = ls_message_bytes_of(key_len);
    if (key_len < -1 || key_bytes > room) {
        return ls_error_set(error, LS_E_LENGTH, pos, offset, room, key_len);
    }
    int32_t value_len = ls_bytes_load_i32(p + key_pos + LS_MESSAGE_LENGTH_BYTES + key_bytes);
    return ls_error_set(error, LS_E_LENGTH, pos, offset, room - key_bytes, value_len);
}

static inline uint32_t ls_message_crc(ls_crc_function crc, const uint8_t *p, int64_t size)
{
    return crc(0, p + LS_MESSAGE_MAGIC_POS, size - LS_MESSAGE_MAGIC_POS);
}

static int32_t ls_message_check_crc(ls_crc_function crc, const uint8_t *p, int64_t pos, int64_t size,
                                    ls_error *error)
{
    uint32_t stored = ls_bytes_load_u32(p + LS_MESSAGE_CRC_POS);
    uint32_t computed = ls_message_crc(crc, p, size);
    if (stored != computed) {
        return ls_error_set(error, LS_E_CRC, pos, ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS), stored,
                            computed);
    }
    return LS_OK;
}

/* ------------------------------------------------------------------ parsing */

int32_t ls_message_parse(const uint8_t *buf, int64_t pos, const ls_frame *frame, uint32_t checks,
                         ls_batch *batch, ls_error *error)
{
    const uint8_t *p = buf + pos;
    int64_t offset = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
    if ((checks & LS_CHECK_CRC) != 0) {
        int32_t status = ls_message_check_crc(ls_crc_select32(), p, pos, frame->size, error);
        if (status != LS_OK) {
            return status;
        }
    }
    int32_t attributes = p[LS_MESSAGE_ATTRIBUTES_POS];
    int32_t codec = attributes & LS_ATTRIBUTE_CODEC_MASK;
    if (codec > LS_CODEC_MAX_MESSAGE) {
        return ls_error_set(error, LS_E_CODEC, pos, offset, LS_CODEC_MAX_MESSAGE, codec);
    }
    ls_message_body body;
    if (!ls_message_split(p, frame->size, frame->magic, &body)) {
        return ls_message_split_error(p, pos, frame->size, frame->magic, error);
    }
    batch->pos = pos;
    batch->size = frame->size;
    batch->base_offset = codec == 0 ? offset : -1;
    batch->last_offset = offset;
    batch->base_timestamp = ls_message_timestamp(p, frame->magic);
    batch->max_timestamp = batch->base_timestamp;
    batch->producer_id = -1;
    batch->producer_epoch = -1;
    batch->base_sequence = -1;
    batch->leader_epoch = -1;
    batch->record_count = codec == 0 ? 1 : -1;
    batch->crc = ls_bytes_load_u32(p + LS_MESSAGE_CRC_POS);
    batch->attributes = attributes;
    batch->payload_pos = (int32_t)body.value_pos;
    batch->payload_size = body.value_len;
    batch->magic = frame->magic;
    batch->codec = codec;
    batch->timestamp_type = ls_message_timestamp_type(attributes, frame->magic);
    batch->pad = 0;
    return LS_OK;
}

/* ------------------------------------------------------------------ decoding */

static inline void ls_message_put(const ls_columns *columns, int64_t n, int64_t offset,
                                  int64_t timestamp, int32_t type, int64_t pos,
                                  const ls_message_body *body)
{
    if (columns->offset == NULL) {
        return; /* they are only counted */
    }
    columns->offset[n] = offset;
    columns->timestamp[n] = timestamp;
    columns->key_pos[n] = (int32_t)(pos + body->key_pos);
    columns->key_len[n] = body->key_len;
    columns->value_pos[n] = (int32_t)(pos + body->value_pos);
    columns->value_len[n] = body->value_len;
    if (columns->header_pos != NULL) {
        columns->header_pos[n] = (int32_t)pos; /* none to find there */
        columns->header_count[n] = 0;
    }
    if (columns->timestamp_type != NULL) {
        columns->timestamp_type[n] = (int8_t)type;
    }
}

/* How many of the first `count` messages have the checksum that is stored in them. */
static int32_t ls_message_block_check(const uint8_t *buf, ls_message_block *block, int32_t count)
{
    ls_crc_select_pieces32()(buf, block->crc_pos, block->crc_size, count, block->crc);
    int32_t whole = 0;
    while (whole < count
           && ls_bytes_load_u32(buf + block->crc_pos[whole] - LS_MESSAGE_MAGIC_POS + LS_MESSAGE_CRC_POS)
               == block->crc[whole]) {
        whole += 1;
    }
    return whole;
}

/* Find messages of one magic by their lengths, from walk->pos on, and put them out as if their checksums were
   right: they count when these have been compared.  Returns how many. */
static inline __attribute__((always_inline)) int32_t
ls_message_block_find(const uint8_t *buf, int64_t size, uint32_t checks, int64_t start_offset,
                      int64_t stop_offset, const ls_columns *columns, const ls_walk *walk,
                      const int32_t magic, ls_message_block *block)
{
    const ls_columns out = *columns; /* a copy: stores into the columns cannot change it */
    const int64_t length_min = magic == 0 ? LS_MESSAGE_MIN_LENGTH_V0 : LS_MESSAGE_MIN_LENGTH_V1;
    const int check_order = (checks & LS_CHECK_ORDER) != 0;
    const int check_gapless = (checks & LS_CHECK_GAPLESS) != 0;
    int64_t pos = walk->pos;
    int64_t last_offset = walk->last_offset;
    int64_t n = out.count;
    int32_t count = 0;

    while (count < LS_MESSAGE_BLOCK && size - pos >= LS_FRAME_MIN_BYTES) {
        const uint8_t *p = buf + pos;
        int32_t length = ls_bytes_load_i32(p + LS_FRAME_LENGTH_POS);
        if (p[LS_FRAME_MAGIC_POS] != magic || length < length_min
            || length > size - pos - LS_FRAME_PREFIX_BYTES) {
            break;
        }
        int64_t message_size = LS_FRAME_PREFIX_BYTES + (int64_t)length;
        int64_t offset = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
        int32_t attributes = p[LS_MESSAGE_ATTRIBUTES_POS];
        ls_message_body body;
        if ((attributes & LS_ATTRIBUTE_CODEC_MASK) != 0 || offset >= stop_offset
            || (check_order && (offset < 0 || offset <= last_offset))
            || (check_gapless && last_offset != LS_OFFSET_UNKNOWN
                && offset != ls_wrapping_add(last_offset, 1))
            || !ls_message_split(p, message_size, magic, &body)) {
            break;
        }
        if (offset >= start_offset) {
            if (n == out.capacity) {
                break;
            }
            ls_message_put(&out, n, offset, ls_message_timestamp(p, magic),
                           ls_message_timestamp_type(attributes, magic), pos, &body);
            n += 1;
        }
        block->offset[count] = offset;
        block->crc_pos[count] = (int32_t)pos + LS_MESSAGE_MAGIC_POS;
        block->crc_size[count] = (int32_t)message_size - LS_MESSAGE_MAGIC_POS;
        pos += message_size;
        last_offset = offset;
        count += 1;
    }
    return count;
}

int32_t ls_message_decode_block(const uint8_t *buf, int64_t size, uint32_t checks, int64_t start_offset,
                            int64_t stop_offset, ls_columns *columns, ls_index_check *check, ls_walk *walk)
{
    ls_message_block block;
    int32_t count = 0;
    if (size - walk->pos >= LS_FRAME_MIN_BYTES) {
        int32_t magic = buf[walk->pos + LS_FRAME_MAGIC_POS];
        if (magic == 1) {
            count = ls_message_block_find(buf, size, checks, start_offset, stop_offset, columns, walk, 1, &block);
        } else if (magic == 0) {
            count = ls_message_block_find(buf, size, checks, start_offset, stop_offset, columns, walk, 0, &block);
        }
    }
    int32_t whole = (checks & LS_CHECK_CRC) != 0 ? ls_message_block_check(buf, &block, count) : count;
    if (whole == 0) {
        return 0;
    }
    int64_t records = 0;
    for (int32_t i = 0; i < whole; i++) {
        records += block.offset[i] >= start_offset;
    }
    columns->count += records;
    walk->count += records;
    walk->batches += whole;
    walk->pos = (int64_t)block.crc_pos[whole - 1] + block.crc_size[whole - 1];
    walk->last_offset = block.offset[whole - 1];
    if (check != NULL) {
        ls_index_check_messages(buf, &block, whole, check);
    }
    return whole;
}

/* ------------------------------------------------------------------ wrappers */

/* Look at the inner message at `pos`. */
static int32_t ls_message_inner(const uint8_t *payload, int64_t size, int64_t pos, ls_frame *frame, ls_error *error)
{
    int32_t status = ls_frame_look(payload, size, pos, frame, error);
    if (status > 0) {
        /* A payload is complete by itself: whatever ends a file early is damage in here. */
        return ls_error_set(error, LS_E_LENGTH, pos, -1, LS_FRAME_MIN_BYTES, size - pos);
    }
    if (status == LS_E_MAGIC || status == LS_E_NO_MAGIC) {
        error->status = LS_E_NESTED;
        status = LS_E_NESTED;
    }
    if (status == LS_OK && frame->magic > 1) {
        status = ls_error_set(error, LS_E_NESTED, pos,
                              ls_bytes_load_i64(payload + pos + LS_FRAME_OFFSET_POS), 1, frame->magic);
    }
    return status;
}

/* Count the messages and find the offset stored in the last. */
static int32_t ls_message_survey(const uint8_t *payload, int64_t size, int64_t *count, int64_t *last_inner,
                                 ls_error *error)
{
    int64_t pos = 0;
    *count = 0;
    *last_inner = -1;
    while (pos < size) {
        ls_frame frame;
        int32_t status = ls_message_inner(payload, size, pos, &frame, error);
        if (status != LS_OK) {
            return status;
        }
        *last_inner = ls_bytes_load_i64(payload + pos + LS_FRAME_OFFSET_POS);
        *count += 1;
        pos += frame.size;
    }
    return LS_OK;
}

int32_t ls_count_inner(const uint8_t *payload, int64_t size, int64_t *count, ls_error *error)
{
    int64_t last_inner;
    memset(error, 0, sizeof *error);
    if (size < 0 || size > INT32_MAX || (payload == NULL && size > 0)) {
        return ls_error_set(error, LS_E_ARGUMENT, 0, -1, 0, size);
    }
    return ls_message_survey(payload, size, count, &last_inner, error);
}

/* What must be added to inner offsets.  Magic 0 and wrappers that no broker has seen (offset 0) have them
   absolute; else the wrapper's offset is that of the last inner message. */
static int32_t ls_message_inner_shift(const ls_batch *batch, int64_t last_inner, int64_t *shift,
                                      ls_error *error)
{
    int64_t wrapper_offset = batch->last_offset;
    *shift = 0;
    if (wrapper_offset == 0) {
        return LS_OK;
    }
    if (last_inner < 0 || wrapper_offset < last_inner) {
        return ls_error_set(error, LS_E_OFFSET, 0, wrapper_offset, wrapper_offset, last_inner);
    }
    if (batch->magic == 1) {
        *shift = wrapper_offset - last_inner;
    }
    return LS_OK;
}

int32_t ls_message_decode_wrapper(const ls_batch *batch, const uint8_t *payload, int64_t size,
                                  uint32_t checks, int64_t start_offset, int64_t stop_offset,
                                  ls_columns *columns, int64_t *base_offset, ls_error *error)
{
    const ls_columns out = *columns;
    const ls_crc_function crc = ls_crc_select32();
    const int append_time = batch->timestamp_type == 1;
    int64_t count;
    int64_t last_inner;
    int64_t shift;
    int32_t status = ls_message_survey(payload, size, &count, &last_inner, error);
    if (status == LS_OK && count == 0) {
        status = ls_error_set(error, LS_E_EMPTY, 0, batch->last_offset, 1, 0);
    }
    if (status == LS_OK) {
        status = ls_message_inner_shift(batch, last_inner, &shift, error);
    }
    if (status == LS_OK && (checks & LS_CHECK_GAPLESS) != 0 && last_inner + shift != batch->last_offset) {
        /* Inner offsets are under a checksum, the wrapper's is not: absolute ones (magic 0) must end at it, and
           an offset of 0 (magic 1) is what a client leaves, not what a log without gaps holds. */
        status = ls_error_set(error, LS_E_OFFSET, 0, batch->last_offset, last_inner, batch->last_offset);
    }
    if (status == LS_OK && count > out.capacity - out.count) {
        status = ls_error_set(error, LS_E_NO_SPACE, 0, batch->last_offset, count,
                              out.capacity - out.count);
    }
    int64_t n = out.count;
    int64_t before = -1;
    for (int64_t pos = 0; status == LS_OK && pos < size;) {
        const uint8_t *p = payload + pos;
        int64_t message_size = LS_FRAME_PREFIX_BYTES + (int64_t)ls_bytes_load_i32(p + LS_FRAME_LENGTH_POS);
        int64_t inner = ls_bytes_load_i64(p + LS_FRAME_OFFSET_POS);
        int32_t magic = p[LS_FRAME_MAGIC_POS];
        int32_t codec = p[LS_MESSAGE_ATTRIBUTES_POS] & LS_ATTRIBUTE_CODEC_MASK;
        ls_message_body body;
        if ((checks & LS_CHECK_CRC) != 0) {
            status = ls_message_check_crc(crc, p, pos, message_size, error);
            if (status != LS_OK) {
                break;
            }
        }
        if (codec != 0) {
            status = ls_error_set(error, LS_E_NESTED, pos, inner, 0, codec);
        } else if (!ls_message_split(p, message_size, magic, &body)) {
            status = ls_message_split_error(p, pos, message_size, magic, error);
        } else if (inner <= before || inner > last_inner) {
            status = ls_error_set(error, LS_E_OFFSET, pos, inner, before + 1, inner);
        } else {
            int64_t offset = inner + shift; /* at most the wrapper's own, or the last inner one */
            if (before < 0 && base_offset != NULL) {
                *base_offset = offset;
            }
            if (offset >= start_offset && offset < stop_offset) {
                int64_t timestamp = append_time && magic != 0 ? batch->max_timestamp : ls_message_timestamp(p, magic);
                int32_t type = magic == 0 ? -1 : batch->timestamp_type;
                ls_message_put(&out, n, offset, timestamp, type, pos, &body);
                n += 1;
            }
            before = inner;
            pos += message_size;
        }
    }
    if (status == LS_OK) {
        columns->count = n;
    }
    return status;
}

/* ------------------------------------------------------------------ encoding */

/* Returns what follows a length and its bytes. */
static inline uint8_t *ls_message_write_bytes(uint8_t *p, const uint8_t *data, int32_t len)
{
    ls_bytes_store_i32(p, len);
    p += LS_MESSAGE_LENGTH_BYTES;
    if (len > 0) {
        ls_bytes_copy(p, data, len);
        p += len;
    }
    return p;
}

/* Messages whose checksums are not written yet: computing many at once takes half as long. */
typedef struct ls_message_seals {
    int32_t count;
    int32_t crc_pos[LS_MESSAGE_BLOCK];
    int32_t crc_size[LS_MESSAGE_BLOCK];
} ls_message_seals;

static void ls_message_seal_all(uint8_t *out, ls_message_seals *seals)
{
    uint32_t crc[LS_MESSAGE_BLOCK];
    ls_crc_select_pieces32()(out, seals->crc_pos, seals->crc_size, seals->count, crc);
    for (int32_t i = 0; i < seals->count; i++) {
        ls_bytes_store_u32(out + seals->crc_pos[i] - LS_MESSAGE_MAGIC_POS + LS_MESSAGE_CRC_POS, crc[i]);
    }
    seals->count = 0;
}

static inline void ls_message_seal(uint8_t *out, ls_message_seals *seals, int64_t at, int64_t size)
{
    seals->crc_pos[seals->count] = (int32_t)at + LS_MESSAGE_MAGIC_POS;
    seals->crc_size[seals->count] = (int32_t)size - LS_MESSAGE_MAGIC_POS;
    seals->count += 1;
    if (seals->count == LS_MESSAGE_BLOCK) {
        ls_message_seal_all(out, seals);
    }
}

int32_t ls_encode_messages(const ls_records *records, ls_cursor *cursor, int64_t count_max,
                           int32_t magic, int32_t attributes, int64_t base_offset, uint8_t *out,
                           int64_t capacity, ls_written *written)
{
    memset(written, 0, sizeof *written);
    written->base_timestamp = -1;
    written->max_timestamp = -1;
    if (magic < 0 || magic > 1 || capacity < 0 || cursor->index < 0 || records->header_count != NULL) {
        return LS_E_ARGUMENT;
    }
    const ls_records in = *records;
    const int64_t fixed = magic == 0 ? LS_MESSAGE_MIN_BYTES_V0 : LS_MESSAGE_MIN_BYTES_V1;
    int64_t index = cursor->index;
    int64_t index_end = count_max < in.count - index ? index + count_max : in.count;
    int64_t key_at = cursor->key_at;
    int64_t value_at = cursor->value_at;
    int64_t max_timestamp = INT64_MIN;
    int64_t at = 0;
    ls_message_seals seals;
    seals.count = 0;

    /* Positions in a block have 32 bits. */
    capacity = capacity < INT32_MAX ? capacity : INT32_MAX;
    while (index < index_end) {
        const uint8_t *key;
        const uint8_t *value;
        int64_t key_next = key_at;
        int64_t value_next = value_at;
        int32_t key_len = ls_slices_next(&in.key, index, &key_next, &key);
        int32_t value_len = ls_slices_next(&in.value, index, &value_next, &value);
        int64_t size = fixed + ls_message_bytes_of(key_len) + ls_message_bytes_of(value_len);
        if (size > capacity - at || size - LS_FRAME_PREFIX_BYTES > INT32_MAX) {
            break;
        }
        int64_t timestamp = in.timestamp != NULL ? in.timestamp[index] : in.timestamp_all;
        uint8_t *p = out + at;
        ls_bytes_store_i64(p + LS_FRAME_OFFSET_POS,
                           ls_wrapping_add(base_offset, index - cursor->index));
        ls_bytes_store_i32(p + LS_FRAME_LENGTH_POS, (int32_t)(size - LS_FRAME_PREFIX_BYTES));
        p[LS_MESSAGE_MAGIC_POS] = (uint8_t)magic;
        p[LS_MESSAGE_ATTRIBUTES_POS] = (uint8_t)attributes;
        if (magic == 1) {
            ls_bytes_store_i64(p + LS_MESSAGE_TIMESTAMP_POS, timestamp);
        }
        uint8_t *next = ls_message_write_bytes(p + ls_message_key_pos(magic), key, key_len);
        ls_message_write_bytes(next, value, value_len);
        ls_message_seal(out, &seals, at, size);

        max_timestamp = timestamp > max_timestamp ? timestamp : max_timestamp;
        key_at = key_next;
        value_at = value_next;
        at += size;
        index += 1;
    }
    ls_message_seal_all(out, &seals);
    if (index == cursor->index) {
        return index < index_end ? LS_E_NO_SPACE : LS_OK;
    }
    written->bytes = at;
    written->count = index - cursor->index;
    if (magic == 1) {
        written->base_timestamp = in.timestamp != NULL ? in.timestamp[cursor->index] : in.timestamp_all;
        written->max_timestamp = max_timestamp;
    }
    cursor->index = index;
    cursor->key_at = key_at;
    cursor->value_at = value_at;
    return LS_OK;
}
