"""The last batch of a log that a broker has closed: no checksum covers its offset, and
no batch follows, but the recovery point of the clean stop says where the log ended.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.store.opening import open_store
from support.broker import foreign
from support.broker_logs import WAYS as READS
from support.damage import Frame, Unsynced, frames, logs_in, overwrite
from support.transactions import batch
from support.values import config_of, read_all, write_store

FORMATS = [(2, "none"), (2, "gzip"), (1, "none"), (1, "gzip"), (0, "none")]
CALLS, CALL = 9, 3
END = CALLS * CALL  # of the log
LAST = END - CALL  # first offset of the last batch, or of the last call
BROKER: dict[str, Any] = {"release": "3.9", "retention_ms": -1}
POINTS = "recovery-point-offset-checkpoint"


def consumed(partition: logstore.Partition) -> Iterator[int]:
    path = Path(partition.path).parent
    options = {"group": "g", "topics": ["orders"], "reset": "earliest"}
    with logstore.Consumer(path, **options) as consumer:
        while found := consumer.poll(max_records=4, timeout_ms=100):
            yield from (one.offset for records in found.values() for one in records)


WAYS: dict[str, Callable[[logstore.Partition], Iterator[int]]] = {
    **READS,
    "committed": lambda p: (r.offset for r in p.read(isolation="read_committed")),
    "Consumer": consumed,
    "topic": lambda p: (
        record.offset
        for record in logstore.open(Path(p.path).parent, read_only=True)
        .topic("orders")
        .read()
    ),
}


def closed(
    path: Path, magic: int = 2, codec: str = "none", *, is_rolled: bool = False
) -> Path:
    """A broker's store that was closed. Returns the last `.log` file of orders-0, which
    has one call if it `is_rolled`."""
    config = config_of(magic, codec, index_interval_bytes=100)
    with open_store(path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config)[0]
        for number in range(CALLS):
            if is_rolled and number == CALLS - 1:
                partition.roll()
            partition.append_many([b"some value"] * CALL)
    log = logs_in(foreign(path))[-1]
    assert (path / ".kafka_cleanshutdown").exists()
    assert (path / POINTS).read_text() == f"0\n1\norders 0 {END}\n"
    (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    metadata = "version: 0\ntopic_id: 2f1rYkIjTKyCf-0hQMvLDg"
    (log.parent / "partition.metadata").write_text(metadata)
    return log


def move(log: Path, up: int) -> Frame:
    """Alter the offset of the last batch."""
    last = frames(log)[-1]
    overwrite(log, last.pos, struct.pack(">q", last.offset + up))
    return last


def good_end(magic: int, codec: str) -> int:
    """One past the last offset before the last batch."""
    return LAST if magic == 2 or codec != "none" else END - 1


@pytest.fixture(params=FORMATS, ids=str)
def moved(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, int, int]:
    """(a store whose last batch has another offset, the end of the right records, the
    position of the batch)."""
    path = tmp_path / "store"
    log = closed(path, *request.param)
    return path, good_end(*request.param), move(log, 16).pos


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_reading_delivers_a_batch_that_was_not_at_the_end(
    moved: tuple[Path, int, int], way: str
) -> None:
    path, end, _ = moved
    found = []
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == END
        with pytest.raises(logstore.CorruptRecordError) as caught:
            for offset in WAYS[way](partition):
                found.append(offset)
    assert caught.value.offset == end
    assert found == list(range(end))[: len(found)]
    assert found or way == "Consumer"


def test_lookups_of_what_it_hides_are_errors(moved: tuple[Path, int, int]) -> None:
    path, end, _ = moved
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("orders")[0]
        for offset in range(END):
            if offset < end:
                assert partition.get(offset).offset == offset
            else:
                with pytest.raises(logstore.CorruptRecordError):
                    partition.get(offset)
        with pytest.raises(logstore.OffsetOutOfRangeError):
            partition.get(END + 15)


@pytest.mark.parametrize("deep", [False, True])
def test_all_judges_name_the_first_offset_that_is_not_delivered(
    moved: tuple[Path, int, int], deep: bool
) -> None:
    path, end, position = moved
    (problem,) = logstore.verify(path, deep=deep).problems
    assert (problem.kind, problem.position) == ("offsets", position)
    assert (problem.first_offset, problem.last_offset) == (end, END - 1)
    report = logstore.report(path)
    assert [f.kind for f in report.findings if f.level == "critical"] == ["damage"]
    for direction in (False, True):
        judged = logstore.kafka.check_handover(path, from_kafka=direction, **BROKER)
        (found,) = [p for p in judged.problems if problem.message in p.message]
        assert found.values.get("firstOffset", end) == end
    for mode in ("cut", "skip"):
        (action, *_) = logstore.repair(path, mode, dry_run=True).actions
        assert (action.label, action.first_offset) == ("cut", end)


def test_opening_refuses_appends_and_changes_nothing(
    moved: tuple[Path, int, int],
) -> None:
    """The damage is not forgotten when the store is closed, or when it is killed."""
    path, end, position = moved
    log = logs_in(path / "orders-0")[-1]
    data = log.read_bytes()
    for _ in range(2):
        with logstore.open(path) as store:
            (action,) = store.recovery_report.actions
            assert (action.label, action.position) == ("corrupt", position)
            assert action.first_offset == end
            with pytest.raises(logstore.CorruptRecordError) as caught:
                store.topic("orders")[0].append(b"more")
            assert caught.value.offset == end
            shutil.copytree(path, path.with_name("killed"), dirs_exist_ok=True)
        assert log.read_bytes() == data
        for later in (path, path.with_name("killed")):
            (problem,) = logstore.verify(later).problems
            assert problem.first_offset == end


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_takes_the_batch_out(moved: tuple[Path, int, int], mode: str) -> None:
    path, end, position = moved
    moved_batch = logs_in(path / "orders-0")[-1].read_bytes()[position:]
    assert logstore.repair(path, mode).ok
    assert logstore.verify(path, deep=True).ok
    assert [r.offset for r in read_all(path)] == list(range(end))
    kept = [one.read_bytes() for one in path.rglob("*") if one.is_file()]
    assert [data for data in kept if moved_batch in data]
    with logstore.open(path) as store:
        assert store.topic("orders")[0].append(b"more") == (
            end if mode == "cut" else END
        )


@pytest.mark.parametrize("magic", [1, 2])
def test_offset_that_no_index_can_have_is_judged_alike(
    tmp_path: Path, magic: int
) -> None:
    """A reader that accepted such an offset would not know the end of the log."""
    path = tmp_path / "store"
    last = move(closed(path, magic), 1 << 40)
    (problem, *_) = logstore.verify(path).problems
    assert (problem.kind, problem.position) == ("offsets", last.pos)
    assert problem.first_offset == good_end(magic, "none")
    with pytest.raises(logstore.CorruptRecordError) as caught:
        read_all(path)
    assert caught.value.offset == problem.first_offset


def test_only_batch_of_the_last_segment(tmp_path: Path) -> None:
    path = tmp_path / "store"
    log = closed(path, is_rolled=True)
    assert logstore.verify(path).ok
    move(log, 1)
    (problem,) = logstore.verify(path).problems
    assert (problem.path, problem.first_offset) == (str(log), LAST)
    (action, *_) = logstore.repair(path, "cut", dry_run=True).actions
    assert (action.label, action.first_offset) == ("segment-removed", LAST)


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_log_of_logstore_without_its_state_is_judged_alike(
    tmp_path: Path, state: str
) -> None:
    """The recovery point of its clean stop is still there."""
    path = tmp_path / "store"
    log = write_store(path, END, magic=2, call=CALL, index_interval_bytes=100)
    if state == "missing":
        (log / ".logstore-state").unlink()
    else:
        (log / ".logstore-state").write_bytes(b"no state")
    last = move(logs_in(log)[-1], 1)
    problems = logstore.verify(path).problems
    assert ("offsets", LAST) in [(p.kind, p.first_offset) for p in problems]
    with pytest.raises(logstore.CorruptRecordError) as caught:
        read_all(path)
    assert (caught.value.offset, caught.value.position) == (LAST, last.pos)
    with logstore.open(path) as store, pytest.raises(logstore.CorruptRecordError):
        store.topic("orders")[0].append(b"more")


# ------------------------------------------------------ what does not show damage


@pytest.mark.parametrize("why", ["killed", "no point", "point 0"])
def test_without_a_known_end_nothing_is_judged(tmp_path: Path, why: str) -> None:
    """A broker that runs, or was killed, has appended since its recovery point."""
    path = tmp_path / "store"
    move(closed(path), 1)
    if why == "killed":
        (path / ".kafka_cleanshutdown").unlink()
    elif why == "no point":
        (path / POINTS).write_text("0\n0\n")
    else:
        (path / POINTS).write_text("0\n1\norders 0 0\n")
    assert logstore.verify(path).ok
    assert [r.offset for r in read_all(path)][-CALL:] == [LAST + 1, LAST + 2, END]


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("gap", [0, 5])
def test_log_that_goes_on_after_its_closed_end_is_not_cut(
    tmp_path: Path, batches: int, gap: int
) -> None:
    """The recovery point may be of an earlier stop: the log before it is complete, so
    nothing shows that the rest is damage."""
    path = tmp_path / "store"
    log = closed(path)
    rows = [(b"k", b"v")] * CALL
    begins = [END + gap + CALL * number for number in range(batches)]
    with log.open("ab") as file:
        for begin in begins:
            file.write(batch(begin, rows, 0, control=False))
    assert logstore.verify(path, deep=True).ok
    assert [r.offset for r in read_all(path)][END:] == [
        offset for begin in begins for offset in range(begin, begin + CALL)
    ]
    end = begins[-1] + CALL
    with logstore.open(path) as store:
        assert not store.recovery_report.actions
        assert store.topic("orders")[0].append(b"more") == end


def test_batch_that_did_not_fit_before_the_closed_end_is_no_damage(
    tmp_path: Path,
) -> None:
    """The recovery point is inside of the batch: it has more records than free offsets
    before the point."""
    path = tmp_path / "store"
    closed(path)
    (path / POINTS).write_text(f"0\n1\norders 0 {END - 1}\n")
    assert logstore.verify(path, deep=True).ok
    assert [r.offset for r in read_all(path)] == list(range(END))


def test_several_batches_beyond_the_closed_end_are_no_moved_batch(
    tmp_path: Path,
) -> None:
    """No single batch filled the gap before them, which is like one of compaction."""
    path = tmp_path / "store"
    log = closed(path)
    move(log, 16)
    with log.open("ab") as file:
        file.write(batch(END + 16, [(b"k", b"v")], 0, control=False))
    assert logstore.verify(path, deep=True).ok
    assert read_all(path)[-1].offset == END + 16


def test_log_that_ends_before_its_closed_end_has_lost_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    log = closed(path)
    log.write_bytes(log.read_bytes()[: frames(log)[-1].pos])
    problems = logstore.verify(path).problems
    assert ("lost-bytes", LAST) in [(p.kind, p.first_offset) for p in problems]
