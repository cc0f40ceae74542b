"""Bugs planted for the unit level in shared code: records, indexes, settings, errors,
metrics."""

from __future__ import annotations

from faults.planted_bug import unit_bug

BUGS_OF_RECORDS = (
    unit_bug(
        "a time is rounded down to milliseconds",
        "record/arguments.py",
        "return -(-(delta // datetime.timedelta(microseconds=1)) // 1000)",
        "return delta // datetime.timedelta(microseconds=1) // 1000",
        "record/test_arguments.py",
    ),
    unit_bug(
        "the bytes of a partition's turn are not counted from 0 again",
        "record/partitioner.py",
        "                self._bytes = 0\n                self._next += 1\n",
        "                self._next += 1\n",
        "record/test_partitioner.py",
    ),
    unit_bug(
        "a batch that ends with the bytes is not searched for",
        "record/batch_search.py",
        "                length <= len(data) - end\n",
        "                length < len(data) - end\n",
        "record/test_batch_search.py",
    ),
    unit_bug(
        "a chunk that is limited begins again at its last record",
        "record/batch.py",
        "chunk._stop = chunk.next_offset = head[-1].offset + 1 if head",
        "chunk._stop = chunk.next_offset = head[-1].offset if head",
        "record/test_batch.py",
    ),
    unit_bug(
        "the checksum after a zstd frame is not skipped",
        "record/compression.py",
        "        pos += block_pos + (4 if parameters.has_checksum else 0)\n",
        "        pos += block_pos\n",
        "record/test_compression.py",
    ),
    unit_bug(
        "an aborted transaction whose marker is at the cut stays in the index",
        "index.py",
        "if _TXN_ENTRY.unpack_from(data, size - TXN_ENTRY_BYTES)[3] < end:",
        "if _TXN_ENTRY.unpack_from(data, size - TXN_ENTRY_BYTES)[3] <= end:",
        "test_index.py",
    ),
    unit_bug(
        "segments of a compacted topic are not rolled by max_compaction_lag_ms",
        "config.py",
        "        return min(self.segment_ms, self.max_compaction_lag_ms)\n",
        "        return self.segment_ms\n",
        "test_config.py",
        quick=1,
    ),
    unit_bug(
        "an error of a call that was partly done names one offset too many",
        "errors.py",
        'f"offsets {span.start} to {span.stop - 1} of',
        'f"offsets {span.start} to {span.stop} of',
        "test_errors.py",
        quick=1,
    ),
    unit_bug(
        "gauges show what the store was when it was first collected",
        "metrics.py",
        "if self._values is None or now >= self._until:",
        "if self._values is None:",
        "test_metrics.py",
    ),
    unit_bug(
        "rows without a key go where Kafka's hash would put the last one",
        "record/arrow_routing.py",
        "hashed_to[hash_] if number is None and hash_ >= 0 else number",
        "hashed_to[hash_] if number is None else number",
        "record/test_arrow_routing.py",
    ),
    unit_bug(
        "batches of a producer that were overwritten are given out",
        "_native/producers.py",
        "for number in range(max(producer.count - _BATCHES, 0), producer.count):",
        "for number in range(producer.count):",
        "_native/test_producers.py",
    ),
    unit_bug(
        "the headers of a second run follow no offset",
        "_native/batches.py",
        "self.pos, self.last_offset = scan.pos, scan.last_offset",
        "self.pos = scan.pos",
        "_native/test_batches.py",
        quick=1,
    ),
    unit_bug(
        "an index entry may point to the end of its file",
        "_native/ls_index.c",
        "pos < pos_before || pos >= file_size) {",
        "pos < pos_before || pos > file_size) {",
        "_native/test_index.py",
    ),
    unit_bug(
        "the last batch of an aborted transaction counts as committed",
        "_native/ls_offset_map.c",
        "batch->last_offset <= found[2];",
        "batch->last_offset < found[2];",
        "_native/test_compaction.py",
    ),
    unit_bug(
        "a tombstone stays for the millisecond of its horizon",
        "_native/ls_compact.c",
        "batch->base_timestamp <= how->now_ms;",
        "batch->base_timestamp < how->now_ms;",
        "_native/test_compaction.py",
    ),
    unit_bug(
        "a batch of a producer's earlier epoch follows its newest one",
        "_native/ls_producer.c",
        "            || ls_bytes_load_i16(batch + LS_BATCH_PRODUCER_EPOCH_POS)"
        " != producer->epoch) {",
        "            || ls_bytes_load_i16(batch + LS_BATCH_PRODUCER_EPOCH_POS)"
        " > producer->epoch) {",
        "_native/test_producers.py",
    ),
)  # fmt: skip
