"""`inspect_file` returns every batch of one file, and continues after damage."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.maintenance.verify import inspect_file
from support import verifying
from support.damage import append_garbage, flip_bit, frames, logs_in, zero
from support.values import every_format, write_store

# Fixtures.
partition = verifying.partition


@every_format
def test_inspect_file_gives_every_batch(tmp_path: Path, magic: int, codec: str) -> None:
    """Batches have their records, and messages their stored checksums."""
    directory = write_store(tmp_path / "store", 20, magic, codec)
    contents = inspect_file(logs_in(directory)[0])
    assert (contents.kind, contents.base_offset) == ("log", 0)
    entries = list(contents.entries)
    assert [entry.damage for entry in entries] == [None] * len(entries)
    assert [r.offset for entry in entries for r in entry.batch] == list(range(20))
    wanted = 20 if magic < 2 else 0
    assert sum(len(entry.checksums()) for entry in entries) == wanted


def test_inspect_file_goes_on_behind_damage(partition: Path) -> None:
    """A bad batch with the fields of its header, bytes that are no batch, the torn
    end."""
    path = logs_in(partition)[0]
    found = frames(path)
    flip_bit(path, 8 * (found[1].pos + 20))
    zero(path, found[3].pos, found[4].pos)
    append_garbage(path)
    entries = list(inspect_file(path).entries)
    assert [entry.damage is None for entry in entries[:5]] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert entries[1].batch is not None
    assert entries[3].batch is None
    assert entries[-1].batch is None
    assert sum(entry.size_bytes for entry in entries) == path.stat().st_size


def test_inspect_file_of_a_missing_or_foreign_file_raises(tmp_path: Path) -> None:
    """The error names the path."""
    for name in ("a.txt", f"{0:020d}.log"):
        with pytest.raises(logstore.StoreNotFoundError, match=name):
            inspect_file(tmp_path / name)
