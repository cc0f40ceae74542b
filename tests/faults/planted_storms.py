"""Planted bugs that only threads and interrupts show, some of them in C."""

from __future__ import annotations

from faults.planted_bug import Bug

BUGS_OF_STORMS = (
    Bug(
        "an append that an interrupt has cut short is not undone",
        "log/write/appender.py",
        (("            log.pending, log.health.is_blocked, log.health.is_torn = saved, "
          "True, True\n            log.roll_back(error)\n",
          "            if isinstance(error, Exception):\n"
          "                log.pending = saved\n"
          "                log.roll_back(error)\n"),),
        "storms",
    ),
    Bug(
        "what closing has not finished begins with an older state",
        "log/write/active_segment.py",
        (("            self.state, self.index, self.times = (\n"
          "                writer.state, writer.index, writer.times,\n"
          "            )  # fmt: skip\n", ""),
         ("        self._forget()\n        writer = self.writer\n",
          "        self._forget()\n        writer = self.writer\n"
          "        self.state = self.state.copy()\n")),
        "storms",
    ),
    Bug(
        "an append of many records takes no lock",
        "log/write/appender.py",
        (("        with log.lock:\n            log.get_ready()\n"
          "            base = log.bounds.end\n"
          "            self.check_expected(expected_offset, count)\n",
          "        if True:\n            log.get_ready()\n"
          "            base = log.bounds.end\n"
          "            self.check_expected(expected_offset, count)\n"),),
        "storms",
        quick=1,
    ),
    Bug(
        "behind a sync, C does not ask whether the writer is still there",
        "_native/pyrecords_sync.c",
        (("    if (prepared->writer != mark->writer || self->marked->size >=",
          "    if (self->marked->size >="),),
        "storms",
    ),
    Bug(
        "an append in C does not ask whether somebody has had the lock meanwhile",
        "_native/pyrecords_write.c",
        (("self->writer == NULL || !pylocks_is_untouched(self->lock, self->takes)",
          "self->writer == NULL"),),
        "storms",
    ),
)  # fmt: skip
