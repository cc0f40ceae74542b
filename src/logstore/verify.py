"""Checking a store without opening it, building indexes anew, looking into one file.

`verify` works on a directory that refuses to open: it looks at files, not at a `Store`,
changes nothing, takes no lock and follows no symbolic link. It goes on behind what is
damaged and lists everything, the log first and then what is derived from it. What
opening would do to a file (`recovery`) decides whether a fault is a problem or a note.

`rebuild_index` does write, under the writer's lock: for that alone it imports the list
of locks that this process holds from `store` beside it.

All of it is one file because it has one subject, what bytes on disk ought to be, and
because its parts hold the log against its companions in one pass.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import errno
import os
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from logstore import _binding as native
from logstore import checkpoints, layout, store
from logstore._files import Directory, Files
from logstore.config import StoreConfig, TopicConfig
from logstore.descriptors import Descriptors
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptionError,
    CorruptRecordError,
    LogStoreError,
    StoreLockedError,
    StoreNotFoundError,
    UnsupportedError,
    storage_error,
)
from logstore.index import (
    INDEX_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntries,
    TimeEntries,
    closing_time_entry,
    parse_txn_index,
)
from logstore.layout import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    SegmentFile,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from logstore.producers import parse_snapshot
from logstore.reader import next_sound_batch
from logstore.records import (
    ABORT,
    Columns,
    Damage,
    RecordBatch,
    memoryview_slicer,
    open_payload,
    read_headers,
)
from logstore.recovery import PartitionState, Survey, rebuild, survey
from logstore.segment import Segment, scan_log

__all__ = [
    "CheckpointEntry",
    "EpochEntry",
    "FileContents",
    "LogEntry",
    "Note",
    "OffsetEntry",
    "Problem",
    "TimeEntry",
    "VerifyReport",
    "inspect_file",
    "rebuild_index",
    "verify",
]

PathLike: TypeAlias = "str | os.PathLike[str]"
Progress: TypeAlias = Callable[[int, int], None]

# What is wrong: the kinds of a `Problem`.
DAMAGED_BATCH: Final = "damaged-batch"
PARTIAL_BATCH: Final = "partial-batch"
ZEROS: Final = "zeros"
OFFSETS: Final = "offsets"
LOST_BYTES: Final = "lost-bytes"
EXTRA_BYTES: Final = "extra-bytes"
LOST_SEGMENT: Final = "lost-segment"
NOT_REGULAR: Final = "not-a-regular-file"
UNREADABLE: Final = "unreadable"
OFFSET_INDEX: Final = "offset-index"
TIME_INDEX_FAULT: Final = "time-index"
TXN_INDEX_FAULT: Final = "transaction-index"
PRODUCER_SNAPSHOT: Final = "producer-snapshot"
CHECKPOINT: Final = "checkpoint"
STATE: Final = "state"
UNSUPPORTED: Final = "unsupported"
# What is worth saying: the kinds of a `Note` (those above occur, too, where opening
# would mend it).
TORN_TAIL: Final = "torn-tail"
ZERO_TAIL: Final = "zero-tail"
LEFTOVER: Final = "leftover"
MISSING_INDEX: Final = "missing-index"
ORPHAN: Final = "orphan"
UNCLEAN_STOP: Final = "unclean-stop"
IN_USE: Final = "in-use"
OTHER_WRITER: Final = "other-writer"
FOREIGN: Final = "foreign"

_BUFFER_BYTES: Final = 1 << 20
_RELATIVE_MAX: Final = (1 << 31) - 1
_FRAME: Final = struct.Struct(">qi")
_ATTEMPTS: Final = 3
_OFFSET_CHECKPOINTS: Final = (
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
_PARTITION_METADATA: Final = "partition.metadata"
_METADATA_TEXT: Final = re.compile(
    r"version:\s*[0-9]+\s*\n\s*topic_id:\s*[A-Za-z0-9_-]{22}\s*"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong.

    Attributes:
        kind: what, in a word: ``damaged-batch``, ``partial-batch``, ``zeros``,
            ``offsets``, ``lost-bytes``, ``extra-bytes``, ``lost-segment``,
            ``not-a-regular-file``, ``unreadable``, ``offset-index``, ``time-index``,
            ``transaction-index``, ``producer-snapshot``, ``checkpoint``, ``state``,
            ``unsupported``.
        path: absolute path of the file.
        position: byte where it begins; None where that means nothing.
        first_offset, last_offset: the offsets that cannot be read for it, inclusive;
            None where there are none or nobody can tell.
        message: the same as a sentence.
    """

    kind: str
    path: str
    position: int | None
    first_offset: int | None
    last_offset: int | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """Something that is worth knowing and no problem; fields as in `Problem`.

    `kind` is ``torn-tail``, ``zero-tail``, ``leftover``, ``missing-index``, ``orphan``,
    ``unclean-stop``, ``in-use``, ``other-writer``, ``foreign``, or that of a `Problem`
    which the next opening for writing mends.
    """

    kind: str
    path: str
    position: int | None
    first_offset: int | None
    last_offset: int | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        problems: all that is wrong.
        notes: what is not wrong and still worth knowing.
        segments: `.log` files looked at.
        batches: sound batches in them.
        records: records in those, control records left out. Without `deep`, what a
            wrapper of magic 0 or 1 holds is taken from its offsets.
        bytes: size of those files together.
        deep: whether compressed batches were looked into.
    """

    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    deep: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


def verify(
    path_or_paths: PathLike | Iterable[PathLike],
    deep: bool = False,
    on_progress: Progress | None = None,
    *,
    files: Files | None = None,
) -> VerifyReport:
    """Check stores, partition directories or single files, and list all problems.

    Changes nothing, takes no lock, follows no symbolic link below a path that is given,
    and may run while a writer or a broker works on the store.

    Shallow (the default), at the speed of the disk: of every batch the checksum, the
    lengths, the order of offsets, and the structure of records that are not compressed;
    segments do not overlap; every entry of an offset index points where a batch begins
    and does not lead past its offset; time indexes rise and say what the log says;
    transaction indexes, producer snapshots, checkpoints and logstore's own state are
    sound; no byte and no segment is missing that the state knows of. With `deep`, also
    what is inside compressed batches (with the checksums of inner messages), the names
    and values of record headers, control records, and that the transaction index names
    markers which are in the log.

    Args:
        path_or_paths: a store, a partition directory, or a file (`.log`, `.index`,
            `.timeindex`, `.txnindex`, `.snapshot`, a checkpoint), or several of them.
        deep: decompress and decode everything.
        on_progress: called with (bytes done, bytes in all) of `.log` files.
        files: the system calls to use (for tests).

    Raises:
        StoreNotFoundError: a path is not there, or is nothing that can be checked.
        StorageError: a path cannot be read. What cannot be read below it is a problem.
    """
    if isinstance(path_or_paths, str | os.PathLike):
        path_or_paths = [path_or_paths]
    run = _Run(files or Files(), deep, on_progress)
    checks = [_target(run, os.path.abspath(os.fspath(p))) for p in path_or_paths]
    try:
        run.total = sum(check.size() for check in checks)
        for check in checks:
            check.run()
    finally:
        for check in checks:
            check.close()
    return run.report()


# ------------------------------------------------------------------ what was found


class _Run:
    """The findings of one call, and what all its parts share."""

    def __init__(self, files: Files, deep: bool, on_progress: Progress | None) -> None:
        self.files = files
        self.deep = deep
        self.on_progress = on_progress
        self.descriptors = Descriptors(files, 16)
        self.decoder = native.Decoder()
        self.limit = StoreConfig().max_batch_decompressed_bytes
        self.problems: list[Problem] = []
        self.notes: list[Note] = []
        self.segments = self.batches = self.records = self.bytes = 0
        self.done = self.total = 0

    def problem(
        self,
        kind: str,
        path: str,
        message: str,
        *,
        position: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        self.problems.append(Problem(kind, path, position, first, last, message))

    def note(
        self,
        kind: str,
        path: str,
        message: str,
        *,
        position: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        self.notes.append(Note(kind, path, position, first, last, message))

    def advance(self, size: int) -> None:
        self.done += size
        if self.on_progress is not None:
            self.on_progress(min(self.done, self.total), self.total)

    def unreadable(self, path: str, error: OSError) -> None:
        """What the system does not let us read, or what is no regular file."""
        if error.errno in (errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            self.problem(NOT_REGULAR, path, f"{path} is not a regular file")
            return
        self.problem(UNREADABLE, path, str(storage_error(error, "read", path)))

    def report(self) -> VerifyReport:
        return VerifyReport(
            tuple(dict.fromkeys(self.problems)),
            tuple(dict.fromkeys(self.notes)),
            self.segments,
            self.batches,
            self.records,
            self.bytes,
            self.deep,
        )


@dataclasses.dataclass(slots=True)
class _Context:
    """What is known of a partition from outside its log.

    Attributes:
        state: logstore's own, where it counts.
        clean: the last writer stopped cleanly.
        recovery_point: Kafka's; 0 unknown.
        log_start: Kafka's log start offset; 0 unknown.
    """

    state: PartitionState | None = None
    clean: bool = False
    recovery_point: int = 0
    log_start: int = 0


class _StoreFacts:
    """What the files of a store's directory say. With `run`, faults are reported."""

    def __init__(self, root: Directory, run: _Run | None = None) -> None:
        self.root = root
        self.run = run
        self.names = root.names()
        self.own, self.clean = self._owner()
        self.points = self._offsets(layout.RECOVERY_CHECKPOINT)
        self.starts = self._offsets(layout.LOG_START_CHECKPOINT)

    def _owner(self) -> tuple[bool, bool]:
        clean = layout.CLEAN_SHUTDOWN in self.names
        owner = _own_state(self.root, layout.OWNER, self.run)
        if owner is None:
            return False, clean
        try:
            now = checkpoints.store_fingerprint(self.root)
            if now in owner["fingerprints"]:
                return True, bool(owner["clean"])
        except (KeyError, TypeError) as error:
            self._bad_state(layout.OWNER, repr(error))
            return False, clean
        if self.run is not None:
            self.run.note(
                OTHER_WRITER,
                self.root.path_of(layout.OWNER),
                "another program has written to the store since logstore did; what "
                "logstore noted of its partitions does not count",
            )
        return False, clean

    def _bad_state(self, name: str, reason: str) -> None:
        if self.run is not None:
            path = self.root.path_of(name)
            self.run.problem(STATE, path, f"{path} cannot be used: {reason}")

    def _offsets(self, name: str) -> dict[tuple[str, int], int]:
        try:
            return checkpoints.read_offsets(self.root, name)
        except (CorruptCheckpointError, OSError):
            return {}

    def context(self, directory: Directory, run: _Run | None) -> _Context:
        """What is known of the partition in `directory`."""
        key = parse_partition_directory(directory.name)
        state: PartitionState | None = None
        value = _own_state(directory, layout.PARTITION_STATE, run)
        if value is not None:
            try:
                state = PartitionState.from_dict(value)
            except (KeyError, TypeError, ValueError) as error:
                if run is not None:
                    path = directory.path_of(layout.PARTITION_STATE)
                    run.problem(STATE, path, f"{path} is no state: {error!r}")
        if key is None:
            return _Context()
        return _Context(
            state if self.own else None,
            self.clean,
            self.points.get(key, 0),
            self.starts.get(key, 0),
        )


def _own_state(
    directory: Directory, name: str, run: _Run | None
) -> dict[str, Any] | None:
    """A state file of logstore's; None where it is missing or (reported) bad."""
    path = directory.path_of(name)
    try:
        return checkpoints.read_state(directory, name)
    except CorruptCheckpointError as error:
        if run is not None:
            run.problem(STATE, path, str(error))
    except ValueError as error:
        if run is not None:
            run.problem(STATE, path, f"{path} cannot be used: {error}")
    except OSError as error:
        if run is not None:
            run.unreadable(path, error)
    return None


# ------------------------------------------------------------------ what is to be checked


class _Check:
    """One path that was given."""

    def __init__(self, run: _Run, root: Directory) -> None:
        self.run_of = run
        self.root = root

    def size(self) -> int:
        """Bytes of `.log` files, as far as they can be seen."""
        raise NotImplementedError

    def run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.root.close()


def _open_root(files: Files, path: str) -> Directory:
    try:
        return Directory.open_root(files, path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {path}", path=path) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error


def _is_directory(files: Files, path: str) -> bool:
    try:
        files.close(files.open_root(path))
    except NotADirectoryError:
        return False
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {path}", path=path) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error
    return True


def _target(run: _Run, path: str) -> _Check:
    """What kind of thing a path is."""
    if not _is_directory(run.files, path):
        parent = _open_root(run.files, os.path.dirname(path))
        return _FileCheck(run, parent, os.path.basename(path))
    root = _open_root(run.files, path)
    names = root.names()
    if _is_partition(root, names):
        return _PartitionCheck(run, root, _context_of(run.files, root, run))
    if not _is_store(names):
        root.close()
        raise StoreNotFoundError(
            f"{path} is neither a store nor a partition directory", path=path
        )
    return _StoreCheck(run, root)


def _is_partition(root: Directory, names: list[str]) -> bool:
    own = (layout.PARTITION_STATE, layout.LEADER_EPOCHS, _PARTITION_METADATA)
    if any(parse_segment_file(name) or name in own for name in names):
        return True
    return parse_partition_directory(root.name) is not None and not _is_store(names)


def _is_store(names: list[str]) -> bool:
    marks = (
        layout.LOCK,
        layout.CLEAN_SHUTDOWN,
        layout.META_PROPERTIES,
        layout.OWNER,
        layout.TOPICS,
        *_OFFSET_CHECKPOINTS,
    )
    return any(name in marks or parse_partition_directory(name) for name in names)


def _context_of(files: Files, directory: Directory, run: _Run | None) -> _Context:
    """The context of a partition directory that was given by itself."""
    try:
        root = Directory.open_root(files, os.path.dirname(directory.path))
    except OSError:
        return _Context()
    try:
        return _StoreFacts(root).context(directory, run)
    except OSError:
        return _Context()
    finally:
        root.close()


class _StoreCheck(_Check):
    """A whole store."""

    def __init__(self, run: _Run, root: Directory) -> None:
        super().__init__(run, root)
        self.partitions = [
            root.child(name)
            for name in root.names()
            if parse_partition_directory(name) and self._is_directory(name)
        ]

    def _is_directory(self, name: str) -> bool:
        try:
            return self.root.stat(name).is_directory
        except OSError:
            return False

    def size(self) -> int:
        return sum(_log_bytes(directory) for directory in self.partitions)

    def run(self) -> None:
        run, root = self.run_of, self.root
        facts = _StoreFacts(root, run)
        self._check_names(facts.names)
        for name in _OFFSET_CHECKPOINTS:
            if name in facts.names:
                _check_checkpoint(run, root, name)
        _own_state(root, layout.TOPICS, run)
        if self.partitions and not facts.clean:
            run.note(
                UNCLEAN_STOP,
                root.path,
                "the store is in use, or its last writer died: opening it for writing "
                "mends what is torn",
            )
        for directory in self.partitions:
            try:
                context = facts.context(directory, run)
                _PartitionCheck(run, directory, context).run()
            except OSError as error:
                run.unreadable(directory.path, error)

    def _check_names(self, names: list[str]) -> None:
        run, root = self.run_of, self.root
        for name in names:
            path = root.path_of(name)
            try:
                info = root.stat(name)
            except OSError:
                continue
            special = not info.is_file and not info.is_directory
            known = name in layout.NOT_PARTITIONS or parse_partition_directory(name)
            if special and (known or name in (*_OFFSET_CHECKPOINTS, layout.LOCK)):
                what = "a directory" if known else "a regular file"
                run.problem(NOT_REGULAR, path, f"{path} is not {what}")
            if not info.is_directory or known:
                continue
            moved = layout.transition_topic(name)
            if moved is not None:
                run.note(LEFTOVER, path, f"{path}: a partition put aside ({moved[2]})")
            else:
                run.note(
                    FOREIGN,
                    path,
                    f"{path} is no partition; a Kafka broker refuses to start on it",
                )


def _log_bytes(directory: Directory) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for name in directory.names():
            if name.endswith((LOG, LOG + SWAP)):
                with contextlib.suppress(OSError):
                    total += directory.stat(name).size
    return total


def _check_checkpoint(run: _Run, directory: Directory, name: str) -> None:
    """A text file of Kafka's; faults are reported."""
    path = directory.path_of(name)
    try:
        if name == layout.LEADER_EPOCHS:
            epochs = checkpoints.read_epochs(directory)
            if epochs != sorted(epochs) or any(min(entry) < 0 for entry in epochs):
                run.problem(CHECKPOINT, path, f"checkpoint {path} is out of order")
        elif name == _PARTITION_METADATA:
            text = directory.read_file(name).decode("utf-8", "replace")
            if not _METADATA_TEXT.fullmatch(text):
                run.problem(CHECKPOINT, path, f"{path} has no version and topic id")
        else:
            checkpoints.read_offsets(directory, name)
    except CorruptCheckpointError as error:
        run.problem(CHECKPOINT, path, str(error))
    except OSError as error:
        run.unreadable(path, error)


class _PartitionCheck(_Check):
    """One partition directory."""

    def __init__(self, run: _Run, directory: Directory, context: _Context) -> None:
        super().__init__(run, directory)
        self.directory = directory
        self.context = context
        self.aborted: set[tuple[int, int]] = set()

    def size(self) -> int:
        return _log_bytes(self.directory)

    def run(self) -> None:
        names = self._regular(self.directory.names())
        found = self._survey(names)
        bases = sorted(found.logs)
        self._check_missing(found)
        last_before = -1
        for base in bases:
            log = self._segment(base, found, is_last=base == bases[-1])
            log.last_before = last_before
            log.run()
            last_before = max(log.last_offset, last_before)
        if bases:
            self._check_end(log)
        self._check_others(names, found)

    def _regular(self, names: list[str]) -> list[str]:
        """The names without those that are no regular files."""
        run, kept = self.run_of, []
        for name in names:
            path = self.directory.path_of(name)
            try:
                info = self.directory.stat(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                run.unreadable(path, error)
                continue
            known = parse_segment_file(name) or name in (
                layout.LEADER_EPOCHS,
                _PARTITION_METADATA,
                layout.PARTITION_STATE,
            )
            if info.is_file:
                kept.append(name)
            elif known:
                run.problem(NOT_REGULAR, path, f"{path} is not a regular file")
        return kept

    def _survey(self, names: list[str]) -> Survey:
        """What the names mean (`recovery.survey`), with notes about leftovers."""
        run, directory = self.run_of, self.directory
        try:
            found = survey(directory, run.descriptors)
        except OSError:
            # A `.swap` that cannot be read (reported already): as if it were not there.
            logs = {
                p.base_offset: ""
                for name in names
                if (p := parse_segment_file(name)) and not p.transition
                if p.suffix == LOG
            }
            found = Survey(logs, [], [], [], [], frozenset(names))
        regular = set(names)
        found.logs = {
            base: transition
            for base, transition in found.logs.items()
            if segment_file(base, LOG) + transition in regular
        }
        for suffix, some, meaning in (
            (DELETED, found.deleted, "wait for their deletion"),
            (CLEANED, found.leftovers, "are left of an unfinished compaction"),
            (SWAP, found.swaps, "replace others as soon as the log is opened"),
        ):
            if some:
                run.note(
                    LEFTOVER,
                    directory.path_of(some[0]),
                    f"{directory.path}: {len(some)} {suffix} files {meaning}",
                )
        return found

    def _segment(self, base: int, found: Survey, *, is_last: bool) -> _LogCheck:
        transition = found.logs[base]
        log = _LogCheck(
            self.run_of,
            self.directory,
            segment_file(base, LOG) + transition,
            base,
            self.context,
            is_last=is_last,
            aborted=self.aborted,
        )
        log.index = _OffsetIndexCheck(log, segment_file(base, INDEX) + transition)
        log.times = _TimeIndexCheck(log, segment_file(base, TIME_INDEX) + transition)
        return log

    def _check_missing(self, found: Survey) -> None:
        """Segments and bytes that logstore's own state knows of."""
        state = self.context.state
        if state is None:
            return
        present = set(found.logs)
        active = state.active["base_offset"]
        wanted = {row[0]: row for row in state.sealed}
        bases = sorted({*wanted, active})
        for base in bases:
            if base in present:
                if base in wanted:
                    self._check_sealed_size(base, wanted[base][1])
                continue
            if base == active and state.active["size"] == 0:
                continue
            if self._is_deleted_since(base):
                continue
            path = self.directory.path_of(segment_file(base, LOG))
            last = wanted[base][2] - 1 if base in wanted else state.durable_offset - 1
            self.run_of.problem(
                LOST_SEGMENT,
                path,
                f"segment {path} is gone: offsets {base} to {last}",
                first=base,
                last=last,
            )

    def _is_deleted_since(self, base: int) -> bool:
        """Whether a writer has deleted a segment after its state was read."""
        for _ in range(_ATTEMPTS):
            value = _own_state(self.directory, layout.PARTITION_STATE, None)
            try:
                state = None if value is None else PartitionState.from_dict(value)
            except (KeyError, TypeError, ValueError):
                return False
            if state is None or base < state.start_offset:
                known = {row[0] for row in state.sealed} if state else set()
                return base not in known
        return False

    def _check_sealed_size(self, base: int, size: int) -> None:
        name = segment_file(base, LOG)
        path = self.directory.path_of(name)
        try:
            found = self.directory.stat(name).size
        except OSError:
            return
        if found < size:
            self.run_of.problem(
                LOST_BYTES,
                path,
                f"{path} has {found} bytes, {size} were durable: {size - found} are "
                f"gone",
                position=found,
            )
        elif found > size:
            self.run_of.problem(
                EXTRA_BYTES,
                path,
                f"{path} is sealed and has {found} bytes, not {size}: {found - size} "
                f"too many",
                position=size,
            )

    def _check_end(self, log: _LogCheck) -> None:
        """Whether the log reaches as far as it is known to be durable."""
        run, context, path = self.run_of, self.context, log.path
        state = context.state
        end = log.last_offset + 1
        if state is not None:
            active = state.active
            if active["base_offset"] != log.base:
                return
            if log.size < active["size"]:
                run.problem(
                    LOST_BYTES,
                    path,
                    f"{path} has {log.size} bytes, {active['size']} were durable: "
                    f"{active['size'] - log.size} are gone from its end",
                    position=log.size,
                    first=end,
                    last=max(state.durable_offset - 1, end),
                )
            elif context.clean and log.size > active["size"]:
                run.problem(
                    EXTRA_BYTES,
                    path,
                    f"{path} has {log.size - active['size']} bytes behind the end of a "
                    f"log that was closed at byte {active['size']}",
                    position=active["size"],
                )
            return
        if log.batches and log.is_sound and end < context.recovery_point:
            run.problem(
                LOST_BYTES,
                path,
                f"{path} ends before offset {end}; according to "
                f"{layout.RECOVERY_CHECKPOINT} everything below "
                f"{context.recovery_point} was durable",
                position=log.size,
                first=end,
                last=context.recovery_point - 1,
            )

    def _check_others(self, names: list[str], found: Survey) -> None:
        """Files that are no log and no index of one."""
        run, directory = self.run_of, self.directory
        gone = {*found.superseded, *found.leftovers, *found.deleted}
        for name in names:
            if name in gone:
                continue
            parsed = parse_segment_file(name)
            if parsed is None:
                if name in (layout.LEADER_EPOCHS, _PARTITION_METADATA):
                    _check_checkpoint(run, directory, name)
                elif name.startswith(layout.TORN_PREFIX):
                    path = directory.path_of(name)
                    run.note(LEFTOVER, path, f"{path}: a torn tail that was cut")
                continue
            if parsed.suffix == SNAPSHOT:
                self._check_snapshot(name)
            elif parsed.suffix == TXN_INDEX:
                _check_txn_index(run, directory, name, parsed, self.aborted)
            elif parsed.suffix != LOG and parsed.base_offset not in found.logs:
                path = directory.path_of(name)
                run.note(ORPHAN, path, f"{path} has no log beside it")

    def _check_snapshot(self, name: str) -> None:
        run, path = self.run_of, self.directory.path_of(name)
        try:
            parse_snapshot(self.directory.read_file(name), path)
        except CorruptCheckpointError as error:
            # Not synced before its name appears: a crash may leave a part of it.
            tell = run.problem if self.context.clean else run.note
            tell(PRODUCER_SNAPSHOT, path, str(error))
        except OSError as error:
            run.unreadable(path, error)


def _check_txn_index(
    run: _Run,
    directory: Directory,
    name: str,
    parsed: SegmentFile,
    aborted: set[tuple[int, int]] | None,
) -> None:
    path = directory.path_of(name)
    try:
        entries = parse_txn_index(directory.read_file(name), path)
    except CorruptIndexError as error:
        run.problem(TXN_INDEX_FAULT, path, str(error), position=error.position)
        return
    except OSError as error:
        run.unreadable(path, error)
        return
    for slot, entry in enumerate(entries):
        reason = ""
        if not 0 <= entry.first_offset <= entry.last_offset or entry.version < 0:
            reason = "contradicts itself"
        elif entry.last_offset < parsed.base_offset:
            reason = "lies before its segment"
        elif (
            run.deep
            and aborted is not None
            and (entry.producer_id, entry.last_offset) not in aborted
        ):
            reason = "names an ABORT marker that is not in the log"
        if reason:
            run.problem(
                TXN_INDEX_FAULT,
                path,
                f"transaction index {path}: entry {slot} {reason}: {entry}",
                position=slot * _TXN_BYTES,
            )


_TXN_BYTES: Final = 34


# ------------------------------------------------------------------ one log


class _RawSegment(Segment):
    """A segment whose `.log` file has any name."""

    __slots__ = ("name",)

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        name: str,
        base: int,
        size: int,
    ) -> None:
        super().__init__(directory, descriptors, base, size, native.OFFSET_MAX)
        self.name = name

    def file(self, suffix: str) -> str:
        return self.name if suffix == LOG else super().file(suffix)

    def _names(self) -> tuple[str, ...]:
        return (self.name,)


class _Table(NamedTuple):
    """The batches of a run of log: last offsets (relative to the base) and positions,
    and the running maximum of timestamps as time index entries."""

    offsets: array[int]
    positions: array[int]
    times: bytes
    before: int  # last relative offset before the run


class _Faults:
    """Faults of one index file, told in one finding."""

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[int, str] | None = None

    def add(self, slot: int, reason: str) -> None:
        self.count += 1
        if self.first is None:
            self.first = (slot, reason)


class _IndexFile:
    """An index file of a segment, held against the log while that is walked over."""

    entry_bytes = 0
    kind = ""
    what = ""

    def __init__(self, log: _LogCheck, name: str) -> None:
        self.log = log
        self.name = name
        self.path = log.directory.path_of(name)
        self.faults = _Faults()
        self.data = b""
        self.count = 0
        self.slot = 0
        self.missing = False
        self._read()

    def _read(self) -> None:
        run, log = self.log.run_of, self.log
        try:
            self.data = log.directory.read_file(self.name)
        except FileNotFoundError:
            self.missing = True
            return
        except OSError as error:
            self.missing = True
            run.unreadable(self.path, error)
            return
        size = self.entry_bytes
        whole = len(self.data) // size * size
        used = _used_bytes(self.data, size)
        # The first entry may be all zeros; more of them are room that was not used.
        if used == 0 and whole:
            used = size if whole == size and not self._is_empty_log() else 0
        self.count = used // size
        if len(self.data) != whole:
            self.tell(whole, f"has {len(self.data)} bytes, no multiple of {size}")
        elif used != whole:
            message = f"{self.what} {self.path} ends with {whole - used} bytes of zeros"
            if log.is_last and not log.context.clean:
                run.note(ZERO_TAIL, self.path, message, position=used)
            else:
                self.tell(used, f"ends with {whole - used} bytes of zeros")

    def _is_empty_log(self) -> bool:
        with contextlib.suppress(OSError):
            return self.log.directory.stat(self.log.name).size == 0
        return True

    def tell(self, position: int, reason: str) -> None:
        """A problem; a note where the next opening makes the index anew anyhow."""
        log = self.log
        mended = log.is_last and not log.context.clean
        (log.run_of.note if mended else log.run_of.problem)(
            self.kind, self.path, f"{self.what} {self.path} {reason}", position=position
        )

    def hold(self, table: _Table) -> None:
        """Check the entries that belong to a run of the log."""
        raise NotImplementedError

    def finish(self) -> None:
        """Check what is left when the log has ended."""
        raise NotImplementedError

    def conclude(self) -> None:
        """Report the faults."""
        faults = self.faults
        if faults.first is not None:
            slot, reason = faults.first
            more = f" ({faults.count} of {self.count} entries are bad)"
            self.tell(
                slot * self.entry_bytes,
                f"contradicts the log: entry {slot} {reason}"
                + (more if faults.count > 1 else ""),
            )


class _OffsetIndexCheck(_IndexFile):
    entry_bytes = INDEX_ENTRY_BYTES
    kind = OFFSET_INDEX
    what = "offset index"

    def __init__(self, log: _LogCheck, name: str) -> None:
        super().__init__(log, name)
        table = _numbers(self.data[: self.count * self.entry_bytes])
        self.offsets, self.positions = table[0::2], table[1::2]
        for slot in range(1, self.count):
            if (
                self.offsets[slot] <= self.offsets[slot - 1]
                or self.positions[slot] < self.positions[slot - 1]
            ):
                self.faults.add(slot, "is out of order")

    def hold(self, table: _Table) -> None:
        positions = table.positions
        end = positions[-1]
        offsets = self.offsets
        slot = self.slot
        while slot < self.count and self.positions[slot] <= end:
            pos = self.positions[slot]
            at = bisect.bisect_left(positions, pos)
            if at == len(positions) or positions[at] != pos:
                # Before the run: in what is damaged, or nothing that can be checked.
                if pos < 0 or not self.log.is_damaged_at(pos):
                    self.faults.add(slot, f"has position {pos}, where no batch begins")
            else:
                before = table.offsets[at - 1] if at else table.before
                if offsets[slot] <= before:
                    self.faults.add(
                        slot, f"has offset {self.log.base + offsets[slot]}, which lies "
                        f"before position {pos}",
                    )  # fmt: skip
                if slot and offsets[slot - 1] > before:
                    self.faults.add(
                        slot - 1,
                        f"has offset {self.log.base + offsets[slot - 1]}, which lies "
                        f"behind the position of the next entry",
                    )
            slot += 1
        self.slot = slot

    def finish(self) -> None:
        log = self.log
        if self.missing:
            if log.end > 0:
                log.run_of.note(
                    MISSING_INDEX,
                    self.path,
                    f"offset index {self.path} is missing; readers scan the log until "
                    f"it is built",
                )
            return
        for slot in range(self.slot, self.count):
            pos = self.positions[slot]
            if not log.is_damaged_at(pos):
                self.faults.add(
                    slot, f"has position {pos}, past the end of the log at {log.end}"
                )
        if self.slot == self.count and self.count and log.is_sound:
            last = log.base + self.offsets[self.count - 1]
            if last > log.last_offset:
                self.faults.add(
                    self.count - 1, f"has offset {last}, past the last of the log"
                )
        self.conclude()


class _TimeIndexCheck(_IndexFile):
    entry_bytes = TIME_ENTRY_BYTES
    kind = TIME_INDEX_FAULT
    what = "time index"

    def __init__(self, log: _LogCheck, name: str) -> None:
        super().__init__(log, name)
        size = self.count * TIME_ENTRY_BYTES
        self.entries = list(_TIME_ENTRY.iter_unpack(self.data[:size]))
        self.largest = (-1, -1)  # running maximum before the next run, and its offset
        for slot in range(1, self.count):
            (t, o), (t_before, o_before) = self.entries[slot], self.entries[slot - 1]
            if t <= t_before or o < o_before:
                self.faults.add(slot, "is out of order")

    def hold(self, table: _Table) -> None:
        times = table.times
        count = len(times) // TIME_ENTRY_BYTES
        end = table.offsets[-1]
        while self.slot < self.count and self.entries[self.slot][1] <= end:
            entry = self.entries[self.slot]
            if not self._is_true(entry, table, count) and not self.log.is_skipped:
                t, o = entry
                self.faults.add(
                    self.slot,
                    f"says that {t} is the largest timestamp up to offset "
                    f"{self.log.base + o}, which it is not",
                )
            self.slot += 1
        if count:
            self.largest = _TIME_ENTRY.unpack_from(times, len(times) - TIME_ENTRY_BYTES)

    def _is_true(self, entry: tuple[int, int], table: _Table, count: int) -> bool:
        """Whether the largest timestamp at or before an offset is as an entry says.

        Inside a batch anything from the largest before it to that of the batch.
        """
        timestamp, offset = entry
        slot, found, at = -1, *self.largest
        if count:
            slot, t, o = native.time_index_floor(table.times, count, timestamp)
            if slot >= 0:
                found, at = t, o
        after = self._entry_of(table, slot + 1, count)
        if found == timestamp:
            if at > offset:
                return self._is_inside(table, offset, at)
            return after is None or after[1] > offset
        if found > timestamp or after is None:
            return False
        return at <= offset and self._is_inside(table, offset, after[1])

    def _is_inside(self, table: _Table, offset: int, last: int) -> bool:
        """Whether an offset lies in the batch that ends with `last`, before that."""
        batch = bisect.bisect_left(table.offsets, last)
        before = table.offsets[batch - 1] if batch else table.before
        return before < offset < last

    def _entry_of(self, table: _Table, slot: int, count: int) -> tuple[int, int] | None:
        if slot >= count:
            return None
        t, o = _TIME_ENTRY.unpack_from(table.times, slot * TIME_ENTRY_BYTES)
        return t, o

    def finish(self) -> None:
        log = self.log
        if self.missing:
            return
        for slot in range(self.slot, self.count):
            if log.is_sound:
                self.faults.add(
                    slot,
                    f"has offset {log.base + self.entries[slot][1]}, past the last of "
                    f"the log",
                )
        largest = log.state.max_timestamp
        if (
            self.count
            and not self.faults.count
            and not log.is_last
            and log.is_sound
            and self.entries[-1][0] != largest
        ):
            self.faults.add(
                self.count - 1,
                f"is the last and has timestamp {self.entries[-1][0]}; the largest of "
                f"the segment is {largest}",
            )
        self.conclude()


_TIME_ENTRY: Final = struct.Struct(">qi")


def _numbers(data: bytes) -> array[int]:
    """Big-endian int32 numbers as an array."""
    numbers = array("i")
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


class _LogCheck:
    """One pass over a `.log` file, behind damage, too, with its indexes beside it.

    Attributes:
        last_before: last offset of the segments before.
        last_offset: last offset seen; ``base - 1`` while there is none.
        end: where the sound log ends.
        is_sound: whether nothing in it was damaged.
        is_skipped: whether a part before the present run was damaged.
    """

    def __init__(
        self,
        run: _Run,
        directory: Directory,
        name: str,
        base: int,
        context: _Context,
        *,
        is_last: bool,
        aborted: set[tuple[int, int]] | None = None,
    ) -> None:
        self.run_of = run
        self.directory = directory
        self.name = name
        self.path = directory.path_of(name)
        self.base = base
        self.context = context
        self.is_last = is_last
        self.aborted = aborted
        self.index: _OffsetIndexCheck | None = None
        self.times: _TimeIndexCheck | None = None
        self.last_before = -1
        self.last_offset = base - 1
        self.size = self.end = self.batches = 0
        self.is_sound, self.is_skipped = True, False
        self._at = 0  # file position of the buffer
        self._gaps: list[tuple[int, int]] = []
        self._forgiven = -1
        self._planner = native.Planner(0, None)
        self.state = native.SegmentState(base)
        # As if a batch were before the first one: so the planner tells of it, too.
        self.state.raw.bytes_since = 1

    def is_damaged_at(self, pos: int) -> bool:
        """Whether a position lies in what was damaged."""
        return any(begin <= pos < end for begin, end in self._gaps)

    def run(self) -> None:
        run = self.run_of
        run.segments += 1
        try:
            with self.directory.opened(self.name) as fd:
                self.size = self.directory.files.size(fd)
                self._walk(fd)
                grown = self.directory.files.size(fd) != self.size
        except FileNotFoundError:
            run.note(IN_USE, self.path, f"{self.path} went away meanwhile")
            return
        except OSError as error:
            run.unreadable(self.path, error)
            self.is_sound = False
            return
        run.bytes += self.size
        run.batches += self.batches
        if grown:
            run.note(IN_USE, self.path, f"{self.path} is being written to")
        self._check_overlap()
        for companion in (self.index, self.times):
            if companion is not None:
                companion.finish()

    def _check_overlap(self) -> None:
        if self.last_before >= self.base:
            self.run_of.problem(
                OFFSETS,
                self.path,
                f"{self.path} begins at offset {self.base}, which is in the segments "
                f"before: they end with {self.last_before}",
                position=0,
                first=self.base,
                last=self.last_before,
            )

    # -- walking

    def _walk(self, fd: int) -> None:
        files, run = self.directory.files, self.run_of
        buffer = native.Buffer(max(min(_BUFFER_BYTES, self.size), 1))
        pos = 0
        run.decoder.begin(self.last_offset)
        while pos < self.size:
            n = files.read(
                fd, buffer.view[: min(buffer.capacity, self.size - pos)], pos
            )
            if n == 0:
                run.note(IN_USE, self.path, f"{self.path} became shorter meanwhile")
                break
            end, error, stop = self._decode(buffer, n, pos)
            if end:
                self._tabulate(buffer, end, pos)
                run.advance(end)
                pos = self.end = pos + end
                continue
            if error is None and stop == native.STOP_PARTIAL and n >= _FRAME.size:
                length = _FRAME.unpack_from(buffer.raw)[1] + _FRAME.size
                if buffer.capacity < length <= self.size - pos:
                    buffer = native.Buffer(length)
                    continue
            after = self._damage(buffer, n, pos, error, stop)
            run.advance(after - pos)
            pos = after

    def _decode(
        self, buffer: native.Buffer, n: int, file_pos: int
    ) -> tuple[int, native.NativeError | None, int]:
        """Check the batches at the start of a buffer: (end of the sound ones, error or
        None, native.STOP_*)."""
        run, decoder = self.run_of, self.run_of.decoder
        self._at = file_pos
        pos, records, before = 0, 0, decoder.last_offset
        error: native.NativeError | None = None
        while True:
            stop = decoder.decode(buffer.c, n, pos, 0, native.OFFSET_MAX)
            records += decoder.count
            pos, error = decoder.pos, decoder.error
            if run.deep and decoder.count:
                self._check_headers(Columns(decoder, buffer.c, buffer.raw, n))
            if error is not None or stop not in (
                native.STOP_FULL,
                native.STOP_COMPRESSED,
            ):
                break
            if stop == native.STOP_COMPRESSED:
                pos, more, error = self._compressed(buffer, n, pos)
                records += more
                if error is not None:
                    break
        run.records += records
        if run.deep and pos and decoder.last_offset - before != records:
            self._check_control(buffer, pos, file_pos)
        return pos, error, stop

    def _check_headers(self, columns: Columns) -> None:
        """Decode the record headers of a run."""
        decoder = columns.decoder
        counts = decoder.unpack(decoder.header_count)
        if not any(counts):
            return
        places = decoder.unpack(decoder.header_pos)
        offsets = decoder.unpack(decoder.offset)
        for slot, count in enumerate(counts):
            if not count:
                continue
            try:
                read_headers(columns.c, columns.raw, columns.size, places[slot], count)
            except Damage as damage:
                self.run_of.problem(
                    DAMAGED_BATCH,
                    self.path,
                    f"record {offsets[slot]} of {self.path} has a bad header: "
                    f"{damage.reason}",
                    first=offsets[slot],
                    last=offsets[slot],
                )

    def _compressed(
        self, buffer: native.Buffer, n: int, pos: int
    ) -> tuple[int, int, native.NativeError | None]:
        """Walk over the compressed batches at `pos`: (end, records, error)."""
        run, decoder = self.run_of, self.run_of.decoder
        records, want = 0, 1
        while True:
            last = decoder.last_offset
            scan = native.scan_batches(
                buffer.c, n, pos=pos, last_offset=last, count_max=want
            )
            for header in scan.headers:
                if header.codec == 0:
                    return pos, records, None
                if run.deep:
                    records += self._check_payload(header, buffer)
                elif header.record_count >= 0:
                    records += header.record_count
                else:
                    records += header.last_offset - decoder.last_offset
                decoder.begin(header.last_offset)
                pos = header.pos + header.size
            if scan.error is not None or scan.stop != native.STOP_FULL:
                error = scan.error
                if error is not None and error.pos > pos:
                    error = None
                return pos, records, error
            want = min(want * 2, 64)

    def _check_payload(self, header: native.BatchHeader, buffer: native.Buffer) -> int:
        """Decompress and decode a batch; the records in it. Reports what is wrong."""
        run, decoder = self.run_of, self.run_of.decoder
        last = decoder.last_offset
        position = self._at + header.pos
        first = header.base_offset if header.base_offset >= 0 else last + 1
        try:
            payload = open_payload(header, buffer.raw, run.limit)
        except Damage as damage:
            if damage.too_large is not None:
                run.note(
                    UNSUPPORTED,
                    self.path,
                    f"the batch of {self.path} at byte {position} was not looked into: "
                    f"{damage.too_large}",
                    position=position,
                    first=first,
                    last=header.last_offset,
                )
            else:
                self._bad_inside(position, first, header.last_offset, damage.reason)
            return 0
        c = native.pointer(payload)
        base = decoder.decode_payload(
            header, c, len(payload), 0, native.OFFSET_MAX, native.CHECK_ALL
        )
        if decoder.error is not None:
            self._bad_inside(position, first, header.last_offset, decoder.error.reason)
        elif decoder.count and base <= last and header.magic < 2:
            self._bad_inside(
                position, base, last, f"begins with offset {base}, which is before"
            )
        else:
            self._check_headers(
                Columns(decoder, c, memoryview_slicer(payload), len(payload))
            )
        return decoder.count

    def _bad_inside(self, position: int, first: int, last: int, reason: str) -> None:
        self.is_sound = False
        self.run_of.problem(
            DAMAGED_BATCH,
            self.path,
            f"batch of {self.path} at byte {position}, offsets {first} to {last}: "
            f"{reason}",
            position=position,
            first=first,
            last=last,
        )

    def _check_control(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Look into the control batches of a buffer."""
        pos, stop = 0, native.STOP_FULL
        while stop == native.STOP_FULL:
            scan = native.scan_batches(buffer.c, end, pos=pos, checks=0)
            for header in scan.headers:
                if not header.is_control:
                    continue
                data = buffer.raw[header.pos : header.pos + header.size]
                position = file_pos + header.pos
                try:
                    batch = RecordBatch(
                        header._replace(pos=0), data, position, self.run_of.limit
                    )
                    control = batch.control_record()
                except Damage as damage:
                    self._bad_inside(
                        position, header.base_offset, header.last_offset, damage.reason
                    )
                    continue
                if control and control.type == ABORT and self.aborted is not None:
                    self.aborted.add((header.producer_id, control.offset))
            pos, stop = scan.pos, scan.stop

    # -- what is derived

    def _tabulate(self, buffer: native.Buffer, end: int, file_pos: int) -> None:
        """Count the sound batches of a buffer, and hold the indexes against them."""
        state, planner = self.state, self._planner
        state.raw.size = file_pos
        done = 0
        while done < end:
            before = int(state.raw.last_offset) - self.base
            taken, stop = planner.plan(state, buffer.c + done, end - done)
            if not taken:
                self._beyond_relative(buffer, done, end, file_pos, stop)
                break
            index, times = planner.commit(state)
            done += taken
            self.batches += len(index) // INDEX_ENTRY_BYTES
            if index and (self.index is not None or self.times is not None):
                table = _numbers(index)
                run = _Table(table[0::2], table[1::2], times, before)
                for companion in (self.index, self.times):
                    if companion is not None:
                        companion.hold(run)
        self.last_offset = self.run_of.decoder.last_offset

    def _beyond_relative(
        self, buffer: native.Buffer, done: int, end: int, file_pos: int, stop: int
    ) -> None:
        """Batches whose offsets no index of this segment can tell."""
        _, last, batches, _, _ = native.walk_batches(
            buffer.c, end, pos=done, last_offset=-1, checks=0
        )
        self.batches += batches
        self.is_skipped = True
        self.run_of.problem(
            OFFSETS,
            self.path,
            f"{self.path} has offsets up to {last} from byte {file_pos + done} on, "
            f"which are more than {_RELATIVE_MAX} beyond its base offset {self.base}",
            position=file_pos + done,
        )

    # -- damage

    def _damage(
        self,
        buffer: native.Buffer,
        n: int,
        pos: int,
        error: native.NativeError | None,
        stop: int,
    ) -> int:
        """Report what is wrong at `pos` and return where to go on."""
        decoder, last = self.run_of.decoder, self.run_of.decoder.last_offset
        segment = _RawSegment(
            self.directory, self.run_of.descriptors, self.name, self.base, self.size
        )
        here = segment.first_header(pos, native.Buffer(_LOOKUP_BYTES))
        if error is not None and error.status == native.E_OFFSET and here is not None:
            stored = max(here[0].base_offset, here[0].last_offset)
            if self._forgiven != pos and stored >= 0:
                # A sound batch in the wrong place: say so, and go on from it.
                self._forgiven = pos
                self._out_of_order(pos, last, here[0])
                decoder.begin(
                    (here[0].base_offset if here[0].base_offset >= 0 else stored) - 1
                )
                return pos
        if error is not None and error.status == native.E_CODEC:
            return self._step_over(buffer, pos, last, error)
        end, found = _next_sound(segment, pos, last)
        kind, reason = _kind_of(error, stop)
        size = end - pos
        self.is_skipped = True
        self._gaps.append((pos, end))
        self.state.raw.bytes_since = 1
        lost = None if found is None or found.base_offset < 0 else found.base_offset - 1
        if self._is_torn(pos, last, has_more=found is not None):
            self.run_of.note(
                TORN_TAIL,
                self.path,
                f"{self.path} ends with {size} torn bytes at byte {pos} ({reason}); "
                f"the log ends before offset {last + 1}",
                position=pos,
                first=last + 1,
                last=lost,
            )
        else:
            self.is_sound = False
            to = "" if lost is None else f" to {lost}"
            self.run_of.problem(
                kind,
                self.path,
                f"{self.path} is damaged at byte {pos}: {reason}. {size} bytes, offsets "
                f"from {last + 1}{to}, cannot be read",
                position=pos,
                first=last + 1,
                last=lost,
            )
        if found is not None and found.base_offset > last:
            decoder.begin(found.base_offset - 1)
        return end

    def _out_of_order(self, pos: int, last: int, header: native.BatchHeader) -> None:
        self.is_sound, self.is_skipped = False, True
        first = header.base_offset if header.base_offset >= 0 else header.last_offset
        where = (
            f"the segment begins at {self.base}"
            if last < self.base
            else f"the batch before ends with {last}"
        )
        self.run_of.problem(
            OFFSETS,
            self.path,
            f"{self.path} at byte {pos} has a batch of offsets {first} to "
            f"{header.last_offset}, but {where}",
            position=pos,
            first=first,
            last=header.last_offset,
        )

    def _step_over(
        self, buffer: native.Buffer, pos: int, last: int, error: native.NativeError
    ) -> int:
        """A batch whose checksum is right and whose codec is not known."""
        size = _FRAME.unpack_from(buffer.raw)[1] + _FRAME.size
        self.is_skipped = True
        self._gaps.append((pos, pos + size))
        self.state.raw.bytes_since = 1
        self.run_of.note(
            UNSUPPORTED,
            self.path,
            f"the batch of {self.path} at byte {pos} was not looked into: "
            f"{error.reason}",
            position=pos,
            first=last + 1,
        )
        return pos + size

    def _is_torn(self, pos: int, last: int, *, has_more: bool) -> bool:
        """Whether opening for writing would cut the log here as a torn tail."""
        context = self.context
        if not self.is_last:
            return False
        state = context.state
        if state is not None:
            if context.clean:
                return False
            active = state.active["base_offset"]
            return self.base > active or (
                self.base == active and pos >= state.active["size"]
            )
        if context.clean or has_more:
            return False
        return last + 1 >= context.recovery_point


_LOOKUP_BYTES: Final = 16 * 1024


def _next_sound(
    segment: Segment, pos: int, last: int
) -> tuple[int, native.BatchHeader | None]:
    """Where the next sound batch behind a damaged one at `pos` begins, with its header;
    else the end of the file.

    First where the damaged one says that it ends, then at every byte.
    """
    scratch = native.Buffer(_LOOKUP_BYTES)
    if segment.read(scratch.view, pos) >= _FRAME.size:
        at = pos + _FRAME.unpack_from(scratch.raw)[1] + _FRAME.size
        if pos < at < segment.size:
            framed = segment.first_header(at, scratch)
            if framed is not None and framed[0].last_offset > last:
                return at, framed[0]
    begin = _skip_zeros(segment, pos)
    found = next_sound_batch(segment, begin, last + 1)
    if found is None:
        return segment.size, None
    header = segment.first_header(found[0], scratch)
    return found[0], None if header is None else header[0]


def _skip_zeros(segment: Segment, pos: int) -> int:
    """Where a search need not begin before: zeros are no batch, and a batch begins with
    eleven of them at the most."""
    scratch = native.Buffer(_BUFFER_BYTES)
    at = pos
    while at < segment.size:
        n = segment.read(scratch.view, at)
        rest = len(scratch.raw[:n].lstrip(b"\0"))
        if rest or n == 0:
            return max(pos, at + n - rest - _FRAME.size)
        at += n
    return segment.size


def _kind_of(error: native.NativeError | None, stop: int) -> tuple[str, str]:
    """The kind of a `Problem`, and its reason, for the end of a walk."""
    if error is not None:
        kind = OFFSETS if error.status == native.E_OFFSET else DAMAGED_BATCH
        return (UNSUPPORTED if error.is_unsupported else kind), error.reason
    if stop == native.STOP_ZEROS:
        return ZEROS, "zeros instead of a batch"
    if stop == native.STOP_OFFSET:
        return OFFSETS, "its offset is impossible"
    return PARTIAL_BATCH, "a batch goes on past the end of the file"


# ------------------------------------------------------------------ one file


class _FileCheck(_Check):
    """One file that was given by itself; its neighbours are looked at, not reported."""

    def __init__(self, run: _Run, directory: Directory, name: str) -> None:
        super().__init__(run, directory)
        self.name = name
        self.path = directory.path_of(name)
        self.parsed = parse_segment_file(name)
        self.kind = _kind_of_file(name)
        if not self.kind:
            self.close()
            raise StoreNotFoundError(
                f"{self.path} is no file of a store that can be checked",
                path=self.path,
            )

    def size(self) -> int:
        if self.kind not in (LOG, INDEX, TIME_INDEX):
            return 0
        try:
            return self.root.stat(self._log_name()).size
        except OSError:
            return 0

    def _log_name(self) -> str:
        if self.kind == LOG or self.parsed is None:
            return self.name
        return segment_file(self.parsed.base_offset, LOG) + self.parsed.transition

    def run(self) -> None:
        run, root, name = self.run_of, self.root, self.name
        if self.kind in (LOG, INDEX, TIME_INDEX):
            self._check_log()
        elif self.kind == TXN_INDEX:
            parsed = self.parsed or SegmentFile(0, TXN_INDEX, "")
            _check_txn_index(run, root, name, parsed, None)
        elif self.kind == SNAPSHOT:
            _PartitionCheck(run, root, _Context(clean=True))._check_snapshot(name)
        elif self.kind == STATE:
            _own_state(root, name, run)
        else:
            _check_checkpoint(run, root, name)

    def _check_log(self) -> None:
        run, root = self.run_of, self.root
        base = self.parsed.base_offset if self.parsed else 0
        bases = [
            p.base_offset
            for other in root.names()
            if (p := parse_segment_file(other)) and p.suffix == LOG and not p.transition
        ]
        context = _context_of(run.files, root, None)
        name = self._log_name()
        is_last = base >= max(bases, default=base)
        log = _LogCheck(run, root, name, base, context, is_last=is_last)
        if self.kind == LOG:
            log.run()
            return
        if not root.exists(name):
            raise StoreNotFoundError(
                f"{self.path} cannot be checked without its log, {name}",
                path=self.path,
            )
        if self.kind == INDEX:
            log.index = _OffsetIndexCheck(log, self.name)
        else:
            log.times = _TimeIndexCheck(log, self.name)
        log.run()
        run.problems = [p for p in run.problems if p.path != log.path]
        run.notes = [p for p in run.notes if p.path != log.path]


def _kind_of_file(name: str) -> str:
    """A suffix of layout's, STATE, CHECKPOINT, or "" for what is not known."""
    parsed = parse_segment_file(name)
    if parsed is not None:
        return parsed.suffix
    if name in (layout.OWNER, layout.TOPICS, layout.PARTITION_STATE):
        return STATE
    if name in (*_OFFSET_CHECKPOINTS, layout.LEADER_EPOCHS, _PARTITION_METADATA):
        return CHECKPOINT
    for suffix in (LOG, SNAPSHOT, TXN_INDEX):
        if name.endswith(suffix):
            return suffix
    return ""


# ------------------------------------------------------------------ rebuilding


def rebuild_index(
    path: PathLike,
    dry_run: bool = False,
    *,
    config: TopicConfig | None = None,
    files: Files | None = None,
) -> tuple[tuple[str, int, int], ...]:
    """Build the offset and time indexes anew from the log.

    Takes the writer's lock of the store for the time; what is built replaces the old
    files one by one, each whole.

    Args:
        path: a store, a partition directory, or one `.log`, `.index` or `.timeindex`.
        dry_run: only tell what would be built; takes no lock.
        config: whose ``index_interval_bytes`` counts; None: that of the topic.

    Returns:
        (path of the `.log`, offset index entries, time index entries) of each segment.

    Raises:
        StoreLockedError: a writer has the store.
        StoreNotFoundError: there is nothing at `path` that has an index.
        CorruptRecordError: a log is damaged; its indexes stay as they were, those of
            all others were built.
        StorageError: the system refuses.
    """
    files = files or Files()
    full = os.path.abspath(os.fspath(path))
    base: int | None = None
    if not _is_directory(files, full):
        parsed = parse_segment_file(os.path.basename(full))
        if parsed is None or parsed.transition:
            raise StoreNotFoundError(f"{full} has no index to be built", path=full)
        base, full = parsed.base_offset, os.path.dirname(full)
    with contextlib.ExitStack() as stack:
        given = _open_root(files, full)
        stack.callback(given.close)
        names = given.names()
        if _is_partition(given, names):
            root = _open_root(files, os.path.dirname(full))
            stack.callback(root.close)
            partitions = [given]
        elif _is_store(names):
            root = given
            partitions = [
                given.child(name) for name in names if parse_partition_directory(name)
            ]
        else:
            raise StoreNotFoundError(
                f"{full} is neither a store nor a partition directory", path=full
            )
        if not dry_run:
            stack.enter_context(_locked(root))
        return _rebuild_all(root, partitions, base, dry_run, config)


def _rebuild_all(
    root: Directory,
    partitions: list[Directory],
    only: int | None,
    dry_run: bool,
    config: TopicConfig | None,
) -> tuple[tuple[str, int, int], ...]:
    built: list[tuple[str, int, int]] = []
    failure: CorruptionError | None = None
    for directory in partitions:
        chosen = config or _config_of(root, directory)
        try:
            logs = [
                p.base_offset
                for name in directory.names()
                if (p := parse_segment_file(name))
                if p.suffix == LOG and not p.transition
            ]
            for base in logs:
                if only is not None and base != only:
                    continue
                make = _dry_rebuild if dry_run else rebuild
                try:
                    counts = make(directory, base, chosen)
                except CorruptRecordError as error:
                    failure = failure or error
                    continue
                built.append((directory.path_of(segment_file(base, LOG)), *counts))
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(
                error, "rebuild the indexes of", directory.path
            ) from error
    if failure is not None:
        raise failure
    if only is not None and not built:
        path = partitions[0].path_of(segment_file(only, LOG))
        raise StoreNotFoundError(f"there is no log {path}", path=path)
    return tuple(built)


def _dry_rebuild(
    directory: Directory, base: int, config: TopicConfig
) -> tuple[int, int]:
    """What `rebuild` would return."""
    name = segment_file(base, LOG)
    state = native.SegmentState(base)
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
    if not scan.is_whole:
        raise CorruptRecordError(
            scan.reason,
            path=directory.path_of(name),
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
    return index.count, times.count + bool(closing_time_entry(state))


def _config_of(root: Directory, directory: Directory) -> TopicConfig:
    """The settings of a partition's topic, or the defaults."""
    key = parse_partition_directory(directory.name)
    value = _own_state(root, layout.TOPICS, None)
    try:
        settings = value["topics"][key[0]]["config"] if value and key else {}
        known = TopicConfig.__dataclass_fields__
        return TopicConfig(**{k: v for k, v in settings.items() if k in known})
    except (KeyError, TypeError, ConfigError):
        return TopicConfig()


@contextlib.contextmanager
def _locked(root: Directory) -> Iterator[None]:
    """Hold the writer's lock of a store, as `store` does."""
    files, path = root.files, root.path_of(layout.LOCK)
    with store._held_lock:
        try:
            with contextlib.suppress(FileNotFoundError):
                info = root.stat(layout.LOCK)
                # Not even opened: closing it would end the lock of this process.
                if (info.device, info.inode) in store._held:
                    raise _is_locked(root.path, os.getpid())
            try:
                fd = root.create(layout.LOCK)
            except FileExistsError:
                fd = root.open(layout.LOCK, write=True)
            holder = files.lock(fd)
            if holder is not None:
                files.close(fd)
                raise _is_locked(root.path, holder or None)
            found = files.stat(fd)
        except OSError as error:
            raise storage_error(error, "lock", path) from error
        key = (found.device, found.inode)
        store._held.add(key)
    try:
        yield
    finally:
        with store._held_lock:
            store._held.discard(key)
            files.close(fd)


def _is_locked(path: str, pid: int | None) -> StoreLockedError:
    who = f"process {pid}" if pid else "another process"
    if pid == os.getpid():
        who = "this process"
    return StoreLockedError(
        f"store {path} is open for writing in {who}; close it there first",
        path=path,
        holder_pid=pid,
    )


# ------------------------------------------------------------------ looking into one file


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
    """A batch of a `.log` file, or bytes of it that are none.

    Attributes:
        position, size_bytes: where it lies.
        batch: None where the bytes are none.
        damage: what is wrong; None where nothing is. A batch with a wrong checksum has
            both: its fields are rumours then.
    """

    position: int
    size_bytes: int
    batch: RecordBatch | None
    damage: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class FileContents:
    """One file of a store as it is, without recovery and without bounds.

    Attributes:
        path: absolute.
        kind: ``log``, ``index``, ``timeindex``, ``txnindex``, ``snapshot``,
            ``offsets``, ``epochs``, ``metadata`` or ``state``.
        base_offset: from its name; 0 where that has none.
        size_bytes: as it was at the call.
        entries: what is in it, in order, to be iterated over once: `LogEntry`,
            `OffsetEntry`, `TimeEntry`, `TxnEntry`, `ProducerEntry`, `CheckpointEntry`,
            `EpochEntry`, or (name, value) pairs. A log is read while it is iterated.
    """

    path: str
    kind: str
    base_offset: int
    size_bytes: int
    entries: Iterator[Any]


def inspect_file(path: PathLike, *, files: Files | None = None) -> FileContents:
    """Look into one file of a store: a log, index, snapshot, checkpoint or state file.

    Damage in a log is a `LogEntry`, and the next sound batch follows. The entries of an
    index are as they are, right or wrong; zeros at its end are left out.

    Raises:
        StoreNotFoundError: it is not there, or no file of a store.
        CorruptIndexError, CorruptCheckpointError: it is damaged (not of a log).
        StorageError: it cannot be read.
    """
    files = files or Files()
    full = os.path.abspath(os.fspath(path))
    name = os.path.basename(full)
    kind = _kind_of_file(name)
    if not kind:
        raise StoreNotFoundError(f"{full} is no file of a store", path=full)
    directory = _open_root(files, os.path.dirname(full))
    parsed = parse_segment_file(name)
    base = parsed.base_offset if parsed else 0
    try:
        with directory.opened(name) as fd:
            size = files.size(fd)
        if kind == LOG:
            return FileContents(
                full, "log", base, size, _log_entries(directory, name, base, size)
            )
        entries = _file_entries(directory, name, kind, base)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {full}", path=full) from error
    except OSError as error:
        raise storage_error(error, "read", full) from error
    directory.close()
    kind = _KIND_NAMES.get(name, kind.removeprefix("."))
    return FileContents(
        full, "offsets" if kind == CHECKPOINT else kind, base, size, entries
    )


_KIND_NAMES: Final = {
    layout.LEADER_EPOCHS: "epochs",
    _PARTITION_METADATA: "metadata",
}


def _file_entries(
    directory: Directory, name: str, kind: str, base: int
) -> Iterator[Any]:
    path = directory.path_of(name)
    if kind == STATE:
        return iter((checkpoints.read_state(directory, name) or {}).items())
    if name == layout.LEADER_EPOCHS:
        return (EpochEntry(*entry) for entry in checkpoints.read_epochs(directory))
    if kind == CHECKPOINT and name != _PARTITION_METADATA:
        offsets = checkpoints.read_offsets(directory, name)
        return (CheckpointEntry(t, p, offset) for (t, p), offset in offsets.items())
    data = directory.read_file(name)
    if name == _PARTITION_METADATA:
        lines = data.decode("utf-8", "replace").splitlines()
        pairs = (line.partition(":") for line in lines if line.strip())
        return ((key.strip(), value.strip()) for key, _, value in pairs)
    if kind == SNAPSHOT:
        return iter(parse_snapshot(data, path))
    if kind == TXN_INDEX:
        return iter(parse_txn_index(data, path))
    width = INDEX_ENTRY_BYTES if kind == INDEX else TIME_ENTRY_BYTES
    data = data[: _used_bytes(data, width)]
    if kind == INDEX:
        return (OffsetEntry(base + o, pos) for o, pos in OffsetEntries(data))
    return (TimeEntry(t, base + o) for t, o in TimeEntries(data))


def _used_bytes(data: bytes, width: int) -> int:
    """Bytes of an index file up to its last entry that is not all zeros."""
    whole = len(data) // width * width
    return -(-len(data[:whole].rstrip(b"\0")) // width) * width


def _log_entries(
    directory: Directory, name: str, base: int, size: int
) -> Iterator[LogEntry]:
    """The batches of a log file; closes `directory` at the end."""
    limit = StoreConfig().max_batch_decompressed_bytes
    segment = _RawSegment(directory, Descriptors(directory.files, 16), name, base, size)
    pos, last = 0, -1
    try:
        while pos < size:
            try:
                for header, buffer, at in segment.headers(pos):
                    data = buffer.raw[header.pos : header.pos + header.size]
                    pos, last = at + header.size, header.last_offset
                    yield _log_entry(header, data, at, limit, None)
                return
            except (CorruptRecordError, UnsupportedError) as error:
                reason = (
                    error.reason
                    if isinstance(error, CorruptRecordError)
                    else str(error)
                )
                end, _ = _next_sound(segment, pos, last)
                yield _bad_entry(segment, pos, end, limit, reason)
                pos = end
    finally:
        directory.close()


def _log_entry(
    header: native.BatchHeader, data: bytes, pos: int, limit: int, damage: str | None
) -> LogEntry:
    batch: RecordBatch | None = None
    try:
        batch = RecordBatch(header._replace(pos=0), data, pos, limit)
    except Damage as inside:
        damage = damage or inside.reason
    return LogEntry(pos, header.size, batch, damage)


def _bad_entry(
    segment: Segment, pos: int, end: int, limit: int, reason: str
) -> LogEntry:
    """What lies where no sound batch does: a batch with a wrong checksum, or bytes."""
    buffer = native.Buffer(end - pos)
    n = segment.read(buffer.view, pos)
    scan = native.first_header(buffer.c, n, checks=0)
    if scan.headers and scan.headers[0].size == n:
        return _log_entry(scan.headers[0], buffer.raw[:n], pos, limit, reason)
    return LogEntry(pos, n, None, reason)
