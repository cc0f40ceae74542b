"""Have a real broker of a release write golden directories.

Usage: python tests/golden/make_directories.py RELEASE DIRECTORY

Makes `DIRECTORY/RELEASE/clean` and `.../killed` (see README.md), the records that a
consumer of the release read from each, and `DIRECTORY/manifest.json`, counted from the
files by another parser (kafka-python's). Each record that the consumer read is compared
with the one that the parser finds. Needs Java, Maven, confluent-kafka and kafka-python,
and a minute. `select_slice.py` takes its part of the result.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kafka.record import MemoryRecords

from logstore import Record, TimestampType
from support import kafka_clients as clients
from support.golden import VALUE_BYTES_MAX
from support.kafka_broker import KafkaBroker, cache_directory

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TYPES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
START_MS: Final = 1_700_000_000_000
INTERNAL: Final = ("__consumer_offsets", "__share_group_state")
# Files that a copy cannot have, and internal files of a broker.
TAKEN_AWAY: Final = (".lock", "__transaction_state-*", "__cluster_metadata-0")
SMALL: Final = {
    "internal.segment.bytes": 2000,
    "segment.index.bytes": 1024,
    "index.interval.bytes": 300,
}
SETTINGS: Final = {
    "offsets.topic.num.partitions": 1,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.retention.ms": -1,
    "share.coordinator.state.topic.segment.bytes": 1 << 20,
    "log.retention.check.interval.ms": 300_000,
    "file.delete.delay.ms": 600_000,
    "log.message.timestamp.before.max.ms": (1 << 63) - 1,
}
SECONDS_MAX: Final = 60
# Members that stop without leaving their group are removed after 45 seconds.
EXPIRY_SECONDS: Final = 60


def records_of(topic: str, count: int) -> list[Record]:
    """Records with keys, values and headers of every kind."""
    found = []
    for number in range(count):
        key = (None, b"", b"key-%d" % (number % 7))[min(number % 5, 2)]
        text = f"{topic} {number} Zürich ключ " * (number % 4 + 1)
        value = (None, b"", text.encode())[min(number % 9, 2)]
        headers = (("trace", b"%d" % number), ("ключ", None), ("trace", b""))
        late_ms = 700 if number % 6 == 5 else 0
        found.append(
            Record(
                -1,
                START_MS + 1000 * number - late_ms,
                key,
                value,
                headers[: number % 4],
                TimestampType.CREATE_TIME,
            )
        )
    return found


def create(broker: KafkaBroker, topic: str, **settings: object) -> None:
    small = {name.replace(".", "_"): value for name, value in SMALL.items()}
    clients.create_topics(broker, {topic: 1}, **{**small, **settings})


def send(broker: KafkaBroker, topic: str, codec: str, records: list[Record]) -> None:
    """Send records in batches of a few."""
    for at in range(0, len(records), 7):
        some = {topic: records[at : at + 7]}
        clients.send(broker, some, compression_type=codec, linger_ms=50)


def filled(broker: KafkaBroker, topic: str, *, ended: bool) -> None:
    """Transactions of several producers; the last ones are ended, or left open."""
    create(broker, topic)
    broker.run_clients("Transactions.java", "fill", topic, "4", "25", "16")
    if ended:
        broker.run_clients("Transactions.java", "end")


def fill_clean(broker: KafkaBroker) -> list[str]:
    """The topics of the scenario `clean`."""
    for codec in CODECS:
        create(broker, f"codec-{codec}")
        send(broker, f"codec-{codec}", codec, records_of(f"codec-{codec}", 21))
    create(broker, "append-time", message_timestamp_type="LogAppendTime")
    send(broker, "append-time", "lz4", records_of("append-time", 14))
    create(broker, "empty")
    create(broker, "delete-records")
    send(broker, "delete-records", "zstd", records_of("delete-records", 35))
    clients.delete_records(broker, "delete-records", 12)
    filled(broker, "txn", ended=True)
    create(
        broker,
        "compact",
        cleanup_policy="compact",
        delete_retention_ms=100,
        min_cleanable_dirty_ratio=0.01,
        internal_segment_bytes=1500,
    )
    keyed = [one._replace(key=one.key or b"other") for one in records_of("compact", 99)]
    send(broker, "compact", "none", keyed)
    await_compaction(broker)
    process = broker.clients("Groups.java", "consumer")
    broker.said(process, "READY")
    assert process.stdin is not None
    process.stdin.close()
    broker.said(process, "ENDED")
    process.wait(SECONDS_MAX)
    topics = [f"codec-{codec}" for codec in CODECS]
    return [*topics, "append-time", "empty", "delete-records", "txn", "compact",
            "alpha", "beta", *INTERNAL]  # fmt: skip


def await_compaction(broker: KafkaBroker) -> None:
    """Wait until the cleaner has processed all but the active segment, twice."""
    end = time.monotonic() + SECONDS_MAX
    done = 0
    for _ in range(2):
        while True:
            text = (broker.data / "cleaner-offset-checkpoint").read_text()
            found = re.search(r"^compact 0 (\d+)$", text, re.MULTILINE)
            if found is not None and int(found[1]) > done:
                done = int(found[1])
                break
            assert time.monotonic() < end
            time.sleep(0.2)
        time.sleep(1)
        keyed = [one._replace(key=b"key-1") for one in records_of("compact", 40)]
        send(broker, "compact", "none", keyed)


def fill_killed(broker: KafkaBroker) -> list[str]:
    """The topics of the scenario `killed`."""
    create(broker, "codec-lz4")
    send(broker, "codec-lz4", "lz4", records_of("codec-lz4", 21))
    create(broker, "gone")
    send(broker, "gone", "none", records_of("gone", 7))
    filled(broker, "open-txn", ended=False)
    clients.delete_topics(broker, "gone")
    end = time.monotonic() + SECONDS_MAX
    while not list(broker.data.glob("gone-0.*-delete")):
        assert time.monotonic() < end
        time.sleep(0.1)
    return ["codec-lz4", "open-txn"]


# ------------------------------------------------------------------ expected records


def written(record: Record) -> str:
    """A line of an expected file."""
    line: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestampType": TYPES[record.timestamp_type],
        "key": text_of(record.key),
    }
    value = record.value
    if value is not None and len(value) > VALUE_BYTES_MAX:
        line["valueLength"] = len(value)
        line["valueSha256"] = hashlib.sha256(value).hexdigest()
    else:
        line["value"] = text_of(value)
    line["headers"] = [[name, text_of(data)] for name, data in record.headers]
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False)


def text_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def read_all(broker: KafkaBroker, counts: Mapping[str, int], target: Path) -> None:
    """Records that the consumer of the release reads, and the offsets of the broker."""
    target.mkdir(parents=True)
    offsets: dict[str, dict[str, int]] = {}
    both = [
        clients.consumed_by_kafka(broker, counts, isolation)
        for isolation in ("read_uncommitted", "read_committed")
    ]
    for topic, number in both[0]:
        name = f"{topic}-{number}"
        records, committed = (found[topic, number] for found in both)
        start, stable, end = bounds(broker, topic, number)
        offsets[name] = {
            "logEndOffset": end,
            "logStartOffset": start,
            "records": len(records),
        }
        save(target / f"{name}.jsonl", records)
        if committed != records or topic.endswith("txn"):
            offsets[name]["lastStableOffset"] = stable
            offsets[name]["recordsReadCommitted"] = len(committed)
            save(target / f"{name}.read_committed.jsonl", committed)
    text = json.dumps(offsets, indent=1, sort_keys=True)
    (target / "offsets.json").write_text(f"{text}\n", "utf-8")


def bounds(broker: KafkaBroker, topic: str, number: int) -> tuple[int, int, int]:
    """Start, last stable offset and end."""
    text = broker.run_clients("Transactions.java", "bounds", topic, str(number))
    start, stable, end = map(int, text.split()[-3:])
    return start, stable, end


def save(path: Path, records: list[Record]) -> None:
    text = "".join(f"{written(record)}\n" for record in records)
    path.write_text(text, "utf-8")


# ------------------------------------------------------------------ the manifest


def batches_of(log: Path) -> Iterator[Any]:
    """The whole batches of a log, by kafka-python."""
    records = MemoryRecords(log.read_bytes())
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        yield batch


def entry_of(directory: Path, start: int, expected: Path) -> dict[str, Any]:
    """The manifest entry of a partition, counted by another parser from its files."""
    topic, _, number = directory.name.rpartition("-")
    logs = sorted(directory.glob("*.log"))
    batches, values = [], []
    for log in logs:
        for batch in batches_of(log):
            batches.append(batch)
            if not batch.is_control_batch:
                values += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    log_bytes = sum(log.stat().st_size for log in logs)
    values = [one for one in values if one[0] >= start]
    lines = (expected / f"{directory.name}.jsonl").read_text("utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    assert [(r["offset"], r["timestamp"], r["key"]) for r in read] == [
        (offset, stamp, text_of(key)) for offset, stamp, key, _ in values
    ], directory
    assert [r.get("value", r.get("valueLength")) for r in read] == [
        text_of(v) if v is None or len(v) <= VALUE_BYTES_MAX else len(v)
        for *_, v in values
    ], directory
    offsets = json.loads((expected / "offsets.json").read_text("utf-8"))
    data = [batch for batch in batches if not batch.is_control_batch]
    return {
        "topicPartition": directory.name,
        "topic": topic,
        "partition": int(number),
        "records": len(values),
        "firstOffset": values[0][0] if values else None,
        "lastOffset": values[-1][0] if values else None,
        "logStartOffset": start,
        "logEndOffset": offsets[directory.name]["logEndOffset"],
        "segments": len(logs),
        "logBytes": log_bytes,
        "batches": len(batches),
        "controlBatches": len(batches) - len(data),
        "magics": sorted({batch.magic for batch in batches}),
        "codecs": sorted({CODECS[batch.compression_type] for batch in batches}),
        "timestampTypes": sorted(
            {tuple(TYPES.values())[batch.timestamp_type] for batch in batches}
        ),
        "transactionalBatches": sum(batch.is_transactional for batch in data),
        "idempotentBatches": sum(
            batch.has_producer_id() and not batch.is_transactional for batch in data
        ),
        "emptyBatches": sum(batch.records_count == 0 for batch in batches),
        "deleteHorizonBatches": sum(bool(b.attributes & 0x40) for b in batches),
        "tornBytes": log_bytes - sum(batch.size_in_bytes for batch in batches),
        "leftovers": sorted(
            path.name
            for path in directory.iterdir()
            if path.suffix in (".deleted", ".cleaned", ".swap")
        ),
    }


# ------------------------------------------------------------------ both scenarios


def keep(broker: KafkaBroker, target: Path) -> None:
    """Copy the directory without the files in `TAKEN_AWAY`."""
    ignore = shutil.ignore_patterns(*TAKEN_AWAY)
    shutil.copytree(broker.data, target, ignore=ignore)


def make_clean(release: str, work: Path, target: Path) -> None:
    work.mkdir()
    with KafkaBroker(work, release, cache_directory(), SETTINGS) as broker:
        broker.start()
        topics = fill_clean(broker)
        time.sleep(EXPIRY_SECONDS)
        counts = dict.fromkeys(topics, 1) | {"alpha": 3, "beta": 2}
        read_all(broker, counts, target.with_name("clean.expected"))
        broker.stop()
        keep(broker, target)


def make_killed(release: str, work: Path, target: Path) -> None:
    """The consumer reads from a copy, which another broker has recovered."""
    for name in ("first", "second"):
        (work / name).mkdir(parents=True)
    with KafkaBroker(work / "first", release, cache_directory(), SETTINGS) as broker:
        broker.start()
        topics = fill_killed(broker)
        broker.stop(kill=True)
        keep(broker, target)
    settings = {**SETTINGS, "log.cleaner.enable": False}
    with KafkaBroker(work / "second", release, cache_directory(), settings) as other:
        broker.copy_to(work / "second")
        (other.data / ".lock").unlink(missing_ok=True)
        other.start()
        counts = dict.fromkeys(topics, 1)
        read_all(other, counts, target.with_name("killed.expected"))


def main(release: str, directory: Path) -> None:
    """Make both scenarios of a release, and the manifest of all existing ones."""
    with tempfile.TemporaryDirectory() as work:
        for name, make in (("clean", make_clean), ("killed", make_killed)):
            make(release, Path(work) / name, directory / release / name)
    lines = []
    for expected in sorted(directory.glob("*/*.expected")):
        scenario = expected.name.removesuffix(".expected")
        offsets = json.loads((expected / "offsets.json").read_text("utf-8"))
        for name, known in sorted(offsets.items()):
            partition = expected.with_name(scenario) / name
            entry = entry_of(partition, known["logStartOffset"], expected)
            about = {"release": expected.parent.name, "scenario": scenario}
            lines.append(json.dumps({**about, **entry}))
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    (directory / "manifest.json").write_text(text, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
