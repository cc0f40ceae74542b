"""Contestants, cases, and rounds in which they take turns.

All contestants of a case run in one process, one after another in every round, and the
order rotates: disturbances of the machine hit all of them. The median of the ratios of
the rounds is compared.
"""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.workload import BATCH_RECORDS, VALUE_BYTES, Workload

__all__ = [
    "Case",
    "Contestant",
    "LeftOut",
    "Outcome",
    "Rival",
    "Ring",
    "Timing",
    "UnavailableError",
    "ring",
    "run_case",
    "time_once",
]


_WARM_UP_ROUNDS: Final = 2


class UnavailableError(Exception):
    """A rival cannot run on this machine; the message says what is missing."""


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
        """Do the timed work."""
        raise NotImplementedError

    def after(self, result: Any) -> None:
        """Check what came back, and clean up the round."""

    def close(self) -> None:
        """Release all resources."""

    # -- the size of one round

    def amount(self) -> int:
        """How much `work` does, in the unit of the case."""
        return self.workload.count

    def cpu_seconds_elsewhere(self) -> float:
        """CPU seconds that other processes have used for this contestant so far."""
        return 0.0


ContestantType = Callable[[Path, Workload], Contestant]


class Rival(NamedTuple):
    """A contestant that ours is compared with.

    Attributes:
        path: ``module.Class`` in this package; the module is imported when the case
            runs, because its library may not be installed.
        target: least ratio of our rate to its rate; None: no target.
    """

    path: str
    target: float | None = None

    def load(self) -> ContestantType:
        """Its class.

        Raises:
            UnavailableError: a package is not installed.
        """
        module, _, name = self.path.rpartition(".")
        try:
            loaded = importlib.import_module(f"bench.{module}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("bench", "logstore"):
                raise
            raise UnavailableError(f"{error.name} is not installed") from error
        found: ContestantType = getattr(loaded, name)
        return found


class LeftOut(NamedTuple):
    """A rival that could not run, and why."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A comparison, and its conditions.

    Attributes:
        name: as `--only` takes it.
        ours: the class of our contestant.
        rivals: the contestants to compare it with.
        unit: ``rec``, ``B`` or ``op``: what `Contestant.amount` counts.
        floor: least amount per second of ours alone; None: no such target.
        cpu_max: most CPU seconds per million of ours alone; None: no such target.
        records: workload of one round.
        batch: records per call (append) or per call by which they were written.
        value_bytes: size of each value.
        flush, cache, threads: the other conditions, for the report.
        note: what differs between the contestants.
    """

    name: str
    ours: ContestantType
    rivals: tuple[Rival, ...] = ()
    unit: str = "rec"
    floor: float | None = None
    cpu_max: float | None = None
    records: int = 200_000
    batch: int = BATCH_RECORDS
    value_bytes: int = VALUE_BYTES
    flush: str = "none"
    cache: str = "warm"
    threads: int = 1
    note: str = ""

    def conditions(self) -> dict[str, object]:
        return {
            "record bytes": f"8 + {self.value_bytes}",
            "records per batch": self.batch,
            "flush": self.flush,
            "cache": self.cache,
            "threads": self.threads,
        }

    def workload(self, records: int) -> Workload:
        """The records of one round."""
        return Workload(records, self.value_bytes, self.batch)


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
        elsewhere = contestant.cpu_seconds_elsewhere()
        cpu = time.process_time()
        begin = time.perf_counter()
        result = contestant.work()
        seconds = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        cpu += contestant.cpu_seconds_elsewhere() - elsewhere
        return cls(seconds, cpu, contestant.amount()), result


@dataclasses.dataclass(slots=True)
class Outcome:
    """All rounds of one contestant."""

    name: str
    target: float | None = None
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

    def cpu_ratio_to(self, other: Outcome) -> float:
        """The same for the work done in a CPU second."""
        pairs = zip(self.timings, other.timings, strict=True)
        return statistics.median(
            (b.cpu_seconds / b.amount) / (a.cpu_seconds / a.amount) for a, b in pairs
        )


class Ring:
    """The contestants of a case, opened, taking turns.

    Attributes:
        contestants: ours first.
        outcomes: one for each contestant, with its target if `targets` are given.
        left_out: rivals that could not be opened.
    """

    def __init__(
        self,
        contestants: Sequence[Contestant],
        targets: Sequence[float | None] = (),
        left_out: Sequence[LeftOut] = (),
    ) -> None:
        self.contestants = contestants
        pairs = zip(contestants, targets or [None] * len(contestants), strict=True)
        self.outcomes = [Outcome(c.name, target) for c, target in pairs]
        self.left_out = left_out
        self._round = 0

    def round(self) -> None:
        """Every contestant works once; the first one changes."""
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
    """The contestants of a case in separate directories, removed at the end."""
    workload = case.workload(case.records if records is None else records)
    with ExitStack() as stack:

        def enter(make: ContestantType) -> Contestant:
            directory = Path(tempfile.mkdtemp(prefix="logstore-bench-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            contestant = make(directory, workload)
            contestant.open()
            stack.callback(contestant.close)
            return contestant

        contestants = [enter(case.ours)]
        targets: list[float | None] = [None]
        left_out = []
        for rival in case.rivals:
            try:
                contestants.append(enter(rival.load()))
                targets.append(rival.target)
            except UnavailableError as error:
                left_out.append(LeftOut(rival.path, str(error)))
        yield Ring(contestants, targets, left_out)


def run_case(
    case: Case, rounds: int, records: int | None = None
) -> tuple[list[Outcome], Sequence[LeftOut]]:
    """Ours first, then the rivals, each with `rounds` timings; and the omitted
    rivals."""
    with ring(case, records) as entered:
        entered.warm_up()
        for _ in range(rounds):
            entered.round()
    return entered.outcomes, entered.left_out
