"""A power failure leaves NULs in .logstore-owner, which is written in place. The
records and the group's file are there, but its committed position no longer counts.

Usage: python r34_owner_file_forgets_groups.py
"""

import logging
import os
import tempfile

from common import end

import logstore

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "store")
with logstore.open(path) as store:
    store.create_topic("t")[0].append_many([b"%d" % i for i in range(50)], durable=True)
with logstore.Consumer(path, group="g", topics=["t"], reset="earliest") as consumer:
    consumer.poll(timeout_ms=300)
    consumer.commit()
file = os.path.join(path, ".logstore-owner")
size = os.path.getsize(file)
with open(file, "wb") as owner:
    owner.write(bytes(size))
with logstore.open(path) as store:
    labels = [a.label for a in store.recovery_report.actions]
    store["t"][0].append(b"new", durable=True)
try:
    with logstore.Consumer(path, group="g", topics=["t"]) as consumer:
        got = [
            r.offset
            for records in consumer.poll(timeout_ms=300).values()
            for r in records
        ]
    end("" if got == [50] else f"got {got}")
except logstore.errors.NoOffsetForPartitionError as error:
    end(f"report of the opening: {labels}; then: {error}")
