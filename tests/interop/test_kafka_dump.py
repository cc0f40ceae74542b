"""Kafka's own dump tool reads files of logstore, and has the same output as
`logstore-dump`.

The tool checks the CRC of every batch and, by default, each entry of every index
against the log.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.main import main
from support.damage import flip_bit, frames, logs_in
from support.golden import SLICE
from support.kafka_tools import Dump, KafkaTools
from support.values import write_store

pytestmark = pytest.mark.kafka

TYPE_NAMES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}

# Directories of Kafka's with elements that logstore does not write: transaction
# markers, delete horizons, header-only batches, all magics in one log. All their values
# are one line.
GOLDEN = [
    SLICE / "2.8.2/formats/upgraded-compact-0",
    SLICE / "3.9.1/clean/compact-0",
    SLICE / "4.2.0/clean/txn-compact-0",
]


def files_of(directory: Path, *suffixes: str) -> list[Path]:
    """The files below a directory with one of these suffixes, by name."""
    return sorted(path for path in directory.rglob("*") if path.suffix in suffixes)


@pytest.fixture(scope="module")
def deep(kafka_tools: KafkaTools, written: Any) -> Dump:
    """All files, each record printed, each index checked against its log."""
    files = files_of(written.directory, ".log", ".index", ".timeindex")
    options = ("--deep-iteration", "--print-data-log")
    return kafka_tools.dump(files, *options, root=written.directory)


@pytest.fixture(scope="module")
def golden_deep(kafka_tools: KafkaTools) -> Dump:
    """The logs of some golden directories, each record printed."""
    logs = [path for directory in GOLDEN for path in files_of(directory, ".log")]
    return kafka_tools.dump(logs, "--print-data-log", root=SLICE)


def lines_of(dump: Dump, topic: str, suffix: str = ".log") -> list[str]:
    """The lines about a topic's files of one kind, in order."""
    return [
        line
        for name, lines in dump.sections().items()
        if name.startswith(f"{topic}-0/") and name.endswith(suffix)
        for line in lines
    ]


def test_kafka_finds_nothing_to_complain_about(deep: Dump) -> None:
    """No mismatch, wrong order, gap, or byte too many, in any log or index."""
    assert deep.complaints == ()
    assert "invalid bytes" not in deep.text
    assert "isvalid: false" not in deep.text
    assert "isValid: false" not in deep.text


def test_kafka_s_complaints_are_heard(kafka_tools: KafkaTools) -> None:
    """The check must be seen to fail.

    Kafka's tool reports index entries that Kafka 2.8 wrote for several batches in one
    append.
    """
    files = files_of(SLICE / "2.8.2/formats/upgraded-1", ".log", ".index")
    dump = kafka_tools.dump(files, root=SLICE)
    assert any(line.startswith("Mismatches in") for line in dump.complaints)


def test_kafka_reads_every_record_as_it_was_written(
    deep: Dump, written: Any, format: Any
) -> None:
    """Offset, timestamp, sizes, header names, key and value of each record."""
    records = written.records(format.topic)
    samples = written.samples[format]
    assert len(records) == len(samples)
    for record, sample in zip(records, samples, strict=True):
        assert (record.key, record.value, record.headers) == (
            sample.key,
            sample.value,
            sample.headers,
        )
        if format.timestamp_type == "CreateTime" and format.magic > 0:
            assert record.timestamp_ms == sample.timestamp_ms
    found = [line for line in lines_of(deep, format.topic) if line.startswith("| ")]
    assert [without_crc(line) for line in found] == [
        record_line(record, format.magic) for record in records
    ]


def test_kafka_sees_the_format_that_was_asked_for(
    deep: Dump, written: Any, format: Any
) -> None:
    """Every batch is valid and of that magic; the codec is used; segments are small."""
    batches = [
        line for line in lines_of(deep, format.topic) if "compresscodec: " in line
    ]
    assert batches
    for line in batches:
        assert line.endswith(" isvalid: true")
        assert f" magic: {format.magic} " in line
    # A single small record may be stored uncompressed.
    codecs = set(re.findall(r" compresscodec: (\w+)", "\n".join(batches)))
    assert format.codec in codecs <= {format.codec, "none"}
    logs = written.logs(format.topic)
    assert len(logs) > 2
    assert all(path.stat().st_size <= format.segment_bytes for path in logs)


def test_kafka_finds_entries_in_the_indexes(deep: Dump, format: Any) -> None:
    """There were entries to check: offsets always, times except in magic 0."""
    entries = [
        line
        for line in lines_of(deep, format.topic, ".index")
        if line.startswith("offset: ")
    ]
    times = lines_of(deep, format.topic, ".timeindex")
    assert len(entries) > 5
    assert (len(times) > 5) == (format.magic > 0)


def test_indexes_pass_kafka_s_sanity_check(
    kafka_tools: KafkaTools, written: Any
) -> None:
    """The check that a broker runs when it opens a directory."""
    files = files_of(written.directory, ".index", ".timeindex")
    dump = kafka_tools.dump(files, "--index-sanity-check", root=written.directory)
    sections = dump.sections()
    assert len(sections) == len(files)
    for name, lines in sections.items():
        assert lines in ([f"{name} passed sanity check."], [f"{name} is empty."])
    assert dump.complaints == ()


def test_dump_records_prints_what_kafka_prints(
    deep: Dump, written: Any, format: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logstore-dump records --kafka`, line for line."""
    for path in written.logs(format.topic):
        name = path.relative_to(written.directory).as_posix()
        assert main(["records", "--kafka", str(path)]) == 0
        assert printed(capsys) == without_braces(deep.sections()[name])


def test_dump_records_prints_what_kafka_prints_of_its_own(
    golden_deep: Dump, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for transaction markers, delete horizons and header-only batches."""
    for name, lines in golden_deep.sections().items():
        assert main(["records", "--kafka", str(SLICE / name)]) == 0
        assert printed(capsys) == without_braces(lines), name


def test_dump_batches_prints_what_kafka_prints(
    kafka_tools: KafkaTools, written: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logstore-dump batches --kafka`, line for line."""
    for root in (written.directory, SLICE):
        logs = files_of(root, ".log")
        if root == SLICE:
            logs = [path for path in logs if path.parent in GOLDEN]
        for name, lines in kafka_tools.dump(logs, root=root).sections().items():
            assert main(["batches", "--kafka", str(root / name)]) == 0
            assert printed(capsys) == lines, name


def test_kafka_accepts_batches_of_clients_once_offsets_are_assigned(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    """Batches that `append_batches` rewrote (offsets, wrappers, CRCs) are valid to
    Kafka."""
    legacy = pytest.importorskip("kafka.record.legacy_records")
    default = pytest.importorskip("kafka.record.default_records")
    values = [b"value-%d " % number * number for number in range(8)]
    with logstore.open(tmp_path) as store:
        for magic, codec_id in itertools.product((0, 1, 2), range(5)):
            if magic < 2 and codec_id == 4:
                continue
            partition = store.create_topic(f"sent-{magic}-{codec_id}")[0]
            for _ in range(2):
                if magic == 2:
                    builder = default.DefaultRecordBatchBuilder(
                        magic, codec_id, 0, -1, -1, -1, 1 << 20
                    )
                else:
                    builder = legacy.LegacyRecordBatchBuilder(magic, codec_id, 1 << 20)
                for number, value in enumerate(values):
                    builder.append(number, 1_700_000_000_000, b"key", value, [])
                partition.append_batches(bytes(builder.build()))
    logs = files_of(tmp_path, ".log")
    dump = kafka_tools.dump(logs, "--print-data-log", root=tmp_path)
    assert dump.complaints == ()
    assert len(dump.sections()) == 13
    for name, lines in dump.sections().items():
        assert all("valid: false" not in line.lower() for line in lines), name
        found = re.findall(
            r"^\| offset: (\d+) .* payload: (.*)$", "\n".join(lines), re.M
        )
        expected = [value.decode() for value in values * 2]
        assert found == [(str(i), value) for i, value in enumerate(expected)], name


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines the command printed about a file, without the path, braces aside."""
    first, *lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert first.startswith("Dumping ")
    return without_braces(lines)


def without_braces(lines: list[str]) -> list[str]:
    """The lines without the brace that Kafka's tool up to 3.9 printed by mistake."""
    return [re.sub(r"( isValid: \w+ crc: \d+)\}", r"\1", line) for line in lines]


def without_crc(line: str) -> str:
    """A record's line without the CRC that each record of magic 0 and 1 has."""
    return re.sub(r" isValid: true crc: \d+\}?", "", line, count=1)


def record_line(record: Any, magic: int) -> str:
    """The expected output of Kafka's tool for a record, `without_crc`."""
    parts = [
        f"| offset: {record.offset}",
        f"{TYPE_NAMES[int(record.timestamp_type)]}: {record.timestamp_ms}",
        f"keySize: {-1 if record.key is None else len(record.key)}",
        f"valueSize: {-1 if record.value is None else len(record.value)}",
    ]
    if magic == 2:
        names = ",".join(name for name, _ in record.headers)
        parts.append(f"sequence: -1 headerKeys: [{names}]")
    if record.key is not None:
        parts.append(f"key: {record.key.decode()}")
    if record.value is not None:
        parts.append(f"payload: {record.value.decode()}")
    return " ".join(parts)


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_kafka_finds_nothing_in_what_was_repaired(
    kafka_tools: KafkaTools, tmp_path: Path, mode: str
) -> None:
    """Logs and indexes of a partition that had damage in each of its segments, and one
    under a wrong name."""
    partition = write_store(
        tmp_path / "store", 90, 2, call=3, segment_bytes=900, index_interval_bytes=100
    )
    first, second, third, *_ = logs_in(partition)
    for log in (second, logs_in(partition)[-1]):
        frame = frames(log)[1]
        flip_bit(log, 8 * (frame.pos + frame.size - 2))
    third.rename(third.with_name(f"{77_777:020d}.log"))
    assert logstore.repair(partition, mode).ok
    suffixes = (".log", ".index", ".timeindex")
    files = sorted(path for path in partition.iterdir() if path.suffix in suffixes)
    dump = kafka_tools.dump(files, "--deep-iteration", root=partition.parent)
    gaps = ("Non-consecutive offsets", "is followed by")
    complaints = [c for c in dump.complaints if not any(gap in c for gap in gaps)]
    assert complaints == []
    assert (mode == "skip") == bool(dump.complaints)
    assert "isvalid: false" not in dump.text
    assert "invalid bytes" not in dump.text
    assert first.name in dump.text
