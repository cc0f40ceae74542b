"""The record parsers and builders of kafka-python and aiokafka, against logstore.

They read the logs of logstore; batches that they build for a produce request go through
`append_batches` and read back equal.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import logstore

aiokafka_defaults = pytest.importorskip("aiokafka.record.default_records")
aiokafka_legacy = pytest.importorskip("aiokafka.record.legacy_records")
aiokafka_memory = pytest.importorskip("aiokafka.record.memory_records")
kafka_defaults = pytest.importorskip("kafka.record.default_records")
kafka_legacy = pytest.importorskip("kafka.record.legacy_records")
kafka_memory = pytest.importorskip("kafka.record.memory_records")

CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCH_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Client:
    """A client library: its parser and its builders."""

    name: str
    memory_records: Any
    default_builder: Any
    legacy_builder: Any

    def supports(self, magic: int, codec: str) -> bool:
        """Whether the client supports this format."""
        # aiokafka lacks magic 0 with lz4, whose frames have a wrong checksum.
        return not (self.name == "aiokafka" and (magic, codec) == (0, "lz4"))

    def parse(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """The records in a log file, as plain values; checks every CRC."""
        batches = self.memory_records(data)
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            for record in batch:
                magic_zero = record.timestamp_type is None
                yield (
                    record.offset,
                    -1 if magic_zero else record.timestamp,
                    -1 if magic_zero else record.timestamp_type,
                    record.key,
                    record.value,
                    tuple(record.headers),
                )

    def build(
        self, magic: int, codec: str, samples: list[Any], producer: tuple[int, ...] = ()
    ) -> bytes:
        """A batch as this client's producer would send it."""
        if magic == 2:
            producer_id, epoch, sequence = producer or (-1, -1, -1)
            builder = self.default_builder(
                magic=magic,
                compression_type=CODEC_IDS[codec],
                is_transactional=0,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                batch_size=BATCH_BYTES_MAX,
            )
        else:
            builder = self.legacy_builder(magic, CODEC_IDS[codec], BATCH_BYTES_MAX)
        for number, sample in enumerate(samples):
            arguments = [number, sample.timestamp_ms, sample.key, sample.value]
            if magic == 2:
                arguments.append(list(sample.headers))
            assert builder.append(*arguments) is not None
        return bytes(builder.build())

    def __str__(self) -> str:
        return self.name


CLIENTS = [
    Client(
        "kafka-python",
        kafka_memory.MemoryRecords,
        kafka_defaults.DefaultRecordBatchBuilder,
        kafka_legacy.LegacyRecordBatchBuilder,
    ),
    Client(
        "aiokafka",
        aiokafka_memory.MemoryRecords,
        aiokafka_defaults.DefaultRecordBatchBuilder,
        aiokafka_legacy.LegacyRecordBatchBuilder,
    ),
]

each_client = pytest.mark.parametrize("client", CLIENTS, ids=str)


def skip_unsupported(client: Client, format: Any) -> None:
    """Skip formats that the client does not support."""
    if not client.supports(format.magic, format.codec):
        pytest.skip(f"{client.name} does not know lz4 in magic 0")


def values(record: logstore.Record) -> tuple[Any, ...]:
    """A record as plain values."""
    return (
        record.offset,
        record.timestamp_ms,
        int(record.timestamp_type),
        record.key,
        record.value,
        record.headers,
    )


@each_client
def test_clients_read_what_logstore_writes(
    client: Client, written: Any, format: Any
) -> None:
    """Each log file, record for record, in every format."""
    skip_unsupported(client, format)
    records = [values(record) for record in written.records(format.topic)]
    parsed = [
        record
        for path in written.logs(format.topic)
        for record in client.parse(path.read_bytes())
    ]
    assert parsed == records
    assert [record[3:] for record in parsed] == [
        (sample.key, sample.value, sample.headers) for sample in written.samples[format]
    ]


@each_client
def test_batches_of_clients_are_appended_and_read_back(
    client: Client, format: Any, tmp_path: Path
) -> None:
    """Offsets are assigned here; magic, codec and content stay unchanged."""
    skip_unsupported(client, format)
    batches = [list(format.samples(start, 20)) for start in (0, 20, 40)]
    sent = [client.build(format.magic, format.codec, samples) for samples in batches]
    now_ms = int(time.time() * 1000)
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("sent", config=format.config(1 << 20))[0]
        partition.append(b"before")
        assert partition.append_batches(sent[0]) == range(1, 21)
        assert partition.append_batches(sent[1] + sent[2]) == range(21, 61)
        assert partition.append(b"after") == 61
        check_sent(partition, format, list(itertools.chain(*batches)), now_ms)
    with logstore.open(tmp_path / "store", read_only=True) as store:
        partition = store.topic("sent")[0]
        check_sent(partition, format, list(itertools.chain(*batches)), now_ms)
    report = logstore.verify(tmp_path / "store", deep=True)
    assert list(report.problems) == []
    for parser in CLIENTS:
        if parser.supports(format.magic, format.codec):
            paths = sorted((tmp_path / "store" / "sent-0").glob("*.log"))
            parsed = [
                record for path in paths for record in parser.parse(path.read_bytes())
            ]
            assert [record[0] for record in parsed] == list(range(62))


def check_sent(partition: Any, format: Any, samples: list[Any], now_ms: int) -> None:
    """The records from offset 1 on are these, in that format."""
    before, *records, after = partition.read()
    assert (before.value, after.value) == (b"before", b"after")
    assert [
        (record.offset, record.key, record.value, record.headers) for record in records
    ] == [
        (offset, sample.key, sample.value, sample.headers)
        for offset, sample in enumerate(samples, 1)
    ]
    for record, sample in zip(records, samples, strict=True):
        if format.magic == 0:
            assert record.timestamp_type == logstore.TimestampType.NO_TIMESTAMP
            assert record.timestamp_ms == -1
        elif format.timestamp_type == "CreateTime":
            assert record.timestamp_type == logstore.TimestampType.CREATE_TIME
            assert record.timestamp_ms == sample.timestamp_ms
        else:
            assert record.timestamp_type == logstore.TimestampType.LOG_APPEND_TIME
            assert record.timestamp_ms >= now_ms
    batches = list(partition.read_batches(1, 61))
    assert {batch.magic for batch in batches} == {format.magic}
    assert {batch.compression for batch in batches} == {format.codec}


@each_client
def test_batches_of_every_format_go_into_one_log(
    client: Client, tmp_path: Path
) -> None:
    """Magic and codec of a batch do not depend on the topic's settings."""
    formats = [
        (magic, codec)
        for magic in (2, 0, 1)
        for codec in CODEC_IDS
        if client.supports(magic, codec) and (magic == 2 or codec != "zstd")
    ]
    samples = [
        Sample(1_700_000_000_000 + number, b"key", b"value " * number, ())
        for number in range(10, 20)
    ]
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("mixed")[0]
        for count, (magic, codec) in enumerate(formats):
            span = partition.append_batches(client.build(magic, codec, samples))
            assert span == range(10 * count, 10 * count + 10)
        found = [(batch.magic, batch.compression) for batch in partition.read_batches()]
        assert [key for key, _ in itertools.groupby(found)] == formats
        expected = [sample.value for sample in samples] * len(formats)
        assert [record.value for record in partition.read()] == expected


@each_client
def test_producer_fields_of_an_idempotent_batch_are_kept(
    client: Client, tmp_path: Path
) -> None:
    """Producer id, epoch and sequence are on disk unchanged."""
    samples = [Sample(1_700_000_000_000, None, b"value", ())] * 3
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("idempotent")[0]
        for sequence in (0, 3):
            partition.append_batches(
                client.build(2, "none", samples, producer=(4000, 1, sequence))
            )
        assert [
            (batch.producer_id, batch.producer_epoch, batch.base_sequence)
            for batch in partition.read_batches()
        ] == [(4000, 1, 0), (4000, 1, 3)]


@each_client
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_damaged_or_partial_batch_is_refused_whole(
    client: Client, magic: int, tmp_path: Path
) -> None:
    """No batch of the call is appended, not even the valid one before it."""
    samples = [Sample(1_700_000_000_000, b"key", b"value " * 20, ())] * 3
    sound = client.build(magic, "gzip", samples)
    flipped = sound[:-1] + bytes([sound[-1] ^ 1])
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("refused")[0]
        for bad in (sound[:-1], sound + sound[:-1], sound + flipped, b"\0" * 100):
            with pytest.raises(logstore.CorruptRecordError):
                partition.append_batches(bad)
            assert partition.end_offset == 0
        assert list(partition.read()) == []
        assert partition.append_batches(sound) == range(3)


@dataclass(frozen=True, slots=True)
class Sample:
    """A record to be sent."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
