"""A store that was copied goes on: nothing twice, nothing lost, nothing forgotten, or a
named error.

A store gets a random history. Then it is copied in one of the documented or plausible
ways: by a snapshot while it is written to, closed, with hard links, moved, file by file
while it is written to, or over an older copy. Of some copies a file is left out, old,
doubled or damaged. Then both stores go on: records, groups, publications, producers.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore import LogStoreError, TopicConfig, TopicPartition
from logstore.io import layout
from logstore.io.files import Files
from logstore.store.store import open_store

NAME = "copies"
UNIT = "copied stores"
COUNTS = {"commit": 400, "nightly": 5_000, "release": 50_000}

KEYS: Final = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
# All files are of one moment, and none is changed afterwards.
WHOLE: Final = ("snapshot", "asked", "closed", "linked", "moved", "back")
# Files of different moments.
MIXED: Final = ("running", "linked open", "over", "touched")
TOUCHES: Final = ("left out", "old", "doubled", "damaged", "cut")
# Nothing in a store says that a file of these is older than the others, or gone: what
# was published last is published again. (file, what was done to it) For the same reason
# a publisher does not repeat, in copies of `MIXED`, what their ledger does not have.
BLIND: Final = frozenset(
    {(".logstore-published", "old"), (".logstore-published", "left out")}
)


def run(count: int, seed: int, tally: Tally) -> None:
    """So many copies."""
    notes = run_cases(__name__, count, seed, tally)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """What is wrong in a case; "" for nothing."""
    rng = random.Random(f"copies {key}")
    with folder_of(in_memory=True) as folder:
        case = _Case(Path(folder), rng, notes)
        found = case.run()
    return f"{case.what}: {found}" if found else ""


class _Busy(Files):
    """While a snapshot reads files of the root, the store is written to."""

    work: Callable[[], None] | None = None

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        work = self.work
        if work is not None and not write and _is_of_root(name):
            self.work = None
            with contextlib.suppress(logstore.ReentrantCallError):
                work()
            self.work = work
        return super().open(dir_fd, name, write=write)


def _is_of_root(name: str) -> bool:
    if name.startswith(layout.GROUP_PREFIX):
        return "." not in name[1:]
    return name == layout.PRODUCERS


class _Truth:
    """What was done to a store.

    Attributes:
        records: all values of each partition, in order.
        positions: what was committed for a group.
        published: the values of each publication, by partition.
        sequence: of the named producer.
    """

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[bytes]] = {key: [] for key in KEYS}
        self.positions: dict[TopicPartition, int] = {}
        self.published: list[dict[TopicPartition, bytes]] = []
        self.sequence = -1

    def copy(self) -> _Truth:
        other = _Truth()
        other.records = {key: list(values) for key, values in self.records.items()}
        other.positions = dict(self.positions)
        other.published = list(self.published)
        other.sequence = self.sequence
        return other


class _Case:
    def __init__(self, folder: Path, rng: random.Random, notes: Counter[str]) -> None:
        self.rng, self.notes = rng, notes
        self.data, self.copy, self.old = (folder / n for n in ("data", "copy", "old"))
        self.truth = _Truth()
        self.number = 0
        self.what = ""
        self.touched: tuple[str, str] = ("", "")
        self.again: list[dict[TopicPartition, bytes]] = []

    def run(self) -> str:
        rng = self.rng
        with logstore.open(self.data) as store:
            config = TopicConfig(
                segment_bytes=rng.choice((1200, 4000, 1 << 20)), message_format=2
            )
            store.create_topic("a", 2, config)
            store.create_topic("b", 1, config)
            self.steps(store, rng.randrange(3, 25))
        shutil.copytree(self.data, self.old)
        way = rng.choice(WHOLE + MIXED)
        self.what = way
        before = self.truth.copy()
        getattr(self, f"_{way.replace(' ', '_')}")()
        if way in WHOLE:
            self.notes["whole"] = 1
            found = self.whole(before)
        else:
            self.notes["mixed"] = 1
            found = self.mixed()
        if found or way in ("moved", "back"):
            return found
        return self.original()

    # ------------------------------------------------------------ a history

    def steps(self, store: Any, count: int) -> None:
        for _ in range(count):
            self.step(store)

    def step(self, store: Any) -> None:
        rng, truth = self.rng, self.truth
        kind = rng.randrange(6)
        key = rng.choice(KEYS)
        if kind < 2:
            values = [self.value() for _ in range(rng.randrange(1, 6))]
            store.topic(key.topic)[key.partition].append_many(values)
            truth.records[key] += values
        elif kind == 2:
            self.publish(store, truth, len(truth.published) + 1)
        elif kind == 3:
            value = self.value()
            producer = store.producer("p")
            producer.append(KEYS[0], value, sequence=truth.sequence + 1)
            truth.records[KEYS[0]].append(value)
            truth.sequence += 1
        elif kind == 4:
            store.topic(key.topic)[key.partition].flush()
        else:
            self.commit(store, key, rng.randrange(len(truth.records[key]) + 1))

    def commit(self, store: Any, key: TopicPartition, position: int) -> None:
        with logstore.Consumer(store, group="g", reset="error") as consumer:
            consumer.assign([key])
            consumer.seek(key, position)
            consumer.commit()
        self.truth.positions[key] = position

    def hurry(self, store: Any) -> None:
        """What a copy must have together: a publication, and a position at an end."""
        self.publish(store, self.truth, len(self.truth.published) + 1)
        key = self.rng.choice(KEYS)
        self.commit(store, key, len(self.truth.records[key]))

    def value(self) -> bytes:
        self.number += 1
        return b"%d:" % self.number + b"x" * self.rng.randrange(200)

    def publish(self, store: Any, truth: _Truth, sequence: int) -> bool:
        """Publish, perhaps again; returns whether it was new."""
        if sequence > len(truth.published):
            values = {key: self.value() for key in KEYS}
            values = self.again.pop() if self.again else values
        else:
            values = truth.published[sequence - 1]
        with store.stage("i", sequence) as stage:
            for key, value in values.items():
                stage.append_many(store.topic(key.topic)[key.partition], [value])
            staged = stage.finish()
        done = store.publish(staged, identity="i", sequence=sequence)
        if done.is_new:
            for key, value in values.items():
                truth.records[key].append(value)
            if sequence > len(truth.published):
                truth.published.append(values)
        return bool(done.is_new)

    # ------------------------------------------------------------ ways to copy

    def _snapshot(self) -> None:
        files = _Busy()
        with open_store(self.data, files=files) as store:
            self.steps(store, self.rng.randrange(4))
            self.moment = self.truth.copy()

            def more(_: Any) -> None:
                if self.rng.random() < 0.3:
                    self.step(store)

            def hurry() -> None:
                if self.rng.random() < 0.7:
                    self.hurry(store)

            links = self.rng.random() < 0.5
            files.work = hurry
            store.snapshot(self.copy, links=links, on_progress=more)
            files.work = None
            self.steps(store, self.rng.randrange(6))

    def _asked(self) -> None:
        self.moment = self.truth.copy()
        with logstore.open(self.data, read_only=True) as store:
            store.snapshot(self.copy)
        self.later()

    def _closed(self) -> None:
        self.moment = self.truth.copy()
        shutil.copytree(self.data, self.copy)
        self.later()

    def _linked(self) -> None:
        self.moment = self.truth.copy()
        shutil.copytree(self.data, self.copy, copy_function=os.link)
        self.later()

    def _moved(self) -> None:
        self.moment = self.truth.copy()
        if self.rng.random() < 0.5:
            self.data.rename(self.copy)
        else:
            shutil.copytree(self.data, self.copy)
            shutil.rmtree(self.data)

    def _back(self) -> None:
        """A backup is put in the place of the store."""
        self.moment = self.truth.copy()
        truth = self.truth.copy()
        self.later()
        shutil.rmtree(self.data)
        shutil.copytree(self.old, self.copy)
        self.truth = truth

    def _running(self) -> None:
        """File by file, while it is written to."""
        with logstore.open(self.data) as store:
            self.steps(store, self.rng.randrange(4))
            self.copy_slowly(lambda: self.rng.choice((self.step, self.hurry))(store))

    def _linked_open(self) -> None:
        with logstore.open(self.data) as store:
            self.steps(store, self.rng.randrange(4))
            shutil.copytree(self.data, self.copy, copy_function=os.link)
            self.steps(store, self.rng.randrange(6))

    def _over(self) -> None:
        """Over an older copy, whose other files stay."""
        self.later()
        shutil.copytree(self.old, self.copy)
        shutil.copytree(self.data, self.copy, dirs_exist_ok=True)

    def _touched(self) -> None:
        """A copy of which one file is another one."""
        self.later()
        shutil.copytree(self.data, self.copy)
        files = [path for path in sorted(self.copy.rglob("*")) if path.is_file()]
        path = self.rng.choice(files)
        how = self.rng.choice(TOUCHES)
        old = self.old / path.relative_to(self.copy)
        self.what = f"{how} {path.relative_to(self.copy)}"
        self.touched = path.name, how
        data = bytearray(path.read_bytes())
        if how == "left out":
            path.unlink()
        elif how == "old" and old.exists():
            shutil.copy2(old, path)
        elif how == "doubled":
            shutil.copy2(path, path.with_name(f"{path.name}.bak"))
        elif how == "damaged" and data:
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            path.write_bytes(data)
        elif how == "cut" and data:
            path.write_bytes(data[: self.rng.randrange(len(data))])

    def copy_slowly(self, work: Callable[[], None]) -> None:
        """The files in any order, and `work` between two of them."""
        self.copy.mkdir()
        paths = sorted(self.data.rglob("*"))
        self.rng.shuffle(paths)
        for path in sorted(paths, key=Path.is_dir, reverse=True):
            target = self.copy / path.relative_to(self.data)
            if path.is_dir():
                target.mkdir()
                continue
            if self.rng.random() < 0.4:
                work()
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(path, target)

    def later(self) -> None:
        """The original goes on."""
        with logstore.open(self.data) as store:
            self.steps(store, self.rng.randrange(6))

    # ------------------------------------------------------------ the judges

    def whole(self, before: _Truth) -> str:
        """All of it is as it was at one moment."""
        moment = self.moment
        if not logstore.verify(self.copy, deep=True).ok:
            return "the copy is damaged"
        with logstore.open(self.copy) as store:
            if store.recovery_report.actions:
                return f"the opening reports {store.recovery_report.actions}"
            truth = _Truth()
            for key in KEYS:
                values = _read(store, key)
                if values[: len(moment.records[key])] != moment.records[key]:
                    return f"{key} has lost records"
                if values != self.all_records(key, len(values)):
                    return f"{key} has other records"
                truth.records[key] = values
            for key in KEYS:
                position = _committed(store, key)
                if key in moment.positions and position is None:
                    return f"the position in {key} is forgotten"
                if position is not None and position > len(truth.records[key]):
                    return f"the position in {key} is above the end"
            sequence = store.published("i") or 0
            if sequence < len(moment.published):
                return f"only {sequence} is known of {len(moment.published)}"
            truth.published = self.truth.published[:sequence]
            # The publisher does again what the copy does not have.
            self.again = self.truth.published[sequence : sequence + 1]
            return self.goes_on(store, truth)

    def all_records(self, key: TopicPartition, count: int) -> list[bytes]:
        return self.truth.records[key][:count]

    def mixed(self) -> str:
        """What it has is right, and what cannot be told is a named error."""
        try:
            with logstore.open(self.copy) as store:
                truth = _Truth()
                for key in KEYS:
                    values = truth.records[key] = _read(store, key)
                    if values != self.all_records(key, len(values)):
                        return f"{key} has other records"
                sequence = store.published("i") or 0
                truth.published = self.truth.published[:sequence]
                return self.goes_on(store, truth, is_whole=False)
        except LogStoreError as error:
            self.notes[type(error).__name__] += 1
            return ""

    def goes_on(self, store: Any, truth: _Truth, *, is_whole: bool = True) -> str:
        found = self.group_goes_on(store, truth, is_whole=is_whole)
        if found or self.touched in BLIND:
            return found
        return self.publisher_goes_on(store, truth, is_whole=is_whole)

    def group_goes_on(self, store: Any, truth: _Truth, *, is_whole: bool) -> str:
        for key in KEYS:
            try:
                position = _committed(store, key)
                end = len(truth.records[key])
                new = [self.value() for _ in range(8)]
                store.topic(key.topic)[key.partition].append_many(new, durable=True)
                truth.records[key] += new
                if position is None:
                    continue
                got = _polled(store, key, 500)
            except LogStoreError as error:
                if is_whole:
                    raise
                self.notes[type(error).__name__] += 1
                continue
            if position > end:
                return f"{key}: goes on at {position}, and the log ended at {end}"
            if got != truth.records[key][position:]:
                return f"{key}: from {position} on, {len(got)} records were delivered"
        return ""

    def publisher_goes_on(self, store: Any, truth: _Truth, *, is_whole: bool) -> str:
        for sequence in (len(truth.published), len(truth.published) + 1):
            if not sequence:
                continue
            try:
                is_new = self.publish(store, truth, sequence)
                records = {key: _read(store, key) for key in KEYS}
            except LogStoreError as error:
                if is_whole:
                    raise
                self.notes[type(error).__name__] += 1
                continue
            for key, value in truth.published[sequence - 1].items():
                if records[key].count(value) != 1:
                    times = records[key].count(value)
                    return f"{sequence} (new: {is_new}) is {times} times in {key}"
        return ""

    def original(self) -> str:
        """The store that was copied has all that was done to it, and nothing else."""
        if not logstore.verify(self.data, deep=True).ok:
            return "the original is damaged"
        with logstore.open(self.data) as store:
            for key in KEYS:
                if _read(store, key) != self.truth_of(key):
                    return f"the original has other records in {key}"
                if _committed(store, key) != self.truth.positions.get(key):
                    return f"the original has another position in {key}"
        return ""

    def truth_of(self, key: TopicPartition) -> list[bytes]:
        return self.truth.records[key]


def _read(store: Any, key: TopicPartition) -> list[bytes]:
    return [record.value for record in store.topic(key.topic)[key.partition].read()]


def _committed(store: Any, key: TopicPartition) -> int | None:
    with logstore.Consumer(store, group="g", reset="error") as consumer:
        found = consumer.committed(key)
    return None if found is None else found.offset


def _polled(store: Any, key: TopicPartition, most: int) -> list[bytes]:
    with logstore.Consumer(store, group="g", reset="error") as consumer:
        consumer.assign([key])
        found: list[bytes] = []
        while True:
            records = consumer.poll(timeout_ms=0, max_records=most).get(key, [])
            if not records:
                return found
            found += [record.value for record in records]
