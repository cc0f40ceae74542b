"""Programs that use services and report each step: consumers, producers, compaction;
and short ones of which each call is examined.

As in `programs`, the steps of each follow from its seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import logstore
from faults import accounts
from faults.programs import Program, Say, Unknown, Writer, writing
from faults.service_promises import (
    COMMITS,
    IN,
    OUT,
    PARTITIONS,
    PRODUCER,
    TRANSACTIONS,
    consumer_of,
    small_files,
)
from logstore import LogStoreError, TopicPartition
from logstore.errors import SyncFailedError
from logstore.store.opening import open_store
from support.values import headers_of, key_of, timestamp_of, value_of

__all__ = ["EACH_CALL", "SERVICE_PROGRAMS"]

_FORM = (2, "none")
_TIMEOUT_MS = 15_000
# The minimum memory of a compaction.
_MEMORY = 6 << 20


# ---------------------------------------------------------------- consumers


def _input(writer: Writer, count: int) -> None:
    """Append durable records for the consumers."""
    for partition in writer.partitions():
        if partition.topic == IN:
            writer.append(partition, count, durable=True)


def _commit(writer: Writer, one: Any, durable: bool) -> None:
    """Commit the position of a consumer."""
    offsets = [[k.partition, one.position(k)] for k in sorted(one.assignment())]
    given = {TopicPartition(IN, number): offset for number, offset in offsets}
    writer.say(accounts.COMMIT, "", offsets)
    try:
        one.commit(given, durable=durable)
    except LogStoreError as error:
        counts = isinstance(error, SyncFailedError)
        writer.say(accounts.REFUSED, "", offsets, counts)
        raise
    writer.say(accounts.COMMITTED, "", offsets, durable)


@contextlib.contextmanager
def _consumer(store: Any, group: str) -> Iterator[Any]:
    """A consumer that has joined; failures when it closes are ignored."""
    _check_open(store)
    with small_files(), accounts.one_number():
        one = consumer_of(store, group)
        try:
            if group == COMMITS:
                one.poll(max_records=2)
            yield one
        finally:
            with contextlib.suppress(LogStoreError):
                one.close()


def _check_open(store: Any) -> None:
    """Raise StoreClosedError if the store could not be opened."""
    if store is None:
        raise logstore.errors.StoreClosedError("there is no store")


def _transaction(writer: Writer, one: Any) -> None:
    """Write one record to `OUT` for each record read, with the positions."""
    partition = writer.store.topic(OUT)[0]
    seed, first = writer.rng.randrange(100), partition.end_offset
    with one.transaction(timeout_ms=_TIMEOUT_MS) as transaction:
        found = one.poll(max_records=writer.rng.randint(1, 6))
        count = sum(map(len, found.values()))
        for o in range(first, first + count):
            transaction.append(
                OUT, value_of(o, seed), key=key_of(o, seed), partition=0,
                headers=headers_of(o, seed), timestamp_ms=timestamp_of(o, seed),
            )  # fmt: skip
        rows = [(partition.name, first, first + count, seed)] if count else []
        writer.publishing(rows, [partition], transaction.commit)


def consumers(path: Path, say: Say, seed: int) -> None:
    """A group that commits offsets, joins and leaves, and one of transactions."""
    rng = random.Random(f"consumers {seed}")
    with contextlib.suppress(Unknown):
        for opening in range(2):
            with writing(path, say, rng) as writer:
                if opening == 0:
                    writer.create(IN, PARTITIONS, _FORM, segment_bytes=600)
                    writer.create(OUT, 1, _FORM, segment_bytes=600)
                for _ in range(rng.randint(2, 4)):
                    _input(writer, rng.randint(1, 5))
                    with writer.trying(), _consumer(writer.store, COMMITS) as one:
                        for _ in range(rng.randint(1, 4)):
                            one.poll(max_records=rng.randint(1, 4))
                            with writer.trying():
                                _commit(writer, one, rng.random() < 0.6)
                    if rng.random() < 0.6:
                        with writer.trying():
                            with _consumer(writer.store, TRANSACTIONS) as one:
                                _transaction(writer, one)


# ---------------------------------------------------------------- producers


def producers(path: Path, say: Say, seed: int) -> None:
    """A named producer, which restarts with each opening."""
    rng = random.Random(f"producers {seed}")
    for opening in range(3):
        with writing(path, say, rng) as writer:
            if opening == 0:
                writer.create(IN, PARTITIONS, _FORM, segment_bytes=500)
            with writer.trying():
                _check_open(writer.store)
                producer = writer.store.producer(PRODUCER)
                for _ in range(rng.randint(3, 8)):
                    partitions = writer.partitions()
                    if partitions:
                        _produce(writer, producer, rng.choice(partitions))


def _produce(writer: Writer, producer: Any, partition: Any) -> None:
    rng = writer.rng
    with writer.trying():
        last = producer.last_sequence(partition)
        sequence = 0 if last is None else last + 1
        first, seed = partition.end_offset, rng.randrange(100)
        offsets = range(first, first + rng.randint(1, 5))
        name = partition.name
        writer.say(accounts.APPEND, name, first, offsets.stop, seed)
        writer.say(accounts.SEQUENCE, name, first, offsets.stop, sequence)
        values = [value_of(o, seed) for o in offsets]
        keys = [key_of(o, seed) for o in offsets]
        times = [timestamp_of(o, seed) for o in offsets]
        headers = [headers_of(o, seed) for o in offsets]

        def send() -> Any:
            return producer.append_many(
                partition, values, keys, times, headers, sequence=sequence,
                durable=rng.random() < 0.4,
            )  # fmt: skip

        found = send()
        writer.say(accounts.APPENDED, name, first, offsets.stop, seed)
        writer.say(accounts.DURABLE, name, partition.durable_offset)
        if rng.random() < 0.4:
            # A repeated batch is recognised.
            assert send() == found == offsets, "it was appended twice"
        if rng.random() < 0.2:
            writer.roll(partition)


# ---------------------------------------------------------------- compaction


def _append_keyed(writer: Writer, partition: Any, count: int) -> None:
    """Append records with keys to a compacted topic."""
    first = partition.end_offset
    offsets = range(first, first + count)
    seed = next(
        seed
        for seed in iter(lambda: writer.rng.randrange(1000), -1)
        if all(key_of(o, seed) is not None for o in offsets)
    )
    writer.append(partition, count, seed=seed, durable=writer.rng.random() < 0.2)


def _compact(writer: Writer, partition: Any) -> None:
    writer.say(accounts.COMPACT, partition.name)
    partition.compact(force=True, max_memory=_MEMORY)


def compactions(path: Path, say: Say, seed: int) -> None:
    """Compact logs that grow, and delete their heads."""
    rng = random.Random(f"compactions {seed}")
    for opening in range(2):
        with writing(path, say, rng) as writer:
            if opening == 0:
                for name in ("a", "b"):
                    writer.create(
                        name, 1, (2, rng.choice(("none", "gzip", "zstd"))),
                        segment_bytes=rng.choice((300, 900)), cleanup_policy="compact",
                        file_delete_delay_ms=rng.choice((0, 60_000)),
                    )  # fmt: skip
            for _ in range(rng.randint(2, 3)):
                for partition in writer.partitions():
                    for _ in range(rng.randint(4, 9)):
                        _append_keyed(writer, partition, rng.randint(1, 3))
                    with writer.trying():
                        partition.roll()
                        _compact(writer, partition)
                    if rng.random() < 0.2:
                        writer.delete(partition)


# ---------------------------------------------------------------- each call


def _one_commit(path: Path, say: Say, seed: int) -> None:
    _after(path, say, seed, lambda writer, one: _commit(writer, one, durable=True))


def _one_rewrite(path: Path, say: Say, seed: int) -> None:
    """A commit after which the group's file is rewritten."""

    def act(writer: Writer, one: Any) -> None:
        file = one._core.place.member.group.file
        while file.end.size + 200 < file._rewrite_at:
            _commit(writer, one, durable=False)
        writer.say(accounts.MARK, "")
        for _ in range(3):
            _commit(writer, one, durable=True)

    _after(path, say, seed, act)


def _one_transaction(path: Path, say: Say, seed: int) -> None:
    _after(path, say, seed, _transaction, TRANSACTIONS)


def _after(
    path: Path,
    say: Say,
    seed: int,
    act: Callable[[Writer, Any], None],
    group: str = COMMITS,
) -> None:
    """Make a call of a member of a group that has committed before."""
    rng = random.Random(f"after {seed}")
    with contextlib.suppress(Unknown), writing(path, say, rng) as writer:
        writer.create(IN, PARTITIONS, _FORM)
        writer.create(OUT, 1, _FORM)
        _input(writer, 6)
        with writer.trying(), _consumer(writer.store, group) as one:
            if group == COMMITS:
                _commit(writer, one, durable=rng.random() < 0.5)
                one.poll(max_records=3)
            else:
                _transaction(writer, one)
            say(accounts.MARK, "")
            act(writer, one)


def _one_publication(path: Path, say: Say, seed: int) -> None:
    rng = random.Random(f"publication {seed}")
    with writing(path, say, rng) as writer:
        writer.create("a", 2, _FORM, segment_bytes=400)
        for sequence in (1, 2):
            if sequence == 2:
                say(accounts.MARK, "")
            counts = {p: rng.randint(1, 9) for p in writer.partitions()}
            writer.publish(counts, sequence)


def _one_hand_in(path: Path, say: Say, seed: int) -> None:
    """The store has no owner: the process that hands in publishes."""
    rng = random.Random(f"hand-in {seed}")
    with contextlib.suppress(Unknown):
        with writing(path, say, rng) as writer:
            writer.create("a", 2, _FORM, segment_bytes=400)
            writer.publish(dict.fromkeys(writer.partitions(), 2), 1)
        say(accounts.MARK, "")
        with writer.trying(), open_store(str(path), read_only=True) as reader:
            alone = Writer(reader, say, rng)
            alone.publish(dict.fromkeys(alone.partitions(), 3), 2, reader)


def _one_compaction(path: Path, say: Say, seed: int) -> None:
    rng = random.Random(f"compaction {seed}")
    with writing(path, say, rng) as writer:
        writer.create(
            "a", 1, _FORM, segment_bytes=300, cleanup_policy="compact",
            file_delete_delay_ms=rng.choice((0, 60_000)),
        )  # fmt: skip
        for partition in writer.partitions():
            for _ in range(12):
                _append_keyed(writer, partition, 2)
            with writer.trying():
                partition.roll()
                say(accounts.MARK, "")
                _compact(writer, partition)


SERVICE_PROGRAMS: dict[str, Program] = {
    "compactions": compactions,
    "consumers": consumers,
    "producers": producers,
}

# By name; each reports `MARK` before its first interesting call.
EACH_CALL: dict[str, Program] = {
    "a commit": _one_commit,
    "a compaction": _one_compaction,
    "a group's file anew": _one_rewrite,
    "a hand-in": _one_hand_in,
    "a publication": _one_publication,
    "a transaction": _one_transaction,
}

assert logstore.Consumer, "loaded now: not in the middle of a recorded program"
