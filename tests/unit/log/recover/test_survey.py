"""Collecting the facts about a partition: nothing is written, and the tail is read
once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from faults import agreement, damages
from logstore import TopicConfig
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import LOG
from logstore.log.recover import RecoveryContext
from logstore.log.recover.make_plan import make_plan
from logstore.log.recover.survey import Survey, survey
from support.levels import IS_ALL
from support.memory_files import ROOT, MemoryFiles

KEY = ("orders", 0)


def surveyed(files: MemoryFiles, *, writable: bool = True) -> Survey:
    root = Directory.open_root(files, ROOT)
    marks = Ownership(root)
    marks.read(lambda action: None)
    directory = root.child("orders-0")
    metadata = marks.metadata(directory, KEY)
    case = RecoveryContext(
        directory,
        Descriptors(files, 10),
        *KEY,
        TopicConfig(),
        metadata,
        writable=writable,
    )
    return survey(case)


@pytest.mark.parametrize("seed", range(2000 if IS_ALL else 150))
def test_survey_writes_nothing_and_repeats_itself(seed: int) -> None:
    """Any damaged store gives the same facts again, so the same plan."""
    _, tree = agreement.damaged(seed, random.Random(seed).randrange(1000))
    writable = seed % 2 == 0
    files = MemoryFiles(tree)
    first, again = (surveyed(files, writable=writable) for _ in range(2))
    assert files.tree() == MemoryFiles(tree).tree()
    # A store without an owner gets a new generation each time.
    assert replace(first.facts, metadata=again.facts.metadata) == again.facts
    assert first.plan == again.plan == make_plan(first.facts)


class _Counting(MemoryFiles):
    """Counts the bytes that are read of each `.log` file."""

    def __init__(self, tree: Any) -> None:
        super().__init__(tree)
        self.bytes_read: Counter[str] = Counter()
        self._names: dict[int, str] = {}

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        fd = super().open(dir_fd, name, write=write)
        self._names[fd] = name
        return fd

    def read(self, fd: int, view: memoryview, pos: int) -> int:
        n = super().read(fd, view, pos)
        self.bytes_read[self._names[fd]] += n
        return n


@pytest.mark.parametrize("writer", ["own", "kafka"])
def test_tail_is_read_once(writer: str) -> None:
    """The store was killed: no byte of a log is read twice."""
    tree = damages._store(2, "none", "killed", writer).damages.tree
    files = _Counting(tree)
    walks = surveyed(files).facts.walks
    assert walks
    assert all(walk.is_whole for walk in walks.values())
    for path, data in tree.items():
        if path.endswith(LOG):
            read = files.bytes_read[path.rpartition("/")[2]]
            assert data is not None
            assert read <= len(data), path
