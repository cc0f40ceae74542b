"""A handler of Python's logging that appends to a partition of the store (shipping a
program's log with logstore) is called by logstore's own messages, in the middle of the
call that holds the lock: it gets in, as the lock is re-entrant, and meets a half-
changed log.

Usage: python a17_log_handler_appends.py
"""

import logging
import tempfile

import logstore


class Ship(logging.Handler):
    def __init__(self, partition):
        super().__init__()
        self.partition, self.told = partition, []

    def emit(self, record):
        try:
            self.told.append(self.partition.append(record.getMessage().encode()))
        except Exception as error:
            print("   handler:", type(error).__name__, str(error)[:110])


def attempt(name, act):
    with tempfile.TemporaryDirectory() as path:
        store = logstore.open(path)
        p = store.create_topic("t", config=logstore.TopicConfig(segment_bytes=300))[0]
        for i in range(20):
            p.append(b"%050d" % i)
        handler = Ship(p)
        log = logging.getLogger()
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        said = []
        try:
            act(p)
            offset = p.append(b"afterwards")
            values = {r.offset: r.value for r in p.read()}
            missing = [o for o in (*handler.told, offset) if o not in values]
            if missing:
                said.append(f"acknowledged offsets {missing} are not there")
        except logstore.LogStoreError as error:
            said.append(f"{type(error).__name__}: {str(error)[:140]}")
        finally:
            log.removeHandler(handler)
            try:
                store.close()
            except logstore.LogStoreError as error:
                said.append(f"close: {type(error).__name__}: {str(error)[:100]}")
        print(
            ("WRONG" if said else "OK   "),
            name,
            said or f"handler appended {handler.told}",
        )
        return bool(said)


wrong = attempt("truncate_to", lambda p: p.truncate_to(15))
wrong |= attempt("delete_before", lambda p: p.delete_before(10))
wrong |= attempt("delete_before(end)", lambda p: p.delete_before(p.end_offset))
raise SystemExit(wrong)
