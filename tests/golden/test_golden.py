"""Log directories of real brokers, read, verified, opened for writing, dumped.

Files next to each directory hold the records that a consumer of the broker got, so
every test is "the same as Kafka", from one more side. README.md names the sources of
the directories.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.main import main
from support.golden import (
    ExpectedRecord,
    GoldenPartition,
    Scenario,
    all_partitions,
    all_scenarios,
    comparable,
    comparable_value,
    dump_fields,
    fingerprint,
    from_json,
)

SCENARIOS = all_scenarios()
PARTITIONS = all_partitions()
DUMPED = [partition for partition in PARTITIONS if partition.dump]
TIMES_PER_PARTITION = 40
BATCH_HEAD_BYTES = 12  # offset and length, which the length does not count

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
each_partition = pytest.mark.parametrize("golden", PARTITIONS, ids=str)
each_dumped = pytest.mark.parametrize("golden", DUMPED, ids=str)
each_isolation = pytest.mark.parametrize(
    "isolation", ["read_uncommitted", "read_committed"]
)


class OpenStores:
    """Each scenario opened read-only, once for all the tests of its partitions."""

    def __init__(self) -> None:
        self._stores: dict[Scenario, Any] = {}

    def partition(self, golden: GoldenPartition) -> Any:
        """The open partition."""
        if golden.scenario not in self._stores:
            directory = golden.scenario.directory
            self._stores[golden.scenario] = logstore.open(directory, read_only=True)
        return self._stores[golden.scenario].topic(golden.topic)[golden.number]

    def close(self) -> None:
        """Close them all."""
        for store in self._stores.values():
            store.close()


@pytest.fixture(scope="module")
def stores() -> Iterator[OpenStores]:
    """Read-only stores, opened at first use."""
    opened = OpenStores()
    yield opened
    opened.close()


# ------------------------------------------------------------------ the whole store


@each_scenario
def test_partitions_of_a_kafka_directory_are_listed(scenario: Scenario) -> None:
    """Every partition is listed, and no other directory (`-delete` directories)."""
    topics: dict[str, set[int]] = {}
    for golden in scenario.partitions:
        topics.setdefault(golden.topic, set()).add(golden.number)
    with logstore.open(scenario.directory, read_only=True) as store:
        assert list(store.topics()) == sorted(topics)
        for name, numbers in topics.items():
            topic = store.topic(name)
            for number in numbers:
                assert topic[number].end_offset >= topic[number].start_offset
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                topic[max(numbers) + 1]
            if numbers == set(range(len(numbers))):
                assert len(topic) == len(topic.partitions) == len(numbers)
        with pytest.raises(logstore.TopicNotFoundError):
            store.topic("gone")


@each_scenario
def test_reading_leaves_the_directory_untouched(scenario: Scenario) -> None:
    """Opening, reading and searching change no name, size, mode or time."""
    before = fingerprint(scenario.directory)
    with logstore.open(scenario.directory, read_only=True) as store:
        for golden in scenario.partitions:
            partition = store.topic(golden.topic)[golden.number]
            for record in partition.read():
                last = record
            if golden.end_offset > golden.start_offset and golden.records():
                partition.offset_for_time(last.timestamp_ms)
            list(partition.read_batches())
            partition.fetch(partition.start_offset)
    assert fingerprint(scenario.directory) == before


@each_scenario
def test_appending_to_a_read_only_store_raises(scenario: Scenario) -> None:
    """A read-only store refuses to append, and the error names the reason."""
    golden = scenario.partitions[0]
    with logstore.open(scenario.directory, read_only=True) as store:
        with pytest.raises(logstore.errors.ReadOnlyError):
            store.topic(golden.topic)[golden.number].append(b"value")


@each_scenario
def test_verify_finds_no_problem_in_a_kafka_directory(scenario: Scenario) -> None:
    """Kafka's files, also after a kill, are at most worth a note."""
    before = fingerprint(scenario.directory)
    report = logstore.verify(scenario.directory, deep=True)
    assert list(report.problems) == []
    assert report.ok
    manifests = [golden.manifest for golden in scenario.partitions]
    if any(manifest["tornBytes"] for manifest in manifests):
        assert report.notes, "a torn tail deserves a note"
    replaced = [name for manifest in manifests for name in manifest["leftovers"]]
    if not any(name.endswith(".swap") for name in replaced):
        assert report.batches == sum(manifest["batches"] for manifest in manifests)
    json.dumps(report.to_dict())
    assert fingerprint(scenario.directory) == before


@each_scenario
def test_dump_verify_of_a_kafka_directory_exits_zero(
    scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logstore-dump verify` prints JSON lines and exits 0: notes are no problems."""
    status = main(["verify", str(scenario.directory), "--deep", "--format", "jsonl"])
    output = capsys.readouterr().out
    assert status == 0, output
    for line in output.split("\n"):
        if line:
            json.loads(line)


@each_scenario
def test_opening_a_copy_for_writing_recovers_what_kafka_recovers(
    scenario: Scenario, tmp_path: Path
) -> None:
    """Recovery ends where Kafka's ends; the next record is appended there and stays."""
    copy = copy_of(scenario, tmp_path)
    appended = {}
    with logstore.open(copy) as store:
        for golden in scenario.partitions:
            partition = store.topic(golden.topic)[golden.number]
            assert offsets(partition) == (golden.start_offset, golden.end_offset)
            assert read(partition) == golden.records(), golden
            offset = partition.append(b"appended", key=b"key", timestamp_ms=1)
            assert offset == golden.end_offset, golden
            appended[golden] = offset
    with logstore.open(copy, create=False) as store:
        assert not store.recovery_report, store.recovery_report
        for golden, offset in appended.items():
            partition = store.topic(golden.topic)[golden.number]
            assert offsets(partition) == (golden.start_offset, offset + 1)
            *kept, last = partition.read()
            assert [comparable(record) for record in kept] == golden.records(), golden
            assert (last.offset, last.key, last.value) == (offset, b"key", b"appended")
    report = logstore.verify(copy, deep=True)
    assert list(report.problems) == []


# --------------------------------------------------------------------- one partition


@each_partition
def test_offsets_are_those_the_broker_reported(
    stores: OpenStores, golden: GoldenPartition
) -> None:
    """The log starts and ends at the offsets that the broker reported."""
    partition = stores.partition(golden)
    assert offsets(partition) == (golden.start_offset, golden.end_offset)
    assert golden.start_offset <= partition.durable_offset <= golden.end_offset


@each_isolation
@each_partition
def test_records_are_those_a_consumer_read(
    stores: OpenStores, golden: GoldenPartition, isolation: str
) -> None:
    """Record for record: offset, timestamp and its type, key, value, headers."""
    partition = stores.partition(golden)
    assert read(partition, isolation=isolation) == golden.records(isolation)


@each_isolation
@each_partition
def test_reading_between_two_offsets_gives_the_records_between(
    stores: OpenStores, golden: GoldenPartition, isolation: str
) -> None:
    """Any offset may be requested, also one without a record."""
    partition = stores.partition(golden)
    expected = golden.records(isolation)
    starts = starts_to_try(golden, expected)
    for start in starts:
        assert read(partition, start, isolation=isolation) == [
            record for record in expected if record.offset >= start
        ], f"from {start}"
    for start, stop in itertools.pairwise(starts):
        assert read(partition, start, stop, isolation=isolation) == [
            record for record in expected if start <= record.offset < stop
        ], f"from {start} to {stop}"


@each_isolation
@pytest.mark.parametrize("golden", [p for p in PARTITIONS if p.topic == "txn"], ids=str)
def test_reading_transactions_from_any_offset_needs_no_index(
    tmp_path: Path, golden: GoldenPartition, isolation: str
) -> None:
    """Without an index, reading begins far before the requested offset, among batches
    of transactions whose markers lie before it."""
    copy = tmp_path / golden.directory.name
    shutil.copytree(golden.directory, copy)
    for index in copy.glob("*.index"):
        index.unlink()
    expected = golden.records(isolation)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic(golden.topic)[golden.number]
        for start in range(partition.start_offset, partition.end_offset):
            assert read(partition, start, isolation=isolation) == [
                record for record in expected if record.offset >= start
            ], f"from {start}"


@each_partition
def test_offsets_outside_the_log_raise(
    stores: OpenStores, golden: GoldenPartition
) -> None:
    """Offsets below the start (even if the file still has records) and past the end."""
    partition = stores.partition(golden)
    for offset in (golden.start_offset - 1, golden.end_offset + 1):
        with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
            partition.read(offset)
        error = caught.value
        assert (error.requested, error.start, error.end) == (
            offset,
            golden.start_offset,
            golden.end_offset,
        )


@each_partition
def test_seek_by_time_finds_what_a_look_at_every_record_finds(
    stores: OpenStores, golden: GoldenPartition
) -> None:
    """The first offset with a timestamp at or after the one asked for, or None."""
    partition = stores.partition(golden)
    expected = golden.records()
    # Kafka's search does not distinguish records from transaction markers, which have
    # the time of the broker. Expected offsets may include or omit them.
    markers = [
        (batch.last_offset, batch.max_timestamp_ms)
        for batch in partition.read_batches()
        if batch.is_control
    ]
    times = [(record.offset, record.timestamp_ms) for record in expected]
    for timestamp_ms in times_to_try(expected):
        answers = {
            first_at_or_after(times, timestamp_ms),
            first_at_or_after(sorted(times + markers), timestamp_ms),
        }
        assert partition.offset_for_time(timestamp_ms) in answers, timestamp_ms
    if expected and not markers and expected[0].timestamp_ms > 0:
        middle = expected[len(expected) // 2].timestamp_ms
        moment = datetime.fromtimestamp(middle // 1000, timezone.utc)
        start = first_at_or_after(times, middle // 1000 * 1000)
        assert next(iter(partition.read(moment))).offset == start


@each_partition
def test_arrow_gives_the_same_records(
    stores: OpenStores, golden: GoldenPartition
) -> None:
    """`read_arrow` has the values of `read`, with null for a missing timestamp."""
    pyarrow = pytest.importorskip("pyarrow")
    partition = stores.partition(golden)
    columns = ("offset", "timestamp", "key", "value", "headers")
    table = partition.read_arrow(columns=columns, batch_records=100).read_all()
    assert tuple(table.column_names) == columns
    times = table["timestamp"].cast(pyarrow.int64())
    rows = zip(
        table["offset"].to_pylist(),
        times.to_pylist(),
        table["key"].to_pylist(),
        [comparable_value(value) for value in table["value"].to_pylist()],
        [header_pairs(headers) for headers in table["headers"].to_pylist()],
        strict=True,
    )
    assert list(rows) == [
        (
            record.offset,
            None if record.timestamp_type == -1 else record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )
        for record in golden.records()
    ]


@each_partition
def test_batches_are_those_in_the_files(
    stores: OpenStores, golden: GoldenPartition
) -> None:
    """`read_batches` gives every batch, control batches and empty ones among them."""
    partition = stores.partition(golden)
    batches = list(partition.read_batches())
    records = [
        comparable(record)
        for batch in batches
        if not batch.is_control
        for record in batch
        if record.offset >= golden.start_offset
    ]
    assert records == golden.records()
    for batch in batches:
        assert batch.size_bytes == len(batch.buffer)
        assert batch.base_offset <= batch.last_offset == batch.next_offset - 1
    for earlier, later in itertools.pairwise(batches):
        assert earlier.last_offset < later.base_offset
    manifest = golden.manifest
    if files_hold_more_than_is_served(golden):
        return
    assert len(batches) == manifest["batches"]
    assert sum(batch.is_control for batch in batches) == manifest["controlBatches"]
    assert {batch.magic for batch in batches} == set(manifest["magics"])
    assert {batch.compression for batch in batches} == set(manifest["codecs"])
    empty = sum(batch.record_count == 0 for batch in batches)
    assert empty == manifest["emptyBatches"]
    transactional = sum(
        batch.is_transactional and not batch.is_control for batch in batches
    )
    assert transactional == manifest["transactionalBatches"]


@each_partition
def test_fetching_in_small_chunks_gives_the_same_records(
    stores: OpenStores, golden: GoldenPartition
) -> None:
    """Chunk by chunk to the end; each buffer holds whole batches."""
    partition = stores.partition(golden)
    offset = golden.start_offset
    records = []
    while offset < golden.end_offset:
        chunk = partition.fetch(offset, max_bytes=4096)
        records += [comparable(record) for record in chunk]
        assert whole_batches(chunk.buffer)
        assert chunk.next_offset > offset
        offset = chunk.next_offset
    assert offset == golden.end_offset
    assert records == golden.records()
    chunk = partition.fetch(offset)
    assert list(chunk) == []
    assert chunk.next_offset == offset


@each_partition
def test_dump_records_prints_the_records(
    golden: GoldenPartition, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logstore-dump records`, one JSON object a record, everything in base64."""
    arguments = [str(golden.directory), "--format", "jsonl", "--payload", "base64"]
    assert main(["records", *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]
    assert [from_json(line) for line in lines] == golden.records()
    for line in lines:
        assert (line["topic"], line["partition"]) == (golden.topic, golden.number)


@each_dumped
def test_dump_of_batches_agrees_with_kafka_s_own(
    golden: GoldenPartition, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field by field, equal to the output of that release's own dump tool.

    Up to 1.1 Kafka's tool printed a line a record, with the position of its batch; from
    2.0 on a line a batch, and the records below.
    """
    assert golden.dump
    text = golden.dump.read_text("utf-8", errors="replace")
    kafka = sections(text)
    assert kafka
    for name, lines in kafka.items():
        assert main(["records", "--kafka", str(golden.directory / name)]) == 0
        [ours] = sections(capsys.readouterr().out).values()
        by_batch = [
            line
            for line in lines
            if line.startswith("baseOffset: ")
            or " size: " in line.partition(" key: ")[0]
        ]
        if by_batch:
            found = dump_fields(line for line in ours if not line.startswith("|"))
            expected = dump_fields(by_batch)
        else:
            found = records_with_positions(ours)
            expected = dump_fields(lines)
        assert len(found) == len(expected)
        for line, kafka_line in zip(found, expected, strict=True):
            assert shared(line, kafka_line) == shared(kafka_line, line)
            assert {"position", "magic"} <= shared(line, kafka_line).keys()


# --------------------------------------------------------------------------- helpers


def copy_of(scenario: Scenario, target: Path) -> Path:
    """A writable copy, with the files' times."""
    copy = target / "store"
    shutil.copytree(scenario.directory, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


def offsets(partition: Any) -> tuple[int, int]:
    """Where the log starts and ends."""
    return partition.start_offset, partition.end_offset


def read(partition: Any, *bounds: int, **options: Any) -> list[ExpectedRecord]:
    """The result of `read`, in comparable form."""
    return [comparable(record) for record in partition.read(*bounds, **options)]


def header_pairs(
    headers: list[dict[str, Any]] | None,
) -> tuple[tuple[str, bytes | None], ...]:
    """Headers from Arrow's list of structs."""
    return tuple((header["key"], header["value"]) for header in headers or ())


def starts_to_try(golden: GoldenPartition, expected: list[ExpectedRecord]) -> list[int]:
    """Rising offsets: the ends, the middle, and around the middle record."""
    tries = {golden.start_offset, golden.end_offset}
    tries.add((golden.start_offset + golden.end_offset) // 2)
    if expected:
        middle = expected[len(expected) // 2].offset
        tries |= {middle, middle + 1, expected[-1].offset}
    return sorted(tries)


def times_to_try(expected: list[ExpectedRecord]) -> list[int]:
    """Timestamps of records, spread over the log, and their neighbours."""
    times = sorted({record.timestamp_ms for record in expected})
    step = len(times) // TIMES_PER_PARTITION + 1
    near = {
        time + beside for time in times[::step] + times[-1:] for beside in (-1, 0, 1)
    }
    return sorted(time for time in near | {0} if time >= 0)


def first_at_or_after(times: list[tuple[int, int]], timestamp_ms: int) -> int | None:
    """The first offset in a list of (offset, timestamp) at or after that time."""
    return next((offset for offset, time in times if time >= timestamp_ms), None)


def files_hold_more_than_is_served(golden: GoldenPartition) -> bool:
    """Whether the manifest, made from the files alone, counts batches not served."""
    swapped = any(name.endswith(".swap") for name in golden.manifest["leftovers"])
    return swapped or golden.topic == "delete-records"


def whole_batches(buffer: memoryview) -> bool:
    """Whether the buffer is a sequence of whole batches."""
    position = 0
    while position < len(buffer):
        length = int.from_bytes(buffer[position + 8 : position + 12], "big")
        position += BATCH_HEAD_BYTES + length
    return position == len(buffer)


def sections(text: str) -> dict[str, list[str]]:
    """The lines about batches and records of each `.log` file in a dump's text."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("Dumping "):
            name = line.rpartition("/")[2]
            lines = found.setdefault(name, []) if name.endswith(".log") else []
        elif line.startswith(("baseOffset: ", "offset: ", "| offset: ")):
            lines.append(line)
    return found


def records_with_positions(lines: list[str]) -> list[dict[str, str]]:
    """The fields of each record's line, with position and magic of its batch."""
    found = []
    batch: dict[str, str] = {}
    for line, fields in zip(lines, dump_fields(lines), strict=True):
        if line.startswith("|"):
            fields["position"] = batch["position"]
            fields["magic"] = batch["magic"]
            found.append(fields)
        else:
            batch = fields
    return found


def shared(fields: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """The fields that both lines have, codec names in small letters."""
    return {
        name: value.lower().rstrip("}")
        for name, value in fields.items()
        if name in other
    }
