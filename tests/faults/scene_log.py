"""Required and allowed contents of a partition, and the calls that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from faults.watched import Broken

Key = tuple[str, int]


class Log:
    """Required and allowed contents of a partition.

    Attributes:
        values: of the records that must be there, by offset.
        start: start offset of the log; `starts`: other possible ones, since a deletion
            was interrupted.
        cuts: offsets at which an interrupted truncation may have cut it.
        loose: plans whose records may be there, all of them or none.
        unsure: values that may be at an offset.
        begun: incremented at the begin and the end of each deletion and truncation.
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
        """Note an acknowledged record."""
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
        """Compare this with the actual content, which then becomes the required one.

        Args:
            is_ended: the partition has ended for writing: the next opening may have
                kept a part of an append that was interrupted then.
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
            # The next opening may or may not finish the interrupted call.
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
        """Check that each unknown record is of a call that may have been done."""
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
        told: handles its result; raises `Broken`.
        appends: the values that it appends, by log.
        expects: errors that it may raise, whatever happens around it.
        cut, deletes: of a truncation or deletion: the log, and the offset.
        topic: the topic that it creates or deletes.
        is_shaken: its log was truncated while it was in flight.
        doubts: number of interrupted calls on each topic when it began.
        came: number of its records that were found, by the name of the log.
        cut_in: names of logs that were truncated since, while its outcome was unknown:
            its records may be gone from them.
        is_whole: all of its logs get their records, or none.
        group: the group whose consumer it uses; "": none.
        failed: called when it has raised, with whether it may have been done.
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
        self.cut_in: set[str] = set()
        self.group = ""
        self.failed: Callable[[bool], None] = lambda is_done: None

    def __str__(self) -> str:
        return self.what

    def of(self, log: Log) -> list[bytes]:
        return [v for one, vs in self.appends if one.name == log.name for v in vs]
