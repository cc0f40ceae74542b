"""The kind of a path: a store, a partition directory, a file, or no part of a log.

The rule is that of `logstore.verify`: a directory is a log directory because of the
files in it, never because of its name or its subdirectories' names (`/etc` has
``dbus-1``).
"""

from __future__ import annotations

import os
import re
from typing import Final

import logstore

STORE: Final = "store"
PARTITION: Final = "partition"
FILE: Final = "file"

_DIRECTORY: Final = re.compile(r".+-(0|[1-9][0-9]*)")
_SEGMENT: Final = re.compile(
    r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)(\.deleted|\.cleaned|\.swap)?"
)
_PARTITION_FILES: Final = frozenset(
    {".logstore-state", "leader-epoch-checkpoint", "partition.metadata"}
)
_STORE_FILES: Final = frozenset(
    {
        ".kafka_cleanshutdown",
        "meta.properties",
        ".logstore-owner",
        ".logstore-topics",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
    }
)


def kind_of(path: str, shown: str = "") -> str:
    """`STORE`, `PARTITION` or `FILE`.

    Args:
        path: absolute.
        shown: how errors name it.

    Raises:
        StoreNotFoundError: nothing exists there, or it is a directory, but not a log
            directory.
        OSError: the directory cannot be read.
    """
    shown = shown or path
    if not os.path.lexists(path):
        raise logstore.StoreNotFoundError(
            f"no such file or directory: {shown}", path=path
        )
    if not os.path.isdir(path):
        return FILE
    names = os.listdir(path)
    if _has_partition_files(names):
        return PARTITION
    if (
        not _STORE_FILES.isdisjoint(names)
        or _is_empty_store(names)
        or _has_partitions(path, names)
    ):
        return STORE
    parent = os.path.dirname(path)
    if _DIRECTORY.fullmatch(os.path.basename(path)) and not _STORE_FILES.isdisjoint(
        os.listdir(parent)
    ):
        return PARTITION  # without its files: verify reports which are lost
    raise logstore.StoreNotFoundError(
        f"{shown} is not a log directory: neither a store nor a partition directory",
        path=path,
    )


def check_store(path: str) -> None:
    """Raise an error, which names the path given, unless it is a store.

    Raises:
        StoreNotFoundError, OSError: as `kind_of`.
    """
    full = os.path.abspath(path)
    kind = kind_of(full, path)
    if kind != STORE:
        raise logstore.StoreNotFoundError(
            f"{path} is a {kind}{' directory' * (kind == PARTITION)}: give the log "
            "directory that contains it",
            path=full,
        )


def _has_partition_files(names: list[str]) -> bool:
    return any(_SEGMENT.fullmatch(name) or name in _PARTITION_FILES for name in names)


def _is_empty_store(names: list[str]) -> bool:
    """Whether there is a lock and nothing else: many programs have a `.lock`."""
    return ".lock" in names and all(
        name == ".lock" or name.startswith(".logstore") or _DIRECTORY.fullmatch(name)
        for name in names
    )


def _has_partitions(path: str, names: list[str]) -> bool:
    """Whether one of its directories is a partition's by its name and by its files."""
    for name in names:
        if _DIRECTORY.fullmatch(name):
            try:
                inside = os.listdir(os.path.join(path, name))
            except OSError:
                continue
            if _has_partition_files(inside):
                return True
    return False
