"""Planted bugs about compaction: what the field got wrong."""

from __future__ import annotations

from faults.planted_bug import Bug
from faults.scene_compaction import COMPACTION_CALLS

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
        (("    for segment in segments:\n        for n, headers, ",
          "    for segment in segments:\n        survey.open.clear()\n"
          "        for n, headers, "),),
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
          "        log.point.write(log.bounds, state)\n", ""),),
        "compactions",
        quick=1,
    ),
    Bug(
        "a group of segments may have offsets that are more than 2^31 apart",
        "log/compact/plan.py",
        (("segment.next_offset - 1 - result[-1][0].base_offset <= _RELATIVE_MAX",
          "True"),),
        "compactions",
    ),
    Bug(
        "the map of a compaction keeps its first offset in 31 bits",
        "_native/compaction.py",
        (("        self.raw.first_offset = self.raw.end_offset = first_offset\n",
          "        self.raw.first_offset = first_offset & 0x7FFFFFFF\n"
          "        self.raw.end_offset = first_offset & 0x7FFFFFFF\n"),),
        "compactions",
    ),
    Bug(
        # The survey and the passes ask for it.
        "a compaction believes every offset of a batch",
        "segment.py",
        (("        if last_offset < self.next_offset:\n            return\n        for",
          "        if True:\n            return\n        for"),),
        "lying_disk",
        (".compacted",),
    ),
    Bug(
        "a compaction does not look where the messages of a wrapper begin",
        "log/compact/batches.py",
        (("        if header.base_offset < 0:\n            limit",
          "        if False:\n            limit"),),
        "lying_disk",
        (".compacted",),
    ),
    Bug(
        "what stays of batches is lost by a compaction",
        "log/compact/batches.py",
        (("                if walked.bytes:\n                    self._filled",
          "                if False:\n                    self._filled"),),
        "readable",
    ),
    Bug(
        "an interrupted compaction counts as one that goes on",
        "log/compact/compactor.py",
        (("        finally:\n            if self._gate.under_way is mine:\n"
          "                self._gate.under_way = None\n",
          "        except Exception:\n            self._gate.under_way = None\n"
          "            raise\n        self._gate.under_way = None\n"),),
        "interrupts",
        COMPACTION_CALLS,
        quick=3,
    ),
    Bug(
        "a compaction leaves its last segment out",
        "log/compact/passes.py",
        (("            yield from self._walk.filter_segment(segment, write)\n",
          "            if segment is not segments[-1] or len(segments) == 1:\n"
          "                yield from self._walk.filter_segment(segment, write)\n"),),
        "interrupts",
        COMPACTION_CALLS,
        quick=1,
    ),
)  # fmt: skip
