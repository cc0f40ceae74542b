"""`repair` apart from the log itself: plans, quarantines, salvage, state files,
refusals.

Damage of logs is tested in tests/corruption/test_repair.py.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest

import logstore
from logstore.io.stamps import FileInfo
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    FixedClock,
    FullDisk,
    Unsynced,
    cut,
    flip_bit,
    logs_in,
    overwrite,
    snapshot_of,
    zero,
)
from support.mending import (
    batches_in,
    check_mended,
    check_nothing_is_lost,
    log_bytes,
    manifests,
    offsets_read,
)
from support.values import write_store

COUNT = 60
SMALL = {"segment_bytes": 700, "index_interval_bytes": 100}
both_modes = pytest.mark.parametrize("mode", ["cut", "skip"])


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several small segments in a store that was closed."""
    return write_store(tmp_path / "store", COUNT, call=3, **SMALL)


def damage(partition: Path) -> range:
    """Damage a record in the second segment, and one in the third; returns the lost
    offsets of the first one."""
    for log in logs_in(partition)[1:3]:
        batch = batches_in_file(log)[1]
        flip_bit(log, 8 * (batch[0] + batch[1] - 2))
    first = int(logs_in(partition)[1].stem) + 1
    return range(first, first + 1)


def batches_in_file(log: Path) -> list[tuple[int, int]]:
    return [(e.position, e.size_bytes) for e in logstore.inspect_file(log).entries]


def labels(report: logstore.types.RepairReport) -> list[str]:
    return [action.label for action in report.actions]


# ------------------------------------------------------------------ the report


@both_modes
def test_dry_run_tells_all_and_changes_nothing(partition: Path, mode: str) -> None:
    """The actions equal the repair's, without places; no lock is taken."""
    damage(partition)
    before = snapshot_of(partition.parent)
    plan = logstore.repair(partition, mode, dry_run=True)
    assert snapshot_of(partition.parent) == before
    assert plan.dry_run
    assert not plan.ok
    assert plan.quarantine == ()
    done = logstore.repair(partition, mode)
    assert done.ok
    assert [a.message for a in plan.actions] == [a.message for a in done.actions]
    assert labels(plan) == labels(done)
    assert all(action.kept_at is None for action in plan.actions)


def test_dry_run_needs_no_lock(partition: Path) -> None:
    """It may run while a writer works; a repair may not."""
    damage(partition)
    with logstore.open(partition.parent):
        assert logstore.repair(partition.parent, "cut", dry_run=True).actions
        with pytest.raises(logstore.StoreLockedError):
            logstore.repair(partition.parent, "cut")


def test_actions_say_what_went_and_where_it_is(partition: Path) -> None:
    """Path, position, bytes, offsets, and a copy of just these bytes."""
    lost = damage(partition)
    log = logs_in(partition)[1]
    pos, size = batches_in_file(log)[1]
    data = log.read_bytes()[pos : pos + size]
    report = logstore.repair(partition, "skip")
    action = report.actions[0]
    assert (action.label, action.path) == ("skipped", str(log))
    assert (action.position, action.bytes) == (pos, size)
    assert (action.first_offset, action.last_offset) == (lost[0], lost[-1])
    assert action.kept_at is not None
    assert Path(action.kept_at).read_bytes() == data
    assert report.quarantine == (os.path.dirname(action.kept_at),)
    value = json.loads(json.dumps(report.to_dict()))
    assert value["ok"]
    assert value["actions"][0]["bytes"] == size


def filled_logs(partition: Path) -> list[Path]:
    return [log for log in logs_in(partition) if log.stat().st_size]


def lost_offsets(report: logstore.types.RepairReport) -> set[int]:
    """Offsets lost by the actions."""
    lost: set[int] = set()
    for action in report.actions:
        if action.first_offset is not None:
            assert action.last_offset is not None
            lost |= set(range(action.first_offset, action.last_offset + 1))
    return lost


@both_modes
@pytest.mark.parametrize("where", ["middle", "last segment", "last batch"])
def test_actions_tell_every_offset_that_goes(
    tmp_path: Path, where: str, mode: str
) -> None:
    """This includes offsets after the last damage: the log was closed, so its end is
    known."""
    partition = write_store(tmp_path / "store", COUNT, call=3, **SMALL)
    log = filled_logs(partition)[1 if where == "middle" else -1]
    batch = batches_in_file(log)[-1 if where == "last batch" else 0]
    flip_bit(log, 8 * (batch[0] + batch[1] - 2))
    plan = logstore.repair(partition, mode, dry_run=True)
    logstore.repair(partition, mode)
    with logstore.open(partition.parent, read_only=True) as store:
        kept = {record.offset for record in store.topic("orders")[0].read()}
    assert lost_offsets(plan) == set(range(COUNT)) - kept
    assert lost_offsets(plan)


def test_end_that_nobody_knows_is_no_number(tmp_path: Path) -> None:
    """Damage is in the last batch of a log whose end is not recorded."""
    partition = write_store(tmp_path / "store", COUNT, call=3, **SMALL)
    for path in (*partition.parent.glob(".*"), *partition.glob(".*")):
        path.unlink()
    log = filled_logs(partition)[-1]
    begin, size = batches_in_file(log)[-1]
    flip_bit(log, 8 * (begin + size - 2))
    (action,) = (
        a
        for a in logstore.repair(partition, "cut", dry_run=True).actions
        if a.label == "cut"
    )
    assert action.first_offset is not None
    assert action.last_offset is None


def test_repair_of_a_sound_store_changes_nothing(partition: Path) -> None:
    """Only the lock file is touched, and nothing is reported."""
    before = snapshot_of(partition.parent)
    report = logstore.repair(partition.parent, "cut")
    assert (report.ok, report.actions, report.quarantine) == (True, (), ())
    assert snapshot_of(partition.parent) == before


def test_progress_rises_to_the_end(partition: Path) -> None:
    """Everything is read twice: before, and once more afterwards."""
    damage(partition)
    told: list[tuple[int, int]] = []
    logstore.repair(
        partition, "cut", on_progress=lambda done, total: told.append((done, total))
    )
    assert told == sorted(told)
    assert len({total for _, total in told}) == 1


# ------------------------------------------------------------------ quarantine


@both_modes
def test_quarantine_elsewhere(partition: Path, tmp_path: Path, mode: str) -> None:
    """The named directory is made, private, with one for each partition in it."""
    damage(partition)
    before = log_bytes(partition)
    aside = tmp_path / "a" / "side"
    report = logstore.repair(partition, mode, aside)
    assert report.ok
    place = aside / "orders-0"
    assert report.quarantine == (str(place),)
    assert place.stat().st_mode & 0o777 == 0o700
    manifest = json.loads((place / "manifest.json").read_text())
    assert (manifest["mode"], manifest["directory"]) == (mode, str(partition))
    check_nothing_is_lost(partition, before, [(place, manifest)])
    assert manifests(partition) == []
    damage(partition) if mode == "skip" else overwrite(logs_in(partition)[0], 30, b"?")
    again = logstore.repair(partition, mode, aside)
    assert again.quarantine == (str(aside / "orders-0.2"),)


class OtherDevice(FaultyFiles):
    """A quarantine on another file system: renames into it fail."""

    def stat(self, fd: int) -> FileInfo:
        info = super().stat(fd)
        if self._names.get(fd) == "orders-0.aside":
            return info._replace(device=info.device + 1)
        return info

    def open_directory(self, dir_fd: int, name: str) -> int:
        fd = super().open_directory(dir_fd, name)
        if os.readlink(f"/proc/self/fd/{fd}").endswith("aside/orders-0"):
            self._names[fd] = "orders-0.aside"
        return fd


def test_quarantine_on_another_file_system_is_copied_to(
    partition: Path, tmp_path: Path
) -> None:
    """Whole segments are copied, too: nothing is moved."""
    damage(partition)
    before = log_bytes(partition)
    files = OtherDevice()
    assert logstore.repair(partition, "cut", tmp_path / "aside", _files=files).ok
    assert files.counts["move"] == 0
    place = tmp_path / "aside" / "orders-0"
    manifest = json.loads((place / "manifest.json").read_text())
    check_nothing_is_lost(partition, before, [(place, manifest)])


@both_modes
def test_full_disk_leaves_the_log_as_it_was(partition: Path, mode: str) -> None:
    """Bytes that cannot be saved are not removed, and no partial quarantine stays."""
    damage(partition)
    before = log_bytes(partition)
    files = FullDisk()
    files.full = True
    with pytest.raises(logstore.DiskFullError):
        logstore.repair(partition, mode, _files=files)
    assert log_bytes(partition) == before
    assert not list(partition.glob(".logstore-quarantine-*"))
    files.full = False
    assert logstore.repair(partition, mode, _files=files).ok


def test_deleting_the_topic_removes_its_quarantine(partition: Path) -> None:
    """It is inside of the partition directory."""
    damage(partition)
    assert logstore.repair(partition, "cut").quarantine
    store = partition.parent
    with open_store(store, _files=Unsynced()) as found:
        config = found.topic("orders").config
        found.topic("orders").configure(
            logstore.TopicConfig(**{**config.to_dict(), "file_delete_delay_ms": 0})
        )
        found.delete_topic("orders")
    later = FixedClock(time.time_ns() // 1_000_000 + 3_600_000)
    with open_store(store, _files=later) as found:
        assert found.topics() == []
    assert not [path for path in store.iterdir() if path.is_dir()]


# ------------------------------------------------------------------ salvage


@both_modes
def test_salvage_reads_only(partition: Path, tmp_path: Path, mode: str) -> None:
    """The source is unchanged, also while it is open; the copy is repaired."""
    lost = damage(partition)
    store, to = partition.parent, tmp_path / "new"
    with logstore.open(store):
        before = snapshot_of(store)
        report = logstore.repair(store, mode, to=to)
        assert snapshot_of(store) == before
    assert report.ok
    assert {os.path.dirname(a.path) for a in report.actions} == {str(to / "orders-0")}
    found = offsets_read(to)
    assert lost[0] not in found
    if mode == "cut":
        check_mended(to, list(range(lost[0])), lost[0])


def test_salvage_of_one_partition(partition: Path, tmp_path: Path) -> None:
    """Its topic keeps its settings; other partitions are not missed."""
    damage(partition)
    to = tmp_path / "new"
    assert logstore.repair(partition, "skip", to=to).ok
    with logstore.open(to) as store:
        assert not store.recovery_report
        assert store.topic("orders").config.segment_bytes == SMALL["segment_bytes"]


def test_salvage_leaves_out_what_cannot_be_read(
    partition: Path, tmp_path: Path
) -> None:
    """An I/O error in a segment costs that block; a repair in place would leave it."""
    log = logs_in(partition)[1]
    files = FaultyFiles()
    files.fail("read", errno.EIO, name=log.name)
    refused = logstore.repair(partition, "skip", _files=files)
    assert not refused.ok
    assert set(labels(refused)) == {"left-alone"}
    report = logstore.repair(partition.parent, "skip", to=tmp_path / "n", _files=files)
    left_out = [a for a in report.actions if a.label == "left-out"]
    assert [(a.path, a.position) for a in left_out] == [(str(log), 0)]


def test_salvage_into_what_is_there_is_refused(partition: Path) -> None:
    """Nothing is ever overwritten."""
    for to in (partition, partition.parent):
        with pytest.raises(logstore.ConfigError, match="not empty"):
            logstore.repair(partition, "cut", to=to)


# ------------------------------------------------------------------ small files


def test_damaged_state_is_made_anew(partition: Path) -> None:
    """It is made from the log; the bad one is kept."""
    overwrite(partition / ".logstore-state", 40, b"?")
    report = logstore.repair(partition, "cut")
    assert labels(report) == ["state-rebuilt"]
    assert report.ok
    check_mended(partition.parent, list(range(COUNT)), COUNT)


def test_damaged_owner_is_put_aside(partition: Path) -> None:
    """The store is loaded like Kafka's then: nothing of the log is lost."""
    store = partition.parent
    bad = (store / ".logstore-owner").read_bytes()[:-9]
    (store / ".logstore-owner").write_bytes(bad)
    report = logstore.repair(store, "cut")
    assert report.ok
    (action,) = report.actions
    assert action.kept_at is not None
    assert Path(action.kept_at).read_bytes() == bad
    assert not any(p.is_dir() for p in store.iterdir() if p != partition)
    check_mended(store, list(range(COUNT)), COUNT)


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        ".logstore-topics",
        "orders-0/leader-epoch-checkpoint",
        "orders-0/partition.metadata",
        "orders-0/00000000000000000027.snapshot",
    ],
)
def test_damaged_small_file_is_put_aside(partition: Path, name: str) -> None:
    """`verify` reports nothing afterwards."""
    store = partition.parent
    (store / name).write_bytes(b"no such thing\n\xff")
    kept = logstore.repair(store, "cut")
    assert kept.ok, kept.remaining
    assert kept.actions
    copies = [a.kept_at for a in kept.actions if os.path.basename(name) in a.path]
    assert copies[0] is not None
    assert Path(copies[0]).read_bytes() == b"no such thing\n\xff"
    check_mended(store, list(range(COUNT)), COUNT)


def test_start_offset_survives_the_loss_of_its_checkpoint(partition: Path) -> None:
    """Deleted records do not come back."""
    store = partition.parent
    with open_store(store, _files=Unsynced()) as found:
        found.topic("orders")[0].delete_before(20)
    (store / "log-start-offset-checkpoint").write_bytes(b"\xff")
    assert logstore.repair(store, "cut").ok
    assert (store / "log-start-offset-checkpoint").read_text() == "0\n1\norders 0 20\n"
    check_mended(store, list(range(20, COUNT)), COUNT)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_or_missing_index_is_built(partition: Path, suffix: str) -> None:
    """The log does not change."""
    before = log_bytes(partition)
    logs_in(partition)[0].with_suffix(suffix).write_bytes(b"\x01" * 24)
    logs_in(partition)[1].with_suffix(".index").unlink()
    report = logstore.repair(partition, "cut")
    assert set(labels(report)) == {"index-rebuilt"}
    assert report.ok
    assert log_bytes(partition) == before
    check_mended(partition.parent, list(range(COUNT)), COUNT)


def test_partition_directory_that_is_gone_is_made_again(partition: Path) -> None:
    """Its offsets are not given out again in mode skip."""
    shutil.rmtree(partition)
    report = logstore.repair(partition.parent, "skip")
    assert report.ok, report.remaining
    check_mended(partition.parent, [], COUNT)


# ------------------------------------------------------------------ refusals


@both_modes
def test_what_is_not_understood_is_left_alone(partition: Path, mode: str) -> None:
    """The batch is intact except for a magic above 2: nothing of its partition changes,
    although there is damage elsewhere."""
    damage(partition)
    log = logs_in(partition)[0]
    overwrite(log, batches_in_file(log)[1][0] + 16, b"\x03")
    before = snapshot_of(partition)
    report = logstore.repair(partition, mode)
    assert snapshot_of(partition) == before
    assert set(labels(report)) == {"left-alone"}
    assert "unsupported" in {problem.kind for problem in report.remaining}


@both_modes
def test_random_bytes_are_damage_and_not_a_new_format(
    partition: Path, mode: str
) -> None:
    """Their magic is above 2 more often than not; their length leads to no other
    batch."""
    log = logs_in(partition)[1]
    pos = batches_in_file(log)[1][0]
    overwrite(log, pos, bytes(range(90, 130)))
    assert "unsupported" in {p.kind for p in logstore.verify(partition).problems}
    assert logstore.repair(partition, mode).ok


def test_bad_arguments(partition: Path, tmp_path: Path) -> None:
    """Named errors are raised, and nothing is changed."""
    with pytest.raises(logstore.ConfigError, match="mode"):
        logstore.repair(partition, "mend")
    with pytest.raises(logstore.ConfigError, match="dry_run"):
        logstore.repair(partition, "cut", dry_run=True, to=tmp_path / "x")
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.repair(tmp_path / "nothing", "cut")
    (tmp_path / "empty").mkdir()
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.repair(tmp_path / "empty", "cut")
    with pytest.raises(logstore.ConfigError):
        logstore.verify(partition, threads=0)


def test_other_partitions_are_mended_beside_one_that_is_left(tmp_path: Path) -> None:
    """A partition with an unknown format does not prevent it."""
    store = tmp_path / "store"
    with open_store(store, _files=Unsynced()) as found:
        topic = found.create_topic("t", 3)
        for partition in topic.partitions:
            partition.append_many([b"x" * 50] * 20)
    for number, damaged in ((0, b"\x03"), (2, b"")):
        log = logs_in(store / f"t-{number}")[0]
        pos, size = batches_in_file(log)[5]
        if damaged:
            overwrite(log, pos + 16, damaged)
        else:
            zero(log, pos, pos + size)
    report = logstore.repair(store, "skip")
    assert {p.kind for p in report.remaining} == {"unsupported"}
    with logstore.open(store) as found:
        assert len(list(found.topic("t")[2].read())) == 19
        assert found.topic("t")[2].append(b"x") == 20


def test_start_of_a_retained_log_survives_a_cut_before_it(partition: Path) -> None:
    """Damage is below the start offset: the log is empty, and keeps its start."""
    store = partition.parent
    with open_store(store, _files=Unsynced()) as found:
        found.topic("orders")[0].delete_before(COUNT - 2)
    log = logs_in(partition)[0]
    cut(log, 70)
    assert logstore.repair(store, "cut").ok
    with open_store(store, _files=Unsynced()) as found:
        orders = found.topic("orders")[0]
        assert (orders.start_offset, orders.end_offset) == (COUNT - 2, COUNT - 2)


def test_batches_of_support_agree(partition: Path) -> None:
    """The helper of the corruption tests is right."""
    assert sum(len(batch.offsets) for batch in batches_in(partition)) == COUNT


def test_repair_without_a_mode_takes_nothing_out(tmp_path: Path) -> None:
    """The caller chooses the loss: without a mode, it only examines."""
    store = write_store(tmp_path / "store", COUNT).parent
    log = logs_in(store / "orders-0")[-1]
    flip_bit(log, 8 * (log.stat().st_size - 3))
    before = log.read_bytes()
    report = logstore.repair(store)
    assert (report.mode, report.ok, report.actions) == (None, False, ())
    assert log.read_bytes() == before
    with pytest.raises(logstore.ConfigError, match="to needs a mode"):
        logstore.repair(store, to=tmp_path / "copy")
