"""Copying a store or a partition, to repair the copy: the source is only read.

Bytes that the system refuses to read become zeros in the copy. No batch begins with
zeros, so the repair of the copy leaves them out like any other damage.
"""

from __future__ import annotations

import contextlib

from logstore import _native as native
from logstore.errors import ConfigError, CorruptCheckpointError, storage_error
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.layout import parse_partition_directory
from logstore.maintenance.repair.report import LEFT_OUT, RepairAction

# Bytes left out when a read fails.
_BLOCK_BYTES = 4096
_COPY_BYTES = 1 << 20


def copy_store(
    root: Directory, to: Directory, only: str | None, chosen: list[str]
) -> list[RepairAction]:
    """Copy the files of a store into an empty directory.

    Args:
        only: the directory of a partition: no files of the others are copied.
        chosen: the directories of partitions.

    Returns the parts that could not be read.
    """
    actions: list[RepairAction] = []
    for name in root.names():
        if name in (layout.LOCK, layout.LOCK_RECORD) or not root.stat(name).is_file:
            continue
        if name.startswith(layout.QUARANTINE_PREFIX):
            continue
        if name == layout.TOPICS and only is not None:
            _copy_topic(root, to, only)
            continue
        _copy_file(root, name, to, actions)
    for name in chosen:
        to.make(name)
        source, target = root.child(name), to.child(name)
        for file in source.names():
            if source.stat(file).is_file:
                _copy_file(source, file, target, actions)
                continue
            if file.startswith(layout.OWN_PREFIX):
                continue
            path = source.path_of(file)
            actions.append(_omission(path, None, 0, f"{path} is not a regular file"))
        target.sync()
    to.sync()
    return actions


def _copy_topic(root: Directory, to: Directory, only: str) -> None:
    """Copy the settings of one topic; without them it has the defaults. If partitions
    come before the copied one, copy none: they would be reported as missing."""
    key = parse_partition_directory(only)
    with contextlib.suppress(CorruptCheckpointError, KeyError, TypeError):
        value = checkpoints.read_state(root, layout.TOPICS)
        if value is None or key is None or key[1] != 0:
            return
        settings = {**value["topics"][key[0]], "partitions": 1}
        checkpoints.write_state(to, layout.TOPICS, {"topics": {key[0]: settings}})


def _copy_file(
    source: Directory, name: str, to: Directory, actions: list[RepairAction]
) -> None:
    files = source.files
    path = source.path_of(name)
    buffer = native.Buffer(_COPY_BYTES)
    try:
        fd = source.open(name)
    except OSError as error:
        message = str(storage_error(error, "open", path))
        actions.append(_omission(path, None, 0, message))
        return
    try:
        to_fd = to.create(name)
        try:
            size, pos, step = files.size(fd), 0, _COPY_BYTES
            while pos < size:
                view = buffer.view[: min(step, size - pos)]
                try:
                    n = files.read(fd, view, pos)
                except OSError as error:
                    if step > _BLOCK_BYTES:
                        step = _BLOCK_BYTES
                        continue
                    n = min(_BLOCK_BYTES - pos % _BLOCK_BYTES, size - pos)
                    view = buffer.view[:n]
                    view[:] = bytes(n)
                    message = str(storage_error(error, "read", path))
                    actions.append(_omission(path, pos, n, message))
                if n == 0:
                    break
                files.write(to_fd, view[:n], pos)
                pos += n
                step = _COPY_BYTES if pos % _COPY_BYTES == 0 else step
            files.sync(to_fd)
        finally:
            files.close(to_fd)
    finally:
        files.close(fd)


def _omission(path: str, pos: int | None, size: int, message: str) -> RepairAction:
    return RepairAction(LEFT_OUT, path, pos, size, None, None, None, message)


def check_empty(to: Directory) -> None:
    """Raise `ConfigError` unless a directory is empty."""
    if to.names():
        raise ConfigError(
            f"{to.path} is not empty; nothing was done", name="to", value=to.path
        )
