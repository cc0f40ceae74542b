"""Exactly once: outputs and the positions of their inputs in one publication.

The positions of a group that commits by transactions are the metadata of the last
publication of its identity, so they were published with its records. A transaction
publishes the number after the last one it has read, with the positions of the whole
group at that time, without deleted topics. Of two transactions that have read the same
positions, one is published. The other one looks again: if its own partitions are where
it expects, it tries again with the next number; if not, another member has processed
its input.

This holds without any lock: a process that was stopped for an hour and resumes in the
middle of its transaction publishes nothing. The turn to publish only avoids attempts
that would fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from logstore.errors import (
    CommitFailedError,
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    FencedError,
    PublicationConflictError,
    RecordTooLargeError,
    StoreClosedError,
    TopicNotFoundError,
)
from logstore.group.file.slots import Slots
from logstore.io import layout
from logstore.io.checkpoint.topic_identity import counts_in
from logstore.io.layout import TopicPartition
from logstore.record.encoder import check_payload_type
from logstore.store.copy.copies import LoweredTo
from logstore.store.package_access import (
    lowered_in_copy,
    published_ms,
    stage_for_group,
    submit_for_group,
    topics_now,
)
from logstore.store.publication.publication import GROUP_IDENTITY
from logstore.store.store import Store
from logstore.store.topic import routing

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "COMMITTED",
    "FORGOTTEN",
    "ConsumerTransaction",
    "GroupPositions",
    "Positioned",
    "TransactionState",
    "identity_of",
    "identity_of_file",
    "lowered_positions",
    "metadata_of",
    "positions_in",
]

COMMITTED: Final = "committed"
# It has taken part in nothing: the records that were delivered are another one's.
FORGOTTEN: Final = "not begun"
_METADATA_BYTES_MAX: Final = 4096
# The proof of a position without one.
_NO_PROOF: Final = -1
_TURN_WAIT_S: Final = 1.0
_TURN_PAUSE_S: Final = 0.0005
# Each attempt that fails is one that another member has made.
_ATTEMPTS: Final = 1000


def identity_of(group: str) -> str:
    """The identity under which a group publishes."""
    return identity_of_file(layout.group_file(group))


def identity_of_file(name: str) -> str:
    """The identity of a group, from the name of its file."""
    return GROUP_IDENTITY + name.removeprefix(layout.GROUP_PREFIX)


class Positioned(NamedTuple):
    """A position that was published.

    Attributes:
        offset: the next one to be read.
        topic_id: of the topic that it is for; "" if that has no id.
        proof: as in `OffsetCommit`.
    """

    offset: int
    topic_id: str
    proof: int | None = None


# As `topics_now` and `Inputs.begin_commit` return them.
_Topics: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
_Positions: TypeAlias = Mapping[TopicPartition, Positioned]
_Moved: TypeAlias = Mapping[TopicPartition, tuple[Positioned, "int | None"]]


class GroupPositions:
    """The published positions of one group.

    Args:
        group: its id.
    """

    def __init__(self, store: Store, group: str) -> None:
        self.identity = identity_of(group)
        self._store = store
        self._group = group

    def read(self) -> tuple[int, dict[TopicPartition, Positioned]]:
        """(number of the last publication, positions); 0 before the first. Of a copy
        that is open read-only, none lies above the end of its log.

        Raises:
            CorruptCheckpointError: the file that has them is damaged.
        """
        last = self._store.last_publication(self.identity)
        if last is None:
            return 0, {}
        positions = self._parsed(last.metadata)
        lowered_to = lowered_in_copy(self._store)
        if lowered_to is None:
            return last.sequence, positions
        time_ms = published_ms(self._store, self.identity)
        lowered = lowered_positions(positions, time_ms, lowered_to)
        return last.sequence, {**positions, **lowered}

    def _parsed(self, metadata: bytes) -> dict[TopicPartition, Positioned]:
        try:
            return positions_in(metadata)
        except (ValueError, KeyError, TypeError) as error:
            path = os.path.join(self._store.path, layout.PUBLISHED)
            raise CorruptCheckpointError(
                f"{path} does not have positions of group {self._group!r:.100}: "
                f"{error}. Another publisher has used the identity "
                f"{self.identity!r}",
                path=path,
                reason=str(error),
            ) from error

    def format(self, positions: Mapping[TopicPartition, Positioned]) -> bytes:
        """The metadata for positions, different each time.

        Raises:
            ConfigError: they are too many.
        """
        data = metadata_of(positions)
        if len(data) > _METADATA_BYTES_MAX:
            topics = {(key.topic, each.topic_id) for key, each in positions.items()}
            raise ConfigError(
                f"the positions of group {self._group!r:.100} in {len(positions)} "
                f"partitions of {len(topics)} topics take {len(data)} bytes, more "
                f"than the {_METADATA_BYTES_MAX} of a transaction; nothing was "
                "published. Use several groups, or fewer topics with more "
                "partitions",
                name="topics",
            )
        return data


def positions_in(metadata: bytes) -> dict[TopicPartition, Positioned]:
    """The positions that the metadata of a publication has.

    Raises:
        ValueError, KeyError, TypeError: it is something else.
    """
    positions = {}
    value = json.loads(metadata)
    # An earlier release has written none.
    proofs = iter(value.get("proofs", ()))
    for topic, topic_id, numbers in value["at"]:
        for number, offset in zip(numbers[::2], numbers[1::2], strict=True):
            key = TopicPartition(str(topic), int(number))
            crc = int(next(proofs, _NO_PROOF))
            proof = None if crc == _NO_PROOF else crc
            positions[key] = Positioned(int(offset), str(topic_id), proof)
    return positions


def metadata_of(positions: _Positions) -> bytes:
    """The metadata for positions, different each time. Without proofs, if they would
    take too many bytes: better a position without a proof than none."""
    topics: dict[tuple[str, str], list[int]] = {}
    for key, position in sorted(positions.items()):
        numbers = topics.setdefault((key.topic, position.topic_id), [])
        numbers += key.partition, position.offset
    value = {"by": os.urandom(8).hex(), "at": [[*k, v] for k, v in topics.items()]}
    proofs = [
        _NO_PROOF if each.proof is None else each.proof
        for topic in topics
        for key, each in sorted(positions.items())
        if (key.topic, each.topic_id) == topic
    ]
    data = _packed({**value, "proofs": proofs})
    return data if len(data) <= _METADATA_BYTES_MAX else _packed(value)


def lowered_positions(
    positions: _Positions, time_ms: int, lowered_to: LoweredTo
) -> _Positions:
    """The positions that lie above the end of the log of a copy, lowered.

    Args:
        time_ms: when they were published.
    """
    return {
        key: Positioned(now, position.topic_id)
        for key, position in positions.items()
        if (now := lowered_to(key, position.topic_id, position.offset, time_ms))
        is not None
    }


def _packed(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Inputs(Protocol):
    """The consumer of a transaction, as the transaction needs it."""

    def begin_commit(self) -> dict[TopicPartition, tuple[Positioned, int | None]]:
        """The positions to publish, each with the offset that was committed
        before, if the consumer knows it. It has checked that it holds them."""

    def published(self, positions: Mapping[TopicPartition, Positioned]) -> None:
        """Note that these positions are published now."""

    def settle(self) -> None:
        """If the transaction has ended, and not by a commit, deliver its input
        again. If this is interrupted, the next call on the consumer completes it."""


class TransactionState:
    """The state of a transaction, which its consumer keeps.

    Attributes:
        ended: how it has ended; "": not yet.
        is_used: it was entered, or has taken a record.
    """

    __slots__ = ("ended", "is_used")

    def __init__(self) -> None:
        self.ended = ""
        self.is_used = False


class ConsumerTransaction:
    """Records that are published together with the positions of the consumer, or not at
    all. Made by `Consumer.transaction`; a context manager: leaving it commits, and with
    an error nothing is published, and `poll` delivers the same records again.

    Args:
        call: entered for each call that uses the consumer.
        state: is the consumer's, too: so it knows what to do even if whatever is called
            here is cut short at its first instruction.
        timeout_ms: of the commit, as in `Store.submit`.
    """

    def __init__(
        self,
        store: Store,
        positions: GroupPositions,
        slots: Slots,
        inputs: Inputs,
        call: Callable[[], AbstractContextManager[object]],
        state: TransactionState,
        timeout_ms: int | None,
    ) -> None:
        self._store = store
        self._positions = positions
        self._slots = slots
        self._inputs = inputs
        self._call = call
        self._timeout_ms = timeout_ms
        # Value, key, time and headers of each record.
        self._rows: dict[TopicPartition, list[tuple[Any, Any, int | None, Any]]] = {}
        self._last: TopicPartition | None = None  # it got the last record
        self._state = state

    def __enter__(self) -> ConsumerTransaction:
        self._check_open("be entered")
        self._state.is_used = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()
        elif not self._state.ended:
            self.commit()

    def _check_open(self, what: str) -> None:
        if self._state.ended:
            raise ConfigError(
                f"a transaction that was {self._state.ended} cannot {what}; nothing "
                f"was done. Begin another one",
                name="transaction",
            )

    def append(
        self,
        topic: str,
        value: ReadableBuffer | None,
        *,
        key: ReadableBuffer | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a record; it is kept in memory until the commit.

        Args:
            partition: None: the partitioner of the topic chooses.
            others: as in `Topic.append`.

        Raises:
            TopicNotFoundError, PartitionNotFoundError, TypeError: nothing was added.
        """
        self._check_open("take records")
        self._state.is_used = True
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        target = self._store.topic(topic)
        value = value if value is None else bytes(value)
        key = key if key is None else bytes(key)
        if partition is None:
            size = routing.length_of(value) + routing.length_of(key)
            partition = routing.chosen(
                topic, target.partitioner, target.numbers, key, size
            )
        row = value, key, timestamp_ms, tuple(headers)
        topic_partition = TopicPartition(topic, target[partition].number)
        self._rows.setdefault(topic_partition, []).append(row)
        self._last = topic_partition

    def take_back(self) -> None:
        """Remove the record that was added last, once; for `logstore.aio`."""
        last, self._last = self._last, None
        if last is not None and last in self._rows:
            del self._rows[last][-1]
            if not self._rows[last]:
                del self._rows[last]

    def forget(self) -> None:
        """End it as if it had not begun, for `logstore.aio`. Nothing is delivered
        again."""
        if not self._state.ended:
            self._state.ended = FORGOTTEN
            self._rows.clear()
            with contextlib.suppress(StoreClosedError), self._call():
                self._inputs.settle()

    def abort(self) -> None:
        """Publish nothing, and let `poll` deliver the same records again."""
        if not self._state.ended:
            self._state.ended = "aborted"
            self._rows.clear()
            # A consumer that is closed has nothing to rewind.
            with contextlib.suppress(StoreClosedError), self._call():
                self._inputs.settle()

    def commit(self) -> None:
        """Publish the records and the positions, durably, both or neither.

        Another process may have the store open for writing: see `Store.submit`.

        Raises:
            FencedError: another member has processed the input; nothing was published.
            CommitFailedError: this consumer does not have a partition that it has read,
                or the group does not commit by transactions; nothing was published.
            ConfigError: the positions of the group take too many bytes.
            PublicationTimeoutError: another process had the store for longer than the
                transaction's ``timeout_ms``, and may publish this later. The next
                `poll` continues at its position, or after it, in either case; if
                it is published after that, the next commit raises `FencedError`, once.
            others: as `Store.submit`. Nothing was published, unless the message says
                that it may have been: then as for `PublicationTimeoutError`.
        """
        self._check_open("be committed")
        with self._call():
            try:
                self._commit()
            except BaseException:
                self._state.ended = "not committed"
                self._inputs.settle()
                raise
            self._state.ended = COMMITTED
            self._inputs.settle()

    def _commit(self) -> None:
        # In this order an interrupt leaves no lock: to give back what was not taken
        # does nothing.
        try:
            self._wait_for_turn()
            for _ in range(_ATTEMPTS):
                if self._attempt():
                    return
        finally:
            self._slots.end_publish_turn()
        raise CommitFailedError(
            f"another member published first, {_ATTEMPTS} times; nothing was published",
            group=self._positions.identity,
        )

    def _wait_for_turn(self) -> None:
        """Take it; not for ever, since one that hangs may have it."""
        deadline = time.monotonic() + _TURN_WAIT_S
        while not self._slots.take_publish_turn():
            if time.monotonic() > deadline:
                return
            time.sleep(_TURN_PAUSE_S)

    def _attempt(self) -> bool:
        """Publish; False: another member was faster."""
        last, published = self._positions.read()
        moved = self._inputs.begin_commit()
        # Looked for after the positions were read: a member that has published one of a
        # topic has found that. So a topic that is not there now was deleted.
        topics = topics_now(self._store, {key.topic for key in (*published, *moved)})
        changed = self._changed(published, moved, topics)
        if not changed and not self._rows:
            return True
        metadata = self._positions.format(
            {
                key: position
                for key, position in {**published, **changed}.items()
                if not _is_gone(key, position, topics)
            }
        )
        identity, sequence = self._positions.identity, last + 1
        staged = []
        if self._rows:
            with stage_for_group(self._store, identity, sequence) as stage:
                for key, rows in self._rows.items():
                    values, keys, times, headers = zip(*rows, strict=True)
                    target = self._store.topic(key.topic)[key.partition]
                    has_headers = any(headers)
                    stage.append_many(
                        target, values, keys, times, headers if has_headers else None
                    )
                staged.append(stage.finish())
        try:
            done = submit_for_group(
                self._store,
                staged,
                identity=identity,
                sequence=sequence,
                metadata=metadata,
                pinned=True,
                timeout_ms=self._timeout_ms,
            )
            is_mine = done.metadata == metadata
        except PublicationConflictError:
            is_mine = False
        except (DiskFullError, RecordTooLargeError, TopicNotFoundError):
            self._store.discard_staged(staged)
            raise
        if is_mine:
            self._inputs.published(changed)
        else:
            self._store.discard_staged(staged)
        return is_mine

    def _changed(
        self, published: _Positions, moved: _Moved, topics: _Topics
    ) -> dict[TopicPartition, Positioned]:
        """The positions to publish. Raises unless each partition is where
        the consumer expects."""
        changed = {}
        for key, (position, before) in moved.items():
            there = published.get(key)
            is_same_topic = there is not None and there.topic_id == position.topic_id
            current_offset = (
                there.offset if there is not None and is_same_topic else None
            )
            if current_offset is None and _is_gone(key, position, topics):
                # The position may have been dropped with its topic.
                if position.offset == before:
                    continue
                raise CommitFailedError(
                    f"the topic of partition {key} was deleted, so it is not "
                    "known whether another member has processed its records. "
                    "Nothing was published; the next poll continues without it",
                    group=self._positions.identity,
                )
            if current_offset != before:
                # From there on, also if it did not know of any commit.
                news = {
                    each: published[each]
                    for each, (mine, known) in moved.items()
                    if each in published
                    and published[each].topic_id == mine.topic_id
                    and published[each].offset != known
                }
                if news:
                    self._inputs.published(news)
                raise FencedError(
                    f"partition {key} is at offset {current_offset}, and this consumer "
                    f"has begun at {before}: another member has processed the input, "
                    f"or this one in a transaction whose end it does not know. Nothing "
                    f"was published",
                    group=self._positions.identity,
                )
            # The same offset may be in another log now.
            is_disproved = there is not None and there.proof not in (
                None,
                position.proof,
            )
            if position.offset != before or is_disproved:
                changed[key] = position
        return changed


def _is_gone(key: TopicPartition, position: Positioned, topics: _Topics) -> bool:
    """Whether the topic of a position was deleted; another one may have its name.

    Args:
        topics: that exist now.
    """
    if key.topic not in topics:
        return True
    topic_id, _ = topics[key.topic]
    return not counts_in(topic_id, position.topic_id)
