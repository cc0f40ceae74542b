"""Shared parts of the consumer tests; `path`, a store, is a fixture of each file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.groups import consumer


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., Any]]:
    """Opens consumers, and closes them at the end."""
    consumers: list[Any] = []

    def open_one(**given: Any) -> Any:
        consumers.append(consumer(given.pop("store", path), **given))
        return consumers[-1]

    yield open_one
    for one in consumers:
        one.close()
