"""Planted bugs about compaction: what the field got wrong."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_COMPACTION = (
    Bug(
        "an abort marker counts as any record of its key: its transaction is forgotten",
        "log/compact/outcomes.py",
        (("        if marker == ABORT:\n", "        if False:\n"),),
        "compactions",
        quick=1,
    ),
    Bug(
        "the state of transactions is lost between segments",
        "log/compact/outcomes.py",
        (("    for segment in segments:\n        for n, found in _headers(segment):\n",
          "    for segment in segments:\n        survey.open.clear()\n"
          "        for n, found in _headers(segment):\n"),),
        "compactions",
        quick=1,
    ),
    Bug(
        "a segment that was mapped in part counts as cleaned",
        "log/compact/passes.py",
        (("                self.end = self._core.map.end_offset\n",
          "                self.end = self._decided.end\n"),),
        "compactions",
        quick=1,
    ),
    Bug(
        "tombstones are removed early",
        "log/compact/passes.py",
        (("        horizon_ms = min(work.now_ms + config.delete_retention_ms, ",
          "        horizon_ms = min(work.now_ms, "),),
        "compactions",
        quick=1,
    ),
    Bug(
        "tombstones are never removed",
        "log/compact/passes.py",
        (("min(work.now_ms + config.delete_retention_ms, OFFSET_MAX)\n",
          "OFFSET_MAX\n"),),
        "compactions",
        quick=1,
    ),
    Bug(
        "a compacted topic takes a record without a key",
        "record/encoder.py",
        (("        self.needs_keys = config.compacts\n",
          "        self.needs_keys = False\n"),),
        "compactions",
        quick=1,
    ),
    Bug(
        "a compacted segment is not synced before the swap",
        "log/compact/output.py",
        (("        files.sync(self._fd)\n        self.close()\n",
          "        self.close()\n"),),
        "compactions",
        quick=1,
    ),
    Bug(
        "the files of the swap count before its commit",
        "log/write/replacement.py",
        (("        log.point.swapping = (new.base_offset,)\n"
          "        log.point.write(log.extent, state)\n", ""),),
        "compactions",
        quick=1,
    ),
)  # fmt: skip
