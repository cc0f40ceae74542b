"""Records on their way into a store: encoded by any process, in no log yet.

A `Stage` writes one file into the store's root directory, `.logstore-staged-*`, with
whole batches for any number of partitions. It needs no lock, and nothing of it can be
read. `Store.publish` puts what such files hold into the logs, all of it or nothing.

The offsets of a partition's batches in a file begin at 0: where they will stand, nobody
knows yet. No checksum covers them, so that publishing moves them in place.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import xxhash

from logstore import _binding as native
from logstore import layout
from logstore._files import Directory
from logstore.config import TopicConfig
from logstore.encoder import Encoder, pack_rows
from logstore.errors import (
    ConfigError,
    CorruptRecordError,
    LogStoreError,
    UnsupportedError,
    storage_error,
)
from logstore.extras import arrow_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from _typeshed import ReadableBuffer

__all__ = ["Stage", "Staged", "StagedLog"]

# Smaller batches of a partition are held back, to be written together.
_DIRECT_BYTES: Final = 64 << 10
# What is written one behind the other is read again in one piece, up to this size.
_RUN_BYTES: Final = 1 << 20


class StagedLog(NamedTuple):
    """What a staged file has for one partition.

    Attributes:
        topic, partition: which.
        magic: of its batches.
        records: how many.
        runs: (position, bytes) of whole batches in the file, in order.
    """

    topic: str
    partition: int
    magic: int
    records: int
    runs: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of its batches."""
        return sum(size for _, size in self.runs)


class Staged(NamedTuple):
    """A staged file, as a plain value that one process can send to another.

    Attributes:
        name: of the file in the store's root; "" where there were no records.
        logs: what it has for each partition.
    """

    name: str
    logs: tuple[StagedLog, ...]

    @property
    def records(self) -> int:
        """How many there are for all partitions."""
        return sum(log.records for log in self.logs)


class Destination(Protocol):
    """What a stage asks of a partition. A `Partition` is one; whoever stages for many
    does without opening their logs."""

    @property
    def topic(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def config(self) -> TopicConfig: ...


class Stage:
    """Writes a staged file. For one thread; a context manager that removes the file
    where it is left by an error.

    Args:
        root: the store's directory.
        identity, sequence: of the publication that it is for; they name the file, so
            that what is left over can be told from what is under way.
    """

    def __init__(self, root: Directory, identity: str, sequence: int) -> None:
        self._root = root
        self.name = staged_name(identity, sequence)
        self._fd = -1
        self._pos = 0
        self._logs: dict[tuple[str, int], _Log] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.discard()

    def append_many(
        self,
        partition: Destination,
        values: Sequence[ReadableBuffer | None],
        keys: Sequence[ReadableBuffer | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
    ) -> int:
        """Stage records for a partition; the arguments are those of
        `Partition.append_many`. They are encoded as the settings of the topic are now.

        Returns how many there were.

        Raises: as `Partition.append_many`; `UnsupportedError` for a topic with
            ``message_format=0``.
        """
        rows = pack_rows(
            values,
            keys,
            timestamps_ms,
            headers,
            now_ms=self._root.files.now_ms(),
            magic=partition.config.message_format,
        )
        return self._add(partition, [rows])

    def append_arrow(self, partition: Destination, data: Any) -> int:
        """Stage a ``pyarrow`` RecordBatch, Table or RecordBatchReader for a partition;
        as `append_many`, with the columns of `Partition.append_arrow`."""
        arrow = arrow_module()
        now_ms = self._root.files.now_ms()
        magic = partition.config.message_format
        rows = (
            arrow.rows_of(batch, now_ms=now_ms, magic=magic)
            for batch in arrow.tables_of(data)
        )
        return self._add(partition, rows)

    def _add(self, partition: Destination, batches: Iterable[native.Rows]) -> int:
        key = partition.topic, partition.number
        log = self._logs.get(key)
        if log is None:
            if partition.config.message_format == 0:
                raise UnsupportedError(
                    f"{key[0]}-{key[1]} has message_format=0, into which nothing can "
                    f"be published; 1 or 2 can"
                )
            log = self._logs[key] = _Log(Encoder(partition.config))
        before = log.records
        for rows in batches:
            log.encoder.measure(rows)
            now_ms = self._root.files.now_ms()
            for data, size in log.encoder.encode(rows, log.records, now_ms, 0):
                if size >= _DIRECT_BYTES and not log.data:
                    self._write(log, native.buffer_of(data, size))
                    continue
                log.data += native.buffer_of(data, size)
                if len(log.data) >= _DIRECT_BYTES:
                    self._write_held(log)
            log.records += rows.count
        return log.records - before

    def _write_held(self, log: _Log) -> None:
        data, log.data = log.data, bytearray()
        self._write(log, memoryview(data))

    def _write(self, log: _Log, data: memoryview) -> None:
        root, size = self._root, len(data)
        try:
            if self._fd < 0:
                self._fd = root.create(self.name)
            root.files.write(self._fd, data, self._pos)
        except OSError as error:
            raise storage_error(
                error, "stage records in", root.path_of(self.name)
            ) from error
        begin, held = log.runs[-1] if log.runs else (0, _RUN_BYTES)
        if begin + held == self._pos and held + size <= _RUN_BYTES:
            log.runs[-1] = begin, held + size
        else:
            log.runs.append((self._pos, size))
        self._pos += size

    def finish(self) -> Staged:
        """Write what is held back, close the file, and say what is in it.

        It is not synced: should the power go, nothing of it has been published.
        """
        for log in self._logs.values():
            if log.data:
                self._write_held(log)
        self._close()
        logs = tuple(
            StagedLog(topic, number, log.encoder.magic, log.records, tuple(log.runs))
            for (topic, number), log in self._logs.items()
            if log.records
        )
        return Staged(self.name if logs else "", logs)

    def discard(self) -> None:
        """Remove the file. Never raises for a file that is not there."""
        with contextlib.suppress(OSError, LogStoreError):
            self._close()
        with contextlib.suppress(OSError):
            self._root.unlink(self.name, missing_ok=True)

    def _close(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            self._root.files.close(fd)
        except OSError as error:
            raise storage_error(
                error, "stage records in", self._root.path_of(self.name)
            ) from error


class _Log:
    """What is staged for one partition so far."""

    __slots__ = ("data", "encoder", "records", "runs")

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.records = 0
        self.data = bytearray()
        self.runs: list[tuple[int, int]] = []


def staged_name(identity: str, sequence: int) -> str:
    """A new name for a staged file of a publication."""
    return f"{staged_prefix(identity)}{sequence}-{os.getpid()}-{secrets.token_hex(8)}"


def staged_prefix(identity: str) -> str:
    """How the names of all staged files of an identity begin."""
    return f"{layout.STAGED_PREFIX}{xxhash.xxh3_64_hexdigest(identity.encode())}-"


def staged_sequence(name: str, identity: str) -> int | None:
    """The sequence that a staged file is for; None where it is another identity's."""
    rest = name.removeprefix(staged_prefix(identity))
    digits = rest.partition("-")[0]
    if rest == name or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def moved_runs(
    root: Directory, name: str, log: StagedLog, base: int, leader_epoch: int
) -> Iterator[tuple[Any, int]]:
    """The batches of a staged log with offsets from `base` on: (pointer, size) of one
    run after another, in memory that is used again for the next.

    Raises:
        CorruptRecordError: the file does not hold what was staged.
        StorageError: it cannot be read.
    """
    last_offset = -1
    try:
        with root.opened(name) as fd:
            length = root.files.size(fd)
            for pos, size in log.runs:
                if pos < 0 or size <= 0 or pos + size > length:
                    raise _not_staged(root, name, log, pos)
            buffer = native.Buffer(max((size for _, size in log.runs), default=1))
            for pos, size in log.runs:
                walk = native.shift_offsets(
                    buffer.c,
                    root.files.read(fd, buffer.view[:size], pos),
                    shift=base,
                    last_offset=last_offset,
                    leader_epoch=leader_epoch,
                )
                if walk.error is not None or walk.pos != size:
                    raise _not_staged(root, name, log, pos + walk.pos)
                last_offset = walk.last_offset
                yield buffer.c, size
    except OSError as error:
        lost = ""
        if isinstance(error, FileNotFoundError):
            lost = "It was published or removed, or staged where nobody else sees it."
        raise storage_error(error, "read", root.path_of(name), lost) from error
    if last_offset != log.records - 1:
        raise _not_staged(root, name, log, -1)


def check_staged_name(name: str) -> None:
    """Raise `ConfigError` for a name that no staged file has."""
    if not name.startswith(layout.STAGED_PREFIX) or "/" in name:
        raise ConfigError(
            f"{name!r} is not the name of a staged file", name="staged", value=name
        )


def _not_staged(
    root: Directory, name: str, log: StagedLog, position: int
) -> CorruptRecordError:
    path = root.path_of(name)
    return CorruptRecordError(
        f"what was staged for {log.topic}-{log.partition} is not whole; nothing was "
        f"published",
        path=path,
        position=max(position, 0),
        offset=0,
    )
