"""Stages records for a store: encoded by any process, not yet in a log.

A `Stage` writes files into the store's root directory, `.logstore-staged-*`: one with
whole batches for any number of partitions, and a separate one for each partition that
gets many records (it can become a segment without a copy: import_segment.py). A stage
needs no lock, and readers see none of its records. `Store.publish` appends the contents
of such files to the logs, all of them or none.

The offsets of a partition's batches begin at 0, because their final offsets are not
known yet. No checksum covers the offsets, so publishing changes them in place. The
timestamps come from the records, even if the topic wants the time of the append: the
publication replaces them with its time.

A `Staged` comes from another process: `logs_of` checks each of its fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from logstore import _native as native
from logstore._native.locks import RANK_LEAF, new_group
from logstore.config import TopicConfig
from logstore.errors import (
    ConfigError,
    LogStoreError,
    ReentrantCallError,
    UnsupportedError,
    storage_error,
)
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.log.write.staged_files import (
    Staged,
    StagedLog,
    check_identity,
    check_sequence,
    staged_name,
)
from logstore.record.encoder import Encoder, pack_rows
from logstore.record.extras import arrow_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _typeshed import ReadableBuffer

__all__ = ["Stage"]

# Smaller batches of a partition are held back, to be written together.
_DIRECT_BYTES: Final = 64 << 10
# Batches that are adjacent in a file are read again in one piece, up to this size.
_RUN_BYTES: Final = 1 << 20
# A partition with this many bytes gets a separate file; `_OWN_FILES_MAX` may have one.
OWN_FILE_BYTES: Final = 1 << 20
# Such a file will be synced, so write-back begins early: at each multiple of this.
_WRITE_BACK_BYTES: Final = 8 << 20
_OWN_FILES_MAX: Final = 64

_Result = TypeVar("_Result")


class Destination(Protocol):
    """The attributes of a partition that a stage needs. A `Partition` has them; a
    caller that stages for many partitions need not open their logs."""

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
        """Write at the end of the file; return the position."""
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
        """The bytes that were written at a position."""
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

    def __del__(self) -> None:
        # The stage was neither finished nor discarded; its file is a leftover.
        with contextlib.suppress(OSError, LogStoreError, AttributeError, TypeError):
            self.close()

    def _failed(self, error: OSError) -> LogStoreError:
        return storage_error(error, "stage records in", self.root.path_of(self.name))


class _Log:
    """The records that are being staged for one partition.

    Attributes:
        topic, partition, topic_id: which partition.
        config: of its topic.
        file: the file that batches are written to now.
        first: offset of the first record in it; earlier records are in `done`.
        magic: of its batches.
        records: how many there are in all; the offset of the next one.
        data: batches that are held back.
        runs: of `file`.
        bytes: how many bytes the runs have.
    """

    __slots__ = (
        "bytes",
        "config",
        "data",
        "done",
        "encoder",
        "file",
        "first",
        "magic",
        "partition",
        "records",
        "runs",
        "topic",
        "topic_id",
    )

    def __init__(
        self, destination: Destination, topic_id: str, file: _File, magic: int
    ) -> None:
        self.topic = destination.topic
        self.partition = destination.number
        self.topic_id = topic_id
        self.config = destination.config
        config = self.config
        if config.message_timestamp_type != "CreateTime":
            # The time of the append is not known before the publication, which stamps
            # all batches.
            config = dataclasses.replace(config, message_timestamp_type="CreateTime")
        self.encoder = Encoder(config)
        self.magic = magic
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
        """Move the batches written so far to another file, and continue there."""
        old, runs = self.file, self.runs
        self.file, self.runs, self.bytes = file, [], 0
        for pos, size in runs:
            self.write(old.read(pos, size))

    def into(self, file: _File, offset: int) -> None:
        """Continue in another file, with the batch of this offset."""
        self.end(offset)
        self.file, self.first, self.runs, self.bytes = file, offset, [], 0

    def end(self, offset: int) -> None:
        """Add to `done` the records in the file, up to this offset."""
        count = offset - self.first
        if count:
            log = StagedLog(
                self.topic, self.partition, self.magic, count, self.file.name,
                not self.file.is_shared, self.first, tuple(self.runs), self.topic_id,
            )  # fmt: skip
            self.done.append(log)


class Stage:
    """Writes staged files. For one thread; a context manager that removes the files if
    an error leaves it.

    A stage makes one `Staged`: once it is finished, discarded or left, it takes no
    more records, and `finish` keeps returning the same value. A call that could not
    complete (no space, an interrupt) also ends the stage: the content of its files is
    unknown.

    Args:
        root: the store's directory.
        identity, sequence: of the publication that it is for; the file names contain
            them, so that leftover files can be distinguished from files in use.
        topic_id_of: returns the id of a destination's topic.

    Raises:
        ConfigError: no identity, or no sequence number, that `Store.publish` takes.
    """

    def __init__(
        self,
        root: Directory,
        identity: str,
        sequence: int,
        topic_id_of: Callable[[Destination], str] | None = None,
    ) -> None:
        self._for = check_identity(identity), check_sequence(sequence)
        self._root = root
        self._topic_id_of = topic_id_of
        self._files: list[_File] = []
        self._shared = self._new_file(is_shared=True)
        self._logs: dict[TopicPartition, _Log] = {}
        self._staged: Staged | None = None
        self._is_entered = False
        # The reason why it takes no more records; "": it takes them.
        self._ended = ""
        # In a separate lock group: no thread waits for it.
        self._lock = native.Mutex(RANK_LEAF, "a stage", new_group())

    def _new_file(self, *, is_shared: bool) -> _File:
        file = _File(self._root, staged_name(*self._for), is_shared=is_shared)
        self._files.append(file)
        return file

    def __enter__(self) -> Stage:
        if self._is_entered or self._ended:
            raise self._refused("be entered", self._ended or "was entered before")
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.discard()
        self._end("was left")

    def _end(self, why: str) -> None:
        """Take no more records; the first reason is the one that errors report."""
        self._ended = self._ended or why

    def _refused(self, what: str, why: str) -> ConfigError:
        return ConfigError(
            f"a stage in {self._root.path} that {why} cannot {what}; nothing was "
            f"staged. Make a new one (Store.stage)",
            name="stage",
        )

    def _reentrant(self) -> ReentrantCallError:
        return ReentrantCallError(
            f"a stage in {self._root.path} was called from inside another call on it, "
            f"or by two threads; this one did nothing"
        )

    def _alone(self, work: Callable[[], _Result]) -> _Result:
        """Run one call at a time; a call that does not complete is the last.

        A finalizer, or the code that makes the rows, may call the stage again from
        inside a call, while the buffers are in use.
        """
        with self._lock.attempt() as is_mine:
            if not is_mine:
                raise self._reentrant()
            try:
                return work()
            except BaseException as error:
                self._end(f"failed ({type(error).__name__})")
                raise

    def append_many(
        self,
        partition: Destination,
        values: Sequence[ReadableBuffer | None],
        keys: Sequence[ReadableBuffer | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
    ) -> int:
        """Stage records for a partition, with the arguments of `Partition.append_many`.
        The current settings of the topic define the encoding.

        Returns the number of records.

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
        return self.add(partition, [rows])

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
        return self.add(partition, rows)

    def add(
        self, partition: Destination, batches: Iterable[native.EncodedColumns]
    ) -> int:
        """Stage rows for a partition; returns the number of records. Raises: as
        `append_many`."""
        if self._ended:
            raise self._refused("take records", self._ended)
        count, is_begun = 0, False
        try:
            # Outside of `_alone`: code of the caller makes the batches.
            for rows in batches:
                if self._ended:
                    raise self._refused("take records", self._ended)
                log = self._log_of(partition)
                log.encoder.measure(rows)
                self._alone(functools.partial(self._put, log, rows))
                is_begun = True
                count += rows.count
        except BaseException:
            if is_begun:
                self._end("failed half-way")
            raise
        return count

    def add_batches(
        self, partition: Destination, batches: bytes, magic: int, offsets: int
    ) -> None:
        """Stage whole batches for a partition that gets nothing else here.

        Args:
            batches: with offsets from 0 on; all of one format.
            magic: that format.
            offsets: how many they take.

        Raises:
            ConfigError, StorageError, UnsupportedError: as `append_many`.
        """
        if self._ended:
            raise self._refused("take records", self._ended)
        log = self._log_of(partition, magic)
        log.records = offsets
        self._alone(functools.partial(self._put_batches, log, batches))

    def _put_batches(self, log: _Log, batches: bytes) -> None:
        view, begin = memoryview(batches), 0
        pointer = native.pointer(batches)
        for header in native.Headers(pointer, len(batches), checks=0):
            if header.pos + header.size - begin > _DIRECT_BYTES and header.pos > begin:
                self._write(log, view[begin : header.pos])
                begin = header.pos
        self._write(log, view[begin:])

    def _log_of(self, partition: Destination, magic: int | None = None) -> _Log:
        """The log of a partition, whose batches have the format of its topic, or this
        one."""
        key = TopicPartition(partition.topic, partition.number)
        log = self._logs.get(key)
        if log is None:
            if magic is None:
                magic = partition.config.message_format
            if magic == 0:
                raise UnsupportedError(
                    f"{key} has message_format=0, but publishing needs 1 or 2"
                )
            topic_id = "" if self._topic_id_of is None else self._topic_id_of(partition)
            log = self._logs[key] = _Log(partition, topic_id, self._shared, magic)
        return log

    def _put(self, log: _Log, rows: native.EncodedColumns) -> None:
        now_ms = self._root.files.now_ms()
        for data, size in log.encoder.encode(rows, log.records, now_ms, 0):
            if size >= _DIRECT_BYTES and not log.data:
                self._write(log, native.buffer_of(data, size))
                continue
            log.data += native.buffer_of(data, size)
            if len(log.data) >= _DIRECT_BYTES:
                self._write_held(log)
        log.records += rows.count

    def _write_held(self, log: _Log) -> None:
        data, log.data = log.data, bytearray()
        self._write(log, memoryview(data))

    def _write(self, log: _Log, data: memoryview) -> None:
        """Write whole batches, into a separate file if there are many."""
        if log.magic == 2:
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
        """Write the batches that are held back, close the files, and return their
        contents. Later calls return the same value.

        The files are not synced: if the power fails, none of their records has been
        published.

        Raises:
            ConfigError: the stage was discarded, or a call on it has failed.
            StorageError: a file cannot be written; stage again.
        """
        if self._staged is not None:
            return self._staged
        if self._ended not in ("", "was left"):
            raise self._refused("be finished", self._ended)
        self._staged = self._alone(self._finished)
        self._ended = "was finished"
        return self._staged

    def _finished(self) -> Staged:
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
        """Remove the files. A file that does not exist is ignored; published records
        are not affected.

        Raises:
            ReentrantCallError: it is called from inside another call.
        """
        with self._lock.attempt() as is_mine:
            if not is_mine:
                raise self._reentrant()
            if self._staged is None:
                self._ended = "was discarded"
            for file in self._files:
                with contextlib.suppress(OSError, LogStoreError):
                    file.close()
                with contextlib.suppress(OSError):
                    self._root.unlink(file.name, missing_ok=True)
