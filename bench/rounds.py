"""Contestants, cases, and rounds in which they take turns.

All contestants of a case run in one process, one after another in every round, and the
order rotates: what disturbs the machine hits all of them. What is compared is the
median of the ratios of the rounds.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.workload import Workload

__all__ = [
    "Case",
    "Contestant",
    "Outcome",
    "Ring",
    "Timing",
    "ring",
    "run_case",
    "time_once",
]


_WARM_UP_ROUNDS: Final = 2


class Contestant:
    """One way to do the work of a case.

    `open` once, then for each round `before` (not timed), `work` (timed) and `after`
    (not timed: checks what came back), at the end `close`.
    """

    name = "?"

    def __init__(self, directory: Path, workload: Workload) -> None:
        self.directory = directory
        self.workload = workload

    def open(self) -> None:
        """Prepare what all rounds use."""

    def before(self) -> None:
        """Prepare one round."""

    def work(self) -> Any:
        """What is timed."""
        raise NotImplementedError

    def after(self, result: Any) -> None:
        """Check what came back, and clean up the round."""

    def close(self) -> None:
        """Let go of everything."""

    # -- the size of one round

    def amount(self) -> int:
        """How much `work` does, in the unit of the case."""
        return self.workload.count


ContestantType = Callable[[Path, Workload], Contestant]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What is compared, and under which conditions.

    Attributes:
        name: as `--only` takes it.
        ours, rivals: classes of contestants; the target refers to the first rival.
        unit: ``rec``, ``B`` or ``op``: what `Contestant.amount` counts.
        target: least ratio of ours to the first rival; None: no target.
        floor: least amount per second of ours alone; None: no such target.
        records: workload of one round.
        batch: records per call (append) or per call by which they were written.
        flush, cache, threads: the other conditions, for the report.
        note: what differs between the contestants.
    """

    name: str
    ours: ContestantType
    rivals: tuple[ContestantType, ...]
    unit: str = "rec"
    target: float | None = None
    floor: float | None = None
    records: int = 200_000
    batch: int = 1_000
    flush: str = "none"
    cache: str = "warm"
    threads: int = 1
    note: str = ""

    def conditions(self) -> dict[str, object]:
        return {
            "record bytes": "8 + 100",
            "records per batch": self.batch,
            "flush": self.flush,
            "cache": self.cache,
            "threads": self.threads,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """One round of one contestant."""

    seconds: float
    cpu_seconds: float
    amount: int

    @property
    def rate(self) -> float:
        return self.amount / self.seconds

    @classmethod
    def of(cls, contestant: Contestant) -> tuple[Timing, Any]:
        """Time `work` alone; the timing, and what it returned."""
        cpu = time.process_time()
        begin = time.perf_counter()
        result = contestant.work()
        seconds = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        return cls(seconds, cpu, contestant.amount()), result


@dataclasses.dataclass(slots=True)
class Outcome:
    """All rounds of one contestant."""

    name: str
    timings: list[Timing] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median amount per second."""
        return statistics.median(timing.rate for timing in self.timings)

    @property
    def cpu_per_million(self) -> float:
        """Median CPU seconds, of all threads, per million of the unit."""
        return statistics.median(t.cpu_seconds / t.amount * 1e6 for t in self.timings)

    def ratio_to(self, other: Outcome) -> float:
        """Median of the ratios of the rounds."""
        pairs = zip(self.timings, other.timings, strict=True)
        return statistics.median(a.rate / b.rate for a, b in pairs)


class Ring:
    """The contestants of a case, opened, taking turns."""

    def __init__(self, contestants: Sequence[Contestant]) -> None:
        self.contestants = contestants
        self.outcomes = [Outcome(c.name) for c in contestants]
        self._round = 0

    def round(self) -> None:
        """Every contestant works once; who begins changes."""
        n = len(self.contestants)
        for i in range(n):
            turn = (i + self._round) % n
            timing = time_once(self.contestants[turn])
            self.outcomes[turn].timings.append(timing)
        self._round += 1

    def warm_up(self) -> None:
        """Rounds that do not count: memory that is new to the process costs several
        times what the work does, and allocators take two rounds to have enough."""
        for _ in range(_WARM_UP_ROUNDS):
            for contestant in self.contestants:
                time_once(contestant)


def time_once(contestant: Contestant) -> Timing:
    """One whole round."""
    contestant.before()
    timing, result = Timing.of(contestant)
    contestant.after(result)
    return timing


@contextmanager
def ring(case: Case, records: int | None = None) -> Iterator[Ring]:
    """The contestants of a case in directories of their own, removed at the end."""
    workload = Workload(case.records if records is None else records)
    with ExitStack() as stack:
        contestants = []
        for number, make in enumerate((case.ours, *case.rivals)):
            directory = Path(tempfile.mkdtemp(prefix=f"logstore-bench-{number}-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            contestant = make(directory, workload)
            stack.callback(contestant.close)
            contestant.open()
            contestants.append(contestant)
        yield Ring(contestants)


def run_case(case: Case, rounds: int, records: int | None = None) -> list[Outcome]:
    """Ours first, then the rivals, each with `rounds` timings."""
    with ring(case, records) as entered:
        entered.warm_up()
        for _ in range(rounds):
            entered.round()
    return entered.outcomes
