"""A store, every public call on it, and what must be in it after each.

What `reentry`, `interrupts`, `forks` and `limits` have in common. A call is made as a
`Plan`: what it does, and what its result means for what must be in the store. While it
runs it is in flight, and others may be made inside of it; where it raises, the `Scene`
decides what that means: nothing was done (an error with a name), or all or nothing, and
nobody knows which (an exception from outside). `Scene.settle` looks what it was.

Every value that is appended is another one, so whatever is read tells where it is from.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import logstore
from faults.watched import Broken, Watch
from logstore import LogStoreError, StoreConfig, TopicConfig
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.store.store import open_store, publication_token
from logstore.store.topic import Topic
from support.damage import Unsynced

__all__ = ["CALLS", "Given", "Log", "Plan", "Scene", "elsewhere"]

Key = tuple[str, int]

_FORMATS = ((1, "none"), (1, "gzip"), (2, "none"), (2, "zstd"), (0, "none"), (2, "lz4"))
_EXTRA = ("x", "y", "z")


class Given:
    """How arguments are given: plainly. `reentry` has others, which run user code."""

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


class Log:
    """What must, and what may, be in a partition.

    Attributes:
        values: of the records that must be there, by offset.
        start: where the log begins; `starts`: where else it may, since a deletion was
            interrupted.
        cuts: where a truncation that was interrupted may have cut it.
        loose: plans whose records may be there, all of them or none.
        unsure: values that may be at an offset.
        begun: rises with each deletion and truncation, when it begins and ends.
        was_ended: at the last look it took no more appends.
    """

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.values: dict[int, bytes] = {}
        self.start = 0
        self.starts: set[int] = set()
        self.cuts: set[int] = set()
        self.loose: list[Plan] = []
        self.unsure: dict[int, set[bytes]] = {}
        self.begun = 0
        self.was_ended = False
        self.is_gone = False

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    def told(self, offset: int, value: bytes) -> None:
        """A call has said that a record is there."""
        there = self.values.get(offset)
        if there is not None:
            raise Broken(
                f"{self.name}: offset {offset} was told twice, for {there[:9]!r} and "
                f"{value[:9]!r}"
            )
        self.values[offset] = value

    def settle(
        self, start: int, found: list[tuple[int, bytes]], *, is_ended: bool, where: str
    ) -> None:
        """Hold this against what is there; then that is what must be there.

        Args:
            is_ended: the partition has ended for writing: of an append that was cut
                short then, a part may have come in with the next opening.
        """
        where = f"{self.name} in {where}"
        if start != self.start and start not in self.starts:
            raise Broken(f"{where} begins at {start}, not at {self.start}")
        for at, (offset, value) in enumerate(found):
            if offset != start + at:
                raise Broken(f"{where}: {value[:9]!r} at {offset}, not at {start + at}")
        there = dict(found)
        known = {o: v for o, v in list(self.values.items()) if o >= start}
        if not known.items() <= there.items():
            for cut in sorted(self.cuts, reverse=True):
                kept = {o: v for o, v in known.items() if o < cut}
                if kept.items() <= there.items():
                    known = kept
                    break
        for offset, value in known.items():
            if there.get(offset) != value:
                got = there.get(offset, b"nothing")
                raise Broken(f"{where}: {got[:9]!r} at {offset}, not {value[:9]!r}")
        self._explain(found, known, is_ended, where)
        if is_ended and (self.cuts or self.starts):
            # What was interrupted may be finished, or not, by the next opening.
            return
        self.values, self.start, self.starts, self.cuts = there, start, set(), set()
        self.unsure = {}

    def _explain(
        self,
        found: list[tuple[int, bytes]],
        known: dict[int, bytes],
        is_ended: bool,
        where: str,
    ) -> None:
        """Each record that is not known must be of a call that may be in."""
        plans = {value: plan for plan in self.loose for value in plan.of(self)}
        came: dict[int, list[bytes]] = {}
        for offset, value in found:
            plan = plans.get(value)
            if plan is not None:
                came.setdefault(id(plan), []).append(value)
            elif offset not in known and value not in self.unsure.get(offset, ()):
                raise Broken(f"{where}: {value[:9]!r} at {offset} was not acknowledged")
        for plan in self.loose:
            values, got = plan.of(self), came.get(id(plan), [])
            if got != values[: len(got)]:
                raise Broken(f"{where}: {plan} came in another order")
            is_part = 0 < len(got) < len(values)
            if is_part and not self.cuts and not (is_ended or self.was_ended):
                raise Broken(f"{where}: {len(got)} of the {len(values)} of {plan}")
            plan.came[self.name] = len(got)
        self.was_ended = is_ended
        if not is_ended:
            self.loose = []


class Plan:
    """A call.

    Attributes:
        what: in words.
        call: makes it.
        told: what its result means; raises `Broken`.
        appends: what it puts into logs.
        expects: errors that it may raise, whatever happens around it.
        cut, deletes: of a truncation or deletion: the log, and the offset.
        topic: the one that it makes or removes.
        is_shaken: its log was truncated while it was in flight.
        doubts: how often calls on each topic had been cut short when it began.
        came: how many of its records were found, by the name of the log.
        is_whole: all of its logs get theirs, or none.
    """

    def __init__(
        self,
        what: str,
        call: Callable[[], Any],
        told: Callable[[Any], None] | None = None,
        *,
        appends: Sequence[tuple[Log, list[bytes]]] = (),
        expects: tuple[type[BaseException], ...] = (),
        cut: tuple[Log, int] | None = None,
        deletes: tuple[Log, int] | None = None,
        topic: str = "",
        is_whole: bool = True,
    ) -> None:
        self.is_whole = is_whole
        self.what = what
        self.call = call
        self.told = told or (lambda result: None)
        self.appends = list(appends)
        self.expects = expects
        self.cut = cut
        self.deletes = deletes
        self.topic = topic
        self.is_shaken = False
        self.doubts: Counter[str] = Counter()
        self.came: dict[str, int] = {}

    def __str__(self) -> str:
        return self.what

    def of(self, log: Log) -> list[bytes]:
        return [v for one, vs in self.appends if one.name == log.name for v in vs]


class Scene:
    """A store with topics of some formats, and what must be in it.

    Attributes:
        around: makes a call; whoever wants to disturb it puts another function here.
        given: how arguments are given.
        may_have_happened: whether a call that raised this may have been done.
        has_closed: a call has closed the store, or tried to.
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
        # Topics of which an interrupted call may have made, grown or removed one:
        # numbers of partitions that they may have.
        self.doubtful: dict[str, set[int]] = {}
        self._doubted: Counter[str] = Counter()
        self._shelved: dict[Key, Log] = {}
        self.flying: list[Plan] = []
        self.has_closed = False
        self._serial = itertools.count(1)
        self._noting = threading.RLock()
        self._sequence = itertools.count(1)
        self._flush_ms = flush_ms
        self._staged: list[tuple[Any, list[tuple[Log, list[bytes]]], int]] = []
        self._forms = random.Random(rng.random())
        self.given_out: set[bytes] = set()
        # Stores that nobody closes.
        self.forgotten: list[Path] = []
        self.store: logstore.Store
        self.open()
        for name in ("a", "b")[:topics]:
            self.store.create_topic(name, 2, self._config())
            self._created(name, 2)

    # ------------------------------------------------------------ what is there

    def open(self, **options: Any) -> None:
        config = StoreConfig(flush_checkpoint_ms=self.rng.choice((0, 5_000)))
        self.store = open_store(self.path, config=config, files=Unsynced(), **options)
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
        """A call has made a topic: whatever others may have done, it is there."""
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
        """So many values that nobody has appended yet."""
        made = []
        for _ in range(count):
            made.append(b"%d." % next(self._serial) + b"x" * self.rng.randrange(size))
        self.given_out.update(made)
        return made

    # ------------------------------------------------------------ calls

    def perform(
        self, plan: Plan, around: Callable[[Plan], Any] | None = None
    ) -> BaseException | None:
        """Make a call and keep account of it; returns what it raised.

        Any thread may. A call is in flight until all that it means is noted, so that
        others, in other threads too, know what may have come before them.
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
        """Without a name, or a name that says so."""
        if not isinstance(error, LogStoreError) or error.appended:
            return True
        return isinstance(error, logstore.SyncFailedError)

    def _failed(self, plan: Plan, error: BaseException) -> None:
        if not self.may_have_happened(error):
            return
        for log, _ in plan.appends:
            # A call inside of it may have made the topic anew.
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
            # Who is under way may have come before or after it.
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
        """An append says that its records are there."""
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
        """The same of a call that looks for the partition by its name: a call inside
        of it may have made the topic anew, before it or behind it."""
        self._told(plan, log, first, values)
        anew = self.logs.get((log.topic, log.number))
        if log.is_gone and anew is not None:
            for at, value in enumerate(values, first):
                anew.unsure.setdefault(at, set()).add(value)

    def _is_cut_now(self) -> bool:
        """Whether something is being deleted."""
        return any(plan.cut or plan.deletes for plan in list(self.flying))

    def plan(self, name: str) -> Plan:
        """A call of this name, with arguments by chance."""
        made: Plan = getattr(self, f"_plan_{name}")()
        return made

    # Each makes the plan of a call.

    def _append_plan(
        self, what: str, log: Log, values: list[bytes], call: Callable[[], Any]
    ) -> Plan:
        def told(result: Any) -> None:
            if isinstance(result, int):
                result = range(result, result + 1)
            if not isinstance(result, range) or len(result) != len(values):
                raise Broken(f"{what} of {len(values)} records returned {result!r}")
            self._told(plan, log, result.start, values)

        plan = Plan(f"{what} to {log.name}", call, told, appends=[(log, values)])
        if not self.given.is_plain:
            plan.expects = (TypeError,)
        return plan

    def _plan_append(self, durable: bool = False, **more: Any) -> Plan:
        log, partition = self.pick()
        values = self.values(1)
        data = self.given.data(values[0])
        key = self.given.data(b"k") if self.rng.random() < 0.3 else None
        time = self.given.number(1_700_000_000_000) if self.rng.random() < 0.3 else None
        options = {**more, "durable": True} if durable else more
        if partition.config.message_format == 2 and self.rng.random() < 0.3:
            options["headers"] = self.given.many([("h", self.given.data(b"1"))])
        what = "append" + "".join(f", {name}" for name in options)
        plan = self._append_plan(
            what, log, values,
            lambda: partition.append(data, key, timestamp_ms=time, **options),
        )  # fmt: skip
        # With headers, where the topic has been configured to be without.
        plan.expects += (logstore.UnsupportedError,)
        return plan

    def plan_append_to(self, log: Log) -> Plan:
        """An append to this log."""
        partition, values = self.partition(log), self.values(1)
        return self._append_plan(
            "append", log, values, lambda: partition.append(values[0])
        )

    def _plan_append_durable(self) -> Plan:
        return self._plan_append(durable=True)

    def _plan_append_expected(self) -> Plan:
        plan = self._plan_append()
        log = plan.appends[0][0]
        partition = self.partition(log)
        value = plan.appends[0][1]
        offset = partition.end_offset
        number = self.given.number(offset)
        made = self._append_plan(
            "append, expected_offset", log, value,
            lambda: partition.append(value[0], expected_offset=number),
        )  # fmt: skip
        made.expects = (logstore.OffsetConflictError, TypeError)
        return made

    def _plan_append_many(self, most: int = 6) -> Plan:
        log, partition = self.pick()
        values = self.values(self.rng.randint(1, most))
        data = self.given.many([self.given.data(value) for value in values])
        count = len(values)
        keys = self.given.many([b"k"] * count) if self.rng.random() < 0.2 else None
        times = (
            self.given.many([self.given.number(1_700_000_000_000)] * count)
            if self.rng.random() < 0.2
            else None
        )
        durable = self.rng.random() < 0.2
        return self._append_plan(
            "append_many", log, values,
            lambda: partition.append_many(data, keys, times, durable=durable),
        )  # fmt: skip

    def _plan_append_rolls(self) -> Plan:
        return self._plan_append_many(most=60)

    def _plan_append_arrow(self) -> Plan:
        import pyarrow

        log, partition = self.pick()
        values = self.values(self.rng.randint(1, 5))
        batch = pyarrow.record_batch({"value": pyarrow.array(values, "binary")})
        data: Any = pyarrow.table(batch)
        if not self.given.is_plain:
            data = pyarrow.RecordBatchReader.from_batches(
                batch.schema, self.given.many([batch])
            )
        return self._append_plan(
            "append_arrow", log, values, lambda: partition.append_arrow(data)
        )

    def _plan_append_batches(self) -> Plan:
        log, partition = self.pick()
        taken: list[bytes] = []
        values: list[bytes] = []
        # What was appended once has the bytes of a producer; with other values.
        for value in self.values(2):
            values.append(value)
            taken.append(_message(value))
        data = self.given.data(b"".join(taken))
        return self._append_plan(
            "append_batches", log, values, lambda: partition.append_batches(data)
        )

    def _plan_topic_append(self) -> Plan:
        name = self.rng.choice(list(self.topics))
        topic = self._topic(name)
        log = self.logs.get((name, self.rng.randrange(self.topics.get(name, 1))))
        if log is None:  # a call in between has deleted it
            raise Unavailable(logstore.TopicNotFoundError(name, topic=name))
        values = self.values(1)
        data = self.given.data(values[0])
        chosen = _Always(log.number)
        topic.partitioner = self.given.partitioner(chosen)

        def told(result: Any) -> None:
            # A call from inside this one may have put another partitioner there.
            at = log
            if result.partition != log.number and topic.partitioner is not chosen:
                at = self.logs.get((result.topic, result.partition), log)
            if at.number != result.partition and not log.is_gone:
                raise Broken(f"{name}: went to {result.partition}, not {log.number}")
            self._told_by_name(plan, at, result.offset, values)

        plan = Plan(
            f"Topic.append to {log.name}",
            lambda: topic.append(data, key=b"k"),
            told,
            appends=[(log, values)],
        )
        return plan

    def _spread(self) -> tuple[str, list[tuple[Log, list[bytes]]]]:
        """A topic, and values for some of its partitions."""
        name = self.rng.choice(list(self.topics))
        logs = [log for log in list(self.logs.values()) if log.topic == name]
        if not logs:  # a call in between has deleted it
            raise Unavailable(logstore.TopicNotFoundError(name, topic=name))
        logs = self.rng.sample(logs, self.rng.randint(1, len(logs)))
        return name, [(log, self.values(self.rng.randint(1, 4))) for log in logs]

    def _spread_plan(
        self, what: str, rows: list[tuple[Log, list[bytes]]], call: Callable[[], Any]
    ) -> Plan:
        wanted = {log.number: (log, values) for log, values in rows}

        def told(result: Any) -> None:
            found = {number: len(span) for number, span in result}
            if found != {n: len(values) for n, (_, values) in wanted.items()}:
                raise Broken(f"{what} returned {result!r}")
            for number, span in result:
                log, values = wanted[number]
                self._told_by_name(plan, log, span.start, values)

        plan = Plan(
            f"{what} to {', '.join(log.name for log, _ in rows)}",
            call,
            told,
            appends=rows,
            is_whole=False,
            # It may have fewer partitions then.
            expects=(logstore.ConfigError,),
        )
        if not self.given.is_plain:
            plan.expects += (TypeError,)
        return plan

    def _mixed(self, rows: list[tuple[Log, list[bytes]]]) -> list[tuple[int, bytes]]:
        """(partition, value) of all, those of a partition in their order."""
        left = [(log.number, list(values)) for log, values in rows]
        mixed = []
        while left:
            number, values = self.rng.choice(left)
            mixed.append((number, values.pop(0)))
            left = [one for one in left if one[1]]
        return mixed

    def _plan_topic_append_many(self) -> Plan:
        name, rows = self._spread()
        mixed = self._mixed(rows)
        # Of its own: calls in between replace the partitioner of the store's.
        topic = Topic(self.store._topics, name)
        topic.partitioner = self.given.partitioner(_ByKey())
        values = self.given.many([self.given.data(value) for _, value in mixed])
        keys = self.given.many([b"%d" % number for number, _ in mixed])
        durable = self.rng.random() < 0.2
        return self._spread_plan(
            "Topic.append_many",
            rows,
            lambda: topic.append_many(values, keys, durable=durable),
        )

    def _plan_topic_append_arrow(self) -> Plan:
        import pyarrow

        name, rows = self._spread()
        mixed = self._mixed(rows)
        topic = self._topic(name)
        batch = pyarrow.record_batch(
            {
                "partition": pyarrow.array([number for number, _ in mixed], "int32"),
                "value": pyarrow.array([value for _, value in mixed], "binary"),
            }
        )
        data: Any = batch
        if not self.given.is_plain:
            data = pyarrow.RecordBatchReader.from_batches(
                batch.schema, self.given.many([batch])
            )
        return self._spread_plan(
            "Topic.append_arrow", rows, lambda: topic.append_arrow(data)
        )

    def _topic(self, name: str) -> Any:
        try:
            return self.store.topic(name)
        except LogStoreError as error:
            raise Unavailable(error) from error

    def _plan_flush(self) -> Plan:
        log, partition = self.pick()
        # First: a cut that is noted between the two counts as one that came later.
        begun = log.begun
        end = max(log.values, default=-1) + 1

        def told(_: Any) -> None:
            # A cut that was cut short holds readers back at once.
            if log.begun != begun or log.cuts or log.is_gone or self._is_cut_now():
                return
            with contextlib.suppress(LogStoreError):
                durable = partition.durable_offset
                if durable < end and not self._is_cut_now():
                    raise Broken(f"{log.name}: flushed, durable {durable} of {end}")

        return Plan(f"flush of {log.name}", partition.flush, told)

    def _plan_flush_topic(self) -> Plan:
        return Plan(
            "Topic.flush", self._topic(self.rng.choice(list(self.topics))).flush
        )

    def _plan_roll(self) -> Plan:
        log, partition = self.pick()
        return Plan(f"roll of {log.name}", partition.roll)

    def _plan_delete_before(self) -> Plan:
        log, partition = self.pick()
        low, high = partition.start_offset, partition.end_offset
        target = self.rng.randint(low, max(low, high - 8))
        number = self.given.number(target)

        def told(result: Any) -> None:
            if result != target:
                raise Broken(f"{log.name}: delete_before({target}) returned {result}")

        return Plan(
            f"delete_before({target}) of {log.name}",
            lambda: partition.delete_before(number),
            told,
            deletes=(log, target),
            expects=(logstore.OffsetOutOfRangeError,),
        )

    def _plan_truncate_to(self) -> Plan:
        log, partition = self.pick()
        end = partition.end_offset
        target = self.rng.randint(max(partition.start_offset, end - 4), end)
        number = self.given.number(target)

        def told(result: Any) -> None:
            if result != target:
                raise Broken(f"{log.name}: truncate_to({target}) returned {result}")

        return Plan(
            f"truncate_to({target}) of {log.name}",
            lambda: partition.truncate_to(number),
            told,
            cut=(log, target),
            expects=(logstore.UnsupportedError, logstore.OffsetOutOfRangeError),
        )

    def _plan_retention(self) -> Plan:
        log, partition = self.pick()
        # What it may let go is what is asked for.
        target = max(
            [s.base_offset for s in partition.segments[:2]] + [partition.start_offset]
        )
        policies = self.given.policies([_Below(target)])

        def told(result: Any) -> None:
            if result:
                log.start = max(log.start, result[-1].segment.next_offset)
                kept = {o: v for o, v in list(log.values.items()) if o >= log.start}
                log.values = kept

        plan = Plan(
            f"apply_retention of {log.name}",
            lambda: partition.apply_retention(policies=policies),
            told,
        )
        plan.deletes = (log, 0)
        log.starts.add(target)
        return plan

    # Reading: everything that must be there is, and nothing that was never appended.

    def _reading(
        self, what: str, read: Callable[[Any], list[tuple[int, bytes]]]
    ) -> Plan:
        log, partition = self.pick()
        check = self._check_of(what, log)
        return Plan(
            f"{what} of {log.name}",
            lambda: read(partition),
            check,
            expects=(logstore.OffsetOutOfRangeError,),
        )

    def _check_of(self, what: str, log: Log) -> Callable[[Any], None]:
        """What looks at the records that were read of a log since now."""
        known, begun = dict(log.values), log.begun

        def told(result: list[tuple[int, bytes]]) -> None:
            for at, (offset, value) in enumerate(result):
                if value not in self.given_out:
                    raise Broken(f"{what} of {log.name}: {value[:9]!r} at {offset}")
                if offset != result[0][0] + at:
                    raise Broken(f"{what} of {log.name}: {offset} behind a gap")
            if log.begun != begun or log.cuts or log.starts or log.is_gone:
                return
            if self._is_cut_now():
                return
            if not known.items() <= dict(result).items():
                lost = sorted(known.items() - dict(result).items())
                raise Broken(f"{what} of {log.name} has no {lost[0]!r}"[:300])

        return told

    def _topic_reading(self, what: str, read: Callable[[Any], Iterable[Any]]) -> Plan:
        name = self.rng.choice(list(self.topics))
        topic = self._topic(name)
        logs = [log for log in list(self.logs.values()) if log.topic == name]
        checks = {log.number: self._check_of(what, log) for log in logs}

        def told(records: list[Any]) -> None:
            for number, check in checks.items():
                of_it = [r for r in records if r.partition == number]
                check([(r.offset, r.value) for r in of_it])

        return Plan(
            f"{what} of {name}",
            lambda: list(read(topic)),
            told,
            expects=(logstore.OffsetOutOfRangeError,),
        )

    def _plan_topic_read(self) -> Plan:
        order = self.rng.choice(("time", "partition"))
        return self._topic_reading(
            "Topic.read", lambda topic: topic.read(order=order, limit=1 << 40)
        )

    def _plan_topic_follow(self) -> Plan:
        return self._topic_reading(
            "Topic.follow", lambda topic: topic.follow(timeout=0)
        )

    def _plan_get(self) -> Plan:
        log, partition = self.pick()
        known, begun = dict(log.values), log.begun
        offset = self.rng.choice([*known] or [0])
        number = self.given.number(offset)

        def told(record: Any) -> None:
            if record.offset != offset or record.value not in self.given_out:
                raise Broken(f"get({offset}) of {log.name} gave {record!r}"[:300])
            if log.begun != begun or log.cuts or log.starts or log.is_gone:
                return
            if self._is_cut_now() or offset not in known:
                return
            if record.value != known[offset]:
                raise Broken(f"get({offset}) of {log.name} gave {record!r}"[:300])

        return Plan(
            f"get({offset}) of {log.name}",
            lambda: partition.get(number),
            told,
            expects=(logstore.OffsetOutOfRangeError, logstore.RecordNotFoundError),
        )

    def _plan_read(self) -> Plan:
        return self._reading("read", by_record)

    def _plan_read_batches(self) -> Plan:
        def read(partition: Any) -> list[tuple[int, bytes]]:
            batches = partition.read_batches()
            return [(r.offset, r.value) for b in batches for r in b]

        # A batch may begin before the start of the log.
        return self._reading("read_batches", read)

    def _plan_fetch(self) -> Plan:
        def read(partition: Any) -> list[tuple[int, bytes]]:
            found: list[tuple[int, bytes]] = []
            offset = partition.start_offset
            size = self.given.number(600)
            while offset < partition.end_offset:
                chunk = partition.fetch(offset, size)
                found += [(r.offset, r.value) for r in chunk]
                if chunk.next_offset <= offset:
                    break
                offset = chunk.next_offset
            return found

        return self._reading("fetch", read)

    def _plan_read_arrow(self) -> Plan:
        names = self.given.sequence(["offset", "value"])

        def read(partition: Any) -> list[tuple[int, bytes]]:
            table = partition.read_arrow(columns=names).read_all()
            return list(
                zip(
                    table["offset"].to_pylist(), table["value"].to_pylist(), strict=True
                )
            )

        return self._reading("read_arrow", read)

    def _plan_follow(self) -> Plan:
        def read(partition: Any) -> list[tuple[int, bytes]]:
            return [(r.offset, r.value) for r in partition.follow(timeout=0)]

        return self._reading("follow", read)

    def _plan_looks(self) -> Plan:
        """All that is only looked at."""
        log, partition = self.pick()
        topic, store = self._topic(log.topic), self.store

        def look() -> None:
            for name in ("start_offset", "end_offset", "durable_offset", "segments",
                         "topic", "number", "name", "path", "config"):  # fmt: skip
                getattr(partition, name)
            partition.offset_for_time(self.given.number(1_600_000_000_000))
            partition.last_stable_offset()
            partition.apply_retention(dry_run=True)
            repr(partition), repr(topic), repr(store)
            len(topic), list(topic), topic.partitions, topic[0], topic.config
            len(partition), list(partition.read(limit=self.given.number(1)))
            list(store), log.topic in store, store[log.topic]
            for start in ("2023-11-14", datetime.date(2023, 11, 14)):
                list(partition.read(start, limit=1))
            store.topics(), store.published("p"), publication_token(store)
            store.discard_staged(older_than_ms=1 << 40)

        return Plan(f"looking at {log.name}", look)

    # Topics.

    def _plan_create_topic(self) -> Plan:
        free = [n for n in _EXTRA if n not in self.topics and n not in self.doubtful]
        if not free:
            return self._plan_configure()
        name, count = self.rng.choice(free), self.rng.randint(1, 3)
        config = self._config()
        text, number = self.given.text(name), self.given.number(count)
        return Plan(
            f"create_topic({name}, {count})",
            lambda: self.store.create_topic(text, number, config),
            lambda _: self._made(name, count),
            topic=name,
            expects=(logstore.TopicExistsError,)
            + (() if self.given.is_plain else (logstore.ConfigError,)),
        )

    def _plan_add_partitions(self) -> Plan:
        name = self.rng.choice(list(self.topics))
        if self.topics.get(name, 5) > 4:
            return self._plan_configure()
        topic = self._topic(name)
        count = self.given.number(1)

        def told(result: Any) -> None:
            if name in self.topics:
                self.doubtful.pop(name, None)
                self._created(name, max(result, self.topics[name]))

        return Plan(
            f"add_partitions to {name}", lambda: topic.add_partitions(count), told,
            topic=name,
            expects=() if self.given.is_plain else (logstore.ConfigError,),
        )  # fmt: skip

    def _plan_delete_topic(self) -> Plan:
        there = [name for name in _EXTRA if name in self.topics]
        if not there:
            return self._plan_create_topic()
        name = self.rng.choice(there)

        return Plan(
            f"delete_topic({name})",
            lambda: self.store.delete_topic(name),
            lambda _: self._deleted(name),
            topic=name,
            expects=(logstore.TopicNotFoundError,),
        )

    def _deleted(self, name: str) -> None:
        self.topics.pop(name, None)
        self.doubtful.pop(name, None)
        for logs in (self.logs, self._shelved):
            for key in [key for key in logs if key[0] == name]:
                logs.pop(key).is_gone = True

    def _shelve(self, name: str) -> None:
        """Not there now; it may be again when the store has been opened."""
        self.topics.pop(name, None)
        for key in [key for key in list(self.logs) if key[0] == name]:
            self._shelved[key] = self.logs.pop(key)

    def _plan_configure(self) -> Plan:
        name = self.rng.choice(list(self.topics))
        topic, config = self._topic(name), self._config()
        return Plan(f"configure {name}", lambda: topic.configure(config))

    def _plan_recover(self) -> Plan:
        callback = self.given.callback()
        return Plan("recover", lambda: self.store.recover(callback))

    # Publishing.

    def _plan_stage(self) -> Plan:
        logs = [log for log in list(self.logs.values()) if self._magic(log)]
        logs = self.rng.sample(logs, min(len(logs), self.rng.randint(1, 3)))
        rows = [(log, self.values(self.rng.randint(1, 4))) for log in logs]
        targets = [self.given.partition(self.partition(log)) for log in logs]
        given = [self.given.many(list(values)) for _, values in rows]
        sequence = next(self._sequence)

        def call() -> Any:
            with self.store.stage("p", sequence) as stage:
                for target, values in zip(targets, given, strict=True):
                    stage.append_many(target, values)
                return stage.finish()

        def told(staged: Any) -> None:
            if staged.records != sum(len(values) for _, values in rows):
                raise Broken(f"{staged.records} records were staged")
            self._staged.append((staged, rows, sequence))

        # A topic may have been configured to be one that cannot be published to.
        expects: tuple[type[BaseException], ...] = (logstore.UnsupportedError,)
        if not self.given.is_plain:
            expects += (TypeError,)
        return Plan("stage", call, told, expects=expects)

    def _magic(self, log: Log) -> bool:
        try:
            return bool(self.partition(log).config.message_format)
        except Unavailable:
            return False

    def _plan_publish(self) -> Plan:
        if not self._staged:
            # Not the call that is looked at: nothing disturbs it.
            given, self.given = self.given, Given()
            plan = self._plan_stage()
            self.given = given
            try:
                plan.told(plan.call())
            except LogStoreError as error:
                raise Unavailable(error) from error
        try:
            staged, rows, sequence = self._staged.pop()
        except IndexError as error:  # another thread has just taken it
            nothing = logstore.TopicNotFoundError("nothing is staged", topic="")
            raise Unavailable(nothing) from error
        many = self.given.many([staged])

        def call() -> Any:
            try:
                return self.store.publish(many, identity="p", sequence=sequence)
            except logstore.TopicNotFoundError as error:
                is_gone = any(
                    log.is_gone or log.topic in self.doubtful for log, _ in rows
                )
                if "is not the one" in str(error) and not is_gone:
                    raise Broken(f"no topic was made anew: {error}") from error
                raise

        def told(publication: Any) -> None:
            for log, values in rows:
                if not values or not publication.is_new:
                    continue
                span = publication.offsets.get((log.topic, log.number), range(0))
                if len(span) != len(values):
                    raise Broken(f"published {len(values)} to {log.name}: {span}")
                self._told(plan, log, span.start, values)

        plan = Plan(
            f"publish to {', '.join(log.name for log, _ in rows)}",
            call,
            told,
            appends=rows,
            # An earlier one was left out, or another has overtaken it; its topic was
            # configured to be one that cannot be published to.
            expects=(
                logstore.PublicationConflictError,
                logstore.UnsupportedError,
                logstore.TopicNotFoundError,
                logstore.PartitionNotFoundError,
            ),
        )
        return plan

    def _plan_discard_staged(self) -> Plan:
        some = [self._staged.pop()[0]] if self._staged else []
        many = self.given.many(some)
        return Plan("discard_staged", lambda: self.store.discard_staged(many))

    # The store as a whole, and from outside.

    def _plan_open_again(self) -> Plan:
        def call() -> None:
            try:
                logstore.open(self.path).close()
            except logstore.StoreLockedError:
                return
            if not self.has_closed:
                raise Broken("a second writer got in")

        return Plan("a second writer", call)

    def _plan_open_reader(self) -> Plan:
        path = self.given.text(str(self.path))

        def call() -> None:
            with logstore.open(path, read_only=True) as store:
                for name in store.topics():
                    with contextlib.suppress(
                        logstore.TopicNotFoundError, logstore.PartitionNotFoundError,
                        logstore.OffsetOutOfRangeError,
                    ):  # fmt: skip
                        for partition in store.topic(name).partitions:
                            by_record(partition)

        return Plan("a reader of its own", call)

    def _plan_forget(self) -> Plan:
        """Another store, which is forgotten before it is closed."""
        path = self.path.with_name(f"forgotten-{next(self._serial)}")

        def call() -> None:
            self.forgotten.append(path)
            store = logstore.open(path)
            store.create_topic("t", exist_ok=True)[0].append(b"x")
            cycle = [store]
            cycle.append(cycle)  # type: ignore[arg-type]

        return Plan("a store that is forgotten", call)

    def written_by_another(self) -> None:
        """The next opening finds that another program was the last writer: what was
        staged may be for topics that it has made anew."""
        self._staged.clear()

    def check_forgotten(self) -> None:
        """Stores that were forgotten have been closed by the collector."""
        gc.collect()
        for path in self.forgotten:
            self.watch.say("opening a store that was forgotten")
            if not path.exists():
                continue
            try:
                logstore.open(path).close()
            except LogStoreError as error:
                raise Broken(f"a store that was forgotten: {error!r}"[:600]) from error

    def _plan_verify(self) -> Plan:
        return Plan("verify", lambda: logstore.verify(self.path))

    def _plan_doctor(self) -> Plan:
        return Plan("doctor", lambda: logstore.doctor(self.path))

    def _plan_rebuild_index(self) -> Plan:
        log, _ = self.pick()
        path = self.path / log.name
        return Plan(
            "rebuild_index", lambda: logstore.rebuild_index(path),
            expects=(logstore.StoreLockedError, logstore.StoreNotFoundError),
        )  # fmt: skip

    def _plan_repair(self) -> Plan:
        log, _ = self.pick()
        path = self.path / log.name
        return Plan(
            "repair", lambda: logstore.repair(path, mode="cut"),
            expects=(logstore.StoreLockedError, logstore.StoreNotFoundError),
        )  # fmt: skip

    def _plan_close(self) -> Plan:
        self.has_closed = True
        return Plan("close", self.store.close)

    # ------------------------------------------------------------ looking

    def settle(self, where: str, *, reopened: bool = False) -> None:
        """Look at all that is there, hold it against what must be, and go on from
        there."""
        self.settle_topics(where, reopened=reopened)
        published: list[Plan] = []
        for log in list(self.logs.values()):
            ended = False
            try:
                partition = self.store.topic(log.topic)[log.number]
                # A call that was cut short may be finished by the next opening, also
                # where nobody has asked yet whether the partition takes appends.
                seen = partition._log
                ended = not isinstance(seen, ReadOnlyLog) and bool(
                    seen.health.failed
                    or seen.health.is_half_done
                    or seen._log.barrier.gate.is_stuck
                )
                start, found = partition.start_offset, by_record(partition)
                end = partition.end_offset
            except Exception as error:
                raise Broken(f"{log.name} in {where}: {error!r}") from error
            if end != start + len(found):
                raise Broken(f"{log.name} in {where}: {len(found)} of {start}..{end}")
            published += [
                plan for plan in log.loose if len(plan.appends) > 1 and plan.is_whole
            ]
            log.settle(start, found, is_ended=ended, where=where)
        for plan in published:
            logs = [log.name for log, _ in plan.appends if not log.is_gone]
            there = [name for name in logs if plan.came.get(name)]
            if 0 < len(there) < len(logs):
                raise Broken(f"half of {plan} is in {where}: only {there}")

    def settle_topics(self, where: str, *, reopened: bool) -> None:
        have = set(self.store.topics())
        for name, counts in list(self.doubtful.items()):
            count = 0
            with contextlib.suppress(
                logstore.TopicNotFoundError, logstore.PartitionNotFoundError
            ):
                count = len(self.store.topic(name).partitions)
            if not count:
                have.discard(name)
            if count not in counts:
                raise Broken(f"{name} has {count} partitions in {where}, not {counts}")
            if count:
                self._created(name, count)
            else:
                self._shelve(name)
        if reopened:
            self.doubtful.clear()
            self._shelved.clear()
        if have != set(self.topics):
            raise Broken(f"topics are {have} in {where}, not {set(self.topics)}")
        for name, count in list(self.topics.items()):
            if len(self.store.topic(name)) != count:
                raise Broken(f"{name} has {len(self.store.topic(name))}, not {count}")

    def doubt(self, plan: Plan) -> None:
        """A call on a topic was interrupted: it may have been done."""
        name = plan.topic
        if not name:
            return
        self._doubted[name] += 1
        count = self.topics.get(name, 0)
        known = self.doubtful.setdefault(name, {count})
        if plan.what.startswith("delete"):
            known.add(0)
        elif plan.what.startswith("create"):
            known |= {1, 2, 3}
        else:
            known.add(count + 1)

    def check_sound(self) -> None:
        """Closed: `verify` finds nothing."""
        self.check_forgotten()
        for problem in logstore.verify(self.path).problems:
            raise Broken(f"verify: {problem.message}"[:400])


class Unavailable(Exception):
    """What a plan needs cannot be had now; the cause says why."""


class _Always:
    """A partitioner."""

    def __init__(self, number: int) -> None:
        self.number = number

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        return self.number


class _ByKey:
    """A partitioner: the key is the number."""

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        return int(key or b"0")


class _Below(logstore.RetentionPolicy):
    """Segments below an offset go."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def select(self, segments: Any, now_ms: int) -> Iterable[Any]:
        return [s for s in segments if s.next_offset <= self.offset]


def by_record(partition: Any) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for record in partition.read()]


def _message(value: bytes) -> bytes:
    """A message of magic 1, as a producer sends it."""
    import zlib

    body = (
        b"\1\0" + (1_700_000_000_000).to_bytes(8, "big") + b"\xff\xff\xff\xff"
        + len(value).to_bytes(4, "big") + value
    )  # fmt: skip
    body = zlib.crc32(body).to_bytes(4, "big") + body
    return bytes(8) + len(body).to_bytes(4, "big") + body


def elsewhere(call: Callable[[], Any]) -> Any:
    """Make a call in another thread, which has none of this one's locks."""
    result: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return result[0]


CALLS = (
    "append", "append_durable", "append_expected", "append_many", "append_rolls",
    "append_arrow", "append_batches", "topic_append", "topic_append_many",
    "topic_append_arrow", "flush", "flush_topic", "roll", "topic_read", "topic_follow",
    "get",
    "delete_before", "truncate_to", "retention", "read", "read_batches", "fetch",
    "read_arrow", "follow", "looks", "create_topic", "add_partitions", "delete_topic",
    "configure", "recover", "stage", "publish", "discard_staged", "open_again",
    "forget", "open_reader", "verify", "doctor", "rebuild_index", "repair",
)  # fmt: skip
