"""The end of a log: a torn tail is a note, the loss of durable records a problem."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from support import verifying
from support.damage import append_garbage, crash, cut, flip_bit, frames, logs_in
from support.values import fill, new_partition, read_all, write_store
from support.verifying import RECORDS, forget_state, kinds, note_kinds, the_problem

# Fixtures.
partition = verifying.partition


def test_a_torn_tail_above_the_durable_point_is_a_note(tmp_path: Path) -> None:
    """Opening a copy of the open store cuts it."""
    with logstore.open(tmp_path / "store") as store:
        orders = new_partition(store)
        fill(orders, 10)
        orders.flush()
        fill(orders, 10)
        copy = crash(tmp_path / "store", tmp_path / "copy")
    path = logs_in(copy / "orders-0")[0]
    last = frames(path)[-1]
    cut(path, last.pos + 5)
    report = logstore.verify(copy)
    assert report.ok
    [torn] = [note for note in report.notes if note.kind == "torn-tail"]
    assert (torn.path, torn.position) == (str(path), last.pos)
    assert torn.first_offset == 19


def test_damage_below_the_durable_point_is_a_problem(tmp_path: Path) -> None:
    """The damage is in the same segment, in a record that was flushed."""
    with logstore.open(tmp_path / "store") as store:
        orders = new_partition(store)
        fill(orders, 10)
        orders.flush()
        orders.roll()
        fill(orders, 10)
        orders.flush()
        orders.roll()
        copy = crash(tmp_path / "store", tmp_path / "copy")
    path = logs_in(copy / "orders-0")[1]
    flip_bit(path, 8 * 20)
    assert kinds(logstore.verify(copy)) == ["damaged-batch"]


def test_a_tail_that_is_torn_in_a_closed_store_is_a_problem(partition: Path) -> None:
    """Closing made it durable."""
    path = logs_in(partition)[-1]
    size = path.stat().st_size
    cut(path, size - 3)
    report = logstore.verify(partition.parent)
    assert set(kinds(report)) == {"partial-batch", "lost-bytes"}
    lost = next(p for p in report.problems if p.kind == "lost-bytes")
    assert (lost.position, lost.last_offset) == (size - 3, RECORDS - 1)


def test_bytes_behind_a_closed_log_are_a_problem(partition: Path) -> None:
    """logstore did not write them."""
    path = logs_in(partition)[-1]
    size = path.stat().st_size
    append_garbage(path)
    report = logstore.verify(partition)
    extra = next(p for p in report.problems if p.kind == "extra-bytes")
    assert extra.position == size


def test_batches_behind_the_end_of_a_sealed_segment_are_lost(tmp_path: Path) -> None:
    """Bytes were inserted before them: readers end at the recorded end of the segment,
    `repair` finds them."""
    sealed = two_segments(tmp_path)
    data, last = sealed.read_bytes(), frames(sealed)[-1]
    for added, offsets in ((b"\1" * 40, (8, 9)), (b"", (None, None))):
        sealed.write_bytes(data[: last.pos] + added + data[last.pos :] + b"\1" * 30)
        report = logstore.verify(tmp_path)
        extra = next(p for p in report.problems if p.kind == "extra-bytes")
        assert extra.position == len(data)
        assert (extra.first_offset, extra.last_offset) == offsets
        found = [record.offset for record in read_all(tmp_path, on_corruption="skip")]
        assert found == [*range(8 if added else 10), *range(10, 20)]


def test_batches_that_damage_has_moved_are_kept_by_repair(tmp_path: Path) -> None:
    """A batch is twice in the last segment of a closed store: the next one is past the
    end that the state has."""
    write_store(tmp_path, 6, 2, call=2)
    (log,) = logs_in(tmp_path / "orders-0")
    data, (_, second, third) = log.read_bytes(), frames(log)
    log.write_bytes(data[: third.pos] + data[second.pos :])
    report = logstore.verify(tmp_path)
    assert [(p.kind, p.first_offset) for p in report.problems] == [("offsets", 4)]
    logstore.repair(tmp_path, "skip")
    assert [record.offset for record in read_all(tmp_path)] == list(range(6))


@pytest.mark.parametrize(
    ("policy", "offsets"), [("delete", (8, 9)), ("compact", (18, 19))]
)
def test_offsets_of_the_lost_end_of_a_sealed_segment(
    tmp_path: Path, policy: str, offsets: tuple[int, int]
) -> None:
    """Its state has the last one, also if the log may have gaps."""
    sealed = two_segments(tmp_path, policy)
    cut(sealed, frames(sealed)[-1].pos)
    report = logstore.verify(tmp_path)
    lost = next(p for p in report.problems if p.kind == "lost-bytes")
    assert (lost.first_offset, lost.last_offset) == offsets


def two_segments(store: Path, policy: str = "delete") -> Path:
    """A log of 20 records in two segments, each batch with two; the first one. With
    the policy "compact", record 0 is gone, and they are one segment."""
    with logstore.open(store) as opened:
        orders = new_partition(opened, 2, cleanup_policy=policy)
        for first in range(0, 20, 2):
            keys = [b"%d" % (offset % 19) for offset in (first, first + 1)]
            orders.append_many([b"value"] * 2, keys)
            if first in (8, 18):
                orders.roll()
        if policy == "compact":
            orders.compact(force=True)
    return logs_in(store / "orders-0")[0]


@pytest.mark.parametrize(
    "tail", [b"", b"\0" * 500, b"\1garbage" * 9, b"\xffgarbage" * 9]
)
def test_a_tail_of_another_program_s_log_is_a_note(
    partition: Path, tail: bytes
) -> None:
    """Without any mark of a clean stop, the end may be torn."""
    forget_state(partition)
    path = logs_in(partition)[-1]
    path.write_bytes(path.read_bytes() + tail)
    report = logstore.verify(partition.parent)
    assert report.ok
    assert ("torn-tail" in note_kinds(report)) == bool(tail)
    assert "unclean-stop" in note_kinds(report)


def test_a_tail_that_may_be_of_a_newer_format_is_a_problem(partition: Path) -> None:
    """Opening does not cut it, and takes no appends: if another program wrote last, a
    magic above 2 may be its own."""
    forget_state(partition)
    append_garbage(logs_in(partition)[-1], b"garbage " * 9)
    assert kinds(logstore.verify(partition.parent)) == ["unsupported"]
    with logstore.open(partition.parent) as store:
        labels = [action.label for action in store.recovery_report.actions]
    assert labels == ["unsupported"]


def test_damage_before_sound_batches_is_no_torn_tail(partition: Path) -> None:
    """If the durable point is unknown, the batches after the damage show it."""
    forget_state(partition)
    path = logs_in(partition)[-1]
    flip_bit(path, 8 * (frames(path)[0].pos + 20))
    assert kinds(logstore.verify(partition)) == ["damaged-batch"]


def test_a_log_that_ends_before_kafka_s_recovery_point_is_a_problem(
    partition: Path,
) -> None:
    """Kafka had flushed more."""
    forget_state(partition)
    point = partition.parent / "recovery-point-offset-checkpoint"
    point.write_text(f"0\n1\norders 0 {RECORDS + 7}\n")
    problem = the_problem(logstore.verify(partition.parent))
    assert problem.kind == "lost-bytes"
    assert (problem.first_offset, problem.last_offset) == (RECORDS, RECORDS + 6)
