"""Really full file systems: calls that free space work, and nothing is lost.

A store is made on a small file system: ext4 with blocks of two sizes, with directories
whose last block has no room for a longer name, xfs, tmpfs without bytes or without
inodes. Then the disk is full, and random calls follow, of every kind (`full_calls`).
Deletions, retention, truncation and deleting a topic free space. Reads and closes need
no room. All others work, or raise `DiskFullError` and have done nothing. With room
again appends continue, and the store opens without a loss: each record that was
acknowledged and not deleted is there, and each position, sequence and publication.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections import Counter
from pathlib import Path

from faults.cases import folder_of, run_cases
from faults.full_calls import CALLS
from faults.full_store import Stock
from faults.method import Skip, Tally
from faults.small_disks import any_kind, mounted

NAME = "full"
UNIT = "calls on full disks"
COUNTS = {"commit": 200, "nightly": 5_000, "release": 30_000}

CALLS_A_CASE = 6


def run(count: int, seed: int, tally: Tally) -> None:
    """Make `count` calls; skip calls on file systems that are not available."""
    notes = run_cases(__name__, count, seed, tally, worth=CALLS_A_CASE)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or "".

    Raises:
        Skip: its file system is not available.
    """
    rng = random.Random(f"full {key}")
    kind = any_kind(rng)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of(in_memory=True))
        try:
            disk = stack.enter_context(mounted(kind, Path(folder)))
        except Skip as skip:
            raise Skip(skip.why, CALLS_A_CASE) from skip
        stack.callback(gc.collect)
        stock = Stock(disk, rng)
        stack.callback(stock.abandon)
        called: list[str] = []
        found = _go(stock, called)
    notes.update(called, done=len(called))
    return f"{kind}: {' '.join(called)}: {found}" if found else ""


def _go(stock: Stock, called: list[str]) -> str:
    """Fill the disk and make calls; the problem, or "". Adds the names of the calls."""
    stock.make()
    stock.disk.fill()
    for _ in range(CALLS_A_CASE):
        (call,) = stock.rng.choices(list(CALLS), list(CALLS.values()))
        called.append(call.__name__)
        if found := call(stock):
            return found
        if stock.rng.random() < 0.7:
            stock.disk.fill()
    stock.close()
    stock.disk.empty()
    return stock.look()
