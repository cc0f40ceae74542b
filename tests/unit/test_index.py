"""Indexes: their entries, and that no wrong entry misleads a reader."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from logstore.errors import UnsupportedError
from logstore.index import TxnEntry, before_offset, format_txn_index
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import FaultyFiles, crash, frames, frames_in, logs_in, overwrite
from support.values import (
    FORMATS,
    append_one,
    append_records,
    every_format,
    expected,
    fill,
    new_partition,
    timestamp_of,
    write_store,
)


class Batch(NamedTuple):
    pos: int
    size: int
    last_offset: int
    max_timestamp: int


def batches_of(log: Path, magic: int) -> list[Batch]:
    """The batches of a log in the form that the rules for index entries need."""
    data = log.read_bytes()
    found = []
    for frame in frames_in(data):
        body = data[frame.pos :]
        if magic == 2:
            last = frame.offset + int.from_bytes(body[23:27], "big")
            stamp = int.from_bytes(body[35:43], "big", signed=True)
        else:
            last = frame.offset
            stamp = (
                -1 if magic == 0 else int.from_bytes(body[18:26], "big", signed=True)
            )
        found.append(Batch(frame.pos, frame.size, last, stamp))
    return found


def rule_b(
    batches: list[Batch], base: int, interval: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Kafka's rule since 4.1, batch by batch, with the closing time entry."""
    index: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    since, largest, at = 0, -1, -1

    def add_time() -> None:
        if largest > (times[-1][0] if times else -1):
            times.append((largest, at - base))

    for batch in batches:
        if batch.max_timestamp > largest:
            largest, at = batch.max_timestamp, batch.last_offset
        if since > interval:
            index.append((batch.last_offset - base, batch.pos))
            add_time()
            since = 0
        since += batch.size
    add_time()
    return index, times


def entries(path: Path) -> list[tuple[int, int]]:
    """Entries of an index file on disk."""
    layout = struct.Struct(">qi" if path.suffix == ".timeindex" else ">ii")
    return list(layout.iter_unpack(path.read_bytes()))


@every_format
@pytest.mark.parametrize("interval", [0, 150, 400])
@pytest.mark.parametrize("call", [1, 13])
def test_entries_follow_rule_b(
    tmp_path: Path, magic: int, codec: str, interval: int, call: int
) -> None:
    """Both index files of each segment hold exactly the entries of the rule, trimmed at
    the roll and at the close."""
    directory = write_store(
        tmp_path, 90, magic, codec, call=call, segment_bytes=1500,
        index_interval_bytes=interval, max_message_bytes=700,
    )  # fmt: skip
    for log in logs_in(directory):
        index, times = rule_b(batches_of(log, magic), int(log.stem), interval)
        assert entries(log.with_suffix(".index")) == index
        assert entries(log.with_suffix(".timeindex")) == times


def test_entries_of_the_reference_example(tmp_path: Path) -> None:
    """89-byte batches, interval 150: entries (2, 178), (4, 356), (6, 534)."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, index_interval_bytes=150)
        for offset in range(8):
            partition.append(bytes(89 - 34), timestamp_ms=1000 + 10 * offset)
    log = logs_in(tmp_path / "orders-0")[0]
    assert entries(log.with_suffix(".index")) == [(2, 178), (4, 356), (6, 534)]
    assert entries(log.with_suffix(".timeindex")) == [
        (1020, 2), (1040, 4), (1060, 6), (1070, 7),
    ]  # fmt: skip


def test_time_index_holds_only_rising_maxima(tmp_path: Path) -> None:
    """Older records after newer ones add no entry."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, index_interval_bytes=0)
        for stamp in (100, 50, 200, 150, 200, 300, 10):
            partition.append(b"v", timestamp_ms=stamp)
    log = logs_in(tmp_path / "orders-0")[0]
    assert entries(log.with_suffix(".timeindex")) == [(100, 0), (200, 2), (300, 5)]
    assert [o for o, _ in entries(log.with_suffix(".index"))] == [1, 2, 3, 4, 5, 6]


def test_magic_0_has_no_time_entries(tmp_path: Path) -> None:
    """Without timestamps there are no times to index."""
    directory = write_store(tmp_path, 50, 0, index_interval_bytes=0)
    assert logs_in(directory)[0].with_suffix(".timeindex").read_bytes() == b""


def test_entries_are_the_same_after_a_clean_reopening(tmp_path: Path) -> None:
    """Reopening and appending continues after the existing entries."""
    directory = write_store(tmp_path, 30, index_interval_bytes=100)
    log = logs_in(directory)[0]
    before = entries(log.with_suffix(".index"))
    with logstore.open(tmp_path) as store:
        fill(store.topic("orders")[0], 30, call=1)
    after = entries(log.with_suffix(".index"))
    assert after[: len(before)] == before
    assert len(after) > len(before)
    batches = {(b.last_offset, b.pos) for b in batches_of(log, 1)}
    assert set(after) <= batches
    assert after == sorted(after)


def test_index_file_never_points_past_what_is_synced(tmp_path: Path) -> None:
    """An entry reaches its file when its log bytes are durable, not before."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, index_interval_bytes=0)
        index = tmp_path / "orders-0" / f"{0:020d}.index"
        for _ in range(6):
            fill(partition, 5, call=1)
            synced = partition.durable_offset
            if index.exists():
                assert all(offset < max(synced, 1) for offset, _ in entries(index))
            partition.flush()


# ---------------------------------------------------------------- lookups

INTERVAL = 120


def _store(path: Path, magic: int, codec: str, seed: int = 0) -> Path:
    return write_store(
        path, 60, magic, codec, seed=seed, call=3, segment_bytes=1200,
        index_interval_bytes=INTERVAL,
    )  # fmt: skip


def _wrong_contents(sound: bytes, width: int, rng: random.Random) -> dict[str, bytes]:
    parts = [sound[i : i + width] for i in range(0, len(sound), width)]
    moved = []
    for part in parts:
        if width == 8:
            offset, pos = struct.unpack(">ii", part)
            moved.append(struct.pack(">ii", offset, pos + 1))
        else:
            stamp, offset = struct.unpack(">qi", part)
            moved.append(struct.pack(">qi", stamp - 100, offset))
    return {
        "gone": b"",
        "zeros": bytes(len(sound)),
        "garbage": rng.randbytes(len(sound)),
        "odd size": sound + b"\x01\x02\x03",
        "zero tail": sound + bytes(10 * width),
        "reversed": b"".join(reversed(parts)),
        "repeated": sound + sound,
        "half": sound[: len(parts) // 2 * width],
        "positions moved": b"".join(moved),
        "next slot's": b"".join(
            a[: width - 4] + b[width - 4 :]
            for a, b in zip(parts, parts[1:] + parts[:1], strict=True)
        ),
        "far": struct.pack(">ii", 1, (1 << 31) - 1)
        if width == 8
        else struct.pack(">qi", 1, (1 << 31) - 1),
    }


WRONG = (
    "gone", "zeros", "garbage", "odd size", "zero tail", "reversed", "repeated", "half",
    "positions moved", "next slot's", "far", "foreign", "missing",
)  # fmt: skip


def _spoil(directory: Path, suffix: str, how: str, foreign: Path) -> None:
    width = 8 if suffix == ".index" else 12
    rng = random.Random(how)
    for log in logs_in(directory):
        index = log.with_suffix(suffix)
        if how == "missing":
            index.unlink()
        elif how == "foreign":
            others = [p.with_suffix(suffix).read_bytes() for p in logs_in(foreign)]
            index.write_bytes(max(others, key=len))
        else:
            index.write_bytes(_wrong_contents(index.read_bytes(), width, rng)[how])


@pytest.mark.sampled(25)
@pytest.mark.parametrize(("magic", "codec"), [(1, "none"), (1, "gzip"), (2, "lz4")])
@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("writable", [False, True], ids=["reader", "writer"])
def test_wrong_offset_index_never_skips_or_repeats_a_record(
    tmp_path: Path, magic: int, codec: str, how: str, writable: bool
) -> None:
    """Reading begins at exactly the requested offset, whatever the offset index."""
    directory = _store(tmp_path / "data", magic, codec)
    _spoil(directory, ".index", how, _store(tmp_path / "other", magic, codec, seed=9))
    with logstore.open(tmp_path / "data", read_only=not writable) as store:
        partition = store.topic("orders")[0]
        records = expected(magic, 0, 60)
        for start in range(61):
            assert list(partition.read(start)) == records[start:]
        if writable:
            append_records(partition, 20)
            records = expected(magic, 0, 80)
            for start in range(55, 80):
                assert list(partition.read(start)) == records[start:]


@pytest.mark.parametrize(("magic", "codec"), [(1, "none"), (1, "gzip"), (2, "lz4")])
@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("writable", [False, True], ids=["reader", "writer"])
def test_wrong_time_index_never_misses_a_record(
    tmp_path: Path, magic: int, codec: str, how: str, writable: bool
) -> None:
    """Lookups find the first offset at or after a time, whatever the time index."""
    directory = _store(tmp_path / "data", magic, codec)
    _spoil(directory, ".timeindex", how, _store(tmp_path / "other", magic, codec, 9))
    records = expected(magic, 0, 60)
    with logstore.open(tmp_path / "data", read_only=not writable) as store:
        partition = store.topic("orders")[0]
        for offset in range(60):
            for stamp in (timestamp_of(offset), timestamp_of(offset) + 1):
                want = next(
                    (r.offset for r in records if r.timestamp_ms >= stamp), None
                )
                assert partition.offset_for_time(stamp) == want


def test_entry_that_points_into_a_value_is_not_believed(tmp_path: Path) -> None:
    """A value may hold the bytes of a valid batch; an index that points there misleads
    no reader."""
    inner = logs_in(write_store(tmp_path / "inner", 1, 1))[0].read_bytes()
    with logstore.open(tmp_path / "data") as store:
        partition = new_partition(store)
        partition.append_many([b"a", inner * 3, b"c"], timestamps_ms=[1, 2, 3])
        size = partition.segments[0].size_bytes
    log = logs_in(tmp_path / "data" / "orders-0")[0]
    at = log.read_bytes().index(inner)
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 1, at))
    assert at < size
    with logstore.open(tmp_path / "data", read_only=True) as store:
        partition = store.topic("orders")[0]
        for start in range(3):
            want = [b"a", inner * 3, b"c"][start:]
            assert [r.value for r in partition.read(start)] == want


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_missing_index_of_a_sealed_segment_is_built_at_opening(
    tmp_path: Path, magic: int
) -> None:
    """The report says so, and the entries are restored."""
    directory = write_store(
        tmp_path, 90, magic, call=1, segment_bytes=1500, index_interval_bytes=150
    )
    log = logs_in(directory)[0]
    sound = {s: log.with_suffix(s).read_bytes() for s in (".index", ".timeindex")}
    for suffix in sound:
        log.with_suffix(suffix).unlink()
    with logstore.open(tmp_path) as store:
        assert [a.label for a in store.recovery_report.actions] == ["index-rebuilt"]
        assert store.recovery_report.actions[0].path == str(log.with_suffix(".index"))
        append_one(store.topic("orders")[0])
    assert {s: log.with_suffix(s).read_bytes() for s in sound} == sound
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report


@pytest.mark.parametrize(
    ("magic", "codec"), FORMATS, ids=[f"magic{m}-{c}" for m, c in FORMATS]
)
def test_index_after_a_crash_is_that_of_an_unbroken_run(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Recovery indexes the tail by the same rule."""
    with logstore.open(tmp_path / "live") as store:
        partition = new_partition(store, magic, codec, index_interval_bytes=150)
        fill(partition, 40, call=2)
        crash(tmp_path / "live", tmp_path / "killed")
    logstore.open(tmp_path / "killed").close()
    for suffix in (".index", ".timeindex"):
        name = f"orders-0/{0:020d}{suffix}"
        killed = (tmp_path / "killed" / name).read_bytes()
        assert killed == (tmp_path / "live" / name).read_bytes()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_garbage_that_a_power_cut_leaves_in_an_index_is_not_taken_over(
    tmp_path: Path, suffix: str
) -> None:
    """Index files are not synced with the log: entries that happen to be in order, and
    inside the file, count only if the log confirms them."""
    config = logstore.StoreConfig(flush_checkpoint_ms=0)
    with logstore.open(tmp_path / "live", config=config) as store:
        partition = new_partition(store, index_interval_bytes=100)
        fill(partition, 20, call=1)
        partition.flush()
        crash(tmp_path / "live", tmp_path / "killed")
    index = logs_in(tmp_path / "killed" / "orders-0")[0].with_suffix(suffix)
    count = index.stat().st_size // (8 if suffix == ".index" else 12)
    assert count > 3
    entry = ">ii" if suffix == ".index" else ">qi"
    index.write_bytes(
        b"".join(struct.pack(entry, 1000 + i, 1 + i) for i in range(count))
    )
    with logstore.open(tmp_path / "killed") as store:
        fill(store.topic("orders")[0], 20, call=1)
    assert logstore.verify(tmp_path / "killed").ok
    with logstore.open(tmp_path / "killed") as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read(15)) == expected(1, 15, 40)


@pytest.mark.parametrize("interval", [100, 1 << 20], ids=["entries", "no-entries"])
@pytest.mark.parametrize("suffixes", [(".index", ".timeindex"), (".timeindex",)])
@pytest.mark.parametrize("writer", ["logstore", "kafka"])
def test_index_files_that_are_gone_are_written_by_the_next_opening(
    tmp_path: Path, writer: str, suffixes: tuple[str, ...], interval: int
) -> None:
    """It writes the files of all segments, including the last one, with their old
    contents: other programs need them, and the opening after that has nothing to
    build."""
    partition = write_store(
        tmp_path / "store", 60, 2, segment_bytes=700, index_interval_bytes=interval
    )
    store = partition.parent
    if writer == "kafka":
        (store / ".logstore-owner").unlink()
        (partition / ".logstore-state").unlink()
    before = {path.name: path.read_bytes() for path in partition.glob("*index")}
    assert len(before) == 2 * len(logs_in(partition)) > 4
    for path in partition.glob("*index"):
        if path.suffix in suffixes:
            path.unlink()
    if writer == "logstore":
        report = logstore.verify(store)
        assert report.ok
    with logstore.open(store, read_only=True) as opened:
        assert list(opened.topic("orders")[0].read()) == expected(2, 0, 60)
    with logstore.open(store) as opened:
        labels = [action.label for action in opened.recovery_report.actions]
        assert labels == [] or set(labels) == {"index-rebuilt"}
        opened.topic("orders")[0]
        assert opened.recovery_report
    after = {path.name: path.read_bytes() for path in partition.glob("*index")}
    assert after == before
    with logstore.open(store) as opened:
        assert list(opened.topic("orders")[0].read()) == expected(2, 0, 60)
        assert not opened.recovery_report
    assert logstore.verify(store, deep=True).problems == ()


@pytest.mark.parametrize("state", ["sealed", "closed"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writing", "read-only"])
def test_time_index_entry_that_is_true_of_its_batch_misleads_nobody(
    tmp_path: Path, state: str, read_only: bool
) -> None:
    """An entry can match its batch and not be the largest timestamp up to there: only
    the digest of the index in the state file shows it."""
    # Offsets 1 and 3 have the same timestamp; the largest up to 3 is that of offset 2.
    times = [10, 20, 90, 20, 95, 99]
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(index_interval_bytes=0)
        partition = store.create_topic("orders", config=config)[0]
        for timestamp in times:
            partition.append(b"v", timestamp_ms=timestamp)
        if state == "sealed":
            partition.roll()
    name = tmp_path / "orders-0" / "00000000000000000000.timeindex"
    entries = list(struct.iter_unpack(">qi", name.read_bytes()))
    assert entries == [(20, 1), (90, 2), (95, 4), (99, 5)]
    # Offsets 0 to 3 seem to have nothing later than 20.
    wrong = [(20, 3), (95, 4), (99, 5)]
    name.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in wrong))
    with logstore.open(tmp_path, read_only=read_only) as store:
        partition = store.topic("orders")[0]
        assert partition.offset_for_time(50) == 2
        if state == "closed" and not read_only:
            labels = [action.label for action in store.recovery_report.actions]
            assert labels == ["index-rebuilt"]
            assert list(struct.iter_unpack(">qi", name.read_bytes())) == entries
    if state == "sealed":
        logstore.rebuild_index(tmp_path / "orders-0")
        assert list(struct.iter_unpack(">qi", name.read_bytes())) == entries


def test_indexes_that_could_not_be_finished_are_built_at_the_next_opening(
    tmp_path: Path,
) -> None:
    """A roll continues without them and logs that; they do not count until then."""
    files = FaultyFiles()
    with open_store(tmp_path / "live", _files=files) as store:
        partition = new_partition(store)
        fill(partition, 30)
        files.fail("sync", name=".timeindex")
        partition.roll()
        files.heal()
        fill(partition, 3)
        path = crash(tmp_path / "live", tmp_path / "killed")
    report = logstore.verify(path)
    assert report.ok
    assert "missing-index" in {note.kind for note in report.notes}
    with logstore.open(path) as store:
        labels = [action.label for action in store.recovery_report.actions]
        assert labels == ["index-rebuilt"]
        partition = store.topic("orders")[0]
        for offset in range(0, 33, 3):
            assert partition.offset_for_time(timestamp_of(offset)) is not None
    assert logstore.verify(path).notes == ()
    with logstore.open(path) as store:
        assert not store.recovery_report


@pytest.mark.parametrize(
    ("entries", "confirmed"),
    [
        ([(20, 1), (90, 2), (95, 4), (99, 5)], 4),
        # The batch at 3 has this timestamp, and an earlier one a larger one.
        ([(20, 3), (95, 4), (99, 5)], 0),
        ([(20, 1), (95, 4), (99, 5)], 3),
        ([(20, 1), (90, 2), (96, 4), (99, 5)], 2),
        ([(20, 1), (90, 2), (95, 4), (99, 5), (100, 6)], 4),
    ],
)
def test_time_index_of_a_broker_counts_as_far_as_the_batches_confirm_it(
    tmp_path: Path, entries: list[tuple[int, int]], confirmed: int
) -> None:
    """No digest identifies the file: one walk over the headers checks it. A missing
    entry is no fault, since the next one is still true."""
    times = [10, 20, 90, 20, 95, 99]
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2, index_interval_bytes=0)
        partition = store.create_topic("orders", config=config)[0]
        for timestamp in times:
            partition.append(b"v", timestamp_ms=timestamp)
        partition.roll()
    foreign(tmp_path)
    name = tmp_path / "orders-0" / "00000000000000000000.timeindex"
    name.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        assert [partition.offset_for_time(t) for t in (5, 15, 50, 92, 97, 100)] == [
            0,
            1,
            2,
            4,
            5,
            None,
        ]
        log: Any = partition._log
        assert log.segments[0].time_entries().count == confirmed


def test_damage_behind_a_time_index_of_a_broker_leaves_what_was_confirmed(
    tmp_path: Path,
) -> None:
    """The walk over the headers ends at damage, and a lookup that meets it raises."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2, index_interval_bytes=0)
        partition = store.create_topic("orders", config=config)[0]
        for timestamp in (10, 20, 30, 40):
            partition.append(b"v", timestamp_ms=timestamp)
        partition.roll()
        partition.append(b"v", timestamp_ms=50)
    foreign(tmp_path)
    log = logs_in(tmp_path / "orders-0")[0]
    overwrite(log, frames(log)[2].pos + 16, b"\x09")
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        with pytest.raises(UnsupportedError):
            partition.offset_for_time(35)
        log: Any = partition._log
        # The entry of offset 1; the first batch of a segment has no entry.
        assert log.segments[0].time_entries().count == 1


@pytest.mark.parametrize(("end", "count"), [(0, 0), (10, 0), (11, 1), (20, 1), (99, 2)])
def test_transaction_index_before_an_offset_lacks_the_later_markers(
    end: int, count: int
) -> None:
    """Only the last entries are left out: damage stays visible to a reader."""
    entries = [TxnEntry(0, 7, 0, 10, 11), TxnEntry(0, 7, 15, 20, 21)]
    data = format_txn_index(entries)
    assert before_offset(data, end) == format_txn_index(entries[:count])
    for bad in (b"\xff" * len(data), data[:-1]):
        assert before_offset(bad, 15) in (bad, b"")
    assert before_offset(data[:-1], end) == data[:-1]
