"""The members of a group use `assign()`. Each partition that was ever assigned keeps
its row, also after its topic was deleted. After 2,048 of them every commit of a new
partition raises CommitFailedError for good, though the group has few partitions at a
time.

Usage: python s18_rows_of_assigned_partitions_are_never_freed.py
"""

import logging
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
said, day = "", 0
with ls.open(path) as s:
    while day < 5 and not said:
        name = f"day-{day}"
        s.create_topic(name, 500)  # 500 partitions a day; yesterday's topic is deleted
        with ls.Consumer(path, group="g", reset="earliest") as c:
            for first in range(0, 500, 100):
                c.assign([(name, i) for i in range(first, first + 100)])
                try:
                    c.commit(
                        {(name, i): 0 for i in range(first, first + 100)}, durable=False
                    )
                except ls.LogStoreError as e:
                    said = (
                        f"day {day}, partitions {first} to {first + 99}:"
                        f" {type(e).__name__} {str(e).split('. Nothing')[0]}"
                    )
                    break
        s.delete_topic(name)
        day += 1
    if said:
        s.create_topic("tomorrow")
        with ls.Consumer(path, group="g", reset="earliest") as c:
            c.assign([("tomorrow", 0)])
            try:
                c.commit({("tomorrow", 0): 0})
            except ls.LogStoreError as e:
                said += f"; a new consumer with one partition: {type(e).__name__}"
print(f"WRONG {said}" if said else "OK")
raise SystemExit(bool(said))
