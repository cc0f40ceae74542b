"""Helpers that several programs here share: their last line, a read, a topic that is
created again.
"""

import os
import sys
import time

import logstore


def end(problem):
    """The last line and the status of a program that has found a problem, or ""."""
    print(f"WRONG {problem}" if problem else "OK")
    sys.exit(1 if problem else 0)


def offsets(path, topic="t", **how):
    """The offsets that a read of partition 0 returns."""
    with logstore.open(path, read_only=True) as store:
        return [record.offset for record in store[topic][0].read(**how)]


def recreated(path):
    """A topic whose start was moved, deleted and made again in the same process.

    The store and the new partition; the store stays open."""
    config = logstore.TopicConfig(message_format=2)
    store = logstore.open(path)
    log = store.create_topic("t", config=config)[0]
    for i in range(80):
        log.append(b"old %d" % i)
    log.delete_before(70)
    # logstore writes Kafka's checkpoint of start offsets after a second.
    for _ in range(100):
        if os.path.exists(os.path.join(path, "log-start-offset-checkpoint")):
            break
        time.sleep(0.1)
    store.delete_topic("t")
    return store, store.create_topic("t", config=config)[0]
