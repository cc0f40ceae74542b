"""The contents of one file of a store, unchanged, for tools that show them."""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.config import StoreConfig
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    StoreNotFoundError,
    UnsupportedError,
    storage_error,
)
from logstore.index import (
    INDEX_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntries,
    TimeEntries,
    parse_txn_index,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.producer_snapshot import parse_snapshot
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import open_root
from logstore.io.layout import INDEX, LOG, SNAPSHOT, TXN_INDEX, parse_segment_file
from logstore.log.resync import next_valid
from logstore.maintenance.verify.frames import FRAME, LogFrames, looks_torn
from logstore.maintenance.verify.indexes import used_bytes
from logstore.maintenance.verify.paths import CHECKPOINT, STATE, kind_of_file
from logstore.record.batch import RecordBatch
from logstore.record.decoder import Damage, memoryview_slicer, open_payload
from logstore.record.file_walk import FRAME_BYTES
from logstore.segment import OffsetPosition, Segment

PathLike = str | os.PathLike[str]

_MESSAGE: Final = struct.Struct(">qiI")  # offset, length, checksum of a message


class OffsetEntry(NamedTuple):
    """An entry of an `.index` file."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a `.timeindex` file."""

    timestamp_ms: int
    offset: int


class CheckpointEntry(NamedTuple):
    """A line of an offset checkpoint."""

    topic: str
    partition: int
    offset: int


class EpochEntry(NamedTuple):
    """A line of a `leader-epoch-checkpoint`."""

    epoch: int
    start_offset: int


class LogEntry(NamedTuple):
    """A batch of a `.log` file, or bytes of it that are not a batch.

    Attributes:
        position, size_bytes: its place in the file.
        batch: None if the bytes are not a batch.
        damage: the fault; None without one. A batch with a wrong checksum has
            both: then its fields are not reliable.
        is_torn: a crash, or a writer at work, leaves such bytes at the end of a file: a
            part of a batch, or zeros.
    """

    position: int
    size_bytes: int
    batch: RecordBatch | None
    damage: str | None
    is_torn: bool = False

    def checksums(self) -> list[int]:
        """The stored checksums of the messages in it, for magic 0 and 1; else none.

        Raises:
            CorruptRecordError: its payload cannot be decompressed.
        """
        batch = self.batch
        if batch is None or batch.magic == 2:
            return []
        if batch.compression == "none":
            return [batch.crc]
        try:
            payload = memoryview(
                open_payload(
                    batch.header,
                    memoryview_slicer(batch.buffer),
                    batch._limit,
                )
            )
        except Damage as damage:
            raise CorruptRecordError(
                damage.reason,
                path="",
                position=self.position,
                offset=max(batch.base_offset, 0),
            ) from damage
        crcs, pos = [], 0
        while pos + _MESSAGE.size <= len(payload):
            _, length, crc = _MESSAGE.unpack_from(payload, pos)
            crcs.append(crc)
            pos += max(length, 0) + FRAME.size
        return crcs


@dataclasses.dataclass(frozen=True, slots=True)
class FileContents:
    """One file of a store in its present state, without recovery and without bounds.

    Attributes:
        path: absolute.
        kind: ``log``, ``index``, ``timeindex``, ``txnindex``, ``snapshot``,
            ``offsets``, ``epochs``, ``metadata`` or ``state``.
        base_offset: from its name; 0 if the name has no number.
        size_bytes: at the time of the call.
        entries: its contents, in order, to be iterated over once: `LogEntry`,
            `OffsetEntry`, `TimeEntry`, `TxnEntry`, `ProducerEntry`, `CheckpointEntry`,
            `EpochEntry`, or (name, value) pairs. A log is read while it is iterated
            (`by_size`: `LogFrames`).
    """

    path: str
    kind: str
    base_offset: int
    size_bytes: int
    entries: Iterator[Any]


def inspect_file(
    path: PathLike,
    *,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
    by_size: bool = False,
) -> FileContents:
    """Read one file of a store: a log, index, snapshot, checkpoint or state file.

    Damage in a log is a `LogEntry`, and the next intact batch follows. The entries of
    an index are returned unchecked, right or wrong; zeros at its end are left out.

    Args:
        store_config: its ``max_batch_decompressed_bytes`` limits the size that a batch
            of a log may decompress to.
        by_size: the file is a log, whatever its name, and its entries are
            `LogFrames`: they follow the sizes that the batches state, also where their
            checksums are wrong, as Kafka's own tools do.

    Raises:
        StoreNotFoundError: it does not exist, or is not a file of a store.
        CorruptIndexError, CorruptCheckpointError: it is damaged (not of a log).
        StorageError: it cannot be read.
    """
    files = _files or Files()
    full = os.path.abspath(os.fspath(path))
    name = os.path.basename(full)
    kind = LOG if by_size else kind_of_file(name)
    if not kind:
        raise StoreNotFoundError(f"{full} is not a file of a store", path=full)
    directory = open_root(files, os.path.dirname(full))
    parsed = parse_segment_file(name)
    base = parsed.base_offset if parsed else 0
    try:
        with directory.opened(name) as fd:
            size = files.size(fd)
        if kind == LOG:
            limit = (store_config or StoreConfig()).max_batch_decompressed_bytes
            if by_size:
                segment = Segment.of_file(
                    directory, Descriptors(files, 1), name, base, size
                )
                frames = LogFrames(segment, limit)
                return FileContents(full, "log", base, size, frames)
            entries = _log_entries(directory, name, base, size, limit)
            return FileContents(full, "log", base, size, entries)
        entries = _file_entries(directory, name, kind, base)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"no such file or directory: {full}", path=full
        ) from error
    except OSError as error:
        raise storage_error(error, "read", full) from error
    directory.close()
    kind = _KIND_NAMES.get(name, kind.removeprefix("."))
    return FileContents(
        full, "offsets" if kind == CHECKPOINT else kind, base, size, entries
    )


_KIND_NAMES: Final = {
    layout.LEADER_EPOCHS: "epochs",
    layout.PARTITION_METADATA: "metadata",
}


def _file_entries(
    directory: Directory, name: str, kind: str, base: int
) -> Iterator[Any]:
    path = directory.path_of(name)
    if kind == STATE:
        return iter((checkpoints.read_state(directory, name) or {}).items())
    if name == layout.LEADER_EPOCHS:
        return (EpochEntry(*entry) for entry in checkpoints.read_epochs(directory))
    if kind == CHECKPOINT and name != layout.PARTITION_METADATA:
        offsets = checkpoints.read_offsets(directory, name)
        return (CheckpointEntry(t, p, offset) for (t, p), offset in offsets.items())
    data = directory.read_file(name)
    if name == layout.PARTITION_METADATA:
        lines = data.decode("utf-8", "replace").splitlines()
        pairs = (line.partition(":") for line in lines if line.strip())
        return ((key.strip(), value.strip()) for key, _, value in pairs)
    if kind == SNAPSHOT:
        return iter(parse_snapshot(data, path))
    if kind == TXN_INDEX:
        return iter(parse_txn_index(data, path))
    width = INDEX_ENTRY_BYTES if kind == INDEX else TIME_ENTRY_BYTES
    data = data[: used_bytes(data, width)]
    if kind == INDEX:
        return (OffsetEntry(base + o, pos) for o, pos in OffsetEntries(data))
    return (TimeEntry(t, base + o) for t, o in TimeEntries(data))


def _log_entries(
    directory: Directory, name: str, base: int, size: int, limit: int
) -> Iterator[LogEntry]:
    """The batches of a log file; closes `directory` at the end."""
    segment = Segment.of_file(
        directory, Descriptors(directory.files, 16), name, base, size
    )
    pos, last = 0, -1
    try:
        while pos < size:
            try:
                for header, buffer, position in segment.headers(
                    OffsetPosition(pos, native.OFFSET_UNKNOWN)
                ):
                    data = buffer.raw[header.pos : header.pos + header.size]
                    pos, last = position + header.size, header.last_offset
                    yield _log_entry(segment, header, data, position, limit, None)
                return
            except (CorruptRecordError, UnsupportedError) as error:
                reason = (
                    error.reason
                    if isinstance(error, CorruptRecordError)
                    else str(error)
                )
                next_batch = next_valid(segment, pos, last)
                end = segment.size if next_batch is None else next_batch.pos
                yield _bad_entry(segment, pos, end, limit, reason)
                pos = end
    finally:
        directory.close()


def _log_entry(
    segment: Segment,
    header: native.BatchHeader,
    data: bytes,
    pos: int,
    limit: int,
    damage: str | None,
) -> LogEntry:
    batch: RecordBatch | None = None

    def named(inside: Damage) -> Exception:
        fault = Damage(
            inside.reason,
            0,
            unsupported=inside.unsupported,
            too_large=inside.too_large,
        )
        return segment.error_of(fault, pos, max(header.base_offset, 0))

    try:
        batch = RecordBatch(header._replace(pos=0), data, pos, limit, named)
    except CorruptRecordError as inside:
        damage = damage or inside.reason
    except (RecordTooLargeError, UnsupportedError) as inside:
        damage = damage or str(inside)
    return LogEntry(pos, header.size, batch, damage)


# A damaged batch up to this size is shown as one, a larger one as bytes.
_BAD_BATCH_BYTES_MAX: Final = 64 << 20


def _bad_entry(
    segment: Segment, pos: int, end: int, limit: int, reason: str
) -> LogEntry:
    """The entry for a damaged part: a batch with a wrong checksum, or bytes."""
    frame = native.Buffer(FRAME_BYTES)
    n = segment.read(frame.view, pos)
    size = FRAME.size + FRAME.unpack_from(frame.raw)[1]
    if n < FRAME.size or size != end - pos or size > _BAD_BATCH_BYTES_MAX:
        is_torn = end == segment.size and looks_torn(frame.raw[:n], end - pos)
        return LogEntry(pos, end - pos, None, reason, is_torn)
    buffer = native.Buffer(end - pos)
    n = segment.read(buffer.view, pos)
    scan = native.first_header(buffer.c, n, checks=0)
    if scan.headers and scan.headers[0].size == n:
        return _log_entry(segment, scan.headers[0], buffer.raw[:n], pos, limit, reason)
    return LogEntry(pos, n, None, reason)
