"""The ownership of a store: which program wrote last, and how that writer stopped.

`.logstore-owner` (docs/format.md) says whether logstore was the last writer, whether it
stopped cleanly, and which store epoch of its partition states counts. Kafka leaves
its clean-shutdown marker, recovery points and log start offsets. If a broker was the
last writer, it changed them: then logstore's own state is stale.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from logstore.errors import (
    CorruptCheckpointError,
    DiskFullError,
    LogStoreError,
    UnsupportedError,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, place
from logstore.io.checkpoint.partition_state import (
    PartitionMetadata,
    PartitionState,
)
from logstore.io.checkpoint.recovery_report import (
    OTHER_WRITER,
    STATE_DAMAGED,
    RecoveryAction,
)
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.io.stamps import FileStamp

__all__ = ["OWNERSHIP_FILES", "MetadataNow", "Ownership", "OwnershipKey"]

_Value = TypeVar("_Value")

# The files in the root that record the ownership.
OWNERSHIP_FILES: Final = (
    layout.OWNER,
    layout.CLEAN_SHUTDOWN,
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
)


# Checkpoints that have a line for each partition.
_OFFSETS_BY_PARTITION: Final = (
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
    layout.HIGH_WATERMARKS,
)


class OwnershipKey(NamedTuple):
    """Stamps of the files that name the owner of a store; None if there is no file."""

    owner: FileStamp | None
    clean_shutdown: FileStamp | None
    points: FileStamp | None
    starts: FileStamp | None


class MetadataNow(Protocol):
    """Reads the facts about one partition."""

    def __call__(self, key: OwnershipKey | None = None, /) -> PartitionMetadata:
        """The current facts.

        Args:
            key: of the ownership, if it was taken just now: the facts are from then or
                later. None: it is taken here.
        """


class _Owner(NamedTuple):
    """The content of the owner file (docs/format.md).

    Attributes:
        directory: the one that it was written in (`place.place_of`).
    """

    clean: bool
    fingerprints: list[Any]
    store_epoch: str
    boot: str
    directory: object


class Ownership:
    """The ownership of one store, from the files in its root. The store's lock guards
    it.

    Attributes:
        is_own: logstore was the last writer.
        is_clean: the last writer stopped cleanly.
        is_same_boot: the machine was not started since logstore began to write.
        is_writing: `begin` was called: the clean-shutdown markers are removed.
        is_recorded: since `begin`, the owner file says that logstore is the writer. It
            does not if the disk was full.
        store_epoch: partition states count only if they were written under it. A new
            one begins when logstore writes after another program: the states of the
            partitions that it does not touch stay stale.
        owner_stamp: of the owner file when it was read; None if another program wrote
            last.
        is_copied: the owner file was written in another directory: the store was copied
            or moved since, and not yet closed here.
        points, starts: Kafka's recovery points and log start offsets.
    """

    def __init__(self, root: Directory) -> None:
        self._root = root
        self.is_own = False
        self.owner_stamp: FileStamp | None = None
        self.is_clean = False
        self.is_same_boot = False
        self.is_writing = False
        self.is_recorded = False
        self._persist: Callable[[], None] = _nothing
        self.store_epoch = ""
        self.is_copied = False
        # The directory that the file names, while that is another one.
        self._place: object = None
        self._stays_copy = False
        self.points: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        # Name of a checkpoint -> its stamp when it was read, and its lines.
        self._seen: dict[str, tuple[FileStamp, Mapping[TopicPartition, int]]] = {}

    @property
    def is_copy(self) -> bool:
        """Whether the directory is another one than that of the last owner, or nothing
        says whose it is: the next opening for writing is the first one of a copy."""
        return not self.is_own or self.is_copied

    # ------------------------------------------------------------ reading

    def cache_key(self) -> OwnershipKey:
        """A value that changes when one of the files is replaced or removed."""
        return OwnershipKey(*map(self._root.stamp, OWNERSHIP_FILES))

    def writer(self) -> FileStamp | None:
        """A value that changes before the first change that a writer makes: `begin`
        replaces the file. It also changes if a backup of the file is restored."""
        return self._root.stamp(layout.OWNER)

    def starts_stamp(self) -> FileStamp | None:
        """A value that changes when a broker replaces its log start offsets."""
        return self._root.stamp(layout.LOG_START_CHECKPOINT)

    def read(self, report: Callable[[RecoveryAction], None]) -> None:
        """Read them all."""
        self.read_owner(report)
        self.points = self._offsets(layout.RECOVERY_CHECKPOINT, report)
        self.starts = self._offsets(layout.LOG_START_CHECKPOINT, report)

    def read_owner(self, report: Callable[[RecoveryAction], None]) -> None:
        """Find out which program wrote last, and whether it stopped cleanly."""
        self.is_own, self.store_epoch = False, uuid.uuid4().hex
        self.is_same_boot = False
        self.owner_stamp, stamp = None, self.writer()
        self.is_copied, self._place, self._stays_copy = False, None, False
        self.is_clean = self._root.exists(layout.CLEAN_SHUTDOWN)
        try:
            owner = self._owner()
        except CorruptCheckpointError as error:
            self._report(
                report,
                STATE_DAMAGED,
                layout.OWNER,
                f"{error}; the store was opened as Kafka would open it",
            )
            return
        if owner is None:
            return
        clean, fingerprints, store_epoch, boot, written_in = owner
        if checkpoints.store_fingerprint(self._root) not in fingerprints:
            self._report(
                report,
                OTHER_WRITER,
                layout.OWNER,
                "another program has written to the store since logstore did; it "
                "was opened as Kafka would open it",
            )
            return
        self.is_own, self.is_clean, self.store_epoch = True, clean, store_epoch
        self.owner_stamp = stamp
        self.is_same_boot = bool(boot) and boot == self._boot()
        if place.is_elsewhere(written_in, self._root):
            self.is_copied, self._place = True, written_in

    def _boot(self) -> str:
        """Identifies the run of the machine; empty if that is not known."""
        return self._root.files.boot_id().hex()

    def settle(self) -> None:
        """A copy is a separate store from now on, also for the next opening: all of
        its logs have recorded a cut at the end that they had when it was opened. Not
        after `stay_copy`.

        Raises:
            OSError: as the system gives it.
        """
        if not self._stays_copy:
            self._place = None
            self.record()

    def stay_copy(self) -> None:
        """The next opening for writing is again the first one of a copy: this one
        could not do all that is done then."""
        self._stays_copy = True
        if not self._place:
            self.unsettle()

    def unsettle(self) -> None:
        """Mark the files of the next write as a copy, in any directory: a snapshot."""
        self._place = [*place.NOWHERE]

    def _owner(self) -> _Owner | None:
        """The content of the owner file; None if it does not exist."""
        value = _read_twice(lambda: checkpoints.read_state(self._root, layout.OWNER))
        if value is None:
            return None
        try:
            return _Owner(
                bool(value["clean"]),
                [*value["fingerprints"]],
                value["generation"],
                str(value.get("boot", "")),
                value.get(place.FIELD),
            )
        except (KeyError, TypeError) as error:
            path = self._root.path_of(layout.OWNER)
            raise CorruptCheckpointError(
                f"{path} is not an owner file: {error!r}", path=path
            ) from error

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Remove the lines of deleted partitions from Kafka's checkpoints: a
        recovery, a reader or a broker would trust the lines for others of their names.

        The files are read again: retention may have added a line since.

        Raises:
            OSError: as the system gives it.
        """
        gone = set(keys)
        for offsets in (self.points, self.starts):
            for key in gone.intersection(offsets):
                del offsets[key]
        for name in _OFFSETS_BY_PARTITION:
            there = self._lines(name)
            if gone.isdisjoint(there):
                continue
            left = {key: offset for key, offset in there.items() if key not in gone}
            if name == layout.RECOVERY_CHECKPOINT:
                self.move_points(left)
            else:
                checkpoints.write_offsets(self._root, name, left)

    def _lines(self, name: str) -> Mapping[TopicPartition, int]:
        """The current lines of a checkpoint; none if it does not follow its
        format: that is for a broker to see."""
        stamp = self._root.stamp(name)
        if stamp is None:
            return {}
        if self._seen.get(name, (None,))[0] != stamp:
            try:
                lines = checkpoints.read_offsets(self._root, name)
            except CorruptCheckpointError:
                lines = {}
            self._seen[name] = stamp, lines
        return self._seen[name][1]

    def _offsets(
        self, name: str, report: Callable[[RecoveryAction], None]
    ) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self._root, name)
        except CorruptCheckpointError as error:
            self._report(
                report, STATE_DAMAGED, name, f"{error}; treated as empty, as Kafka does"
            )
            return {}

    def _report(
        self,
        report: Callable[[RecoveryAction], None],
        label: str,
        name: str,
        message: str,
    ) -> None:
        path = self._root.path_of(name)
        report(RecoveryAction(label, "", -1, path, -1, 0, -1, None, message))

    def metadata(
        self, directory: Directory, key: TopicPartition, published: int = -1
    ) -> PartitionMetadata:
        """The facts about a partition before its files are examined. `published`: as
        in `PartitionMetadata.of`."""
        state: PartitionState | None = None
        state_error: LogStoreError | None = None
        stale: PartitionState | None = None
        try:
            state = _read_twice(lambda: PartitionState.read(directory))
        except CorruptCheckpointError as error:
            if self.is_own:
                state_error = error
        except UnsupportedError:
            if self.is_own:
                raise
        if state is not None and not (
            self.is_own and state.store_epoch == self.store_epoch
        ):
            state, stale = None, state
        return PartitionMetadata.of(
            directory,
            state,
            state_error,
            is_own=self.is_own,
            is_clean=self.is_clean,
            is_same_boot=self.is_same_boot,
            owner_stamp=self.owner_stamp,
            store_epoch=self.store_epoch,
            point=self.points.get(key),
            log_start=self.starts.get(key, 0),
            stale=stale,
            published=published,
        )

    # ------------------------------------------------------------ writing

    def begin(self, persist: Callable[[], None]) -> None:
        """Remove the clean-shutdown markers, durably, before the first change.

        0. `persist` what the opening has found out. 1. Write the owner
        file: not clean, with the present fingerprint and the one without Kafka's
        marker. 2. Remove Kafka's marker. 3. Sync the directory.
        """
        if self.is_writing:
            return
        self._persist = persist
        try:
            self.record()
            self._root.unlink(layout.CLEAN_SHUTDOWN, missing_ok=True)
            self._root.sync()
        except OSError as error:
            failed = storage_error(
                error, "begin writing to", self._root.path, "Nothing was written."
            )
            if not isinstance(failed, DiskFullError):
                raise failed from error
            self._begin_without_space(failed)
        self.is_writing = True

    def record(self) -> None:
        """Write the owner file: not clean. Also later, if `begin` had no space for it.

        Raises:
            OSError: as the system gives it.
        """
        fingerprints = self._fingerprints_at_begin()
        self._persist()
        self._write_owner(False, *fingerprints)
        self.is_recorded = True

    def _fingerprints_at_begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The current fingerprint, and the same without Kafka's marker."""
        now = checkpoints.store_fingerprint(self._root)
        return now, {**now, "clean_shutdown": None}

    def _begin_without_space(self, failed: DiskFullError) -> None:
        """A full disk must not prevent deletion. The owner file is changed in place,
        which needs no space. If that fails, too, it is removed, and the next opening
        treats the store as Kafka would."""
        root = self._root
        try:
            self.is_recorded = self._record_in_place()
            # The owner file first, durably: if it recorded Kafka's marker and the
            # marker were missing, another program would seem to have removed it.
            root.unlink(f"{layout.OWNER}.tmp", missing_ok=True)
            if not self.is_recorded:
                root.unlink(layout.OWNER, missing_ok=True)
            root.sync()
            root.unlink(layout.CLEAN_SHUTDOWN, missing_ok=True)
            root.sync()
        except OSError as error:
            raise failed from error

    def _record_in_place(self) -> bool:
        """Let the owner file say what `record` would write; False if it does not.

        After a kill it does so already, and only gets another stamp: it has a new
        writer (see `writer`). A power cut can tear it if it is overwritten; that is
        reported, and the store is taken as if it had been removed.
        """
        files, fingerprints = self._root.files, self._fingerprints_at_begin()
        try:
            owner = self._owner()
            with self._root.opened(layout.OWNER, write=True) as fd:
                if owner is not None and self._says(owner, fingerprints):
                    files.set_modified(fd, files.now_ms() * 1_000_000)
                elif self.is_own:
                    value = self._owner_value(False, *fingerprints)
                    data = checkpoints.pack_state(value)
                    files.write(fd, data, 0)
                    files.truncate(fd, len(data))
                    files.sync(fd)
                else:
                    return False
        except (OSError, CorruptCheckpointError):
            return False
        return True

    def _says(
        self,
        owner: _Owner,
        fingerprints: Iterable[dict[str, Any]],
    ) -> bool:
        """Whether an owner file is of a store that is not clean, of this epoch and this
        run of the machine, and has these fingerprints among its own."""
        is_known = all(
            fingerprint in owner.fingerprints for fingerprint in fingerprints
        )
        is_same_run = owner.boot == self._boot()
        is_now = owner.store_epoch == self.store_epoch and is_same_run
        return not owner.clean and is_now and is_known

    def write_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Write Kafka's log start offsets so that they stay correct."""
        if starts or self._root.exists(layout.LOG_START_CHECKPOINT):
            checkpoints.write_offsets(self._root, layout.LOG_START_CHECKPOINT, starts)

    def lower_high_watermarks(self, kept: Mapping[TopicPartition, int]) -> None:
        """Lower Kafka's high watermarks that lie above what is left of a log (`kept`):
        a broker takes none inside of a batch. Others do not change, and neither does a
        file that does not follow its format, which a broker has to report."""
        try:
            before = checkpoints.read_offsets(self._root, layout.HIGH_WATERMARKS)
        except CorruptCheckpointError:
            return
        after = {
            key: min(offset, kept.get(key, offset)) for key, offset in before.items()
        }
        if after != before:
            checkpoints.write_offsets(self._root, layout.HIGH_WATERMARKS, after)

    def end(
        self, ends: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Leave the clean-shutdown markers; `ends` are the end offsets of the logs.

        1. Write the owner file with the fingerprints that the next steps produce.
        2. Write the recovery points. 3. Write the log start offsets. 4. Write Kafka's
        marker. 5. Write the owner file: clean.
        """
        root = self._root
        now = checkpoints.store_fingerprint(root)
        points = checkpoints.format_offsets(ends)
        marker = checkpoints.CLEAN_SHUTDOWN_TEXT
        after = {
            "clean_shutdown": checkpoints.digest_of(marker),
            "recovery_points": checkpoints.digest_of(points),
        }
        self._write_owner(False, now, {**after, "clean_shutdown": None}, after)
        checkpoints.write_offsets(root, layout.RECOVERY_CHECKPOINT, ends)
        self.write_starts(starts)
        root.write_file(layout.CLEAN_SHUTDOWN, marker)
        self._write_owner(True, after)

    def move_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Replace the recovery points of a store that stays open, or unclean."""
        now = checkpoints.store_fingerprint(self._root)
        digest = checkpoints.digest_of(checkpoints.format_offsets(points))
        self._write_owner(False, now, {**now, "recovery_points": digest})
        checkpoints.write_offsets(self._root, layout.RECOVERY_CHECKPOINT, points)

    def _write_owner(self, clean: bool, *fingerprints: dict[str, Any]) -> None:
        value = self._owner_value(clean, *fingerprints)
        checkpoints.write_state(self._root, layout.OWNER, value)

    def _owner_value(
        self, clean: bool, *fingerprints: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "clean": clean,
            "fingerprints": list(fingerprints),
            "generation": self.store_epoch,
            "boot": self._boot(),
            place.FIELD: self._place or place.place_of(self._root),
        }


def _read_twice(read: Callable[[], _Value]) -> _Value:
    """Read a file that its writer changes in place if the disk is full: half of that
    may be seen once."""
    try:
        return read()
    except CorruptCheckpointError:
        return read()


def _nothing() -> None:
    """Until `begin`."""
