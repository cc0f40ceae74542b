"""Fixtures shared by the tests against other programs: the programs, and records to
write."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from support.kafka_tools import KafkaTools, ToolsUnavailableError

CODECS = {
    0: ("none", "gzip", "snappy", "lz4"),
    1: ("none", "gzip", "snappy", "lz4"),
    2: ("none", "gzip", "snappy", "lz4", "zstd"),
}
START_MS = 1_700_000_000_000
WORDS = ["alpha", "beta", "gamma", "épsilon", "Zürich", "東京", "ключ", "0123456789"]


class Sample(NamedTuple):
    """A record to be written."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write records."""

    magic: int
    codec: str
    timestamp_type: str

    @property
    def topic(self) -> str:
        """A topic name that names the format."""
        return f"magic{self.magic}-{self.codec}-{self.timestamp_type}"

    @property
    def segment_bytes(self) -> int:
        """Small segments, of a size that differs from format to format."""
        return 4096 << len(self.topic) % 3

    def config(self, segment_bytes: int = 0) -> logstore.TopicConfig:
        """Settings that make many segments and index entries of few records."""
        return logstore.TopicConfig(
            message_format=self.magic,
            compression_type=self.codec,
            message_timestamp_type=self.timestamp_type,
            segment_bytes=segment_bytes or self.segment_bytes,
            index_interval_bytes=200,
        )

    def samples(self, start: int, count: int) -> Iterator[Sample]:
        """The records number `start` to `start + count`; the same in each run."""
        for number in range(start, start + count):
            yield self._sample(number)

    def _sample(self, number: int) -> Sample:
        # Text in one line, because Kafka's tool prints keys and values unescaped.
        chance = random.Random(f"{self.topic}:{number}")
        words = chance.choices(WORDS, k=chance.choice([1, 2, 5, 20, 20, 40]))
        kind = number % 11
        value = None if kind == 3 else b"" if kind == 7 else " ".join(words).encode()
        kind = number % 13
        key = (
            None if kind in (2, 5) else b"" if kind == 9 else b"key-%d" % (number % 50)
        )
        late_ms = 700 if number % 17 == 16 else 0
        return Sample(
            START_MS + 10 * number - late_ms, key, value, self._headers(number)
        )

    def _headers(self, number: int) -> tuple[tuple[str, bytes | None], ...]:
        if self.magic < 2 or number % 5:
            return ()
        return (("trace", b"%x" % number), ("ключ", None), ("trace", b""))[
            : 1 + number % 3
        ]

    def __str__(self) -> str:
        return self.topic


FORMATS = [
    Format(magic, codec, timestamp_type)
    for magic, codecs in CODECS.items()
    for codec, timestamp_type in itertools.product(
        codecs, ("CreateTime",) if magic == 0 else ("CreateTime", "LogAppendTime")
    )
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `format` once for each way to write records."""
    if "format" in metafunc.fixturenames:
        metafunc.parametrize("format", FORMATS, ids=str)


@dataclass(frozen=True, slots=True)
class Written:
    """A closed store with a topic for each format, and its expected records.

    Attributes:
        directory: of the store.
        samples: the records written to each topic, in order.
    """

    directory: Path
    samples: dict[Format, list[Sample]]

    def logs(self, topic: str) -> list[Path]:
        """The topic's segments, in order."""
        return sorted((self.directory / f"{topic}-0").glob("*.log"))

    def records(self, topic: str) -> list[Any]:
        """Records as logstore itself reads them."""
        with logstore.open(self.directory, read_only=True) as store:
            return list(store.topic(topic)[0].read())


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A store in every format, filled through each way to append, closed in between."""
    directory = tmp_path_factory.mktemp("written") / "store"
    samples: dict[Format, list[Sample]] = {format: [] for format in FORMATS}
    for _ in range(2):
        with logstore.open(directory) as store:
            for format, so_far in samples.items():
                topic = store.create_topic(
                    format.topic, config=format.config(), exist_ok=True
                )
                so_far += _append_one_by_one(topic[0], format, len(so_far), 40)
                for _ in range(6):
                    so_far += _append_many(topic[0], format, len(so_far), 12)
                for _ in range(3):
                    so_far += _append_arrow(topic[0], format, len(so_far), 12)
    return Written(directory, samples)


def _append_one_by_one(
    partition: Any, format: Format, start: int, count: int
) -> list[Sample]:
    samples = list(format.samples(start, count))
    for number, sample in enumerate(samples, start):
        offset = partition.append(
            sample.value,
            key=sample.key,
            timestamp_ms=sample.timestamp_ms,
            headers=sample.headers,
        )
        assert offset == number
    return samples


def _append_many(
    partition: Any, format: Format, start: int, count: int
) -> list[Sample]:
    samples = list(format.samples(start, count))
    span = partition.append_many(
        [sample.value for sample in samples],
        keys=[sample.key for sample in samples],
        timestamps_ms=[sample.timestamp_ms for sample in samples],
        headers=[sample.headers for sample in samples] if format.magic == 2 else None,
    )
    assert span == range(start, start + count)
    return samples


def _append_arrow(
    partition: Any, format: Format, start: int, count: int
) -> list[Sample]:
    pyarrow = pytest.importorskip("pyarrow")
    samples = list(format.samples(start, count))
    columns = {
        "value": pyarrow.array([sample.value for sample in samples], pyarrow.binary()),
        "key": pyarrow.array([sample.key for sample in samples], pyarrow.binary()),
        "timestamp": pyarrow.array(
            [sample.timestamp_ms for sample in samples], pyarrow.timestamp("ms", "UTC")
        ),
    }
    if format.magic == 2:
        header = pyarrow.struct(
            [("key", pyarrow.string()), ("value", pyarrow.binary())]
        )
        columns["headers"] = pyarrow.array(
            [
                [{"key": name, "value": value} for name, value in sample.headers]
                for sample in samples
            ],
            pyarrow.list_(header),
        )
    span = partition.append_arrow(pyarrow.table(columns))
    assert span == range(start, start + count)
    return samples


@pytest.fixture(scope="session")
def kafka_tools(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> KafkaTools:
    """Kafka's dump tool; skips if it is unavailable."""
    cache = getattr(request.config, "cache", None)
    directory = (
        cache.mkdir("kafka-tools") if cache else tmp_path_factory.mktemp("kafka-tools")
    )
    try:
        return KafkaTools.find(directory)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
