"""Kafka's own cleaner and logstore compact the same directories: the same batches stay,
with the same bytes if uncompressed, and the same indexes.

The cleaner of 2.8 knows no delete horizons: only logs without them are compared.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import RecordBatch, TopicConfig
from support.compacting import TIME_MS, RandomLog
from support.kafka_broker import cache_directory
from support.kafka_tools import JAVA_OPTIONS, POM, KafkaTools, ToolsUnavailableError
from support.releases import each_release

pytestmark = pytest.mark.kafka

OLD = "2.8.2"
# The cleaner of later releases has one interface.
SOURCES = {OLD: "Clean28.java", "3.9.1": "Clean39.java"}
SEGMENT_BYTES, INTERVAL, RETENTION_MS = 4000, 150, 1000
INDEXES = (".index", ".timeindex", ".txnindex")
CONFIG = TopicConfig(
    cleanup_policy="compact",
    message_format=2,
    segment_bytes=SEGMENT_BYTES,
    index_interval_bytes=INTERVAL,
    delete_retention_ms=RETENTION_MS,
    file_delete_delay_ms=0,
)
# Tombstones seen first, before their deletion is due, after it.
TIMES_MS = (TIME_MS + 3_600_000, TIME_MS + 3_600_500, TIME_MS + 3_605_000)


class Cleaner:
    """The cleaner of a release."""

    def __init__(self, release: str) -> None:
        self.release = release
        self._tools = KafkaTools.find(cache_directory(), release)

    def clean(self, partitions: Sequence[Path], now_ms: int) -> None:
        """Compact all but the last segment of some partitions."""
        source = SOURCES.get(self.release, "Clean.java")
        run = subprocess.run(
            [
                self._tools.java, *JAVA_OPTIONS, f"-Dindex.interval.bytes={INTERVAL}",
                "-cp", self._tools.classpath, str(POM.with_name(source)),
                str(now_ms), str(RETENTION_MS), str(SEGMENT_BYTES), str(1 << 20),
                *(f"{partition}:0" for partition in partitions),
            ],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        # It prints messages about logging, too.
        done = [line for line in run.stdout.splitlines() if line[:1].isdigit()]
        assert len(done) == len(partitions)


@pytest.fixture(
    scope="module",
    params=each_release(),
)
def cleaner(request: pytest.FixtureRequest) -> Cleaner:
    try:
        return Cleaner(request.param)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))


def batches(store: Path) -> Iterator[dict[str, Any]]:
    """The contents of a partition, batch by batch."""
    with logstore.open(store, read_only=True) as opened:
        for batch in opened.topic("t")[0].read_batches():
            yield plain(batch)


def plain(batch: RecordBatch) -> dict[str, Any]:
    control = batch.control_record()
    records = [] if batch.is_control else [tuple(record) for record in batch]
    names = (
        "base_offset", "last_offset", "magic", "compression", "producer_id",
        "producer_epoch", "base_sequence", "leader_epoch", "record_count",
        "is_transactional", "is_control", "max_timestamp_ms",
    )  # fmt: skip
    return {
        **{name: getattr(batch, name) for name in names},
        "records": records,
        "control": control,
        "horizon": batch.delete_horizon_ms,
    }


def files(store: Path, suffix: str) -> dict[str, bytes]:
    """The files of the sealed segments, by name."""
    found = sorted((store / "t-0").glob(f"*{suffix}"))
    return {file.name: file.read_bytes() for file in found}


def made(root: Path, logs: Sequence[RandomLog]) -> list[tuple[Path, Path]]:
    """Two copies of each log: for Kafka, and for logstore."""
    pairs = []
    for number, log in enumerate(logs):
        pair = root / f"kafka{number}", root / f"logstore{number}"
        log.write(pair[0] / "t-0")
        shutil.copytree(*pair)
        pairs.append(pair)
    return pairs


def compacted(ours: Path, now_ms: int) -> None:
    with logstore.open(ours) as store:
        topic = store.topic("t")
        topic.configure(CONFIG)
        topic[0].compact(force=True, now_ms=now_ms)


def test_logs_of_magic_2_are_what_kafkas_cleaner_leaves(
    cleaner: Cleaner, tmp_path: Path
) -> None:
    """Batch by batch, through three rounds: tombstones and markers get their delete
    horizon, keep it, and go; header-only batches of producers stay."""
    simple = {"transactions": False, "tombstones": False}
    more = simple if cleaner.release == OLD else {}
    logs = [RandomLog(seed, magics=(2,), **more) for seed in range(12)]
    pairs = made(tmp_path, logs)
    for now_ms in TIMES_MS:
        cleaner.clean([kafka / "t-0" for kafka, _ in pairs], now_ms)
        for kafka, ours in pairs:
            compacted(ours, now_ms)
            assert list(batches(ours)) == list(batches(kafka))


def test_uncompressed_log_has_the_bytes_that_kafkas_cleaner_writes(
    cleaner: Cleaner, tmp_path: Path
) -> None:
    """The indexes of offsets, times and transactions are compared, too. The cleaner of
    2.8 writes one entry for each of its writes, of many batches."""
    simple = {"transactions": False, "tombstones": False}
    more = simple if cleaner.release == OLD else {}
    logs = [
        RandomLog(seed, magics=(2,), codecs=("none",), **more) for seed in range(20, 26)
    ]
    pairs = made(tmp_path, logs)
    for now_ms in TIMES_MS:
        cleaner.clean([kafka / "t-0" for kafka, _ in pairs], now_ms)
        for (kafka, ours), log in zip(pairs, logs, strict=True):
            compacted(ours, now_ms)
            indexes = () if cleaner.release == OLD else INDEXES
            for suffix in (".log", *indexes):
                active = f"{log.active_base:020d}{suffix}"
                theirs, own = files(kafka, suffix), files(ours, suffix)
                theirs.pop(active, None)
                own.pop(active, None)
                assert own == theirs, suffix
                assert any(own.values()) or suffix == ".txnindex"


@pytest.mark.thorough
def test_logs_of_old_formats_keep_the_records_that_kafkas_cleaner_keeps(
    cleaner: Cleaner, tmp_path: Path
) -> None:
    """Kafka 4 writes the remaining records of a wrapper as a batch of magic 2; logstore
    keeps the format."""
    logs = [RandomLog(seed, magics=(0, 1, 2)) for seed in range(40, 52)]
    pairs = made(tmp_path, logs)
    cleaner.clean([kafka / "t-0" for kafka, _ in pairs], TIMES_MS[0])
    for kafka, ours in pairs:
        compacted(ours, TIMES_MS[0])
        found = [r[:4] for b in batches(ours) for r in b["records"]]
        assert found == [r[:4] for b in batches(kafka) for r in b["records"]]
