"""The log of a killed broker has one bad batch below its recovery point. A read with
on_corruption="skip" ends at the damage and leaves out 25 intact records after it. A
copy that `repair` saves has them.

Usage: python r22_skip_stops_at_recovery_point.py
"""

import logging
import os
import tempfile

from common import end, offsets
from kbatch import directory, flip, rows

import logstore

logging.disable(logging.CRITICAL)
good = [rows(5 * i, 5) for i in range(10)]
path = directory(
    {0: b"".join(good[:4]) + flip(good[4], -3) + b"".join(good[5:])}, points="t 0 25"
)
got = len(offsets(path, on_corruption="skip"))
copy = os.path.join(tempfile.mkdtemp(), "copy")
logstore.repair(path, "skip", to=copy)
saved = len(offsets(copy))
end(
    ""
    if got == saved
    else f"skip delivers {got} records, a salvaged copy of the same log has {saved}"
)
