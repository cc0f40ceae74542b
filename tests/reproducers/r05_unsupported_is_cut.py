"""A batch of a later format (magic 3) is in the middle of a log. The first opening
reports "unsupported". The second one cuts it, and everything after it, as a torn tail.

Usage: python r05_unsupported_is_cut.py
"""

import logging
import os

from common import end
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)
data = b"".join(rows(5 * i, 5, magic=3 if i == 4 else 2) for i in range(10))
path = directory({0: data})
labels = []
for _ in range(2):
    with logstore.open(path) as store:
        labels.append([a.label for a in store.recovery_report.actions])
left = os.path.getsize(os.path.join(path, "t-0", f"{'0' * 20}.log"))
end(
    ""
    if left == len(data)
    else f"labels of two openings: {labels}; {left} of {len(data)} bytes are left"
)
