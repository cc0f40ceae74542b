"""Every state that a power cut, or a kill, may leave of a store at work.

Seeded programs run on a disk in memory. After each of their calls to the system the
changes that no sync covers yet are dropped, kept, torn, zeroed, overwritten and
reordered; each state is opened and compared with the store's promises at that time.
The recovery of some of them is interrupted by a second cut, and that recovery, too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from faults.checker import HARMLESS, StateCheck, open_quietly
from faults.crash_states import until_done
from faults.method import Tally
from faults.promises import Promises
from faults.services import ServiceProgram
from faults.workloads import WEIGHTS, Program, Step
from support.disk import MemoryDisk, end_processes
from support.disk_changes import Moment, Nodes, tree
from support.power_cut import cuts, touched

NAME = "disk_states"
UNIT = "crash states"
COUNTS = {"commit": 4_000, "nightly": 100_000, "release": 300_000}

# Steps of each program, and states for each moment.
_STEPS = 14
_PER_MOMENT = 6
# Share of states whose recovery is cut in turn.
_AGAIN = 0.02
# Moments tried in a step of a program with services: its steps have more moments, and
# every other program has services.
_SERVICE_MOMENTS = 2


def run(count: int, seed: int, tally: Tally) -> None:
    """Check `count` states, of as many programs as that takes."""
    workers = min(os.cpu_count() or 1, max(count // 20_000, 1))
    until_done(states_of, count, seed, tally, workers=workers)


def states_of(
    seed: int, only: Sequence[str] = (), *, enough: int = 4
) -> tuple[int, list[str]]:
    """Check the states of the program of a seed: (number of passed states, failures).

    `only`: it takes no steps but these. `enough`: it ends after this number of
        failures.
    """
    crashes = Crashes(seed, only=only, enough=enough)
    try:
        for step in crashes.program.run(_STEPS):
            crashes.check(step)
            if crashes.is_enough:
                break
    except Exception as error:
        crashes.failures.append(f"program {seed}: {type(error).__name__}: {error}")
    finally:
        end_processes()
    return crashes.passed, crashes.failures


def program_of(seed: int, model: str, only: Sequence[str] = ()) -> Program:
    """The program of a seed: each second one has services.

    `only`: it takes no steps but these.
    """
    has_services = seed % 2 == 0
    if only:
        has_services = any(step not in WEIGHTS for step in only)
    kind = ServiceProgram if has_services else Program
    program = kind(seed, model=model)
    program.take_only(only)
    return program


class Crashes:
    """The states of one program.

    Attributes:
        passed: number of states that passed.
        failures: a line for each of the others.
    """

    def __init__(
        self,
        seed: int,
        *,
        most: int = _PER_MOMENT,
        only: Sequence[str] = (),
        enough: int = 4,
    ) -> None:
        self.seed = seed
        self._enough = enough
        self.rng = random.Random(f"crashes {seed}")
        self.model = "ext4" if self.rng.random() < 0.3 else "weak"
        self.program = program_of(seed, self.model, only)
        self.checker = StateCheck(self.rng)
        self.most = most
        self.passed = 0
        self.failures: list[str] = []
        self._seen: set[int] = set()

    @property
    def is_enough(self) -> bool:
        """Whether enough have failed to stop."""
        return len(self.failures) >= self._enough

    def check(self, step: Step) -> None:
        """Check the states while a step ran, and the one after it."""
        self.checker.harmless = HARMLESS | self.program.harmless
        self._seen.clear()
        moments = list(enumerate(step.moments))
        if isinstance(self.program, ServiceProgram):
            most = min(_SERVICE_MOMENTS, len(moments))
            moments = sorted(self.rng.sample(moments, most), key=lambda one: one[0])
        for number, moment in moments:
            if self.is_enough:
                return
            self.at(moment, step.during, f"{step.name} {number}")
        self._seen.clear()
        end = self.program.disk.moment("after the return")
        self.at(end, step.after, step.name)

    def at(self, moment: Moment, promises: Promises, where: str) -> None:
        """The states of a moment."""
        self.one(moment.nodes, promises, moment, f"{where}: killed", is_killed=True)
        for words, nodes in cuts(moment, self.rng, self.most, model=self.model):
            self.one(nodes, promises, moment, f"{where}: {words}")

    def one(
        self,
        nodes: Nodes,
        promises: Promises,
        moment: Moment,
        where: str,
        *,
        is_killed: bool = False,
        depth: int = 0,
    ) -> None:
        if self.is_enough:
            return
        key = hash((is_killed, frozenset(tree(nodes).items())))
        if key in self._seen:
            return
        self._seen.add(key)
        text = self.checker.problem(nodes, promises, moment.clock, is_killed=is_killed)
        if text:
            program = f"program {self.seed} ({self.model})"
            self.failures.append(f"{program}, {where}, {touched(moment)}: {text}")
            return
        self.passed += 1
        if depth < 2 and self.rng.random() < _AGAIN * (1 + 4 * depth):
            self._recovery(nodes, promises, moment.clock, where, depth + 1)

    def _recovery(
        self, nodes: Nodes, promises: Promises, clock: int, where: str, depth: int
    ) -> None:
        """Cut the recovery of a state."""
        disk = MemoryDisk(nodes, model=self.model, seed=self.seed, clock=clock)
        moments = disk.record()
        with open_quietly(disk):
            pass
        moments = list(moments)
        self.rng.shuffle(moments)
        for moment in moments[:12]:
            for words, again in cuts(moment, self.rng, 3, model=self.model):
                self.one(
                    again, promises, moment, f"{where}; recovery {words}", depth=depth
                )
