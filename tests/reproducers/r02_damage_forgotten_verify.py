"""The log of a killed broker, whose partition has no recovery point, has one bad batch
in the middle. Before any opening `verify` names the damage, and a read raises. Opening
reports "corrupt: nothing was cut" and is closed again. After it `verify` finds nothing,
and a read ends without an error.

Usage: python r02_damage_forgotten_verify.py
"""

import logging

from common import end, offsets
from kbatch import directory, flip, rows

import logstore

logging.disable(logging.CRITICAL)
good = [rows(5 * i, 5) for i in range(10)]
path = directory({0: b"".join(good[:4]) + flip(good[4], -3) + b"".join(good[5:])})
before = len(logstore.verify(path).problems)
logstore.open(path).close()
after = len(logstore.verify(path).problems)
try:
    seen = (
        f"a read ends without an error after {len(offsets(path))} of 45 intact records"
    )
except logstore.CorruptRecordError:
    seen = ""
end(
    f"verify: {before} problem before the opening, {after} after it; {seen}"
    if seen or not after
    else ""
)
