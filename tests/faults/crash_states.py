"""Runs of crash states, from as many programs as that takes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator

from faults.method import Tally

__all__ = ["until_done"]


def until_done(
    states_of: Callable[[int], tuple[int, list[str]]],
    count: int,
    seed: int,
    tally: Tally,
    *,
    workers: int = 1,
) -> None:
    """Check the states of programs until there were enough.

    Args:
        states_of: checks the states of the program of a seed: (number of right states,
            a text for each wrong one).
        workers: processes that do it at once.
    """
    if workers == 1:
        _add(map(states_of, _seeds(seed)), count, tally)
        return
    with multiprocessing.Pool(workers) as pool:
        _add(pool.imap_unordered(states_of, _seeds(seed)), count, tally)
        pool.terminate()


def _seeds(seed: int) -> Iterator[int]:
    number = seed * 1_000_000
    while True:
        yield number
        number += 1


def _add(results: Iterator[tuple[int, list[str]]], count: int, tally: Tally) -> None:
    for passed, failures in results:
        tally.passed(passed)
        for text in failures:
            tally.failed(text)
        if tally.done >= count:
            return
