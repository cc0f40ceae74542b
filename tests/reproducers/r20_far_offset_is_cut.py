"""A segment of a killed broker has an offset 2^31 beyond its name, as brokers up to 1.1
compacted it. Kafka reads it, and splits the segment when it starts. A read ends before
that batch without an error, `verify` finds no problem, and opening cuts the intact
batch as a torn tail.

Usage: python r20_far_offset_is_cut.py
"""

import logging

from common import end, offsets
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)
path = directory({0: rows(0, 1) + rows(2**31, 1)}, points="t 0 0")
got = offsets(path)
problems = len(logstore.verify(path).problems)
with logstore.open(path) as store:
    labels = [a.label for a in store.recovery_report.actions]
end(
    ""
    if got == [0, 2**31] or problems
    else f"read: {got}, no error; verify: no problems; opening: {labels}"
)
