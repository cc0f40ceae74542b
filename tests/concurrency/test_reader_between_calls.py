"""A reader and a writer that does something between any two of the reader's calls to
the file system: everything it then sees existed, and its next look sees all of it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    Unsynced,
    append_garbage,
    logs_in,
    stop_syncs,
)
from support.levels import Steps
from support.values import config_of, expected, fill

SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 100}
COUNT = 12
MAGIC_OF = {"gzip": 1, "zstd": 2}


class _Writer:
    """A store and its writer, moved along by a test."""

    def __init__(self, path: Path, codec: str) -> None:
        self.path = path
        self.magic = MAGIC_OF[codec]
        self.store: logstore.Store | None = None
        self._open().create_topic(
            "orders", config=config_of(self.magic, codec, **SETTINGS)
        )
        self.append()

    def _open(self) -> logstore.Store:
        self.store = open_store(self.path, _files=Unsynced())
        return self.store

    @property
    def partition(self) -> logstore.Partition:
        return (self.store or self._open()).topic("orders")[0]

    def append(self) -> None:
        fill(self.partition, COUNT)

    def append_more(self) -> None:
        fill(self.partition, 2, call=2)

    def flush(self) -> None:
        self.append_more()
        self.partition.flush()

    def roll(self) -> None:
        self.partition.roll()
        self.append_more()

    def delete(self) -> None:
        self.partition.delete_before(self.partition.end_offset - 3)
        self.append_more()

    def empty(self) -> None:
        self.partition.delete_before(self.partition.end_offset)

    def publish(self) -> None:
        """Publish records that were staged in two calls."""
        partition = self.partition
        assert self.store is not None
        first = partition.end_offset
        rows = expected(self.magic, first, first + COUNT)
        with self.store.stage() as stage:
            for half in (rows[:5], rows[5:]):
                stage.append_many(
                    partition,
                    [record.value for record in half],
                    [record.key for record in half],
                    [record.timestamp_ms for record in half],
                    [record.headers for record in half] if self.magic == 2 else None,
                )
            self.store.publish([stage.finish()])

    def truncate(self) -> None:
        """Truncate the last batch, and append batches of other sizes."""
        self.partition.truncate_to(self.partition.end_offset - 2)
        fill(self.partition, 3, call=1)

    def configure(self) -> None:
        config = self.partition.config
        assert self.store is not None
        self.store.topic("orders").configure(
            dataclasses.replace(config, flush_messages=config.flush_messages - 1)
        )
        self.append_more()

    def close(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            store.close()

    def reopen(self) -> None:
        self.close()
        self.append_more()

    def close_again(self) -> None:
        self.append_more()
        self.close()

    def kill(self) -> None:
        """Continue in a copy, as a kill leaves it."""
        copy = self.path.with_name("killed")
        shutil.copytree(self.path, copy)
        self.close()
        shutil.rmtree(self.path)
        self.path = copy

    def tear(self) -> None:
        append_garbage(logs_in(self.path / "orders-0")[-1])


# Actions before a reader opens the store or looks again, and actions meanwhile.
BEFORE = {"open": _Writer.append, "closed": _Writer.close, "killed": _Writer.tear}
DOING: dict[str, Callable[[_Writer], None]] = {
    "append": _Writer.append_more,
    "flush": _Writer.flush,
    "roll": _Writer.roll,
    "delete": _Writer.delete,
    "empty": _Writer.empty,
    "publish": _Writer.publish,
    "truncate": _Writer.truncate,
    "configure": _Writer.configure,
    "close": _Writer.close_again,
    "reopen": _Writer.reopen,
}


@contextlib.contextmanager
def _between(files: FaultyFiles, nth: int, do: Callable[[], None]) -> Iterator[None]:
    """Run `do` right before the n-th call from now on that reads the store's state.

    Opening a directory does not count: no writer here makes or deletes an open one.
    """
    left = nth

    def before(method: str, name: str) -> None:
        nonlocal left
        left -= method != "open_directory"
        if left == 0:
            left = -1
            do()

    files.before = before
    try:
        yield
    finally:
        files.before = None


def _check(reading: logstore.Partition, magic: int, written: int) -> None:
    """Check that all records are right, and that none is missing."""
    start = reading.start_offset
    with contextlib.suppress(OffsetOutOfRangeError):
        got = list(reading.read(start))
        end = start + len(got)
        assert got == expected(magic, start, end)
        assert end >= written
        chunk = reading.fetch(start, 1 << 20)
        assert list(chunk) == expected(magic, start, max(chunk.next_offset, start))


def _round(
    path: Path, before: str, doing: str, codec: str, nth: int, *, opens: bool
) -> int:
    """Do something in front of the n-th call; returns how many calls there were."""
    writer, files = _Writer(path, codec), FaultyFiles()
    if before == "killed":
        writer.kill()
    with contextlib.ExitStack() as stack:

        def reader() -> logstore.Partition:
            store = open_store(writer.path, read_only=True, _files=files)
            return stack.enter_context(store).topic("orders")[0]

        if not opens:
            reading = reader()
            _check(reading, writer.magic, COUNT)
        BEFORE[before](writer)
        written = 2 * COUNT if before == "open" else COUNT
        written -= 2 if doing == "truncate" else 0
        files.forget()
        with _between(files, nth, lambda: DOING[doing](writer)):
            if opens:
                reading = reader()
            _check(reading, writer.magic, written)
            calls = sum(method != "open_directory" for method, _ in files.calls)
        partition = writer.partition
        for _ in range(2):
            start, end = partition.start_offset, partition.end_offset
            assert (reading.start_offset, reading.end_offset) == (start, end)
            assert list(reading.read()) == expected(writer.magic, start, end)
            writer.append_more()
        writer.close()
    return calls


@pytest.mark.sampled(45)
@pytest.mark.parametrize("doing", DOING)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    ("opens", "codec"),
    [(True, "gzip"), (True, "zstd"), (False, "gzip")],
    ids=["opens-1", "opens-2", "follows-1"],
)
def test_reader_sees_what_was_there_and_then_what_came(
    tmp_path: Path, before: str, doing: str, codec: str, opens: bool
) -> None:
    steps = Steps(3)
    for nth in steps:
        path = tmp_path / str(nth)
        path.mkdir()
        steps.total = _round(path / "store", before, doing, codec, nth, opens=opens)
        shutil.rmtree(path)
    assert steps.total >= 5


class _Stopping(FaultyFiles):
    """A disk that stops a thread in the middle of an append, before its second write to
    a log. The first write is in the files then."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self._fails = fails
        self._writes = 0

    def begin(self) -> None:
        """Count calls from now on."""
        self.before = self._count

    def _count(self, method: str, name: str) -> None:
        self._writes += method == "write" and name.endswith(".log")
        if self._writes == 2:
            self.before = None
            self.stopped.set()
            assert self.go_on.wait(30)
            if self._fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))


class _Append:
    """An append in a thread that is stopped in the middle."""

    def __init__(self, path: Path, values: list[bytes], *, fails: bool) -> None:
        self.files = _Stopping(fails=fails)
        self.store = open_store(path, _files=self.files)
        settings: Any = SETTINGS if len(values) > 50 else {}
        self.store.create_topic("orders", config=config_of(**settings))
        self.partition = self.store.topic("orders")[0]
        fill(self.partition, 5)
        self._values = values
        self._thread = threading.Thread(target=self._append)

    def _append(self) -> None:
        with contextlib.suppress(logstore.StorageError):
            self.partition.append_many(self._values)

    def beside(self, nth: int, behind: int) -> Callable[[str, str], None]:
        """Called before each call of a reader: at the n-th the append comes to its
        middle, and `behind` calls later to its end."""
        left = nth

        def step(method: str, name: str) -> None:
            nonlocal left
            if method == "open_directory":
                return
            left -= 1
            if left == 0:
                self.files.begin()
                self._thread.start()
                assert self.files.stopped.wait(30)
            elif left == -behind:
                self.end()

        return step

    def end(self) -> None:
        """Let the append finish, if it has begun."""
        self.files.go_on.set()
        if self._thread.ident is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()


NEVER = 1 << 60
SEGMENTS, RUNS = [bytes(20)] * 60, [bytes(20_000)] * 40


@pytest.mark.parametrize(
    ("values", "fails", "opens"),
    [(SEGMENTS, True, True), (SEGMENTS, True, False), (SEGMENTS, False, True),
     (SEGMENTS, False, False), (RUNS, True, False)],
    ids=["segments-undone-opens", "segments-undone", "segments-opens", "segments",
         "runs-undone"],
)  # fmt: skip
def test_reader_sees_no_part_of_an_append_that_comes_between_its_calls(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: list[bytes],
    fails: bool,
    opens: bool,
) -> None:
    """An append to several segments, or in several writes to one: the reader sees all
    of it, or nothing."""
    stop_syncs(monkeypatch)
    steps = Steps(3)
    for nth in steps:
        path, files = tmp_path / str(nth), FaultyFiles()
        append = _Append(path, values, fails=fails)
        with open_store(path, read_only=True, _files=files) as store:
            if not opens:
                assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)
            files.forget()
            files.before = append.beside(nth, NEVER if fails else 4)
            reading = store.topic("orders")[0]
            seen = set()
            for _ in range(2):
                seen |= {reading.end_offset, len(list(reading.read()))}
            files.before = None
            steps.total = sum(method != "open_directory" for method, _ in files.calls)
            append.end()
            assert seen <= ({5} if fails else {5, 5 + len(values)}), (nth, seen)
            fill(append.partition, 5)
            assert list(reading.read()) == list(append.partition.read())
        append.store.close()
        shutil.rmtree(path)
    assert steps.total >= 5
