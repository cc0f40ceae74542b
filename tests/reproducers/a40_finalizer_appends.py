"""A finalizer (`__del__`, weakref.finalize) that appends is run by the garbage
collector at any allocation, so also in the middle of an append of the same thread. It
is let in: the same offsets are written twice, and acknowledged records cannot be read.
No signal, no thread. (A logging handler that appends is enough: asyncio and
ResourceWarning log from finalizers.)

Usage: python a40_finalizer_appends.py
"""

import contextlib
import gc
import logging
import tempfile

import logstore

logging.disable(logging.CRITICAL)


class Connection:
    """Appends to the log when it is dropped."""

    def __init__(self):
        self.me = self  # a cycle: the collector finds it

    def __del__(self):
        if not done:
            # Bounds the number of objects, which decides when the collector runs.
            try:  # noqa: SIM105
                of_finalizers.append(p.append(b"dropped"))
            except logstore.errors.ReentrantCallError:
                pass  # refused, and nothing changed


with tempfile.TemporaryDirectory() as path:
    store = logstore.open(path)
    p = store.create_topic("t")[0]
    done, of_finalizers, of_main, kept, error = False, [], [], [], None
    try:
        for i in range(100_000):
            Connection()
            of_main.append(p.append(b"request"))
            if i % 7 < 3:  # what else the program keeps
                kept.append([i])
    except logstore.LogStoreError as found:
        error = found
    done = True
    gc.collect()
    there = {}
    try:
        for r in p.read():
            there[r.offset] = r.value
    except logstore.LogStoreError as found:
        error = found
    twice = len(set(of_main) & set(of_finalizers))
    other = sum(there.get(o) != b"request" for o in of_main) + sum(
        there.get(o) != b"dropped" for o in of_finalizers
    )
    print(
        f"{len(of_main)} appends and {len(of_finalizers)} of finalizers: {twice} "
        "offsets told twice, "
        f"{other} acknowledged records are not there; {str(error)[:75]}"
    )
    with contextlib.suppress(logstore.LogStoreError):
        store.close()
bad = bool(twice or other or error)
print("WRONG" if bad else "OK")
raise SystemExit(bad)
