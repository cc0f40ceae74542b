"""Known appends to one log in a storm, and checks of its contents."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence

import logstore

__all__ = ["Append", "Cut", "Ledger"]

_KEYS = 12


class Append:
    """A call that appends.

    Attributes:
        begun, ended: times, by the ledger's count; `ended` None: it has not returned.
        offsets: its result.
    """

    __slots__ = ("begun", "ended", "keys", "offsets", "values")

    def __init__(
        self, begun: int, values: list[bytes], keys: list[bytes | None]
    ) -> None:
        self.begun = begun
        self.ended: int | None = None
        self.values = values
        self.keys = keys
        self.offsets: range | None = None


class Cut:
    """A call that removes the tail of a log from an offset on, or its head before it.

    Attributes:
        begun, ended: as in `Append`.
    """

    __slots__ = ("at", "begun", "ended", "is_tail")

    def __init__(self, begun: int, *, is_tail: bool, at: int) -> None:
        self.begun = begun
        self.ended: int | None = None
        self.is_tail = is_tail
        self.at = at

    def may_have_taken(self, append: Append, offset: int) -> bool:
        """Whether it may have removed an acknowledged record."""
        if not self.is_tail:
            return offset < self.at
        was_over = self.ended is not None and self.ended < append.begun
        return offset >= self.at and not was_over

    def has_taken(self, append: Append, offset: int) -> bool:
        """Whether it has certainly removed an acknowledged record."""
        assert append.ended is not None
        is_over = self.ended is not None and append.ended < self.begun
        return is_over and (offset >= self.at) == self.is_tail


class Ledger:
    """The calls on one log; several threads use it.

    Attributes:
        kind: ``plain``; ``cut``: its tail and its head are removed now and then;
            ``keyed``: it is compacted.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # Each step of the counter is atomic.
        self._clock = itertools.count()
        self._numbers = itertools.count()
        self._appends: dict[bytes, tuple[Append, int]] = {}
        self._calls: list[Append] = []
        self._cuts: list[Cut] = []

    # ------------------------------------------------------------ the calls

    def begin(
        self, thread: int, count: int, padding: int, rng: random.Random
    ) -> Append:
        """Begin a call with `count` records."""
        number = next(self._numbers)
        values = [b"%d.%d.%d" % (thread, number, i) for i in range(count)]
        values = [value.ljust(padding, b".") for value in values]
        keys: list[bytes | None] = [None] * count
        if self.kind == "keyed":
            keys = [b"k%d" % rng.randrange(_KEYS) for _ in range(count)]
        append = Append(next(self._clock), values, keys)
        self._calls.append(append)
        for at, value in enumerate(values):
            self._appends[value] = append, at
        return append

    def acknowledge(self, append: Append) -> None:
        """Note that a call has returned, with its offsets."""
        append.ended = next(self._clock)

    @contextlib.contextmanager
    def cutting(self, *, is_tail: bool, at: int) -> Iterator[Cut]:
        cut = Cut(next(self._clock), is_tail=is_tail, at=at)
        self._cuts.append(cut)
        yield cut
        cut.ended = next(self._clock)

    # ------------------------------------------------------------ while it runs

    def check_durable(self, append: Append, partition: logstore.Partition) -> None:
        """Check a durable append whose offsets are above the durable offset: a cut must
        have removed them."""
        assert append.offsets is not None
        last = append.offsets[-1]
        if not any(cut.may_have_taken(append, last) for cut in self._cuts):
            raise AssertionError(
                f"offset {last} was durable, and the durable offset of "
                f"{partition.topic} is {partition.durable_offset}"
            )

    def check_seen(self, found: Sequence[tuple[int, bytes | None]]) -> None:
        """Check the records of one read."""
        offsets = [offset for offset, _ in found]
        if sorted(set(offsets)) != offsets:
            raise AssertionError(f"offsets do not rise: {offsets}")
        unknown = [one for one in found if one[1] not in self._appends]
        if unknown:
            raise AssertionError(f"nobody has appended {unknown[:3]!r:.200}")

    # ------------------------------------------------------------ in the end

    def problem(self, partition: logstore.Partition) -> str:
        """Problem of the log after the store was closed and reopened, or ""."""
        records = list(partition.read())
        found = [(record.offset, record.value or b"") for record in records]
        try:
            self.check_seen(found)
        except AssertionError as error:
            return str(error)
        offsets = [offset for offset, _ in found]
        start, end = partition.start_offset, partition.end_offset
        if self.kind != "keyed" and offsets != list(range(start, end)):
            return f"it has offsets {offsets[:50]}, and is from {start} to {end}"
        at = {value: offset for offset, value in found}
        if len(at) < len(found):
            return "a record is there twice"
        for call in self._calls:
            wrong = self._problem_of(call, at)
            if wrong:
                return wrong
        return self._problem_of_keys(records) if self.kind == "keyed" else ""

    def _problem_of(self, call: Append, at: dict[bytes, int]) -> str:
        there = [at.get(value) for value in call.values]
        present = [offset for offset in there if offset is not None]
        if call.ended is None or call.offsets is None:
            is_whole = len(present) in (0, len(there))
            is_in_order = present == list(range(*_ends_of(present)))
            if self.kind == "plain" and not (is_whole and is_in_order):
                return f"an interrupted append is there in part: {there}"
            return ""
        for offset, found in zip(call.offsets, there, strict=True):
            if found is not None and found != offset:
                return f"offset {offset} was acknowledged, and is {found} now"
            if self.kind == "keyed":
                continue
            if found is None and not any(
                cut.may_have_taken(call, offset) for cut in self._cuts
            ):
                return f"offset {offset} was acknowledged, and is not there"
            if found is not None and any(
                cut.has_taken(call, offset) for cut in self._cuts if cut.is_tail
            ):
                return f"offset {offset} was cut off, and is there"
        return ""

    def _problem_of_keys(self, records: Sequence[logstore.Record]) -> str:
        """The last acknowledged record of a key is there, or a later one."""
        last: dict[bytes, int] = {}
        for call in self._calls:
            if call.ended is not None and call.offsets is not None:
                for key, offset in zip(call.keys, call.offsets, strict=True):
                    assert key is not None
                    last[key] = max(offset, last.get(key, -1))
        there: dict[bytes, int] = {}
        for record in records:
            there[record.key or b""] = record.offset
        for key, offset in last.items():
            if there.get(key, -1) < offset:
                return f"key {key!r} was at {offset}, and is at {there.get(key)}"
        return ""


def _ends_of(present: Sequence[int]) -> tuple[int, int]:
    return (present[0], present[0] + len(present)) if present else (0, 0)
