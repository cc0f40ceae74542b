"""Calls: an object that is for one thread at a time has one call at a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from faults.tracing import PENDING, make_pending
from logstore import _native as native
from logstore.errors import ReentrantCallError


@pytest.fixture
def calls() -> native.Calls:
    return native.Calls("a thing")


def test_a_call_has_the_value(calls: native.Calls) -> None:
    for value in ("one", "two"):
        with calls.call(value, False) as found:
            assert found == value
    assert not calls.is_open


def test_a_call_inside_of_another_is_refused(calls: native.Calls) -> None:
    """This includes a call that callbacks may make: no callback runs."""
    with calls.call(1, True):
        for inside in (False, True):
            with pytest.raises(
                ReentrantCallError, match="a thing is in a call of this"
            ):
                calls.call(2, inside).__enter__()
    with calls.call(3, False) as found:
        assert found == 3


def test_a_callback_makes_calls_that_are_for_it(calls: native.Calls) -> None:
    with calls.call(1, False):
        calls.is_open = True
        with pytest.raises(
            ReentrantCallError, match="from inside one of its callbacks"
        ):
            calls.call(2, False).__enter__()
        for _ in range(2):
            with calls.call(3, True) as found:
                assert found == 3
                assert not calls.is_open
                with pytest.raises(ReentrantCallError, match="of this thread"):
                    calls.call(4, True).__enter__()
            assert calls.is_open
    assert not calls.is_open


def test_a_call_of_another_thread_is_refused(calls: native.Calls) -> None:
    """It is refused even while a callback runs."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            calls.call(2, True).__enter__()
        except ReentrantCallError as error:
            errors.append(error)

    with calls.call(1, False):
        calls.is_open = True
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "another thread" in str(errors[0])


def test_the_child_of_a_fork_is_in_no_call(calls: native.Calls) -> None:
    with calls.call(1, False):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with calls.call(2, False) as found:
                    status = found - 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(ReentrantCallError):
            calls.call(3, False).__enter__()


def test_the_end_of_a_call_that_was_not_begun_does_nothing(calls: native.Calls) -> None:
    with calls.call(1, False):
        calls.call(2, False).__exit__(None, None, None)
        with pytest.raises(ReentrantCallError):
            calls.call(3, False).__enter__()


class Interrupt(BaseException):
    """Stands for an interrupt from the keyboard."""


@pytest.fixture
def interrupted() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "work":
            raise Interrupt

    before = signal.signal(PENDING, handle)
    yield
    signal.signal(PENDING, before)


@pytest.mark.usefixtures("interrupted")
def test_an_interrupt_leaves_no_call(calls: native.Calls) -> None:
    """The interrupt comes at any instruction of a ``with``."""
    ended = 0
    for at in range(1, 40):
        seen = 0

        def trace(frame: FrameType, event: str, _: object, at: int = at) -> object:
            nonlocal seen
            frame.f_trace_opcodes = True
            if event == "opcode":
                seen += 1
                if seen == at:
                    make_pending()
            return trace

        def work() -> None:
            with calls.call(1, False):
                len("")

        sys.settrace(trace)
        try:
            work()
            ended += 1
        except Interrupt:
            pass
        finally:
            sys.settrace(None)
        with calls.call(2, False) as found:
            assert found == 2
    assert 0 < ended < 39
