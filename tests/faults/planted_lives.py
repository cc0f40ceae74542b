"""Planted bugs about state that outlives a process: whether a log is damaged, by each
check for damage and each way of reading, and the effect on other logs of the store."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_LIVES = (
    Bug(
        "damage is not recorded",
        "log/recover/load.py",
        (("        unwritten = record_verdicts(context, result.facts, plan)",
          "        pass"),),
        "lives",
        quick=1,
    ),
    Bug(
        "the marks say whether what was found damaged is a torn tail",
        "log/recover/findings.py",
        (("return bool(self._fault) or any(v.segment == base for v in self.verdicts)",
          "return False"),
         ("return self.damage is not None or bool(self.verdicts or self._fault)",
          "return self.damage is not None")),
        "lives",
    ),
    Bug(
        "a repair without a mode believes that all is well",
        "maintenance/repair/partition.py",
        (("            if not (seen.has_damage or self._has_losses(run)):",
          "            if True:"),),
        "lives",
    ),
    Bug(
        "after a kill, what is behind a bad batch does not count",
        "log/recover/torn_tail.py",
        (("    if metadata.is_own and metadata.is_same_boot and is_written:",
          "    if False:"),),
        "lives",
        quick=1,
    ),
    Bug(
        "zeros before intact batches are a call that was not finished",
        "log/resync.py",
        (("    stated = _stated_offsets(segment, pos, magic=2)\n    data",
          "    return True\n    data"),),
        "lives",
    ),
    Bug(
        "damage whose bytes are back stays",
        "log/recover/standing.py",
        (("        return False  # the file has more of the bytes that were cut off\n",
          "        return True\n"),),
        "lives",
    ),
    Bug(
        "what fails in the background ends the round",
        "store/background.py",
        (("        except LogStoreError as error:\n            self._failed(key,",
          "        except LogStoreError as error:\n            self._pending.clear()\n"
          "            self._pending.append(key)\n            self._failed(key,"),),
        "lives",
    ),
    Bug(
        "what fails in the background is kept in each round",
        "store/background.py",
        (("        if self._met.get(key) != str(error):\n", "        if True:\n"),),
        "lives",
    ),
    Bug(
        "the background raises what has failed there",
        "store/topic/open_topics.py",
        (("upkeep_of(self.open_partition(topic, number)).compact_due()",
          "self.open_partition(topic, number).compact()"),),
        "lives",
    ),
    Bug(
        "verify does not ask what is too short, or too long",
        "maintenance/verify/decided.py",
        (("                    self._size(finding, last)\n",
          "                    pass\n"),),
        "agreement",
    ),
    Bug(
        "what opening cuts as a torn tail is damage for verify",
        "maintenance/verify/decided.py",
        (("        if plan.tail is None:\n", "        if True:\n"),),
        "agreement",
    ),
    Bug(
        "a read that may end in a gap does not look behind it",
        "log/read/fetch.py",
        (("    if end and is_last and read.pos + end < read.segment.size:\n",
          "    if False:\n"),),
        "damages",
    ),
    Bug(
        "a batch is delivered with an offset that the next one contradicts",
        "log/read/cursor.py",
        (("        n = part.confirmed(chunk, self.offset)\n",
          "        n = chunk.n\n"),),
        "damages",
    ),
    Bug(
        "damage that shows below an offset lies below it",
        "log/read/damage.py",
        (("    is_doubtful = reach >= min(offset, header.last_offset)\n",
          "    is_doubtful = reach > native.OFFSET_MAX\n"),),
        "damages",
    ),
)  # fmt: skip
