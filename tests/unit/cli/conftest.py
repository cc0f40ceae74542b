"""Fixtures of the tests of `logstore-dump`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.cli.main import main
from support.cli import RECORDS, SMALL, Result
from support.values import write_store


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `main` with arguments."""

    def call(*arguments: object) -> Result:
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """orders-0 of a store that was closed: magic 2, small segments."""
    return write_store(tmp_path / "store", RECORDS, magic=2, **SMALL)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two topics, one of them with two partitions."""
    path = tmp_path / "two"
    with logstore.open(path) as opened:
        for name, count in (("clicks", 2), ("orders", 1)):
            topic = opened.create_topic(name, partitions=count)
            for part in topic:
                for number in range(3):
                    part.append(b"%s-%d/%d" % (name.encode(), part.number, number))
    return path
