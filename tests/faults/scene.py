"""A store, every public call on it, and its required content after each.

Shared by `reentry`, `interrupts`, `forks` and `limits`. A call is made as a `Plan`: its
action, and the meaning of its result for the required content of the store. While it
runs it is in flight, and others may be made inside of it; if it raises, the `Scene`
decides what that means: nothing was done (an error with a name), or all or nothing, yet
unknown which (an exception from outside). `Scene.settle` finds out.

Every appended value is unique, so each record that is read shows its origin.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import logstore
from faults.scene_appends import Appends
from faults.scene_changes import Changes
from faults.scene_compaction import COMPACTION_CALLS, COMPACTION_TOPIC, Compacted
from faults.scene_groups import GROUP_CALLS, GROUP_TOPICS, Groups
from faults.scene_log import Plan
from faults.scene_reads import Reads, by_record
from faults.scene_store import WholeStore
from faults.watched import Broken
from logstore.log.follow.read_only_log import ReadOnlyLog

__all__ = ["CALLS", "Scene", "elsewhere"]

# Topics that only some plans are about.
_APART = GROUP_TOPICS | {COMPACTION_TOPIC}


class Scene(Appends, Changes, Reads, WholeStore, Groups, Compacted):
    """A store, the plan of each call on it, and its required content after each."""

    def open(self, **options: Any) -> None:
        """Open the store, with new consumers."""
        self.end_consumers()
        super().open(**options)

    def plan(self, name: str) -> Plan:
        """A call of this name, with random arguments."""
        made: Plan = getattr(self, f"_plan_{name}")()
        return made

    # ------------------------------------------------------------ looking

    def settle(self, where: str, *, reopened: bool = False) -> None:
        """Compare the whole store with the required content, and continue from its
        actual content."""
        self.settle_topics(where, reopened=reopened)
        self.settle_groups(where)
        compacted = self.store.topic(COMPACTION_TOPIC)[0]
        self.settle_compacted(where, is_ended=_has_ended(compacted))
        published: list[Plan] = []
        for log in list(self.logs.values()):
            try:
                partition = self.store.topic(log.topic)[log.number]
                ended = _has_ended(partition)
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
            logs = [
                log.name
                for log, _ in plan.appends
                if not log.is_gone and log.name not in plan.cut_in
            ]
            there = [name for name in logs if plan.came.get(name)]
            if 0 < len(there) < len(logs):
                raise Broken(f"half of {plan} is in {where}: only {there}")

    def settle_topics(self, where: str, *, reopened: bool) -> None:
        have = set(self.store.topics()) - _APART
        for name, counts in list(self.doubtful.items()):
            count = 0
            with contextlib.suppress(
                logstore.TopicNotFoundError, logstore.errors.PartitionNotFoundError
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
        """Note that a call on a topic was interrupted, and may have been done."""
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
        """Check that `verify` finds nothing in the closed store."""
        self.check_forgotten()
        for problem in logstore.verify(self.path).problems:
            raise Broken(f"verify: {problem.message}"[:400])


def _has_ended(partition: Any) -> bool:
    """Whether it takes no more appends: the next opening may finish an interrupted
    call, even if no append was refused yet."""
    seen = partition._log
    return not isinstance(seen, ReadOnlyLog) and bool(
        seen.health.failed
        or seen.health.is_poisoned
        or seen._log.visibility.barrier.is_stuck
    )


def elsewhere(call: Callable[[], Any]) -> Any:
    """Make a call in another thread, which holds none of this one's locks."""
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
    *GROUP_CALLS, *COMPACTION_CALLS,
)  # fmt: skip
