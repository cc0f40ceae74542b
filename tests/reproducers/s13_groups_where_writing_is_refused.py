"""`logstore.open` refuses to write in a directory that others may write to, that
another user owns, or that is on a network file system. A Consumer creates the files of
its group there, commits durably and takes locks.

Usage: python s13_groups_where_writing_is_refused.py
"""

import logging
import os
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "s")
with ls.open(path) as s:
    s.create_topic("t").append_many([b"1"] * 5, durable=True)
os.chmod(path, 0o777)
try:
    ls.open(path).close()
    opened = "open: opened"
except ls.ConfigError:
    opened = "open: ConfigError"
try:
    with ls.Consumer(path, group="g", topics=["t"], reset="earliest") as c:
        n = sum(map(len, c.poll(timeout_ms=500).values()))
        c.commit()
        committed = c.committed(("t", 0)).offset
except ls.ConfigError:
    print("OK", opened, "and so is a consumer")
else:
    made = sorted(f for f in os.listdir(path) if "group" in f)
    print(
        f"WRONG {opened}; a consumer in the same directory (mode 0777): {n} records,"
        f" committed {committed} durably, created {made}"
    )
    raise SystemExit(1)
