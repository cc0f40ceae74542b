"""Bytes of one read call: few are read twice, and any buffer size gives the same
result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.errors import CorruptRecordError
from logstore.io.files import Files
from logstore.log.read import cursor as cursor_module
from logstore.log.read import reader
from logstore.maintenance.verify import log as verify_log
from support.damage import logs_in
from support.values import config_of

FORMATS = ((0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "lz4"))
every_format = pytest.mark.parametrize(("magic", "codec"), FORMATS)


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all reads."""
    lengths: list[int] = []
    read = Files.read

    def counted(self: Files, fd: int, view: memoryview, pos: int) -> int:
        n = read(self, fd, view, pos)
        lengths.append(n)
        return n

    monkeypatch.setattr(Files, "read", counted)
    return lengths


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("size", [200_000, 700_000, 1 << 20])
def test_long_batches_are_read_once(
    tmp_path: Path, bytes_read: list[int], magic: int, size: int
) -> None:
    """Little is read twice if batches fill half a buffer and more."""
    pytest.importorskip("pyarrow")
    with logstore.open(tmp_path) as store:
        config = config_of(magic, max_message_bytes=2 << 20)
        partition = store.create_topic("t", config=config)[0]
        for _ in range(30):
            partition.append(bytes(size))
        whole = partition.segments[0].size_bytes
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("t")[0]
        for work in (
            lambda: list(partition.read()),
            lambda: list(partition.read_arrow()),
        ):
            bytes_read.clear()
            work()
            assert whole <= sum(bytes_read) < whole * 1.1 + size


def of_random_lengths(folder: Path, magic: int, codec: str, seed: int) -> list[Any]:
    """A log whose batches are short, long, or of one length for a while."""
    source = random.Random(seed)
    with logstore.open(folder) as store:
        partition = store.create_topic("t", config=config_of(magic, codec))[0]
        for _ in range(25):
            size = source.choice([0, 20, 90, 150, 400, 900])
            for _ in range(source.randrange(1, 6)):
                count = source.choice([1, 1, 1, 3])
                partition.append_many([source.randbytes(size)] * count)
        return list(partition.read())


def until_damage(folder: Path) -> Iterator[Any]:
    """Yield the records, and then the facts of the error, if there is one."""
    with logstore.open(folder, read_only=True) as store:
        try:
            yield from store.topic("t")[0].read()
        except CorruptRecordError as error:
            yield error.position, error.offset, error.reason


@every_format
@pytest.mark.parametrize("seed", range(4))
def test_buffer_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int, codec: str, seed: int
) -> None:
    """Each buffer size gives the same records, then the same error, and `verify` the
    same findings, for any lengths and places of damage."""
    records = of_random_lengths(tmp_path, magic, codec, seed)
    (log,) = logs_in(tmp_path / "t-0")
    intact, source = log.read_bytes(), random.Random(seed)
    assert list(until_damage(tmp_path)) == records
    for damaged in range(6):
        content = bytearray(intact)
        if damaged:
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        log.write_bytes(content)
        expected = list(until_damage(tmp_path))
        found = logstore.verify(tmp_path).problems
        with monkeypatch.context() as patch:
            for size in (250, 700, 1500):
                patch.setattr(cursor_module, "READ_BYTES", size)
                defaults = reader.read_records.__kwdefaults__
                patch.setitem(defaults, "buffer_bytes", size)
                patch.setattr(verify_log, "BUFFER_BYTES", size)
                assert list(until_damage(tmp_path)) == expected
                assert logstore.verify(tmp_path).problems == found


@pytest.mark.parametrize(("magic", "codec"), [(1, "none"), (2, "none"), (2, "lz4")])
@pytest.mark.parametrize("way", ["read", "batches", "keeps", "fetch"])
def test_place_of_an_index_entry_is_read_once(
    tmp_path: Path, bytes_read: list[int], magic: int, codec: str, way: str
) -> None:
    """The bytes that confirm the entry are in the first chunk. A fetch finds its batch
    in them, and reads its chunk from there."""
    if way == "keeps":
        pytest.importorskip("pyarrow")
    with logstore.open(tmp_path) as store:
        config = config_of(magic, codec, index_interval_bytes=2000)
        partition = store.create_topic("t", config=config)[0]
        for number in range(200):
            partition.append(b"%03d" % number * 50)
        for offset in (60, 61, 62, 63, 130, 199):
            bytes_read.clear()
            if way == "batches":
                batch = next(partition.read_batches(offset))
                assert batch.base_offset <= offset < batch.next_offset
            elif way == "keeps":
                table = partition.read_arrow(offset, offset + 1, view=True).read_all()
                assert table["offset"].to_pylist() == [offset]
                assert table["value"].to_pylist() == [b"%03d" % offset * 50]
            elif way == "fetch":
                record = next(iter(partition.fetch(offset, max_bytes=3000)))
                assert record.value == b"%03d" % offset * 50
            else:
                [record] = partition.read(offset, offset + 1)
                assert record.value == b"%03d" % offset * 50
            assert len(bytes_read) == (2 if way == "fetch" else 1)


def test_bytes_of_an_entry_that_is_wrong_are_not_delivered(
    tmp_path: Path, bytes_read: list[int]
) -> None:
    """The walk begins at an earlier entry, or at the start, if that is right."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", config=config_of(2, "none"))[0]
        for number in range(300):
            partition.append(b"%03d" % number * 50)
    [index] = tmp_path.glob("t-0/*.index")
    whole = index.read_bytes()
    for shift in (1, -1, 61, 4000):
        data = bytearray(whole)
        for at in range(4, len(data), 8):
            pos = int.from_bytes(data[at : at + 4], "big")
            data[at : at + 4] = max(pos + shift, 0).to_bytes(4, "big")
        index.write_bytes(data)
        with logstore.open(tmp_path, read_only=True) as store:
            partition = store.topic("t")[0]
            for offset in (1, 150, 299):
                assert next(iter(partition.fetch(offset))).offset == offset
                [record] = partition.read(offset, offset + 1)
                assert record.value == b"%03d" % offset * 50
