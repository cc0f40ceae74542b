"""A service that works on a store until it is killed, for `test_two_weeks`: `python -m
support.two_weeks STORE DAY`. Each line that it prints was true before it was printed.

It appends to `orders`, moves rows by a named producer, and publishes with an identity.
"""

from __future__ import annotations

import random
import sys

import logstore

__all__ = ["PARTITIONS"]

PARTITIONS = 3


def _said(*words: object) -> None:
    """Report a promise: the parent reads it even if this process is killed."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _work(store: logstore.Store, day: int) -> None:
    rng = random.Random(day)
    orders = store.topic("orders")
    producer = store.producer("mover")
    number = 0
    while True:
        number += 1
        at, dice = rng.randrange(PARTITIONS), rng.random()
        if dice < 0.2:
            last = store.published("shop")
            sequence = 0 if last is None else last + 1
            with store.stage("shop", sequence) as stage:
                stage.append_many(orders[at], [b"published %d" % sequence])
                staged = stage.finish()
            store.publish([staged], identity="shop", sequence=sequence)
            _said("published", sequence)
        elif dice < 0.4:
            last = producer.last_sequence(orders[0])
            row = 0 if last is None else last + 1
            producer.append(orders[0], b"moved %d" % row, sequence=row, durable=True)
            _said("moved", row)
        else:
            value = b"appended %d-%d" % (day, number)
            orders[at].append(value, durable=True)
            _said("appended", f"{day}-{number}")
        if rng.random() < 0.1:
            orders[at].roll()


def main() -> None:
    with logstore.open(sys.argv[1]) as store:
        _work(store, int(sys.argv[2]))


if __name__ == "__main__":
    main()
