"""A store, and the account of the calls on it."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from faults.scene_log import Key, Log, Plan
from faults.watched import Watch
from logstore import LogStoreError, StoreConfig, TopicConfig
from logstore.store.opening import open_store
from support.damage import Unsynced

_FORMATS = ((1, "none"), (1, "gzip"), (2, "none"), (2, "zstd"), (0, "none"), (2, "lz4"))


class Given:
    """Plain arguments of calls. `reentry` passes others, which run user code."""

    is_plain = True

    def many(self, items: list[Any]) -> Any:
        return items

    def sequence(self, items: list[Any]) -> Any:
        return items

    def number(self, value: int) -> Any:
        return value

    def text(self, value: str) -> Any:
        return value

    def data(self, value: bytes) -> Any:
        return value

    def partition(self, partition: logstore.Partition) -> Any:
        return partition

    def policies(self, policies: list[Any]) -> Any:
        return policies

    def partitioner(self, partitioner: Any) -> Any:
        return partitioner

    def callback(self) -> Any:
        return None


class SceneState:
    """A store with topics of some formats, and the account of the calls on it.

    Attributes:
        around: makes a call; replaced by a function that disturbs it.
        given: makes the arguments.
        may_have_happened: whether a call that raised this may have been done.
        has_closed: a call has closed the store, or tried to.
        is_of_another: another program may have recreated all topics: committed
            offsets of groups count no more.
    """

    def __init__(
        self,
        path: Path,
        rng: random.Random,
        watch: Watch,
        *,
        flush_ms: int = 0,
        topics: int = 2,
    ) -> None:
        self.path = path
        self.rng = rng
        self.watch = watch
        self.around: Callable[[Plan], Any] = lambda plan: plan.call()
        self.given = Given()
        self.logs: dict[Key, Log] = {}
        self.topics: dict[str, int] = {}
        # Topics that an interrupted call may have created, grown or deleted: their
        # possible numbers of partitions.
        self.doubtful: dict[str, set[int]] = {}
        self._doubted: Counter[str] = Counter()
        self._shelved: dict[Key, Log] = {}
        self.flying: list[Plan] = []
        self.has_closed = False
        self.is_of_another = False
        self._serial = itertools.count(1)
        self._noting = threading.RLock()
        self._sequence = itertools.count(1)
        self._flush_ms = flush_ms
        self._staged: list[tuple[Any, list[tuple[Log, list[bytes]]], int]] = []
        self._forms = random.Random(rng.random())
        self.given_out: set[bytes] = set()
        # Stores that are never closed.
        self.forgotten: list[Path] = []
        self.store: logstore.Store
        self.open()
        for name in ("a", "b")[:topics]:
            self.store.create_topic(name, 2, self._config())
            self._created(name, 2)
        self.begin_apart()

    def begin_apart(self) -> None:
        """Make the topics that only some plans are about."""

    # ------------------------------------------------------------ what is there

    def open(self, **options: Any) -> None:
        config = StoreConfig(
            flush_checkpoint_ms=self.rng.choice((0, 5_000)), publish_for_others=False
        )
        self.store = open_store(self.path, config=config, _files=Unsynced(), **options)
        self.has_closed = False

    def _config(self) -> TopicConfig:
        magic, codec = self._forms.choice(_FORMATS)
        return TopicConfig(
            message_format=magic,
            compression_type=codec,
            segment_bytes=self._forms.choice((700, 2_000, 100_000)),
            index_interval_bytes=64,
            flush_ms=self._flush_ms or self._forms.choice((4, 50, 1 << 40)),
            flush_messages=self._forms.choice((3, 10_000)),
            file_delete_delay_ms=self._forms.choice((0, 5, 60_000)),
            segment_digests=self._forms.random() < 0.2,
            retention_ms=-1,
        )

    def _created(self, name: str, count: int) -> None:
        self.topics[name] = count
        for number in range(count):
            key = name, number
            if key not in self.logs:
                self.logs[key] = self._shelved.pop(key, None) or Log(name, number)

    def _made(self, name: str, count: int) -> None:
        """Note that a call has created a topic: it is there, whatever others did."""
        self._deleted(name)
        self._created(name, count)

    def pick(self) -> tuple[Log, Any]:
        """A log and its partition."""
        log = self.rng.choice(list(self.logs.values()))
        return log, self.partition(log)

    def partition(self, log: Log) -> Any:
        try:
            return self.store.topic(log.topic)[log.number]
        except LogStoreError as error:
            raise Unavailable(error) from error

    def values(self, count: int, size: int = 40) -> list[bytes]:
        """Make `count` values that were never appended."""
        made = []
        for _ in range(count):
            made.append(b"%d." % next(self._serial) + b"x" * self.rng.randrange(size))
        self.given_out.update(made)
        return made

    # ------------------------------------------------------------ calls

    def perform(
        self, plan: Plan, around: Callable[[Plan], Any] | None = None
    ) -> BaseException | None:
        """Make a call and note its effect; return its error.

        Any thread may do that. A call is in flight until its effect is noted, so that
        others, in other threads too, know which calls may have come before them.
        """
        for log, _ in [one for one in (plan.cut, plan.deletes) if one]:
            log.begun += 1
        plan.doubts = Counter(self._doubted)
        self.flying.append(plan)
        given = [value[:8] for _, values in plan.appends for value in values]
        self.watch.said.append(f"+ {plan} {given}"[:300])
        error: BaseException | None = None
        try:
            try:
                result = (around or self.around)(plan)
            except BaseException as raised:
                error = raised
            with self._noting:
                for log, _ in [one for one in (plan.cut, plan.deletes) if one]:
                    log.begun += 1
                if error is not None:
                    self._failed(plan, error)
                else:
                    plan.told(result)
                    self._worked(plan)
        finally:
            self.flying.remove(plan)
            self.watch.said.append(f"- {plan}: {error!r}"[:300])
        return error

    def may_have_happened(self, error: BaseException) -> bool:
        """Whether a call with this error may have been done: the error has no name, or
        one that says so."""
        if not isinstance(error, LogStoreError) or error.appended:
            return True
        return isinstance(error, logstore.errors.SyncFailedError)

    def _failed(self, plan: Plan, error: BaseException) -> None:
        is_done = self.may_have_happened(error)
        plan.failed(is_done)
        if not is_done:
            return
        for log, _ in plan.appends:
            # A call inside of it may have recreated the topic.
            now = self.logs.get((log.topic, log.number), log) if log.is_gone else log
            if plan not in now.loose:
                now.loose.append(plan)
        if plan.cut:
            plan.cut[0].cuts.add(plan.cut[1])
        if plan.deletes:
            plan.deletes[0].starts.add(plan.deletes[1])

    def _worked(self, plan: Plan) -> None:
        if plan.cut:
            log, end = plan.cut
            log.values = {o: v for o, v in list(log.values.items()) if o < end}
            for other in log.loose:
                other.cut_in.add(log.name)
            # A call under way may have come before or after it.
            for other in self.flying:
                if other is plan:
                    continue
                if other.of(log) or (other.cut and other.cut[0] is log):
                    other.is_shaken = True
        if plan.deletes:
            log, start = plan.deletes
            log.start = max(log.start, start)
            log.values = {o: v for o, v in list(log.values.items()) if o >= log.start}

    def _told(self, plan: Plan, log: Log, first: int, values: list[bytes]) -> None:
        """Note the acknowledged records of an append."""
        if log.is_gone:
            return
        if plan.doubts[log.topic] == self._doubted[log.topic]:
            # A topic that takes records has not been deleted.
            self.doubtful.get(log.topic, set()).discard(0)
        is_cut = any(
            other.cut and other.cut[0] is log and other.cut[1] <= first
            for other in list(self.flying)
        )
        for at, value in enumerate(values, first):
            if plan.is_shaken or is_cut or log.cuts:
                log.unsure.setdefault(at, set()).add(value)
            else:
                log.told(at, value)

    def _told_by_name(
        self, plan: Plan, log: Log, first: int, values: list[bytes]
    ) -> None:
        """The same for a call that looks for the partition by its name: a call inside
        of it may have recreated the topic, before or after the append."""
        self._told(plan, log, first, values)
        anew = self.logs.get((log.topic, log.number))
        if log.is_gone and anew is not None:
            for at, value in enumerate(values, first):
                anew.unsure.setdefault(at, set()).add(value)

    def _is_cut_now(self) -> bool:
        """Whether records are being deleted."""
        return any(plan.cut or plan.deletes for plan in list(self.flying))

    def _topic(self, name: str) -> Any:
        try:
            return self.store.topic(name)
        except LogStoreError as error:
            raise Unavailable(error) from error

    def _deleted(self, name: str) -> None:
        self.topics.pop(name, None)
        self.doubtful.pop(name, None)
        for logs in (self.logs, self._shelved):
            for key in [key for key in logs if key[0] == name]:
                logs.pop(key).is_gone = True

    def _shelve(self, name: str) -> None:
        """Note that a topic is missing; it may be back after the next opening."""
        self.topics.pop(name, None)
        for key in [key for key in list(self.logs) if key[0] == name]:
            self._shelved[key] = self.logs.pop(key)


class Unavailable(Exception):
    """A plan cannot be made; the cause says why."""
