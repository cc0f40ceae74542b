"""close() that is interrupted, or whose thread fails, cannot be called again: the
second call returns at once, with nothing done. The lock stays with the process,
partitions are not synced and not marked.

Usage: python a28_close_cannot_be_finished.py
"""

import signal
import tempfile

import logstore


class Interrupt(Exception):
    pass


def handler(*_):
    raise Interrupt


signal.signal(signal.SIGALRM, handler)
wrong = []
with tempfile.TemporaryDirectory() as path:
    store = logstore.open(path)
    parts = store.create_topic("t", 200).partitions
    for p in parts:
        p.append(b"x")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        store.close()
        print("not interrupted")
    except Interrupt:
        print("close() was interrupted")
    signal.setitimer(signal.ITIMER_REAL, 0)
    store.close()  # as `with` or a second Ctrl-C handler would
    print("close() again returned without an error")
    try:
        with logstore.open(path) as store:
            if store.recovery_report:
                wrong.append("not marked as closed")
    except logstore.StoreLockedError as error:
        wrong.append(f"after close() has returned: StoreLockedError: {error}")
print("\n".join("WRONG " + one for one in wrong) or "OK")
raise SystemExit(bool(wrong))
