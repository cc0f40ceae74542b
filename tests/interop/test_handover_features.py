"""A directory that a newer tool has formatted, or a newer broker has used: the findings
of `check_handover`, and the behaviour of a broker of each release."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import logstore
from support.kafka_broker import KafkaBroker, KafkaBrokerError, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.releases import NEWEST, WITH_KRAFT, short_name

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]

TOPIC = "org.apache.kafka.tools.TopicCommand"
OLD = ("meta.properties", "bootstrap.checkpoint", "__cluster_metadata-0")


def broker_in(directory: Path, release: str) -> KafkaBroker:
    directory.mkdir(parents=True)
    try:
        return KafkaBroker(directory, release, cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))


def create(broker: KafkaBroker, topic: str) -> None:
    broker.run(
        TOPIC, "--bootstrap-server", broker.address, "--create", "--topic", topic
    )


def formatted(directory: Path, release: str, *options: str) -> Path:
    """A directory formatted by kafka-storage of a release."""
    broker = broker_in(directory, release)
    broker.format(*options)
    return broker.data


def used(directory: Path, release: str, *options: str) -> Path:
    """The same, after a broker of the release has used it."""
    broker = broker_in(directory, release)
    broker.format(*options)
    with broker:
        broker.start()
        create(broker, "before")
        broker.stop()
    return broker.data


def upgraded(directory: Path) -> Path:
    """A cluster of the oldest release with KRaft, which the newest has upgraded."""
    data = used(directory / "old", WITH_KRAFT[0])
    broker = broker_in(directory / "new", NEWEST)
    shutil.copytree(data, broker.data)
    with broker:
        broker.start()
        broker.run(
            "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server",
            broker.address, "upgrade", "--release-version", short_name(NEWEST),
        )  # fmt: skip
        broker.stop()
    return broker.data


def share(directory: Path) -> Path:
    """A cluster of 4.2 whose share.version the newest release has raised and lowered:
    its metadata log still has both."""
    broker = broker_in(directory, NEWEST)
    broker.format("--release-version", "4.2", "--feature", "share.version=2")
    with broker:
        broker.start()
        broker.run(
            "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server",
            broker.address, "downgrade", "--feature", "share.version=1",
        )  # fmt: skip
        broker.stop()
    return broker.data


MADE: Final[dict[str, Callable[[Path], Path]]] = {
    "formatted": lambda path: formatted(path, NEWEST),
    "formatted-by-4.3": lambda path: formatted(path, "4.3.1"),
    "formatted-for-4.2": lambda path: formatted(
        path, NEWEST, "--release-version", "4.2"
    ),
    "formatted-for-3.9": lambda path: formatted(
        path, NEWEST, "--release-version", "3.9"
    ),
    "used": lambda path: used(path, NEWEST),
    "used-by-4.3": lambda path: used(path, "4.3.1"),
    "upgraded": upgraded,
    "share": share,
}


def is_refused(broker: KafkaBroker) -> bool:
    """Whether the broker does not start, or does not work."""
    with broker:
        try:
            broker.start()
            create(broker, "after")
        except KafkaBrokerError:
            return True
        broker.stop()
    return False


@pytest.mark.parametrize("how", MADE)
def test_broker_starts_with_the_levels_of_which_that_was_said(
    how: str, tmp_path: Path
) -> None:
    """A broker of each release with KRaft starts with these levels and no others."""
    data = MADE[how](tmp_path / "made")
    refused = []
    for release in WITH_KRAFT:
        broker = broker_in(tmp_path / release, release)
        shutil.copytree(data, broker.data)
        name = short_name(release)
        report = logstore.kafka.check_handover(
            broker.data, from_kafka=False, release=name
        )
        said = {one.kind for one in report.problems if one.effect == "refuses"}
        assert said <= {"feature-level"}
        assert bool(said) == is_refused(broker), release
        refused += [release] if said else []
    assert NEWEST not in refused
    assert (WITH_KRAFT[0] in refused) == (how != "formatted-for-3.9")


@pytest.mark.parametrize("release", WITH_KRAFT[:-1])
def test_directory_is_formatted_for_an_older_broker_as_the_finding_says(
    release: str, tmp_path: Path
) -> None:
    """The files that it names go elsewhere; the topic is created again, and its
    records are served under the id that the broker gives it."""
    broker = broker_in(tmp_path / "broker", release)
    shutil.copytree(used(tmp_path / "made", NEWEST), broker.data)
    with logstore.open(broker.data) as store:
        config = logstore.TopicConfig(message_format=2)
        store.topic("before").configure(config)
        store.topic("before")[0].append_many([b"x"] * 10)
    (kept,) = broker.data.glob("before-0")
    (finding,) = (
        one
        for one in logstore.kafka.check_handover(
            broker.data, from_kafka=False, release=short_name(release)
        ).problems
        if one.kind == "feature-level"
    )
    for name in OLD:
        assert name in finding.message
        path = broker.data / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    aside = tmp_path / "aside"
    shutil.move(kept, aside)
    with broker:
        broker.format()
        broker.start()
        create(broker, "before")
        broker.stop()
        shutil.copy(kept / "partition.metadata", aside)
        shutil.rmtree(kept)
        shutil.move(aside, kept)
        report = logstore.kafka.check_handover(
            broker.data, from_kafka=False, release=short_name(release)
        )
        assert "feature-level" not in {one.kind for one in report.problems}
        broker.start()
        assert broker.run_clients("Transactions.java", "bounds", "before").split()[
            -3:
        ] == ["0", "10", "10"]
        broker.stop()
