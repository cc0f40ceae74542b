"""logstore at work: python examples/demo.py (what ``make demo`` runs).

Eight steps: write and read back, seek, kill a writer, cut the power, open the disk of a
dead Kafka broker, damage a log and repair it, kill one of two workers, verify
everything. Every record that is read is compared with what was written: each follows
from its partition and offset.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from demo_screen import Screen, duration, plural
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from workers import run as run_workers

import logstore

EXAMPLES: Final = Path(__file__).resolve().parent
BROKER_DISK: Final = EXAMPLES / "broker_disk"

PARTITIONS: Final = 4
START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 10
SEEKS: Final = 2000
CHUNK: Final = 10_000
SEGMENT_BYTES: Final = 8 << 20
KILLS: Final = 3
ACKNOWLEDGED: Final = range(1000, 4000)  # records after which a writer is killed
POWER_CUTS: Final = 2
SYNCED: Final = range(10, 30)  # durable appends after which the power is cut
PER_SYNC: Final = 200  # records up to each durable one
UNSYNCED_S_MAX: Final = 0.01  # the writer goes on for so long behind the last of them
ORDERS: Final = 2000
_FILLER: Final = b" the quick brown fox jumps over the lazy dog, again and again" * 2
_VALUE_BYTES: Final = 100
GO_ON: Final = """\
[bold]Go on:[/] the quickstart in README.md, then docs/guide.md, and
examples/ with one command each. [cyan]make demo-spark[/] streams with
Spark; [cyan].venv/bin/logstore-dump --help[/] looks into any store."""


class MismatchError(Exception):
    """What was read is not what was written."""


def value_of(partition: int, offset: int) -> bytes:
    """The value written at an offset."""
    return (b"%d/%d" % (partition, offset) + _FILLER)[:_VALUE_BYTES]


def key_of(offset: int) -> bytes:
    """The key written at an offset."""
    return b"user-%d" % (offset % 1000)


def time_of(offset: int) -> int:
    """The timestamp written at an offset, in milliseconds."""
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


# ---------------------------------------------------------------- write, read, seek


def shares(records: int) -> list[int]:
    """How many records each partition gets."""
    return [len(range(number, records, PARTITIONS)) for number in range(PARTITIONS)]


def runs(records: int) -> Iterator[tuple[int, range]]:
    """(partition, offsets) of what is appended at once, the partitions in turns."""
    counts = shares(records)
    for begin in range(0, max(counts), CHUNK):
        for number, count in enumerate(counts):
            if begin < count:
                yield number, range(begin, min(begin + CHUNK, count))


def write(screen: Screen, topic: logstore.Topic, records: int) -> None:
    """Write all records and make them durable."""
    begun = time.perf_counter()
    with screen.bar(records, "writing") as bar:
        for number, run in runs(records):
            span = topic[number].append_many(
                [value_of(number, offset) for offset in run],
                keys=[key_of(offset) for offset in run],
                timestamps_ms=[time_of(offset) for offset in run],
            )
            check(span == run, f"offsets {span}, not {run}")
            bar.advance(bar.task_ids[0], len(run))
        topic.flush()
    seconds = time.perf_counter() - begun
    for partition in topic:
        check(partition.durable_offset == partition.end_offset, "not all is durable")
    size = sum(s.size_bytes for partition in topic for s in partition.segments)
    screen.done(
        f"{plural(records, 'record')} in {PARTITIONS} partitions, synced: "
        f"{records / seconds:,.0f} records/s, {size / seconds / 1e6:,.0f} MB/s"
    )


def read_back(screen: Screen, topic: logstore.Topic, records: int) -> None:
    """Read everything and compare it."""
    begun = time.perf_counter()
    read = 0
    with screen.bar(records, "reading") as bar:
        for partition in topic:
            for offset, record in enumerate(partition.read()):
                check_record(partition.number, offset, record)
                read += 1
                if read % CHUNK == 0:
                    bar.update(bar.task_ids[0], completed=read)
    seconds = time.perf_counter() - begun
    check(read == records, f"read {read} records, not {records}")
    screen.done(
        f"read back, each one compared: {records / seconds:,.0f} records/s",
        f"{plural(records, 'record')} written, read back and compared",
    )


def timed_us(calls: Sequence[Callable[[], object]]) -> list[float]:
    """How long each call took, in microseconds, the shortest first."""
    times = []
    for call in calls:
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1000)
    return sorted(times)


def seek(screen: Screen, topic: logstore.Topic) -> None:
    """Find records by offset and by time, at random."""
    chance = random.Random(1)

    def place() -> tuple[logstore.Partition, int]:
        partition = topic[chance.randrange(PARTITIONS)]
        return partition, chance.randrange(partition.end_offset)

    def by_offset(partition: logstore.Partition, offset: int) -> None:
        record = next(partition.read(offset, offset + 1))
        check_record(partition.number, offset, record)

    def by_time(partition: logstore.Partition, offset: int) -> None:
        found = partition.offset_for_time(time_of(offset) - STEP_MS // 2)
        check(found == offset, f"time of offset {offset}: found {found}")

    medians = []
    for what, find in (("an offset", by_offset), ("a time", by_time)):
        places = [place() for _ in range(SEEKS)]
        times = timed_us([lambda at=at, find=find: find(*at) for at in places])
        medians.append(statistics.median(times))
        screen.done(
            f"{SEEKS:,} times {what}: {duration(medians[-1])} in the median, "
            f"{duration(times[int(len(times) * 0.99)])} at 99 %"
        )
    screen.done(
        "each found the right record",
        f"records found by offset in {duration(medians[0])}, "
        f"by time in {duration(medians[1])}",
    )


# ------------------------------------------------------------------- a killed writer

ACKNOWLEDGEMENT: Final = struct.Struct("<q")


def write_until_killed(directory: str, *, synced: bool) -> None:
    """Append record by record, and write each offset that was returned to stdout: an
    acknowledgement, as a server would send it. `synced`: only that of each record which
    was made durable."""
    with logstore.open(directory) as store:
        name = "synced" if synced else "acknowledged"
        partition = store.create_topic(name, exist_ok=True)[0]
        while True:
            offset = partition.end_offset
            durable = synced and (offset + 1) % PER_SYNC == 0
            partition.append(
                value_of(0, offset),
                key=key_of(offset),
                timestamp_ms=time_of(offset),
                durable=durable,
            )
            if durable or not synced:
                os.write(1, ACKNOWLEDGEMENT.pack(offset))


def run_and_kill(
    directory: str, lifetime: int, *options: str, pause_s: float = 0.0
) -> int:
    """Start a writer in another process, and kill it with SIGKILL while it writes, a
    moment after so many acknowledgements. Returns how many records are acknowledged in
    all."""
    command = [sys.executable, __file__, "--write-until-killed", directory, *options]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for count in range(1, 1 << 62):
            data = writer.stdout.read(ACKNOWLEDGEMENT.size)
            if len(data) < ACKNOWLEDGEMENT.size:
                break  # all that it wrote into the pipe before it died
            acknowledged = ACKNOWLEDGEMENT.unpack(data)[0] + 1
            if count == lifetime:
                time.sleep(pause_s)
                writer.kill()
    return acknowledged


def kill_a_writer(directory: str) -> tuple[int, int]:
    """Kill a writer. Returns (acknowledged, in the log): how many records each has in
    all."""
    acknowledged = run_and_kill(directory, random.choice(ACKNOWLEDGED))
    with logstore.open(directory, create=False) as store:
        partition = store.topic("acknowledged")[0]
        for offset, record in enumerate(partition.read()):
            check_record(0, offset, record)
        kept = partition.end_offset
    check(kept >= acknowledged, f"{acknowledged - kept} acknowledged records are lost")
    return acknowledged, kept


def show_kills(screen: Screen, directory: str) -> None:
    """Kill writers, and count what is left."""
    for number in range(1, KILLS + 1):
        acknowledged, kept = kill_a_writer(directory)
        lost = max(0, acknowledged - kept)
        screen.done(
            f"kill -9 no. {number}: {acknowledged:,} acknowledged, {kept:,} recovered, "
            f"[bold]{lost} lost[/]"
        )
    screen.done(
        "every record compared again after each recovery",
        f"{KILLS} writers killed with SIGKILL: {lost} of {acknowledged:,} acknowledged "
        "records lost",
    )


# ------------------------------------------------------------------------ a power cut


def cut_power(directory: str) -> tuple[int, int]:
    """Leave of a writer that is dead what a power failure leaves: of the bytes that no
    sync has covered some are zeros, and the indexes are empty.

    Returns (durable, in the log): how many records each had.
    """
    with logstore.open(directory, read_only=True) as store:
        partition = store.topic("synced")[0]
        durable, end = partition.durable_offset, partition.end_offset
        batch = next(partition.read_batches(durable), None) if end > durable else None
        folder, segment = partition.path, partition.segments[-1]
    if batch is not None:
        with open(segment.path, "r+b") as log:
            size = log.seek(0, os.SEEK_END)
            lost = random.randrange(batch.position, size)
            log.seek(lost)
            log.write(bytes(size - lost))
    for name in os.listdir(folder):
        if name.endswith("index"):
            path = os.path.join(folder, name)
            with open(path, "r+b") as index:
                index.write(bytes(os.path.getsize(path)))
    return durable, end


def show_power_cuts(screen: Screen, directory: str) -> None:
    """Cut the power, and count what is left."""
    screen.tell(
        f"every {PER_SYNC}th append is durable; of those after it the power cut takes "
        f"some"
    )
    acknowledged = kept = 0
    for number in range(1, POWER_CUTS + 1):
        pause_s = random.uniform(0, UNSYNCED_S_MAX)
        lifetime = random.choice(SYNCED)
        acknowledged = run_and_kill(directory, lifetime, "--synced", pause_s=pause_s)
        durable, end = cut_power(directory)
        check(durable >= acknowledged, "an acknowledged record was not durable")
        with logstore.open(directory) as store:
            partition = store.topic("synced")[0]
            for offset, record in enumerate(partition.read()):
                check_record(0, offset, record)
            kept = partition.end_offset
        lost = acknowledged - kept
        check(lost <= 0, f"{lost} durable records are lost")
        screen.done(
            f"power cut no. {number}: {acknowledged:,} durable, {end:,} written, "
            f"{kept:,} recovered, [bold]{max(lost, 0)} lost[/]"
        )
    screen.done(
        "every record compared again after each recovery",
        f"the power cut {POWER_CUTS} times: 0 of {acknowledged:,} durable records lost",
    )


# --------------------------------------------------------------- the disk of a broker


def show_broker_disk(screen: Screen) -> None:
    """Open a log directory as a Kafka broker left it, and change nothing in it."""
    screen.tell("examples/broker_disk: Kafka 4.2, killed while its producers wrote")
    table = Table(box=None, padding=(0, 2, 0, 1), header_style="dim")
    table.add_column("partition")
    for name in ("segments", "records", "committed"):
        table.add_column(name, justify="right")
    table.add_column("codec")
    total = 0
    with logstore.open(BROKER_DISK, read_only=True) as store:
        for topic in map(store.topic, store.topics()):
            for p in topic:
                records = sum(1 for _ in p.read())
                committed = sum(1 for _ in p.read(isolation="read_committed"))
                codecs = {batch.compression for batch in p.read_batches()}
                counts = (len(p.segments), records, committed)
                name = f"{topic.name}-{p.number}"
                table.add_row(name, *map(str, counts), ", ".join(sorted(codecs)))
                total += records
    screen.console.print(Padding(table, (0, 0, 0, 2)))
    report = logstore.verify(BROKER_DISK, deep=True)
    check(report.ok, f"the broker's files have problems: {report.problems}")
    torn = sum(note.kind == "torn-tail" for note in report.notes)
    screen.done(
        f"{plural(total, 'record')} read in place, without a broker; "
        f"{plural(torn, 'torn tail')} left out",
        f"a dead Kafka broker's directory read in place: {plural(total, 'record')}",
    )


# --------------------------------------------------------------------------- damage


def flip_a_bit(partition: logstore.Partition) -> tuple[str, int, range]:
    """Flip one bit in the middle of the log; (path, byte, the offsets of its batch)."""
    batch = next(partition.read_batches(partition.end_offset // 2))
    offsets = range(batch.base_offset, batch.next_offset)
    base = max(
        s.base_offset for s in partition.segments if s.base_offset <= offsets.start
    )
    name = f"{partition.topic}-{partition.number}"
    path = os.path.join(partition.path, f"{base:020}.log")
    position = batch.position + batch.size_bytes // 2
    with open(path, "r+b") as log:
        log.seek(position)
        byte = log.read(1)[0]
        log.seek(position)
        log.write(bytes([byte ^ 0x10]))
    return f"{name}/{os.path.basename(path)}", position, offsets


def show_damage(screen: Screen, directory: str) -> None:
    """Flip a bit; find it, and repair the log at the price that was told before."""
    with logstore.open(directory) as store:
        partition = store.topic("demo")[1]
        end = partition.end_offset
        path, position, damaged = flip_a_bit(partition)
    screen.tell(f"one bit flipped: {path}, byte {position:,}")
    report = logstore.verify(directory, deep=True)
    check(len(report.problems) == 1, f"verify found {report.problems}")
    (problem,) = report.problems
    check(problem.position is not None, "verify does not say where")
    screen.done(
        f"verify found it in {report.bytes / 1e6:,.0f} MB: {problem.kind}, "
        f"from offset {problem.first_offset:,} on"
    )
    for mode in ("cut", "skip"):
        plan = logstore.repair(directory, mode, dry_run=True)
        lost = lost_records(plan, end)
        screen.tell(f"repair --mode {mode} would lose {plural(lost, 'record')}")
    done = logstore.repair(directory, "skip")
    check(done.ok, f"repair left {done.remaining}")
    with logstore.open(directory) as store:
        left = [record.offset for record in store.topic("demo")[1].read()]
    kept = [*range(damaged.start), *range(damaged.stop, end)]
    check(left == kept, "repair took something else than the damaged batch")
    lost = end - len(left)
    screen.done(
        f"repaired: {plural(lost, 'record')} lost, the batch of one flipped bit; "
        f"{len(left):,} kept"
    )
    screen.done(
        "the damaged bytes are kept in quarantine",
        f"a flipped bit found and repaired: {plural(lost, 'record')} lost, "
        f"{len(left):,} kept",
    )


# Labels of the actions of a repair that take records out of a log.
TAKEN_OUT: Final = ("cut", "skipped", "segment-removed")


def lost_records(report: logstore.types.RepairReport, end: int) -> int:
    """How many records a repair takes out of a log that ends at `end`."""
    lost = 0
    for action in report.actions:
        if action.label in TAKEN_OUT and action.first_offset is not None:
            last = end - 1 if action.last_offset is None else action.last_offset
            lost += last - action.first_offset + 1
    return lost


# -------------------------------------------------------------------------- workers


def show_workers(screen: Screen) -> None:
    """Two processes share a topic; one is killed, and the other one goes on."""
    with tempfile.TemporaryDirectory(prefix="logstore-demo-workers-") as folder:
        try:
            run_workers(Path(folder) / "store", ORDERS, screen.tell)
        except ValueError as error:
            raise MismatchError(str(error)) from error
    screen.done(
        f"each of {ORDERS:,} orders has one invoice",
        f"a worker killed, its work taken over: one invoice for each of {ORDERS:,} "
        f"orders",
    )


def verify_all(screen: Screen, directory: str) -> None:
    """Verify what the demo has written, deep."""
    begun = time.perf_counter()
    report = logstore.verify(directory, deep=True)
    check(report.ok, f"problems: {report.problems}")
    seconds = time.perf_counter() - begun
    screen.done(
        f"{report.bytes / 1e6:,.0f} MB, {plural(report.records, 'record')}: no "
        f"problems ({report.bytes / seconds / 1e6:,.0f} MB/s)"
    )


# ----------------------------------------------------------------------------- main


def run(screen: Screen, directory: str, records: int) -> None:
    """All steps; the store goes into `directory`, which must be missing."""
    # Kafka's record batches, which have one checksum for about a thousand records here.
    config = logstore.TopicConfig(message_format=2, segment_bytes=SEGMENT_BYTES)
    with logstore.open(directory) as store:
        topic = store.create_topic("demo", partitions=PARTITIONS, config=config)
        screen.step("Write, sync, read back")
        write(screen, topic, records)
        read_back(screen, topic, records)
        screen.step("Seek")
        seek(screen, topic)
    screen.step("Kill a writer")
    show_kills(screen, directory)
    screen.step("Cut the power")
    show_power_cuts(screen, directory)
    screen.step("Open the disk of a dead Kafka broker")
    show_broker_disk(screen)
    screen.step("Damage a log, find it, repair it")
    show_damage(screen, directory)
    screen.step("Kill one of two workers")
    show_workers(screen)
    screen.step("Verify everything")
    verify_all(screen, directory)


def show(steps: Callable[[Screen, str], None], go_on: str) -> int:
    """Run the steps of a demo, with a screen and an empty folder that goes afterwards;
    the exit status: 0, or 1 when something read was not as written."""
    screen = Screen(Console())
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="logstore-demo-") as folder:
            steps(screen, folder)
    except KeyboardInterrupt:
        print()
        return 130
    except (MismatchError, logstore.LogStoreError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    screen.close(time.monotonic() - begun, go_on)
    return 0


def _count(text: str) -> int:
    # Each partition has records on both sides of the damaged one.
    least = 3 * PARTITIONS
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of at least {least}"
        )
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0, or 1 when something read was not as written."""
    parser = argparse.ArgumentParser(description="Show logstore at work.")
    parser.add_argument(
        "--records", metavar="N", type=_count, default=1_000_000, help="how many"
    )
    parser.add_argument("--dir", metavar="DIR", help="keep the store there")
    parser.add_argument("--write-until-killed", help=argparse.SUPPRESS)
    parser.add_argument("--synced", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.write_until_killed is not None:
        write_until_killed(args.write_until_killed, synced=args.synced)
    # What the openings after a kill and a power cut repair is no news here.
    logging.getLogger("logstore").addHandler(logging.NullHandler())

    def steps(screen: Screen, folder: str) -> None:
        directory = args.dir or os.path.join(folder, "store")
        run(screen, os.path.abspath(directory), args.records)

    return show(steps, GO_ON)


if __name__ == "__main__":
    sys.exit(main())
