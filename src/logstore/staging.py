"""Records on their way into a store: encoded by any process, in no log yet.

A `Stage` writes files into the store's root directory, `.logstore-staged-*`: one with
whole batches for any number of partitions, and one of its own for each partition that
gets many (it can become a segment as it is: adoption.py). It needs no lock, and nothing
of it can be read. `Store.publish` puts what such files hold into the logs, all of it or
nothing.

The offsets of a partition's batches begin at 0: where they will stand, nobody knows
yet. No checksum covers them, so that publishing moves them in place.
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
# A partition with so many bytes gets a file of its own; so many may have one.
OWN_FILE_BYTES: Final = 1 << 20
# Such a file will be synced, so its writing begins early: whenever so much has come.
_WRITE_BACK_BYTES: Final = 8 << 20
_OWN_FILES_MAX: Final = 64


class StagedLog(NamedTuple):
    """What a staged file has for one partition.

    Attributes:
        topic, partition: which.
        magic: of its batches.
        records: how many.
        file: name of the file in the store's root.
        is_alone: there is nothing else in the file.
        first: offset of the first record, as it stands there.
        runs: (position, bytes) of whole batches in the file, in order.
    """

    topic: str
    partition: int
    magic: int
    records: int
    file: str
    is_alone: bool
    first: int
    runs: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        """Bytes of its batches."""
        return sum(size for _, size in self.runs)


class Staged(NamedTuple):
    """What was staged, as a plain value that one process can send to another.

    Attributes:
        logs: what there is for each partition: its files, in the order of its records.
    """

    logs: tuple[StagedLog, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files in the store's root."""
        return tuple(dict.fromkeys(log.file for log in self.logs))

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


class _File:
    """A staged file that is being written."""

    __slots__ = ("_written_back", "fd", "is_shared", "name", "pos", "root")

    def __init__(self, root: Directory, name: str, *, is_shared: bool) -> None:
        self.root = root
        self.name = name
        self.is_shared = is_shared
        self.fd = -1
        self.pos = 0
        self._written_back = 0

    def write(self, data: memoryview) -> int:
        """Write behind what there is; returns where."""
        pos = self.pos
        try:
            if self.fd < 0:
                self.fd = self.root.create(self.name)
            self.root.files.write(self.fd, data, pos)
        except OSError as error:
            raise self._failed(error) from error
        self.pos += len(data)
        waiting = self.pos - self._written_back
        if waiting >= _WRITE_BACK_BYTES and not self.is_shared:
            self.root.files.write_back(self.fd, self._written_back, waiting)
            self._written_back = self.pos
        return pos

    def read(self, pos: int, size: int) -> memoryview:
        """What was written there."""
        data = bytearray(size)
        try:
            n = self.root.files.read(self.fd, data, pos)
        except OSError as error:
            raise self._failed(error) from error
        return memoryview(data)[:n]

    def close(self) -> None:
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        try:
            self.root.files.close(fd)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> LogStoreError:
        return storage_error(error, "stage records in", self.root.path_of(self.name))


class _Log:
    """What is being staged for one partition.

    Attributes:
        topic, partition: which, and
        config: of its topic.
        file: what the batches are written into now.
        first: offset of the first of them; those before are in `done`.
        records: of all; the offset of the next.
        data: batches that are held back.
        runs: of `file`, and
        bytes: how many these are.
    """

    __slots__ = (
        "bytes",
        "config",
        "data",
        "done",
        "encoder",
        "file",
        "first",
        "partition",
        "records",
        "runs",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, config: TopicConfig, file: _File
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.config = config
        self.encoder = Encoder(config)
        self.file = file
        self.first = 0
        self.records = 0
        self.data = bytearray()
        self.runs: list[tuple[int, int]] = []
        self.bytes = 0
        self.done: list[StagedLog] = []

    def write(self, data: memoryview) -> None:
        """Write whole batches."""
        size = len(data)
        pos = self.file.write(data)
        self.bytes += size
        begin, held = self.runs[-1] if self.runs else (0, _RUN_BYTES)
        if begin + held == pos and held + size <= _RUN_BYTES:
            self.runs[-1] = begin, held + size
        else:
            self.runs.append((pos, size))

    def move(self, file: _File) -> None:
        """Write what was written, and what follows, into another file."""
        old, runs = self.file, self.runs
        self.file, self.runs, self.bytes = file, [], 0
        for pos, size in runs:
            self.write(old.read(pos, size))

    def into(self, file: _File, offset: int) -> None:
        """Go on in another file, with the batch of this offset."""
        self.end(offset)
        self.file, self.first, self.runs, self.bytes = file, offset, [], 0

    def end(self, offset: int) -> None:
        """Note what is in the file, up to this offset."""
        count = offset - self.first
        if count:
            log = StagedLog(
                self.topic, self.partition, self.encoder.magic, count, self.file.name,
                not self.file.is_shared, self.first, tuple(self.runs),
            )  # fmt: skip
            self.done.append(log)


class Stage:
    """Writes staged files. For one thread; a context manager that removes them where it
    is left by an error.

    Args:
        root: the store's directory.
        identity, sequence: of the publication that it is for; they name the files, so
            that what is left over can be told from what is under way.
    """

    def __init__(self, root: Directory, identity: str, sequence: int) -> None:
        self._root = root
        self._for = identity, sequence
        self._files: list[_File] = []
        self._shared = self._new_file(is_shared=True)
        self._logs: dict[tuple[str, int], _Log] = {}

    def _new_file(self, *, is_shared: bool) -> _File:
        file = _File(self._root, staged_name(*self._for), is_shared=is_shared)
        self._files.append(file)
        return file

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
            log = self._logs[key] = _Log(*key, partition.config, self._shared)
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
        """Write whole batches, into a file of their own where they are many."""
        if log.encoder.magic == 2:
            if log.file.is_shared:
                is_much = log.bytes + len(data) >= OWN_FILE_BYTES
                if is_much and len(self._files) <= _OWN_FILES_MAX:
                    log.move(self._new_file(is_shared=False))
            elif log.file.pos + len(data) > log.config.segment_bytes:
                log.file.close()
                # A batch of magic 2 begins with its offset.
                offset = int.from_bytes(data[:8], "big")
                log.into(self._new_file(is_shared=False), offset)
        log.write(data)

    def finish(self) -> Staged:
        """Write what is held back, close the files, and say what is in them.

        They are not synced: should the power go, nothing of them has been published.
        """
        logs: list[StagedLog] = []
        for log in self._logs.values():
            if log.data:
                self._write_held(log)
            log.end(log.records)
            logs += log.done
        for file in self._files:
            file.close()
        if self._shared.pos and not any(log.file == self._shared.name for log in logs):
            with contextlib.suppress(OSError):
                self._root.unlink(self._shared.name, missing_ok=True)
        return Staged(tuple(logs))

    def discard(self) -> None:
        """Remove the files. Never raises for one that is not there."""
        for file in self._files:
            with contextlib.suppress(OSError, LogStoreError):
                file.close()
            with contextlib.suppress(OSError):
                self._root.unlink(file.name, missing_ok=True)


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
    root: Directory, log: StagedLog, base: int, leader_epoch: int
) -> Iterator[tuple[Any, int]]:
    """The batches of a staged log with offsets from `base` on: (pointer, size) of one
    run after another, in memory that is used again for the next.

    Raises:
        CorruptRecordError: the file does not hold what was staged.
        StorageError: it cannot be read.
    """
    last_offset = log.first - 1
    try:
        with root.opened(log.file) as fd:
            length = root.files.size(fd)
            for pos, size in log.runs:
                if pos < 0 or size <= 0 or pos + size > length:
                    raise not_staged(root, log, pos)
            buffer = native.Buffer(max((size for _, size in log.runs), default=1))
            for pos, size in log.runs:
                walk = native.shift_offsets(
                    buffer.c,
                    root.files.read(fd, buffer.view[:size], pos),
                    shift=base - log.first,
                    last_offset=last_offset,
                    leader_epoch=leader_epoch,
                )
                if walk.error is not None or walk.pos != size:
                    raise not_staged(root, log, pos + walk.pos)
                last_offset = walk.last_offset
                yield buffer.c, size
    except OSError as error:
        lost = ""
        if isinstance(error, FileNotFoundError):
            lost = "It was published or removed, or staged where nobody else sees it."
        raise storage_error(error, "read", root.path_of(log.file), lost) from error
    if last_offset != log.first + log.records - 1:
        raise not_staged(root, log, -1)


def check_staged_name(name: str) -> None:
    """Raise `ConfigError` for a name that no staged file has."""
    rest = name.removeprefix(layout.STAGED_PREFIX)
    if rest == name or not rest.isascii() or not rest.replace("-", "").isalnum():
        raise ConfigError(
            f"{name!r} is not the name of a staged file", name="staged", value=name
        )


def not_staged(root: Directory, log: StagedLog, position: int) -> CorruptRecordError:
    path = root.path_of(log.file)
    return CorruptRecordError(
        f"what was staged for {log.topic}-{log.partition} is not whole; nothing was "
        f"published",
        path=path,
        position=max(position, 0),
        offset=0,
    )
