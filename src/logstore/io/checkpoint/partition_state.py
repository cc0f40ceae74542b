"""The state file of a partition, and the facts about a partition that are known before
its log files are read.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.errors import CorruptCheckpointError, LogStoreError
from logstore.index import STALE_DIGEST, UNKNOWN_DIGEST
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.durable_page import read_page
from logstore.io.checkpoint.entries import FileEnd
from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.checkpoint.state_fields import boolean, integer, integers
from logstore.io.checkpoint.verdicts import NO_VERDICTS, Verdicts
from logstore.io.directory import Directory
from logstore.io.layout import LOG, OFFSET_MAX, PARTITION_STATE, segment_file
from logstore.io.stamps import FileStamp

__all__ = ["PartitionMetadata", "PartitionState", "StateGrowth"]

# Of an entry: see `PartitionState.change_to_json`.
_CHANGE_FIELDS: Final = frozenset({"version", "active", "time_digest", "sealed"})

# See `PartitionState.sealed`.
SealedRow = tuple[int, int, int, int, int, int]


@dataclasses.dataclass(slots=True)
class PartitionState:
    """The state of a partition when logstore last wrote its state file.

    Attributes:
        start_offset: first offset that may be read.
        sealed: (base offset, size, next offset, largest timestamp, its offset, digest
            of the time index) of each segment except the active one, in order.
        active: the active segment at the durable point: the fields of
            ``ls_segment_state``; ``size`` is the durable position.
        time_digest: digest of the entries of the active segment's time index that
            belong to the durable part.
        cuts: when the tail was cut, by `truncate_to` or after a failed append, and how
            low, so that readers in other processes notice.
        is_contiguous: see `Segment.is_contiguous`; for all segments.
        store_epoch: that of the store when the state was written (see
            `logstore.io.checkpoint.ownership`).
        is_truncating: `truncate_to` is under way: the log after the durable point must
            be removed, including later segments.
        log_id: identifies the log; another log in the same directory has another one.
            Empty if an earlier version wrote the state.
        foreign_end: every batch that another program wrote lies below it; 0: logstore
            wrote all of them; `OFFSET_MAX`: unknown. Transactions lie below it, too:
            logstore writes none.
        compactions: how often sealed segments were replaced by compacted ones.
        swapping: base offsets of compacted segments that are not part of the log: until
            another state is written, files with these names and `.swap` are leftovers.
        tail: the last batch of the active segment when the file was last written
            whole; None: unknown, or the segment was empty.
        is_damaged: `.logstore-damaged` is there, too. An earlier release does not know
            that file, and refuses the version that this gives the state.
        file_end: where the file ended that it was read from.
    """

    start_offset: int
    sealed: list[SealedRow]
    active: dict[str, int]
    time_digest: int
    cuts: Cuts
    is_contiguous: bool
    store_epoch: str
    is_truncating: bool = False
    log_id: str = ""
    foreign_end: int = OFFSET_MAX
    compactions: int = 0
    swapping: tuple[int, ...] = ()
    tail: LogTail | None = None
    is_damaged: bool = False
    file_end: FileEnd | None = dataclasses.field(default=None, compare=False)

    @property
    def durable_offset(self) -> int:
        return self.active["last_offset"] + 1

    @property
    def logs(self) -> set[str]:
        """The names of the `.log` files of its segments."""
        bases = [*(row[0] for row in self.sealed), self.active["base_offset"]]
        return {segment_file(base, LOG) for base in bases}

    def to_dict(self) -> dict[str, Any]:
        # Not `asdict`: that copies each number, and there may be many segments.
        return {**self._without_rows(), "sealed": self.sealed}

    def to_json(self, rows: str) -> str:
        """The state file's text. `rows` are the rows of sealed segments, made by
        the log writer and joined by commas."""
        return _with_rows(self._without_rows(), rows)

    def change_to_json(self, rows: str) -> str:
        """The text of an entry that is appended to the state file: a later durable
        point, and the rows of the segments that were sealed since."""
        change = {"active": self.active, "time_digest": self.time_digest}
        return _with_rows(change, rows)

    def _without_rows(self) -> dict[str, Any]:
        compaction: dict[str, Any] = {}
        if self.compactions:
            compaction["compactions"] = self.compactions
        if self.swapping:
            compaction["swapping"] = list(self.swapping)
        if self.tail is not None:
            compaction["tail"] = list(self.tail)
        if self.cuts.returns:
            compaction["returns"] = list(self.cuts.returns)
        if self.cuts.is_merged:
            compaction["is_merged"] = True
        if self.is_damaged:
            compaction["version"] = checkpoints.DAMAGED_VERSION
        return {
            **compaction,
            "start_offset": self.start_offset,
            "active": self.active,
            "time_digest": self.time_digest,
            "truncations": self.cuts.serial,
            "cuts": self.cuts.rows,
            "is_gapless": self.is_contiguous,
            "generation": self.store_epoch,
            "is_truncating": self.is_truncating,
            "log_id": self.log_id,
            "foreign_end": self.foreign_end,
        }

    @classmethod
    def read(cls, directory: Directory) -> PartitionState | None:
        """The state file of a partition; None if it does not exist.

        Raises:
            CorruptCheckpointError: it is not a valid state file.
        """
        stored_state = checkpoints.read_growing(directory, PARTITION_STATE)
        if stored_state is None:
            return None
        value, file_end = stored_state
        is_damaged = value["version"] == checkpoints.DAMAGED_VERSION
        if is_damaged and "active" not in value:
            return None  # it only has the version
        try:
            # A file of an earlier version does not name it.
            unknown = 0 if value["is_gapless"] else OFFSET_MAX
            return cls(
                _int64("start_offset", value["start_offset"], 0),
                _sealed(value["sealed"]),
                _active(value["active"]),
                _int64("time_digest", value["time_digest"], UNKNOWN_DIGEST),
                _cuts(
                    value["truncations"],
                    value.get("cuts", []),
                    value.get("returns", []),
                    value.get("is_merged", False),
                ),
                boolean("is_gapless", value["is_gapless"]),
                str(value["generation"]),
                boolean("is_truncating", value["is_truncating"]),
                _text("log_id", value.get("log_id", "")),
                _int64("foreign_end", value.get("foreign_end", unknown), 0),
                _int64("compactions", value.get("compactions", 0), 0),
                tuple(_int64("swapping", b, 0) for b in value.get("swapping", [])),
                _tail(value.get("tail")),
                is_damaged,
                file_end,
            )
        except (KeyError, TypeError, ValueError) as error:
            path = directory.path_of(PARTITION_STATE)
            raise CorruptCheckpointError(
                f"{path} is not a partition state: {error!r}", path=path
            ) from error


class StateGrowth(NamedTuple):
    """Content of the entries that were appended to a state file since it was read: the
    durable point has moved, and segments were sealed. Nothing else in it has changed.

    Attributes:
        file_end: where the file ends now.
        sealed: the rows of these segments, in order.
        active: the active segment at the durable point.
    """

    file_end: FileEnd
    sealed: list[SealedRow]
    active: dict[str, int]

    @property
    def durable_offset(self) -> int:
        return self.active["last_offset"] + 1

    @classmethod
    def read(cls, directory: Directory, end: FileEnd, size: int) -> StateGrowth | None:
        """Read what was appended to a file that ended at `end` and has `size` bytes.
        None if more may have changed, or an entry is not valid: then the file must be
        read whole.

        Raises:
            OSError: as the system gives it.
        """
        try:
            appended_entries = checkpoints.read_changes(
                directory, PARTITION_STATE, end, size
            )
            if appended_entries is None:
                return None
            changes, file_end = appended_entries
            if not changes or any(c.keys() != _CHANGE_FIELDS for c in changes):
                return None
            rows = [row for change in changes for row in change["sealed"]]
            return cls(file_end, _sealed(rows), _active(changes[-1]["active"]))
        except (LogStoreError, KeyError, TypeError, ValueError):
            return None


def _with_rows(value: Mapping[str, Any], rows: str) -> str:
    text = checkpoints.state_text({**value, "sealed": None})
    return text.replace('"sealed":null', f'"sealed":[{rows}]', 1)


# In a state file: the largest timestamp of a sealed segment is not known yet.
UNKNOWN_TIMESTAMP: Final = -2

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
_COUNTS: Final = {"base_offset", "size", "bytes_since", "index_entries", "time_entries"}
# A record may have any timestamp.
_ACTIVE_LOWS: Final = {n: 0 if n in _COUNTS else _INT64_MIN for n in STATE_FIELDS}
_INTEGERS: Final = {int}


def _int64(what: str, value: object, low: int) -> int:
    return integer(what, value, low, OFFSET_MAX)


def _sealed(rows: list[Any]) -> list[SealedRow]:
    """The rows of sealed segments. Invariant: bases rise, base <= next offset."""
    sealed = []
    above = 0
    for row in rows:
        base, size, next_offset, largest, largest_offset, digest = row
        # All in one expression: a reader takes this for each segment after a roll.
        is_valid = (
            {*map(type, row)} == _INTEGERS
            and above <= base <= next_offset <= OFFSET_MAX
            and 0 <= size <= OFFSET_MAX
            and _INT64_MIN <= largest <= OFFSET_MAX
            and -1 <= largest_offset <= OFFSET_MAX
            and STALE_DIGEST <= digest <= OFFSET_MAX
        )
        if not is_valid:
            _check_row(row, above)
        above = base + 1
        sealed.append((base, size, next_offset, largest, largest_offset, digest))
    return sealed


def _check_row(row: list[Any], above: int) -> None:
    """Raise the error of a row whose base offset must be `above` or more."""
    base, size, next_offset, largest, largest_offset, digest = row
    _int64("base offset", base, above)
    _int64("size", size, 0)
    _int64("next offset", next_offset, base)
    _int64("largest timestamp", largest, _INT64_MIN)
    _int64("its offset", largest_offset, -1)
    _int64("digest", digest, STALE_DIGEST)


def _cuts(
    serial: object, rows: Iterable[Any], returns: Iterable[Any], is_merged: object
) -> Cuts:
    """The cuts of a log. Invariant: that of `Cuts`."""
    kept = [_int64("serial of a return", return_serial, 1) for return_serial in returns]
    cuts = [
        (_int64("serial of a cut", cut_serial, 1), offset)
        for cut_serial, offset in rows
    ]
    for _, offset in cuts:
        _int64("offset of a cut", offset, 0)
    return Cuts.from_rows(
        _int64("truncations", serial, 0),
        cuts,
        kept,
        is_merged=boolean("is_merged", is_merged),
    )


def _tail(row: Any) -> LogTail | None:
    if row is None:
        return None
    last_offset, position, crc = row
    return LogTail(
        _int64("last offset of the tail", last_offset, 0),
        _int64("position of the tail", position, 0),
        _int64("checksum of the tail", crc, 0),
    )


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")
    return value


def _active(fields: Mapping[str, Any]) -> dict[str, int]:
    """The fields of the active segment. Invariant: base - 1 <= last offset."""
    active = integers(fields, _ACTIVE_LOWS)
    last, base = active["last_offset"], active["base_offset"]
    # One below the end of the offset space, because the end offset must also fit.
    integer("last_offset", last, base - 1, OFFSET_MAX - 1)
    return active


def state_fields(state: native.SegmentState) -> dict[str, int]:
    return {name: int(getattr(state.raw, name)) for name in STATE_FIELDS}


def segment_state(fields: Mapping[str, int]) -> native.SegmentState:
    state = native.SegmentState(fields["base_offset"])
    for name in STATE_FIELDS:
        setattr(state.raw, name, fields[name])
    return state


@dataclasses.dataclass(slots=True)
class PartitionMetadata:
    """The facts about a partition before its files are examined.

    Attributes:
        state: logstore's own state, if it counts; None if it does not exist or another
            program has been the writer since.
        clean: the last writer stopped cleanly, or had done so when damage was found.
        recovery_point: Kafka's: all records below it are flushed; 0 unknown.
        log_start: Kafka's log start offset; 0 unknown.
        is_own: logstore was the last writer of the store.
        store_epoch: that of the store.
        state_error: why the own state cannot be used although it should count.
        is_point_known: whether Kafka's recovery points name the partition.
        stale: logstore's own state, if it does not count; None if it does, or there is
            none.
        is_same_boot: the machine has not been started since logstore began to write:
            the kernel had all that was appended, though not the disk.
        closed_at: what the recovery point says of a store that was closed; -1: it was
            not closed, or has no recovery point.
        verdicts: the recorded verdicts on its damage.
        announced: the durable offset in `.logstore-durable`, which is newer than that
            of the state, or the end that the journal of publications has; -1: none that
            counts.
    """

    state: PartitionState | None
    clean: bool
    recovery_point: int
    log_start: int
    is_own: bool
    state_error: LogStoreError | None = None
    store_epoch: str = ""
    is_point_known: bool = True
    stale: PartitionState | None = None
    is_same_boot: bool = False
    closed_at: int = -1
    verdicts: Verdicts = NO_VERDICTS
    announced: int = -1

    @property
    def least_end(self) -> int:
        """The log ended here, or beyond, when it was last written to; -1 unknown."""
        return max(self.closed_at, self.announced)

    @property
    def closed_end(self) -> int | None:
        """The end of the log when it was closed; None: unknown."""
        if not self.clean:
            return None
        if self.state is not None:
            return self.state.durable_offset
        return self.recovery_point or None

    def row(self, base: int) -> SealedRow | None:
        """The row of the state for a sealed segment."""
        sealed = () if self.state is None else self.state.sealed
        slot = bisect.bisect_left(sealed, base, key=lambda row: row[0])
        is_known = slot < len(sealed) and sealed[slot][0] == base
        return sealed[slot] if is_known else None

    @property
    def is_written(self) -> bool:
        """Whether logstore was the last to write to this log."""
        return self.state is not None or self.state_error is not None

    @classmethod
    def of(
        cls,
        directory: Directory,
        state: PartitionState | None,
        state_error: LogStoreError | None,
        *,
        is_own: bool,
        is_clean: bool,
        is_same_boot: bool,
        owner_stamp: FileStamp | None,
        store_epoch: str,
        point: int | None,
        log_start: int,
        stale: PartitionState | None = None,
        published: int = -1,
    ) -> PartitionMetadata:
        """Collect the facts about a partition, with the verdicts in its directory.

        Args:
            state: if it counts.
            is_clean: the last writer of the store stopped cleanly.
            owner_stamp: of the owner file; None if another program wrote last.
            point: Kafka's recovery point; None: not recorded.
            published: the end of the log that counts in the journal of publications;
                -1: none.

        Raises:
            OSError: as the system gives it.
        """
        verdicts = Verdicts.read(directory)
        active = None if state is None else state.active
        closed_at = -1
        is_truncating = state is not None and state.is_truncating
        if is_own and is_clean and point is not None and not is_truncating:
            closed_at = point
        if is_own and not is_clean:
            verdicts = verdicts.with_earlier(directory)
            is_clean = verdicts.says_closed(store_epoch, active)
        elif state is not None and closed_at not in (-1, state.durable_offset):
            # The mark is of another end than the state.
            is_clean = False
        announced = -1
        if state is not None and not is_clean and not is_truncating:
            with contextlib.suppress(OSError):
                announced = read_page(
                    directory, owner_stamp, state.log_id, state.cuts.serial
                )
        if not is_truncating:
            announced = max(announced, published)
        return cls(
            state,
            is_clean,
            point or 0,
            log_start,
            is_own,
            state_error,
            store_epoch,
            point is not None,
            stale,
            is_same_boot,
            closed_at,
            verdicts,
            announced,
        )

    @property
    def swapping(self) -> tuple[int, ...] | None:
        """The own state's `swapping`; None without an own state."""
        return None if self.state is None else self.state.swapping
