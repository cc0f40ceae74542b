"""Planted bugs about what outlives a process: whether a log is damaged."""

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
        "log/recover/draft.py",
        (("return bool(self._fault) or any(v.segment == base for v in self.verdicts)",
          "return False"),
         ("return self.damage is not None or bool(self.verdicts or self._fault)",
          "return self.damage is not None")),
        "lives",
        quick=1,
    ),
    Bug(
        "a repair without a mode believes that all is well",
        "maintenance/repair/partition.py",
        (("            if not (seen.has_damage or self._has_losses(run)):",
          "            if True:"),),
        "lives",
        quick=1,
    ),
    Bug(
        "after a kill, what is behind a bad batch does not count",
        "log/recover/facts.py",
        (("        return metadata.is_same_boot", "        return False"),),
        "lives",
        quick=1,
    ),
    Bug(
        "damage whose bytes are back stays",
        "log/recover/standing.py",
        (("        return False  # there is more of what was cut off\n",
          "        return True\n"),),
        "lives",
        quick=1,
    ),
)  # fmt: skip
