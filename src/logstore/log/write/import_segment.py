"""A staged file that becomes a segment: its bytes are not written again.

`examine_all` checks such files, builds their index entries and syncs them, with no lock
held. Once the offsets of its batches are known, `settle` writes them into the headers
of the file; `ExclusiveLog.import_segment` then gives the file its name.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import struct
from collections.abc import Iterable, Mapping
from typing import Final

from logstore import _native as native
from logstore.config import StoreConfig, TopicConfig, worker_threads
from logstore.errors import storage_errors
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.directory import Directory
from logstore.io.parallel import side_by_side
from logstore.log.scan import take_batches
from logstore.log.write.segment_writer import roll_limits
from logstore.log.write.staged_files import StagedLog, moved_runs, not_staged
from logstore.record.encoder import LOG_APPEND_TIME_BIT
from logstore.record.file_walk import FRAME, LENGTH_END

__all__ = ["SegmentImport", "examine_all", "is_worth_it", "settle"]

# A file smaller than this, or than this share of a full segment, is copied: a new
# segment costs some syncs, and small ones cost every reader.
ADOPT_BYTES_MIN: Final = 8 << 20
ADOPT_SHARE: Final = 16
# The header of each batch is written again; if batches are smaller, all is copied.
BATCH_BYTES_MIN: Final = 8 << 10
# Base offset, length and leader epoch of a batch of magic 2.
_HEADER: Final = struct.Struct(">qii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_ATTRIBUTES_POS: Final = 22
_ADOPTABLE_MAGIC: Final = 2
_UNKNOWN_MODE: Final = 0


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentImport:
    """A staged file that passed all checks.

    Attributes:
        log: the staged log.
        state, index, times: of a segment that consists of it and begins at
            ``log.first``.
        batches: base offset and position of each batch, one after another.
        config: of the topic, against which it was checked.
        append_time_ms: the timestamp of all batches in `state` and `times`; None: each
            batch has its own.
    """

    log: StagedLog
    state: native.SegmentState
    index: OffsetEntries
    times: TimeEntries
    batches: array.array[int]
    config: TopicConfig
    append_time_ms: int | None = None

    def stamped(self, append_time_ms: int) -> SegmentImport:
        """The same with another time of the append, if its batches get one."""
        if self.append_time_ms is None:
            return self
        state = self.state.copy()
        raw = state.raw
        raw.max_timestamp = raw.first_timestamp = append_time_ms
        if raw.time_last >= 0:
            raw.time_last = append_time_ms
        entries = (_TIME_ENTRY.pack(append_time_ms, offset) for _, offset in self.times)
        return dataclasses.replace(
            self,
            state=state,
            times=TimeEntries(b"".join(entries)),
            append_time_ms=append_time_ms,
        )

    def state_at(self, base: int, now_ms: int) -> native.SegmentState:
        """The state of the segment when its first offset is `base`."""
        state, shift = self.state.copy(), base - self.log.first
        raw = state.raw
        raw.base_offset += shift
        raw.last_offset += shift
        raw.created_ms = now_ms
        if raw.max_timestamp_offset >= 0:
            raw.max_timestamp_offset += shift
        return state


def is_worth_it(log: StagedLog, config: TopicConfig) -> bool:
    """Whether a staged log should become a segment, going by its size."""
    least = max(ADOPT_BYTES_MIN, config.segment_bytes // ADOPT_SHARE)
    return log.is_alone and least <= log.bytes <= config.segment_bytes


def examine_all(
    root: Directory, logs: Mapping[StagedLog, TopicConfig], config: StoreConfig
) -> dict[StagedLog, SegmentImport]:
    """Examine staged logs, several at a time; the result leaves out logs that should be
    copied.

    Raises: as `moved_runs`.
    """

    def examine(item: tuple[StagedLog, TopicConfig]) -> SegmentImport | None:
        return _examine(root, *item)

    threads = min(worker_threads(config), len(logs))
    if threads < 2:
        return _by_log(map(examine, logs.items()))
    results = side_by_side(logs.items(), examine, threads)
    with contextlib.closing(results):
        return _by_log(done.result for done in results if done is not None)


def _by_log(examined: Iterable[SegmentImport | None]) -> dict[StagedLog, SegmentImport]:
    return {
        segment_import.log: segment_import
        for segment_import in examined
        if segment_import is not None
    }


def _examine(
    root: Directory, log: StagedLog, config: TopicConfig
) -> SegmentImport | None:
    """Check a staged log with all its checksums, and sync it."""
    state = native.SegmentState(log.first)
    index, times = OffsetEntries(), TimeEntries()
    planner = native.Planner(config.index_interval_bytes, roll_limits(config))
    now_ms = root.files.now_ms()
    # `SegmentImport.stamped` sets the time of the publication; any time that all
    # batches have in common gives the same entries.
    is_stamped = config.message_timestamp_type == "LogAppendTime"
    batches = array.array("q")
    end = 0
    for data, size in moved_runs(root, log, log.first, 0, config, now_ms):
        planned, _ = take_batches(planner, state, data, size, index, times, now_ms)
        if planned < size:
            return None  # an append would begin another segment here
        view = native.buffer_of(data, size)
        position = 0
        while position < size:
            offset, length, magic = FRAME.unpack_from(view, position)
            has_append_time = view[position + _ATTRIBUTES_POS] & LOG_APPEND_TIME_BIT
            if magic != _ADOPTABLE_MAGIC or (has_append_time and not is_stamped):
                return None
            batches.extend((offset, end + position))
            position += LENGTH_END + length
        end += size
    if len(batches) // 2 * BATCH_BYTES_MIN > end:
        return None
    with (
        storage_errors("sync", root.path_of(log.file)),
        root.opened(log.file, write=True) as fd,
    ):
        # The runs follow one another and fill the file: it is a log, not parts of
        # one.
        if root.files.size(fd) != end or not _is_in_one_piece(log):
            raise not_staged(root, log, end)
        _give(root, fd)
        _sync(root, fd, log)
    return SegmentImport(
        log, state, index, times, batches, config, now_ms if is_stamped else None
    )


def _give(root: Directory, fd: int) -> None:
    """Give a staged file the owner and mode of the store's files: the process that
    staged it may have opened the store with other settings."""
    info, access = root.files.stat(fd), root.access
    if info.mode in (_UNKNOWN_MODE, access.file_mode) and access.uid in (-1, info.uid):
        return
    root.files.set_access(fd, access)


def _sync(root: Directory, fd: int, log: StagedLog) -> None:
    """Sync a staged file. If the sync fails, remove the file: its pages count as clean
    now, and the next sync would succeed without writing them."""
    try:
        root.files.sync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            root.unlink(log.file, missing_ok=True)
        raise


def _is_in_one_piece(log: StagedLog) -> bool:
    end = 0
    for pos, size in log.runs:
        if pos != end:
            return False
        end += size
    return True


def settle(
    root: Directory, fd: int, staged: SegmentImport, base: int, leader_epoch: int
) -> None:
    """Give the batches of a staged file their offsets, from `base` on, their leader
    epoch and, if the topic wants it, the time of the append; sync the file. Earlier
    values are overwritten."""
    shift = base - staged.log.first
    batches, size = staged.batches, staged.state.size
    for index in range(0, len(batches), 2):
        offset, pos = batches[index], batches[index + 1]
        end = batches[index + 3] if index + 3 < len(batches) else size
        length = end - pos - LENGTH_END
        header = _HEADER.pack(offset + shift, length, leader_epoch)
        if staged.append_time_ms is not None:
            header = _stamped(root, fd, staged, pos, end, header)
        root.files.write(fd, header, pos)
    _sync(root, fd, staged.log)


def _stamped(
    root: Directory, fd: int, staged: SegmentImport, pos: int, end: int, begin: bytes
) -> bytes:
    """The header of the batch from `pos` to `end` with the time of the append.

    The checksum covers the time, so all of the batch is read again.
    """
    assert staged.append_time_ms is not None
    data = bytearray(end - pos)
    c = native.pointer(data)
    n = root.files.read(fd, data, pos)
    scan = native.first_header(c, n, checks=native.CHECK_CRC)
    if not scan.headers or scan.pos != end - pos:
        raise not_staged(root, staged.log, pos)
    native.restamp(c, scan.headers[0], staged.append_time_ms)
    return begin + bytes(data[len(begin) : native.BATCH_HEADER_BYTES])
