"""A signal handler appends while the main thread appends to the same partition: it is
let in, as the lock is re-entrant. Acknowledged records are overwritten without an
error, or the partition ends. A refusal would cost one comparison.

Usage: python a19_signal_handler_appends.py [seconds, 20]
"""

import collections
import contextlib
import logging
import signal
import sys
import tempfile
import time

import logstore

logging.disable(logging.CRITICAL)


def attempt(path):
    """(appends, offsets returned twice, acknowledged records not in the log, errors)"""
    store = logstore.open(path)
    p = store.create_topic("t")[0]
    told = collections.defaultdict(list)
    errors = collections.Counter()

    def append(value):
        try:
            told[p.append(value)].append(value)
        except logstore.errors.ReentrantCallError:
            pass  # refused, and nothing changed
        except logstore.LogStoreError as error:
            errors[type(error).__name__] += 1

    def handler(*_):
        append(b"handler %d" % time.monotonic_ns())
        signal.setitimer(signal.ITIMER_REAL, 0.0007)

    signal.signal(signal.SIGALRM, handler)
    append(b"warm")
    signal.setitimer(signal.ITIMER_REAL, 0.0007)
    count = 0
    while count < 3000 and not errors:
        append(b"main %d" % count)
        count += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        there = {r.offset: r.value for r in p.read()}
        lost = sum(v != there.get(o) for o, values in told.items() for v in values)
    except logstore.LogStoreError as error:
        errors["read: " + type(error).__name__] += 1
        lost = 0
    with contextlib.suppress(logstore.LogStoreError):
        store.close()
    return count, sum(len(values) > 1 for values in told.values()), lost, errors


seconds = float([*sys.argv, "20"][1])
totals, errors = [0, 0, 0], collections.Counter()
deadline = time.monotonic() + seconds
while time.monotonic() < deadline:
    with tempfile.TemporaryDirectory() as path:
        *numbers, found = attempt(path)
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        errors += found
count, twice, lost = totals
print(
    f"{count} appends: {twice} offsets told twice, {lost} acknowledged records "
    f"overwritten; {dict(errors)}"
)
print("WRONG" if twice or lost or errors else "OK")
raise SystemExit(bool(twice or lost or errors))
