"""logstore at work: ``python -m logstore.demo`` (what ``make demo`` runs).

Writes a million records to four partitions, syncs, reads them back, seeks, deletes
under a running reader, looks at a segment and rebuilds an index; where pyspark and Java
are there, Spark streams through the store. Every record that is read is compared with
what was written: each follows from its partition and offset.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import logstore

PARTITIONS: Final = 4
START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 10
SEEKS: Final = 1000
CHUNK: Final = 10_000
SEGMENT_BYTES: Final = 8 << 20
STREAMED_MAX: Final = 100_000  # records of each partition that Spark reads
_FILLER: Final = b" the quick brown fox jumps over the lazy dog, again and again" * 2
_VALUE_BYTES: Final = 100


class MismatchError(Exception):
    """What was read is not what was written."""


def value_of(partition: int, offset: int) -> bytes:
    """The value written at an offset."""
    return (b"%d/%d" % (partition, offset) + _FILLER)[:_VALUE_BYTES]


def key_of(offset: int) -> bytes:
    """The key written at an offset."""
    return b"user-%d" % (offset % 1000)


def time_of(offset: int) -> int:
    """The timestamp written at an offset."""
    return START_MS + STEP_MS * offset


def check(holds: bool, what: str) -> None:
    """Raise `MismatchError` unless `holds`."""
    if not holds:
        raise MismatchError(what)


def check_record(partition: int, offset: int, record: logstore.Record) -> None:
    """Compare a record with the one that was written at `offset`."""
    if (record.offset, record.value, record.key, record.timestamp_ms) != (
        offset,
        value_of(partition, offset),
        key_of(offset),
        time_of(offset),
    ):
        raise MismatchError(f"partition {partition}, offset {offset}: {record!r}")


class Step:
    """Tells what is being done, how far it is, and how fast it was."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._live = sys.stdout.isatty()
        self._next = 0.0
        print(f"{what} ...", end="" if self._live else "\n", flush=True)
        self._begun = time.perf_counter()

    def progress(self, done: int, total: int) -> None:
        """Show a percentage, a few times a second, on a terminal."""
        if self._live and time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            print(f"\r{self._what} ... {done / total:4.0%}", end="", flush=True)

    def done(self, result: str, records: int = 0, size: int = 0) -> None:
        """Show the result, with rates where there are records or bytes."""
        seconds = max(time.perf_counter() - self._begun, 1e-9)
        rates = [f"{seconds:.2f} s"]
        if records:
            rates.append(f"{records / seconds:,.0f} records/s")
        if size:
            rates.append(f"{size / seconds / 1e6:,.0f} MB/s")
        begin = f"\r{self._what}: " if self._live else "  "
        print(f"{begin}{result} ({', '.join(rates)})", flush=True)


def shares(records: int) -> list[int]:
    """How many records each partition gets."""
    return [len(range(number, records, PARTITIONS)) for number in range(PARTITIONS)]


def chunks(count: int) -> Iterator[range]:
    """Offsets from 0 to `count`, in runs."""
    for begin in range(0, count, CHUNK):
        yield range(begin, min(begin + CHUNK, count))


def write(topic: logstore.Topic, records: int) -> None:
    """Write all records, in turns, and make them durable."""
    step = Step(f"writing {records:,} records to {PARTITIONS} partitions")
    plan = [
        (number, run)
        for number, count in enumerate(shares(records))
        for run in chunks(count)
    ]
    written = 0
    for number, run in sorted(plan, key=lambda each: each[1].start):
        span = topic[number].append_many(
            [value_of(number, offset) for offset in run],
            keys=[key_of(offset) for offset in run],
            timestamps_ms=[time_of(offset) for offset in run],
        )
        check(span == run, f"offsets {span}, not {run}")
        written += len(run)
        step.progress(written, records)
    size = size_of(topic)
    step.done(f"{size / 1e6:,.0f} MB of log", records, size)
    step = Step("syncing")
    topic.flush()
    for partition in topic:
        check(partition.durable_offset == partition.end_offset, "not all is durable")
    step.done("every record is on stable storage")


def size_of(topic: logstore.Topic) -> int:
    """Bytes of its logs."""
    return sum(s.size_bytes for partition in topic for s in partition.segments)


def read_back(topic: logstore.Topic, records: int) -> None:
    """Read everything and compare it."""
    step = Step("reading them back, comparing each")
    read = 0
    for partition in topic:
        number, offset = partition.number, 0
        for offset, record in enumerate(partition.read()):
            check_record(number, offset, record)
            if not offset % CHUNK:
                step.progress(read + offset, records)
        read += offset + 1 if partition.end_offset else 0
    check(read == records, f"read {read} records, not {records}")
    step.done("all as written", records, size_of(topic))


def seek(topic: logstore.Topic) -> None:
    """Find records by offset and by time."""
    chance = random.Random(1)
    filled = [partition for partition in topic if partition.end_offset]
    step = Step(f"seeking {SEEKS:,} offsets and {SEEKS:,} times")
    for _ in range(SEEKS):
        partition = chance.choice(filled)
        offset = chance.randrange(partition.end_offset)
        record = next(iter(partition.read(offset, offset + 1)))
        check_record(partition.number, offset, record)
    for _ in range(SEEKS):
        partition = chance.choice(filled)
        offset = chance.randrange(partition.end_offset)
        found = partition.offset_for_time(time_of(offset) - STEP_MS // 2)
        check(found == offset, f"time of offset {offset}: found {found}")
    step.done("each found the right record", 2 * SEEKS)


def delete_under_a_reader(partition: logstore.Partition) -> None:
    """Roll, and delete the first half, while somebody reads it."""
    step = Step("rolling and deleting segments under a running reader")
    end = partition.end_offset
    reader = enumerate(partition.read())
    for offset, record in (next(reader) for _ in range(min(end, 10))):
        check_record(partition.number, offset, record)
    before = len(partition.segments)
    partition.roll()
    start = partition.delete_before(end // 2)
    check(partition.start_offset == start == end // 2, f"the log starts at {start}")
    after = len(partition.segments)
    last = min(end, 10) - 1
    for offset, record in reader:
        check_record(partition.number, offset, record)
        last = offset
    check(last == end - 1, f"the reader ended with offset {last}, not {end - 1}")
    if start:
        with contextlib.suppress(logstore.OffsetOutOfRangeError):
            partition.read(start - 1)
            raise MismatchError(f"offset {start - 1} was deleted and can be read")
    step.done(f"{before} segments, then {after}; the reader saw every record", end)


def command(*arguments: str) -> int:
    """Run `logstore-dump` in this process."""
    print(f"$ logstore-dump {' '.join(arguments)}", flush=True)
    # The command is no public name; what it does is.
    status: int = importlib.import_module("logstore.cli.main").main(arguments)
    return status


def look_and_mend(directory: str, partition: str) -> None:
    """Look at a segment; lose an index and have it built anew."""
    path = os.path.join(directory, partition)
    logs = sorted(name for name in os.listdir(path) if name.endswith(".log"))
    log = os.path.join(path, logs[0])
    check(command("batches", log, "--limit", "3") == 0, "the segment cannot be shown")
    index = log.removesuffix(".log") + ".index"
    with open(index, "rb") as file:
        before = file.read()
    os.unlink(index)
    print(f"(removed {os.path.basename(index)})")
    check(command("rebuild-index", log) == 0, "the index cannot be built")
    with open(index, "rb") as file:
        check(file.read() == before, "the index is not the one that was removed")
    check(command("verify", "--deep", directory) == 0, "the store has problems")


def missing_for_spark() -> str:
    """What has to be installed before Spark can be shown; "" where all is there."""
    if importlib.util.find_spec("pyspark") is None:
        return (
            f"pyspark is not installed: in the checkout of logstore, "
            f"{sys.executable} -m pip install '.[spark]'"
        )
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return (
            "Java 17 or later is not installed: on Debian and Ubuntu, "
            "apt install openjdk-17-jre-headless"
        )
    return ""


def start_spark() -> Any:
    """A session on two cores that says nothing of itself but errors."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The module needs pyspark; what it does is public.
    helpers = importlib.import_module("logstore.spark")
    sql = importlib.import_module("pyspark.sql")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = helpers.session_defaults(sql.SparkSession.builder.master("local[2]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    helpers.register(spark)
    return spark


def stream(spark: Any, directory: str, output: str) -> None:
    """A stream from the store into another one: each record once, though it stops and
    is started again."""
    try:
        with logstore.open(directory) as store:
            topic = store.topic("demo")
            starts = {
                p.number: max(p.start_offset, p.end_offset - STREAMED_MAX)
                for p in topic
            }
            run_query(spark, directory, output, starts)
            check_copy(topic, output, starts)
            for partition in topic:
                partition.append(b"one more")
            run_query(spark, directory, output, starts)
            check_copy(topic, output, starts)
    finally:
        spark.stop()


def run_query(spark: Any, directory: str, output: str, starts: dict[int, int]) -> None:
    """Run the query to the end of what there is; it goes on where it stopped before."""
    step = Step("streaming from store to store")
    offsets = ",".join(f'"{number}":{start}' for number, start in starts.items())
    query = (
        spark.readStream.format("logstore")
        .option("subscribe", "demo")
        .option("startingOffsets", f'{{"demo":{{{offsets}}}}}')
        .load(directory)
        .select("key", "value", "partition", "timestamp")
        .writeStream.format("logstore")
        .option("topic", "copy")
        .option("partitions", PARTITIONS)
        .option("checkpointLocation", os.path.join(output, "checkpoint"))
        .trigger(availableNow=True)
        .start(os.path.join(output, "store"))
    )
    query.awaitTermination()
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    step.done(f"{rows:,} records", rows)


def check_copy(topic: logstore.Topic, output: str, starts: dict[int, int]) -> None:
    """Compare each record that the query has written with the one it has read."""
    with logstore.open(os.path.join(output, "store"), read_only=True) as store:
        for partition, copy in zip(topic, store.topic("copy"), strict=True):
            start = starts[partition.number]
            count = partition.end_offset - start
            check(copy.end_offset == count, f"{copy.end_offset} of {count} records")
            for record, copied in zip(partition.read(start), copy.read(), strict=True):
                same = copied._replace(offset=record.offset) == record
                check(same, f"{copied} is not {record}")


def show_spark(directory: str) -> None:
    """Stream the store, or say what that needs."""
    missing = missing_for_spark()
    if missing:
        print(f"(not shown: streams with Spark. {missing})")
        return
    step = Step("starting Spark")
    try:
        spark = start_spark()
    except RuntimeError as error:  # PySpark's own: it cannot start its Java
        print(f"(not shown: {error} Spark needs Java 17 or later.)")
        return
    step.done(f"Spark {spark.version}")
    with tempfile.TemporaryDirectory(prefix="logstore-demo-spark-") as output:
        stream(spark, directory, output)


def run(directory: str, records: int, *, spark: bool) -> None:
    """All of it; the stream only where `spark` is true."""
    print(f"a store in {directory}")
    config = logstore.TopicConfig(segment_bytes=SEGMENT_BYTES)
    with logstore.open(directory) as store:
        topic = store.create_topic("demo", partitions=PARTITIONS, config=config)
        write(topic, records)
        read_back(topic, records)
        seek(topic)
        delete_under_a_reader(topic[0])
    step = Step("opening the store again")
    with logstore.open(directory, create=False) as store:
        check(not store.recovery_report, f"recovery: {store.recovery_report}")
        ends = [partition.end_offset for partition in store.topic("demo")]
    check(ends == shares(records), f"the logs end at {ends}")
    step.done("everything is there")
    look_and_mend(directory, "demo-1")
    if spark:
        show_spark(directory)


def _count(text: str) -> int:
    # Each partition has a record, so that there is something to look at.
    if not text.isdigit() or int(text) < PARTITIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {PARTITIONS} on")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0, or 1 when something read was not as written."""
    parser = argparse.ArgumentParser(
        prog="python -m logstore.demo", description="Show logstore at work."
    )
    parser.add_argument(
        "--records", metavar="N", type=_count, default=1_000_000, help="how many"
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="write the store there and keep it (default: a temporary directory)",
    )
    parser.add_argument(
        "--no-spark", dest="spark", action="store_false", help="leave the stream out"
    )
    args = parser.parse_args(argv)
    try:
        if args.dir is not None:
            run(os.path.abspath(args.dir), args.records, spark=args.spark)
        else:
            with tempfile.TemporaryDirectory(prefix="logstore-demo-") as directory:
                store = os.path.join(directory, "store")
                run(store, args.records, spark=args.spark)
    except KeyboardInterrupt:
        print()
        return 130
    except (MismatchError, logstore.LogStoreError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    print("all well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
