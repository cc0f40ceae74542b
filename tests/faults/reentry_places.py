"""Places of inner calls: lines and instructions, signals, finalizers, log handlers."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import random
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from faults.inner_calls import Inside
from faults.tracing import PENDING, is_of_library, make_pending, place_of

# ------------------------------------------------------- places: between instructions


class _Cycle:
    """Garbage that only the collector finds."""

    def __init__(self, ended: Callable[[], None], *, always: bool = False) -> None:
        self.me = self
        self.ended = ended
        self.always = always

    def __del__(self) -> None:
        if self.always or is_of_library(sys._getframe().f_back):
            self.ended()


class Tracer:
    """Does something at every n-th line, or instruction, of the library.

    Args:
        act: the action; without one, a signal becomes pending.
    """

    def __init__(
        self, gap: int, first: int, act: Callable[[str], None] | None, *, lines: bool
    ) -> None:
        self._gap = gap
        self._next = first
        self._act = act
        self._event = "line" if lines else "opcode"

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not is_of_library(frame):
            return None
        if event == "call":
            frame.f_trace_opcodes = self._event == "opcode"
        if event != self._event:
            return self
        self._next -= 1
        if self._next > 0:
            return self
        self._next = self._gap
        if self._act is None:
            make_pending()
        else:
            self._act(place_of(frame))
        return self


class _Handler(logging.Handler):
    def __init__(self, inside: Inside) -> None:
        super().__init__(logging.DEBUG)
        self._inside = inside

    def emit(self, record: logging.LogRecord) -> None:
        self._inside.reenter(f"the log handler ({record.getMessage()[:60]})")


def _gap(rng: random.Random, most: int) -> int:
    return round(math.exp(rng.uniform(0, math.log(most))))


@contextlib.contextmanager
def _tracing(inside: Inside, rng: random.Random) -> Iterator[None]:
    """A call at every n-th line or instruction."""
    lines = rng.random() < 0.7
    gap = _gap(rng, 120 if lines else 900)
    sys.settrace(Tracer(gap, rng.randint(1, gap), inside.reenter, lines=lines))
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def _signalled(inside: Inside, rng: random.Random) -> Iterator[None]:
    """The same, by a signal handler, where such a one can run."""
    gap = _gap(rng, 900)
    tracer = Tracer(gap, rng.randint(1, gap), None, lines=False)

    def handler(number: int, frame: FrameType | None) -> None:
        if not is_of_library(frame):
            return
        inside.reenter(f"a signal handler in {place_of(frame)}")
        sys.settrace(tracer)

    before = signal.signal(PENDING, handler)
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(None)
        signal.signal(PENDING, before)


@contextlib.contextmanager
def _timed(inside: Inside, rng: random.Random) -> Iterator[None]:
    """Real signals, from a timer."""

    def handler(number: int, frame: FrameType | None) -> None:
        if is_of_library(frame):
            inside.reenter("a handler of SIGALRM")

    before = signal.signal(signal.SIGALRM, handler)
    seconds = math.exp(rng.uniform(math.log(3e-5), math.log(2e-3)))
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _collected(inside: Inside, rng: random.Random) -> Iterator[None]:
    """Finalizers, which are run at lines chosen by the tests."""

    def collect(where: str) -> None:
        if rng.random() < 0.5:
            _Cycle(lambda: inside.reenter(f"a finalizer at {where}"), always=True)
            gc.collect(0)
            return
        one = _Cycle(lambda: None)
        kept = weakref.ref(
            one, lambda _: inside.reenter(f"the callback of a reference at {where}")
        )
        del one
        gc.collect(0)
        del kept

    gap = _gap(rng, 120)
    sys.settrace(Tracer(gap, rng.randint(1, gap), collect, lines=True))
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def _littered(inside: Inside, rng: random.Random) -> Iterator[None]:
    """Finalizers, which are run by the garbage collector at its own times."""

    def ended() -> None:
        inside.reenter("a finalizer")
        if inside.left > 0:
            _Cycle(ended)

    before = gc.get_threshold()
    gc.set_threshold(_gap(rng, 60), 2, 2)
    _Cycle(ended)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def _logged(inside: Inside, rng: random.Random) -> Iterator[None]:
    """Log handlers."""
    logger = logging.getLogger("logstore")
    handler = _Handler(inside)
    logging.disable(logging.NOTSET)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logging.disable(logging.CRITICAL)


@contextlib.contextmanager
def _plainly(inside: Inside, rng: random.Random) -> Iterator[None]:
    yield


PLACES = {
    "between lines": _tracing,
    "by a signal": _signalled,
    "by a timer": _timed,
    "by a finalizer": _collected,
    "by the collector": _littered,
    "by a log handler": _logged,
    "by an argument": _plainly,
}
