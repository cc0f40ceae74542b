"""The records around a place, in bounded memory: forward, backward, and at jumps.

A place is the next offset of each partition. One partition has one; a topic, whose
records are merged by their times, has one of each. A part of the log is always the
offsets between two places, so that nothing is shown twice or left out, whatever the
times are, and damage has a row in place of its records.
"""

from __future__ import annotations

import copy
import datetime
import heapq
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import logstore
from logstore.cli.advice import for_command_line
from logstore.cli.browse.lines import Line, NoticeLine, RecordLine, line_of
from logstore.cli.lookup import beginning
from logstore.cli.params import Bound, FromEnd
from logstore.cli.selection import offset_from_end
from logstore.cli.tail import intact_behind
from logstore.cli.text import harmless, offsets_text, relative

# Records in a part, and rows that are kept: more than any terminal has.
PART: Final = 200
KEPT: Final = 1000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999: a record may say more
_ISOLATION: Final = "read_uncommitted"

Place = dict[int, int]
OnDamage = Callable[["logstore.types.Damaged"], bool]


class Part(NamedTuple):
    """The rows between two places.

    Attributes:
        at_start, at_end: whether `start` is the start of the log, `stop` its end.
    """

    lines: list[Line]
    start: Place
    stop: Place
    at_start: bool
    at_end: bool


class BrowserView:
    """A partition, or the partitions of a topic as one stream, as the browser reads it.

    Every call reads the current log. Any thread may call it.

    Args:
        partitions: one; or several of `topic`.
        topic: needed for several.
    """

    def __init__(
        self,
        partitions: Sequence[logstore.Partition],
        topic: logstore.Topic | None = None,
    ) -> None:
        self.partitions = {partition.number: partition for partition in partitions}
        self.topic_name = partitions[0].topic
        self._topic = topic if len(partitions) > 1 else None
        self._numbers = {
            os.fspath(partition.path): partition.number for partition in partitions
        }
        self._check: Callable[[], None] = lambda: None

    def checked(self, check: Callable[[], None]) -> BrowserView:
        """The same, calling a function at each record and each damaged part that it
        reads: an exception of it ends the read."""
        view = copy.copy(self)
        view._check = check
        return view

    @property
    def is_merged(self) -> bool:
        return self._topic is not None

    def starts(self) -> Place:
        return {n: partition.start_offset for n, partition in self.partitions.items()}

    def ends(self) -> Place:
        return {n: partition.end_offset for n, partition in self.partitions.items()}

    # ------------------------------------------------------------------ reading

    def read(
        self, start: Place, stop: Place, on_damage: OnDamage, limit: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(number, record) of those between two places, the oldest first."""
        if self._topic is None:
            ((number, partition),) = self.partitions.items()
            records = partition.read(
                start[number], stop[number], on_corruption=on_damage, limit=limit
            )
            return ((number, record) for record in records)
        starts, stops = dict(start), dict(stop)
        for other in self._topic:  # partitions that are not chosen
            if other.number not in starts:
                starts[other.number] = stops[other.number] = other.end_offset
        merged = self._topic.read(starts, stops, on_corruption=on_damage, limit=limit)
        return ((record.partition, record) for record in merged)

    def damage(
        self, damaged: logstore.types.Damaged, stop: Mapping[int, int]
    ) -> NoticeLine:
        """The row of damage that a read up to a place has met."""
        path = damaged.error.path or ""
        number = self._numbers.get(os.path.dirname(path), next(iter(self.partitions)))
        following = damaged.next_offset
        end = stop[number] if following is None else min(following, stop[number])
        reason = getattr(damaged.error, "reason", None) or str(damaged.error)
        return NoticeLine(
            number,
            damaged.first,
            max(end, damaged.first),
            f"damaged: offsets {offsets_text(damaged.first, end)}: {plain(reason)}",
        )

    # ------------------------------------------------------------------ parts

    def forward(
        self,
        place: Place,
        count: int = PART,
        stop: Place | None = None,
        *,
        looks_further: bool = True,
    ) -> Part:
        """The records from a place on: at most `count`, or all up to `stop`.

        Args:
            looks_further: at the end, report intact batches after it.
        """
        lines: list[Line] = []
        starts, ends = self.starts(), self.ends()
        stops = ends if stop is None else {n: min(stop[n], ends[n]) for n in ends}
        reached_place = self._here(place, starts, ends, lines)
        begin = dict(reached_place)
        # Since the call: a part that was deleted meanwhile ends before it began.
        stops = {n: max(stops[n], reached_place[n]) for n in stops}

        def met(damaged: logstore.types.Damaged) -> bool:
            self._check()
            line = self.damage(damaged, stops)
            if line.next_offset > reached_place[line.partition]:
                lines.append(line)
                reached_place[line.partition] = line.next_offset
            return True

        record_count = 0
        limit = None if stop is not None else count
        for number, record in self.read(dict(reached_place), stops, met, limit):
            self._check()
            lines.append(line_of(number, record))
            reached_place[number] = record.offset + 1
            record_count += 1
        is_end = limit is None or record_count < limit
        if is_end:  # only markers follow the last record, or nothing
            reached_place = stops
        at_end = is_end and all(reached_place[n] >= ends[n] for n in ends)
        if at_end and stop is None and looks_further:
            lines += self._further(ends)
        return Part(lines, begin, reached_place, _is_before(begin, starts), at_end)

    def _here(
        self, place: Place, starts: Place, ends: Place, lines: list[Line]
    ) -> Place:
        """Move a place into the current log; report deleted and cut offsets."""
        moved_place = {}
        for number, offset in place.items():
            start, end = starts[number], ends[number]
            if offset < start:
                text = f"deleted: offsets {offsets_text(offset, start)} are gone"
                lines.append(NoticeLine(number, offset, start, text, False))
            elif offset > end:
                text = f"cut: the log ends at offset {end} now, below {offset}"
                lines.append(NoticeLine(number, end, end, text, False))
            moved_place[number] = min(max(offset, start), end)
        return moved_place

    def _further(self, ends: Place) -> Iterator[Line]:
        """Rows about intact batches after the end of a log that was not closed."""
        for number, partition in self.partitions.items():
            text = intact_behind(partition)
            if text:
                end = ends[number]
                yield NoticeLine(number, end, end, f"damaged: {plain(text)}")

    def backward(self, place: Place, count: int = PART) -> Part:
        """The last `count` records before a place."""
        starts = self.starts()
        before = {
            number: offset_from_end(
                partition,
                count,
                _ISOLATION,
                stop=max(place[number], starts[number]),
                on_damage=self._leave_out,
            )
            for number, partition in self.partitions.items()
        }
        if self.is_merged:
            before = self._latest(before, place, count)
        part = self.forward(before, stop=place)
        return part._replace(stop=dict(place))

    def _leave_out(self, damaged: logstore.types.Damaged) -> bool:
        self._check()
        return True

    def _latest(self, before: Place, place: Place, count: int) -> Place:
        """Where the last `count` records of all partitions together begin; each has
        that many at most."""
        rows: dict[int, list[tuple[int, int]]] = {}
        for number, partition in self.partitions.items():
            if before[number] < place[number]:
                rows[number] = []
                for record in partition.read(
                    before[number], place[number], on_corruption=self._leave_out
                ):
                    self._check()
                    rows[number].append((record.timestamp_ms, record.offset))
        if sum(map(len, rows.values())) <= count:
            return before
        latest = dict(place)
        # The newest of the last ones of all: the merge, from its end.
        heap = [(-some[-1][0], -number) for number, some in rows.items() if some]
        heapq.heapify(heap)
        for _ in range(count):
            number = -heapq.heappop(heap)[1]
            some = rows[number]
            latest[number] = some.pop()[1]
            if some:
                heapq.heappush(heap, (-some[-1][0], -number))
        return latest

    # ------------------------------------------------------------------ jumps

    def place(self, bound: Bound) -> Place:
        """The place of an offset, of a time, of the last N records of each partition;
        None: the start. An offset outside of a log is its nearest end.

        Raises: as `beginning`.
        """
        starts, ends = self.starts(), self.ends()
        if bound is None:
            return starts
        if isinstance(bound, FromEnd):
            count = int(bound)
            return {
                n: offset_from_end(
                    partition, count, _ISOLATION, on_damage=self._leave_out
                )
                for n, partition in self.partitions.items()
            }
        if isinstance(bound, datetime.datetime):
            return {n: beginning(p, bound).offset for n, p in self.partitions.items()}
        return {n: min(max(bound, starts[n]), ends[n]) for n in starts}

    def tail(self) -> tuple[Part, int]:
        """The last part, and which of its rows is the last record."""
        ends = self.ends()
        part = self.backward(ends)
        indices = (
            n for n, line in enumerate(part.lines) if isinstance(line, RecordLine)
        )
        last = max(indices, default=0)
        return part._replace(lines=[*part.lines, *self._further(ends)]), last

    def beside(self, number: int, offset: int) -> Place:
        """The place in front of a record; of other partitions that of its time."""
        if not self.is_merged:
            return {number: offset}
        time_ms = self.partitions[number].get(offset).timestamp_ms
        if time_ms < 0:
            return {**self.starts(), number: offset}
        when = _EPOCH + datetime.timedelta(milliseconds=min(time_ms, _LAST_MS))
        return {**self.place(when), number: offset}

    def around(self, place: Place) -> tuple[Part, int]:
        """A part with the records from a place on, and before them others if few follow
        it; and which row is the first one of the place."""
        part = self.forward(place)
        if not part.at_end or part.at_start or len(part.lines) >= PART:
            return part, 0
        earlier = self.backward(place)
        lines = earlier.lines + part.lines
        whole = part._replace(
            lines=lines, start=earlier.start, at_start=earlier.at_start
        )
        return whole, min(len(earlier.lines), max(len(lines) - 1, 0))


class Window:
    """The rows that are kept: a part of the log that moves, never more than `KEPT`
    after a change, of which one end was just read.

    Attributes:
        lines: the rows.
    """

    def __init__(self, part: Part) -> None:
        self.lines = list(part.lines)
        self.start, self.stop = dict(part.start), dict(part.stop)
        self.at_start, self.at_end = part.at_start, part.at_end

    def append(self, part: Part) -> int:
        """Add what follows; returns how many rows were dropped in front."""
        self.lines += part.lines
        self.stop, self.at_end = dict(part.stop), part.at_end
        dropped = max(len(self.lines) - KEPT, 0)
        if dropped:
            self.start = _first_of(self.lines[dropped:], self.stop)
            del self.lines[:dropped]
            self.at_start = False
        return dropped

    def prepend(self, part: Part) -> int:
        """Add an earlier part; returns how many rows it has."""
        self.lines[:0] = part.lines
        self.start, self.at_start = dict(part.start), part.at_start
        if len(self.lines) > KEPT:
            self.stop = _last_of(self.lines[:KEPT], self.start)
            del self.lines[KEPT:]
            self.at_end = False
        return len(part.lines)


def _first_of(lines: Sequence[Line], stop: Place) -> Place:
    """The place in front of some rows that end at another one."""
    place = dict(stop)
    for line in reversed(lines):
        place[line.partition] = line.offset
    return place


def _last_of(lines: Sequence[Line], start: Place) -> Place:
    place = dict(start)
    for line in lines:
        place[line.partition] = max(line.next_offset, place[line.partition])
    return place


def _is_before(place: Place, starts: Place) -> bool:
    return all(place[number] <= starts[number] for number in starts)


def plain(message: str) -> str:
    """A message of the library in the words of the command line, without an effect."""
    return harmless(relative(for_command_line(message)))


__all__ = ["KEPT", "PART", "Part", "Place", "BrowserView", "Window", "plain"]
