"""Promises of a store, compared with its contents.

Each return of a call is a promise. A call that is under way, or that has failed, leaves
more than one outcome open until the store is opened again; `Log` says which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from logstore import Record, Store

# Visible state of a partition: start offset, end offset, records.
Shown = tuple[int, int, list[Record]]
# topic -> its partitions, in order
View = dict[str, list[Shown]]


@dataclasses.dataclass(slots=True)
class Log:
    """Allowed contents of a partition.

    Attributes:
        records: all that was ever appended, by offset, without what was truncated.
        coming: this number of the last records was not acknowledged at all.
        durable: below this offset all is acknowledged as durable.
        starts: possible start offsets.
        ends: possible end offsets after an unfinished truncation.
        is_cut: the power was cut, and the rest has not been read yet.
    """

    records: list[Record] = dataclasses.field(default_factory=list)
    coming: int = 0
    durable: int = 0
    starts: frozenset[int] = frozenset({0})
    ends: frozenset[int] = frozenset()
    is_cut: bool = False

    def copy(self) -> Log:
        return dataclasses.replace(self, records=list(self.records))

    @property
    def end(self) -> int:
        """End offset by the calls that have returned."""
        return len(self.records) - self.coming

    def problem(self, shown: Shown, *, is_killed: bool) -> str:
        """Contradiction between the promises and the partition, or "".

        After a kill all appended records are there, after a power cut all durable ones.
        """
        start, end, records = shown
        if start not in self.starts:
            return f"starts at {start}, not at one of {sorted(self.starts)}"
        is_whole = is_killed and not self.is_cut
        least = self.end if is_whole else min(self.durable, self.end)
        if end < least and end not in self.ends:
            kind = "written" if is_whole else "durable"
            return f"ends at {end}, and {least} was {kind}"
        if end > len(self.records):
            return f"ends at {end}, and only {len(self.records)} were appended"
        wanted = self.records[start:end]
        if records != wanted:
            for found, there in zip(records, wanted, strict=False):
                if found != there:
                    return f"reads {found!r} at offset {there.offset}, not {there!r}"
            return f"reads {len(records)} records from {start} to {end}"
        return ""

    def settle(self, shown: Shown) -> None:
        """Take the state after an opening for writing as the only one, and durable."""
        start, end, _ = shown
        del self.records[end:]
        self.coming = 0
        self.durable = end
        self.starts = frozenset({start})
        self.ends = frozenset()
        self.is_cut = False


@dataclasses.dataclass(slots=True)
class TopicPromise:
    """Allowed contents of a topic.

    Attributes:
        logs: its partitions.
        is_certain: False while it is being created or deleted: it may be there or not.
        growing: number of further partitions that may be there, all of them or none.
    """

    logs: list[Log]
    is_certain: bool = True
    growing: int = 0

    def copy(self) -> TopicPromise:
        logs = [log.copy() for log in self.logs]
        return dataclasses.replace(self, logs=logs)


@dataclasses.dataclass(slots=True)
class Promises:
    """Promises of a store, by topic.

    Attributes:
        publication: (topic, partition, first offset, one past the last) of the
            publication under way: all of it is there, or nothing.
    """

    topics: dict[str, TopicPromise] = dataclasses.field(default_factory=dict)
    publication: tuple[tuple[str, int, int, int], ...] = ()

    def copy(self) -> Promises:
        topics = {name: topic.copy() for name, topic in self.topics.items()}
        return Promises(topics, self.publication)

    def problem(
        self, view: View, *, is_killed: bool = False, is_recovered: bool = True
    ) -> str:
        """Contradiction between the promises and a view of the store, or "".

        Before recovery (`is_recovered` False) half of a topic that is being made or
        deleted may be seen.
        """
        for name in view.keys() - self.topics.keys():
            return f"topic {name} is there and should not be"
        for name, topic in self.topics.items():
            shown = view.get(name, [])
            count = len(topic.logs)
            if not shown and not topic.is_certain:
                continue
            half = not is_recovered and (topic.growing or not topic.is_certain)
            if len(shown) not in (count, count + topic.growing) and not half:
                return f"topic {name} has {len(shown)} partitions, not {count}"
            if not is_recovered and not topic.is_certain:
                continue  # its partitions go one by one
            for number, log in enumerate(_with(topic.logs, len(shown))):
                text = log.problem(shown[number], is_killed=is_killed)
                if text:
                    return f"{name}-{number} {text}"
        return self._half_published(view)

    def problem_of(self, store: Store, *, is_killed: bool, is_thorough: bool) -> str:
        """Contradiction between the promises and an open store, apart from its view, or
        "". If `is_thorough`, its services are used."""
        return ""

    def _half_published(self, view: View) -> str:
        ends = [
            (view[name][number][1], first, end)
            for name, number, first, end in self.publication
            if name in view
        ]
        if any(end > first for end, first, _ in ends) and any(
            end < wanted for end, _, wanted in ends
        ):
            return f"half a publication is there: {ends}"
        return ""

    def settle(self, view: View) -> None:
        """Take the view after an opening for writing as the promised state."""
        self.publication = ()
        for name in list(self.topics):
            shown = view.get(name)
            if not shown:
                del self.topics[name]
                continue
            topic = self.topics[name]
            topic.logs = list(_with(topic.logs, len(shown)))
            topic.is_certain, topic.growing = True, 0
            for log, found in zip(topic.logs, shown, strict=True):
                log.settle(found)


def _with(logs: Iterable[Log], count: int) -> Iterable[Log]:
    """The first `count` of these; empty ones if there are fewer."""
    found = list(logs)[:count]
    return [*found, *(Log() for _ in range(count - len(found)))]
