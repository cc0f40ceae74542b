"""Cluster files in the log directory of a KRaft broker."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from support.damage import fixed_crc
from support.transactions import batch

__all__ = [
    "CLUSTER",
    "cluster_files",
    "level_record",
    "make_cluster",
    "metadata_log",
    "topic_record",
]

CLUSTER = ("meta.properties", "bootstrap.checkpoint", "__cluster_metadata-0")
_TOPIC, _REMOVED, _LEVEL = 2, 9, 12


def topic_record(name: str, topic_id: bytes, *, is_removed: bool = False) -> bytes:
    """The record of the metadata log for a topic, or for its removal."""
    if is_removed:
        return bytes([1, _REMOVED, 0]) + topic_id + b"\0"
    body = bytes([len(name) + 1]) + name.encode() + topic_id + b"\0"
    return bytes([1, _TOPIC, 0]) + body


def level_record(feature: str, level: int) -> bytes:
    """The record of the metadata log for the level of a feature."""
    body = bytes([len(feature) + 1]) + feature.encode() + level.to_bytes(2, "big")
    return bytes([1, _LEVEL, 0]) + body + b"\0"


def metadata_log(path: Path, values: list[bytes], name: str) -> None:
    """A file of the metadata log, with a batch for each record."""
    path.mkdir(exist_ok=True)
    data = b""
    for offset, value in enumerate(values):
        made = batch(offset, [(b"", value)], -1, control=False)
        data += fixed_crc(made[:21] + b"\0\0" + made[23:])
    (path / name).write_bytes(data)


def make_cluster(store: Path, topics: Mapping[str, bytes]) -> None:
    """Turn the directory of a closed store into that of a KRaft broker whose cluster
    has these topics, by id."""
    (store / "meta.properties").write_text(
        "#\n#Sat Nov 21 06:53:55 UTC 2026\nnode.id=1\nversion=1\ncluster.id=c\n"
        "directory.id=GbP10-ok2OLGqwrOZ6naCg\n"
    )
    (store / "bootstrap.checkpoint").write_bytes(b"\0" * 61)
    log = store / "__cluster_metadata-0"
    records = [topic_record(name, topic_id) for name, topic_id in topics.items()]
    metadata_log(log, records, f"{0:020d}.log")
    metadata_log(log, records, f"{len(records):020d}-{1:010d}.checkpoint")
    (log / f"{0:020d}.index").write_bytes(b"\0" * 4096)
    (log / "quorum-state").write_text('{"leaderId":1,"leaderEpoch":1}')
    (log / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    (log / "partition.metadata").write_text("version: 0\ntopic_id: " + "A" * 22)
    for name, topic_id in topics.items():
        text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
        for partition in store.glob(f"{name}-[0-9]*"):
            metadata = partition / "partition.metadata"
            metadata.write_text(f"version: 0\ntopic_id: {text}")


def cluster_files(store: Path) -> dict[str, bytes]:
    """The contents of these files, by their paths in the directory."""
    found = list(store.glob("*-[0-9]*/partition.metadata"))
    for name in CLUSTER:
        path = store / name
        found += path.iterdir() if path.is_dir() else [path]
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in found
        if path.is_file()
    }
