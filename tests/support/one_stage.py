"""A store with one partition, and a stage of records for it, published in each way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore import Partition, Store
from logstore.io import layout
from logstore.log.write.staged_files import Staged
from support.adopting import adopting
from support.values import config_of


@pytest.fixture(params=["copied", "adopted"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        if request.param == "adopted":
            stack.enter_context(adopting())
        yield request.param


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with logstore.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def partition(store: Store) -> Partition:
    return store.create_topic("t", 1, config_of(2))[0]


def stage(store: Store, partition: Partition, *values: bytes) -> Staged:
    with store.stage("me", 1) as opened:
        opened.append_many(partition, list(values) or [b"x"])
        return opened.finish()


def staged_files(store: Store) -> list[str]:
    names = os.listdir(store.path)
    return [name for name in names if name.startswith(layout.STAGED_PREFIX)]
