"""How the files of a publication get into the logs, in programs of tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from logstore.log.write import import_segment as adoption
from logstore.log.write import staged_files, staging

__all__ = ["adopting", "copying"]


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Adopt each staged file whole if possible (magic 2). For the whole process."""
    with (
        mock.patch.object(staging, "OWN_FILE_BYTES", 1),
        mock.patch.object(adoption, "ADOPT_BYTES_MIN", 1),
        mock.patch.object(adoption, "ADOPT_SHARE", 1 << 40),
        mock.patch.object(adoption, "BATCH_BYTES_MIN", 0),
    ):
        yield


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """Treat no staged file as small: each is read when its records are appended, not
    when it is checked. For the whole process."""
    with mock.patch.object(staged_files, "_SMALL_BYTES", 0):
        yield
