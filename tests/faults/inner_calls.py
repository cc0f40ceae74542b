"""Calls that are made inside of another one, and arguments that make them when they are
used."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import logstore
from faults.scene import CALLS, Scene
from faults.scene_log import Plan
from faults.scene_state import Given, Unavailable
from faults.tracing import is_of_library
from faults.watched import Broken, Watch, told
from logstore import LogStoreError

_DEPTH = 2
APPENDS = (
    "append", "append_durable", "append_many", "append_rolls", "topic_append",
    "publish", "append_batches", "append_expected", "topic_append_many",
)  # fmt: skip
# Another thread makes only calls that keep the acknowledged records of this one.
_BESIDE = (
    *APPENDS,
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


class Inside:
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
        # Held while a thread other than the outer call's makes a call.
        self.beside = threading.RLock()
        self._main = threading.get_ident()

    def reenter(self, where: str) -> None:
        """Make a call from user code."""
        is_beside = threading.get_ident() != self._main
        if self.outer is None or self.left <= 0 or self.broken is not None:
            return
        if self._depth >= _DEPTH:
            return
        if not is_beside:
            self._reenter(where, self.names)
        elif self.beside.acquire(blocking=False):
            # Not waited for: its holder may wait for the call that this thread is in.
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
        name = self.rng.choice(APPENDS if self.rng.random() < 0.4 else names)
        if self.rng.random() < 0.01 and names is CALLS:
            name = "close"
        self.watch.done += 1
        given, scene.given = scene.given, Given()
        if self._depth < _DEPTH and self.rng.random() < 0.2:
            scene.given = _Lively(self)
        try:
            plan = scene.plan(name)
        except Unavailable as error:
            # A concurrent call may have created a topic that cannot be published to.
            self._judge(name, error.args[0], where, (logstore.errors.UnsupportedError,))
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
        """Errors that an inner call may raise now."""
        found: list[type[BaseException]] = []
        found.append(logstore.errors.ReentrantCallError)
        found += self.of_surroundings()
        return tuple(found)

    def of_surroundings(self) -> list[type[BaseException]]:
        """Errors that any call may raise because of earlier calls."""
        # Topics are created, deleted and configured inside of calls on them.
        found: list[type[BaseException]] = [
            logstore.TopicNotFoundError,
            logstore.errors.PartitionNotFoundError,
        ]
        if self.scene.has_closed:
            found.append(logstore.errors.StoreClosedError)
        return found


# ------------------------------------------------------------------ places: arguments


class _Lively(Given):
    """Arguments that run user code when they are used."""

    is_plain = False

    def __init__(self, inside: Inside) -> None:
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


def _walk(items: list[Any], inside: Inside) -> Iterator[Any]:
    for item in items:
        inside.reenter("a generator")
        yield item
    inside.reenter("the end of a generator")


class _Items:
    """A sequence."""

    def __init__(self, items: list[Any], inside: Inside) -> None:
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
    def __init__(self, items: list[Any], inside: Inside) -> None:
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

    def __init__(self, value: int, inside: Inside) -> None:
        self._value = value
        self._inside = inside

    def __index__(self) -> int:
        self._inside.reenter("__index__")
        return self._value


class _Number(int):
    _inside: Inside

    @classmethod
    def of(cls, value: int, inside: Inside) -> _Number:
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
    _inside: Inside

    @classmethod
    def of(cls, value: str, inside: Inside) -> _Text:
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
    def __init__(self, value: str, inside: Inside) -> None:
        self._value = value
        self._inside = inside

    def __fspath__(self) -> str:
        self._inside.reenter("__fspath__")
        return self._value


class _Bytes(bytearray):
    """A buffer that makes a call when it is released."""

    _inside: Inside

    @classmethod
    def of(cls, value: bytes, inside: Inside) -> _Bytes:
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
    def __init__(self, partition: Any, inside: Inside) -> None:
        self._partition = partition
        self._inside = inside

    def __getattr__(self, name: str) -> Any:
        self._inside.reenter(f"the {name} of a destination")
        return getattr(self._partition, name)


class _Policy(logstore.RetentionPolicy):
    def __init__(self, policy: Any, inside: Inside) -> None:
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
    def __init__(self, partitioner: Any, inside: Inside) -> None:
        self._partitioner = partitioner
        self._inside = inside

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        self._inside.reenter("a partitioner")
        number: int = self._partitioner.partition(key, size, partitions)
        return number
