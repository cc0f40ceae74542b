"""Damage that an opening has found: later the bytes count, not the marks.

tests/faults/lives.py goes through sequences of all this.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    DAMAGE_GONE,
    LOST_END,
    LOST_SEGMENT,
    OTHER_WRITER,
    START_BEYOND_END,
    TORN_TAIL,
)
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import (
    FaultyFiles,
    Unsynced,
    append_garbage,
    crash,
    cut,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    restart_machine,
    zero,
)
from support.killed import killed_store, labels, the_log
from support.values import (
    append_one,
    expected,
    fill,
    new_partition,
    read_all,
    write_store,
)

COUNT = 30
DAMAGED = ".logstore-damaged"
SMALL = {"segment_bytes": 700}


def damaged(path: Path, **settings: Any) -> tuple[Path, int]:
    """Return a killed store with a bad batch before intact ones, and the bad bit."""
    store = killed_store(path, 2, durable=10, count=COUNT, call=2, **settings)
    log = the_log(store)
    bit = 8 * (frames(log)[-4].pos + 40)
    flip_bit(log, bit)
    return store, bit


def found(store: Path) -> list[str]:
    """Labels that an opening for writing finds."""
    with open_store(store, _files=Unsynced()) as opened:
        return labels(opened)


def verdicts(store: Path) -> dict[str, Any]:
    body = (store / "orders-0" / DAMAGED).read_bytes().split(b"\n")[1]
    value: dict[str, Any] = json.loads(body)
    return value


def refuses(store: Path) -> bool:
    with open_store(store, _files=Unsynced()) as opened:
        try:
            append_one(opened.topic("orders")[0])
        except logstore.LogStoreError:
            return True
    return False


# ------------------------------------------------------------------ it stays


def test_bad_batch_before_intact_ones_is_damage_while_the_machine_runs(
    tmp_path: Path,
) -> None:
    """The kernel had all bytes that a killed process appended: none of them is torn."""
    store, _ = damaged(tmp_path)
    before = the_log(store).read_bytes()
    assert found(store) == [CORRUPT]
    assert the_log(store).read_bytes() == before
    (row,) = verdicts(store)["rows"]
    assert (row["kind"], row["position"]) == (CORRUPT, frames(the_log(store))[-4].pos)
    assert row["end_position"] == len(before)


def test_bad_batch_before_intact_ones_is_torn_after_another_start(
    tmp_path: Path,
) -> None:
    """After a power cut pages may be missing anywhere; a copy is kept."""
    store, _ = damaged(tmp_path)
    restart_machine(store)
    assert found(store) == [TORN_TAIL]
    assert not (store / "orders-0" / DAMAGED).exists()
    assert list((store / "orders-0").glob(".logstore-torn-*"))


@pytest.mark.parametrize("state", ["missing", "bad"])
def test_bad_batch_before_intact_ones_is_damage_without_a_state(
    tmp_path: Path, state: str
) -> None:
    """The owner file shows that the machine has run since; a writer on a full disk
    removes the state."""
    write_store(tmp_path / "live", 10, 2, call=2)
    with open_store(tmp_path / "live", _files=Unsynced()) as live:
        fill(live.topic("orders")[0], 20, call=2)
        store = crash(tmp_path / "live", tmp_path / "killed")
    flip_bit(the_log(store), 8 * (frames(the_log(store))[-4].pos + 40))
    before = the_log(store).read_bytes()
    path = store / "orders-0" / ".logstore-state"
    if state == "missing":
        path.unlink()
    else:
        flip_bit(path, 8 * 60)
    assert CORRUPT in found(store)
    assert the_log(store).read_bytes() == before


def mark_points(store: Path, point: int) -> None:
    """Let Kafka's recovery points name the partition."""
    text = f"0\n1\norders 0 {point}\n"
    (store / "recovery-point-offset-checkpoint").write_text(text)


@pytest.mark.parametrize(("place", "label"), [(2, CORRUPT), (-4, TORN_TAIL)])
def test_bytes_that_were_durable_by_a_state_that_does_not_count_are_not_cut(
    tmp_path: Path, place: int, label: str
) -> None:
    """Without the owner file the last writer is unknown; the state still vouches for
    synced bytes, and for no more."""
    store = killed_store(tmp_path, 2, durable=10, count=COUNT, call=2)
    log = the_log(store)
    flip_bit(log, 8 * (frames(log)[place].pos + 40))
    (store / ".logstore-owner").unlink()
    mark_points(store, 0)
    assert label in found(store)


@pytest.mark.parametrize("is_first", [False, True])
def test_torn_record_that_holds_another_log_is_a_torn_tail_in_a_log_with_gaps(
    tmp_path: Path, is_first: bool
) -> None:
    """The lengths of the records lead past the intact batches: these are its content.
    `is_first`: a call of several batches, whose frame is zeros until it is finished.

    `is_first`: of a call of several batches, whose frame is zeros until it is finished.
    """
    write_store(tmp_path / "inner", 90, 2, call=2)
    (inner,) = logs_in(tmp_path / "inner" / "orders-0")
    content = inner.read_bytes()[frames(inner)[20].pos :]
    with open_store(tmp_path / "live", _files=Unsynced()) as store:
        partition = new_partition(store, 2, cleanup_policy="compact")
        for n in range(6):
            partition.append(b"v%d" % n, key=b"k%d" % (n % 2))
        partition.roll()
        partition.append(b"x", key=b"x")
        partition.compact(force=True)
        partition.append(content, key=b"mirror")
        crash(tmp_path / "live", tmp_path / "killed")
    log = the_log(tmp_path / "killed")
    frame = frames(log)[-1]
    cut(log, frame.pos + frame.size - len(content) // 3)
    if is_first:
        zero(log, frame.pos, frame.pos + 17)
    assert found(tmp_path / "killed") == [TORN_TAIL]


def test_damaged_length_before_intact_batches_is_damage_in_a_log_with_gaps(
    tmp_path: Path,
) -> None:
    """The length leads past the end of the file, but the records do not."""
    with open_store(tmp_path / "live", _files=Unsynced()) as store:
        partition = new_partition(store, 2, cleanup_policy="compact")
        for n in range(6):
            partition.append(b"v%d" % n, key=b"k%d" % (n % 2))
        partition.roll()
        partition.append(b"x", key=b"x")
        partition.compact(force=True)
        for n in range(3):
            partition.append(b"y%d" % n, key=b"y")
        crash(tmp_path / "live", tmp_path / "killed")
    log = the_log(tmp_path / "killed")
    overwrite(log, frames(log)[-2].pos + 9, b"\x10")
    assert found(tmp_path / "killed") == [CORRUPT]


@pytest.mark.parametrize("later", ["restart", "no owner", "broker's", "closed"])
def test_recorded_damage_stays_whatever_the_marks_say(
    tmp_path: Path, later: str
) -> None:
    """The same bytes give the same verdict: found, verified, read, and not cut."""
    store, _ = damaged(tmp_path)
    found(store)
    before = the_log(store).read_bytes()
    if later == "restart":
        restart_machine(store)
    elif later == "no owner":
        (store / ".logstore-owner").unlink()
    elif later == "broker's":
        (store / ".logstore-owner").unlink()
        mark_points(store, 0)
    else:
        (store / ".logstore-owner").unlink()
        (store / ".kafka_cleanshutdown").touch()
    for _ in range(2):
        assert CORRUPT in found(store)
    assert the_log(store).read_bytes() == before
    assert refuses(store)
    assert not logstore.verify(store).ok
    with pytest.raises(logstore.CorruptRecordError):
        read_all(store)


def test_recorded_damage_is_shown_by_each_judge(tmp_path: Path) -> None:
    """`verify` prints it, `report` calls it critical, `doctor` and the check of a
    hand-over report a problem."""
    store, _ = damaged(tmp_path)
    found(store)
    report = logstore.verify(store)
    assert "known-damage" in [note.kind for note in report.notes]
    assert "damage" in [problem.kind for problem in logstore.doctor(store).problems]
    assert not logstore.kafka.check_handover(store).ok
    assert not logstore.kafka.check_handover(store, from_kafka=True).ok


def test_record_of_damage_that_is_bad_counts(tmp_path: Path) -> None:
    """Nothing is cut because of a file that cannot be read; `repair` removes it."""
    store, bit = damaged(tmp_path)
    found(store)
    flip_bit(the_log(store), bit)
    (store / "orders-0" / DAMAGED).write_bytes(b"what")
    assert refuses(store)
    assert not logstore.verify(store).ok
    assert logstore.repair(store).ok
    assert not refuses(store)


@pytest.mark.parametrize("kind", ["of a later release", "torn-tail"])
def test_verdict_of_an_unknown_kind_is_refused_and_can_be_repaired(
    tmp_path: Path, kind: str
) -> None:
    """Unknown kinds count as damage, for each of these judges."""
    store, bit = damaged(tmp_path)
    found(store)
    path = store / "orders-0" / DAMAGED
    value = verdicts(store)
    value["rows"][0]["kind"] = kind
    path.write_bytes(checkpoints.pack_state(value))
    flip_bit(the_log(store), bit)  # nothing else is wrong
    assert found(store) == [CORRUPT]
    assert refuses(store)
    assert not logstore.verify(store).ok
    assert logstore.report(store)
    assert logstore.doctor(store)
    with logstore.open(store, read_only=True) as reader:
        assert len(list(reader.topic("orders")[0].read())) == COUNT
    logstore.repair(store, mode="cut")
    assert not refuses(store)
    assert not path.exists()


def test_state_of_a_damaged_partition_is_refused_by_earlier_releases(
    tmp_path: Path,
) -> None:
    """Earlier releases do not know the record, and would cut."""
    store, bit = damaged(tmp_path)
    state = store / "orders-0" / ".logstore-state"
    found(store)
    assert json.loads(state.read_bytes().split(b"\n")[1])["version"] == 2
    flip_bit(the_log(store), bit)
    found(store)
    assert json.loads(state.read_bytes().split(b"\n")[1])["version"] == 1


def test_damage_that_cannot_be_recorded_lets_nothing_be_written(
    tmp_path: Path,
) -> None:
    """No append, state or mark of a clean stop is written: the next opening looks
    again."""
    store, _ = damaged(tmp_path)
    state = (store / "orders-0" / ".logstore-state").read_bytes()
    files = FaultyFiles()
    files.fail("create", errno.ENOSPC, name=f"{DAMAGED}.tmp", times=99)
    with open_store(store, _files=files) as opened:
        assert labels(opened) == [CORRUPT]
        with pytest.raises(logstore.CorruptRecordError):
            append_one(opened.topic("orders")[0])
    assert (store / "orders-0" / ".logstore-state").read_bytes() == state
    assert not (store / ".kafka_cleanshutdown").exists()
    assert found(store) == [CORRUPT]


def test_refusal_of_the_system_is_no_damage(tmp_path: Path) -> None:
    """An error of the device may be gone at the next try."""
    store = write_store(tmp_path / "store", COUNT).parent
    os.unlink(store / "orders-0" / f"{0:020d}.index")
    files = FaultyFiles()
    files.fail("read", errno.EIO, name=".log", times=99)
    with open_store(store, _files=files) as opened:
        assert opened.recovery_report
    assert not (store / "orders-0" / DAMAGED).exists()


class _BadMemory(Files):
    """Pages in the cache differ from the disk, until they are dropped."""

    is_bad = True

    def read(self, fd: int, buffer: Any, pos: int) -> int:
        n = super().read(fd, buffer, pos)
        if (
            self.is_bad
            and n > 300
            and os.readlink(f"/proc/self/fd/{fd}").endswith("log")
        ):
            memoryview(buffer).cast("B")[n - 5] ^= 1
        return n

    def forget_cached(self, fd: int, pos: int, size: int) -> None:
        self.is_bad = False


def test_damage_is_one_only_after_a_read_past_the_page_cache(tmp_path: Path) -> None:
    """Memory may be at fault, too."""
    store = killed_store(tmp_path, 2, durable=0, count=COUNT, call=2)
    files = _BadMemory()
    with open_store(store, _files=files) as opened:
        assert labels(opened) == []
        assert opened.topic("orders")[0].end_offset == COUNT
    assert not files.is_bad


# ------------------------------------------------------------------ it goes


def test_damage_whose_bytes_are_back_is_gone_and_reported(tmp_path: Path) -> None:
    """The segment was put back from a backup: the partition takes appends."""
    store, bit = damaged(tmp_path)
    found(store)
    flip_bit(the_log(store), bit)
    assert found(store) == [DAMAGE_GONE]
    assert not (store / "orders-0" / DAMAGED).exists()
    assert not refuses(store)
    assert logstore.verify(store).ok


def test_damage_that_another_program_cut_off_is_gone_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    """A broker cuts it like this."""
    store, _ = damaged(tmp_path)
    found(store)
    log = the_log(store)
    cut(log, frames(log)[-4].pos)
    (store / ".logstore-owner").unlink()
    with open_store(store, _files=Unsynced()) as opened:
        (action,) = [
            a for a in opened.recovery_report.actions if a.label == DAMAGE_GONE
        ]
        assert "missing" in action.message
        append_one(opened.topic("orders")[0])


def test_damage_that_another_program_has_written_over_is_gone(tmp_path: Path) -> None:
    """A broker cuts the damage and continues: its log is whole, and shorter than the
    former one. The missing records are reported."""
    store, bit = damaged(tmp_path)
    found(store)
    log = the_log(store)
    flip_bit(log, bit)  # as an intact batch in its place
    first, second = frames(log)[-4], frames(log)[-3]
    cut(log, second.pos)
    (store / ".kafka_cleanshutdown").touch()
    mark_points(store, second.offset)
    with open_store(store, _files=Unsynced()) as opened:
        assert labels(opened) == [OTHER_WRITER, DAMAGE_GONE]
        (gone,) = (a for a in opened.recovery_report.actions if a.label == DAMAGE_GONE)
        assert f"offsets {first.offset} to" in gone.message
        assert "another program" in gone.message
        assert append_one(opened.topic("orders")[0]) == second.offset


def test_lost_log_of_a_broker_is_gone_once_its_segments_reach_their_end(
    tmp_path: Path,
) -> None:
    """All segments were lost; put back, they must reach what was flushed."""
    partition = foreign(killed_store(tmp_path, 2, count=COUNT, segment_bytes=700))
    store = partition.parent
    mark_points(store, COUNT)
    (store / ".kafka_cleanshutdown").touch()
    kept = {log: log.read_bytes() for log in logs_in(partition)}
    for log in kept:
        log.unlink()
    assert found(store) == [LOST_SEGMENT]
    assert verdicts(store)["rows"][0]["end_offset"] == COUNT
    first, *_, last = kept
    first.write_bytes(kept[first])
    assert found(store) == [LOST_END]
    assert refuses(store)
    for log, data in kept.items():
        log.write_bytes(data)
    assert DAMAGE_GONE in found(store)
    assert last.exists()
    assert not refuses(store)


def test_state_of_a_log_whose_damage_is_gone_has_the_usual_version(
    tmp_path: Path,
) -> None:
    """Opening may write the indexes of its last segment, and with them the state."""
    partition = write_store(tmp_path / "store", COUNT, 2)
    log = the_log(partition.parent)
    before = log.read_bytes()
    cut(log, len(before) // 2)
    assert found(partition.parent) == [LOST_END]
    log.write_bytes(before)
    for index in partition.glob("*index"):
        index.unlink()
    assert DAMAGE_GONE in found(partition.parent)
    assert b'"version":1' in (partition / ".logstore-state").read_bytes()


def test_repair_without_a_mode_leaves_damage_that_is_there(tmp_path: Path) -> None:
    """The repair examines deeply, and changes nothing."""
    store, bit = damaged(tmp_path)
    found(store)
    before = the_log(store).read_bytes()
    assert not logstore.repair(store).ok
    assert CORRUPT in found(store)
    flip_bit(the_log(store), bit)
    report = logstore.repair(store)
    assert report.ok
    assert [action.label for action in report.actions] == ["damage-gone"]
    flip_bit(the_log(store), bit)
    assert the_log(store).read_bytes() == before


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_with_a_mode_takes_the_record_away(tmp_path: Path, mode: str) -> None:
    """Removed bytes are kept in the quarantine."""
    store, _ = damaged(tmp_path)
    found(store)
    assert logstore.repair(store, mode).ok
    assert not (store / "orders-0" / DAMAGED).exists()
    assert not refuses(store)


def test_delete_before_works_on_a_damaged_log(tmp_path: Path) -> None:
    """This is the way to continue without the damaged part; the next opening reports
    its removal."""
    partition = write_store(tmp_path / "store", COUNT, **SMALL)
    store = partition.parent
    second = int(logs_in(partition)[1].stem)
    append_garbage(logs_in(partition)[0])
    with logstore.open(store) as opened:
        log = opened.topic("orders")[0]
        with pytest.raises(logstore.CorruptRecordError):
            append_one(log)
        assert log.delete_before(second) == second
        assert log.start_offset == second
    with logstore.open(store) as opened:
        assert labels(opened) == [DAMAGE_GONE]
        append_one(opened.topic("orders")[0])


def test_start_above_damage_deletes_no_bytes_and_keeps_the_verdict(
    tmp_path: Path,
) -> None:
    """The last segment of a damaged log keeps its file: after another start of the
    machine its intact batches would be cut, and their offsets given again."""
    store, _ = damaged(tmp_path)
    before = the_log(store).read_bytes()
    with open_store(store, _files=Unsynced()) as opened:
        log = opened.topic("orders")[0]
        assert log.delete_before(log.end_offset) == log.start_offset
    restart_machine(store)
    assert found(store) == [CORRUPT]
    assert refuses(store)
    assert the_log(store).read_bytes() == before


@pytest.mark.parametrize(
    "policy", [logstore.RetainBytes(0), logstore.RetainAge(0)], ids=["bytes", "age"]
)
def test_retention_does_not_count_the_last_segment_of_a_damaged_log(
    tmp_path: Path, policy: logstore.RetentionPolicy
) -> None:
    """The segment is not deleted, so it is not among the deleted ones either."""
    store, _ = damaged(tmp_path, segment_bytes=1200)
    with open_store(store, _files=Unsynced()) as opened:
        log = opened.topic("orders")[0]
        last, later_ms = log.segments[-1], 1 << 42
        gone = log.apply_retention(now_ms=later_ms, policies=[policy])
        assert gone
        assert last.base_offset not in [one.segment.base_offset for one in gone]
        assert log.start_offset == last.base_offset
    assert CORRUPT in found(store)


def test_damage_of_a_segment_whose_deletion_was_interrupted_is_gone(
    tmp_path: Path,
) -> None:
    """The state has the deletion; the names follow at the next opening."""
    partition = write_store(tmp_path / "store", COUNT, **SMALL)
    store = partition.parent
    first, second = logs_in(partition)[:2]
    append_garbage(first)
    assert found(store) == [CORRUPT]
    data = first.read_bytes()
    with open_store(store, _files=Unsynced()) as opened:
        opened.topic("orders")[0].delete_before(int(second.stem))
    first.write_bytes(data)
    assert found(store) == [DAMAGE_GONE]
    assert not first.exists()


# ------------------------------------------------------------------ logs of others


def test_copy_without_marks_keeps_its_damage(tmp_path: Path) -> None:
    """Without a recovery point nothing after a bad batch is a torn tail."""
    store = foreign(killed_store(tmp_path, 2, count=COUNT)).parent
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (store / name).unlink(missing_ok=True)
    log = the_log(store)
    flip_bit(log, 8 * (frames(log)[-4].pos + 40))
    size = log.stat().st_size
    for _ in range(3):
        assert CORRUPT in found(store)
    assert log.stat().st_size == size


def test_bytes_behind_a_sealed_segment_of_a_broker_are_damage(tmp_path: Path) -> None:
    """`verify` reports them, too."""
    store = foreign(write_store(tmp_path / "store", COUNT, **SMALL).parent).parent
    append_garbage(logs_in(store / "orders-0")[0], bytes(100))
    assert refuses(store)
    assert not logstore.verify(store).ok


def test_log_start_beyond_the_end_gives_the_next_record_that_offset(
    tmp_path: Path,
) -> None:
    """A broker does the same; the case is reported."""
    store = foreign(write_store(tmp_path / "store", COUNT).parent).parent
    (store / "log-start-offset-checkpoint").write_text("0\n1\norders 0 500\n")
    with logstore.open(store) as opened:
        assert START_BEYOND_END in labels(opened)
        assert append_one(opened.topic("orders")[0]) == 500
    assert [record.offset for record in read_all(store)] == [500]


# ------------------------------------------------------------------ a lost segment


def test_killed_log_without_its_last_segment_is_read_to_where_it_is_whole(
    tmp_path: Path,
) -> None:
    """The read then raises an error, as after a clean close."""
    store = killed_store(tmp_path, 2, durable=10, count=COUNT, call=2, **SMALL)
    *_, last = logs_in(store / "orders-0")
    kept = int(last.stem)
    last.unlink()
    with logstore.open(store, read_only=True) as opened:
        records = []
        with pytest.raises(logstore.CorruptRecordError):
            for record in opened.topic("orders")[0].read():
                records.append(record)
    assert records == expected(2, 0, kept)
    assert LOST_SEGMENT in found(store)


def test_follower_of_a_log_that_loses_its_last_segment_gets_an_error(
    tmp_path: Path,
) -> None:
    """The follower does not end without an error."""
    store = killed_store(tmp_path, 2, durable=10, count=COUNT, call=2, **SMALL)
    logs_in(store / "orders-0")[-1].unlink()
    with logstore.open(store, read_only=True) as opened:
        with pytest.raises(logstore.CorruptRecordError):
            list(opened.topic("orders")[0].follow(timeout=0))
