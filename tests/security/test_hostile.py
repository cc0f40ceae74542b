"""Some 160 crafted partitions: bombs of every codec, impossible lengths, counts and
offsets, huge sparse files; read in every way, in little memory."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import logstore
from support.hostile import (
    GZIP,
    LIMIT,
    batch,
    bombs,
    lengths,
    make,
    memory_bytes,
    record,
    varint,
)
from support.values import (
    CODECS,
    every_compressed_format,
    every_magic,
    expected,
    fill,
    new_partition,
)

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    make(root / "data")
    return root / "data"


def run(hostile: Path, what: str) -> None:
    source = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile", str(hostile), what],
        # The limit counts address space. An arena, which glibc gives to a thread that
        # happens to wait for the arena of another one, reserves 64 MiB of it.
        env={**os.environ, "PYTHONPATH": source, "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-1000:], done.stderr[-3000:])


def test_hostile_store_is_read_in_256_mib(hostile: Path) -> None:
    """Every way of reading, then for writing: named errors, no crash, no hang."""
    run(hostile, "read")


@pytest.mark.thorough
@pytest.mark.slow
def test_hostile_store_is_looked_at_in_a_gib(hostile: Path) -> None:
    """verify and the command line, whose limit is the default: the same."""
    run(hostile, "look")


def test_failed_reads_do_not_keep_their_buffers(tmp_path: Path) -> None:
    """An error that is dropped frees the buffers of its read at once: the garbage
    collector counts objects and not bytes."""
    config = logstore.StoreConfig(max_batch_decompressed_bytes=LIMIT)
    chosen = {"bomb-gzip-2", "bomb-snappy-chunks-1", "count-2147483647"}
    for name, data in (*bombs(), *lengths()):
        if name in chosen:
            (tmp_path / f"{name}-0").mkdir()
            (tmp_path / f"{name}-0" / f"{0:020d}.log").write_bytes(data)
    gc.collect()
    gc.disable()
    try:
        with logstore.open(tmp_path, read_only=True, config=config) as store:
            for name in chosen:
                partition = store.topic(name)[0]
                sizes = []
                for _ in range(12):
                    with pytest.raises(logstore.LogStoreError):
                        list(partition.read())
                    sizes.append(memory_bytes())
                assert max(sizes[4:]) - sizes[3] < 8 << 20, (name, sizes)
    finally:
        gc.enable()


def test_error_that_is_raised_again_does_not_grow(tmp_path: Path) -> None:
    """Appends to a damaged partition raise the same error each time, without the frames
    of earlier raises."""
    with logstore.open(tmp_path / "data") as store:
        fill(new_partition(store), 10)
    log = tmp_path / "data" / "orders-0" / f"{0:020d}.log"
    os.truncate(log, 50)
    with logstore.open(tmp_path / "data") as store:
        partition = store.topic("orders")[0]
        for _ in range(50):
            with pytest.raises(logstore.CorruptRecordError) as caught:
                partition.append(b"x")
        trace, depth = caught.value.__traceback__, 0
        while trace is not None:
            trace, depth = trace.tb_next, depth + 1
        assert depth < 20


# ------------------------------------------------------------- at the limit, and beyond


@every_compressed_format
def test_batch_of_the_decompression_limit_is_read_and_one_byte_more_is_not(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """`max_batch_decompressed_bytes`, to the byte, for each codec and magic."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, max_message_bytes=1 << 20)
        partition.append(b"x" * 70_000, timestamp_ms=1)
    low, high = 70_000, 71_000
    told: list[tuple[int, int, bool]] = []
    while high - low > 1:
        middle = (low + high) // 2
        config = logstore.StoreConfig(max_batch_decompressed_bytes=middle)
        with logstore.open(tmp_path, read_only=True, config=config) as store:
            try:
                (found,) = store.topic("orders")[0].read()
                assert found.value == b"x" * 70_000
                high = middle
            except logstore.errors.RecordTooLargeError as error:
                told.append((error.limit, middle, "orders-0" in str(error)))
                low = middle
    assert all(limit == given and where for limit, given, where in told)
    # Bytes around a value in a message or a record, by magic.
    around = {0: 26, 1: 34, 2: 11}[magic]
    assert high == 70_000 + around


@pytest.mark.parametrize("codec", CODECS)
def test_record_with_headers_of_the_limit_is_kept_and_one_more_is_not(
    tmp_path: Path, codec: str
) -> None:
    """The limit is 100 000 on append; nothing is written beyond it."""
    limit = 100_000
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, codec)
        headers = [("", None)] * limit
        assert partition.append(b"x", headers=headers) == 0
        with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
            partition.append(b"x", headers=[*headers, ("", None)])
        assert (caught.value.limit_name, caught.value.limit) == ("headers", limit)
        assert partition.end_offset == 1
        (found,) = partition.read()
        assert len(found.headers) == limit


@pytest.mark.parametrize("count", [100_000, 100_001])
@pytest.mark.parametrize("codec", [0, GZIP])
def test_stored_record_with_headers_of_the_limit_is_read(
    tmp_path: Path, count: int, codec: int
) -> None:
    """One more is an error that names the limit, here and in `append_batches`."""
    import gzip

    area = record(b"\0\0\0\x01\x02x" + varint(count) + b"\0\x01" * count)
    made = batch(gzip.compress(area) if codec else area, codec=codec)
    directory = tmp_path / "data" / "orders-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(made)
    with logstore.open(tmp_path / "data", read_only=True) as store:
        partition = store.topic("orders")[0]
        ways = (
            lambda: list(partition.read()),
            lambda: [r for b in partition.read_batches() for r in b],
            lambda: list(partition.fetch(0)),
        )
        for way in ways:
            if count == 100_000:
                assert len(way()[0].headers) == count
            else:
                with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
                    way()
                assert caught.value.limit_name == "headers"
    with logstore.open(tmp_path / "other") as store:
        partition = new_partition(store, 2)
        if count == 100_000:
            assert partition.append_batches(made) == range(1)
        else:
            with pytest.raises(logstore.errors.RecordTooLargeError):
                partition.append_batches(made)
            assert partition.end_offset == 0


@every_magic
def test_message_of_the_size_limit_is_kept_and_one_byte_more_is_not(
    tmp_path: Path, magic: int
) -> None:
    """`max_message_bytes`, to the byte."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, max_message_bytes=5000)
        told: list[tuple[str, int, bool]] = []
        low, high = 1, 5000
        while high - low > 1:
            middle = (low + high) // 2
            end = partition.end_offset
            try:
                partition.append(b"x" * middle, timestamp_ms=1)
                low = middle
            except logstore.errors.RecordTooLargeError as error:
                told.append(
                    (error.limit_name, error.limit, partition.end_offset == end)
                )
                high = middle
        assert set(told) == {("max_message_bytes", 5000, True)}
        sizes = [b.size_bytes for b in partition.read_batches()]
        assert max(sizes) == 5000


def test_topic_name_of_249_characters_is_taken_and_one_more_is_not(
    tmp_path: Path,
) -> None:
    """Kafka's limit; with a partition number the name also reaches the limit of the
    file system."""
    with logstore.open(tmp_path) as store:
        assert store.create_topic("x" * 249).name == "x" * 249
        for name in ("x" * 250, "x" * 10_000):
            with pytest.raises(logstore.ConfigError) as caught:
                store.create_topic(name)
            assert len(str(caught.value)) < 1000
        with pytest.raises(logstore.ConfigError, match="255"):
            store.create_topic("y" * 249, partitions=100_001)
        assert store.topics() == ["x" * 249]


def test_segment_is_never_larger_than_two_gib() -> None:
    """Positions in an index have 32 bits: the setting ends at 2^31 - 1."""
    assert logstore.TopicConfig(segment_bytes=(1 << 31) - 1)
    with pytest.raises(logstore.ConfigError):
        logstore.TopicConfig(segment_bytes=1 << 31)


def test_partitions_of_a_topic_have_a_limit(tmp_path: Path) -> None:
    """A million is taken as a number; one more is refused before anything is made."""
    with logstore.open(tmp_path) as store:
        for bad in (1_000_001, 1 << 62, 0, -1):
            with pytest.raises(logstore.ConfigError):
                store.create_topic("many", bad)
        topic = store.create_topic("many")
        with pytest.raises(logstore.ConfigError):
            topic.add_partitions(1_000_000)
        assert len(topic) == 1


@pytest.mark.thorough
def test_segment_near_two_gib_rolls_before_it_would_be_larger(tmp_path: Path) -> None:
    """A log of 2^31 - 200 bytes, most of it one sparse record: records that fit are
    appended, and the first that does not begins a new segment."""
    import zlib

    size = (1 << 31) - 1000
    directory = tmp_path / "data" / "orders-0"
    directory.mkdir(parents=True)
    log = directory / f"{0:020d}.log"
    # Messages of 256 MiB of zeros, whose checksum is made without writing them.
    part = 1 << 28
    pos = 0
    offset = 0
    with log.open("wb") as file:
        while pos < size:
            value = min(part, size - pos - 34)
            head = b"\x01\x00" + (1).to_bytes(8, "big") + b"\xff" * 4
            head += value.to_bytes(4, "big")
            crc = zlib.crc32(head)
            for begin in range(0, value, 1 << 22):
                crc = zlib.crc32(bytes(min(1 << 22, value - begin)), crc)
            frame = offset.to_bytes(8, "big") + (value + 22).to_bytes(4, "big")
            file.seek(pos)
            file.write(frame + crc.to_bytes(4, "big") + head)
            pos += 34 + value
            offset += 1
        file.truncate(pos)
    assert log.stat().st_size == pos == size
    config = logstore.TopicConfig(segment_bytes=(1 << 31) - 1)
    with logstore.open(tmp_path / "data") as store:
        store.topic("orders").configure(config)
        partition = store.topic("orders")[0]
        assert partition.end_offset == offset
        assert partition.append(b"x" * 900, timestamp_ms=1) == offset
        assert partition.append(b"y" * 900, timestamp_ms=1) == offset + 1
        assert [s.base_offset for s in partition.segments] == [0, offset + 1]
        assert [r.value[:1] for r in partition.read(offset)] == [b"x", b"y"]
    assert log.stat().st_size <= (1 << 31) - 1


def test_offsets_at_the_end_of_the_space_are_read_and_the_last_is_damage(
    tmp_path: Path,
) -> None:
    """2^63 - 2 is the last offset of a record, because the end of the log is an offset,
    too."""
    sound = record(b"\0\0\0\x01\x02x\0")
    for base, is_fine in (((1 << 63) - 2, True), ((1 << 63) - 1, False)):
        directory = tmp_path / str(base) / "orders-0"
        directory.mkdir(parents=True)
        (directory / f"{base:020d}.log").write_bytes(batch(sound, base=base))
        with logstore.open(directory.parent, read_only=True) as store:
            partition = store.topic("orders")[0]
            if is_fine:
                assert [r.offset for r in partition.read()] == [base]
                assert partition.end_offset == base + 1
                continue
            with contextlib.suppress(logstore.LogStoreError):
                assert list(partition.read()) == []
        report = logstore.verify(directory.parent)
        assert is_fine or report.problems or report.notes


def test_hostile_neighbour_costs_a_sound_partition_nothing(
    hostile: Path, tmp_path: Path
) -> None:
    """Another partition of the same store stays readable and writable."""
    sound = hostile / "orders-0"
    with logstore.open(hostile) as store:
        fill(new_partition(store), 20)
    with logstore.open(hostile, read_only=True) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 20)
    assert sound.is_dir()
