"""An interrupt (Ctrl-C, an alarm that raises) that arrives just as a call has entered
one of logstore's Conditions (or Events) leaves that locked: `with condition` calls a
Python function, which can be interrupted after the acquisition. Each later flush,
durable append, time-based sync, and close() of the store then waits for ever.

Usage: python a26_interrupt_leaves_lock.py [flush|append [seconds, 60]]
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


def hangs(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(3)
    return thread.is_alive()


def append():
    with contextlib.suppress(logstore.LogStoreError):
        p.append(b"x")


what = [*sys.argv, "flush"][1]
seconds = float(sys.argv[2] if len(sys.argv) > 2 else 60)
signal.signal(signal.SIGALRM, handler)
path = tempfile.mkdtemp()
store = logstore.open(path)
p = store.create_topic("t", config=logstore.TopicConfig(flush_ms=1))[0]
p.append(b"x", durable=True)
act = {"flush": p.flush, "append": append}[what]
deadline, interrupts = time.monotonic() + seconds, 0
while time.monotonic() < deadline:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-4))
        while True:
            act()
    except Interrupt:
        interrupts += 1
    except logstore.LogStoreError:
        continue
    if hangs(act):
        print(f"interrupt {interrupts} of {what}(): {what}() of another thread hangs")
        print("close() hangs:", hangs(store.close))
        print("WRONG", flush=True)
        os._exit(1)
    if p._writer.health.failed is not None:  # ended, as documented: a new store
        signal.setitimer(signal.ITIMER_REAL, 0)
        if hangs(store.close):
            print(f"interrupt {interrupts} of {what}(): close() hangs")
            print("WRONG", flush=True)
            os._exit(1)
        store = logstore.open(path)
        p = store.topic("t")[0]
        act = {"flush": p.flush, "append": append}[what]
store.close()
print(f"{interrupts} interrupts")
print("OK")
