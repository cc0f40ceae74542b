"""`verify` while a writer does something between any two of its calls to the file
system: a store that is intact at each moment has no problem."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.maintenance.verify.store import verify
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced, append_garbage, flip_bit, logs_in
from support.levels import stride
from support.values import fill

SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 100, "segment_digests": True}
COUNT = 12


class _Writer:
    """A store of two topics, and its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = open_store(path, _files=Unsynced())
        config = logstore.TopicConfig(
            message_format=2, file_delete_delay_ms=0, **SETTINGS
        )
        for name in ("orders", "other"):
            fill(self.store.create_topic(name, config=config)[0], COUNT, call=3)

    @property
    def partition(self) -> logstore.Partition:
        return self.store.topic("orders")[0]

    def append(self) -> None:
        fill(self.partition, COUNT, call=3)

    def truncate(self) -> None:
        self.partition.truncate_to(6)
        fill(self.partition, 9, call=2)

    def delete(self) -> None:
        self.partition.delete_before(self.partition.end_offset)
        fill(self.partition, 3)

    def publish(self) -> None:
        with self.store.stage() as stage:
            stage.append_many(self.partition, [b"published"] * 5)
            self.store.publish([stage.finish()])

    def create(self) -> None:
        fill(self.store.create_topic("new", 2)[0], 3)

    def drop(self) -> None:
        self.store.delete_topic("other")

    def make_again(self) -> None:
        """Replace the log by a shorter one under the same name."""
        config = self.partition.config
        self.store.delete_topic("orders")
        fill(self.store.create_topic("orders", config=config)[0], 4)

    def configure(self) -> None:
        topic = self.store.topic("orders")
        topic.configure(dataclasses.replace(topic.config, index_interval_bytes=300))
        self.append()

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.path, _files=Unsynced())
        self.append()

    def open(self) -> None:
        """Open the store after a close, or after its writer was killed."""
        self.store = open_store(self.path, _files=Unsynced())
        self.append()


def _kill(writer: _Writer) -> None:
    copy = writer.path.with_name("killed")
    shutil.copytree(writer.path, copy)
    writer.close()
    shutil.rmtree(writer.path)
    writer.path = copy
    append_garbage(logs_in(copy / "orders-0")[-1])


BEFORE: dict[str, Callable[[_Writer], None]] = {
    "open": _Writer.append,
    "closed": _Writer.close,
    "killed": _kill,
}
WHILE_OPEN: list[Callable[[_Writer], None]] = [
    _Writer.append,
    _Writer.truncate,
    _Writer.delete,
    _Writer.publish,
    _Writer.create,
    _Writer.drop,
    _Writer.make_again,
    _Writer.configure,
    _Writer.close,
    _Writer.reopen,
]
CASES = [
    *(("open", doing) for doing in WHILE_OPEN),
    ("closed", _Writer.open),
    ("killed", _Writer.open),
]


def _round(path: Path, before: str, doing: Callable[[_Writer], None], nth: int) -> int:
    """Do something in front of the n-th call; returns how many calls there were."""
    writer, files = _Writer(path), FaultyFiles()
    BEFORE[before](writer)
    left = nth

    def come_between(method: str, name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            doing(writer)

    files.before = come_between
    report = verify(writer.path, deep=True, threads=1, _files=files)
    files.before = None
    assert report.problems == (), nth
    calls = nth - left
    writer.close()
    assert verify(writer.path, deep=True, threads=1).problems == ()
    return calls


@pytest.mark.parametrize(
    ("before", "doing"), CASES, ids=[f"{b}-{d.__name__}" for b, d in CASES]
)
def test_verify_beside_a_writer_has_no_false_alarm(
    tmp_path: Path, before: str, doing: Callable[[_Writer], None]
) -> None:
    """The writer acts before each call; at the commit level before every thirteenth,
    with another first one in each case."""
    nth = 1 + len(doing.__name__) % stride(13)
    calls = nth
    while nth <= calls:
        path = tmp_path / str(nth)
        path.mkdir()
        calls = _round(path / "store", before, doing, nth)
        shutil.rmtree(path)
        nth += stride(13)
    assert nth > 60


@pytest.mark.parametrize("doing", [_Writer.append, _Writer.publish, _Writer.drop])
def test_damage_beside_a_writer_is_a_problem(
    tmp_path: Path, doing: Callable[[_Writer], None]
) -> None:
    """Each look finds it, however often the writer acts in between."""
    writer, files = _Writer(tmp_path / "store"), FaultyFiles()
    writer.append()
    log = logs_in(writer.path / "orders-0")[0]
    flip_bit(log, 8 * 100)
    left = 3

    def come_between(method: str, name: str) -> None:
        nonlocal left
        if method == "list" and left:
            left -= 1
            if left == 1 or doing is not _Writer.drop:
                doing(writer)

    files.before = come_between
    report = verify(writer.path, threads=1, _files=files)
    assert [(p.kind, p.path) for p in report.problems] == [("damaged-batch", str(log))]
    writer.close()
