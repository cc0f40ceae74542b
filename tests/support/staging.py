"""Records staged for a publication, in each way in which they get into the log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    Partition,
    Store,
)
from logstore.io import layout
from logstore.log.write.staged_files import Staged
from support.adopting import adopting
from support.values import (
    headers_of,
    key_of,
    timestamp_of,
    value_of,
)


class WAY:
    """How records get into the log in this test: copied, or adopted with the staged
    file, which requires magic 2."""

    magic = 1


@pytest.fixture(params=["copied", "adopted"], autouse=True)
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "adopted":
            monkeypatch.setattr(WAY, "magic", 2)
            stack.enter_context(adopting())
        yield request.param


def stage(store: Store, counts: dict[Partition, int], sequence: int = 0) -> Staged:
    """The next records of these partitions, staged."""
    with store.stage("test", sequence) as opened:
        for partition, count in counts.items():
            first = partition.end_offset
            for begin in range(first, first + count, 7):
                offsets = range(begin, min(begin + 7, first + count))
                two = partition.config.message_format == 2
                opened.append_many(
                    partition,
                    [value_of(o) for o in offsets],
                    [key_of(o) for o in offsets],
                    [timestamp_of(o) for o in offsets],
                    [headers_of(o) for o in offsets] if two else None,
                )
        return opened.finish()


def staged_files(path: Path) -> list[str]:
    return [n for n in os.listdir(path) if n.startswith(layout.STAGED_PREFIX)]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with logstore.open(tmp_path / "store") as opened:
        yield opened
