"""Looks at a log whose writer begins segments: their cost and results."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import logstore
from logstore.index import UNKNOWN_DIGEST
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import PARTITION_STATE
from logstore.log.follow.followed import FollowedLog
from logstore.log.follow.loading import Loader
from logstore.log.follow.rolls import segments_of
from logstore.log.read.view import Segments
from logstore.segment import Segment
from logstore.store.opening import open_store
from support.compacting import ABORT, TIME_MS, Item, batch2, marker
from support.damage import Unsynced, logs_in
from support.levels import IS_ALL
from support.values import (
    append_records,
    every_magic,
    expected,
    fill,
    new_partition,
)

SETTLED_S = 0.03


class Counted:
    """A reader of a log that another store writes.

    Attributes:
        looks: what it did: "names" for a look at every name and the whole state,
            "load" for loading the log again.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[str] = []
        self._count(FollowedLog, "_grow_by_names", "names", monkeypatch)
        self._count(Loader, "load", "load", monkeypatch)
        self.store = open_store(path, read_only=True)
        self.partition: Any = self.store.topic("orders")[0]
        # Each look is a whole one until a change alters the time of the directory.
        time.sleep(SETTLED_S)
        _ = self.partition.end_offset
        self.looks.clear()

    def _count(
        self, of: type, name: str, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        function = getattr(of, name)

        def counted(*args: Any) -> Any:
            self.looks.append(what)
            return function(*args)

        monkeypatch.setattr(of, name, counted)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def writer(path: Path) -> Iterator[logstore.Store]:
    with open_store(path, _files=Unsynced()) as store:
        yield store


def rolling(writer: logstore.Store, magic: int = 1) -> Any:
    """A partition whose segments have few records each. It has rolled: the first state
    that a store writes is a whole one."""
    partition = new_partition(writer, magic, segment_bytes=500, index_interval_bytes=1)
    fill(partition, 30, call=1)
    return partition


def sides(partition: Any) -> list[object]:
    """Observable state of a log, without facts that a reader cannot know."""
    bounds = partition.start_offset, partition.end_offset
    segments = [(s.base_offset, s.size_bytes) for s in partition.segments]
    return [bounds, list(partition.read()), segments]


# ---------------------------------------------------------------- what it costs


@every_magic
def test_rolls_are_found_without_the_names(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch, magic: int
) -> None:
    """One roll or many between two looks: the directory is not listed, and the state is
    not read whole. The records, segments and lookups equal the ones of a reader that
    opens now."""
    p = rolling(writer, magic)
    reader = Counted(path, monkeypatch)
    fill(p, 1)
    q, end = reader.partition, p.end_offset
    assert q.end_offset == end  # the first look that finds more takes two
    reader.looks.clear()
    for count in (1, 4, 40, 1, 7, 300):
        before = len(p.segments)
        fill(p, count, call=1)
        end += count
        assert q.end_offset == end
        assert reader.looks == []
        assert len(p.segments) > before or count < 10
    assert sides(q) == sides(p)
    assert list(q.read(end - 20)) == expected(magic, end - 20, end)
    time_ms = expected(magic, end - 9, end)[0].timestamp_ms
    assert q.offset_for_time(time_ms) == p.offset_for_time(time_ms)


def test_durable_offset_and_digests_come_with_the_entries(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests of sealed segments are in the state: a time lookup uses them."""
    p = rolling(writer)
    reader = Counted(path, monkeypatch)
    fill(p, 60, call=1)
    q = reader.partition
    assert q.durable_offset == p.durable_offset > 60
    assert reader.looks == []
    fresh = Counted(path, monkeypatch).partition
    found, wanted = (
        [segment.time_digest for segment in one._log.segments] for one in (q, fresh)
    )
    assert found == wanted
    assert any(digest != UNKNOWN_DIGEST for digest in found[5:])


# ---------------------------------------------------------------- what needs the names


def test_state_that_was_written_whole_needs_the_names(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion at the front, together with rolls."""
    p = rolling(writer)
    reader = Counted(path, monkeypatch)
    fill(p, 20, call=1)
    p.delete_before(15)
    fill(p, 20, call=1)
    q = reader.partition
    assert (q.start_offset, q.end_offset) == (p.start_offset, p.end_offset) != (0, 70)
    assert "names" in reader.looks
    assert sides(q) == sides(p)


def test_cut_beside_rolls_is_seen(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was cut and has grown again, with the same number of segments."""
    p = rolling(writer)
    reader = Counted(path, monkeypatch)
    fill(p, 20, call=1)
    p.truncate_to(25)
    p.append_many([b"another %d" % i for i in range(40)])
    assert sides(reader.partition) == sides(p)
    assert "load" in reader.looks


@pytest.mark.parametrize("spoil", ["torn", "flipped", "grown", "unknown"])
def test_entry_that_cannot_be_used_is_not_used(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    """The view equals that of a reader that opens now."""
    p = rolling(writer)
    reader = Counted(path, monkeypatch)
    state = path / "orders-0" / PARTITION_STATE
    before = state.read_bytes()
    fill(p, 20, call=1)
    data = bytearray(state.read_bytes())
    assert data[: len(before)] == before
    if spoil == "torn":
        del data[-5:]
    elif spoil == "flipped":
        data[-20] ^= 4
    elif spoil == "grown":
        data += b"xxh64 0123456789abcdef\n{}\n"
    else:
        # Entries of a log with missing segments.
        last = logs_in(path / "orders-0")[-1]
        last.rename(last.with_suffix(".away"))
    state.write_bytes(data)
    found: list[object] = []
    for one in (reader, Counted(path, monkeypatch)):
        try:
            # A segment without a file is listed only if the log is loaded so.
            found.append(sides(one.partition)[:2])
        except logstore.LogStoreError as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert reader.looks != []


def test_new_segment_without_an_entry_is_found(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer makes the file first; between that and the entry a reader may look."""
    p = rolling(writer)
    reader = Counted(path, monkeypatch)
    state = path / "orders-0" / PARTITION_STATE
    before, info = state.read_bytes(), state.stat()
    assert reader.partition.end_offset == 30
    fill(p, 30, call=1)
    after = state.read_bytes()
    state.write_bytes(before)
    assert state.stat().st_ino == info.st_ino
    assert reader.partition.end_offset == 60
    state.write_bytes(after)
    assert sides(reader.partition) == sides(p)


def test_first_transaction_is_seen_by_a_reader_that_was_there_before(
    path: Path, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has the first offset that may belong to one; the durable offset of a
    later one is above the open transaction."""
    p = rolling(writer, 2)
    reader = Counted(path, monkeypatch)
    q: Any = reader.partition
    end = p.end_offset

    def committed() -> list[int]:
        return [r.offset for r in q.read(end, isolation="read_committed")]

    assert committed() == []
    item = Item(end, b"k", b"v", TIME_MS)
    batch = batch2([item], producer=(2, 0, 0), attributes=0x10)
    p.append_batches(batch.data, transactions=True)
    p.flush()
    _ = q.end_offset
    p.roll()
    p.append(b"after", durable=True)
    assert q.durable_offset == p.durable_offset == end + 2
    assert committed() == []
    assert q.last_stable_offset() == p.last_stable_offset() == end
    abort = marker(end + 2, 2, 0, ABORT)
    p.append_batches(abort.data, transactions=True)
    p.append(b"last")
    assert committed() == [end + 1, end + 3]


# ---------------------------------------------------------------- histories


@pytest.mark.parametrize("seed", range(100 if IS_ALL else 8))
def test_random_histories_give_what_a_new_reader_sees(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Appends, rolls, deletions, cuts, flushes and new writers, with looks between."""
    rng = random.Random(seed)
    writer = open_store(path, _files=Unsynced())
    p = new_partition(writer, 1 + seed % 2, segment_bytes=400, index_interval_bytes=1)
    append_records(p, 5)
    reader = Counted(path, monkeypatch)
    for _ in range(60):
        step = rng.random()
        if step < 0.6:
            values = [b"%d" % rng.getrandbits(60) for _ in range(rng.randrange(1, 30))]
            p.append_many(values)
        elif step < 0.7:
            p.delete_before(rng.randint(p.start_offset, p.end_offset))
        elif step < 0.8:
            with contextlib.suppress(
                logstore.errors.UnsupportedError
            ):  # inside of a batch
                p.truncate_to(rng.randint(p.start_offset, p.end_offset))
        elif step < 0.9:
            p.flush()
        else:
            writer.close()
            writer = open_store(path, _files=Unsynced())
            p = writer.topic("orders")[0]
        if rng.random() < 0.5:
            assert sides(reader.partition) == sides(p)
    assert sides(reader.partition) == sides(p)
    writer.close()


@pytest.mark.parametrize(
    ("first", "kept"), [(0, 3), (10, 2), (15, 1), (20, 1), (30, 1)]
)
@pytest.mark.parametrize("is_active", [False, True])
def test_segments_in_front_that_the_state_does_not_have_are_left_out(
    tmp_path: Path, first: int, kept: int, is_active: bool
) -> None:
    """Its first one is sealed, or the active one. The last one stays in any case."""
    files = Unsynced()
    directory, descriptors = Directory(files, str(tmp_path)), Descriptors(files, 1)
    segments = [
        Segment(directory, descriptors, base, 0, base + 10) for base in (0, 10, 20)
    ]
    base = {"base_offset": first if is_active else 99}
    rows = [] if is_active else [(first, 0, 0, 0, 0, 0)]
    state = cast(Any, SimpleNamespace(sealed=rows, active=base))
    given = Segments(segments)
    assert segments_of(state, given) == tuple(segments[3 - kept :])
