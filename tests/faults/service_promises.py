"""Promises of the services of a store, compared with their state: the committed offsets
of a group, published positions, a hand-in, a producer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import logstore
from faults.promises import Promises
from logstore import Store, TopicPartition
from logstore.group.consumer.transaction import GroupPositions
from logstore.group.file import group_file
from logstore.io import layout
from logstore.store.package_access import files_directory

__all__ = [
    "COMMITS",
    "HANDS_IN",
    "IN",
    "OUT",
    "PARTITIONS",
    "PRODUCER",
    "TRANSACTIONS",
    "Offsets",
    "ServicePromises",
    "committed_in",
    "consumer_of",
    "small_files",
]

# A named producer fills `IN`; one group reads it and commits offsets, another one
# publishes its output to `OUT`, to which other processes hand in, too.
IN, OUT = "in", "out"
PARTITIONS = 2
COMMITS, TRANSACTIONS = "g", "x"
PRODUCER = "feeder"
HANDS_IN = "hands in"
# A group's file is rewritten at this number of bytes.
_REWRITE_BYTES = 700


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Rewrite the file of a group at a small size."""
    with mock.patch.object(group_file, "_REWRITE_BYTES", _REWRITE_BYTES):
        yield


def consumer_of(store: Store, group: str) -> Any:
    """A consumer of the topic that the producer fills."""
    return logstore.Consumer(store, group=group, topics=[IN], reset="earliest")


@dataclasses.dataclass(slots=True)
class Offsets:
    """Allowed committed offsets of a group, by partition; 0: nothing.

    Attributes:
        written: by the last call that has returned: found after a kill.
        durable: by the last durable one: found after a power cut, or one of `since`.
        since: by calls that have returned since.
        maybe: by calls that are under way, or have failed after the commit.
        is_cut: the power was cut, and the rest has not been read yet.
    """

    written: list[int] = dataclasses.field(default_factory=lambda: [0] * PARTITIONS)
    durable: list[int] = dataclasses.field(default_factory=lambda: [0] * PARTITIONS)
    since: list[set[int]] = dataclasses.field(
        default_factory=lambda: [set() for _ in range(PARTITIONS)]
    )
    maybe: list[set[int]] = dataclasses.field(
        default_factory=lambda: [set() for _ in range(PARTITIONS)]
    )
    is_cut: bool = False

    def copy(self) -> Offsets:
        return Offsets(
            list(self.written),
            list(self.durable),
            [set(some) for some in self.since],
            [set(some) for some in self.maybe],
            self.is_cut,
        )

    def begin(self, offsets: dict[int, int]) -> None:
        """Note offsets that are being committed."""
        for number, offset in offsets.items():
            self.maybe[number].add(offset)

    def has_returned(self, offsets: dict[int, int], *, durable: bool) -> None:
        """Note committed offsets; with `durable` the file is durable up to there."""
        for number, offset in offsets.items():
            self.maybe[number].clear()
            self.written[number] = offset
            self.since[number].add(offset)
        if durable:
            self.durable = list(self.written)
            for some in self.since:
                some.clear()

    def has_failed(self, offsets: dict[int, int], *, counts: bool) -> None:
        """Note a failed commit; `counts`: only its sync has failed."""
        for number, offset in offsets.items():
            if counts:
                self.written[number] = offset
            # A power cut may lose only the entry that undoes it.
            self.since[number].add(offset)
            self.maybe[number].clear()

    def problem(self, found: list[int], *, is_killed: bool) -> str:
        """Contradiction with the promises, or ""."""
        is_whole = is_killed and not self.is_cut
        for number, offset in enumerate(found):
            allowed = {self.written[number]} if is_whole else set(self.since[number])
            if not is_whole:
                allowed.add(self.durable[number])
            allowed |= self.maybe[number]
            if offset not in allowed:
                how = "written" if is_whole else "durable"
                return f"{offset} of {number} is committed; {sorted(allowed)} {how}"
        return ""

    def settle(self, found: list[int]) -> None:
        """Note the offsets from which the next process continues."""
        if self.is_cut:
            # It is on the disk, or it would not be there.
            self.durable = list(found)
            self.since = [set() for _ in found]
        for number, offset in enumerate(found):
            if offset != self.written[number]:
                self.since[number].add(offset)
        self.written = list(found)
        self.maybe = [set() for _ in found]
        self.is_cut = False


@dataclasses.dataclass(slots=True)
class ServicePromises(Promises):
    """Promises of a store and of its services.

    Attributes:
        offsets: of the group that commits.
        positions: of the group that publishes them, by partition.
        moving: positions of the transaction that is under way or has failed, and the
            offset of its first record in ``out``.
        handed: the sequence that was published last for the process that hands in.
        coming_hand: the sequence that is being published, and the offset of its first
            record in ``out``.
        sequences: by partition of ``in``, of each offset of the producer's records.
        epoch: the newest one of the producer that was given out.
    """

    offsets: Offsets = dataclasses.field(default_factory=Offsets)
    positions: dict[int, int] = dataclasses.field(default_factory=dict)
    moving: tuple[dict[int, int], int] | None = None
    handed: int = 0
    coming_hand: tuple[int, int] | None = None
    sequences: list[dict[int, int]] = dataclasses.field(
        default_factory=lambda: [{} for _ in range(PARTITIONS)]
    )
    epoch: int = -1

    def copy(self) -> ServicePromises:
        topics = {name: topic.copy() for name, topic in self.topics.items()}
        return ServicePromises(
            topics, self.publication, self.offsets.copy(), dict(self.positions),
            self.moving, self.handed, self.coming_hand,
            [dict(some) for some in self.sequences], self.epoch,
        )  # fmt: skip

    def problem_of(self, store: Store, *, is_killed: bool, is_thorough: bool) -> str:
        """Contradiction between the promises and the services of an open store, or "".
        If
        `is_thorough`, all of it works afterwards: a consumer joins, polls and commits,
        and the producer is taken over."""
        if IN not in store.topics() or OUT not in store.topics():
            return ""
        found = committed_in(store)
        text = self.offsets.problem(found, is_killed=is_killed)
        ends = [partition.end_offset for partition in store.topic(IN)]
        if any(offset > end for offset, end in zip(found, ends, strict=True)):
            return f"{found} is committed, beyond the ends {ends}"
        text = text or self._of_publications(store)
        if not text and is_thorough:
            text = self._of_producer(store) or _of_member(store, found)
        return text

    def _of_producer(self, store: Store) -> str:
        if self.epoch < 0:
            return ""
        producer = store.producer(PRODUCER)
        if producer.epoch <= self.epoch:
            return f"epoch {producer.epoch} of the producer comes again"
        for number, known in enumerate(self.sequences):
            partition = store.topic(IN)[number]
            end = partition.end_offset
            last = max((s for offset, s in known.items() if offset < end), default=None)
            told = producer.last_sequence(partition)
            if told != last:
                return f"the producer is told {told} of {number}, and has sent {last}"
        return ""

    def _of_publications(self, store: Store) -> str:
        end = store.topic(OUT)[0].end_offset
        wanted = dict(self.positions)
        if self.moving is not None and end > self.moving[1]:
            wanted |= self.moving[0]
        _, found = GroupPositions(store, TRANSACTIONS).read()
        positions = {k.partition: at.offset for k, at in found.items() if at.offset}
        if positions != {n: offset for n, offset in wanted.items() if offset}:
            return f"{positions} is published, not {wanted}"
        sequence = self.handed
        if self.coming_hand is not None and end > self.coming_hand[1]:
            sequence = self.coming_hand[0]
        last = store.published(HANDS_IN) or 0
        if last != sequence:
            return f"{last} was handed in, of {sequence}"
        return ""

    def settle_of(self, store: Store) -> None:
        """The store was opened for writing, and this is what is there."""
        if IN not in store.topics() or OUT not in store.topics():
            return
        end = store.topic(OUT)[0].end_offset
        if self.moving is not None and end > self.moving[1]:
            self.positions |= self.moving[0]
        if self.coming_hand is not None and end > self.coming_hand[1]:
            self.handed = self.coming_hand[0]
        self.moving = self.coming_hand = None
        for number, known in enumerate(self.sequences):
            last = store.topic(IN)[number].end_offset
            for offset in [offset for offset in known if offset >= last]:
                del known[offset]
        self.offsets.settle(committed_in(store))


def committed_in(store: Store) -> list[int]:
    """Committed offsets of the group, by partition; takes no lock. 0: nothing."""
    name = layout.group_file(COMMITS)
    file = group_file.GroupFile(files_directory(store), name, COMMITS)
    try:
        file.refresh()
        found = [file.committed(TopicPartition(IN, n)) for n in range(PARTITIONS)]
    finally:
        file.close()
    return [0 if commit is None else commit.offset for commit in found]


def _of_member(store: Store, found: list[int]) -> str:
    """Problem of a consumer that begins at `found`, or ""."""
    with small_files(), consumer_of(store, COMMITS) as one:
        for key, records in one.poll().items():
            offsets = [record.offset for record in records]
            first = found[key.partition]
            if offsets != list(range(first, first + len(offsets))):
                return f"offsets {offsets} of {key} are delivered, from {first} on"
        one.commit(durable=True)
        ends = [one.position(TopicPartition(IN, n)) for n in range(PARTITIONS)]
    now = committed_in(store)
    return "" if now == ends else f"{now} is committed, at {ends}"
