"""The work of a method, spread over the processors of the machine."""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["count_of_workers", "spread"]


def count_of_workers() -> int:
    return len(os.sched_getaffinity(0))


def spread(work: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """The result of `work(*task)` for each task, in order of completion.

    Each worker is a new process with one thread, so it may fork.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        count_of_workers(), mp_context=context, initializer=_be_quiet
    ) as pool:
        futures = [pool.submit(work, *task) for task in tasks]
        try:
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _be_quiet() -> None:
    # Recovery warns of all that it repairs.
    logging.disable(logging.CRITICAL)
