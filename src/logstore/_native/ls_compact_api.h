/*
 * ls_compact_api.h - the part of ls_api.h that is about compaction: by the same rules, after that file.
 */

enum { LS_MAP_SLOT_BYTES = 16, LS_COMPACT_RECORDS_MIN = 64 };

/* The last offset of each key of the records from first_offset on.  Zeroed slots and a count of 0 are an empty map; it
   is full at count_max keys, fewer than its slots, and at 2^32 - 2 offsets after first_offset. */
typedef struct ls_offset_map {
    uint8_t *slots;       /* LS_MAP_SLOT_BYTES each; aligned to 8 */
    int64_t capacity;     /* slots: fewer than 2^32 */
    int64_t count_max;
    int64_t count;        /* keys in it */
    int64_t first_offset;
    int64_t end_offset;   /* it knows all keys below; once it is full, some from there on, too */
    int64_t classes;      /* above 1: number of key classes; only the keys of one are looked at */
    int64_t class_number;
    uint64_t secret[2];   /* of the hash */
} ls_offset_map;

/* What other parts of a log decide about its batches: all in order. */
typedef struct ls_outcomes {
    const int64_t *aborted; /* three numbers each: a producer whose batches are aborted if they end between two offsets */
    int64_t aborted_count;
    const int64_t *spent;   /* last offsets of control batches whose transactions have no other batches */
    int64_t spent_count;
    const int64_t *needed;  /* last offsets of batches whose headers stay */
    int64_t needed_count;
} ls_outcomes;

/* SipHash-2-4 with 128 bits: secret and hash are two words each. */
void ls_hash_key(const uint64_t *secret, const uint8_t *key, int64_t size, uint64_t *out);

/* Put the keys of the uncompressed batches of buf[walk->pos, size) into the map, except keys of control batches and of
   aborted transactions.  Stops before a compressed batch whose keys count (LS_STOP_COMPRESSED), and when the map is
   full (LS_STOP_FULL; map->end_offset says how far it has come).  `columns` is memory to work in, for
   LS_COMPACT_RECORDS_MIN records or more; LS_E_NO_SPACE as in ls_decode. */
int32_t ls_map_batches(ls_offset_map *map, const ls_outcomes *outcomes, const uint8_t *buf, int64_t size,
                       uint32_t checks, ls_columns *columns, ls_walk *walk);

/* The same of one compressed batch, whose decompressed payload is given: LS_OK, LS_STOP_FULL or a negative status. */
int32_t ls_map_payload(ls_offset_map *map, const ls_batch *batch, const uint8_t *payload, int64_t size,
                       uint32_t checks, ls_columns *columns, ls_error *error);

/* The headers of batches of producers (batches with a producer id) in buf[walk->pos, size).  If several of one producer
   follow one another, without a transaction, and without offsets of others between them, the last one stands for all.
   All batches are checked, also the others: a damaged one may be of a producer, whatever it says.  Takes
   walk->last_offset and stops as ls_scan_batches. */
int32_t ls_scan_producers(const uint8_t *buf, int64_t size, uint32_t checks, ls_batch *out, int64_t capacity,
                          ls_walk *walk);

/* What a compaction does to batches. */
typedef struct ls_compaction {
    const ls_offset_map *map;
    const ls_outcomes *outcomes;
    int64_t now_ms;
    int64_t horizon_ms;       /* the delete horizon of batches that get one */
    int64_t keeps_tombstones; /* of magic 0 and 1 */
} ls_compaction;

/* What was done so far; calls add to it. */
typedef struct ls_compacted {
    int64_t records;          /* looked at */
    int64_t removed;          /* of them */
    int64_t tombstones;       /* of those removed */
    int64_t batches_removed;
    int64_t batches_changed;  /* encoded again, or a header without records now */
} ls_compacted;

/* What becomes of a batch: it stays byte for byte; some of its records stay, or it gets a delete horizon; its header. */
enum ls_verdict { LS_VERDICT_KEEP = 1, LS_VERDICT_REMOVE = 2, LS_VERDICT_REWRITE = 3, LS_VERDICT_EMPTY = 4 };

/* Put what stays of the uncompressed batches of buf[walk->pos, size) into `out`, and its size into *bytes.  Stops in
   front of a compressed batch that must be opened (LS_STOP_COMPRESSED), and when `out` has no room for the bytes that a
   batch may become (LS_STOP_FULL; error.expected is what it needs).  `columns` and `states` as in ls_map_batches. */
int32_t ls_compact_batches(const ls_compaction *how, const uint8_t *buf, int64_t size, uint32_t checks,
                           ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity, int64_t *bytes,
                           ls_walk *walk, ls_compacted *done);

/* The verdict on a compressed batch, whose decompressed payload is given.  LS_VERDICT_REWRITE: `out` has the record area,
   or the inner messages, that stay, *bytes in all; LS_VERDICT_EMPTY, too: `made` is the header of the new batch (of a
   wrapper: offset, largest timestamp, attributes).  `capacity` is size + 11 bytes for each record, or more. */
int32_t ls_compact_payload(const ls_compaction *how, const ls_batch *batch, const uint8_t *payload, int64_t size,
                           uint32_t checks, ls_columns *columns, uint8_t *states, uint8_t *out, int64_t capacity,
                           int64_t *bytes, ls_batch *made, ls_compacted *done, ls_error *error);
