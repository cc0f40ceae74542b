"""Removes staged files that will not be published any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from logstore._native.locks import logger
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.log.write.staged_files import StagedLog, staged_sequence

__all__ = ["discard", "discard_leftovers", "discard_older"]


def discard(root: Directory, logs: Iterable[StagedLog]) -> None:
    """Remove staged files; one that cannot be removed costs only its space."""
    for name in dict.fromkeys(log.file for log in logs):
        _remove(root, name)


def discard_leftovers(root: Directory, identity: str, before: int) -> None:
    """Remove the staged files of an identity with a sequence below `before`."""
    with contextlib.suppress(OSError):
        for name in root.names():
            sequence = staged_sequence(name, identity)
            if sequence is not None and sequence < before:
                _remove(root, name)


def discard_older(root: Directory, before_ms: int) -> None:
    """Remove the staged files of all identities that were last written to before a
    time: they will not be published any more."""
    with contextlib.suppress(OSError):
        for name in root.names():
            if not name.startswith(layout.STAGED_PREFIX):
                continue
            with contextlib.suppress(FileNotFoundError):
                if root.stat(name).mtime_ns < before_ms * 1_000_000:
                    _remove(root, name)


def _remove(root: Directory, name: str) -> None:
    try:
        root.unlink(name, missing_ok=True)
    except OSError as error:
        logger.warning("cannot remove the staged file %s: %s", name, error)
