"""Opening with state files that are gone, damaged or stale: no record is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import logstore
from support.damage import logs_in
from support.killed import COUNT, killed_store, labels
from support.values import append_one, every_magic, expected, read_all, write_store


@every_magic
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_own_state_may_be_deleted(tmp_path: Path, magic: int, clean: bool) -> None:
    """It all may go at the price of a longer opening."""
    if clean:
        write_store(tmp_path / "killed", COUNT, magic, segment_bytes=500)
        path = tmp_path / "killed"
    else:
        path = killed_store(tmp_path, magic, durable=10, segment_bytes=500)
    for own in path.rglob(".logstore*"):
        own.unlink()
    assert read_all(path) == expected(magic, 0, COUNT)
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, COUNT)
        assert append_one(partition) == COUNT
    assert len(read_all(path)) == COUNT + 1


@pytest.mark.parametrize("name", [".logstore-owner", ".logstore-topics", "state"])
@pytest.mark.parametrize("how", ["cut", "flip", "empty", "version", "not json"])
def test_own_state_damaged_is_reported_and_costs_no_record(
    tmp_path: Path, name: str, how: str
) -> None:
    """A state file counts only with its checksum."""
    write_store(tmp_path, COUNT, segment_bytes=500)
    path = tmp_path / name
    if name == "state":
        path = tmp_path / "orders-0" / ".logstore-state"
    data = path.read_bytes()
    wrong = {
        "cut": data[: len(data) // 2],
        "flip": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        "empty": b"",
        "version": data.replace(b'"version":1', b'"version":9'),
        "not json": b"{",
    }[how]
    path.write_bytes(wrong)
    assert read_all(tmp_path) == expected(1, 0, COUNT)
    with logstore.open(tmp_path) as store:
        assert "state-damaged" in labels(store)
        assert str(path) in {a.path for a in store.recovery_report.actions}
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        assert append_one(partition) == COUNT


@pytest.mark.parametrize(
    "trace", ["marker gone", "marker changed", "points changed", "points gone"]
)
def test_own_state_is_stale_after_another_program_wrote(
    tmp_path: Path, trace: str
) -> None:
    """If Kafka's files differ from logstore's last ones, the directory is opened as
    Kafka would open it, and the report says so."""
    directory = write_store(tmp_path, COUNT)
    data = logs_in(write_store(tmp_path / "more", COUNT + 5))[0].read_bytes()
    shutil.rmtree(tmp_path / "more")
    logs_in(directory)[0].write_bytes(data)
    marker = tmp_path / ".kafka_cleanshutdown"
    points = tmp_path / "recovery-point-offset-checkpoint"
    if trace == "marker gone":
        marker.unlink()
    elif trace == "marker changed":
        marker.write_bytes(b'{"version":0,"brokerEpoch":7}')
    elif trace == "points changed":
        points.write_text(f"0\n1\norders 0 {COUNT + 5}\n")
    else:
        points.unlink()
    with logstore.open(tmp_path) as store:
        assert "other-writer" in labels(store)
        partition = store.topic("orders")[0]
        assert partition.end_offset == COUNT + 5
        assert list(partition.read()) == expected(1, 0, COUNT + 5)
        append_one(partition)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report


def test_bad_kafka_checkpoint_is_reported_and_taken_as_empty(tmp_path: Path) -> None:
    """Kafka does the same; nothing is lost by it."""
    write_store(tmp_path, COUNT)
    for own in tmp_path.rglob(".logstore*"):
        own.unlink()
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"rubbish\n")
    with logstore.open(tmp_path) as store:
        assert "state-damaged" in labels(store)
        assert list(store.topic("orders")[0].read()) == expected(1, 0, COUNT)
