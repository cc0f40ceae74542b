"""Actions between two lines, or two instructions, of the library."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

__all__ = [
    "PENDING",
    "AtLine",
    "is_of_library",
    "make_pending",
    "may_raise_in",
    "place_of",
]

_TESTS: Final = str(Path(__file__).resolve().parents[1])
_LOGGING: Final = os.path.dirname(logging.__file__)
# The signal that `make_pending` makes pending.
PENDING: Final = signal.SIGUSR2


class _Signal(int):
    # A property: unlike at a call, the interpreter does not look for signals there.
    fire = property(_thread.interrupt_main)


_SIGNAL: Final = _Signal(PENDING)


def is_of_library(frame: FrameType | None) -> bool:
    """Whether a frame is of the library, or of code that it calls: not of the tests."""
    return frame is not None and not frame.f_code.co_filename.startswith(_TESTS)


def may_raise_in(frame: FrameType | None) -> bool:
    """Whether a signal handler may raise there: in the library, and not inside of
    Python's logging, which does not release its locks then."""
    # Tested first: a signal that comes during this call finds a frame of the tests.
    if not is_of_library(frame):
        return False
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith(_LOGGING):
            return False
        at = at.f_back
    return True


def place_of(frame: FrameType | None) -> str:
    """File, line and function of a frame."""
    if frame is None:
        return "nowhere"
    name = os.path.basename(frame.f_code.co_filename)
    return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"


def make_pending() -> None:
    """Make a signal pending, as the last action of a trace function.

    Its handler runs where the interpreter looks for signals next: in the traced code,
    at a place where a signal that came now would be handled. Nothing is traced from
    here on, since calling a trace function would be such a place; the handler may start
    tracing again.
    """
    sys.settrace(None)
    _SIGNAL.fire  # noqa: B018


# Modules whose locks a fork acquires by hooks of the interpreter: no thread holds one
# at a fork, and no fork happens inside of them.
_HELD_BY_FORKS: Final = ("importlib", "concurrent", "logging")


def _is_fork_waiting(frame: FrameType | None) -> bool:
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in _HELD_BY_FORKS):
            return True
        frame = frame.f_back
    return False


class AtLine:
    """A trace function that does something at the n-th line of the library, or the
    first one after it at which a fork is allowed.

    Attributes:
        seen: number of executed lines.
        place: the place of the action.
    """

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self._at = at
        self._act = act
        self.seen = 0
        self.place = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not is_of_library(frame):
            return None
        if event == "line":
            self.seen += 1
            is_due = self._at and self.seen >= self._at and not self.place
            if is_due and not _is_fork_waiting(frame):
                self.place = place_of(frame)
                self._act()
        return self
