"""Directories without files, on the disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.files import Files
from support.disk import MemoryDisk


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """An open directory without files."""
    found = Directory.open_root(Files(), str(tmp_path))
    yield found
    found.close()


@pytest.fixture
def root(directory: Directory) -> Directory:
    """The same, as the root of a store."""
    return directory


@pytest.fixture
def disk() -> MemoryDisk:
    """A disk in memory, with an empty directory for a store."""
    found = MemoryDisk()
    found.make_root("/store")
    return found
