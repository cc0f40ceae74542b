"""An exception between "a sync is scheduled" and scheduling it (an interrupt, a stack
that is too deep) leaves the mark: the partition is never synced by time again,
silently. With the same, append raises although its record is in the log.

Usage: python a18_interrupt_ends_flushes.py
"""

import sys
import tempfile
import time

import logstore


def attempt(spare):
    """Append with room for `spare` more calls on the stack; (raised, in the log,
    synced)."""
    with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
        p = store.create_topic("t", config=logstore.TopicConfig(flush_ms=50))[0]
        for _ in range(2):  # so that all is warm, and nothing is scheduled
            p.append(b"warm")
            time.sleep(0.15)
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        limit = sys.getrecursionlimit()
        raised = ""
        sys.setrecursionlimit(depth + spare)
        try:
            p.append(b"deep")
        except RecursionError:
            raised = "RecursionError"
        except logstore.LogStoreError as error:
            raised = type(error).__name__
        finally:
            sys.setrecursionlimit(limit)
        inside = p.end_offset == 3
        failed = ""
        try:
            p.append(b"later")
        except logstore.LogStoreError as error:
            failed = type(error).__name__
        time.sleep(0.3)
        return raised, inside, failed, p.durable_offset == p.end_offset


wrong = False
for spare in range(3, 24):
    raised, inside, failed, synced = attempt(spare)
    said = (
        f"room for {spare} calls: {raised or 'no error'}, in the log: {inside}, "
        f"next append: {failed or 'fine'}, synced by time: {synced}"
    )
    bad = (not synced and not failed) or (bool(raised) and inside)
    wrong |= bad
    if bad or raised:
        print("WRONG" if bad else "OK   ", said)
raise SystemExit(wrong)
