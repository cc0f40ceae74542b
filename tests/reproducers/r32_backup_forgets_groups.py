"""A running store is copied file by file, without the owner file. In the copy no
committed offset of a group counts: its consumer raises NoOffsetForPartitionError, or
begins again with reset="earliest".

Usage: python r32_backup_forgets_groups.py
"""

import logging
import os
import shutil
import tempfile

from common import end

import logstore

logging.disable(logging.CRITICAL)


def backup(store):
    """A copy of a running store, file by file, as the page on backups says."""
    copy = os.path.join(tempfile.mkdtemp(), "copy")
    left_out = {
        ".lock",
        ".logstore-owner",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
    }
    shutil.copytree(store, copy, ignore=lambda d, names: left_out if d == store else ())
    os.chmod(copy, 0o700)
    return copy


path = os.path.join(tempfile.mkdtemp(), "store")
store = logstore.open(path)
store.create_topic("t")[0].append_many([b"%d" % i for i in range(50)], durable=True)
with logstore.Consumer(path, group="g", topics=["t"], reset="earliest") as consumer:
    consumer.poll(timeout_ms=300)
    consumer.commit()
copy = backup(path)
store.close()
with logstore.open(copy) as opened:
    opened["t"][0].append(b"new", durable=True)
try:
    with logstore.Consumer(copy, group="g", topics=["t"]) as consumer:
        got = [
            r.offset
            for records in consumer.poll(timeout_ms=300).values()
            for r in records
        ]
    end("" if got == [50] else f"got {got}")
except logstore.errors.NoOffsetForPartitionError as error:
    end(str(error))
