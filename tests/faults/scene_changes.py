"""Plans of calls that flush, roll, delete and truncate, and that change topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import logstore
from faults.scene_log import Plan
from faults.scene_state import SceneState
from faults.watched import Broken
from logstore import LogStoreError

_EXTRA = ("x", "y", "z")


class Changes(SceneState):
    """Plans of calls that change logs or topics in other ways."""

    def _plan_flush(self) -> Plan:
        log, partition = self.pick()
        # Read first: a cut that is noted between the two counts as a later one.
        begun = log.begun
        end = max(log.values, default=-1) + 1

        def told(_: Any) -> None:
            # An interrupted cut limits readers at once.
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
            expects=(logstore.errors.UnsupportedError, logstore.OffsetOutOfRangeError),
        )

    def _plan_retention(self) -> Plan:
        log, partition = self.pick()
        # The policy selects no more than it may delete.
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

    def _plan_configure(self) -> Plan:
        name = self.rng.choice(list(self.topics))
        topic, config = self._topic(name), self._config()
        return Plan(f"configure {name}", lambda: topic.configure(config))

    def _plan_recover(self) -> Plan:
        callback = self.given.callback()
        return Plan("recover", lambda: self.store.recover(callback))


class _Below(logstore.RetentionPolicy):
    """Selects segments below an offset."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def select(self, segments: Any, now_ms: int) -> Iterable[Any]:
        return [s for s in segments if s.next_offset <= self.offset]
