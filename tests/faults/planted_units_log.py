"""Bugs planted for the unit level in the rooms of one log: `log`."""

from __future__ import annotations

from faults.planted_bug import unit_bug

BUGS_OF_LOGS = (
    unit_bug(
        "records are appended to a log whose state file a deletion has removed",
        "log/write/log_writer.py",
        "        if self.point.must_record:\n            self.active.retire()",
        "        if False:\n            self.active.retire()",
        "log/write/test_writer_without_state.py",
    ),
    unit_bug(
        "recorded cuts are left out of the look at a log of another program",
        "log/follow/decide.py",
        "recorded = now.cuts.lowest_removal_since(before.cuts.serial)",
        "recorded = NO_CUT",
        "log/follow/test_decide.py",
    ),
    unit_bug(
        "a log may be cut while it is loaded",
        "log/follow/loading.py",
        "return now.state == was.state or not is_other_log(\n"
        "            loaded.log, self.metadata(now.ownership).state, 0, "
        "is_foreign=False\n"
        "        )",
        "return True",
        "log/follow/test_loading.py",
    ),
    unit_bug(
        "the cuts of a log are forgotten while its state cannot be read",
        "log/follow/loading.py",
        "    if before is not None:\n        return before.cuts\n",
        "",
        "log/follow/test_loading.py",
    ),
    unit_bug(
        "a log may not shrink to retention_bytes exactly",
        "log/retention.py",
        "            if excess < segment.size_bytes or excess <= 0:\n",
        "            if excess <= segment.size_bytes or excess <= 0:\n",
        "log/test_retention.py",
    ),
    unit_bug(
        "the producers before a cut know a batch that begins at it",
        "log/producers.py",
        "            batches = [one for one in producer.batches if one.last_offset < "
        "offset]\n",
        "            batches = [one for one in producer.batches if one.last_offset <= "
        "offset]\n",
        "log/test_producers.py",
    ),
    unit_bug(
        "the sync that catches up waits for more in a new segment",
        "log/write/syncs.py",
        "if state.size - (0 if is_new else synced.size) >= _UNSYNCED_BYTES:",
        "if state.size - synced.size >= _UNSYNCED_BYTES:",
        "log/write/test_syncs_behind.py",
    ),
    unit_bug(
        "an aborted transaction is written twice to its index",
        "log/write/transaction_index.py",
        "if known and known[-1].last_offset >= entries[0].last_offset:",
        "if known and known[-1].last_offset > entries[0].last_offset:",
        "log/write/test_transaction_index_entries.py",
    ),
    unit_bug(
        "the start of a damaged log without a state is not recorded",
        "log/write/deletion.py",
        "        if not is_committed and offset > kept[0].base_offset:\n"
        "            context.services.state.record_start(context.key, offset)\n",
        "",
        "log/write/test_deletion_damaged.py",
    ),
    unit_bug(
        "the durable page tells of the log before a cut",
        "log/write/durable_page.py",
        "if self._file is not None and cuts == self._cuts:",
        "if self._file is not None:",
        "log/follow/test_durable_news.py",
    ),
    unit_bug(
        "a segment of another size gets a digest",
        "log/write/sealed_digests.py",
        "if file_size != size or not scan.is_whole:",
        "if not scan.is_whole:",
        "log/write/test_sealed_digests.py",
    ),
    unit_bug(
        "records whose sync is in doubt count as durable",
        "log/write/exclusive.py",
        "self._log.set_durable(min(offset, self._log.extent.durable))",
        "self._log.set_durable(max(offset, self._log.extent.durable))",
        "log/write/test_exclusive.py",
    ),
    unit_bug(
        "a later failure takes the place of the first one",
        "log/write/health.py",
        "        if self.failed is None:\n            self.failed = error\n",
        "        if True:\n            self.failed = error\n",
        "log/write/test_health.py",
    ),
    unit_bug(
        "an epoch that begins at a cut stays",
        "log/write/leader_epochs.py",
        "kept = [entry for entry in epochs if entry[1] < offset]",
        "kept = [entry for entry in epochs if entry[1] <= offset]",
        "log/write/test_leader_epochs.py",
    ),
    unit_bug(
        "the same bytes of a staged file are published twice",
        "log/write/staged_files.py",
        "        if pos < ends.get(name, 0):\n",
        "        if pos < ends.get(name, 0) - size:\n",
        "log/write/test_staging_arguments.py",
    ),
    unit_bug(
        "an empty segment that was swapped in supersedes nothing",
        "log/recover/names.py",
        "high = max((max(end, base + 1) for base, end in swap_ends.items()), "
        "default=-1)",
        "high = max((end for base, end in swap_ends.items()), default=-1)",
        "log/recover/test_names.py",
    ),
    unit_bug(
        "a sealed segment may end with the first offset of the next one",
        "log/recover/segments.py",
        "if walk.is_whole and walk.last_offset < segment.next_offset:",
        "if walk.is_whole and walk.last_offset <= segment.next_offset:",
        "log/recover/test_make_plan.py",
    ),
    unit_bug(
        "a torn tail may begin below the offset that was durable",
        "log/recover/torn_tail.py",
        "if walk.pos < durable_pos or walk.last_offset + 1 < durable_offset:",
        "if walk.pos < durable_pos:",
        "log/recover/test_torn_tail.py",
    ),
    unit_bug(
        "a longer copy of torn bytes counts as one of these",
        "log/recover/durable.py",
        "            return size <= end - begin\n",
        "            return True\n",
        "log/recover/test_durable.py",
    ),
    unit_bug(
        "an entry of a transaction index that the log contradicts stays",
        "log/recover/transactions.py",
        "        if entry is None or one.fault_of(entry):\n",
        "        if entry is None:\n",
        "log/recover/test_transactions.py",
    ),
    unit_bug(
        "the snapshot at the end of a cut log is removed",
        "log/recover/rebuild.py",
        "        if offset > above:\n",
        "        if offset >= above:\n",
        "log/recover/test_rebuild.py",
    ),
    unit_bug(
        "a segment is kept from compaction a millisecond too long",
        "log/compact/plan.py",
        "(s.base_offset for s in dirty if s.largest_ms > young), bound)",
        "(s.base_offset for s in dirty if s.largest_ms >= young), bound)",
        "log/compact/test_plan.py",
    ),
    unit_bug(
        "compaction forgets an old producer whose transaction is open",
        "log/compact/outcomes.py",
        "            if is_old and not is_named and producer_id not in self.open:\n",
        "            if is_old and not is_named:\n",
        "log/compact/test_outcomes.py",
    ),
    unit_bug(
        "a compacted segment looks as young as its compaction",
        "log/compact/output.py",
        "        files.set_modified(self._fd, modified_ns)\n",
        "",
        "log/compact/test_output.py",
    ),
    unit_bug(
        "a lookup by time knows the last segment as it was before it grew",
        "log/read/time_lookup.py",
        "largest = largest[: max(same - 1, 0)]",
        "largest = largest[:same]",
        "log/read/test_time_lookup.py",
    ),
    unit_bug(
        "a point of open transactions stands though the log was cut below it",
        "log/read/transactions.py",
        "            and view.cuts.lowest_since(point.serial) >= point.upto\n",
        "",
        "log/read/test_transactions.py",
    ),
    unit_bug(
        "a read of what is committed raises damage before the records in front of it",
        "log/read/transactions.py",
        "Cursor(view, offset, end, SKIP, follows=False)",
        "Cursor(view, offset, end, RAISE, follows=False)",
        "log/read/test_transactions.py",
    ),
    unit_bug(
        "a broker's log ends at the damage in its last segment after a clean stop",
        "log/recover/survey.py",
        "        is_known = metadata.clean and metadata.is_written\n",
        "        is_known = metadata.clean\n",
        "log/recover/test_load_damaged.py",
    ),
    unit_bug(
        "what another log's writer told of its syncs is believed of this one",
        "log/follow/durable_news.py",
        "            self._log, self.offset = log, -1\n",
        "            self._log = log\n",
        "log/follow/test_durable_news.py",
    ),
    unit_bug(
        "segments that the state says are deleted stay in front of a log",
        "log/follow/rolls.py",
        "while first < len(segments) - 1 and segments[first].base_offset < base:",
        "while first < len(segments) - 2 and segments[first].base_offset < base:",
        "log/follow/test_rolls.py",
    ),
    unit_bug(
        "a scan leaves out a segment whose last record has the time asked for",
        "log/frames/pieces.py",
        "    if latest is not None and latest < timestamp_ms:\n",
        "    if latest is not None and latest <= timestamp_ms:\n",
        "log/frames/test_dataset.py",
    ),
    unit_bug(
        "the column of a topic is as long as in the first batch",
        "log/frames/columns.py",
        "if array is None or len(array) < count:",
        "if array is None:",
        "log/frames/test_columns.py",
    ),
)  # fmt: skip
