"""Services that the writers of `kills` use, with checks after each kill: a named
producer, a group that commits, one of transactions, and a compacted log. The record at
an offset has that number as its value, so that the log itself shows whether it is
complete. A writer is killed at a random moment, or kills itself at a line of one of
these calls.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import logstore
from faults.tracing import AtLine
from logstore import TopicConfig

__all__ = ["ROWS", "check_services", "create_topics", "serve"]

# Rows of the shared numbers: the compacted log, the log of the producer, and the
# committed offset; and for each the acknowledged number, and the begun one.
_KEPT, _FED, _COMMITTED = range(3)
ROWS = 3
_WRITTEN, _BEGUN = range(2)
_KEYS = 7
_MEMORY = 6 << 20
# Approximate number of lines of the longest of these calls.
_LINES = 6_000


class Shared(Protocol):
    """The numbers that all processes share."""

    def get(self, row: int, field: int) -> int: ...

    def set(self, row: int, field: int, value: int) -> None: ...


def create_topics(store: Any) -> None:
    """Create the topics that only services use."""
    compacted = {"cleanup_policy": "compact", "file_delete_delay_ms": 0}
    for name, settings in (("kept", compacted), ("fed", {}), ("made", {})):
        config = TopicConfig(message_format=2, segment_bytes=1_500, **settings)
        store.create_topic(name, config=config)


def serve(store: Any, rng: random.Random, shared: Shared, first: int) -> None:
    """Make one of these calls; `first`: the first row of the services' numbers."""
    calls: list[Callable[..., None]] = [_keep, _compact, _feed, _commit, _transact]
    call = rng.choice(calls)
    if rng.random() < 0.25:
        line = round(math.exp(rng.uniform(0, math.log(_LINES))))
        sys.settrace(AtLine(line, partial(os.kill, os.getpid(), signal.SIGKILL)))
    try:
        call(store, rng, shared, first)
    finally:
        sys.settrace(None)


def _keep(store: Any, rng: random.Random, shared: Shared, first: int) -> None:
    """Append records with keys."""
    kept = store.topic("kept")[0]
    for _ in range(rng.randint(1, 10)):
        end = kept.end_offset
        shared.set(first + _KEPT, _BEGUN, end + 1)
        kept.append(b"%d" % end, b"%d" % (end % _KEYS))
        shared.set(first + _KEPT, _WRITTEN, end + 1)


def _compact(store: Any, rng: random.Random, shared: Shared, first: int) -> None:
    _keep(store, rng, shared, first)
    kept = store.topic("kept")[0]
    kept.roll()
    kept.compact(force=True, max_memory=_MEMORY)


def _feed(store: Any, rng: random.Random, shared: Shared, first: int) -> None:
    """A producer continues at its sequence; records sent again are recognized."""
    fed = store.topic("fed")[0]
    producer = store.producer("feeder")
    for _ in range(rng.randint(1, 3)):
        end = fed.end_offset
        last = producer.last_sequence(fed)
        assert (-1 if last is None else last) == end - 1, f"told {last} of {end}"
        values = [b"%d" % n for n in range(end, end + rng.randint(1, 5))]
        shared.set(first + _FED, _BEGUN, end + len(values))
        durable = rng.random() < 0.2
        send = partial(producer.append_many, fed, values, durable=durable)
        span = send(sequence=end)
        shared.set(first + _FED, _WRITTEN, span.stop)
        if rng.random() < 0.3:
            assert send(sequence=end) == span, "it was appended twice"


def _consumer(store: Any, group: str) -> Any:
    return logstore.Consumer(
        store, group=group, topics=["fed"], reset="earliest", durable_only=False
    )


def _commit(store: Any, rng: random.Random, shared: Shared, first: int) -> None:
    """Join as a member, commit, and leave."""
    key = logstore.TopicPartition("fed", 0)
    with _consumer(store, "g") as one:
        for _ in range(rng.randint(1, 4)):
            offset = shared.get(first + _COMMITTED, _WRITTEN)
            for records in one.poll(max_records=rng.randint(1, 9)).values():
                offsets = [record.offset for record in records]
                wanted = list(range(offset, offset + len(offsets)))
                assert offsets == wanted, f"{offsets} come after {offset}"
                offset = offsets[-1] + 1
            shared.set(first + _COMMITTED, _BEGUN, offset)
            one.commit({key: offset}, durable=rng.random() < 0.4)
            shared.set(first + _COMMITTED, _WRITTEN, offset)


def _transact(store: Any, rng: random.Random, shared: Shared, first: int) -> None:
    with _consumer(store, "x") as one, one.transaction() as transaction:
        for records in one.poll(max_records=rng.randint(1, 9)).values():
            for record in records:
                transaction.append("made", record.value)


def check_services(store: Any, shared: Shared, first: int) -> None:
    """Check that written records are there, and each change in full or not at all."""
    ends = []
    for row, name in ((_KEPT, "kept"), (_FED, "fed")):
        end = store.topic(name)[0].end_offset
        low, high = (shared.get(first + row, field) for field in (_WRITTEN, _BEGUN))
        assert low <= end <= max(low, high), f"{name} ends at {end}: {low}, {high}"
        shared.set(first + row, _WRITTEN, end)
        ends.append(end)
    kept = {record.offset: record.value for record in store.topic("kept")[0].read()}
    assert all(value == b"%d" % n for n, value in kept.items()), kept
    missing = set(range(max(ends[0] - _KEYS, 0), ends[0])) - set(kept)
    assert not missing, f"the last records of their keys at {missing} are gone"
    fed = [record.value for record in store.topic("fed")[0].read()]
    assert fed == [b"%d" % n for n in range(ends[1])], fed
    made = [record.value for record in store.topic("made")[0].read()]
    with _consumer(store, "x") as one:
        found = one.committed(("fed", 0))
    read = 0 if found is None else found.offset
    assert made == fed[:read], f"{made} was made of the first {read}"
    with _consumer(store, "g") as one:
        found = one.committed(("fed", 0))
    offset = 0 if found is None else found.offset
    known = [shared.get(first + _COMMITTED, field) for field in (_WRITTEN, _BEGUN)]
    assert offset in known, f"{offset} is committed, not one of {known}"
    for field in (_WRITTEN, _BEGUN):
        shared.set(first + _COMMITTED, field, offset)
