"""Work on several items at the same time."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from logstore.io.parallel import Workers, side_by_side


def refused(_: Callable[..., Any], __: tuple[Any, ...]) -> int:
    raise MemoryError


def lost(_: Callable[..., Any], __: tuple[Any, ...]) -> int:
    """Stand in for a thread that finds no memory for its first call."""
    return 1


@pytest.mark.parametrize("start", [refused, lost])
def test_without_threads_the_caller_does_the_work(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., int]
) -> None:
    """The caller does not wait for the end of a thread that never began."""
    monkeypatch.setattr(_thread, "start_new_thread", start)
    found = side_by_side(range(3), lambda number: number * 2, 2, poll_s=0.01)
    assert [one.result for one in found if one is not None] == [0, 2, 4]


def test_threads_end_without_work_and_begin_again() -> None:
    """An owner of workers pays nothing while there is no work."""
    with Workers(2) as workers:
        for _ in range(2):
            task = workers.submit(threading.get_ident)
            assert workers.wait(task, 60)
            assert task.result() != threading.get_ident()
            end = time.monotonic() + 60
            while workers._at_work:
                assert time.monotonic() < end
                time.sleep(0.01)


def test_work_that_another_caller_does_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without threads, two callers wait for the same task, and one of them does it."""
    monkeypatch.setattr(_thread, "start_new_thread", refused)
    begun, gate = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert gate.wait(60)
        return 1

    with Workers(1) as workers:
        task = workers.submit(work)
        monkeypatch.undo()
        other = threading.Thread(target=workers.wait, args=(task,))
        other.start()
        assert begun.wait(60)
        assert not workers.wait(task, 0.01)
        gate.set()
        assert workers.wait(task, 60)
        other.join(60)
        assert task.result() == 1


def test_error_of_one_item_is_raised_and_the_others_are_waited_for() -> None:
    done = []

    def work(number: int) -> int:
        if number == 1:
            raise ValueError(number)
        done.append(number)
        return number

    with pytest.raises(ValueError, match="1"):
        list(side_by_side(range(2), work, 2))
    assert done == [0]
