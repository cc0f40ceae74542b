"""A read that has begun in the writer's own process, and a deletion of more than 64
segments with file_delete_delay_ms=0 (or a read that takes longer than the delay): the
contract says that it finishes on the files it began with, in its own process always.

Usage: python a14_reader_beside_big_deletion.py
"""

import tempfile

import logstore

wrong = False
for segments in (50, 200):
    with tempfile.TemporaryDirectory() as path:
        config = logstore.TopicConfig(segment_bytes=100, file_delete_delay_ms=0)
        with logstore.open(path) as store:
            p = store.create_topic("t", config=config)[0]
            for i in range(segments):
                p.append(b"%050d" % i)
        with logstore.open(path) as store:
            p = store.topic("t")[0]
            reader = p.read()
            got = [next(reader)]
            p.delete_before(p.end_offset)
            try:
                got += list(reader)
                said = f"{len(got)} of {segments} records"
            except logstore.LogStoreError as error:
                said = f"{len(got)} of {segments} records, then "
                said += f"{type(error).__name__}: {str(error)[:90]}"
            bad = len(got) != segments
            wrong |= bad
            print("WRONG" if bad else "OK   ", said)
raise SystemExit(wrong)
