"""Looks for one planted bug with the method that must catch it: the process that
`planted` starts on the copy with the bug."""

from __future__ import annotations

import argparse
import itertools
import logging
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence

from faults import (
    aftermath,
    agreement,
    cancellations,
    compactions,
    copies,
    damages,
    disk_states,
    failing_calls,
    forks,
    full,
    groups,
    hand_ins,
    incarnations,
    inner_calls,
    interrupts,
    java,
    kills,
    limits,
    lives,
    lying_disk,
    lying_input,
    producers,
    readable,
    recorded_calls,
    reentry,
    replacements,
    second_use,
    storms,
    watched,
)
from faults.cases import guarded
from faults.method import Skip
from faults.planted import BUGS, Bug

# At most so many programs and stores are tried, and so many cases of each: what a bug
# needs, a program has or has not.
_TRIES = {
    "disk_states": 40,
    "failing_calls": 80,
    "lying_disk": 20,
    "producers": 60,
    "compactions": 60,
    "agreement": 3_000,
    "damages": 6_000,
}
# Of these methods so many cases, each with a store of its own.
_WATCHED = {
    "reentry": reentry,
    "interrupts": interrupts,
    "forks": forks,
    "limits": limits,
}
_WATCHED_CASES = 1_000
# Of these methods each try is one case, that says what is wrong with it.
_SINGLE = {
    "replacements": (replacements, 1_500),
    "copies": (copies, 600),
    "second_use": (second_use, 600),
    "lying_input": (lying_input, 2_000),
    "readable": (readable, 300),
    "cancellations": (cancellations, 200),
    "full": (full, 300),
    "storms": (storms, 300),
    "lives": (lives, 400),
    "java": (java, 600),
    "incarnations": (incarnations, 200),
}
_CASES = 60
# Of `kills` and `hand_ins` so many stores: what a kill meets is a matter of luck.
_KILLED_STORES = 60
_HISTORIES = 300
_RECORDED_RUNS = 40


# ---------------------------------------------------------------- in the other process


def hunt(bug: Bug, seed: int) -> Iterator[str]:
    """What the method finds, one text after each of its tries; "" for nothing.

    Raises:
        Skip: no case of the method can be made on this machine.
    """
    if bug.method in _WATCHED:
        if bug.only:
            _make_only(bug.only)
        case = _WATCHED[bug.method].case
        with tempfile.TemporaryDirectory(prefix="faults-", dir=watched.scratch()) as at:
            for number in range(_WATCHED_CASES):
                yield watched.watch(case, seed * 1000 + number, at).failure
        return
    if bug.method == "kills":
        with tempfile.TemporaryDirectory(prefix="faults-", dir=watched.scratch()) as at:
            for number in range(_KILLED_STORES):
                yield "\n".join(kills.store_of(at, seed * 1000 + number, 30)[1])
        return
    if bug.method == "hand_ins":
        with tempfile.TemporaryDirectory(prefix="faults-", dir=watched.scratch()) as at:
            for number in range(_KILLED_STORES):
                yield "\n".join(hand_ins.store_of(at, seed * 1000 + number, 20)[1])
        return
    if bug.method == "groups":
        kinds = itertools.cycle(bug.only or groups.KINDS)
        with tempfile.TemporaryDirectory(prefix="faults-", dir=watched.scratch()) as at:
            for number in range(_HISTORIES):
                yield groups.history_of(at, seed * 1000 + number, next(kinds))
        return
    if bug.method in _SINGLE:
        module, count = _SINGLE[bug.method]
        keys = (f"{seed}/{number}" for number in itertools.count())
        if bug.only:
            keys = (key for key in keys if lying_input.kind_of(key) in bug.only)
        is_made, skipped = False, set[str]()
        for key in itertools.islice(keys, count):
            outcome = guarded(module, key)
            is_made |= not outcome.skipped
            skipped.update(outcome.skipped)
            yield outcome.problem
        if not is_made:
            raise Skip("; ".join(sorted(skipped)))
        return
    if bug.method == "recorded_calls":
        yield from _recorded(bug, seed)
        return
    tries = _TRIES[bug.method]
    if bug.method == "disk_states":
        for number in range(tries):
            yield from disk_states.states_of(seed * 1000 + number, bug.only, enough=1)[
                1
            ] or [""]
    elif bug.method == "compactions":
        for number in range(tries):
            yield from compactions.states_of(seed * 1000 + number)[1] or [""]
    elif bug.method == "agreement":
        for number in range(tries):
            _, tree = agreement.damaged(seed, number)
            yield agreement.disagreement(tree, deep=number % 2 == 0)[0]
    elif bug.method == "damages":
        for scenario, number in damages.drawn(tries, seed):
            yield damages.judge(scenario, number, seed)[0]
    elif bug.method == "producers":
        for number in range(tries):
            yield from producers.states_of(seed * 1000 + number)[1] or [""]
    elif bug.method == "failing_calls":
        for number in range(tries):
            cases = failing_calls.shuffled(seed * 1000 + number, bug.only)
            chosen = [case for case in cases if bug.call in ("", case.method)]
            yield from map(failing_calls.problem, chosen[:_CASES])
    else:
        for number in range(tries):
            yield from lying_disk.problems(seed * 1000 + number, bug.only)


def _recorded(bug: Bug, seed: int) -> Iterator[str]:
    """What is found in recorded calls; the first of `only` says which kind of states
    of which programs."""
    kind, *programs = bug.only
    with tempfile.TemporaryDirectory(prefix="faults-", dir=watched.scratch()) as at:
        library = pathlib.Path(at) / "recorder.so"
        recorded_calls.build(library)
        for number, program in zip(
            range(_RECORDED_RUNS), itertools.cycle(programs), strict=False
        ):
            model = ("weak", "ext4")[number % 2]
            runs = (kind, model, program, seed * 1000 + number, _CASES)
            yield "\n".join(recorded_calls.states_of(*runs, at, str(library))[2])


def _make_only(calls: Sequence[str]) -> None:
    """No other calls on a scene are made than these."""
    for module in (*_WATCHED.values(), aftermath, inner_calls):
        for name in ("CALLS", "APPENDS", "_OFTEN"):
            if hasattr(module, name):
                setattr(module, name, tuple(calls))


def main() -> int:
    """Look for one bug; returns 1 once it shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bug", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    bug = BUGS[options.bug]
    try:
        for number, text in enumerate(hunt(bug, options.seed), 1):
            if text:
                print(text)
                print(f"caught by {bug.method}, try {number}")
                return 1
    except Skip as skip:
        print(f"skipped: {skip.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
