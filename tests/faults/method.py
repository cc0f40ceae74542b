"""Shared by the methods: sizes, and the tally of cases made and failed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from types import ModuleType
from typing import Final, NamedTuple, Protocol

_IS_TERMINAL = sys.stdout.isatty()

SIZES: Final = ("commit", "nightly", "release")


# Distance of the seeds of two parts: so large that a method's own seeds, which are a
# thousand times its seed and the number of a case, never meet.
_PARTS_APART: Final = 1_000_000


class Part(NamedTuple):
    """A part of a size: `number` of `of_parts`, from 1 on."""

    number: int
    of_parts: int

    @classmethod
    def of(cls, text: str) -> Part:
        """Parse "K/N", with 1 <= K <= N <= 999.

        Raises:
            ValueError: for any other text.
        """
        number, _, of_parts = text.partition("/")
        part = cls(int(number), int(of_parts))
        if not 1 <= part.number <= part.of_parts <= 999:
            raise ValueError(f"{text} is no part K/N with 1 <= K <= N <= 999")
        return part

    def __str__(self) -> str:
        return f"{self.number}/{self.of_parts}"

    def span(self, count: int) -> range:
        """The numbers of this part's cases, out of `count` cases."""
        first = count * (self.number - 1) // self.of_parts
        return range(first, count * self.number // self.of_parts)

    def count(self, count: int) -> int:
        """How many of `count` cases are in this part: at least one."""
        return max(1, len(self.span(count)))

    def seed(self, seed: int) -> int:
        """The seed of this part; the whole size has the seed as given."""
        if self.of_parts == 1:
            return seed
        return (seed * 1_000 + self.number) * _PARTS_APART


class Method(Protocol):
    """A module of this package, as the table sees it."""

    NAME: str
    UNIT: str
    COUNTS: dict[str, int]

    def run(self, count: int, seed: int, tally: Tally) -> None: ...


class Skip(Exception):
    """A case cannot be made on this machine.

    Attributes:
        why: what it needs.
        count: number of the method's units that the case is worth.
    """

    def __init__(self, why: str, count: int = 1) -> None:
        super().__init__(why)
        self.why, self.count = why, count


def skipped_in_words(skipped: Mapping[str, int]) -> str:
    """Counts by reason, for the last line of the programme; "" for none."""
    if not any(skipped.values()):
        return ""
    return f"{sum(skipped.values()):,} skipped ({'; '.join(sorted(skipped))})"


class Tally:
    """Counts the states, cuts or kills of a method, and keeps what failed.

    Attributes:
        done: number of cases made.
        skipped: number of cases not made, by the missing requirement of the machine.
            They do not count as done.
        failures: a line for each failed case: the problem, and how to repeat it.
        notes: other texts for the table.
    """

    def __init__(self, total: int, *, show: bool = False) -> None:
        """`show`: report the progress; without a terminal, once a minute on stderr."""
        self.total = total
        self.done = 0
        self.skipped: Counter[str] = Counter()
        self.failures: list[str] = []
        self.notes: list[str] = []
        self._show = show
        self._begun = self._shown = time.monotonic()

    def passed(self, count: int = 1) -> None:
        """Count further cases without a problem."""
        self.done += count
        self._tell()

    def failed(self, what: str) -> None:
        """Count a failed case, with its problem."""
        self.done += 1
        self.failures.append(what)
        if self._show:
            self._clear()
            to = sys.stdout if _IS_TERMINAL else sys.stderr
            print(f"FAIL {what}", file=to, flush=True)

    def skip(self, why: str, count: int = 1) -> None:
        """Count cases that cannot be made on this machine."""
        self.skipped[why] += count
        self._tell()

    @property
    def handled(self) -> int:
        """Number of cases made or skipped."""
        return self.done + self.skipped.total()

    def end(self) -> None:
        """Stop showing progress."""
        if self._show:
            self._clear()

    def _clear(self) -> None:
        if _IS_TERMINAL:
            print("\r\033[K", end="")

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def _tell(self) -> None:
        now = time.monotonic()
        if not self._show or now - self._shown < (0.5 if _IS_TERMINAL else 60):
            return
        self._shown = now
        rate = self.handled / max(self.seconds, 1e-9)
        left = max(self.total - self.handled, 0) / max(rate, 1e-9)
        text = f"  {self.handled:,} of {self.total:,}, {left:.0f} s left"
        if _IS_TERMINAL:
            print(f"\r\033[K{text}", end="", flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def as_method(module: ModuleType) -> Method:
    """The module, after a check that it has the names of a method."""
    for name in ("NAME", "UNIT", "COUNTS", "run"):
        if not hasattr(module, name):
            raise TypeError(f"{module.__name__} has no {name}")
    if tuple(module.COUNTS) != SIZES:
        raise TypeError(f"{module.__name__}.COUNTS is not for {SIZES}")
    return module  # type: ignore[return-value]
