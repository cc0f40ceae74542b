"""A store becomes the log directory of a broker, as docs/operations.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.cluster_files import CLUSTER
from support.kafka_broker import KafkaBroker

__all__ = ["hand_over", "hand_over_topics"]

_START_OFFSETS = "log-start-offset-checkpoint"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy(source, target)


def hand_over(store: Path, broker: KafkaBroker) -> None:
    """Make a closed store the log directory of a stopped broker whose cluster has only
    its topics."""
    for name in CLUSTER:
        _copy(broker.data / name, store / name)
    for made in broker.data.glob("*-*/partition.metadata"):
        _copy(made, store / made.parent.name / made.name)
    shutil.rmtree(broker.data)
    store.rename(broker.data)


def hand_over_topics(store: Path, broker: KafkaBroker, topics: list[str]) -> None:
    """Move the logs of some topics of a closed store into the directory of a stopped
    broker, which has topics of these names and others."""
    for topic in topics:
        for log in store.glob(f"{topic}-*"):
            made = broker.data / log.name
            kept = made / "partition.metadata"
            for path in made.iterdir():
                if path != kept:
                    path.unlink()
            for path in log.iterdir():
                _copy(path, made / path.name)
    _copy_start_offsets(store, broker.data, topics)


def _copy_start_offsets(store: Path, data: Path, topics: list[str]) -> None:
    lines = [
        line
        for line in (store / _START_OFFSETS).read_text().splitlines()[2:]
        if line.split()[0] in topics
    ]
    there = data / _START_OFFSETS
    lines += there.read_text().splitlines()[2:]
    there.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
