"""Bugs planted for the unit level in the rooms of groups: `group`, `broker`."""

from __future__ import annotations

from faults.planted_bug import unit_bug

BUGS_OF_GROUP_ROOMS = (
    unit_bug(
        "the file of a group has no durable point while it is replaced",
        "group/file/group_log.py",
        "            old.sync(shared)\n        end, last_offset",
        "            old.sync(shared)\n"
        "        shared.set(NO_POINT.file, 0, is_new=True)\n"
        "        end, last_offset",
        "group/file/test_group_file_durable.py",
    ),
    unit_bug(
        "each partition is read ahead up to the whole limit",
        "group/consumer/ahead.py",
        "                limit -= reader.ahead\n",
        "",
        "group/consumer/test_ahead.py",
    ),
    unit_bug(
        "a consumer asks the same partition first in each call",
        "group/consumer/fetcher.py",
        "self._turn = (self._turn + 1) % len(readers)",
        "self._turn = 0",
        "group/consumer/test_fetcher.py",
    ),
    unit_bug(
        "a commit that has failed is never synced",
        "group/consumer/committer.py",
        "        self._unsynced = {**self._unsynced, **offsets}\n        try",
        "        try",
        "group/consumer/test_committer.py",
    ),
    unit_bug(
        "a lowered position keeps the proof of the batch below the old one",
        "group/consumer/lowering.py",
        "offset=now, leader_epoch=-1, proof=None)",
        "offset=now, leader_epoch=-1)",
        "group/consumer/test_lowering.py",
    ),
    unit_bug(
        "a partition that is named twice is assigned twice",
        "group/consumer/options.py",
        "return list(dict.fromkeys(as_partition(value) for value in items))",
        "return [as_partition(value) for value in items]",
        "group/consumer/test_options.py",
    ),
    unit_bug(
        "a commit takes the place of a value of another length",
        "group/file/batches.py",
        "        if last is None or last[1] != len(value):\n",
        "        if last is None:\n",
        "group/file/test_batches.py",
    ),
    unit_bug(
        "two partitions of a group may have one row",
        "group/file/state.py",
        "_checked(number, _is_number(number, 0, ROWS_MAX) and number not in numbers)",
        "_checked(number, _is_number(number, 0, ROWS_MAX))",
        "group/file/test_state.py",
    ),
    unit_bug(
        "what was durable of another file makes a torn append of this one damage",
        "group/file/damage.py",
        "            not self.pos and point.file.inode == file.inode\n",
        "            point.file.inode == file.inode\n",
        "group/file/test_damage.py",
    ),
    unit_bug(
        "the state of a removed group loses the way in which it commits",
        "group/file/group_records.py",
        "GroupState(self.state.generation, way=self.state.way)",
        "GroupState(self.state.generation)",
        "group/file/test_group_records.py",
    ),
    unit_bug(
        "zeros at the end of a group's file are damage",
        "group/file/damage.py",
        "return (head == begin[: len(head)] or not any(head)) and magic in (",
        "return head == begin[: len(head)] and magic in (",
        "group/file/test_damage.py",
    ),
    unit_bug(
        "an assignor may give a partition to two members",
        "group/member/assignors.py",
        "            left.discard(one)\n",
        "",
        "group/member/test_assignors.py",
    ),
    unit_bug(
        "the partition of a topic that was made again keeps its row",
        "group/member/generations.py",
        "if row is not None and row.topic_id == topic_id and not is_fenced:",
        "if row is not None and not is_fenced:",
        "group/member/test_generations.py",
    ),
    unit_bug(
        "the mutex of a group is taken without reading what others have appended",
        "group/member/open_group.py",
        "            self.file.refresh_held(self.slots)\n",
        "",
        "group/member/test_open_group.py",
    ),
    unit_bug(
        "a row that an interrupted call has locked stays locked",
        "group/member/holder.py",
        "            for number in self._slots.rows - held:\n",
        "            for number in held - self._slots.rows:\n",
        "group/member/test_holder.py",
    ),
    unit_bug(
        "a member that hangs a second time is not reported",
        "group/member/others.py",
        "                self._reported.discard(member.slot)\n",
        "                pass\n",
        "group/member/test_others.py",
    ),
    unit_bug(
        "a published position has the time of an older commit",
        "group/overview.py",
        "commit_ms=copy.commit_ms if copy is not None and is_same else -1,",
        "commit_ms=copy.commit_ms if copy is not None else -1,",
        "group/test_overview.py",
    ),
    unit_bug(
        "a group that is reset to a time after its log begins anew",
        "group/resets.py",
        "            return end if found is None else found\n",
        "            return start if found is None else found\n",
        "group/test_resets.py",
    ),
    unit_bug(
        "exported offsets expire by the time of their first commit",
        "group/exports.py",
        "timed = [dataclasses.replace(commit, commit_ms=now_ms) for commit in commits]",
        "timed = [*commits]",
        "group/test_exports.py",
    ),
    unit_bug(
        "of two high watermarks the one that is read last counts",
        "broker/directories.py",
        "self._high_watermarks[key] = max(known, offset)",
        "self._high_watermarks[key] = offset or known",
        "broker/test_directories.py",
    ),
    unit_bug(
        "a tagged field may be there twice",
        "broker/fields.py",
        "            if is_strict and tag <= last:\n",
        "            if is_strict and tag < last:\n",
        "broker/test_fields.py",
    ),
    unit_bug(
        "a commit in a transaction undoes a later one outside of it",
        "broker/offsets_log.py",
        "            if known is None or record.offset > known.offset:\n",
        "            if True:\n",
        "broker/test_offsets_log.py",
    ),
    unit_bug(
        "a group whose hash is the smallest number is sought elsewhere",
        "broker/placement.py",
        "return 0 if value == -(1 << 31) else abs(value) % count",
        "return abs(value) % count",
        "broker/test_placement.py",
    ),
    unit_bug(
        "what a member has to give up is read as what it has",
        "broker/consumer_records.py",
        "        _by_topic_id(values[\"assignedPartitions\"]),\n"
        "        _by_topic_id(values[\"partitionsPendingRevocation\"]),\n",
        "        _by_topic_id(values[\"partitionsPendingRevocation\"]),\n"
        "        _by_topic_id(values[\"assignedPartitions\"]),\n",
        "broker/test_consumer_records.py",
    ),
    unit_bug(
        "a group with one unknown lag has none",
        "broker/progress.py",
        "return sum(known) if known else None",
        "return sum(known) if len(known) == len(self.partitions) else None",
        "broker/test_progress.py",
    ),
)  # fmt: skip
