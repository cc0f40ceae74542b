"""Paths that users give: what is there, and what kind of file a name stands for."""

from __future__ import annotations

import os
from typing import Final

from logstore import layout
from logstore._files import Directory, Files
from logstore.errors import StoreNotFoundError, storage_error
from logstore.layout import (
    LOG,
    SNAPSHOT,
    TXN_INDEX,
    parse_partition_directory,
    parse_segment_file,
)

OFFSET_CHECKPOINTS: Final = (
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
PARTITION_METADATA: Final = layout.PARTITION_METADATA
# Kinds of files that no suffix tells.
CHECKPOINT: Final = "checkpoint"
STATE: Final = "state"


def open_root(files: Files, path: str) -> Directory:
    try:
        return Directory.open_root(files, path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {path}", path=path) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error


def is_directory(files: Files, path: str) -> bool:
    try:
        files.close(files.open_root(path))
    except NotADirectoryError:
        return False
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {path}", path=path) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error
    return True


# Files of a log directory's root that no other program uses. (`.lock` is not among
# them: many do.)
_ROOT_FILES: Final = frozenset(
    {
        layout.CLEAN_SHUTDOWN,
        layout.META_PROPERTIES,
        layout.OWNER,
        layout.TOPICS,
        *OFFSET_CHECKPOINTS,
    }
)
_PARTITION_FILES: Final = frozenset(
    {layout.PARTITION_STATE, layout.LEADER_EPOCHS, PARTITION_METADATA}
)


def is_partition(root: Directory, names: list[str]) -> bool:
    """Whether a directory with these names in it is one of a partition: because of the
    files in it, or, if all of them are lost, because it has a partition's name and its
    parent has the files of a store."""
    if _has_log(names):
        return True
    if parse_partition_directory(root.name) is None or is_store(root, names):
        return False
    try:
        parent = Directory.open_root(root.files, os.path.dirname(root.path))
    except OSError:
        return False
    try:
        return not _ROOT_FILES.isdisjoint(parent.names())
    except OSError:
        return False
    finally:
        parent.close()


def is_store(root: Directory, names: list[str]) -> bool:
    """Whether a directory with these names in it is a store (a log directory): it has
    the files of one, or a directory with a partition's name that has a partition's
    files. Names of directories alone say nothing: `/etc` has ``dbus-1``."""
    if not _ROOT_FILES.isdisjoint(names):
        return True
    inside: list[str] = []
    for name in names:
        if parse_partition_directory(name):
            child = root.child(name)
            try:
                found = child.names()
            except OSError:
                continue
            finally:
                child.close()
            if _has_log(found):
                return True
            inside += found
    return not inside and _is_empty_store(names)


def _is_empty_store(names: list[str]) -> bool:
    """Whether there is a lock and nothing else but directories of partitions (which are
    empty): many programs have a `.lock`."""
    return layout.LOCK in names and all(
        name == layout.LOCK
        or name.startswith(layout.OWN_PREFIX)
        or parse_partition_directory(name)
        for name in names
    )


def no_log_directory(path: str) -> StoreNotFoundError:
    """The error for a directory that is neither."""
    return StoreNotFoundError(
        f"{path} is no log directory: neither a store nor a partition directory",
        path=path,
    )


def _has_log(names: list[str]) -> bool:
    return any(name in _PARTITION_FILES or parse_segment_file(name) for name in names)


def kind_of_file(name: str) -> str:
    """A suffix of layout's, STATE, CHECKPOINT, or "" for what is not known."""
    parsed = parse_segment_file(name)
    if parsed is not None:
        return parsed.suffix
    if name in (layout.OWNER, layout.TOPICS, layout.PARTITION_STATE, layout.CLOSED):
        return STATE
    if name in (*OFFSET_CHECKPOINTS, layout.LEADER_EPOCHS, PARTITION_METADATA):
        return CHECKPOINT
    for suffix in (LOG, SNAPSHOT, TXN_INDEX):
        if name.endswith(suffix):
            return suffix
    return ""
