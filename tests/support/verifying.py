"""A small store to be damaged and verified, and what is asked of the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.golden import SLICE
from support.values import write_store

SMALL = {"segment_bytes": 1500, "index_interval_bytes": 200}
RECORDS = 100


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several small segments in a store that was closed."""
    return write_store(tmp_path / "store", RECORDS, **SMALL)


def kinds(report: logstore.types.VerifyReport) -> list[str]:
    return [problem.kind for problem in report.problems]


def note_kinds(report: logstore.types.VerifyReport) -> list[str]:
    return [note.kind for note in report.notes]


def the_problem(report: logstore.types.VerifyReport) -> logstore.types.VerifyProblem:
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def forget_state(partition: Path) -> None:
    """Make it a store that another program wrote and did not close."""
    store = partition.parent
    for path in [store / ".logstore-owner", store / ".kafka_cleanshutdown"]:
        path.unlink()
    (partition / ".logstore-state").unlink()
    (store / "recovery-point-offset-checkpoint").unlink()


def change_state(partition: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change what logstore's own state says, with a right checksum."""
    directory = Directory.open_root(Files(), str(partition))
    value = checkpoints.read_state(directory, ".logstore-state")
    assert value is not None
    change(value)
    value.pop("version")
    checkpoints.write_state(directory, ".logstore-state", value)
    directory.close()


def golden_with(suffix: str, tmp_path: Path) -> Path:
    """A copy of a golden partition that has such a file; the file."""
    found = sorted(SLICE.glob(f"*/clean/*/*{suffix}"))
    path = max(found, key=lambda each: each.stat().st_size)
    copy = tmp_path / "store"
    shutil.copytree(path.parents[1], copy)
    return copy / path.parent.name / path.name
