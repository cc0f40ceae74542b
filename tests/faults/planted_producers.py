"""Planted bugs about producers: their state, their snapshots, their epochs."""

from __future__ import annotations

from faults.planted_bug import Bug

PRODUCER_BUGS = (
    Bug(
        "the batches of a producer are checked, and not added to its state",
        "log/write/appender.py",
        (("                log.idempotence.add(sent, base, log.bounds.end)\n",
          "                log.idempotence._is_adding = False\n"),),
        "producers",
        quick=1,
    ),
    Bug(
        "the state of producers is used beyond a cut",
        "log/write/idempotence.py",
        (("        self._producers = self._seed = self._written = None\n", ""),),
        "producers",
        quick=1,
    ),
    Bug(
        "a producer that was taken over appends",
        "store/publication/producer.py",
        (("            if newest is not self._row:\n", "            if False:\n"),),
        "producers",
    ),
    Bug(
        "an epoch is used before it is written",
        "io/checkpoint/producer_names.py",
        (("    checkpoints.write_state(root, layout.PRODUCERS, {",
          "    before or checkpoints.write_state(root, layout.PRODUCERS, {"),),
        "producers",
        quick=1,
    ),
    Bug(
        "snapshots after the end of a log are kept, and believed when it has grown",
        "log/recover/apply.py",
        (("            remove_snapshots(directory, above=log.end_offset)\n",
          "            pass\n"),),
        "producers",
        quick=1,
    ),
    Bug(
        "the producers of deleted segments are forgotten",
        "log/write/idempotence.py",
        (("        if self._producers is not None and self._producers.has_named:\n",
          "        if False:\n"),),
        "producers",
    ),
    Bug(
        "a snapshot of a deleted segment is left, and believed",
        "log/write/idempotence.py",
        (("offset for offset in offsets if first <= offset <= bounds.end",
          "offset for offset in offsets if offset <= bounds.end"),
         ("        if self._written == bounds.end:\n",
          "        if bounds.start or self._written == bounds.end:\n"),
         ("            directory.unlink(segment_file(self._stray, SNAPSHOT), "
          "missing_ok=True)\n", "            pass\n")),
        "producers",
    ),
    Bug(
        "a batch that spans the call is taken for its records",
        "log/write/idempotence.py",
        (("            if offsets == last or self._are_of_call(",
          "            if True or self._are_of_call("),),
        "producers",
    ),
)  # fmt: skip
