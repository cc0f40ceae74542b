"""Bugs planted for the unit level in the tools: `cli`, `maintenance`."""

from __future__ import annotations

from faults.planted_bug import unit_bug

BUGS_OF_TOOLS = (
    unit_bug(
        "a range that is counted from the end of a log is refused",
        "cli/params.py",
        "    if isinstance(start, FromEnd) and isinstance(stop, FromEnd):\n"
        "        return start < stop\n",
        "    if isinstance(start, FromEnd) and isinstance(stop, FromEnd):\n"
        "        return start > stop\n",
        "cli/test_records.py",
    ),
    unit_bug(
        "1,024 bytes are not a KiB",
        "cli/text.py",
        "        if value < 1024 or unit == _UNITS[-1]:\n",
        "        if value <= 1024 or unit == _UNITS[-1]:\n",
        "cli/test_text.py",
    ),
    unit_bug(
        "bytes are printed before the text that precedes them",
        "cli/output.py",
        "            self.out.flush()\n            self._is_text_pending = False\n",
        "            self._is_text_pending = False\n",
        "cli/test_output.py",
    ),
    unit_bug(
        "a template shows the length of a null as 0",
        "cli/template.py",
        "return b\"%d\" % (-1 if data is None else len(data))",
        "return b\"%d\" % (0 if data is None else len(data))",
        "cli/test_template.py",
    ),
    unit_bug(
        "a loss is one offset too small",
        "cli/losses.py",
        "sum(last - first + 1 for _, first, last in offsets)",
        "sum(last - first for _, first, last in offsets)",
        "cli/test_losses.py",
    ),
    unit_bug(
        "the delete horizon of a batch counts as its first time",
        "cli/stat.py",
        "return batch.base_timestamp_ms if is_known else largest",
        "return batch.base_timestamp_ms",
        "cli/test_stat.py",
    ),
    unit_bug(
        "a time is unsure though an older record lies before it",
        "cli/lookup.py",
        "return Beginning(offset, damage, bool(damage) and next(older, None) is None)",
        "return Beginning(offset, damage, bool(damage))",
        "cli/test_damage_bounds.py",
    ),
    unit_bug(
        "a reset of a group that changes it is told as a dry run",
        "cli/group_changes.py",
        "        verb = \"would be\" if dry_run else \"are\"\n"
        "        count = counted(len(changes), \"offset\")\n",
        "        verb = \"are\" if dry_run else \"would be\"\n"
        "        count = counted(len(changes), \"offset\")\n",
        "cli/test_group_list.py",
    ),
    unit_bug(
        "--no-links makes links",
        "cli/snapshot.py",
        "links=not given[\"no_links\"]",
        "links=given[\"no_links\"]",
        "cli/test_snapshot.py",
    ),
    unit_bug(
        "damage that keeps a topic from being compacted does not count in the status",
        "cli/compact.py",
        "status = max(status, PROBLEMS if is_damage else UNUSABLE)",
        "status = CLEAN if is_damage else max(status, UNUSABLE)",
        "cli/test_compact.py",
    ),
    unit_bug(
        "the number of a partition may be 2^31",
        "maintenance/names.py",
        "return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None",
        "return number if -(1 << bits - 1) <= number <= 1 << bits - 1 else None",
        "maintenance/test_names.py",
    ),
    unit_bug(
        "a mount with a bad option is fine, too",
        "maintenance/environment.py",
        "        elif not bad:\n",
        "        else:\n",
        "maintenance/test_environment.py",
    ),
    unit_bug(
        "a segment that begins at the recovery point is read again from before",
        "maintenance/facts.py",
        "floor = max((base for base in bases if base <= point), default=0)",
        "floor = max((base for base in bases if base < point), default=0)",
        "maintenance/test_facts.py",
    ),
    unit_bug(
        "records of one moment vanish from a series",
        "maintenance/report/series.py",
        "        part = 1.0 if low == high else max(end - begin, 0) / span\n",
        "        part = max(end - begin, 0) / span\n",
        "maintenance/report/test_series.py",
    ),
    unit_bug(
        "a damaged segment is drawn with its neighbour",
        "maintenance/report/charts.py",
        "        size = 1 << 62 if is_hurt else size + one.size_bytes\n",
        "        size = size + one.size_bytes\n",
        "maintenance/report/test_charts.py",
    ),
    unit_bug(
        "the first time of a partition is that of its last segment",
        "maintenance/sampling.py",
        "min(times) if first < 0 else min(first, *times)",
        "min(times)",
        "maintenance/report/test_report.py",
    ),
    unit_bug(
        "a second quarantine of one second takes the names of the first",
        "maintenance/repair/quarantine.py",
        "while any(other == chosen or other.startswith(f\"{chosen}-\") for other in "
        "names):",
        "while any(other == chosen for other in names):",
        "maintenance/repair/test_quarantine.py",
    ),
    unit_bug(
        "the copy of a later partition reports the earlier ones as missing",
        "maintenance/repair/copy.py",
        "if value is None or key is None or key[1] != 0:",
        "if value is None or key is None:",
        "maintenance/repair/test_copy.py",
    ),
    unit_bug(
        "a recovery point of another program stays above a cut log",
        "maintenance/repair/ownership.py",
        "            if self._is_own or points.get(key, 0) > end:\n",
        "            if self._is_own:\n",
        "maintenance/repair/test_run.py",
    ),
    unit_bug(
        "a repair goes on after a segment that has lost its end",
        "maintenance/repair/plan.py",
        "if run.end < max(source.size, source.min_size or 0):",
        "if run.end < source.size:",
        "maintenance/repair/test_plan.py",
    ),
    unit_bug(
        "a transaction that ends with a cut log leaves its index",
        "maintenance/repair/rewrite.py",
        "cut_transactions(directory, target.base, target.last + 1)",
        "cut_transactions(directory, target.base, target.last)",
        "maintenance/repair/test_rewrite.py",
    ),
    unit_bug(
        "what only the durable page announced may be cut in silence",
        "maintenance/repair/assessment.py",
        "return max(own, self.context.recovery_point, self.context.announced)",
        "return max(own, self.context.recovery_point)",
        "maintenance/repair/test_assessment.py",
    ),
    unit_bug(
        "a whole batch at the end of a file counts as torn",
        "maintenance/verify/frames.py",
        "magic <= _MAGIC_MAX and length + FRAME.size > remaining",
        "magic <= _MAGIC_MAX and length + FRAME.size >= remaining",
        "maintenance/verify/test_frames.py",
    ),
    unit_bug(
        "a problem that only the last check finds is reported",
        "maintenance/verify/again.py",
        "f for f in again.findings if not f.is_problem or _place(f) in places",
        "f for f in again.findings if not f.is_problem or places",
        "maintenance/verify/test_again.py",
    ),
    unit_bug(
        "an aborted transaction that was not written is damage at the end",
        "maintenance/verify/transactions.py",
        "        if end is not None and entry.last_offset >= end:\n",
        "        if end is not None and entry.last_offset > end:\n",
        "maintenance/verify/test_transactions_entries.py",
    ),
    unit_bug(
        "messages in a wrapper of magic 0 are renumbered",
        "maintenance/verify/unchecked.py",
        "    if magic == 1 and offset:\n",
        "    if offset:\n",
        "maintenance/verify/test_unchecked.py",
    ),
    unit_bug(
        "a handover does not say that zeros at the end are cut",
        "maintenance/handover/opening.py",
        "            elif one.remedy == kinds.CUT:\n",
        "            elif one.kind == kinds.TORN_TAIL:\n",
        "maintenance/handover/test_check.py",
    ),
)  # fmt: skip
