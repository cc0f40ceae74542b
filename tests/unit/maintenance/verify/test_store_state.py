"""The small files of a store, of Kafka's and of logstore's own: checkpoints, producer
snapshots, state."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.publications import record_unknown
from logstore.io.directory import Directory
from logstore.io.files import Files
from support import verifying
from support.damage import cut, flip_bit
from support.verifying import golden_with, kinds, note_kinds

# Fixtures.
partition = verifying.partition


def test_a_bad_producer_snapshot_is_a_problem_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    """It is a note after a crash, which may leave a part of one."""
    path = golden_with(".snapshot", tmp_path)
    cut(path, path.stat().st_size - 1)
    assert kinds(logstore.verify(tmp_path / "store")) == ["producer-snapshot"]
    assert kinds(logstore.verify(path)) == ["producer-snapshot"]
    (tmp_path / "store" / ".kafka_cleanshutdown").unlink()
    report = logstore.verify(tmp_path / "store")
    assert report.ok
    assert "producer-snapshot" in note_kinds(report)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recovery-point-offset-checkpoint", "0\n2\norders 0 5\n"),
        ("log-start-offset-checkpoint", "7\n0\n"),
        ("replication-offset-checkpoint", "0\n1\norders zero 5\n"),
        ("cleaner-offset-checkpoint", "0\n1\norders 5\n"),
        ("orders-0/leader-epoch-checkpoint", "0\n2\n5 10\n4 20\n"),
        ("orders-0/partition.metadata", "version: 0\ntopic_id: short"),
    ],
)
def test_a_bad_checkpoint_is_a_problem(partition: Path, name: str, text: str) -> None:
    """It is in the store, in the partition, and checked by itself."""
    path = partition.parent / name
    path.write_text(text)
    assert ("checkpoint", str(path)) in [
        (p.kind, p.path) for p in logstore.verify(partition.parent).problems
    ]
    assert kinds(logstore.verify(path)) == ["checkpoint"]


@pytest.mark.parametrize(
    "name", [".logstore-owner", ".logstore-topics", "orders-0/.logstore-state"]
)
def test_damage_to_logstore_s_own_files_is_a_problem(
    partition: Path, name: str
) -> None:
    """They are checked in the store, and by themselves."""
    path = partition.parent / name
    flip_bit(path, 8 * 40)
    report = logstore.verify(partition.parent)
    assert ("state", str(path)) in [(p.kind, p.path) for p in report.problems]
    assert kinds(logstore.verify(path)) == ["state"]


@pytest.mark.parametrize(
    "name", [".logstore-published", ".logstore-unknown", ".logstore-producers"]
)
def test_damage_to_what_is_remembered_of_publishers_is_a_problem(
    partition: Path, name: str
) -> None:
    """They are checked in the store, and by themselves; a file with fields of another
    kind is a problem, too."""
    store = partition.parent
    with logstore.open(store) as opened:
        with opened.stage("spark", 1) as stage:
            stage.append_many(opened.topic("orders")[0], [b"published"])
            staged = stage.finish()
        opened.publish(staged, identity="spark", sequence=1)
        opened.producer("p")
    root = Directory.open_root(Files(), str(store))
    record_unknown(root, {"spark": 1})
    assert logstore.verify(store).ok
    path = store / name
    sound = path.read_bytes()
    flip_bit(path, 8 * 40)
    for _ in range(2):
        report = logstore.verify(store)
        assert [(p.kind, p.path) for p in report.problems] == [("state", str(path))]
        assert kinds(logstore.verify(path)) == ["state"]
        path.write_bytes(checkpoints.pack_state({"version": 1}))
    path.write_bytes(sound)
    assert logstore.verify(path).ok


def test_another_writer_is_noted(partition: Path) -> None:
    """logstore's own state does not count then."""
    (partition.parent / ".kafka_cleanshutdown").write_bytes(b"")
    (partition / ".logstore-state").unlink()
    report = logstore.verify(partition.parent)
    assert report.ok
    assert note_kinds(report) == ["other-writer"]
