"""Reading a damaged log: everything before the damage, then an error with its place; if
damage is skipped, everything besides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import CorruptRecordError, Record
from support.damage import fix_crc, flip_bit, frames, logs_in, overwrite
from support.orders import COUNT, open_orders
from support.values import (
    every_compressed_format,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    write_store,
)

# ---------------------------------------------------------------- damage

READS = {
    "read": lambda p, **o: p.read(**o),
    "batches": lambda p, **o: (r for b in p.read_batches(**o) for r in b),
    "follow": lambda p, **o: p.follow(timeout=0, **o),
}


def delivered(records: object) -> tuple[list[Record], Exception | None]:
    """Records that an iterator delivers, and the error that ends it."""
    found = []
    try:
        for record in records:  # type: ignore[attr-defined]
            found.append(record)
    except logstore.LogStoreError as error:
        return found, error
    return found, None


@every_format
@pytest.mark.parametrize("way", READS)
def test_damage_is_raised_after_all_records_before_it(
    tmp_path: Path, magic: int, codec: str, way: str
) -> None:
    """The error has the absolute path, the position of the bad batch and the first
    offset that is not delivered; every record before was delivered."""
    directory = write_store(tmp_path, COUNT, magic, codec, segment_bytes=600)
    log = logs_in(directory)[1]
    before = [f for path in logs_in(directory)[:1] for f in frames(path)]
    bad = frames(log)[1]
    partition = open_orders(tmp_path)
    batch = [b for b in partition.read_batches() if str(log) and b.position == bad.pos]
    first = next(b for b in batch if b.base_offset >= int(log.stem)).base_offset
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    found, error = delivered(READS[way](open_orders(tmp_path)))
    assert found == expected(magic, 0, first)
    assert isinstance(error, logstore.CorruptRecordError)
    assert error.path == str(log)
    assert error.position == bad.pos
    assert error.offset == first
    assert error.reason
    assert str(log) in str(error)
    assert f"{bad.pos}" in str(error)
    assert before


@every_format
@pytest.mark.parametrize("way", READS)
def test_skip_leaves_out_the_damaged_batch_only(
    tmp_path: Path, magic: int, codec: str, way: str
) -> None:
    """Everything else is delivered once if on_corruption="skip"."""
    directory = write_store(tmp_path, COUNT, magic, codec, segment_bytes=600)
    log = logs_in(directory)[1]
    bad = frames(log)[1]
    batches = list(open_orders(tmp_path).read_batches(int(log.stem)))
    lost = {r.offset for r in batches[1]}
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    found, error = delivered(READS[way](open_orders(tmp_path), on_corruption="skip"))
    assert error is None
    assert found == [r for r in expected(magic, 0, COUNT) if r.offset not in lost]


@every_magic
@pytest.mark.parametrize("bit", [8 * 8, 8 * 9, 8 * 10 + 3, 8 * 11])
def test_skip_finds_the_next_batch_behind_a_damaged_length(
    tmp_path: Path, magic: int, bit: int
) -> None:
    """A wrong length is not trusted: the next intact batch is searched for."""
    directory = write_store(tmp_path, COUNT, magic)
    log = logs_in(directory)[0]
    bad = frames(log)[3]
    lost = {r.offset for r in list(open_orders(tmp_path).read_batches())[3]}
    flip_bit(log, 8 * bad.pos + bit)
    found, error = delivered(open_orders(tmp_path).read(on_corruption="skip"))
    assert error is None
    assert found == [r for r in expected(magic, 0, COUNT) if r.offset not in lost]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("inner_offset", [2, 3, 20])
def test_skip_does_not_take_a_batch_inside_a_value_for_one_of_the_log(
    tmp_path: Path, magic: int, inner_offset: int
) -> None:
    """Values may be batches themselves; skipping over a damaged one invents nothing
    and loses nothing else."""
    write_store(tmp_path / "other", 30, magic, call=1)
    data = logs_in(tmp_path / "other" / "orders-0")[0].read_bytes()
    inner = next(
        data[f.pos : f.pos + f.size]
        for f in frames(logs_in(tmp_path / "other" / "orders-0")[0])
        if f.offset == inner_offset
    )
    values = [b"a", b"zzz" + inner + b"zzz", b"c", b"d", b"e"]
    with logstore.open(tmp_path / "data") as store:
        new_partition(store, magic).append_many(values)
    log = logs_in(tmp_path / "data" / "orders-0")[0]
    bad = frames(log)[1]
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    found, error = delivered(open_orders(tmp_path / "data").read(on_corruption="skip"))
    assert error is None
    assert [r.value for r in found] == [b"a", b"c", b"d", b"e"]


@every_format
def test_damage_in_the_chunk_is_raised_by_fetch_or_its_iteration(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A consumer that fetches on gets all records before the damage, then the error."""
    directory = write_store(tmp_path, COUNT, magic, codec)
    log = logs_in(directory)[0]
    bad = frames(log)[3]
    first = list(open_orders(tmp_path).read_batches())[3].base_offset
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    partition = open_orders(tmp_path)
    found: list[Record] = []
    offset = 0
    with pytest.raises(logstore.CorruptRecordError) as caught:
        while offset < COUNT:
            chunk = partition.fetch(offset, 300)
            found += chunk
            offset = chunk.next_offset
    assert found == expected(magic, 0, first)
    assert caught.value.path == str(log)
    assert caught.value.position == bad.pos
    assert caught.value.offset == first


@every_format
def test_damage_ends_read_arrow_after_the_rows_before_it(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Arrow batches hold every record before the damage."""
    directory = write_store(tmp_path, COUNT, magic, codec)
    log = logs_in(directory)[0]
    bad = frames(log)[3]
    first = list(open_orders(tmp_path).read_batches())[3].base_offset
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    reader = open_orders(tmp_path).read_arrow()
    offsets: list[int] = []
    with pytest.raises(logstore.CorruptRecordError) as caught:
        for batch in reader:
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(first))
    assert caught.value.offset == first


def _reads_of(partition: logstore.Partition) -> list[Exception | None]:
    return [
        delivered(partition.read())[1],
        delivered(r for b in partition.read_batches() for r in b)[1],
        # Of magic 0 and 1 the call raises, of magic 2 the iteration.
        delivered(r for _ in "1" for r in partition.fetch(0))[1],
        delivered(partition.follow(timeout=0))[1],
    ]


@every_compressed_format
def test_broken_codec_stream_with_right_crc_is_a_corrupt_record_error(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Every way to read reports a decompressor's refusal; no other error escapes."""
    directory = write_store(tmp_path, 10, magic, codec, call=10)
    log = logs_in(directory)[0]
    frame = frames(log)[0]
    sound = log.read_bytes()
    for back in range(1, 30):
        overwrite(log, 0, sound)
        overwrite(log, len(sound) - back, bytes([sound[-back] ^ 0xFF]))
        fix_crc(log, frame)
        errors = _reads_of(open_orders(tmp_path))
        assert all(isinstance(e, logstore.CorruptRecordError) for e in errors if e)
        assert len({e is None for e in errors}) == 1


@every_compressed_format
def test_batch_beyond_the_decompression_limit_raises_record_too_large(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The error names the limit that a bomb exceeds; later records can be read."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        partition.append(b"before")
        partition.append(bytes(1_000_000))
        partition.append(b"after")
    config = logstore.StoreConfig(max_batch_decompressed_bytes=5000)
    partition = open_orders(tmp_path, config=config)
    for records in (
        partition.read(),
        (r for b in partition.read_batches() for r in b),
        partition.follow(timeout=0),
        iter(partition.fetch(0)),
    ):
        found, error = delivered(records)
        assert [r.value for r in found] == [b"before"]
        assert isinstance(error, logstore.errors.RecordTooLargeError)
        assert error.limit_name == "max_batch_decompressed_bytes"
        assert error.limit == 5000
    assert [r.value for r in partition.read(2)] == [b"after"]


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"], ids=repr
)
def test_header_name_that_is_not_utf8_is_read_as_kafka_reads_it(
    tmp_path: Path, name: bytes
) -> None:
    """Invalid bytes become U+FFFD; the record is delivered in every way."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        fill(partition, 3)
        partition.append(b"v", headers=[("x" * len(name), b"1")])
    log = logs_in(tmp_path / "orders-0")[0]
    log.write_bytes(log.read_bytes().replace(b"x" * len(name), name))
    fix_crc(log, frames(log)[-1])
    partition = open_orders(tmp_path)
    for way in READS.values():
        found, error = delivered(way(partition))
        assert error is None
        assert found[:3] == expected(2, 0, 3)
        assert found[3].headers == ((name.decode("utf-8", "replace"), b"1"),)


@every_magic
def test_unknown_magic_below_the_durable_point_is_unsupported(
    tmp_path: Path, magic: int
) -> None:
    """A newer version may have written it, which is no damage."""
    directory = write_store(tmp_path, COUNT, magic, segment_bytes=600)
    log = logs_in(directory)[0]
    bad = frames(log)[1]
    size = log.stat().st_size
    first = list(open_orders(tmp_path).read_batches())[1].base_offset
    overwrite(log, bad.pos + 16, b"\x03")
    found, error = delivered(open_orders(tmp_path).read())
    assert found == expected(magic, 0, first)
    assert isinstance(error, logstore.errors.UnsupportedError)
    assert (error.path, error.position, error.offset) == (str(log), bad.pos, first)
    logstore.open(tmp_path).close()
    assert log.stat().st_size == size


def test_sealed_segment_cut_at_every_batch_is_never_silently_short(
    tmp_path: Path,
) -> None:
    """A sealed segment that has lost its end raises at the first lost offset."""
    directory = write_store(tmp_path, 60, segment_bytes=600)
    log = logs_in(directory)[1]
    data = log.read_bytes()
    for frame in frames(log):
        log.write_bytes(data[: frame.pos])
        found, error = delivered(open_orders(tmp_path).read())
        assert found == expected(1, 0, frame.offset)
        assert isinstance(error, logstore.CorruptRecordError)
        assert error.offset == frame.offset
        assert error.path == str(log)
        found, error = delivered(open_orders(tmp_path).read(frame.offset))
        assert found == []
        assert error is not None


def test_middle_segment_missing_raises_at_its_offsets(tmp_path: Path) -> None:
    """Both sides of a missing segment can be read; its own range is an error."""
    directory = write_store(tmp_path, 60, segment_bytes=500)
    logs = logs_in(directory)
    gap, after = int(logs[1].stem), int(logs[2].stem)
    logs[1].unlink()
    partition = open_orders(tmp_path)
    found, error = delivered(partition.read())
    assert found == expected(1, 0, gap)
    assert isinstance(error, logstore.CorruptRecordError)
    assert error.offset == gap
    for start in range(gap, after):
        assert delivered(partition.read(start))[1] is not None
    assert list(partition.read(after)) == expected(1, after, 60)
    found, error = delivered(partition.read(on_corruption="skip"))
    assert error is None
    assert found == expected(1, 0, gap) + expected(1, after, 60)


# ---------------------------------------------------------------- damage below a start


STARTS: dict[str, Callable[[logstore.Partition, int], list[int]]] = {
    "read": lambda p, at: [r.offset for r in p.read(at)],
    "skip": lambda p, at: [r.offset for r in p.read(at, on_corruption="skip")],
    "batches": lambda p, at: [
        r.offset for b in p.read_batches(at) for r in b if r.offset >= at
    ],
    "fetch": lambda p, at: [r.offset for r in p.fetch(at)],
    "arrow": lambda p, at: p.read_arrow(at).read_all()["offset"].to_pylist(),
}


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("way", STARTS)
def test_read_that_starts_behind_damage_is_not_concerned_by_it(
    tmp_path: Path, way: str, magic: int, codec: str
) -> None:
    """The next intact batch decides, whichever entry the index gives; a read that
    starts in damage reports its next readable offset."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        for _ in range(12):
            partition.append_many([b"v" * 20] * 5)
    log = logs_in(tmp_path / "orders-0")[0]
    found = frames(log)
    plain = magic == 1 and codec == "none"
    damaged = found[25:30] if plain else found[5:6]
    for frame in damaged:
        flip_bit(log, 8 * (frame.pos + frame.size - 3))
    for index in log.parent.glob("*.index"):
        index.write_bytes(b"")
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        for start in (30, 31, 35, 59):
            assert STARTS[way](partition, start) == list(range(start, 60))
        if way == "skip":
            return
        for start in (25, 27, 29):
            with pytest.raises(CorruptRecordError) as caught:
                STARTS[way](partition, start)
            # A batch is delivered whole.
            first = 25 if way == "batches" else start
            assert caught.value.offset == first
            if codec == "none":
                assert caught.value.next_offset == 30


BAD_BYTES = {
    "checksum": (17, bytes(4)),
    "length": (8, (3).to_bytes(4, "big")),
    "magic": (16, b"\xc8"),
    "zeros": (0, bytes(60)),
}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("what", [*BAD_BYTES, "offset"])
def test_damage_where_a_read_ends_is_none_of_it(
    tmp_path: Path, what: str, codec: str, isolation: str
) -> None:
    """Every call can get an intact record, whatever the batch after it contains. A
    batch that does not follow the one before is an error: either may be wrong."""
    with logstore.open(tmp_path) as store:
        writing = new_partition(store, 2, codec)
        for number in range(20):
            writing.append(b"%d" % number)
    partition = open_orders(tmp_path)
    log = logs_in(Path(partition.path))[0]
    frame = frames(log)[11]
    pos, data = BAD_BYTES.get(what, (0, (12).to_bytes(8, "big")))
    overwrite(log, frame.pos + pos % frame.size, data[: frame.size - pos % frame.size])
    options = {"isolation": isolation}
    ways: dict[str, Callable[[], list[int]]] = {
        "get": lambda: [partition.get(10, **options).offset],
        "read": lambda: [r.offset for r in partition.read(10, 11, **options)],
        "batches": lambda: [
            b.base_offset for b in partition.read_batches(10, 11, **options)
        ],
        "arrow": lambda: (
            partition.read_arrow(10, 11, **options).read_all()["offset"].to_pylist()
        ),
    }
    for way, read in ways.items():
        if what == "offset":
            with pytest.raises(CorruptRecordError) as caught:
                read()
            assert (way, caught.value.offset) == (way, 11)
        else:
            assert (way, read()) == (way, [10])
    for found in (partition.read(10, 12, **options), partition.read(10, **options)):
        records, error = delivered(found)
        assert [record.offset for record in records] == [10]
        assert isinstance(error, CorruptRecordError)
        assert error.offset == 11
