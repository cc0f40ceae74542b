"""Damage, and reading after it: the content of an error, and the influence of the index
(none)."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.damage import logs_in
from support.values import config_of

FORMATS = ((0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "zstd"))
INDEXES = ("right", "missing", "empty", "zeros", "lies")
END = 150


def by_fetch(partition: Any, start: int) -> Iterator[int]:
    while start < partition.end_offset:
        chunk = partition.fetch(start, 400)
        yield from (record.offset for record in chunk)
        start = chunk.next_offset


def by_arrow(partition: Any, start: int) -> Iterator[int]:
    for batch in partition.read_arrow(start):
        yield from batch["offset"].to_pylist()


WAYS: dict[str, Callable[[Any, int], Iterator[int]]] = {
    "read": lambda p, start: (r.offset for r in p.read(start)),
    "batches": lambda p, start: (
        r.offset for b in p.read_batches(start) for r in b if r.offset >= start
    ),
    "arrow": by_arrow,
    "fetch": by_fetch,
    "follow": lambda p, start: (r.offset for r in p.follow(start, timeout=0)),
    "committed": lambda p, start: (
        r.offset for r in p.read(start, isolation="read_committed")
    ),
    "get": lambda p, start: (p.get(offset).offset for offset in range(start, END)),
}


@pytest.fixture(scope="module", params=FORMATS)
def whole(request: Any, tmp_path_factory: Any) -> tuple[Path, list[Any]]:
    """A store with batches of five records in some segments; and its batches."""
    magic, codec = request.param
    path = tmp_path_factory.mktemp("whole")
    config = config_of(magic, codec, segment_bytes=1500, index_interval_bytes=100)
    with logstore.open(path) as store:
        partition = store.create_topic("orders", config=config)[0]
        for first in range(0, END, 5):
            span = range(first, first + 5)
            partition.append_many(
                [b"v%d" % n * 8 for n in span], timestamps_ms=[1000 + n for n in span]
            )
        batches = [
            (b.base_offset, b.next_offset, b.position, b.size_bytes)
            for b in partition.read_batches()
        ]
    return path, batches


def damage(path: Path, batch: Any, how: str, index: str, rng: random.Random) -> None:
    first, _, pos, size = batch
    log = [f for f in logs_in(path) if int(f.stem) <= first][-1]
    data = bytearray(log.read_bytes())
    if how == "cut":
        del data[pos + rng.randrange(size) :]
    elif how == "zeros":
        data[pos : pos + size] = bytes(size)
    else:
        # Not the magic: an unknown format is no damage.
        at = rng.choice([n for n in range(size) if n != 16])
        data[pos + at] ^= 1 << rng.randrange(8)
    log.write_bytes(data)
    file = log.with_suffix(".index")
    if index == "missing":
        file.unlink()
    elif index == "empty":
        file.write_bytes(b"")
    elif index == "zeros":
        file.write_bytes(bytes(file.stat().st_size))
    elif index == "lies":
        entries = [struct.pack(">ii", 3 * n + 1, 37 * n) for n in range(20)]
        file.write_bytes(b"".join(entries))


def until_damage(
    found: Iterator[int], start: int
) -> tuple[int, logstore.CorruptRecordError | None]:
    """Return (one past the last delivered offset, the error after it)."""
    offset = start
    try:
        for got in found:
            assert got == offset, "a gap"
            offset += 1
    except logstore.CorruptRecordError as error:
        return offset, error
    return offset, None


@pytest.mark.sampled(30)
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("way", WAYS)
def test_error_says_where_reading_goes_on_and_it_does(
    tmp_path: Path, whole: tuple[Path, list[Any]], way: str, index: str
) -> None:
    """The error comes after every record before the damage, whatever the index
    holds."""
    path, batches = whole
    rng = random.Random(f"{way} {index}")
    for how in ("flip", "flip", "flip", "zeros", "cut"):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        shutil.copytree(path, tmp_path / "s")
        batch = rng.choice(batches)
        damage(tmp_path / "s" / "orders-0", batch, how, index, rng)
        with logstore.open(tmp_path / "s", read_only=rng.random() < 0.5) as store:
            partition = store["orders"][0]
            if partition.end_offset != END:
                # The end of the last segment is gone; or the offset of a wrapper, which
                # is under no checksum, is taken for it.
                continue
            offset, error = until_damage(WAYS[way](partition, 0), 0)
            if error is None:
                assert offset == END  # a bit without a meaning
                continue
            assert error.offset == offset
            behind = error.next_offset
            assert behind is not None
            assert offset < behind <= END
            if how != "cut":
                assert (offset, behind) == (batch[0], batch[1])
            assert f"reading can continue at offset {behind}" in str(error)
            where = f"Records {offset} to {behind - 1} "
            assert where in str(error) or f"Record {offset} " in str(error)
            for start in {behind, min(behind + 1, END), rng.randint(behind, END), END}:
                reached = until_damage(WAYS[way](partition, start), start)
                assert reached == (END, None), (how, batch, start)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_skipping_goes_on_from_any_start(
    tmp_path: Path, whole: tuple[Path, list[Any]], isolation: str
) -> None:
    path, batches = whole
    rng = random.Random(7)
    batch = batches[len(batches) // 3]
    shutil.copytree(path, tmp_path / "s")
    damage(tmp_path / "s" / "orders-0", batch, "zeros", "missing", rng)
    left = [n for n in range(END) if not batch[0] <= n < batch[1]]
    with logstore.open(tmp_path / "s", read_only=True) as store:
        partition = store["orders"][0]
        for start in (0, 1, batch[0], batch[0] + 1, batch[1], END - 1):
            options = {"isolation": isolation, "on_corruption": "skip"}
            found = [r.offset for r in partition.read(start, **options)]
            assert found == [n for n in left if n >= start]


def test_time_is_looked_up_behind_damage(
    tmp_path: Path, whole: tuple[Path, list[Any]]
) -> None:
    """The lookup needs "skip"; otherwise a record in the damage might be the first."""
    path, batches = whole
    with logstore.open(path, read_only=True) as store:
        if store["orders"][0].get(0).timestamp is None:
            pytest.skip("records of magic 0 have no times")
    shutil.copytree(path, tmp_path / "s")
    batch = batches[2]
    damage(tmp_path / "s" / "orders-0", batch, "zeros", "right", random.Random(1))
    for file in (tmp_path / "s" / "orders-0").glob("*.timeindex"):
        file.write_bytes(b"")
    with logstore.open(tmp_path / "s", read_only=True) as store:
        partition = store["orders"][0]
        late = "1970-01-01T00:00:01.100Z"
        found = partition.read(late, on_corruption="skip")
        assert [r.offset for r in found] == list(range(100, END))
        with pytest.raises(logstore.CorruptRecordError) as caught:
            partition.offset_for_time(1000 + batch[0])
        assert caught.value.next_offset == batch[1]


def test_segment_that_is_lost_is_a_range_of_offsets(
    tmp_path: Path, whole: tuple[Path, list[Any]]
) -> None:
    path, _ = whole
    shutil.copytree(path, tmp_path / "s")
    logs = logs_in(tmp_path / "s" / "orders-0")
    first, behind = int(logs[1].stem), int(logs[2].stem)
    logs[1].unlink()
    with logstore.open(tmp_path / "s", read_only=True) as store:
        partition = store["orders"][0]
        for way in WAYS.values():
            offset, error = until_damage(way(partition, 0), 0)
            assert error is not None
            assert (offset, error.offset, error.next_offset) == (first, first, behind)
            assert until_damage(way(partition, behind), behind) == (END, None)


def test_error_is_pickled_with_where_reading_goes_on() -> None:
    import pickle

    error = logstore.CorruptRecordError("why", path="/p", position=3, offset=5)
    assert "Records from offset 5 on cannot be read here." in str(error)
    error.goes_on_at(9)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.offset, again.next_offset, again.reason) == (5, 9, "why")
    assert (
        "Records 5 to 8 cannot be read here, reading can continue at offset 9"
        in str(again)
    )
    error.goes_on_at(6)
    assert "Record 5 cannot be read here, reading can continue at offset 6" in str(
        error
    )
    assert os.fspath(error.path) == "/p"
