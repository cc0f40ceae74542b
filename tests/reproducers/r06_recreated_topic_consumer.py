"""A topic whose start had moved is deleted and created again while its store is open.
As long as the new topic is empty, readers take the start offset of the deleted one for
it: a consumer that begins at the earliest record begins at 70 and never gets the first
70 records. No error is raised.

Usage: python r06_recreated_topic_consumer.py
"""

import logging
import os
import tempfile

from common import end, recreated

import logstore

logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "store")
store, log = recreated(path)
got = []
with logstore.Consumer(path, group="g", topics=["t"], reset="earliest") as consumer:
    consumer.poll(timeout_ms=200)
    log.append_many([b"new %d" % i for i in range(100)], durable=True)
    for _ in range(5):
        for records in consumer.poll(timeout_ms=200).values():
            got += [r.offset for r in records]
store.close()
end(
    ""
    if got == list(range(100))
    else f"{len(got)} of 100 records, from offset {got[:1]} on"
)
