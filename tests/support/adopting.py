"""Staged files of any size become segments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from logstore.log.write import import_segment as adoption
from logstore.log.write import staging

__all__ = ["adopting"]


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Where it is possible at all, that is for magic 2. For the whole process."""
    with (
        mock.patch.object(staging, "OWN_FILE_BYTES", 1),
        mock.patch.object(adoption, "ADOPT_BYTES_MIN", 1),
        mock.patch.object(adoption, "ADOPT_SHARE", 1 << 40),
        mock.patch.object(adoption, "BATCH_BYTES_MIN", 0),
    ):
        yield
