"""Looks for one planted bug with the method that must catch it: the process that
`planted` starts on the copy with the bug."""

from __future__ import annotations

import argparse
import importlib
import itertools
import logging
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from faults.method import Skip
from faults.planted import BUGS, Bug

# Maximum numbers of programs and stores, and of cases of each: a program either meets
# the conditions of a bug or does not. At most as many as the method has in a night:
# rare conditions take a while, and a bug that is not met in a night is not caught.
_TRIES = {
    "disk_states": 200,
    "failing_calls": 200,
    "lying_disk": 100,
    "producers": 60,
    "compactions": 60,
    "agreement": 3_000,
    "damages": 60_000,
}
# Methods with this number of cases, each with a new store.
_WATCHED = ("reentry", "interrupts", "forks", "limits")
_WATCHED_CASES = 1_000
# Of these methods each try is one case, that says what is wrong with it.
_SINGLE = {
    "replacements": 1_500,
    "copies": 600,
    "second_use": 600,
    "lying_input": 2_000,
    "readable": 300,
    "cancellations": 200,
    "full": 300,
    "storms": 300,
    "lives": 400,
    "java": 3_000,
    "incarnations": 2_000,
}
_CASES = 60
# Kills of each store, for `kills` and `hand_ins`, and the number of stores: a kill
# strikes at random.
_KILLED = {"kills": 30, "hand_ins": 20}
_KILLED_STORES = 60
_HISTORIES = 300
_RECORDED_RUNS = 40


# ---------------------------------------------------------------- in the other process


def _module(name: str) -> Any:
    """A method's module, or one of its parts. The others are not imported: importing
    all methods would take longer than most hunts."""
    return importlib.import_module(f"faults.{name}")


def hunt(bug: Bug, seed: int) -> Iterator[str]:
    """Problem that the method finds at each try, or "".

    Raises:
        Skip: no case of the method can be made on this machine.
    """
    method = _module(bug.method)
    if bug.method in _SINGLE:
        yield from _single(method, bug, seed)
    elif bug.method == "recorded_calls":
        yield from _recorded(method, bug, seed)
    elif bug.method in _TRIES:
        yield from _tried(method, bug, seed)
    else:
        place = _module("watched").scratch()
        with tempfile.TemporaryDirectory(prefix="faults-", dir=place) as at:
            yield from _in_stores(method, bug, seed, at)


def _in_stores(method: Any, bug: Bug, seed: int, at: str) -> Iterator[str]:
    """Problems found in stores in a directory."""
    if bug.method in _WATCHED:
        if bug.only:
            _make_only(bug.only)
        watch = _module("watched").watch
        for number in range(_WATCHED_CASES):
            yield watch(method.case, seed * 1000 + number, at).failure
    elif bug.method in _KILLED:
        for number in range(_KILLED_STORES):
            key = seed * 1000 + number
            yield "\n".join(method.store_of(at, key, _KILLED[bug.method])[1])
    else:
        kinds = itertools.cycle(bug.only or method.KINDS)
        for number in range(_HISTORIES):
            yield method.history_of(at, seed * 1000 + number, next(kinds))


def _single(method: Any, bug: Bug, seed: int) -> Iterator[str]:
    """Problems of cases.

    Raises:
        Skip: none of them can be made on this machine.
    """
    keys = (f"{seed}/{number}" for number in itertools.count())
    if bug.only:
        keys = (key for key in keys if method.kind_of(key) in bug.only)
    is_made, skipped = False, set[str]()
    guarded = _module("cases").guarded
    for key in itertools.islice(keys, _SINGLE[bug.method]):
        outcome = guarded(method, key)
        is_made |= not outcome.skipped
        skipped.update(outcome.skipped)
        yield outcome.problem
    if not is_made:
        raise Skip("; ".join(sorted(skipped)))


def _tried(method: Any, bug: Bug, seed: int) -> Iterator[str]:
    """Problems found in programs, stores and damages."""
    tries = _TRIES[bug.method]
    if bug.method == "damages":
        for scenario, number in method.drawn(tries, seed):
            yield method.judge(scenario, number, seed)[0]
        return
    for number in range(tries):
        key = seed * 1000 + number
        if bug.method == "disk_states":
            yield from method.states_of(key, bug.only, enough=1)[1] or [""]
        elif bug.method in ("compactions", "producers"):
            yield from method.states_of(key)[1] or [""]
        elif bug.method == "agreement":
            _, tree = method.damaged(seed, number)
            yield method.disagreement(tree, deep=number % 2 == 0)[0]
        elif bug.method == "failing_calls":
            cases = method.shuffled(key, bug.only)
            chosen = [case for case in cases if bug.call in ("", case.method)]
            yield from map(method.problem, chosen[:_CASES])
        else:
            yield from method.problems(key, bug.only)


def _recorded(method: Any, bug: Bug, seed: int) -> Iterator[str]:
    """Problems found in recorded calls; the first of `only` is the kind of states, the
    others are the programs."""
    kind, *programs = bug.only
    place = _module("watched").scratch()
    with tempfile.TemporaryDirectory(prefix="faults-", dir=place) as at:
        library = pathlib.Path(at) / "recorder.so"
        method.build(library)
        for number, program in zip(
            range(_RECORDED_RUNS), itertools.cycle(programs), strict=False
        ):
            model = ("weak", "ext4")[number % 2]
            runs = (kind, model, program, seed * 1000 + number, _CASES)
            yield "\n".join(method.states_of(*runs, at, str(library))[2])


def _make_only(calls: Sequence[str]) -> None:
    """Restrict the calls on a scene to these."""
    for module in map(_module, (*_WATCHED, "aftermath", "inner_calls")):
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
