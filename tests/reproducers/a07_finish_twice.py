"""Stage.finish() called twice names each staged log twice: publishing the result of the
second call appends every record twice.

Usage: python a07_finish_twice.py
"""

import tempfile

import logstore

wrong = False
for count, size in ((3, 1), (200, 100_000)):
    with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
        p = store.create_topic("t", config=logstore.TopicConfig(message_format=2))[0]
        with store.stage("me", 1) as stage:
            stage.append_many(p, [b"%d" % i + b"." * size for i in range(count)])
            print("   first call:", stage.finish().records, "records")
            staged = stage.finish()  # as to look at it once more
            print("   second call:", staged.records, "records")
        try:
            store.publish([staged], identity="me", sequence=1)
        except logstore.LogStoreError as error:
            print("   publish:", type(error).__name__, str(error)[:100])
        found = p.end_offset
        bad = found not in (0, count)
        wrong |= bad
        print(
            "WRONG" if bad else "OK   ",
            f"{count} records staged, {found} are in the log",
        )
raise SystemExit(wrong)
