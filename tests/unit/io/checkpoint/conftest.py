"""The directory of a store, for the tests of its small files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.files import Files


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Directory]:
    """An open directory without files."""
    found = Directory.open_root(Files(), str(tmp_path))
    yield found
    found.close()
