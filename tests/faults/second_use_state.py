"""State of a program of second uses, and its checks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logstore import LogStoreError
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.values import config_of

GONE = ("TopicNotFoundError", "PartitionNotFoundError")
CLOSED = ("StoreClosedError",)


class Wrong(Exception):
    """The store contradicts the model."""


REFUSED = object()


class Log:
    """Required state of a partition.

    Attributes:
        values: by offset.
        start: the first offset that can be read.
        is_there: whether its topic exists.
    """

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.start = 0
        self.is_there = True


class Held:
    """A kept object.

    Attributes:
        thing: the object.
        store: the store that it came from.
        log: its partition, if it has one.
        uses: number of uses.
        more: other known facts.
    """

    def __init__(self, thing: Any, store: Any, log: Any = None, **more: Any) -> None:
        self.thing = thing
        self.store = store
        self.log = log
        self.uses = 0
        self.more = more


class MachineState:
    """Stores and objects kept from them, with a model of their required content."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.trace: list[str] = []
        self.again = self.refused = 0
        self.serial = itertools.count()
        self.topics: dict[str, list[Log]] = {}
        self.stores: list[Any] = []
        self.open: set[int] = set()
        self.held: dict[str, list[Held]] = {
            kind: []
            for kind in ("partition", "topic", "stage", "staged", "chunk", "batch",
                         "iterator", "arrow")
        }  # fmt: skip
        self.new_store()
        self.make_topic()

    def check(self, is_right: bool, what: str) -> None:
        if not is_right:
            raise Wrong(what)

    def ask(self, what: str, call: Callable[[], Any], *allowed: str) -> Any:
        """Result of a call, or `REFUSED` if it raises an allowed error."""
        try:
            return call()
        except LogStoreError as error:
            names = {kind.__name__ for kind in type(error).__mro__}
            if not names & set(allowed):
                text = f"{what} raises {type(error).__name__}: {str(error)[:250]}"
                raise Wrong(f"{text}, not {allowed or 'nothing'}") from error
            self.refused += 1
            return REFUSED
        except Exception as error:
            raise Wrong(f"{what} raises {type(error).__name__}: {error}") from error

    def pick(self, kind: str) -> Held | None:
        if not self.held[kind]:
            return None
        held = self.rng.choice(self.held[kind])
        held.uses += 1
        self.again += held.uses > 1
        return held

    def keep(self, kind: str, held: Held) -> None:
        self.held[kind].append(held)
        if len(self.held[kind]) > 5:
            self.held[kind].pop(0)

    def is_open(self, held: Held) -> bool:
        return id(held.store) in self.open

    def errors_of(self, held: Held) -> tuple[str, ...]:
        """Errors that a call on a partition or topic may raise."""
        if not self.is_open(held):
            return CLOSED
        return () if held.log is None or held.log.is_there else GONE

    # -- stores

    @property
    def store(self) -> Any:
        return self.stores[-1]

    def new_store(self) -> None:
        self.stores.append(open_store(self.path, _files=Unsynced()))
        self.open.add(id(self.store))

    # -- topics

    def make_topic(self) -> None:
        name = f"t{self.rng.randrange(3)}"
        magic, codec = self.rng.choice(
            ((1, "none"), (1, "gzip"), (2, "none"), (2, "lz4"))
        )
        config = config_of(
            magic, codec, segment_bytes=self.rng.choice((200, 1_000, 1 << 20)),
            file_delete_delay_ms=self.rng.choice((0, 60_000)),
        )  # fmt: skip
        count = self.rng.randrange(1, 3)
        store = self.store
        errors = ("TopicExistsError",) if name in self.topics else ()
        topic = self.ask(
            "create_topic", lambda: store.create_topic(name, count, config), *errors
        )
        self.check((topic is REFUSED) == bool(errors), f"create_topic gives {topic}")
        if topic is not REFUSED:
            self.topics[name] = [Log() for _ in range(count)]
        self.again += bool(errors)
        self.keep_topic(name)

    def keep_topic(self, name: str) -> None:
        topic = self.store.topic(name)
        logs = self.topics[name]
        self.keep("topic", Held(topic, self.store, logs[0], logs=logs, name=name))
        for number, log in enumerate(logs):
            self.keep("partition", Held(topic[number], self.store, log))

    # -- partitions

    def new_value(self) -> bytes:
        return b"%d" % next(self.serial) + b"." * self.rng.choice((0, 5, 40))
