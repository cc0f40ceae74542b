"""Calls from inside of calls: wherever a user's code can run, it calls the library.

User code runs in the middle of a call of the library in more places than one thinks
of: iterables, ``__index__``, ``__len__``, buffers and their finalizers, partitioners,
retention policies, callbacks, log handlers; finalizers, which the garbage collector
runs at any allocation; signal handlers, which run between any two instructions. Here
each of them makes any public call. The inner call works, or raises an error with a
name, and then nothing was changed; the outer one works; and afterwards every record is
there, once, under the offset that was told, and nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import logstore
from faults.method import Tally
from faults.scene import CALLS, Scene
from faults.scene_log import Plan
from faults.scene_state import Given, Unavailable
from faults.tracing import PENDING, is_of_library, make_pending, place_of
from faults.watched import Broken, Watch, run_cases, told
from logstore import LogStoreError

NAME = "reentry"
UNIT = "calls inside of calls"
COUNTS = {"commit": 2_500, "nightly": 100_000, "release": 300_000}

_EACH = 60
_OUTER = 16
_DEPTH = 2
_APPENDS = (
    "append", "append_durable", "append_many", "append_rolls", "topic_append",
    "publish", "append_batches", "append_expected", "topic_append_many",
)  # fmt: skip
# In another thread only what does not take away what a call of this one has told.
_BESIDE = (
    *_APPENDS,
    "read",
    "topic_read",
    "get",
    "fetch",
    "flush",
    "flush_topic",
    "looks",
    "stage",
    "roll",
)
_OUTSIDE = ("open_again", "open_reader", "verify", "doctor", "rebuild_index")


def run(count: int, seed: int, tally: Tally) -> None:
    """So many calls inside of calls."""
    run_cases(case, count, seed, tally, each=_EACH)


class _Inside:
    """The calls that are made inside of another one."""

    def __init__(self, scene: Scene, watch: Watch, rng: random.Random) -> None:
        self.scene = scene
        self.watch = watch
        self.rng = rng
        self.broken: Broken | None = None
        self.outer: Plan | None = None
        self.how = ""
        self.left = 0
        self.names: tuple[str, ...] = CALLS
        self._depth = 0
        # Held while a call is made by another thread than that of the outer one.
        self.beside = threading.RLock()
        self._main = threading.get_ident()

    def reenter(self, where: str) -> None:
        """User code runs here: make a call."""
        is_beside = threading.get_ident() != self._main
        if self.outer is None or self.left <= 0 or self.broken is not None:
            return
        if self._depth >= _DEPTH:
            return
        if not is_beside:
            self._reenter(where, self.names)
        elif self.beside.acquire(blocking=False):
            # Not waited for: who has it may wait for the call that this thread is in.
            try:
                self._reenter(where, _BESIDE)
            finally:
                self.beside.release()

    def _reenter(self, where: str, names: tuple[str, ...]) -> None:
        self.left -= 1
        self._depth += 1
        try:
            self._one(where, names)
        except Broken as error:
            self.broken = error
        except BaseException as error:
            self.broken = Broken(f"{self.how} in {self.outer}, {where}: {told(error)}")
        finally:
            self._depth -= 1

    def _one(self, where: str, names: tuple[str, ...]) -> None:
        scene = self.scene
        name = self.rng.choice(_APPENDS if self.rng.random() < 0.4 else names)
        if self.rng.random() < 0.01 and names is CALLS:
            name = "close"
        self.watch.done += 1
        given, scene.given = scene.given, Given()
        if self._depth < _DEPTH and self.rng.random() < 0.2:
            scene.given = _Lively(self)
        try:
            plan = scene.plan(name)
        except Unavailable as error:
            # A call beside may have made a topic one that cannot be published to.
            self._judge(name, error.args[0], where, (logstore.UnsupportedError,))
            return
        except LogStoreError as error:
            self._judge(name, error, where, ())
            return
        finally:
            scene.given = given
        self.watch.say(f"{self.how} in {self.outer}, {where}: {plan}")
        begun = scene.store
        error = scene.perform(plan)
        if error is not None:
            self.watch.notes["refused"] += 1
            self._judge(str(plan), error, where, plan.expects)
        elif name == "close" and begun is not None:
            scene.has_closed = True

    def _judge(
        self,
        what: str,
        error: BaseException,
        where: str,
        expects: tuple[type[BaseException], ...],
    ) -> None:
        if isinstance(error, Broken):
            raise error
        if not isinstance(error, (*self.tolerated(), *expects)):
            raise Broken(
                f"{self.how} in {self.outer}, {where}: {what} raised {told(error)}"[
                    :900
                ]
            )

    def tolerated(self) -> tuple[type[BaseException], ...]:
        """What an inner call may raise now."""
        found: list[type[BaseException]] = []
        reentrant = getattr(logstore, "ReentrantCallError", None) or getattr(
            logstore.errors, "ReentrantCallError", None
        )
        if reentrant is not None:
            found.append(reentrant)
        found += self.of_surroundings()
        return tuple(found)

    def of_surroundings(self) -> list[type[BaseException]]:
        """What any call may raise, since others have been made."""
        # Topics come and go, and settings change, inside of calls on them.
        found: list[type[BaseException]] = [
            logstore.TopicNotFoundError,
            logstore.PartitionNotFoundError,
        ]
        if self.scene.has_closed:
            found.append(logstore.StoreClosedError)
        return found


# ------------------------------------------------------------------ places: arguments


class _Lively(Given):
    """Arguments that run user code when they are used."""

    is_plain = False

    def __init__(self, inside: _Inside) -> None:
        self._inside = inside
        self._rng = inside.rng

    def many(self, items: list[Any]) -> Any:
        inside, kind = self._inside, self._rng.randrange(4)
        if kind == 0:
            return _walk(items, inside)
        if kind == 1:
            return _Items(items, inside)
        if kind == 2:
            return _List(items, inside)
        return items

    def sequence(self, items: list[Any]) -> Any:
        kind = _Items if self._rng.random() < 0.5 else _List
        return kind(items, self._inside)

    def number(self, value: int) -> Any:
        if self._rng.random() < 0.5:
            return _Number.of(value, self._inside)
        return _Index(value, self._inside)

    def text(self, value: str) -> Any:
        if os.sep in value:
            return _Path(value, self._inside)
        return _Text.of(value, self._inside)

    def data(self, value: bytes) -> Any:
        kind = self._rng.randrange(4)
        if kind == 0:
            return _Bytes.of(value, self._inside)
        if kind == 1:
            return memoryview(_Bytes.of(value, self._inside))
        return value

    def partition(self, partition: Any) -> Any:
        return _Destination(partition, self._inside)

    def policies(self, policies: list[Any]) -> Any:
        return self.many([_Policy(policy, self._inside) for policy in policies])

    def partitioner(self, partitioner: Any) -> Any:
        return _Partitioner(partitioner, self._inside)

    def callback(self) -> Any:
        return lambda progress: self._inside.reenter("a callback")


def _walk(items: list[Any], inside: _Inside) -> Iterator[Any]:
    for item in items:
        inside.reenter("a generator")
        yield item
    inside.reenter("the end of a generator")


class _Items:
    """A sequence."""

    def __init__(self, items: list[Any], inside: _Inside) -> None:
        self._items = items
        self._inside = inside

    def __len__(self) -> int:
        self._inside.reenter("__len__")
        return len(self._items)

    def __getitem__(self, at: Any) -> Any:
        self._inside.reenter("__getitem__")
        return self._items[at]

    def __iter__(self) -> Iterator[Any]:
        self._inside.reenter("__iter__")
        return _walk(self._items, self._inside)


class _List(list[Any]):
    def __init__(self, items: list[Any], inside: _Inside) -> None:
        super().__init__(items)
        self._inside = inside

    def __len__(self) -> int:
        self._inside.reenter("__len__ of a list")
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        self._inside.reenter("__iter__ of a list")
        return super().__iter__()


class _Index:
    """A number that is no int."""

    def __init__(self, value: int, inside: _Inside) -> None:
        self._value = value
        self._inside = inside

    def __index__(self) -> int:
        self._inside.reenter("__index__")
        return self._value


class _Number(int):
    _inside: _Inside

    @classmethod
    def of(cls, value: int, inside: _Inside) -> _Number:
        made = cls(value)
        made._inside = inside
        return made

    def __lt__(self, other: int) -> bool:
        self._inside.reenter("__lt__")
        return int.__lt__(self, other)

    def __le__(self, other: int) -> bool:
        self._inside.reenter("__le__")
        return int.__le__(self, other)

    def __gt__(self, other: int) -> bool:
        self._inside.reenter("__gt__")
        return int.__gt__(self, other)

    def __ge__(self, other: int) -> bool:
        self._inside.reenter("__ge__")
        return int.__ge__(self, other)

    def __index__(self) -> int:
        self._inside.reenter("__index__ of an int")
        return int.__index__(self)

    def __eq__(self, other: object) -> bool:
        self._inside.reenter("__eq__")
        return int.__eq__(self, other)

    def __hash__(self) -> int:
        self._inside.reenter("__hash__")
        return int.__hash__(self)


class _Text(str):
    _inside: _Inside

    @classmethod
    def of(cls, value: str, inside: _Inside) -> _Text:
        made = cls(value)
        made._inside = inside
        return made

    def __eq__(self, other: object) -> bool:
        self._inside.reenter("__eq__ of a name")
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self._inside.reenter("__hash__ of a name")
        return str.__hash__(self)


class _Path:
    def __init__(self, value: str, inside: _Inside) -> None:
        self._value = value
        self._inside = inside

    def __fspath__(self) -> str:
        self._inside.reenter("__fspath__")
        return self._value


class _Bytes(bytearray):
    """A buffer whose end is noticed."""

    _inside: _Inside

    @classmethod
    def of(cls, value: bytes, inside: _Inside) -> _Bytes:
        made = cls(value)
        made._inside = inside
        return made

    def __len__(self) -> int:
        self._inside.reenter("__len__ of a buffer")
        return super().__len__()

    def __del__(self) -> None:
        if is_of_library(sys._getframe().f_back):
            self._inside.reenter("__del__ of a buffer")


class _Destination:
    def __init__(self, partition: Any, inside: _Inside) -> None:
        self._partition = partition
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        self._inside.reenter(f"the {name} of a destination")
        return getattr(self._partition, name)


class _Policy(logstore.RetentionPolicy):
    def __init__(self, policy: Any, inside: _Inside) -> None:
        self._policy = policy
        self._inside = inside

    @property
    def reason(self) -> str:
        self._inside.reenter("the reason of a policy")
        return "asked for"

    def observe(self, free_bytes: int) -> None:
        self._inside.reenter("observe of a policy")

    def select(self, segments: Any, now_ms: int) -> Any:
        self._inside.reenter("select of a policy")
        return _walk(list(self._policy.select(segments, now_ms)), self._inside)


class _Partitioner:
    def __init__(self, partitioner: Any, inside: _Inside) -> None:
        self._partitioner = partitioner
        self._inside = inside

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        self._inside.reenter("a partitioner")
        number: int = self._partitioner.partition(key, size, partitions)
        return number


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


class _Tracer:
    """Does something at every n-th line, or instruction, of the library.

    Args:
        act: what to do; where it is None, a signal becomes pending.
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
    def __init__(self, inside: _Inside) -> None:
        super().__init__(logging.DEBUG)
        self._inside = inside

    def emit(self, record: logging.LogRecord) -> None:
        self._inside.reenter(f"the log handler ({record.getMessage()[:60]})")


def _gap(rng: random.Random, most: int) -> int:
    return round(math.exp(rng.uniform(0, math.log(most))))


@contextlib.contextmanager
def _tracing(inside: _Inside, rng: random.Random) -> Iterator[None]:
    """A call at every so many lines or instructions."""
    lines = rng.random() < 0.7
    gap = _gap(rng, 120 if lines else 900)
    sys.settrace(_Tracer(gap, rng.randint(1, gap), inside.reenter, lines=lines))
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def _signalled(inside: _Inside, rng: random.Random) -> Iterator[None]:
    """The same, by a signal handler, where such a one can run."""
    gap = _gap(rng, 900)
    tracer = _Tracer(gap, rng.randint(1, gap), None, lines=False)

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
def _timed(inside: _Inside, rng: random.Random) -> Iterator[None]:
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
def _collected(inside: _Inside, rng: random.Random) -> Iterator[None]:
    """Finalizers, which are run where the tests say so."""

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
    sys.settrace(_Tracer(gap, rng.randint(1, gap), collect, lines=True))
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def _littered(inside: _Inside, rng: random.Random) -> Iterator[None]:
    """Finalizers, which are run when the collector finds it time."""

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
def _logged(inside: _Inside, rng: random.Random) -> Iterator[None]:
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
def _plainly(inside: _Inside, rng: random.Random) -> Iterator[None]:
    yield


_PLACES = {
    "between lines": _tracing,
    "by a signal": _signalled,
    "by a timer": _timed,
    "by a finalizer": _collected,
    "by the collector": _littered,
    "by a log handler": _logged,
    "by an argument": _plainly,
}


# ------------------------------------------------------------------------- one case


def case(seed: int, folder: Path, watch: Watch) -> None:
    """Some calls on one store, with calls inside of them."""
    rng = random.Random(seed)
    signal.signal(PENDING, signal.SIG_IGN)
    background: list[_Inside] = []
    is_beside = rng.random() < 0.15
    if is_beside:
        _trace_threads(background, rng)
    scene = Scene(folder / "store", rng, watch, flush_ms=3 if is_beside else 0)
    inside = _Inside(scene, watch, rng)
    background.append(inside)
    for _ in range(rng.randint(0, 8)):
        with contextlib.suppress(Unavailable):
            scene.perform(scene.plan(rng.choice(_APPENDS)))
    for number in range(_OUTER):
        _outer(scene, inside, rng, is_beside)
        if scene.has_closed:
            scene.store.close()
            scene.open()
            scene.settle("the store, opened again", reopened=True)
        elif number % 4 == 3:
            scene.settle(f"the store after {inside.how} in a call")
        if rng.random() < 0.1:
            _reopen(scene, inside, rng)
    threading.settrace(None)  # type: ignore[arg-type]
    scene.store.close()
    scene.open()
    scene.settle("the store, opened again", reopened=True)
    scene.store.close()
    scene.check_sound()


def _trace_threads(background: list[_Inside], rng: random.Random) -> None:
    """Calls also from inside of what the store's own thread does."""

    def act(where: str) -> None:
        if background:
            background[0].reenter(f"the store's thread, {where}")

    tracer = _Tracer(40, 20, act, lines=True)
    threading.settrace(tracer)


def _outer(scene: Scene, inside: _Inside, rng: random.Random, is_beside: bool) -> None:
    """One call, with others inside of it."""
    how = rng.choice(list(_PLACES))
    scene.given = Given()
    if how == "by an argument":
        scene.given = _Lively(inside)
    try:
        plan = scene.plan(rng.choice(_APPENDS if rng.random() < 0.4 else CALLS))
    except Unavailable:
        return
    finally:
        scene.given = Given()
    _inside_of(scene, inside, plan, how, rng)
    if is_beside and rng.random() < 0.3:
        # The store's own thread has something to do.
        with contextlib.suppress(threading.ThreadError):
            threading.Event().wait(0.005)


def _inside_of(
    scene: Scene, inside: _Inside, plan: Plan, how: str, rng: random.Random
) -> None:
    def around(one: Plan) -> Any:
        if one is not plan:
            return one.call()
        inside.outer, inside.how, inside.left = plan, how, rng.randint(1, 12)
        try:
            with _PLACES[how](inside, rng):
                return one.call()
        finally:
            inside.outer = None
            with inside.beside:
                pass

    scene.around = around
    scene.watch.say(f"{how}: {plan}")
    error = scene.perform(plan)
    if inside.broken is not None:
        raise inside.broken
    if isinstance(error, Broken):
        raise error
    allowed = [*plan.expects, *inside.of_surroundings()]
    if how == "by an argument":
        allowed += [TypeError, logstore.ConfigError]
    if error is not None and not isinstance(error, tuple(allowed)):
        raise Broken(f"{how}: {plan} raised {told(error)}"[:900])


def _reopen(scene: Scene, inside: _Inside, rng: random.Random) -> None:
    """Opening and recovery, with calls from inside."""
    scene.store.close()
    if rng.random() < 0.7:
        # As after a crash: something for recovery to say.
        log = rng.choice(list(scene.logs.values()))
        names = sorted((scene.path / log.name).glob("*.log"))
        if names:
            with open(names[-1], "ab") as file:
                file.write(b"torn")
        (scene.path / ".kafka_cleanshutdown").unlink(missing_ok=True)
        scene.written_by_another()
    lively = _Lively(inside).callback()
    inside.names = _OUTSIDE
    plan = Plan("open", lambda: scene.open(on_recovery=lively, on_progress=lively))
    scene.has_closed = True
    try:
        _inside_of(scene, inside, plan, rng.choice(list(_PLACES)), rng)
    finally:
        inside.names = CALLS
    scene.settle("the store, opened again", reopened=True)


__all__ = ["COUNTS", "NAME", "UNIT", "case", "run"]
