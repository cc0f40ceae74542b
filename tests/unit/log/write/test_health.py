"""The reasons why a log takes no appends."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from logstore._native.locks import Signal
from logstore.config import TopicConfig
from logstore.errors import (
    CorruptRecordError,
    LogStoreError,
    StoreClosedError,
    SyncFailedError,
)
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.log.write.context import LogContext
from logstore.log.write.health import Health


def made(path: Path, damage: LogStoreError | None = None) -> Health:
    directory = Directory(Files(), str(path))
    services = cast(Any, None)  # it asks its store for nothing
    context = LogContext(
        services, directory, "orders", 0, TopicConfig(), log_id="",
        is_contiguous=True, foreign_end=0,
    )  # fmt: skip
    return Health(context, damage, Signal())


def sync_failed(text: str) -> SyncFailedError:
    return SyncFailedError(text, errno=errno.EIO, path="/a", action="sync")


def nothing() -> None:
    """Do nothing: there is nothing to repair."""


def test_first_failure_is_the_one_that_counts(tmp_path: Path) -> None:
    """Each later append raises it, in a separate error."""
    health = made(tmp_path)
    health.check(nothing)
    first, second = sync_failed("first"), sync_failed("second")
    assert health.fail(first) is first
    assert health.fail(second) is second  # for its caller
    assert health.is_blocked
    assert health.has_ended
    assert not health.is_intact
    for _ in range(2):
        with pytest.raises(SyncFailedError, match="first") as caught:
            health.check(nothing)
        assert caught.value is not first
        assert caught.value.__cause__ is not first  # which has frames of its caller
        assert str(caught.value.__cause__) == str(first)
        assert caught.value.errno == errno.EIO


def test_failure_counts_as_heard_when_it_was_raised(tmp_path: Path) -> None:
    health = made(tmp_path)
    health.fail(sync_failed("first"))
    health.is_unheard = True
    with pytest.raises(SyncFailedError):
        health.check(nothing)
    assert not health.is_unheard


def test_damage_alone_lets_records_be_deleted(tmp_path: Path) -> None:
    damage = CorruptRecordError("broken", path="/a", position=1, offset=2)
    health = made(tmp_path, damage)
    assert health.is_blocked
    assert health.is_only_damaged
    with pytest.raises(CorruptRecordError):
        health.check(nothing)
    health.suspended = StoreClosedError("for now")
    assert not health.is_only_damaged
    with pytest.raises(StoreClosedError, match="for now"):
        health.check(nothing)
    health.suspended = None
    health.fail(sync_failed("first"))
    assert not health.is_only_damaged


def test_refusal_does_not_take_the_place_of_damage(tmp_path: Path) -> None:
    health = made(tmp_path)
    first, second = LogStoreError("first"), LogStoreError("second")
    health.refuse(first)
    health.refuse(second)
    assert health.damage is first
    assert health.has_ended


def test_interrupted_call_is_finished_before_an_append(tmp_path: Path) -> None:
    """A log that takes no appends anyhow does not finish it."""
    health, calls = made(tmp_path), list[int]()
    health.check(lambda: calls.append(1))
    assert calls == [1]
    assert isinstance(health.poison(), SyncFailedError)
    with pytest.raises(SyncFailedError, match="interrupted half-way"):
        health.check(lambda: calls.append(2))
    health.closed = StoreClosedError("closed")
    with pytest.raises(StoreClosedError):
        health.check(lambda: calls.append(3))
    assert calls == [1]
