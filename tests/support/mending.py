"""Checks after a repair, against the contents of the store before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import logstore
from logstore.store.opening import open_store
from support.damage import Unsynced, logs_in
from support.values import append_records, record_of


class Batch(NamedTuple):
    """A batch of a store that was written without gaps."""

    log: Path
    pos: int
    size: int
    first: int
    last: int

    @property
    def offsets(self) -> set[int]:
        return set(range(self.first, self.last + 1))


def batches_in(partition: Path) -> list[Batch]:
    """All batches of an intact partition, in order."""
    found: list[Batch] = []
    for log in logs_in(partition):
        for entry in logstore.inspect_file(log).entries:
            assert entry.damage is None
            first = found[-1].last + 1 if found else 0
            last = entry.batch.last_offset
            found.append(Batch(log, entry.position, entry.size_bytes, first, last))
    return found


def log_bytes(partition: Path) -> dict[str, bytes]:
    """The `.log` files of a partition by name."""
    return {log.name: log.read_bytes() for log in logs_in(partition)}


def manifests(partition: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The quarantines inside a partition: (directory, manifest)."""
    return [
        (path.parent, json.loads(path.read_text()))
        for path in sorted(partition.glob(".logstore-quarantine-*/manifest.json"))
    ]


def check_nothing_is_lost(
    partition: Path, before: dict[str, bytes], places: list[tuple[Path, dict[str, Any]]]
) -> None:
    """Check that every byte of the logs is still in them, or in a quarantine's file."""
    left = set(log_bytes(partition).values())
    for name, data in before.items():
        rest, pos = [], 0
        kept = sorted(
            (entry["position"], entry["position"] + entry["bytes"], place, entry)
            for place, manifest in places
            for entry in manifest["kept"]
            if entry["source"] == name
        )
        for begin, end, place, entry in kept:
            assert (place / entry["file"]).read_bytes() == data[begin:end]
            rest.append(data[pos:begin])
            pos = end
        rest.append(data[pos:])
        stayed = b"".join(rest)
        assert not stayed or stayed in left, name


def offsets_read(store: Path) -> list[int]:
    """The offsets of all records of `orders`, which must be equal to the written
    ones."""
    with open_store(store, read_only=True) as found:
        partition = found.topic("orders")[0]
        magic = partition.config.message_format
        records = list(partition.read())
    for record in records:
        assert record == record_of(record.offset, magic)
    return [record.offset for record in records]


def check_mended(
    store: Path, offsets: list[int], end: int, *, openings: int = 1
) -> None:
    """Check that the store is intact, has just these records, continues at `end` and
    takes appends, and that after `openings` openings the next one reports nothing."""
    report = logstore.verify(store, deep=True)
    assert report.problems == ()
    assert offsets_read(store) == offsets
    for _ in range(openings):
        with open_store(store, _files=Unsynced()) as found:
            assert found.topic("orders")[0].end_offset == end
    with open_store(store, _files=Unsynced()) as found:
        assert not found.recovery_report, found.recovery_report
        partition = found.topic("orders")[0]
        assert partition.end_offset == end
        append_records(partition, 3)
    assert offsets_read(store) == [*offsets, end, end + 1, end + 2]
    with open_store(store, _files=Unsynced()) as found:
        assert not found.recovery_report
    assert logstore.verify(store, deep=True).problems == ()
