"""Paths that users give: what is there, and what kind of file a name stands for."""

from __future__ import annotations

from typing import Final

from logstore import layout
from logstore._files import Directory, Files
from logstore.errors import StoreNotFoundError, storage_error
from logstore.layout import (
    LOG,
    SNAPSHOT,
    TXN_INDEX,
    parse_segment_file,
)

OFFSET_CHECKPOINTS: Final = (
    layout.RECOVERY_CHECKPOINT,
    layout.LOG_START_CHECKPOINT,
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
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


def no_log_directory(path: str) -> StoreNotFoundError:
    """The error for a directory that is neither."""
    return StoreNotFoundError(
        f"{path} is no log directory: neither a store nor a partition directory",
        path=path,
    )


def kind_of_file(name: str) -> str:
    """A suffix of layout's, STATE, CHECKPOINT, or "" for what is not known."""
    parsed = parse_segment_file(name)
    if parsed is not None:
        return parsed.suffix
    if name in (layout.OWNER, layout.TOPICS, layout.PARTITION_STATE, layout.CLOSED):
        return STATE
    if name in (*OFFSET_CHECKPOINTS, layout.LEADER_EPOCHS, layout.PARTITION_METADATA):
        return CHECKPOINT
    for suffix in (LOG, SNAPSHOT, TXN_INDEX):
        if name.endswith(suffix):
            return suffix
    return ""
