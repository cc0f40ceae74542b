"""Facts about a log from outside: checkpoints, and logstore's own state."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from logstore.config import TopicConfig, from_stored
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    LogStoreError,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.partition_state import (
    PartitionMetadata,
    PartitionState,
)
from logstore.io.checkpoint.publications import Publications
from logstore.io.checkpoint.recovery_report import OTHER_WRITER, RecoveryAction
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import TopicPartition, parse_partition_directory
from logstore.maintenance.finding import CHECKPOINT, STATE
from logstore.maintenance.verify.report import Run

_Read = TypeVar("_Read")

# Maximum number of times the ownership is read, while they change all the time.
_READS_MAX: Final = 10

_METADATA_TEXT: Final = re.compile(
    r"version:\s*[0-9]+\s*\n\s*topic_id:\s*[A-Za-z0-9_-]{22}\s*"
)


NOTHING_KNOWN: Final = PartitionMetadata(None, False, 0, 0, False, is_point_known=False)


class StoreMetadata:
    """Facts from the files of a store's directory. With `run`, faults are reported."""

    def __init__(self, root: Directory, run: Run | None = None) -> None:
        self.root = root
        run = run or Run(root.files, False, None)  # its findings are dropped
        for _ in range(_READS_MAX):
            # A writer that opens or closes the store changes these files one by one.
            self.cache_key = ownership_key(root)
            self.run = run.child()
            self._read()
            if ownership_key(root) == self.cache_key:
                break
        run.merge(self.run)

    def _read(self) -> None:
        self.names = self.root.names()
        ownership = self.ownership = self._ownership()
        self.publications = Publications(self.root)
        self.own, self.clean = ownership.is_own, ownership.is_clean
        self.is_same_boot = ownership.is_same_boot
        self.owner_stamp = ownership.owner_stamp
        self.store_epoch = ownership.store_epoch
        self.points = self._offsets(layout.RECOVERY_CHECKPOINT)
        self.starts = self._offsets(layout.LOG_START_CHECKPOINT)

    def _published_end(self, key: TopicPartition) -> int:
        """Where the journal of publications says that a log ends; -1: it does not. What
        is wrong with it is found elsewhere."""
        try:
            return self.publications.durable_ends(self.ownership).get(key, -1)
        except (OSError, LogStoreError):
            return -1

    def now(self, directory: Directory, run: Run | None = None) -> PartitionMetadata:
        """The facts about a partition. Reads the ownership again if these facts are
        old: a writer may have opened or closed the store since."""
        is_old = ownership_key(self.root) != self.cache_key
        facts = StoreMetadata(self.root) if is_old else self
        return facts.context(directory, run)

    def _ownership(self) -> Ownership:
        ownership = Ownership(self.root)
        with self.run.reporting(STATE, self.root.path_of(layout.OWNER)):
            ownership.read_owner(self._report)
        return ownership

    def _report(self, action: RecoveryAction) -> None:
        if action.label == OTHER_WRITER:
            message = (
                "another program has written to the store since logstore did; "
                "logstore's state of its partitions is ignored"
            )
            self.run.note(OTHER_WRITER, action.path, message)
        else:
            self.run.problem(STATE, action.path, action.message)

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        with (
            self.run.reporting(CHECKPOINT, self.root.path_of(name)),
            contextlib.suppress(CorruptCheckpointError),  # found by its own check
        ):
            return checkpoints.read_offsets(self.root, name)
        return {}

    def context(
        self, directory: Directory, run: Run | None = None
    ) -> PartitionMetadata:
        """The facts about the partition in `directory`."""
        key = parse_partition_directory(directory.name)
        faults: list[CorruptCheckpointError] = []

        def read(parent: Directory) -> PartitionState | None:
            try:
                return PartitionState.read(parent)
            except CorruptCheckpointError as error:
                faults.append(error)
                raise

        run = run or self.run.child()  # its faults are dropped
        state = read_own(directory, layout.PARTITION_STATE, run, read)
        if key is None:
            return NOTHING_KNOWN
        counts = (
            self.own and state is not None and state.store_epoch == self.store_epoch
        )
        return PartitionMetadata.of(
            directory,
            state if counts else None,
            faults[0] if faults and self.own else None,
            is_own=self.own,
            is_clean=self.clean,
            is_same_boot=self.is_same_boot,
            owner_stamp=self.owner_stamp,
            store_epoch=self.store_epoch,
            point=self.points.get(key),
            log_start=self.starts.get(key, 0),
            published=self._published_end(key),
            stale=None if counts else state,
        )


def ownership_key(root: Directory) -> object:
    """A value that changes when a file of the ownership is replaced or removed."""
    try:
        return Ownership(root).cache_key()
    except OSError as error:
        return repr(error)


def own_state(directory: Directory, name: str, run: Run) -> dict[str, Any] | None:
    """A state file of logstore's; None if it is missing or (reported) bad."""
    return read_own(
        directory, name, run, lambda parent: checkpoints.read_state(parent, name)
    )


def read_own(
    directory: Directory, name: str, run: Run, read: Callable[[Directory], _Read | None]
) -> _Read | None:
    """The result of `read` for a file of logstore's; None if the file is missing or
    bad, which is reported to `run`."""
    with run.reporting(STATE, directory.path_of(name)):
        return read(directory)
    return None


def check_checkpoint(run: Run, directory: Directory, name: str) -> None:
    """A text file of Kafka's; faults are reported."""
    path = directory.path_of(name)
    with run.reporting(CHECKPOINT, path):
        if name == layout.LEADER_EPOCHS:
            epochs = checkpoints.read_epochs(directory)
            if epochs != sorted(epochs) or any(min(entry) < 0 for entry in epochs):
                run.problem(CHECKPOINT, path, f"checkpoint {path} is out of order")
        elif name == layout.PARTITION_METADATA:
            text = directory.read_file(name).decode("utf-8", "replace")
            if not _METADATA_TEXT.fullmatch(text):
                run.problem(CHECKPOINT, path, f"{path} has no version and topic id")
        else:
            checkpoints.read_offsets(directory, name)


def context_of(
    files: Files, directory: Directory, run: Run | None = None
) -> PartitionMetadata:
    """The context of a partition directory that was given by itself."""
    try:
        root = Directory.open_root(files, os.path.dirname(directory.path))
    except OSError:
        return NOTHING_KNOWN
    try:
        return StoreMetadata(root).context(directory, run)
    except OSError:
        return NOTHING_KNOWN
    finally:
        root.close()


def settings_of(root: Directory) -> dict[str, TopicConfig]:
    """The readable settings that logstore has of the topics of a store."""
    settings: dict[str, TopicConfig] = {}
    try:
        value = checkpoints.read_state(root, layout.TOPICS) or {"topics": {}}
    except (OSError, LogStoreError, ValueError):
        return settings
    for topic, row in value["topics"].items():
        with contextlib.suppress(KeyError, TypeError, ConfigError):
            settings[topic] = from_stored(row["config"])
    return settings


def topic_config(root: Directory, directory: Directory) -> TopicConfig:
    """The settings of a partition's topic, or the defaults."""
    key = parse_partition_directory(directory.name)
    return settings_of(root).get(key[0] if key else "", TopicConfig())
