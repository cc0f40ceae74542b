"""One damaged partition keeps retention (and Topic.flush) from all later partitions:
the loop ends at the first error, each time. The disk fills up with records that the
others should delete. The contract: a damaged partition ... the others work.

Usage: python a30_one_damaged_partition_stops_retention.py
"""

import os
import shutil
import tempfile

import logstore

wrong = []
for damage in ("flipped", "lost"):
    with tempfile.TemporaryDirectory() as path:
        config = logstore.TopicConfig(
            segment_bytes=1000, retention_bytes=3000, retention_ms=-1
        )
        with logstore.open(path) as store:
            for p in store.create_topic("t", 3, config=config):
                for i in range(50):
                    p.append(b"%0200d" % i)
        if damage == "flipped":
            last = sorted(n for n in os.listdir(f"{path}/t-0") if n.endswith(".log"))[
                -1
            ]
            os.truncate(f"{path}/t-0/{last}", 10)
        else:
            shutil.rmtree(f"{path}/t-0")
        with logstore.open(path) as store:
            topic = store.topic("t")
            for what, call in (
                ("apply_retention", topic.apply_retention),
                ("flush", topic.flush),
            ):
                try:
                    call()
                except logstore.LogStoreError as error:
                    print(f"   t-0 {damage}: {what}: {type(error).__name__}")
            for number in (1, 2):
                size = sum(s.size_bytes for s in topic[number].segments)
                if size > 5000:
                    wrong.append(
                        f"t-0 is {damage}: t-{number} still has {size} bytes, "
                        "retention_bytes=3000"
                    )
print("\n".join("WRONG " + one for one in wrong) or "OK")
raise SystemExit(bool(wrong))
