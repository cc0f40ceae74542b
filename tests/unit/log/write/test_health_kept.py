"""Errors that are kept, and raised to one caller after the other: they keep no
reference to their callers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import LogStoreError, Store


class _Thing:
    """Stands for a caller's object: a store that it has forgotten, for example."""


def _closed(store: Store) -> Callable[[], object]:
    writer = store["t"][0]._writer
    assert writer is not None
    store.close()
    return lambda: writer.health.check(lambda: None)


def _failed(store: Store) -> Callable[[], object]:
    partition = store["t"][0]
    partition._writer.fail(OSError(5, "it broke"))  # type: ignore[union-attr]
    return lambda: partition.append(b"x", durable=True)


def _damaged(store: Store) -> Callable[[], object]:
    partition = store["t"][0]
    log = Path(partition.path) / "00000000000000000000.log"
    store.close()
    log.unlink()
    again = logstore.open(store.path)
    return lambda: again["t"][0].append(b"x")


def _deleted(store: Store) -> Callable[[], object]:
    partition = store["t"][0]
    store.delete_topic("t")
    return lambda: list(partition.read())


@pytest.mark.parametrize("broken", [_closed, _failed, _damaged, _deleted])
def test_error_that_is_kept_keeps_nothing_of_its_callers(
    tmp_path: Path, broken: Callable[[Store], Callable[[], object]]
) -> None:
    store = logstore.open(tmp_path)
    store.create_topic("t")[0].append_many([b"a", b"b"], durable=True)
    call = broken(store)

    def caller() -> tuple[weakref.ref[_Thing], str]:
        thing = _Thing()
        try:
            call()
        except LogStoreError as error:
            return weakref.ref(thing), str(error)
        raise AssertionError("it did not fail")

    first, text = caller()
    assert first() is None
    second, same = caller()
    assert second() is None
    assert same == text
    store.close()


class _OfTheCaller(Exception):
    """Has no copy: its constructor takes other arguments than it keeps."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_error_of_a_caller_is_raised_again_though_it_has_no_copy(
    tmp_path: Path,
) -> None:
    """A reader of Arrow raises it again, and must not take it for the end."""
    error = _OfTheCaller("not", "this")

    def refused(_: object) -> bool:
        raise error

    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"a", b"b"], durable=True)
        log = tmp_path / "t-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    with logstore.open(tmp_path, read_only=True) as store:
        batches = store["t"][0].read_arrow(on_corruption=refused)
        for _ in range(2):
            with pytest.raises(_OfTheCaller, match="not this"):
                list(batches)


def test_log_that_an_error_of_a_caller_has_ended_takes_no_appends(
    tmp_path: Path,
) -> None:
    """The error of the log keeps it as its cause."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        partition.append(b"a", durable=True)
        writer = partition._writer
        assert writer is not None
        cause = _OfTheCaller("not", "this")
        failure = logstore.errors.SyncFailedError("it broke", path="", action="sync")
        failure.__cause__ = cause
        assert writer.health.fail(failure) is failure
        assert writer.health.failed is not None
        assert writer.health.failed.__cause__ is cause
        with pytest.raises(logstore.errors.SyncFailedError, match="it broke"):
            partition.append(b"b")
