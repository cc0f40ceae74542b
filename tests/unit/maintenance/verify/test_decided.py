"""`verify` predicts the result of opening: cases in which they once disagreed."""

from __future__ import annotations

import pytest

from faults import agreement, damages
from logstore import StoreConfig
from logstore.io.layout import LOG, segment_file
from logstore.maintenance.verify.store import verify
from logstore.store.opening import open_store
from logstore.types import VerifyReport
from support.memory_files import ROOT, MemoryFiles
from support.values import config_of, fill

Tree = dict[str, bytes | None]


def store_of(ending: str, writer: str) -> damages._Store:
    return damages._store(2, "none", ending, writer)


def agreed(tree: Tree) -> VerifyReport:
    """The report of `verify`, after checking that opening agrees."""
    for deep in (False, True):
        assert agreement.disagreement(tree, deep=deep)[0] == ""
    return verify(ROOT, _files=MemoryFiles(tree), threads=1)


def kinds(report: VerifyReport) -> list[str]:
    return [problem.kind for problem in report.problems]


@pytest.mark.parametrize("ending", ["closed", "trimmed", "killed"])
def test_lost_last_segment_is_a_problem(ending: str) -> None:
    """The partition takes no appends."""
    known = store_of(ending, "own").damages
    tree = {path: data for path, data in known.tree.items() if path != known.logs[-1]}
    report = agreed(tree)
    if ending != "killed":
        assert kinds(report) == ["lost-segment"]


def rolled(start: int = 0) -> Tree:
    """A closed store whose last segment has a few records, and begins with `start`."""
    files = MemoryFiles()
    store = open_store(ROOT, _files=files, config=StoreConfig(flush_checkpoint_ms=0))
    partition = store.create_topic("orders", config=config_of(2, "none"))[0]
    fill(partition, 10)
    if start:
        partition.delete_before(start)
    store.close()
    return files.tree()


def test_lost_only_segment_is_a_problem_also_if_its_head_was_deleted() -> None:
    """The start offset in it does not make it a deleted one."""
    tree = rolled(start=5)
    del tree[f"orders-0/{segment_file(0, LOG)}"]
    assert kinds(agreed(tree)) == ["lost-segment"]


def test_lost_last_segment_that_was_empty_is_a_problem() -> None:
    """Records may have been appended to it since."""
    files = MemoryFiles()
    store = open_store(ROOT, _files=files)
    partition = store.create_topic("orders", config=config_of(2, "none"))[0]
    fill(partition, 3)
    partition.roll()
    store.close()
    tree = files.tree()
    assert tree.pop(f"orders-0/{segment_file(3, LOG)}") == b""
    assert kinds(agreed(tree)) == ["lost-segment"]


@pytest.mark.parametrize("writer", ["own", "kafka"])
@pytest.mark.parametrize("how", ["flip", "hole", "old"])
def test_broken_batch_in_the_unsynced_part_is_a_torn_tail(
    how: str, writer: str
) -> None:
    """Opening cuts it."""
    known = store_of("killed", writer).damages
    tree, path = dict(known.tree), known.logs[-1]
    data = bytearray(tree[path] or b"")
    first = tree[known.logs[0]] or b""
    end = len(data) - 1
    if how == "flip":
        data[end] ^= 1
    elif how == "hole":
        data[end - 30 : end] = bytes(30)
    else:
        data[end - 60 :] = first[:61]
    tree[path] = bytes(data)
    report = agreed(tree)
    assert report.ok
    assert [note.kind for note in report.notes] == ["unclean-stop", "torn-tail"]


def test_segment_file_between_those_of_the_log_is_a_problem() -> None:
    """It is not of this log: the partition takes no appends."""
    known = store_of("closed", "own").damages
    tree = dict(known.tree)
    tree[f"orders-0/{segment_file(1, LOG)}"] = b""
    assert set(kinds(agreed(tree))) == {"offsets"}


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_zeros_after_a_sealed_segment_of_kafkas_are_a_problem(ending: str) -> None:
    """Opening refuses them if it reads the segment: past the recovery point."""
    known = store_of(ending, "kafka").damages
    tree = dict(known.tree)
    tree[known.logs[0]] = (tree[known.logs[0]] or b"") + bytes(61)
    assert "zeros" in kinds(agreed(tree))


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_zeros_after_a_sealed_segment_of_logstore_are_a_problem(
    ending: str, magic: int
) -> None:
    """The partition takes no appends: the state says where the segment ends."""
    known = damages._store(magic, "none", ending, "own").damages
    tree = dict(known.tree)
    tree[known.logs[0]] = (tree[known.logs[0]] or b"") + bytes(61)
    assert "zeros" in kinds(agreed(tree))


def test_file_that_does_not_begin_as_a_log_is_not_cut() -> None:
    """The file is of another program's store: its format is unknown."""
    known = store_of("killed", "kafka").damages
    tree = dict(known.tree)
    tree[known.logs[-1]] = b"\xff" * 100
    assert "damaged-batch" in kinds(agreed(tree))


def test_without_a_recovery_point_intact_batches_after_damage_are_not_cut() -> None:
    """They may have been flushed."""
    known = store_of("killed", "kafka").damages
    tree = dict(known.tree)
    del tree["recovery-point-offset-checkpoint"]
    path = known.logs[-2]
    tree = {p: d for p, d in tree.items() if p != known.logs[-1]}
    data = bytearray(tree[path] or b"")
    data[70] ^= 1
    tree[path] = bytes(data)
    assert kinds(agreed(tree)) == ["damaged-batch"]
