"""Plans of calls that append, to a partition or to a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import logstore
from faults.scene_log import Log, Plan
from faults.scene_state import SceneState, Unavailable
from faults.watched import Broken
from logstore.store.topic.topic import Topic


class Appends(SceneState):
    """Plans of calls that append."""

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
        # Headers, although the topic may have been configured to a format without.
        plan.expects += (logstore.errors.UnsupportedError,)
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
        made.expects = (logstore.errors.OffsetConflictError, TypeError)
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
        # Bytes as a producer makes them, with other values.
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
            # A call from inside this one may have set another partitioner.
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
            # ConfigError: the topic may have fewer partitions by then.
            expects=(logstore.ConfigError,),
        )
        if not self.given.is_plain:
            plan.expects += (TypeError,)
        return plan

    def _mixed(self, rows: list[tuple[Log, list[bytes]]]) -> list[tuple[int, bytes]]:
        """(partition, value) of all rows, in order within each partition."""
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
        # A separate Topic: calls in between replace the partitioner of the store's.
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


class _Always:
    """A partitioner that always chooses the same partition."""

    def __init__(self, number: int) -> None:
        self.number = number

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        return self.number


class _ByKey:
    """A partitioner: the key is the number."""

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        return int(key or b"0")


def _message(value: bytes) -> bytes:
    """A message of magic 1, as a producer sends it."""
    import zlib

    body = (
        b"\1\0" + (1_700_000_000_000).to_bytes(8, "big") + b"\xff\xff\xff\xff"
        + len(value).to_bytes(4, "big") + value
    )  # fmt: skip
    body = zlib.crc32(body).to_bytes(4, "big") + body
    return bytes(8) + len(body).to_bytes(4, "big") + body
