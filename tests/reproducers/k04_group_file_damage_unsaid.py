"""The file of a consumer group is damaged in the middle (whole batches follow), or
another log has its name. `committed()` before the first poll returns None or an older
offset, and `reset_offsets` raises GroupNotFoundError; a dry run of it returns an older
offset. A file of whole batches without one record of a group passes for a new group:
`poll` begins by `reset`. `poll` and `commit` correctly raise CorruptCheckpointError for
the others.

Usage: python k04_group_file_damage_unsaid.py
"""

import glob
import logging
import os
import pathlib
import sys
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
TP, wrong = ("t", 0), 0


def told(call):
    try:
        return call()
    except ls.LogStoreError as e:
        return type(e).__name__


def consumer(store):
    return ls.Consumer(store, group="g", topics=["t"], reset="earliest")


with tempfile.TemporaryDirectory() as d:
    store = os.path.join(d, "s")
    with ls.open(store) as s:
        s.create_topic("t", config=ls.TopicConfig(message_format=2))[0].append_many(
            [b"%d" % i for i in range(100)]
        )
    for n in (10, 20, 30):
        with consumer(store) as c:
            while not c.assignment():
                c.poll(timeout_ms=20, max_records=1)
            c.commit({TP: n})
    f = pathlib.Path(store, ".logstore-group-g")
    whole = f.read_bytes()
    log = pathlib.Path(glob.glob(f"{store}/t-0/*.log")[0]).read_bytes()
    for what, data in (
        ("byte 40 altered", whole[:40] + bytes([whole[40] ^ 65]) + whole[41:]),
        ("byte 1500 altered", whole[:1500] + bytes([whole[1500] ^ 65]) + whole[1501:]),
        ("text", b"somebody else's file\n" * 9),
        ("a partition's log", log),
    ):
        f.write_bytes(data)
        with consumer(store) as c:
            a = told(lambda: c.committed(TP))
        b = told(lambda: ls.reset_offsets(store, "g", to="latest", dry_run=True))
        with consumer(store) as c:
            p = told(
                lambda: [
                    r.offset
                    for rs in c.poll(timeout_ms=500, max_records=1).values()
                    for r in rs
                ]
            )
        bad = [
            not isinstance(a, str),
            b == "GroupNotFoundError" or not isinstance(b, str),
            not isinstance(p, str),
        ]
        wrong += sum(bad)
        print(
            f"{what:18} committed():"
            f" {a if isinstance(a, str) or a is None else a.offset}; reset_offsets(dry"
            f" run): {b if isinstance(b, str) else [x.before for x in b]}; poll(): {p}"
        )
print(f"WRONG ({wrong} answers)" if wrong else "OK")
sys.exit(bool(wrong))
