"""Transactions whose end is interrupted, or that are never ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.group.consumer import transaction as transaction_module
from support.groups import copy_some, drain, outputs, store_with
from support.interrupts import InterruptAtCall

ALL = sorted(b"%d:%d" % (p, n) for p in range(2) for n in range(10))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store_with(tmp_path / "s")
    with logstore.open(tmp_path / "s") as store:
        store.create_topic("out")
    return tmp_path / "s"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_second_interrupt_at_any_call_of_an_end_loses_and_repeats_nothing(
    tmp_path: Path, opened: Callable[..., Any], ways_to_end: Callable[..., Any]
) -> None:
    """The first one has ended the transaction without a commit, so its input is
    delivered again, even if that was interrupted, too."""
    path = store_with(tmp_path / "long", 1, 300)
    with logstore.open(path) as store:
        store.create_topic("out")
    one, copied, call = opened(store=path), 0, 1
    while True:
        tracer = InterruptAtCall(call)
        with pytest.raises((RuntimeError, InterruptAtCall.Interrupt)):
            ways_to_end(one, tracer)
        for _ in range(2):
            # A consumer with an unfinished transaction gets this error once.
            with contextlib.suppress(logstore.errors.CommitFailedError):
                copied += copy_some(one, 1)
                break
        assert len(outputs(path)) == copied == call
        if not tracer.has_raised:
            break
        call += 1
    assert call > 5
    while copied_now := copy_some(one, 50):
        copied += copied_now
    assert outputs(path) == sorted(b"0:%d" % n for n in range(300))


def _raises_in_the_block(one: Any, tracer: InterruptAtCall) -> None:
    try:
        with one.transaction() as transaction:
            for record in drain(one, 3):
                transaction.append("out", record)
            tracer.__enter__()
            raise RuntimeError
    finally:
        tracer.__exit__()


def _fails_to_commit(one: Any, tracer: InterruptAtCall) -> None:
    def submit(*_: Any, **__: Any) -> Any:
        tracer.__enter__()
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        transaction = one.transaction()
        for record in drain(one, 3):
            transaction.append("out", record)
        patch.setattr(transaction_module, "submit_for_group", submit)
        try:
            transaction.commit()
        finally:
            tracer.__exit__()


@pytest.fixture(params=[_raises_in_the_block, _fails_to_commit])
def ways_to_end(request: pytest.FixtureRequest) -> Callable[..., Any]:
    way: Callable[..., Any] = request.param
    return way


def test_transaction_that_is_left_open_is_aborted_by_the_next_one(
    path: Path, opened: Callable[..., Any]
) -> None:
    """Its records are not in the store, so its input comes again. An unused one does
    not count as open."""
    one = opened()
    one.transaction()
    left = one.transaction()
    assert len(drain(one, 7)) == 7
    left.append("out", b"x")
    for _ in range(2):
        with pytest.raises(
            logstore.errors.CommitFailedError, match="neither committed nor"
        ):
            one.transaction()
        with one.transaction() as other:
            with pytest.raises(
                logstore.errors.CommitFailedError, match="neither committed"
            ):
                one.transaction()
        with pytest.raises(logstore.ConfigError, match="was left"):
            other.append("out", b"x")
        left = one.transaction().__enter__()
    left.commit()
    while copy_some(one, 7):
        pass
    assert outputs(path) == ALL


def test_commit_in_the_thread_that_has_the_store_open_does_not_wait_for_it(
    path: Path, opened: Callable[..., Any]
) -> None:
    """The consumer has opened the store by its path: nobody else could publish."""
    with logstore.open(path):
        one = opened(store=path)
        while copy_some(one):
            pass
    assert outputs(path) == ALL
