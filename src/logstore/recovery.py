"""The words of recovery: its labelled cases, its report, and what it starts from.

`PartitionState` is what logstore noted of a partition, `Situation` all that is known
before its files are looked at, `Survey` the names in its directory. The decisions are
in `logstore.loading`; docs/design.md has the table with the same labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from logstore import _binding as native
from logstore import checkpoints
from logstore._files import Directory
from logstore.config import TopicConfig
from logstore.cuts import Cuts
from logstore.descriptors import Descriptors
from logstore.errors import (
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    LogStoreError,
    UnsupportedError,
)
from logstore.index import (
    STALE_DIGEST,
    TXN_ENTRY_BYTES,
    UNKNOWN_DIGEST,
    OffsetEntries,
    TimeEntries,
    add_closing_entry,
    parse_txn_index,
)
from logstore.layout import (
    CLEANED,
    CLOSED,
    DELETED,
    INDEX,
    LOG,
    OFFSET_MAX,
    PARTITION_STATE,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from logstore.segment import Segment
from logstore.tail import scan_log

__all__ = [
    "PartitionState",
    "RecoveryAction",
    "RecoveryReport",
    "Situation",
    "Survey",
]


# So many lost segments of a partition are told one by one; the rest together.
LOST_TOLD: Final = 10

# The labels: what was found, or done, at opening.
TORN_TAIL: Final = "torn-tail"
INDEX_REBUILT: Final = "index-rebuilt"
SWAP_FINISHED: Final = "swap-finished"
LEFTOVERS_REMOVED: Final = "leftovers-removed"
OTHER_WRITER: Final = "other-writer"
STATE_DAMAGED: Final = "state-damaged"
LOST_END: Final = "lost-end"
LOST_SEGMENT: Final = "lost-segment"
CORRUPT: Final = "corrupt"
UNSUPPORTED: Final = "unsupported"
UNREADABLE: Final = "unreadable"
TAIL_KEPT: Final = "tail-kept"
UNPUBLISHED: Final = "unpublished"


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryAction:
    """One thing that opening found or mended.

    Attributes:
        label: which case of the table in docs/design.md.
        topic, partition: where; partition -1 for the whole store.
        path: absolute path of the file.
        position: byte where it begins; -1 where that means nothing.
        bytes: how many bytes were cut, kept or are missing.
        first_offset: first offset concerned; -1 unknown.
        kept_at: where the bytes that were cut are kept, or None.
        message: the same as a sentence.
    """

    label: str
    topic: str
    partition: int
    path: str
    position: int
    bytes: int
    first_offset: int
    kept_at: str | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening had to mend; false when nothing."""

    actions: tuple[RecoveryAction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.actions)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values: ``{"actions": [...]}``, a dict for each action."""
        return {"actions": [dataclasses.asdict(action) for action in self.actions]}


# See `PartitionState.sealed`.
SealedRow = tuple[int, int, int, int, int, int]


@dataclasses.dataclass(slots=True)
class PartitionState:
    """What logstore knew of a partition when it last wrote its state file.

    Attributes:
        start_offset: first offset that may be read.
        sealed: (base offset, size, next offset, largest timestamp, its offset, digest
            of the time index) of each segment but the active one, in order.
        active: the active segment at the durable point: the fields of
            ``ls_segment_state``; ``size`` is the durable position.
        time_digest: of the entries of the active segment's time index that belong to
            the durable part.
        cuts: when its tail was cut, by `truncate_to` or where an append failed, and
            how low, so that readers in other processes notice.
        is_gapless: see `Segment.is_gapless`; of all segments.
        generation: that of the store when it was written (see `logstore.marks`).
        is_truncating: `truncate_to` is under way: what lies behind the durable point,
            later segments, too, is to go.
        log_id: of the log; another log in the same directory has another one. Empty
            where an earlier version wrote the state.
    """

    start_offset: int
    sealed: list[SealedRow]
    active: dict[str, int]
    time_digest: int
    cuts: Cuts
    is_gapless: bool
    generation: str
    is_truncating: bool = False
    log_id: str = ""

    @property
    def durable_offset(self) -> int:
        return self.active["last_offset"] + 1

    def to_dict(self) -> dict[str, Any]:
        # Not `asdict`: that copies each number, and there may be many segments.
        return {**self._without_rows(), "sealed": self.sealed}

    def to_json(self, rows: str) -> str:
        """The state file's text, with the rows of sealed segments as `sealed_row` makes
        them, behind each other with commas between."""
        text = checkpoints.state_text({**self._without_rows(), "sealed": None})
        return text.replace('"sealed":null', f'"sealed":[{rows}]', 1)

    def _without_rows(self) -> dict[str, Any]:
        return {
            "start_offset": self.start_offset,
            "active": self.active,
            "time_digest": self.time_digest,
            "truncations": self.cuts.serial,
            "cuts": self.cuts.rows,
            "is_gapless": self.is_gapless,
            "generation": self.generation,
            "is_truncating": self.is_truncating,
            "log_id": self.log_id,
        }

    @classmethod
    def read(cls, directory: Directory) -> PartitionState | None:
        """The state file of a partition; None if there is none.

        Raises:
            CorruptCheckpointError: it cannot be one.
        """
        value = checkpoints.read_state(directory, PARTITION_STATE)
        if value is None:
            return None
        try:
            return cls(
                _int64("start_offset", value["start_offset"], 0),
                _sealed(value["sealed"]),
                _active(value["active"]),
                _int64("time_digest", value["time_digest"], UNKNOWN_DIGEST),
                _cuts(value["truncations"], value.get("cuts", [])),
                checkpoints.boolean("is_gapless", value["is_gapless"]),
                str(value["generation"]),
                checkpoints.boolean("is_truncating", value["is_truncating"]),
                _text("log_id", value.get("log_id", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            path = directory.path_of(PARTITION_STATE)
            raise CorruptCheckpointError(
                f"{path} is no partition state: {error!r}", path=path
            ) from error


def closed_mark(generation: str, state: PartitionState | None) -> dict[str, Any]:
    """What `.logstore-closed` says of a partition in which damage was seen after the
    store had been closed: until the partition is written to again, its end is that of
    a log that was closed, however the store is stopped from then on."""
    active = {"base_offset": -1, "size": -1} if state is None else state.active
    return {
        "generation": generation,
        "base_offset": active["base_offset"],
        "size": active["size"],
    }


def was_closed(
    directory: Directory, generation: str, state: PartitionState | None
) -> bool:
    """Whether `.logstore-closed` says so, and counts. One that cannot be read counts:
    what it was written for must not be cut."""
    try:
        value = checkpoints.read_state(directory, CLOSED)
    except (CorruptCheckpointError, UnsupportedError):
        return True
    wanted = closed_mark(generation, state)
    return value is not None and all(value[name] == wanted[name] for name in wanted)


# In a state file: the largest timestamp of a sealed segment that nobody has looked for.
UNKNOWN_TIMESTAMP: Final = -2


def sealed_row(segment: Segment, next_offset: int) -> str:
    """The row of a sealed segment in a state file (`PartitionState.sealed`). The
    segment keeps it."""
    largest = segment.max_timestamp
    if largest is None:
        largest = UNKNOWN_TIMESTAMP
    segment.row = (
        f"[{segment.base_offset},{segment.size},{next_offset},{largest},"
        f"{segment.max_timestamp_offset},{segment.time_digest}]"
    )
    return segment.row


STATE_FIELDS: Final = (
    "base_offset",
    "size",
    "last_offset",
    "bytes_since",
    "max_timestamp",
    "max_timestamp_offset",
    "first_timestamp",
    "created_ms",
    "index_entries",
    "time_entries",
    "time_last",
)


_INT64_MIN: Final = -(1 << 63)


def _int64(what: str, value: object, low: int) -> int:
    return checkpoints.integer(what, value, low, OFFSET_MAX)


def _sealed(rows: list[Any]) -> list[SealedRow]:
    """The rows of sealed segments. Invariant: bases rise, base <= next offset."""
    found = []
    above = 0
    for row in rows:
        base, size, next_offset, largest, at, digest = row
        above = _int64("base offset", base, above) + 1
        _int64("size", size, 0)
        _int64("next offset", next_offset, base)
        _int64("largest timestamp", largest, _INT64_MIN)
        _int64("its offset", at, -1)
        _int64("digest", digest, STALE_DIGEST)
        found.append((base, size, next_offset, largest, at, digest))
    return found


def _cuts(serial: object, rows: Iterable[Any]) -> Cuts:
    """The cuts of a log. Invariant: as of `Cuts`."""
    found = [(_int64("serial of a cut", at, 1), offset) for at, offset in rows]
    for _, offset in found:
        _int64("offset of a cut", offset, 0)
    return Cuts.known(_int64("truncations", serial, 0), found)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is no text")
    return value


def _active(fields: Mapping[str, Any]) -> dict[str, int]:
    """The fields of the active segment. Invariant: base - 1 <= last offset."""
    # Timestamps are whatever somebody put into a record.
    active = {name: _int64(name, fields[name], _INT64_MIN) for name in STATE_FIELDS}
    for name in ("base_offset", "size", "bytes_since", "index_entries", "time_entries"):
        _int64(name, active[name], 0)
    last, base = active["last_offset"], active["base_offset"]
    # One below the end of the offset space: the end offset is an offset, too.
    checkpoints.integer("last_offset", last, base - 1, OFFSET_MAX - 1)
    return active


def state_fields(state: native.SegmentState) -> dict[str, int]:
    return {name: int(getattr(state.raw, name)) for name in STATE_FIELDS}


def segment_state(fields: Mapping[str, int]) -> native.SegmentState:
    state = native.SegmentState(fields["base_offset"])
    for name in STATE_FIELDS:
        setattr(state.raw, name, fields[name])
    return state


@dataclasses.dataclass(slots=True)
class Situation:
    """What is known about a partition before its files are looked at.

    Attributes:
        state: logstore's own, where it counts; None where there is none or another
            program has been the writer since.
        clean: the last writer stopped cleanly, or had done so when damage was seen.
        recovery_point: Kafka's: everything below is flushed; 0 unknown.
        log_start: Kafka's log start offset; 0 unknown.
        is_own: logstore was the last writer of the store.
        generation: that of the store.
        state_error: why the own state cannot be used although it should count.
    """

    state: PartitionState | None
    clean: bool
    recovery_point: int
    log_start: int
    is_own: bool
    state_error: LogStoreError | None = None
    generation: str = ""


@dataclasses.dataclass(slots=True)
class Survey:
    """The names in a partition directory, sorted out.

    Attributes:
        logs: base offset -> transition ("" or ".swap") of the segments that count.
        superseded: files that a finished swap would delete.
        swaps: `.swap` files that count.
        leftovers: `.cleaned` files, and `.swap` files of an unfinished group.
        deleted: `.deleted` files.
        names: all names.
    """

    logs: dict[int, str]
    superseded: list[str]
    swaps: list[str]
    leftovers: list[str]
    deleted: list[str]
    names: frozenset[str]


def survey(directory: Directory, descriptors: Descriptors) -> Survey:
    """Sort out what is in a partition directory, as a broker does when it loads it.

    Any `.swap` at or above the smallest `.cleaned` belongs to an unfinished group and
    is left over; the others replace the segments from their base to their last offset
    (docs/format.md, "Transition suffixes").
    """
    names = directory.names()
    parsed = [(name, p) for name in names if (p := parse_segment_file(name))]
    cleaned = [p.base_offset for _, p in parsed if p.transition == CLEANED]
    unfinished = min(cleaned, default=None)
    swaps: list[str] = []
    leftovers = [name for name, p in parsed if p.transition == CLEANED]
    swap_logs: list[int] = []
    for name, p in parsed:
        if p.transition != SWAP:
            continue
        if unfinished is not None and p.base_offset >= unfinished:
            leftovers.append(name)
            continue
        swaps.append(name)
        if p.suffix == LOG:
            swap_logs.append(p.base_offset)
    low = high = -1
    for base in swap_logs:
        segment = _whole_segment(directory, descriptors, base, SWAP)
        low = base if low < 0 else min(low, base)
        high = max(high, segment.next_offset, base + 1)
    logs: dict[int, str] = {}
    superseded: list[str] = []
    for name, p in parsed:
        if p.transition:
            continue
        if low <= p.base_offset < high:
            superseded.append(name)
        elif p.suffix == LOG:
            logs[p.base_offset] = ""
    for base in swap_logs:
        logs[base] = SWAP
    return Survey(
        logs=dict(sorted(logs.items())),
        superseded=superseded,
        swaps=swaps,
        leftovers=leftovers,
        deleted=[name for name, p in parsed if p.transition == DELETED],
        names=frozenset(names),
    )


def _whole_segment(
    directory: Directory, descriptors: Descriptors, base: int, transition: str
) -> Segment:
    """A segment whose end is found by reading it (up to damage, if there is any)."""
    name = segment_file(base, LOG) + transition
    with directory.opened(name) as fd:
        size = directory.files.size(fd)
        state = native.SegmentState(base)
        scan_log(directory, fd, size, state)
    return Segment(
        directory,
        descriptors,
        base,
        state.size,
        state.last_offset + 1,
        max_timestamp=state.max_timestamp,
        max_timestamp_offset=state.max_timestamp_offset,
        transition=transition,
    )


def index_segment(
    directory: Directory, base_offset: int, config: TopicConfig, created_ms: int = 0
) -> tuple[native.SegmentState, OffsetEntries, TimeEntries]:
    """Walk over the log of a whole segment: the state of whoever would append to it,
    and the index entries that it should have.

    Raises:
        CorruptRecordError: the log is damaged.
        UnsupportedError: a later version wrote it.
        OSError: as the system gives it.
    """
    name = segment_file(base_offset, LOG)
    state = native.SegmentState(base_offset, created_ms)
    index, times = OffsetEntries(), TimeEntries()
    with directory.opened(name) as fd:
        scan = scan_log(
            directory,
            fd,
            directory.files.size(fd),
            state,
            index=index,
            times=times,
            interval=config.index_interval_bytes,
        )
    if scan.error is not None and scan.error.is_unsupported:
        raise UnsupportedError(
            f"{directory.path_of(name)} at byte {scan.pos} (offset "
            f"{scan.last_offset + 1}): {scan.reason}",
            path=directory.path_of(name),
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
    if not scan.is_whole:
        raise CorruptRecordError(
            scan.reason,
            path=directory.path_of(name),
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
    return state, index, times


def rebuild(
    directory: Directory, base_offset: int, config: TopicConfig
) -> tuple[int, int]:
    """Build both indexes of a sealed segment from its log.

    1. walk the log; 2. write each index under a temporary name and sync it; 3. rename
    it; 4. sync the directory; 5. note the digest of the time index where the state file
    has the segment. The offset index comes last: opening builds both where it is
    missing, so a crash between the two leaves none out. Returns the numbers of entries.

    Raises:
        CorruptRecordError, UnsupportedError: the log is damaged, or of a later version;
            the indexes stay as they were.
        OSError: as the system gives it.
    """
    state, index, times = index_segment(directory, base_offset, config)
    add_closing_entry(state, times)
    directory.write_file(segment_file(base_offset, TIME_INDEX), times.data())
    directory.write_file(segment_file(base_offset, INDEX), index.data())
    _note_time_digest(directory, base_offset, times.digest())
    return index.count, times.count


def _note_time_digest(directory: Directory, base_offset: int, digest: int) -> None:
    """Write into the state file that a sealed segment has another time index."""
    try:
        state = PartitionState.read(directory)
    except (CorruptCheckpointError, UnsupportedError):
        return
    if state is None:
        return
    changed = [
        (*row[:5], digest) if row[0] == base_offset else row for row in state.sealed
    ]
    if changed != state.sealed:
        state.sealed = changed
        checkpoints.write_state(directory, PARTITION_STATE, state.to_dict())


def cut_transactions(directory: Directory, base_offset: int, offset: int) -> None:
    """Drop the aborted transactions of a segment that end at or after `offset`."""
    name = segment_file(base_offset, TXN_INDEX)
    try:
        data = directory.read_file(name)
        entries = parse_txn_index(data, directory.path_of(name))
    except FileNotFoundError:
        return
    except CorruptIndexError:
        directory.unlink(name, missing_ok=True)
        return
    kept = sum(entry.last_offset < offset for entry in entries)
    if kept < len(entries):
        directory.write_file(name, data[: kept * TXN_ENTRY_BYTES])


def remove_snapshots(directory: Directory, *, above: int) -> None:
    """Remove producer snapshots that speak of offsets which are no more."""
    for name in directory.names():
        parsed = parse_segment_file(name)
        if (
            parsed is not None
            and parsed.suffix == SNAPSHOT
            and not parsed.transition
            and parsed.base_offset > above
        ):
            directory.unlink(name, missing_ok=True)
