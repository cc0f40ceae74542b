"""Errors that are kept, and raised to one caller after the other: they keep nothing of
their callers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import LogStoreError, Store


class _Thing:
    """What a caller has: a store that it has forgotten, for example."""


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
