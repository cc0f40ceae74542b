/*
 * ls_api.h - what Python may call.  Declarations, enums, integer defines and comments
 * only: cffi parses this file and the C files include it, so the compiler checks both
 * sides.  Every function is plain code over memory: nothing is opened, nothing is kept,
 * any number of calls may run at once as long as they write to different memory.
 *
 * Positions are bytes from the start of the buffer that was passed, unless a name says
 * `file_pos`.  Buffers are shorter than 2^31 bytes.  Lengths of -1 mean null.
 */

/* ------------------------------------------------------------------ statuses */

enum ls_status {
    LS_OK = 0,
    LS_E_ARGUMENT = -1,    /* our own mistake: a size or magic that no caller may pass */
    LS_E_NO_SPACE = -2,    /* the output buffer is too small for even one element */
    LS_E_CRC = -10,        /* stored and computed checksum differ */
    LS_E_LENGTH = -11,     /* a length is negative, zero, too small or contradicts its parent */
    LS_E_MAGIC = -12,      /* magic above 2 (not damage: not understood) */
    LS_E_CODEC = -13,      /* codec id that its magic does not have (not understood) */
    LS_E_RECORD = -14,     /* a record contradicts its own length, or bytes remain after the last */
    LS_E_VARINT = -15,     /* a varint longer than its type */
    LS_E_OFFSET = -16,     /* offsets do not increase, or lie outside their batch */
    LS_E_COUNT = -17,      /* record or header count is negative or cannot be true */
    LS_E_NESTED = -18,     /* an inner message that is itself compressed, or not of magic 0 or 1 */
    LS_E_EMPTY = -19,      /* a wrapper without records or with a null value */
    LS_E_TOO_LARGE = -20,  /* to be written: a record larger than the limit; read: LS_HEADERS_MAX */
    LS_E_HEADER_KEY = -21, /* a record header with a null or non UTF-8 key */
    LS_E_EPOCH = -22,      /* a leader epoch other than the one that logstore writes */
    LS_E_NO_MAGIC = -23    /* a negative magic, which no version has: this is no batch */
};

/* Why a walk over batches came to an end without an error. */
enum ls_stop {
    LS_STOP_END = 1,        /* the limit was reached where a batch ends */
    LS_STOP_PARTIAL = 2,    /* the last batch reaches past the limit (or fewer than 18 bytes are left) */
    LS_STOP_ZEROS = 3,      /* the next header is all zero: preallocated or torn, never a record */
    LS_STOP_FULL = 4,       /* the output is full; call again with the same walk */
    LS_STOP_COMPRESSED = 5, /* the next batch is compressed: the caller decompresses it */
    LS_STOP_OFFSET = 6,     /* the next batch begins at or after the stop offset */
    LS_STOP_ROLL_SIZE = 7,  /* ls_plan_append: the next batch belongs in a new segment, because ... */
    LS_STOP_ROLL_TIME = 8,
    LS_STOP_ROLL_INDEX = 9,
    LS_STOP_ROLL_OFFSET = 10
};

enum ls_check {
    LS_CHECK_CRC = 1,   /* checksums of batches (and of the inner messages of wrappers) */
    LS_CHECK_ORDER = 2, /* offsets increase from batch to batch */
    LS_CHECK_GAPLESS = 4, /* with LS_CHECK_ORDER: each batch begins where the one before ended (a wrapper, whose
                             first offset is not known here, after it) */
    LS_CHECK_EPOCH = 8 /* the leader epoch of a batch of magic 2, which no checksum covers, is 0 */
};

/* ls_walk.last_offset if it is not known: then the first batch is accepted with any offset. */
enum { LS_OFFSET_UNKNOWN = -2 };

/* The facts of an error; C makes no text. */
typedef struct ls_error {
    int64_t pos;      /* where the bad batch begins in the buffer */
    int64_t offset;   /* its base offset as stored (unreliable if the CRC failed); -1 unknown */
    int64_t expected;
    int64_t found;
    int32_t status;   /* enum ls_status */
    int32_t pad;
} ls_error;

/* ------------------------------------------------------------------ checksums */

/* HARDWARE is the best that this machine has, mixed if that is faster (ls_crc.c); the others are parts of it alone:
   carry-less multiplication of 16 bytes (NARROW) and of 32 (DOUBLE), and CRC-32C's own instruction on x86-64. */
enum ls_crc_path {
    LS_CRC_PORTABLE = 1,
    LS_CRC_HARDWARE = 2,
    LS_CRC_NARROW = 3,
    LS_CRC_SSE42 = 4,
    LS_CRC_DOUBLE = 5
};

/* Continue `crc` (0 to begin) over `size` bytes; same convention as zlib.crc32. */
uint32_t ls_crc32(uint32_t crc, const uint8_t *data, int64_t size);
uint32_t ls_crc32c(uint32_t crc, const uint8_t *data, int64_t size);
/* The same on one path, for tests; *ok is 0 if this machine has no such path. */
uint32_t ls_crc32_path(int32_t path, uint32_t crc, const uint8_t *data, int64_t size, int32_t *ok);
uint32_t ls_crc32c_path(int32_t path, uint32_t crc, const uint8_t *data, int64_t size, int32_t *ok);
/* CRC-32 of `count` pieces of a buffer, as the messages of a run: size[i] bytes, 4 or more, at pos[i].  For tests. */
void ls_crc32_pieces(const uint8_t *buf, const int32_t *pos, const int32_t *size, int32_t count, uint32_t *out);
/* Bit 0: CRC-32 runs on hardware; bit 1: CRC-32C does. */
int32_t ls_crc_hardware(void);

/* ------------------------------------------------------------------ varints */

/* Zigzag varints as in protocol buffers; return the bytes written or read, or a negative
   status (LS_E_NO_SPACE when `size` ends inside one). */
int32_t ls_varint_put(uint8_t *out, int64_t size, int64_t value);
int32_t ls_varint_get32(const uint8_t *data, int64_t size, int32_t *value);
int32_t ls_varint_get64(const uint8_t *data, int64_t size, int64_t *value);

/* ------------------------------------------------------------------ batches */

/* The header of one batch: a magic 2 batch, or a magic 0/1 message (alone or a wrapper). */
typedef struct ls_batch {
    int64_t pos;            /* of its first byte */
    int64_t size;           /* whole, with the 12 bytes of offset and length */
    int64_t base_offset;    /* wrapper: -1, unknown before it is decompressed */
    int64_t last_offset;
    int64_t base_timestamp; /* magic 0: -1 */
    int64_t max_timestamp;  /* magic 0: -1 */
    int64_t producer_id;    /* magic 0 and 1: -1, and so the next fields */
    int32_t producer_epoch;
    int32_t base_sequence;
    int32_t leader_epoch;
    int32_t record_count;   /* wrapper: -1 */
    uint32_t crc;           /* as stored */
    int32_t attributes;
    int32_t payload_pos;    /* record area or wrapper value, from the start of the batch */
    int32_t payload_size;   /* wrapper with a null value: -1 */
    int32_t magic;
    int32_t codec;          /* 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd */
    int32_t timestamp_type; /* 0 create time, 1 log append time, -1 none (magic 0) */
    int32_t pad;
} ls_batch;

/* Position of a walk.  Set `pos` and `last_offset` (of the batch before; base offset - 1 if there is no batch) and
   pass it again to continue; `error` is filled when a negative status is returned, and `pos` then
   stays at the bad batch. */
typedef struct ls_walk {
    int64_t pos;
    int64_t last_offset;
    int64_t count;   /* batches (ls_scan_batches) or records (ls_decode) put out by this call */
    int64_t batches; /* whole batches walked over by this call */
    int32_t stop;     /* enum ls_stop, when the call returned LS_OK */
    int32_t wrappers; /* not 0: ls_scan_batches has come by a compressed batch of magic 0 or 1 (never reset) */
    ls_error error;
} ls_walk;

/* Put the headers of up to `capacity` batches of buf[walk->pos, size) into `out`; where `out` is NULL, check and count
   all of them.  `checks` is a set of enum ls_check.  Does not look inside the record area. */
int32_t ls_scan_batches(const uint8_t *buf, int64_t size, uint32_t checks,
                        ls_batch *out, int64_t capacity, ls_walk *walk);

/* Walk to the first batch that ends at `offset` or above: *last is that batch, `walk` stays before it, and the stop is
   LS_STOP_OFFSET.  If no batch does, *last is the last whole batch, if walk->batches is not 0.  No batch ends at the
   offset INT64_MAX, which no record has, whatever the headers say. */
int32_t ls_seek_batch(const uint8_t *buf, int64_t size, uint32_t checks, int64_t offset, ls_batch *last, ls_walk *walk);

/* Walk by the frames alone, for a log that may have gaps, to the first batch whose offsets the next batch
   contradicts: `walk` stays before it, and the stop is LS_STOP_OFFSET.  A batch is contradicted if the next one
   begins in the gap before it, or in the batch itself; not if there is no gap before it, or it is not known.  The stop is
   LS_STOP_FULL before the last whole batch, if the offset of the next one is not in the buffer and `following`, which
   then counts, is LS_OFFSET_UNKNOWN. */
int32_t ls_find_contradicted(const uint8_t *buf, int64_t size, int64_t following, ls_walk *walk);

/* ------------------------------------------------------------------ records out */

/* Headers of a record at most: two bytes of a file can be some hundred as objects. */
enum { LS_HEADERS_MAX = 100000 };

/* Decoded records as columns, allocated by the caller with `capacity` elements each.  Positions
   are in the buffer that was decoded.  A pointer that may be NULL is a column not wanted; where `offset` is, none
   is, and the records are checked and counted. */
typedef struct ls_columns {
    int64_t capacity;
    int64_t count;           /* in: first slot to fill; out: slot after the last */
    int64_t *offset;
    int64_t *timestamp;      /* milliseconds; magic 0: -1 */
    int32_t *key_pos;
    int32_t *key_len;        /* -1 null */
    int32_t *value_pos;
    int32_t *value_len;      /* -1 null */
    int32_t *header_pos;     /* may be NULL: of the first header (after the count varint) */
    int32_t *header_count;   /* NULL together with header_pos */
    int8_t *timestamp_type;  /* may be NULL */
} ls_columns;

/* Decode the records with start_offset <= offset < stop_offset of the uncompressed batches of
   buf[walk->pos, size) into `columns`, in one pass, until the end of the buffer, a compressed
   batch, a batch at or past stop_offset, or full columns.  A batch is put out whole or not at all:
   columns too small for an otherwise empty call return LS_E_NO_SPACE with error.expected = the
   records that the batch has.  Control batches are walked over and put nothing out. */
int32_t ls_decode(const uint8_t *buf, int64_t size, uint32_t checks,
                  int64_t start_offset, int64_t stop_offset,
                  ls_columns *columns, ls_walk *walk);

/* Decode the record area of one batch whose header is `batch`: `payload` is its decompressed
   payload (or the plain record area of a magic 2 batch).  For a wrapper, inner offsets are resolved
   and inner checksums checked; *base_offset (may be NULL) gets the offset of its first record.
   Control batches are decoded like others.  error->pos is a position in `payload`. */
int32_t ls_decode_payload(const ls_batch *batch, const uint8_t *payload, int64_t size, uint32_t checks,
                          int64_t start_offset, int64_t stop_offset,
                          ls_columns *columns, int64_t *base_offset, ls_error *error);

/* Where record `number`, from 0, of the plain record area of a magic 2 batch begins and what it takes, with its length:
   the records before it are stepped over by their lengths.  LS_E_RECORD if the area has no such record. */
int32_t ls_locate_record(const uint8_t *area, int64_t size, int64_t number, int64_t *pos, int64_t *bytes);

/* The offset delta of the first of `count` records of such an area whose timestamp delta is not below `delta`; -1 for
   none.  LS_E_RECORD if a record before it is broken. */
int32_t ls_locate_time(const uint8_t *area, int64_t size, int32_t count, int64_t delta, int64_t *offset_delta);

/* Count the records in a decompressed wrapper payload (walks the framing, checks lengths). */
int32_t ls_count_inner(const uint8_t *payload, int64_t size, int64_t *count, ls_error *error);

/* Headers of one record: positions and lengths of `count` keys and values (value_len -1: null). */
int32_t ls_decode_headers(const uint8_t *buf, int64_t size, int64_t pos, int32_t count,
                          int32_t *key_pos, int32_t *key_len, int32_t *value_pos, int32_t *value_len,
                          ls_error *error);

/* A key or value column of Arrow's that is being filled: with `offsets` a binary column, with `views` a binary_view;
   with neither it is not wanted. */
typedef struct ls_arrow_column {
    uint8_t *data;         /* binary: the bytes, one value after the other */
    int64_t data_capacity;
    int32_t *offsets;      /* binary: [i] is where element i begins; [0] is the caller's to set */
    uint8_t *views;        /* binary_view: LS_VIEW_BYTES each */
    uint8_t *validity;     /* bits; set = not null; the caller zeroes nothing */
    int64_t nulls;         /* so far */
    int64_t apart;         /* binary_view: number of values not inline so far */
    int32_t buffer;        /* binary_view: the number of the buffer that they point into */
    int32_t pad;
} ls_arrow_column;

enum { LS_VIEW_BYTES = 16, LS_VIEW_INLINE_MAX = 12 };

/* Columns of Arrow's that are being filled with records; a pointer that is NULL is a column not wanted. */
typedef struct ls_arrow_rows {
    int64_t capacity;
    int64_t count;           /* so far */
    int64_t *offset;
    int64_t *timestamp;
    int32_t *timestamp_type;
    uint8_t *timed;          /* bits: which timestamps are not null; valid only where untimed is not 0 */
    int64_t untimed;         /* timestamps that are null (LS_NO_TIMESTAMP), so far; 0 if `timed` is NULL */
    ls_arrow_column key;
    ls_arrow_column value;
} ls_arrow_rows;

/* Append records first .. first + n - 1 of decoded columns, whose positions are in `buf`, as far as there is room for
   rows and for bytes: returns how many of them, or LS_E_ARGUMENT for some that the columns do not have. */
int64_t ls_fill_rows(const ls_columns *columns, int64_t first, int64_t n, const uint8_t *buf, ls_arrow_rows *rows);

/* Sum of the non-null lengths. */
int64_t ls_sum_lengths(const int32_t *len, int64_t n);

/* The smallest of some numbers; INT64_MAX of none. */
int64_t ls_smallest(const int64_t *numbers, int64_t n);
/* The first length that is negative, that of a null; -1 for none. */
int64_t ls_first_null(const int32_t *len, int64_t n);

/* ------------------------------------------------------------------ records in */

/* n byte strings: element i is data[pos[i], pos[i] + len[i]), or, where pos is NULL, they follow one
   another in data.  len[i] = -1 is null; len NULL: all are null. */
typedef struct ls_slices {
    const uint8_t *data;
    const int64_t *pos;
    const int32_t *len;
} ls_slices;

typedef struct ls_records {
    int64_t count;
    ls_slices key;
    ls_slices value;
    const int64_t *timestamp; /* NULL: all are timestamp_all */
    int64_t timestamp_all;
    const int32_t *header_count; /* headers of each record; NULL: none (always in magic 0 and 1) */
    ls_slices header_key;        /* of all headers, record after record */
    ls_slices header_value;
} ls_records;

/* A binary column of Arrow's from an untrusted source: no part of it has been checked. */
typedef struct ls_arrow_binary {
    const uint8_t *validity; /* bitmap, or NULL */
    int64_t validity_bytes;
    const uint8_t *offsets;  /* 32 bit positions, 64 bit where `large`; need not be aligned */
    int64_t offsets_bytes;
    int64_t data_bytes;      /* size of the data that they point into */
    int32_t large;
    int32_t pad;
} ls_arrow_binary;

/* Positions and lengths (-1 null) of elements first .. first + n - 1 of an Arrow binary column.  LS_E_LENGTH where a
   buffer is too short for them, or a position leads out of the data or back; LS_E_TOO_LARGE for an element of 2^31
   bytes or more (error->offset: which element of the n, -1 for a buffer). */
int32_t ls_slices_from_arrow(const ls_arrow_binary *column, int64_t first, int64_t n, int64_t *pos, int32_t *len,
                             ls_error *error);

/* Where in an ls_records an encoder stands; all zero to begin. */
typedef struct ls_cursor {
    int64_t index;           /* next record */
    int64_t key_at;          /* next byte of key.data where key.pos is NULL, and so on */
    int64_t value_at;
    int64_t header;          /* next header */
    int64_t header_key_at;
    int64_t header_value_at;
} ls_cursor;

/* What one call has written. */
typedef struct ls_written {
    int64_t bytes;
    int64_t count;
    int64_t base_timestamp; /* of the first record */
    int64_t max_timestamp;
} ls_written;

/* Bytes that all records take as uncompressed messages (magic 0, 1; offset and length included) or in
   one record area (magic 2, an upper bound), in *total.  LS_E_TOO_LARGE with error->offset = the index of
   the first record whose own message, or batch of one, is larger than max_bytes (expected: max_bytes,
   found: its size). */
int32_t ls_measure(const ls_records *records, int32_t magic, int64_t max_bytes, int64_t *total, ls_error *error);

/* Write records from `cursor` on as uncompressed messages of magic 0 or 1 while they fit into `capacity`
   bytes, `count_max` at the most; record i gets offset base_offset + i, counted from the first record of this call.
   `attributes` goes into each (codec bits for a wrapper, bit 3 for log append time).  LS_E_NO_SPACE if none fits. */
int32_t ls_encode_messages(const ls_records *records, ls_cursor *cursor, int64_t count_max,
                           int32_t magic, int32_t attributes, int64_t base_offset, uint8_t *out, int64_t capacity, ls_written *written);

/* Write records from `cursor` on as a magic 2 record area (offset deltas from 0) while it stays within
   `capacity` bytes and `count_max` records. */
int32_t ls_encode_area(const ls_records *records, ls_cursor *cursor, int64_t count_max,
                       uint8_t *out, int64_t capacity, ls_written *written);

/* Write the 61 byte header of `batch` (base_offset, last_offset, timestamps, producer fields, leader_epoch,
   record_count, attributes are taken from it) in front of the payload_size bytes that already stand at
   out + 61, with length and CRC-32C.  batch->size and batch->crc are set. */
int32_t ls_seal_batch(uint8_t *out, int64_t capacity, ls_batch *batch);

/* Give a batch in place other offsets: magic 2: base offset and leader epoch; magic 0 and 1: the offset of
   the message or wrapper.  Nothing under the CRC changes. */
int32_t ls_assign_offset(uint8_t *buf, const ls_batch *batch, int64_t offset, int32_t leader_epoch);

/* What ls_shift_offsets does to each batch. */
typedef struct ls_shift {
    int64_t offsets;      /* added to each offset */
    int64_t max_bytes;    /* of a batch: LS_E_TOO_LARGE beyond it (expected: max_bytes, found: its size) */
    int64_t timestamp;    /* the time of the append; -1: timestamps do not change */
    int32_t stamps_all;   /* 0: only batches marked as log append time get it */
    int32_t leader_epoch; /* of batches of magic 2 */
    int32_t magic;        /* of all of them; -1: any */
    int32_t pad;
} ls_shift;

/* Move the offsets of all batches of buf[walk->pos, size) in place, and give batches of magic 2 a leader epoch; without
   a timestamp nothing under a CRC changes.  Each is checked first: checksum, order, and no gap after
   walk->last_offset or in a batch, all in the offsets before the move; no attributes but codec and kind of timestamp.
   Compressed batches of magic 0 are refused with LS_E_MAGIC: the offsets inside of them are absolute.  walk->count is
   the number of batches moved; where the call fails or stops, those before walk->pos have been moved. */
int32_t ls_shift_offsets(uint8_t *buf, int64_t size, const ls_shift *shift, ls_walk *walk);

/* Give a batch of magic 1 or 2 in place the time of its append: attribute bit 3, the timestamp that then holds
   for all its records, and the checksum.  Magic 0 has no timestamps and is not changed. */
int32_t ls_restamp(uint8_t *buf, const ls_batch *batch, int64_t timestamp);

/* Check the batches of buf[walk->pos, size) that a producer sent, up to the first that is not plain: uncompressed, at
   most max_bytes large, neither control batches nor parts of a transaction, checksum right, no timestamp below
   timestamp_min; in magic 2 also with records numbered 0, 1, 2, ..., without headers, of which the header knows the
   largest timestamp, no more than `columns` (with headers) have room for.  walk->pos stops at the first that is not
   plain, whatever the reason; walk->count batches, with *records records, are before it. */
int32_t ls_check_producer(const uint8_t *buf, int64_t size, int64_t max_bytes, int64_t timestamp_min,
                          ls_columns *columns, ls_walk *walk, int64_t *records);

/* Whether a batch in buf[0, size), whole batches that were checked, is of a producer that numbers its records. */
int32_t ls_has_producer(const uint8_t *buf, int64_t size);

/* As many batches of a producer are known: see logstore.log.producers. */
enum { LS_PRODUCER_BATCHES = 5 };

/* A batch of a producer that was appended. */
typedef struct ls_sent_batch {
    int64_t last_offset;
    int32_t first_sequence;
    int32_t size; /* number of its offsets */
} ls_sent_batch;

/* A producer that numbers its records, with the batches that were appended since the caller has looked. */
typedef struct ls_producer {
    int64_t id;        /* -1: this entry is empty */
    int64_t timestamp; /* the largest one of its last batch */
    int32_t epoch;
    int32_t last_sequence;
    int32_t checked_sequence; /* for ls_check_sequences */
    int32_t count;            /* of the batches; the last ones of them are kept, number n at n modulo their room */
    ls_sent_batch batches[LS_PRODUCER_BATCHES];
} ls_producer;

/* Whether all batches of producers in buf[0, size), plain ones that were checked, are the next ones of producers that
   the table has, in their epochs, and none of these has expired: its last timestamp is expiry_ms or more before
   now_ms. */
int32_t ls_check_sequences(ls_producer *table, int32_t producers, const uint8_t *buf, int64_t size, int64_t now_ms,
                           int64_t expiry_ms);

/* Add these batches, which have their offsets now. */
void ls_add_sequences(ls_producer *table, int32_t producers, const uint8_t *buf, int64_t size);

/* Give such batches, buf[0, size), consecutive offsets in place, and, unless `timestamp` is negative, the time of
   their append. */
int32_t ls_place_batches(uint8_t *buf, int64_t size, int64_t offset, int32_t leader_epoch, int64_t timestamp);

/* ------------------------------------------------------------------ segments and indexes */

/* What must be known of a segment to append to it and to index it. */
typedef struct ls_segment_state {
    int64_t base_offset;
    int64_t size;                 /* bytes of log */
    int64_t last_offset;          /* of the last batch; base_offset - 1 while empty */
    int64_t bytes_since;          /* since the batch of the last offset index entry (or the start) */
    int64_t max_timestamp;        /* -1 none */
    int64_t max_timestamp_offset; /* last offset of the first batch that reached it; -1 none */
    int64_t first_timestamp;      /* max timestamp of the first batch; -1 none */
    int64_t created_ms;           /* wall clock, rolls by time when there are no timestamps */
    int64_t index_entries;
    int64_t time_entries;
    int64_t time_last;            /* timestamp of the last time index entry; -1 none */
} ls_segment_state;

/* Shows other processes which records are durable (docs/format.md, "Durable offset"). */
enum { LS_PAGE_BYTES = 80, LS_PAGE_DURABLE_POS = 64, LS_PAGE_CHECK_POS = 72 };
enum { LS_PAGE_TO_OPEN = -1, LS_PAGE_OFF = -2 };

typedef struct ls_durable_page {
    uint8_t bytes[80];  /* LS_PAGE_BYTES: what the file has, with the last durable offset */
    uint64_t key;       /* the check is the durable offset XOR this: a digest of the bytes before */
    int32_t fd;         /* of the file; or LS_PAGE_TO_OPEN, before the next offset; or LS_PAGE_OFF */
    int32_t pad;
} ls_durable_page;

typedef struct ls_roll_limits {
    int64_t segment_bytes;
    int64_t segment_ms;           /* less the jitter of this segment */
    int64_t now_ms;
    int64_t index_interval_bytes;
    int64_t index_entries_max;    /* the offset index is full at this many */
    int64_t time_entries_max;     /* the time index is full at this many less one */
    int64_t is_in_parts;          /* not 0: what is appended comes of several calls, each batch has its own time */
} ls_roll_limits;

/* What appends and syncs in one step rely on: the active segment of a log, and its topic's settings.  Python sets the
   fields with the lock of the log; a step reads them if that lock was not taken since. */
typedef struct ls_step_facts {
    ls_segment_state *state; /* of the active segment; a step moves it along */
    ls_roll_limits limits;   /* of the active segment; a step sets now_ms */
    int64_t max_bytes;       /* of a batch or message: max_message_bytes */
    int64_t batch_target;    /* of a batch of several records */
    int64_t flush_messages;  /* number of records not durable at which they are synced */
    int64_t end;             /* a step keeps the log below this offset; reaching it needs a sync */
    int64_t steps_end;       /* of the file: the disk has room up to there, and no sync in the background is to begin */
    int64_t quiet_size;      /* while the segment is smaller, a sync does not change the durable point */
    int32_t fd;              /* of the active segment's log */
    int32_t magic;
    int32_t attributes;      /* of batches that are not compressed */
    int32_t leader_epoch;    /* of batches of magic 2; -1: not known yet */
    int32_t is_append_time;  /* LogAppendTime: records have the time of the append */
    int32_t is_plain;        /* rows are not compressed */
    int32_t needs_keys;      /* records without a key, and batches, go the usual way */
    int32_t pad;
} ls_step_facts;

typedef struct ls_plan {
    int64_t bytes;       /* of buf that belong to this segment */
    int64_t batches;
    int64_t index_count; /* entries put out */
    int64_t time_count;
    int32_t stop;        /* LS_STOP_END, LS_STOP_PARTIAL, LS_STOP_ZEROS, LS_STOP_FULL (an entry buffer), LS_STOP_ROLL_* */
    int32_t pad;
} ls_plan;

/* Capacities are counted in entries; where `limits` is given, its index_interval_bytes holds.
   Walk over the whole batches of buf as if they were appended to the segment at once: decide before each whether
   it needs a new segment (Kafka's rules; a first batch never does for its size; if one does for its time, all of
   them do, unless they are in parts), and add the index entries that Kafka 4.1+ writes.  `state` is moved along; `state->size` is the file position of buf[0].  Looks at headers
   only: checksums are the caller's business.  `limits` NULL: never roll, with the given interval.  Serves
   appending, recovery and rebuilding alike. */
int32_t ls_plan_append(const uint8_t *buf, int64_t size, const ls_roll_limits *limits, int64_t index_interval_bytes,
                       ls_segment_state *state, uint8_t *index_out, int64_t index_capacity,
                       uint8_t *time_out, int64_t time_capacity, ls_plan *plan, ls_error *error);

/* Encode records as ls_append_records does, from an offset on.  Returns their bytes; 0 if they are more than
   `capacity`, or one of them is more than `max_bytes` or `batch_max`; a negative status for anything else. */
int64_t ls_encode_records(const ls_records *records, int32_t magic, int32_t attributes, int64_t offset,
                          int32_t leader_epoch, int64_t max_bytes, int64_t batch_max, uint8_t *out, int64_t capacity);

/* Encode records without headers as the next ones of a segment into `out`, from offset state->last_offset + 1 on:
   uncompressed messages of magic 0 or 1, or batches of magic 2 of at most `batch_target` bytes; and plan their append.
   At most `entries_max` entries are put into each of index_out and time_out.  Returns their bytes; 0, with nothing to be
   committed, if they are more than `capacity`, one of them is more than `max_bytes` or `batch_target`, they need a
   new segment, or more entries; a negative status for anything else. */
int64_t ls_append_records(const ls_records *records, int32_t magic, int32_t attributes, int32_t leader_epoch,
                          int64_t max_bytes, int64_t batch_target, const ls_roll_limits *limits,
                          ls_segment_state *state, uint8_t *out, int64_t capacity, uint8_t *index_out,
                          uint8_t *time_out, int64_t entries_max, ls_plan *plan, ls_error *error);

/* Slot of the greatest entry <= target, or -1.  `entries` are the bytes of the file, `count` of them. */
int64_t ls_offset_index_floor(const uint8_t *entries, int64_t count, int64_t relative_offset,
                              int64_t *found_offset, int64_t *found_pos);
int64_t ls_time_index_floor(const uint8_t *entries, int64_t count, int64_t timestamp,
                            int64_t *found_timestamp, int64_t *found_offset);
/* The first slot that breaks the order (offsets strictly, positions and timestamps) or lies outside
   [0, file_size); `count` when all are well.  A tail of zeros is the caller's to trim. */
int64_t ls_offset_index_check(const uint8_t *entries, int64_t count, int64_t file_size);
int64_t ls_time_index_check(const uint8_t *entries, int64_t count);

/* The entries of an index that is compared with its log: `count` of them, those before `slot` done. */
typedef struct ls_index_cursor {
    const uint8_t *entries;
    int64_t count;
    int64_t slot;
} ls_index_cursor;

/* The indexes of a segment, compared with its log while it is walked over. */
typedef struct ls_index_check {
    ls_segment_state state; /* as an append of all batches would leave it: state.size is where the next one begins */
    ls_index_cursor offsets;
    ls_index_cursor times;
    int64_t batches;     /* counted into the state */
    int64_t is_doubtful; /* not 0: an entry is not plainly true.  Nothing is counted any more: the caller finds out why */
} ls_index_check;

/* Count the batches of buf[0, size) into `check`, as ls_plan_append does with an interval of 0 and no limits, and step
   over the entries of both indexes that are about them.  Looks at headers only.
   True is, in the offset index: at the position a batch begins; the offset is larger than the last one before that
   batch, and that of the entry before is not.  In the time index: no timestamp up to the offset is larger, and one is
   equal; inside a batch, which has its largest timestamp anywhere, all from the largest before it to its own will do.
   Doubtful is also an offset that no entry can have, a position beyond 31 bits, and what is no whole batch. */
void ls_check_indexes(const uint8_t *buf, int64_t size, ls_index_check *check);

/* ls_decode of all records, with ls_check_indexes of the batches walked over. */
int32_t ls_verify(const uint8_t *buf, int64_t size, uint32_t checks, ls_columns *columns, ls_index_check *check,
                  ls_walk *walk);

/* ------------------------------------------------------------------ keys, system */

/* Kafka's murmur2 of a key, as a signed 32 bit number. */
int32_t ls_murmur2(const uint8_t *data, int64_t size);
/* murmur2 of n keys, positive part modulo `partitions`; null keys get -1. */
void ls_partition_keys(const ls_slices *keys, int64_t n, int32_t partitions, int32_t *out);

/* Reserve disk space after the end of a file without changing its length (fallocate, FALLOC_FL_KEEP_SIZE).  Returns 0
   or -errno; -EOPNOTSUPP if the file system does not support it. */
int32_t ls_sys_reserve(int32_t fd, int64_t file_pos, int64_t bytes);

/* Read or write up to `size` bytes at a position of a file: how many they were (0 at the end of the file), or -errno.
   `ls_sys_read_cached` reads only what is in memory already, and returns -EAGAIN if it would have to wait, or
   another error if the system cannot say. */
int64_t ls_sys_read(int32_t fd, uint8_t *out, int64_t size, int64_t file_pos);
int64_t ls_sys_read_cached(int32_t fd, uint8_t *out, int64_t size, int64_t file_pos);
int64_t ls_sys_write(int32_t fd, const uint8_t *data, int64_t size, int64_t file_pos);

/* Wait until all data of a file is on stable storage (fdatasync; macOS: F_FULLFSYNC).  Returns 0 or -errno. */
int32_t ls_sys_sync(int32_t fd);
/* `ls_sys_sync` of several files, of all of which the disk begins to write at once; many of them in up to four threads,
   as far as the system allows.  `results` gets the result of each.  `other`: called instead, for tests; NULL: none.
   Returns 0, or -ENOMEM: nothing was synced. */
typedef int32_t (*ls_sync_function)(int32_t fd);
int32_t ls_sys_sync_files(const int32_t *fds, int32_t *results, int32_t count, ls_sync_function other);

/* fsync, openat, close, ftruncate, renameat, unlinkat (of a file): 0, or the descriptor, or -errno. */
int32_t ls_sys_sync_all(int32_t fd);
int32_t ls_sys_open(int32_t dir_fd, const char *name, int32_t flags, int32_t mode);
int32_t ls_sys_close(int32_t fd);
int32_t ls_sys_truncate(int32_t fd, int64_t size);
int32_t ls_sys_rename(int32_t from_fd, const char *from, int32_t to_fd, const char *to);
int32_t ls_sys_unlink(int32_t dir_fd, const char *name);

/* Open a name of an open directory, which must be that of a regular file: the descriptor, or -errno; -EINVAL for any other
   kind.  With O_CREAT and O_EXCL, the new file has the permissions `mode`, whatever the umask. */
int32_t ls_sys_open_file(int32_t dir_fd, const char *name, int32_t flags, int32_t mode);

/* Open a regular file of an open directory, which is not followed if it is a link, read it if it has at most `capacity`
   bytes, and close it.  `*size`: how long it is.  Returns how many bytes were read, or -errno, as `ls_sys_open_file`. */
int64_t ls_sys_read_name(int32_t dir_fd, const char *name, uint8_t *out, int64_t capacity, int64_t *size);

/* Examine an open file, or, with a name, an entry of an open directory, which is not followed if it is a link.  `out`
   gets 8 numbers: size, times of modification and of change in ns, device, inode, owner, group, mode.  0 or -errno. */
int32_t ls_sys_stat(int32_t fd, const char *name, int64_t *out);

/* Count the threads whose system call for a writer is over, and that wait for the interpreter lock (ls_gil.h).  Adds
   `change`, and returns the sum.  Any thread may call it, with the lock or without. */
int32_t ls_sys_returning_writers(int32_t change);

/* Take the record lock on a whole file, if it is not held already, and do not wait (fcntl, F_SETLK): 0 or -errno. */
int32_t ls_sys_hold_lock(int32_t fd);

/* Begin to write what is dirty in a range of a file to the disk, and do not wait (sync_file_range,
   SYNC_FILE_RANGE_WRITE).  A hint: nothing is durable by it.  Returns 0 or -errno. */
int32_t ls_sys_write_back(int32_t fd, int64_t file_pos, int64_t bytes);

/* What a watch reports: bits, as inotify has them. */
enum ls_watch {
    LS_WATCH_ENTRIES = 0x01000fc2, /* of a directory: an entry is written to, made, renamed or removed */
    LS_WATCH_RENAMES = 0x01000080, /* of a directory: an entry gets its name by a rename */
    LS_WATCH_FILE = 0x00000c06,    /* of a file: it is written to, renamed, or loses a name */
    LS_WATCH_CLOSES = 0x00000008,  /* of a file: a process that could write to it has closed it, or has ended */
    LS_WATCH_NAMES = 0x01000fc0,   /* of a directory: an entry is made, renamed or removed */
    LS_WATCH_WRITES = 0x0000000a,  /* of a file: it is written to, or closed as above */
    LS_WATCH_ENDED = 0x0000a000,   /* the watch has ended, since there is no such file any more; no need to ask for it */
};

/* A new inotify instance, whose reads do not wait, and a watch of it, for `what` of enum ls_watch; a watch of the same
   file or directory keeps what it already reports.  The descriptor, or the number of the watch, the same for the same
   file or directory, or -errno; -EOPNOTSUPP if the system has no inotify. */
int32_t ls_sys_new_watch(void);
int32_t ls_sys_add_watch(int32_t fd, const char *path, int32_t what);
/* End a watch.  Returns 0 or -errno; -EINVAL: no watch has this number. */
int32_t ls_sys_remove_watch(int32_t fd, int32_t number);
/* Wait at most `milliseconds` (-1: no limit) for reports, or for an eventfd (-1: none), which is cleared then; and
   read the reports that `capacity`, at least 273, has room for: how many bytes, 0 without reports, or -errno; -EINTR:
   a signal came first. */
int64_t ls_sys_read_reports(int32_t fd, int32_t event, int32_t milliseconds, uint8_t *out, int64_t capacity);

/* Examine a directory of an open one, which is opened for this ("." is the open one itself), and `count` files.  `names`:
   names of files in the directory, each with its zero byte, `names_bytes` in all; "../x" is the file x of the open one,
   "." the directory itself.  Links are not followed.
   `out` gets the time of the call in ms; device and inode of the directory; then, of each name, inode, times of
   modification and of change in ns, and size: 0, -1, -1, -1 if the file does not exist.  `before`: what another call
   has put there after its time; may be NULL.
   Returns 1 if it is the same now, 0 if not, or -errno; -ENOENT: no directory. */
int32_t ls_sys_look(int32_t dir_fd, const char *name, const char *names, int64_t names_bytes, int32_t count,
                    const uint8_t *before, int64_t *out);

/* One of the system calls that `ls_sys_steps` makes, and what must come of it. */
enum ls_step_kind {
    LS_STEP_LOCK = 1,   /* the byte `pos` is free, and is locked for this open file (F_OFD_SETLK) from now on */
    LS_STEP_UNLOCK = 2, /* this lock is given back */
    LS_STEP_FILE = 3,   /* the file `data` of the open directory has these numbers, and `size` unless that is -1 */
    LS_STEP_BYTES = 4,  /* `size` bytes at `pos` are `data`; at most LS_STEP_BYTES_MAX */
    LS_STEP_WRITE = 5,  /* `size` bytes of `data` are written at `pos` */
    LS_STEP_SYNC = 6,   /* all data of the file is on stable storage; where `size` is not 0, of the files in `data` */
    LS_STEP_STAMP = 7,  /* `data` is a stamp, the 32 bytes that `ls_sys_look` gives of a file, and a name of the open
                           directory: that is the stamp of the file */
};
#define LS_STEP_BYTES_MAX 256

typedef struct ls_step {
    int32_t kind;
    int32_t fd;
    int64_t pos;
    int64_t size;
    int64_t device, inode; /* of a file */
    const uint8_t *data;   /* a name has a zero byte at its end, which `size` counts */
    int32_t *results;      /* of syncs */
} ls_step;

/* Make system calls one after the other, until one has another result than it must.  Returns how many had the right one;
   `*error`: that of the next one, as errno; 0: it is not as it must be, or all are done.  After an error of a write some
   of it may be written. */
int32_t ls_sys_steps(const ls_step *steps, int32_t count, int32_t *error);

/* The number of the kind of file system that a file is on (statfs, f_type: 32 bits), or -errno. */
int64_t ls_sys_fs_type(int32_t fd);
