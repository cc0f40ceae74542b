"""Plans of calls that read or look, and their required results."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

import logstore
from faults.scene_log import Log, Plan
from faults.scene_state import SceneState
from faults.watched import Broken
from logstore.store.package_access import publication_key


class Reads(SceneState):
    """Plans of calls that read."""

    # Reading: all required records are there, and none that was never appended.

    def _reading(
        self,
        what: str,
        read: Callable[[Any], Any],
        rows: Callable[[Any], list[tuple[int, bytes]]] = list,
    ) -> Plan:
        log, partition = self.pick()
        check = self._check_of(what, log)
        return Plan(
            f"{what} of {log.name}",
            lambda: read(partition),
            lambda result: check(rows(result)),
            expects=(logstore.OffsetOutOfRangeError,),
        )

    def _check_of(self, what: str, log: Log) -> Callable[[Any], None]:
        """A check for records that are read from a log from now on."""
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
            expects=(
                logstore.OffsetOutOfRangeError,
                logstore.errors.RecordNotFoundError,
            ),
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

        def read(partition: Any) -> Any:
            return partition.read_arrow(columns=names).read_all()

        def rows(table: Any) -> list[tuple[int, bytes]]:
            # Not under the limits of the call: if an allocation fails in `to_pylist`,
            # some versions of pyarrow corrupt the memory of Python.
            columns = table["offset"].to_pylist(), table["value"].to_pylist()
            return list(zip(*columns, strict=True))

        return self._reading("read_arrow", read, rows)

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
            store.topics(), store.published("p"), publication_key(store)
            store.discard_staged(older_than_ms=1 << 40)

        return Plan(f"looking at {log.name}", look)


def by_record(partition: Any) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for record in partition.read()]
