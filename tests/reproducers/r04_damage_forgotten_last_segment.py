"""The same as r02, with two segments and the damage (a batch that is there twice) in
the second one: the second opening cuts the intact batches after it.

Usage: python r04_damage_forgotten_last_segment.py
"""

import logging
import os

from common import end
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)
good = [rows(5 * i, 5) for i in range(10)]
data = good[3] + good[4] + good[4] + b"".join(good[5:])
path = directory({0: b"".join(good[:3]), 15: data})
labels = []
for _ in range(2):
    with logstore.open(path) as store:
        labels.append(
            [
                a.label
                for a in store.recovery_report.actions
                if a.label != "index-rebuilt"
            ]
        )
left = os.path.getsize(os.path.join(path, "t-0", f"{15:020d}.log"))
end(
    ""
    if left == len(data)
    else f"labels of two openings: {labels}; {left} of {len(data)} bytes are left"
)
