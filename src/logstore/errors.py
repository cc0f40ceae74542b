"""Every exception that logstore raises, with its facts as attributes.

The order of a message: the error, its place (path, position, offset), expected against
found, consequence, next step. A program that catches one should never have to parse it.
"""

from __future__ import annotations

import copy
import errno
import os
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # in typing from Python 3.11 on

__all__ = [
    "CommitFailedError",
    "ConfigError",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptRecordError",
    "CorruptionError",
    "DiskFullError",
    "DuplicateSequenceError",
    "EventLoopError",
    "FencedError",
    "ForkedError",
    "GroupError",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "InconsistentAssignorError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "LogStoreError",
    "MemberIdInUseError",
    "NoOffsetForPartitionError",
    "OffsetConflictError",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "PartitionNotFoundError",
    "ProducerError",
    "ProducerFencedError",
    "PublicationConflictError",
    "PublicationTimeoutError",
    "PublicationUnknownError",
    "ReadOnlyError",
    "RecordNotFoundError",
    "RecordTooLargeError",
    "ReentrantCallError",
    "StorageError",
    "StoreClosedError",
    "StoreLockedError",
    "StoreNotFoundError",
    "SyncFailedError",
    "TopicExistsError",
    "TopicNotFoundError",
    "UnsupportedError",
]


_Error = TypeVar("_Error", bound=BaseException)

if TYPE_CHECKING:
    _Kind = TypeVar("_Kind", bound=type)

    @dataclass_transform(
        eq_default=False, kw_only_default=True, field_specifiers=(field,)
    )
    def with_facts(kind: _Kind) -> _Kind:
        """Make the constructor of an exception from its annotations and its bases':
        ``(message, *, fact, other_fact=default)``. Each fact is an attribute. An
        exception that builds its message from its facts defines its own constructor."""

else:
    with_facts = dataclass(eq=False, repr=False, match_args=False, kw_only=True)


@with_facts
class LogStoreError(Exception):
    """Base of all errors raised by logstore. They can be pickled.

    Attributes:
        appended: what is in the log although the call failed, as (partition, range)
            pairs: `Topic.append_many` and `Topic.append_arrow` append to several
            partitions, one after the other, and a disk may become full in between.
            Empty for every other call: one that fails has changed nothing.
    """

    message: InitVar[str] = field(kw_only=False)  # it is in `args`
    appended: tuple[tuple[int, range], ...] = field(default=(), init=False)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)

    def __post_init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = dict(self.__dict__)
        if isinstance(self, OSError):
            # OSError keeps these in its own slots.
            facts |= {"errno": self.errno, "filename": self.filename}
        return made_again, (type(self), self.args, facts)


def made_again(
    kind: type[LogStoreError], args: tuple[Any, ...], facts: dict[str, Any]
) -> LogStoreError:
    """The same error, made without its constructor, which would change the message."""
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in facts.items():
        setattr(error, name, value)
    return error


def again(error: _Error) -> _Error:
    """An error that is kept, to be raised once more, or to be kept while it is raised.
    An error that is raised gets the frames of the caller, and keeps all that they
    refer to: a store that its user has forgotten, and with it that store's lock.

    One of the caller's own may have no copy: it is the same each time.
    """
    if not isinstance(error, LogStoreError):
        return error.with_traceback(None)
    own, cause = copy.copy(error), error.__cause__
    if cause is not None:
        is_plain = type(cause).__module__ == "builtins"
        is_copied = is_plain or isinstance(cause, LogStoreError)
        own.__cause__ = copy.copy(cause) if is_copied else cause
    return own


def renamed_error(error: LogStoreError, where: str) -> LogStoreError:
    """The same error, with all its facts, and a message that begins with `where`."""
    _, (kind, args, facts) = error.__reduce__()
    return made_again(kind, (f"{where}: {error}", *args[1:]), facts)


def partly_done(
    error: LogStoreError, appended: tuple[tuple[int, range], ...]
) -> LogStoreError:
    """The same error, for a call that had appended to some partitions before."""
    _, (kind, args, facts) = error.__reduce__()
    spans = ", ".join(
        f"offsets {span.start} to {span.stop - 1} of partition {number}"
        for number, span in appended
        if span
    )
    text = f"{error}. Appended before the error: {spans}"
    return made_again(kind, (text, *args[1:]), {**facts, "appended": appended})


@with_facts
class ConfigError(LogStoreError, ValueError):
    """A setting, name or argument is not allowed.

    Attributes:
        name: the setting or argument, as the caller spelled it.
        value: the value that was given.
    """

    name: str = ""
    value: Any = None


@with_facts
class TopicExistsError(LogStoreError, ValueError):
    """The topic to be created exists already (or differs from the requested one).

    Attributes:
        topic: its name.
    """

    topic: str


@with_facts
class StoreNotFoundError(LogStoreError, LookupError):
    """There is no store at this path.

    Attributes:
        path: the absolute path.
    """

    path: str


@with_facts
class TopicNotFoundError(LogStoreError, LookupError):
    """The store has no topic of this name, or the topic was deleted and made again: an
    object, a position or a staged file belongs to the earlier one.

    Attributes:
        topic: the name.
    """

    topic: str


@with_facts
class PartitionNotFoundError(TopicNotFoundError):
    """The topic has no partition of this number, or it is another one now.

    Attributes:
        topic: name of the topic.
        partition: the number.
    """

    partition: int


class Holder(NamedTuple):
    """A process that has a store open for writing, as it describes itself.

    Attributes:
        pid: its number in its own namespace of processes; None: unknown.
        program: the name of the program that it runs; "" unknown.
        host: the name of its machine; "" unknown.
        since: when it took the lock, in Unix milliseconds; None: unknown.
        doing: "owner"; "recovering" before it is one; "keeping": for a moment; "": it
            is another program, such as a Kafka broker.
        publishes_for_others: it publishes what other processes hand in.
    """

    pid: int | None = None
    program: str = ""
    host: str = ""
    since: int | None = None
    doing: str = ""
    publishes_for_others: bool = False


@with_facts
class StoreLockedError(LogStoreError):
    """Another writer (logstore or a Kafka broker) has locked the store.

    Attributes:
        path: the store's directory.
        holder_pid: process id of the holder, or None if it is unknown.
        opened_at: ``file:line`` of the call that opened it, if this process did; else
            None.
        holder: what is known of the holder; None: nothing.
    """

    path: str
    holder_pid: int | None = None
    opened_at: str | None = None
    holder: Holder | None = None


class StoreClosedError(LogStoreError):
    """The store was closed; open it again."""


class ReadOnlyError(LogStoreError):
    """The store was opened read-only and cannot be changed."""


class ForkedError(LogStoreError):
    """The store was opened before a fork; the child must open its own."""


class EventLoopError(LogStoreError, RuntimeError):
    """An object of `logstore.aio` is used in another event loop than before."""


class ReentrantCallError(LogStoreError):
    """A call came from inside another one of the same thread (a finalizer, a signal
    handler) and could only wait for itself. Nothing was changed; call again when the
    outer call has returned."""


class OffsetOutOfRangeError(LogStoreError, IndexError):
    """The offset lies outside ``[start, end]`` of the partition.

    Attributes:
        requested: the requested offset.
        start: first offset that can be read.
        end: next offset to be written.
        partition: ``topic-number``.
        cut_to: the offset that the log was cut to while a reader was to continue at
            `requested`; None if that is not the reason. The log may have grown again.
    """

    def __init__(
        self,
        requested: int,
        start: int,
        end: int,
        *,
        partition: str = "",
        cut_to: int | None = None,
    ) -> None:
        where = f" of {partition}" if partition else ""
        if cut_to is None:
            message = (
                f"offset {requested} is outside [{start}, {end}]{where}: the earliest "
                f"that can be read is {start}, the next to be written {end}"
            )
        else:
            message = (
                f"the log{where} was truncated to offset {cut_to} below the "
                f"position {requested} of a reader: records that it read from "
                f"{cut_to} on no longer exist. The log is [{start}, {end}) now; "
                f"continue from {cut_to}"
            )
        super().__init__(message)
        self.requested, self.start, self.end = requested, start, end
        self.partition, self.cut_to = partition, cut_to


class RecordNotFoundError(LogStoreError, LookupError):
    """The log has no record at this offset: compaction removed it, or the offset is
    that of a transaction marker.

    Attributes:
        offset: the requested offset.
        partition: ``topic-number``.
    """

    def __init__(self, offset: int, *, partition: str) -> None:
        super().__init__(
            f"{partition} has no record at offset {offset}: compaction removed "
            f"it, or it is not visible to readers. read(start={offset}) begins at "
            "the next one"
        )
        self.offset, self.partition = offset, partition


class OffsetConflictError(LogStoreError):
    """``expected_offset`` is not the next offset: another caller has appended.

    Attributes:
        expected: the offset that the caller gave.
        actual: the next offset.
        partition: ``topic-number``.
    """

    def __init__(self, expected: int, actual: int, *, partition: str) -> None:
        super().__init__(
            f"expected offset {expected} is not the next of {partition}, which is "
            f"{actual}; nothing was written"
        )
        self.expected, self.actual, self.partition = expected, actual, partition


@with_facts
class ProducerError(LogStoreError):
    """A batch of an idempotent producer is not its next one.

    Attributes:
        producer_id: of the batch.
        partition: ``topic-number``.
    """

    producer_id: int
    partition: str


@with_facts
class OutOfOrderSequenceError(ProducerError):
    """Batches of the producer are missing before this one, or a part of it is there.

    Attributes:
        sequence: the first one of the batch.
        expected: the next one of the producer.
    """

    sequence: int
    expected: int


class DuplicateSequenceError(ProducerError):
    """The batch is there already, and its offsets are no longer known."""


@with_facts
class InvalidProducerEpochError(ProducerError):
    """A later epoch of the producer has appended: another process has taken its place.

    Attributes:
        epoch: that of the batch.
        expected: the newest one.
    """

    epoch: int
    expected: int


@with_facts
class ProducerFencedError(ProducerError):
    """The name of a producer was taken over: by a later `Store.producer`.

    Attributes:
        name: of the producer.
        epoch: that of the caller.
        expected: the newest one.
    """

    name: str
    epoch: int
    expected: int


class PublicationConflictError(LogStoreError):
    """An identity has already published a later sequence number.

    Attributes:
        identity: the name of the publisher.
        sequence: the number that the caller gave.
        last: the last number that was published.
    """

    def __init__(self, identity: str, sequence: int, last: int) -> None:
        super().__init__(
            f"{identity!r} has published sequence {last}; {sequence} comes before "
            "it. Its state was reset, or two publishers use the same identity. "
            "Nothing was published"
        )
        self.identity, self.sequence, self.last = identity, sequence, last


class PublicationUnknownError(LogStoreError):
    """A copied store may lack records of this publication. Nothing was published.

    Attributes:
        identity: the name of the publisher.
        sequence: the number that the caller gave.
    """

    def __init__(self, identity: str, sequence: int) -> None:
        super().__init__(
            f"{identity!r} has published sequence {sequence} to the original of "
            "this store, and the copy may lack its records. Nothing was "
            "published. Find out which records are there, then continue with a "
            "higher sequence"
        )
        self.identity, self.sequence = identity, sequence


class PublicationTimeoutError(LogStoreError, TimeoutError):
    """No process has published a request in time.

    Attributes:
        identity: the name of the publisher.
        sequence: the number that the caller gave, or that of the request.
        timeout_ms: how long it has waited, in milliseconds.
        outcome: "not written": the request was taken back, and nothing will be
            published. "unknown": it may be published, `Store.published` shows it, and
            handing in the same request again publishes it once.
        holder: the process that has the store open for writing; None: unknown.
    """

    def __init__(
        self,
        identity: str,
        sequence: int,
        *,
        timeout_ms: int,
        outcome: str = "unknown",
        holder: Holder | None = None,
    ) -> None:
        if outcome == "unknown":
            super().__init__(
                f"whether {identity!r} publishes sequence {sequence} is unknown: "
                "the process that has the store began to publish it, but did not "
                f"answer within {timeout_ms} ms. Ask Store.published, or hand it "
                "in again, which publishes it only once"
            )
        else:
            super().__init__(
                f"no process has written what was handed in within {timeout_ms} "
                "ms; it was withdrawn, and nothing was written"
            )
        self.identity, self.sequence, self.timeout_ms = identity, sequence, timeout_ms
        self.outcome, self.holder = outcome, holder

    def __str__(self) -> str:
        return str(self.args[0])


@with_facts
class GroupError(LogStoreError):
    """A consumer group refuses a call.

    Attributes:
        group: the id of the group; "" for a consumer without one.
    """

    group: str


class CommitFailedError(GroupError):
    """The consumer does not have a partition that it was to commit, the group commits
    in the other way, or another member does not let it. Nothing was committed."""


class FencedError(GroupError):
    """This consumer is no longer a member of its group: it did not poll for too long,
    or the lock file of the group was replaced. Nothing was committed; the next poll
    joins again."""


@with_facts
class GroupNotEmptyError(GroupError):
    """The group has members that live: its offsets are theirs. Nothing was changed.

    Attributes:
        pids: their processes.
    """

    pids: tuple[int, ...]


@with_facts
class GroupNotFoundError(GroupError, LookupError):
    """There is no group of this id, it has committed nothing, or the part of the
    directory that would have it is not here: the message says which.

    Attributes:
        path: the directory.
    """

    path: str


@with_facts
class InconsistentAssignorError(GroupError):
    """The members of the group use another assignor.

    Attributes:
        expected: the name of theirs.
    """

    expected: str


@with_facts
class MemberIdInUseError(GroupError):
    """A live static member has this name.

    Attributes:
        instance: the name.
        holder_pid: process id of that member.
    """

    instance: str
    holder_pid: int


@with_facts
class NoOffsetForPartitionError(GroupError):
    """The group has no committed offset that counts, and ``reset="error"``.

    Attributes:
        partition: ``topic-number``.
    """

    partition: str


@with_facts
class OffsetMetadataTooLargeError(GroupError, ValueError):
    """The metadata of a committed offset is too long; nothing was committed.

    Attributes:
        size, limit: bytes of UTF-8 that it has, and may have.
    """

    size: int
    limit: int


@with_facts
class RecordTooLargeError(LogStoreError, ValueError):
    """A record (or batch, or its decompressed form) exceeds a limit.

    Attributes:
        limit_name: the setting that holds the limit.
        limit: its value in bytes.
        size: the size found, in bytes, or None if it was not determined.
    """

    limit_name: str
    limit: int
    size: int | None = None


@with_facts
class InvalidRecordError(LogStoreError, ValueError):
    """A record that its topic does not take: one without a key, if the topic is
    compacted. Nothing was written.

    Attributes:
        index: of the record in the call.
    """

    index: int


@with_facts
class UnsupportedError(LogStoreError):
    """Unknown or not supported; it is never damage, and nothing is cut because of it.

    Attributes:
        path: absolute path of the file, or None.
        position: its first byte in the file, or None.
        offset: first offset concerned, or None.
    """

    path: str | None = None
    position: int | None = None
    offset: int | None = None


class StorageError(LogStoreError, OSError):
    """The operating system refused or failed an operation on the store.

    Attributes:
        errno: as the system gave it.
        filename: absolute path of the file.
        action: the operation that failed, in one word or two.
    """

    def __init__(
        self,
        message: str,
        *,
        errno: int | None = None,
        path: str | None = None,
        action: str = "",
    ) -> None:
        super().__init__(message)
        self.errno = errno
        self.filename = path
        self.action = action

    def __str__(self) -> str:
        return str(self.args[0])


class DiskFullError(StorageError):
    """No space (or quota, or file size limit) is left; the log is unchanged."""


class SyncFailedError(StorageError):
    """A sync failed: records past the durable offset may be lost in a power failure.

    The partition accepts no more appends; reading is still possible. Open the store
    again.
    """


@with_facts
class CorruptionError(LogStoreError):
    """Bytes on disk contradict the format.

    Attributes:
        path: absolute path of the file.
        position: byte where the damaged structure begins, or None.
        reason: the contradiction.
    """

    path: str
    position: int | None = None
    reason: str = ""

    def __post_init__(self, message: str) -> None:
        super().__post_init__(message)
        self.reason = self.reason or message


class CorruptRecordError(CorruptionError):
    """A batch or record is damaged, or bytes that must be there are missing.

    Attributes:
        offset: first offset that is not delivered.
        next_offset: where reading can continue: the first offset after the damage
            (``skip`` continues there). None if it is unknown.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str,
        position: int,
        offset: int,
        next_offset: int | None = None,
    ) -> None:
        super().__init__(reason, path=path, position=position, reason=reason)
        self.offset = offset
        self.next_offset = next_offset
        self.goes_on_at(next_offset)

    def goes_on_at(self, next_offset: int | None) -> None:
        """Set where reading can continue, also in the message."""
        self.next_offset = next_offset
        what = f"Records from offset {self.offset} on cannot be read here"
        if next_offset is not None and next_offset > self.offset:
            last = next_offset - 1
            what = f"Records {self.offset} to {last} cannot be read here"
            if last == self.offset:
                what = f"Record {last} cannot be read here"
            what += f", reading can continue at offset {next_offset}"
        self.args = (
            f"{self.reason}: {self.path} at byte {self.position}. {what}. Keep a copy "
            f"of the file, then run `logstore-dump verify` on its directory.",
        )


class CorruptIndexError(CorruptionError):
    """An index file is damaged (readers work without it; it can be rebuilt)."""


class CorruptCheckpointError(CorruptionError):
    """A checkpoint or state file is damaged."""


_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def error_text(error: BaseException) -> str:
    """The text of an error, for a sentence; of an interrupt, its name."""
    return str(error) or type(error).__name__


def is_system_error(error: BaseException) -> TypeGuard[OSError]:
    """Whether the error is from the operating system and not yet one of logstore's."""
    return isinstance(error, OSError) and not isinstance(error, LogStoreError)


def is_disk_full(error: OSError) -> bool:
    """Whether there is no space, quota or size left for a file."""
    return error.errno in _DISK_FULL


def storage_error(
    cause: OSError, action: str, path: str, consequence: str = ""
) -> StorageError:
    """Convert an ``OSError`` to logstore's error, with the action and the file."""
    text = os.strerror(cause.errno) if cause.errno else str(cause)
    message = f"cannot {action} {path}: {text}"
    if consequence:
        message = f"{message}. {consequence}"
    kind = DiskFullError if is_disk_full(cause) else StorageError
    return kind(message, errno=cause.errno, path=path, action=action)


class storage_errors:  # used as a function, as contextlib.suppress is
    """``with storage_errors("read", path):`` raises `storage_error` for an ``OSError``
    of the body that is not yet one of logstore's."""

    __slots__ = ("_arguments",)

    def __init__(self, action: str, path: str, consequence: str = "") -> None:
        self._arguments = action, path, consequence

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None and is_system_error(error):
            raise storage_error(error, *self._arguments) from error
