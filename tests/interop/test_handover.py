"""Findings of `check_handover` are confirmed by a broker of the release.

For each finding there is a directory: the check predicts an effect, and then a broker
is started on it. It refuses to start, or it starts, and its changes to the logs are
compared with the prediction.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logstore
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import cut, flip_bit, frames
from support.kafka_broker import KafkaBroker, KafkaBrokerError, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.releases import STARTED, short_name

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.thorough]

TOPICS = ("orders", "old", "future", "damaged", "other", "noid")
OTHER_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
CLIENTS = "Transactions.java"
DAY_MS = 24 * 3600 * 1000
SECONDS_MAX = 60
# Soon enough for a test.
SETTINGS = {
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 200,
    "log.segment.delete.delay.ms": 500,
}


class Seeded:
    """A broker that knows the topics, and has been stopped."""

    def __init__(self, directory: Path, release: str) -> None:
        self.broker = KafkaBroker(directory, release, cache_directory(), SETTINGS)
        self.release = short_name(release)
        self.has_zookeeper = release < "3"
        self.data = self.broker.data
        self._directory = directory
        tool = "org.apache.kafka.tools.TopicCommand"
        if self.has_zookeeper:
            tool = "kafka.admin.TopicCommand"
        with self.broker as broker:
            broker.start()
            for topic in TOPICS:
                broker.run(
                    tool, "--bootstrap-server", broker.address, "--create", "--topic",
                    topic, "--partitions", "1", "--replication-factor", "1",
                )  # fmt: skip
            broker.stop()
        for name in ("data", "zookeeper"):
            if (directory / name).exists():
                shutil.copytree(directory / name, directory / f"{name}.seed")

    def fresh(self) -> Path:
        """A copy of the directory after the stop of the broker."""
        for name in ("data", "zookeeper"):
            if (self._directory / f"{name}.seed").exists():
                shutil.rmtree(self._directory / name)
                shutil.copytree(
                    self._directory / f"{name}.seed", self._directory / name
                )
        return self.data

    def check(self, **options: object) -> logstore.kafka.HandoverReport:
        return logstore.kafka.check_handover(
            self.data,
            from_kafka=False,
            release=self.release,
            **options,  # type: ignore[arg-type]
        )

    def is_refused(self) -> bool:
        """Whether the broker does not start, or ends at once."""
        with self.broker as broker:
            try:
                broker.start()
                # It may end after its port is open.
                end = time.monotonic() + 3
                while time.monotonic() < end:
                    broker.run_clients(CLIENTS, "bounds", "orders")
                    return False
            except KafkaBrokerError:
                return True
        return False

    def bounds(self, topic: str) -> tuple[int, int]:
        """Start and end of a topic of the running broker."""
        text = self.broker.run_clients(CLIENTS, "bounds", topic)
        start, _, end = text.split()[-3:]
        return int(start), int(end)


@pytest.fixture(scope="module", params=STARTED)
def seeded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seeded]:
    try:
        yield Seeded(tmp_path_factory.mktemp("broker"), request.param)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))


def effects(report: logstore.kafka.HandoverReport, kind: str) -> set[str]:
    return {one.effect for one in report.findings if one.kind == kind}


# ------------------------------------------------------------ refused directories


def meta(data: Path, pattern: str, text: str) -> None:
    path = data / "meta.properties"
    path.write_text(re.sub(pattern, text, path.read_text(), flags=re.MULTILINE))


def other_node(data: Path) -> None:
    meta(data, r"^(node|broker)\.id=.*", r"\1.id=7")


def other_version(data: Path) -> None:
    if "version=1" in (data / "meta.properties").read_text():
        meta(data, r"^version=1", "version=0")
        meta(data, r"^node\.id", "broker.id")
    else:
        meta(data, r"^version=0", "version=1")
        meta(data, r"^broker\.id", "node.id")


def other_cluster(data: Path) -> None:
    meta(data, r"^cluster\.id=.*", f"cluster.id={OTHER_CLUSTER}")


def large(data: Path) -> None:
    with (data / "orders-0" / f"{0:020d}.log").open("r+b") as file:
        file.truncate(1 << 31)


def garbage(name: str) -> Callable[[Path], None]:
    def change(data: Path) -> None:
        (data / name).write_text("garbage\n")

    return change


def written_as(name: str, text: str) -> Callable[[Path], None]:
    def change(data: Path) -> None:
        (data / name).write_text(text)

    return change


def directory(name: str) -> Callable[[Path], None]:
    def change(data: Path) -> None:
        (data / name).mkdir()

    return change


# A change to the directory, and the finding about it.
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "backup": (directory("backup"), "directory-name"),
    "bad-delete": (directory("orders-0-delete"), "directory-name"),
    "no-number": (directory("orders-x"), "directory-name"),
    "hidden": (directory(".snapshots"), "directory-name"),
    "lost+found": (directory("lost+found"), "directory-name"),
    "no-number-at-all": (directory("orders-"), "directory-name"),
    "negative": (directory("a--1"), "directory-name"),
    "node": (
        lambda data: meta(data, r"^(node|broker)\.id=.*", r"\1.id=7"),
        "meta-properties",
    ),
    "version": (other_version, "meta-properties"),
    "cluster": (other_cluster, "meta-properties"),
    "large": (large, "segment"),
    "epochs": (garbage("orders-0/leader-epoch-checkpoint"), "checkpoint"),
    "metadata": (garbage("orders-0/partition.metadata"), "checkpoint"),
    "points": (garbage("recovery-point-offset-checkpoint"), "checkpoint"),
    "starts": (garbage("log-start-offset-checkpoint"), "checkpoint"),
    "watermarks": (garbage("replication-offset-checkpoint"), "checkpoint"),
    "cleaner": (garbage("cleaner-offset-checkpoint"), "checkpoint"),
    "below-0": (
        written_as("recovery-point-offset-checkpoint", "0\n1\norders 0 -5\n"),
        "checkpoint",
    ),
    "blank-line": (
        written_as("recovery-point-offset-checkpoint", "0\n1\norders 0 0\n\n"),
        "checkpoint",
    ),
    "far-number": (directory("zz-9999999999"), "directory-name"),
    "signed": (directory("zz-+5"), "directory-name"),
    "twice-without-an-id": (directory("orders-00"), "directory-name"),
    "twice": (
        lambda data: shutil.copytree(data / "orders-0", data / "orders-00"),
        "directory-name",
    ),
    "no-offset": (garbage("orders-0/abc.index"), "segment"),
    "no-offset-of-a-snapshot": (garbage("orders-0/abc.snapshot"), "segment"),
    "directory-as-log": (directory(f"orders-0/{5000:020d}.log"), "segment"),
    "no-node": (
        lambda data: meta(data, r"^(node|broker)\.id=.*\n", ""),
        "meta-properties",
    ),
    "no-cluster": (
        lambda data: meta(data, r"^cluster\.id=.*\n", ""),
        "meta-properties",
    ),
    "version-7": (
        lambda data: meta(data, r"^version=.", "version=7"),
        "meta-properties",
    ),
    "directory-id": (
        lambda data: meta(data, r"^directory\.id=.*", "directory.id=%%%"),
        "meta-properties",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_directory_that_is_said_to_be_refused_is_refused(
    seeded: Seeded, what: str
) -> None:
    """No other directory is."""
    change, kind = CASES[what]
    properties = (seeded.fresh() / "meta.properties").read_text()
    (cluster,) = re.findall(r"^cluster\.id=(.*)$", properties, re.MULTILINE)
    change(seeded.data)
    report = seeded.check(node_id=1, cluster_id=cluster)
    said = "refuses" in {one.effect for one in report.findings}
    assert said == ("refuses" in effects(report, kind))
    assert said == seeded.is_refused()


def test_directory_of_a_running_owner_is_refused(seeded: Seeded) -> None:
    data = seeded.fresh()
    with logstore.open(data):
        assert effects(seeded.check(), "lock") == {"refuses"}
        assert seeded.is_refused()
    assert effects(seeded.check(), "lock") == {"ok"}


def test_directory_without_properties_is_refused_or_gets_some(seeded: Seeded) -> None:
    """The broker makes them with ZooKeeper; the operator formats the directory with
    KRaft."""
    (seeded.fresh() / "meta.properties").unlink()
    said = effects(seeded.check(), "meta-properties")
    assert said == ({"changes"} if seeded.has_zookeeper else {"refuses"})
    with seeded.broker as broker:
        # As the finding says: `start` formats, for KRaft.
        broker.start()
        # Its port is open before that.
        end = time.monotonic() + SECONDS_MAX
        while not (seeded.data / "meta.properties").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        broker.stop()
    assert (seeded.data / "orders-0" / f"{0:020d}.log").exists()


# ------------------------------------------------------------ other effects


def written(data: Path) -> None:
    """Records of logstore in the topics, and in one that the cluster does not have."""
    now_ms = time.time_ns() // 1_000_000
    old = [now_ms - 30 * DAY_MS] * 20
    with logstore.open(data) as store:
        for topic in ("orders", "old", "future", "damaged", "unknown"):
            config = logstore.TopicConfig(message_format=2)
            if topic == "unknown":
                partition = store.create_topic(topic, config=config)[0]
            else:
                store.topic(topic).configure(config)
                partition = store.topic(topic)[0]
            times = old if topic in ("old", "future") else [now_ms] * 20
            for number, timestamp in enumerate(times):
                partition.append(b"%d" % number, timestamp_ms=timestamp)
                if number == 9:
                    partition.roll()
            if topic == "future":
                partition.append(b"x", timestamp_ms=now_ms + 30 * DAY_MS)


def test_broker_does_with_the_logs_what_was_said(seeded: Seeded) -> None:
    """Records that are too old are deleted, unless one with a time in the future
    precedes them; a topic that the cluster does not have, or has with another id, is
    set aside; missing files are made; files that wait for deletion are removed."""
    data = seeded.fresh()
    written(data)
    (data / "orders-0" / f"{0:020d}.index").unlink()
    (data / "noid-0" / "partition.metadata").unlink(missing_ok=True)
    gone = data / f"gone-0.{'0' * 32}-delete"
    gone.mkdir()
    for topic in ("other", "known"):
        path = data / f"{topic}-0"
        path.mkdir(exist_ok=True)
        text = "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
        (path / "partition.metadata").write_text(text)
    (data / "known-0" / f"{0:020d}.log").touch()
    # With ZooKeeper there are ids of topics, but no files of them.
    has_ids = (data / "orders-0" / "partition.metadata").exists()
    assert has_ids != seeded.has_zookeeper
    report = seeded.check()
    by_path = {
        (Path(one.path).name.partition("-")[0], one.kind): one.effect
        for one in report.findings
    }
    assert by_path["old", "retention"] == "loses"
    assert ("orders", "retention") not in by_path
    assert by_path["future", "future-time"] == "warns"
    assert by_path["orders", "index"] == "changes"
    assert by_path["gone", "directory-name"] == "changes"
    if not seeded.has_zookeeper:
        assert by_path["unknown", "topic-id"] == "loses"
        assert by_path["known", "topic"] == "loses"
        assert by_path["noid", "topic-id"] == "loses"
        assert by_path["other", "topic-id"] == "loses"
    expired = [one for one in report.findings if one.kind == "retention"]
    deleted = {Path(one.path).name: one.values["endOffset"] for one in expired}
    with seeded.broker as broker:
        broker.start()
        end = time.monotonic() + SECONDS_MAX
        while seeded.bounds("old")[0] < 20 or gone.exists():
            assert time.monotonic() < end
        for topic in ("orders", "damaged"):
            assert seeded.bounds(topic) == (0, 20)
        for topic in ("old", "future"):
            start = seeded.bounds(topic)[0]
            assert start == deleted.get(f"{topic}-0", 0)
        broker.stop()
    names = {path.name.partition(".")[0] for path in data.glob("*-stray")}
    aside = {"unknown-0", "known-0", "other-0", "noid-0"}
    assert names == (set() if seeded.has_zookeeper else aside)
    assert (data / "unknown-0").exists() == seeded.has_zookeeper
    with logstore.open(data) as store:
        # The topics that were set aside are hidden, and their files stay.
        assert ("known" in store.topics()) == seeded.has_zookeeper
        assert store.topic("orders")[0].end_offset == 20
    assert {path.name.partition(".")[0] for path in data.glob("*-stray")} == names
    assert (data / "orders-0" / f"{0:020d}.index").exists()


def broken(data: Path) -> int:
    """Damage a batch in the middle of a log's last segment; returns its offset."""
    log = max((data / "damaged-0").glob("*.log"))
    frame = frames(log)[4]
    flip_bit(log, 8 * (frame.pos + frame.size - 2))
    return frame.offset


@pytest.mark.parametrize("is_clean", [True, False])
def test_broker_does_with_damage_what_was_said(seeded: Seeded, is_clean: bool) -> None:
    """After a clean stop, a consumer finds it when it reads there; otherwise the log is
    cut there."""
    data = seeded.fresh()
    written(data)
    first = broken(data)
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").unlink()
    report = seeded.check()
    (finding,) = (one for one in report.findings if one.kind == "damage")
    assert finding.effect == "loses"
    assert ("cut" in finding.message) == (not is_clean)
    assert effects(report, "clean-stop") == {"ok" if is_clean else "warns"}
    with seeded.broker as broker:
        broker.start()
        if is_clean:
            assert seeded.bounds("damaged") == (0, 20)
            with pytest.raises(KafkaBrokerError):
                broker.run_clients(CLIENTS, "read", "damaged", "read_uncommitted")
        else:
            assert finding.values["firstOffset"] == first
            assert seeded.bounds("damaged") == (0, first)


class Copying(Files):
    """Copies the directory before each sync: the state that a power failure may
    leave."""

    def __init__(self, data: Path, copies: Path) -> None:
        super().__init__()
        self._data, self._copies = data, copies
        self.count = 0

    def sync(self, fd: int) -> None:
        shutil.copytree(self._data, self._copies / str(self.count))
        self.count += 1
        super().sync(fd)


def log_of(data: Path, topic: str) -> Path:
    """The last segment of a topic."""
    return max((data / f"{topic}-0").glob("*.log"))


def test_broker_serves_a_publication_that_was_interrupted(
    seeded: Seeded, tmp_path: Path
) -> None:
    """The check reports it; logstore removes the records, if it is opened first. One of
    two logs has them, and the power failed before the other was written."""
    data = seeded.fresh()
    written(data)
    topics = "orders", "other"
    before = {topic: log_of(data, topic).stat().st_size for topic in topics}
    files = Copying(data, tmp_path)
    with open_store(data, _files=files) as store:
        with store.stage("job", 1) as stage:
            for topic in topics:
                stage.append_many(store.topic(topic)[0], [b"never committed"])
            staged = stage.finish()
        store.publish([staged], identity="job", sequence=1)
        last = files.count
    copy = next(
        copy
        for copy in (tmp_path / str(number) for number in range(last))
        if all(log_of(copy, topic).stat().st_size > before[topic] for topic in topics)
    )
    cut(log_of(copy, "other"), before["other"])
    assert "unpublished" in {note.kind for note in logstore.verify(copy).notes}
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    assert effects(seeded.check(), "publication") == {"loses"}
    with logstore.open(data, read_only=True) as store:
        assert store.topic("orders")[0].end_offset == 20
    with seeded.broker as broker:
        broker.start()
        assert seeded.bounds("orders") == (0, 21)
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with logstore.open(data) as store:
        assert store.topic("orders")[0].end_offset == 20
    assert effects(seeded.check(), "publication") == set()
