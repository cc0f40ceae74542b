"""Paths that users give: whether they exist, and the kind of file of a name."""

from __future__ import annotations

from typing import Final

from logstore.errors import StoreNotFoundError, storage_errors
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import is_partition, is_store, open_root
from logstore.io.layout import (
    LOG,
    SNAPSHOT,
    TXN_INDEX,
    parse_partition_directory,
    parse_segment_file,
)

OFFSET_CHECKPOINTS: Final = (
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
    layout.HIGH_WATERMARKS,
    "cleaner-offset-checkpoint",
)
# Kinds of files that have no own suffix.
CHECKPOINT: Final = "checkpoint"
STATE: Final = "state"


def no_log_directory(path: str) -> StoreNotFoundError:
    """The error for a directory that is neither a store nor a partition directory."""
    return StoreNotFoundError(
        f"{path} is not a log directory: neither a store nor a partition directory",
        path=path,
    )


def open_given(files: Files, path: str) -> tuple[Directory, list[str], bool]:
    """A directory that a user gives: (it, the names in it, whether it is that of a
    partition; else it is a store's).

    Raises:
        StoreNotFoundError: it is neither, or does not exist.
        StorageError: it cannot be read.
    """
    directory = open_root(files, path)
    try:
        with storage_errors("read", path):
            names = directory.names()
            is_one = is_partition(directory, names)
            if not is_one and not is_store(directory, names):
                raise no_log_directory(path)
    except BaseException:
        directory.close()
        raise
    return directory, names, is_one


def partitions_in(root: Directory) -> list[str]:
    """The names of the directories of partitions in a store's directory."""
    return [name for name in root.directories() if parse_partition_directory(name)]


def kind_of_file(name: str) -> str:
    """A suffix of layout's, STATE, CHECKPOINT, or "" for an unknown name."""
    parsed = parse_segment_file(name)
    if parsed is not None:
        return parsed.suffix
    if name in (
        layout.OWNER,
        layout.TOPICS,
        layout.PUBLISHED,
        layout.UNKNOWN,
        layout.PRODUCERS,
        layout.PARTITION_STATE,
        layout.CLOSED,
    ):
        return STATE
    if name in (*OFFSET_CHECKPOINTS, layout.LEADER_EPOCHS, layout.PARTITION_METADATA):
        return CHECKPOINT
    for suffix in (LOG, SNAPSHOT, TXN_INDEX):
        if name.endswith(suffix):
            return suffix
    return ""
