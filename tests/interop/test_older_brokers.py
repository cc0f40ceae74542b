"""logstore reads the directories of brokers from 0.8.2 on that the tests start: files
of a killed cleaner, groups, old formats, topics that wait for deletion.

The expected records are the ones that the broker's consumer gets after recovery.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Record, TimestampType
from support.damage import frames, logs_in
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import POM, ToolsUnavailableError, numbers_of
from support.releases import STARTED

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from support import kafka_clients as clients
from support import older_clients as older

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]

OLDEST, OLD, FIRST_OF_2 = "0.8.2.2", "0.10.2.2", "1.1.1"
OLDER = (OLDEST, OLD, FIRST_OF_2)
SECONDS_MAX = 90
SEGMENT_BYTES = 20_000
# Files stay until the test has read them.
SETTINGS = {
    "delete.topic.enable": "true",
    "log.segment.bytes": SEGMENT_BYTES,
    "log.segment.delete.delay.ms": 600_000,
    "log.index.interval.bytes": 500,
    "log.cleaner.enable": "false",
}
CLEANING = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
}
# The moment at which the cleaner is killed: the next rename, and the files of the new
# segment that must be there.
MOMENTS = {
    "cleaned": (".log.cleaned", {".log.cleaned"}),
    "renamed": (".index.cleaned", {".log.swap", ".index.cleaned"}),
    "swapped": (".log.swap", {".log.swap", ".index.swap"}),
}
Start = Callable[..., KafkaBroker]


@pytest.fixture
def started(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[..., KafkaBroker]:
    """Start a broker that is killed at the end of the test."""

    def start(release: str, settings: dict[str, Any]) -> KafkaBroker:
        directory = tmp_path / "broker"
        directory.mkdir()
        try:
            broker = KafkaBroker(directory, release, cache_directory(), settings)
        except ToolsUnavailableError as error:
            pytest.skip(str(error))
        request.addfinalizer(lambda: broker.__exit__(None, None, None))
        broker.start()
        return broker

    return start


def records(count: int, seed: int = 1, keys: int = 97) -> list[Record]:
    rng = random.Random(seed)
    begin = time.time_ns() // 1_000_000 - 60_000
    return [
        Record(
            -1, begin + number, b"key-%d" % rng.randrange(keys),
            b"%d:" % number + 2 * rng.randbytes(rng.randrange(100)), (),
            TimestampType.CREATE_TIME,
        )
        for number in range(count)
    ]  # fmt: skip


def tombstones(made: list[Record]) -> list[Record]:
    """Set the value of every eleventh record to null."""
    return [
        one._replace(value=None) if number % 11 == 3 else one
        for number, one in enumerate(made)
    ]


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def ours(data: Path, topic: str, **options: Any) -> list[Record]:
    with logstore.open(data, **options) as store:
        return list(store.topic(topic)[0].read())


def newest(made: list[Record]) -> dict[bytes | None, Record]:
    return {one.key: one for one in made}


def copied(data: Path, target: Path) -> Path:
    """A copy without the lock file, to be compared with the broker's next start."""
    shutil.copytree(data, target)
    (target / ".lock").unlink(missing_ok=True)
    return target


# ------------------------------------------------------------ a cleaner is killed


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes a broker stop before a rename."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("shim") / "pause.so"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = str(POM.with_name("pause.c"))
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("release", [*OLDER, *STARTED])
def test_log_of_a_killed_cleaner_is_what_the_broker_makes_of_it(
    started: Start, shim: Path, tmp_path: Path, release: str, moment: str
) -> None:
    """There are `.cleaned`, `.swap` and `.deleted` files; read-only and recovered."""
    last, wanted = MOMENTS[moment]
    said = tmp_path / "said"
    environment = {
        "LD_PRELOAD": str(shim), "PAUSE_AT": last, "PAUSE_IN": "/states-0/",
        "PAUSE_SAID": str(said),
    }  # fmt: skip
    # From 4.0 on, only a topic has segments that are so small, by an internal setting.
    small = numbers_of(release) >= (4,)
    fitting = {k: v for k, v in SETTINGS.items() if not small or "segment.b" not in k}
    broker = started(release, fitting)
    name = "internal_segment_bytes" if small else "segment_bytes"
    older.create_topics(
        broker, "states", **{"cleanup_policy": "compact", name: SEGMENT_BYTES}
    )
    sent = older.send(broker, "states", tombstones(records(2000)))
    broker.stop()
    broker.configure({**fitting, **CLEANING})
    broker.start(environment)
    until(said.exists, "the cleaner has not come to the rename")
    broker.stop(kill=True)
    names = {path.name[20:] for path in broker.data.glob("states-0/*")}
    assert wanted <= names
    assert (".log.deleted" in names) == (moment == "swapped")
    copy = copied(broker.data, tmp_path / "copy")
    looked = ours(copy, "states", read_only=True)
    recovered = ours(copy, "states")
    broker.configure(fitting)
    broker.start()
    expected = older.consumed(broker, "states")["states"]
    assert looked == recovered
    if moment == "renamed" and release in OLDER:
        # They finish it; later releases, and logstore, take the old segments as long as
        # one of the new files is incomplete.
        assert looked == sent
        assert len(expected) < len(sent)
    else:
        assert looked == expected
        assert (looked == sent) == (moment != "swapped")
    assert set(expected) <= set(sent)
    assert newest(expected) == newest(sent)
    report = logstore.verify(copy, deep=True)
    assert list(report.problems) == []


# ------------------------------------------------------------ other files


@pytest.mark.parametrize("release", [OLD, FIRST_OF_2])
def test_topic_that_waits_for_its_deletion_is_no_topic(
    started: Start, release: str
) -> None:
    """Its directory ends with ``-delete``; logstore does not touch it."""
    broker = started(release, SETTINGS)
    older.create_topics(broker, "kept", "gone")
    sent = older.send(broker, "kept", records(50))
    older.send(broker, "gone", records(50))
    clients.delete_topics(broker, "gone")
    until(lambda: list(broker.data.glob("gone-0.*-delete")), "nothing was deleted")
    for is_running in (True, False):
        with logstore.open(broker.data, read_only=True) as store:
            assert [one for one in store.topics() if one[:2] != "__"] == ["kept"]
        if is_running:
            broker.stop(kill=True)
    assert ours(broker.data, "kept") == sent
    (left,) = broker.data.glob("gone-0.*-delete")
    assert list(left.glob("*.log"))


def move(broker: KafkaBroker, topic: str, target: Path) -> None:
    """Have a partition moved to another log directory, at a byte per second."""
    where = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [str(target)]}
    plan = target.parent / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [where]}))
    numbers = numbers_of(broker.release)
    main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    if numbers < (3, 7):
        main = "kafka.admin.ReassignPartitionsCommand"
    more = ["--zookeeper", broker.zookeeper] if numbers < (2, 5) else []
    broker.run(
        main, "--bootstrap-server", broker.address, *more, "--execute",
        "--reassignment-json-file", str(plan), "--replica-alter-log-dirs-throttle", "1",
    )  # fmt: skip


@pytest.mark.parametrize("release", [FIRST_OF_2, *STARTED])
def test_partition_that_is_moved_to_another_directory_is_not_there_yet(
    started: Start, tmp_path: Path, release: str
) -> None:
    """Its directory ends with ``-future``; logstore does not touch it."""
    here, there = tmp_path / "broker" / "data", tmp_path / "there"
    there.mkdir()
    settings = {
        "log.dirs": f"{here},{there}",
        "replica.fetch.max.bytes": 10_000,
        "replica.fetch.response.max.bytes": 10_000,
    }
    # From 4.0 on, no segment is smaller.
    broker = started(release, {**SETTINGS, **settings, "log.segment.bytes": 1 << 20})
    older.create_topics(broker, "orders", "others")
    if not (here / "orders-0").exists():
        here, there = there, here
    sent = older.send(broker, "orders", records(3000))
    move(broker, "orders", there)
    until(lambda: list(there.glob("orders-0.*-future")), "nothing is moved")
    for is_running in (True, False):
        with logstore.open(there, read_only=True) as store:
            assert "orders" not in store.topics()
        assert ours(here, "orders", read_only=True) == sent
        if is_running:
            broker.stop(kill=True)
    with logstore.open(there) as store:
        assert "orders" not in store.topics()
    assert ours(here, "orders") == sent
    assert list(there.glob("orders-0.*-future/*.log"))
    broker.start()
    assert older.consumed(broker, "orders")["orders"] == sent


@pytest.mark.parametrize("release", OLDER)
def test_offsets_of_groups_are_those_that_the_broker_tells(
    started: Start, release: str
) -> None:
    """Offsets of a running broker and of the stopped one."""
    broker = started(release, SETTINGS)
    older.create_topics(broker, "orders", "events")
    for topic in ("orders", "events"):
        older.send(broker, topic, records(100))
    wanted = {
        "first": {"orders": (7, "at 7"), "events": (100, "")},
        "second": {"orders": (33, "müll" if release != OLDEST else "text")},
    }
    for group, offsets in wanted.items():
        older.commit(broker, group, {"orders": (1, "before")})
        older.commit(broker, group, offsets)
        assert older.committed(broker, group, list(offsets)) == offsets
    for is_running in (True, False):
        groups = logstore.kafka.groups(broker.data)
        assert groups.problems == ()
        found = {
            group.group: {
                # librdkafka sends the final zero of its string, too.
                row.topic: (row.offset, row.metadata.rstrip("\0"))
                for row in group.partitions
            }
            for group in groups
            if group.group in wanted
        }
        assert found == wanted
        (row,) = (
            row
            for group in groups
            for row in group.partitions
            if group.group == "second"
        )
        assert (row.end, row.lag) == (100, 67)
        if is_running:
            broker.stop()


FORMATS = [(OLD, "0.9.0", 0), (FIRST_OF_2, "0.9.0", 0), (FIRST_OF_2, "0.10.2", 1)]


@pytest.mark.parametrize(("release", "version", "magic"), FORMATS)
def test_topics_of_old_formats_are_read_as_a_consumer_reads_them(
    started: Start, tmp_path: Path, release: str, version: str, magic: int
) -> None:
    """Each codec; with the running broker, and after a kill with a cut last batch."""
    broker = started(release, SETTINGS)
    codecs = ("none", "gzip", "snappy", "lz4")
    settings = {"message_format_version": version}
    older.create_topics(broker, *codecs, **settings)
    for codec in codecs:
        older.send(broker, codec, records(500), codec)
    expected = older.consumed(broker, *codecs)
    with logstore.open(broker.data, read_only=True) as store:
        for codec in codecs:
            batches = list(store.topic(codec)[0].read_batches())
            assert {batch.magic for batch in batches} == {magic}
            assert codec in {batch.compression for batch in batches}
            assert list(store.topic(codec)[0].read()) == expected[codec]
            assert len(expected[codec]) == 500
            newest_ms = max(record.timestamp_ms for record in expected[codec])
            found = store.topic(codec)[0].offset_for_time(max(newest_ms, 1))
            assert (found is None) == (magic == 0)
    assert list(logstore.verify(broker.data, deep=True).problems) == []
    broker.stop(kill=True)
    cut(broker.data, codecs)
    copy = copied(broker.data, tmp_path / "copy")
    looked = {codec: ours(copy, codec, read_only=True) for codec in codecs}
    recovered = {codec: ours(copy, codec) for codec in codecs}
    broker.start()
    left = older.consumed(broker, *codecs)
    assert looked == recovered == left
    report = logstore.verify(copy, deep=True)
    assert list(report.problems) == []
    assert all(0 < len(left[codec]) < 500 for codec in codecs)


def cut(data: Path, topics: tuple[str, ...]) -> None:
    """Remove the end of the last batch of each topic, as a power failure may."""
    for topic in topics:
        log = logs_in(data / f"{topic}-0")[-1]
        last = frames(log)[-1]
        with log.open("r+b") as file:
            file.truncate(last.pos + last.size - 5)
        index = log.with_suffix(".index")
        assert index.stat().st_size > 1 << 20, "it was not killed"


def test_killed_broker_with_a_torn_tail_is_recovered_as_it_recovers(
    started: Start, tmp_path: Path
) -> None:
    """The log has magic 2: the last batch is gone, indexes have their whole size."""
    broker = started(FIRST_OF_2, SETTINGS)
    older.create_topics(broker, "orders")
    sent = older.send(broker, "orders", records(500), "lz4")
    broker.stop(kill=True)
    cut(broker.data, ("orders",))
    copy = copied(broker.data, tmp_path / "copy")
    looked, recovered = ours(copy, "orders", read_only=True), ours(copy, "orders")
    broker.start()
    left = older.consumed(broker, "orders")["orders"]
    assert looked == recovered == left
    assert 0 < len(left) < len(sent)
    assert left == sent[: len(left)]


def test_running_broker_of_0_8_is_read(started: Start) -> None:
    """Each read has all records that were there before it, and nothing else."""
    assert numbers_of(OLDEST) < (0, 10), "the others are in test_broker_running"
    broker = started(OLDEST, SETTINGS)
    older.create_topics(broker, "orders")
    wanted = records(6000)
    looks: list[list[Record]] = []
    with older.sender(broker, "orders", "gzip") as process:
        assert process.stdin is not None
        for at in range(0, len(wanted), 100):
            for one in wanted[at : at + 100]:
                process.stdin.write(older.line_of(one.key, one.value))
            process.stdin.flush()
            looks.append(ours(broker.data, "orders", read_only=True))
            time.sleep(0.02)
        process.stdin.close()
        assert process.stdout is not None
        offsets = [int(line) for line in process.stdout]
    assert offsets == list(range(len(wanted)))
    expected = older.consumed(broker, "orders")["orders"]
    assert [(r.key, r.value) for r in expected] == [(r.key, r.value) for r in wanted]
    for earlier, later in itertools.pairwise(looks):
        assert len(earlier) <= len(later)
    for look in looks:
        assert look == expected[: len(look)]
    assert len({len(look) for look in looks}) > 5
    assert ours(broker.data, "orders", read_only=True) == expected
