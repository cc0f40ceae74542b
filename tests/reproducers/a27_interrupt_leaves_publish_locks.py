"""The same in Store.publish: ExitStack.enter_context is a Python function, so an
interrupt after the acquisition leaves the lock of a partition to the interrupted
thread. Its time-based sync, and close(), then wait for ever.

Usage: python a27_interrupt_leaves_publish_locks.py [seconds, 100]
"""

import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time

import logstore


class Interrupt(Exception):
    pass


def handler(*_):
    raise Interrupt


signal.signal(signal.SIGALRM, handler)
path = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
store = logstore.open(path)
parts = store.create_topic(
    "t", 60, config=logstore.TopicConfig(flush_ms=10**9)
).partitions
for p in parts:
    p.append(b"x", durable=True)
seconds = float([*sys.argv, "100"][1])
deadline, interrupts, rounds = time.monotonic() + seconds, 0, 0


def first_held():
    """The partition whose locks this idle thread still holds."""
    free = []

    def look():
        for p in parts:
            with contextlib.suppress(logstore.LogStoreError):
                p.append(b"z", durable=True)
            free.append(p.name)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(10)
    return None if len(free) == len(parts) else parts[len(free)].name


while time.monotonic() < deadline:
    rounds += 1
    with store.stage() as stage:
        for p in parts:
            stage.append_many(p, [b"y"])
        staged = stage.finish()
    try:
        try:
            # Publishing 60 partitions takes their 120 locks at its beginning.
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.003))
            store.publish([staged])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupts += 1
    except logstore.LogStoreError as error:
        print("publish:", type(error).__name__, str(error)[:100])
        break
    held = first_held()
    if held is not None:
        print(
            f"interrupt {interrupts} of publish(): the locks of {held} are held "
            "for good"
        )
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(5)
        print("close() by another thread hangs:", closing.is_alive())
        print("WRONG", flush=True)
        os._exit(1)
print(f"{interrupts} interrupts of {rounds} publications")
with contextlib.suppress(logstore.LogStoreError):
    store.close()
print("OK")
