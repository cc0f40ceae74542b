"""The log start offset of a broker's partition is beyond its end. Opening for writing
reports nothing and gives the next record offset 50, below the start that readers saw; a
broker gives it 500. `verify` finds nothing before.

Usage: python r11_start_beyond_end_writer.py
"""

import logging

from common import end
from kbatch import directory, rows

import logstore

logging.disable(logging.CRITICAL)
path = directory(
    {0: b"".join(rows(5 * i, 5) for i in range(10))}, clean_end=50, starts="t 0 500"
)
told = logstore.verify(path).problems or logstore.verify(path).notes
told = [x.kind for x in told if x.kind != "missing-index"]
with logstore.open(path) as store:
    labels = [
        a.label for a in store.recovery_report.actions if a.label != "index-rebuilt"
    ]
    try:
        offset = store["t"][0].append(b"next")
    except logstore.LogStoreError:
        offset = None
end(
    f"the next offset is {offset}, not 500; verify: {told}, the report of the opening:"
    f" {labels}"
    if offset not in (None, 500) and not labels and not told
    else ""
)
