"""Appends to topics that compress: batches are made before the lock is taken, and
placed in one step of C; or the usual way, with the same bytes."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.errors import RecordTooLargeError
from logstore.io.files import Files
from logstore.log.write.active_segment import ActiveSegment
from logstore.log.write.appender import Appender
from logstore.record.encoder import Encoder

T = 1_700_000_000_000
NEVER = 1 << 60
CODECS = ("gzip", "snappy", "lz4", "zstd")


def prepare_nothing(*_: object) -> None:
    """Replacement for `ActiveSegment.prepare`: all appends go the usual way."""


def partition_of(store: logstore.Store, codec: str, **settings: Any) -> Any:
    defaults = {"message_format": 2, "flush_messages": NEVER, "flush_ms": NEVER}
    config = logstore.TopicConfig(compression_type=codec, **(defaults | settings))
    return store.create_topic("orders", partitions=1, config=config)[0]


def files_of(path: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in sorted(path.glob("orders-0/*"))
        if file.suffix in (".log", ".index", ".timeindex")
    }


def fill(partition: Any, seed: int, calls: int = 12) -> None:
    """Append lists, single records, headers, and calls of several batches."""
    rng = random.Random(seed)
    for call in range(calls):
        count = rng.choice((1, 3, 40, 500))
        size = rng.choice((10, 100, 700))
        values = [
            rng.choice((None, rng.randbytes(4) * (size // 4))) for _ in range(count)
        ]
        keys = None if call % 3 == 0 else [b"k%d" % n for n in range(count)]
        times = [T + call * 1000 + n for n in range(count)]
        headers = [[("h", b"1")]] * count if call % 5 == 4 else None
        partition.append_many(values, keys, times, headers)
        partition.append(b"one" * call, timestamp_ms=T + call * 1000 + 999)


@pytest.mark.parametrize("segment_bytes", [1 << 30, 40_000])
@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_those_of_the_usual_way(
    tmp_path: Path, codec: str, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("steps", "usual"):
        if name == "usual":
            monkeypatch.setattr(ActiveSegment, "prepare", prepare_nothing)
        with logstore.open(tmp_path / name) as store:
            fill(partition_of(store, codec, segment_bytes=segment_bytes), seed=5)
    assert files_of(tmp_path / "steps") == files_of(tmp_path / "usual")


@pytest.mark.parametrize("codec", CODECS)
def test_all_but_the_first_call_is_one_step(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, codec)
        partition.append_many([b"first"] * 10)

        def write_runs(*_: object) -> None:
            raise AssertionError("the usual way")

        monkeypatch.setattr(Appender, "write_runs", write_runs)
        for number in range(1, 20):
            values = [b"%d" % number] * 10
            assert partition.append_many(values) == range(10 * number, 10 * number + 10)
        assert partition.append_many([b"durable"], durable=True) == range(200, 201)
        assert partition.durable_offset == 201
        found = [record.value for record in partition.read(10, 30)]
        assert found == [b"1"] * 10 + [b"2"] * 10


def test_arrow_table_of_several_chunks(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, "lz4")
        chunks = [[b"a%d" % n for n in range(count)] for count in (3, 0, 700, 1)]
        table = pyarrow.table(
            {"value": pyarrow.chunked_array(chunks, pyarrow.binary())}
        )
        for first in (0, 704):
            assert partition.append_arrow(table) == range(first, first + 704)
        values = [record.value for record in partition.read()]
        assert values == 2 * [value for chunk in chunks for value in chunk]


def test_settings_that_change_while_a_call_compresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are encoded again, with the present settings of the topic."""
    encode = Encoder.encode
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, "lz4")
        partition.append_many([b"first"] * 10)
        topic = store.topic("orders")

        def encode_and_configure(self: Encoder, *args: Any) -> Any:
            yield from encode(self, *args)
            monkeypatch.undo()
            new = logstore.TopicConfig(message_format=2, compression_type="gzip")
            topic.configure(new)

        monkeypatch.setattr(Encoder, "encode", encode_and_configure)
        assert partition.append_many([b"second"] * 10) == range(10, 20)
        codecs = [batch.compression for batch in partition.read_batches()]
        assert codecs == ["lz4", "gzip"]
        values = [record.value for record in partition.read()]
        assert values == [b"first"] * 10 + [b"second"] * 10


@pytest.mark.parametrize("codec", CODECS)
def test_threads_compress_side_by_side(tmp_path: Path, codec: str) -> None:
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, codec, segment_bytes=100_000)
        spans: list[tuple[range, int]] = []

        def work(name: int) -> None:
            for _ in range(40):
                values = [b"%d" % name * 50] * 50
                spans.append((partition.append_many(values), name))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        offsets = sorted(offset for span, _ in spans for offset in span)
        assert offsets == list(range(6 * 40 * 50))
        values = [record.value for record in partition.read()]
        for span, name in spans:
            assert set(values[span.start : span.stop]) == {b"%d" % name * 50}


@pytest.mark.parametrize("codec", CODECS)
def test_record_that_is_too_large_changes_nothing(tmp_path: Path, codec: str) -> None:
    noise = random.Random(1).randbytes(3000)
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, codec, max_message_bytes=1000)
        partition.append_many([b"first"] * 10)
        before = files_of(tmp_path)
        for values in ([noise], [b"x", noise], [noise] * 3):
            with pytest.raises(RecordTooLargeError, match="nothing was written"):
                partition.append_many(values)
        assert files_of(tmp_path) == before
        assert partition.append_many([b"y" * 3000]) == range(10, 11)


def test_compression_without_memory_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, "zstd")
        partition.append_many([b"first"] * 10)

        def fail(*_: object) -> bytes:
            raise MemoryError

        monkeypatch.setattr(Encoder, "_compress", fail)
        with pytest.raises(MemoryError):
            partition.append_many([b"second"] * 10)
        monkeypatch.undo()
        assert partition.append_many([b"second"] * 10) == range(10, 20)


@pytest.mark.parametrize(
    "settings",
    [
        {"message_format": 1},
        {"message_format": 0},
        {"message_timestamp_type": "LogAppendTime"},
    ],
)
def test_other_topics_compress_under_the_lock(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Their batches depend on the offset, or on the time of the append."""
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, "gzip", **settings)
        for number in range(4):
            first = 30 * number
            assert partition.append_many([b"%d" % number] * 30) == range(
                first, first + 30
            )
        values = [record.value for record in partition.read()]
        assert values == [b"%d" % n for n in range(4) for _ in range(30)]


def test_expected_offset_is_compared_before_anything_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, "gzip")
        partition.append_many([b"first"] * 10)

        def fail(*_: object) -> bytes:
            raise AssertionError

        monkeypatch.setattr(Encoder, "_compress", fail)
        with pytest.raises(logstore.errors.OffsetConflictError):
            partition.append_many([b"second"], expected_offset=3)
        monkeypatch.undo()
        assert partition.append_many([b"second"], expected_offset=10) == range(10, 11)


def test_encoded_batches_that_do_not_fit_are_left_to_the_usual_way(
    tmp_path: Path,
) -> None:
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, "zstd")
        partition.append_many([b"first"] * 10)
        prepared = partition._writer.appends.prepared
        for data in (b"", b"no batch at all" * 10, bytes(300_000)):
            assert prepared.append_encoded(data, 10) is None
        # More or fewer records than its header states.
        batch = bytes(next(iter(partition.read_batches())).buffer)
        assert prepared.append_encoded(batch, 9) is None
        assert prepared.append_encoded(batch, -1) is None
        for wrong in ((batch,), (memoryview(batch), 10), (batch, "10")):
            with pytest.raises(TypeError):
                prepared.append_encoded(*wrong)
        assert partition.end_offset == 10
        # Only a holder of the lock may pass True.
        assert prepared.append_encoded(batch, 10, True) is None
        partition.append_many([b"first"] * 10)
        assert prepared.append_encoded(bytearray(batch), 10) == range(20, 30)
        assert [record.value for record in partition.read()] == [b"first"] * 30


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_time_that_is_returned_is_the_one_that_is_stored(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read before the record is compressed, in either way."""
    times = iter(range(T, T + 1_000_000, 10))
    monkeypatch.setattr(Files, "now_ms", lambda _: next(times))
    for name in ("steps", "usual"):
        if name == "usual":
            monkeypatch.setattr(ActiveSegment, "prepare", prepare_nothing)
        with logstore.open(tmp_path / name) as store:
            partition = partition_of(store, codec)
            topic = store.topic("orders")
            stored = [
                topic.append(b"x", headers=[("h", b"1")] if n % 2 else ()).timestamp_ms
                for n in range(6)
            ]
            assert [record.timestamp_ms for record in partition.read()] == stored
