"""A copied store continues: nothing twice, lost or forgotten, or a named error.

A store gets a random history. Then it is copied in one of the documented or plausible
ways: by a snapshot while it is written to, closed, with hard links, moved, file by file
while it is written to, or over an older copy; or a broker uses it for a while, or gets
it by the page's recipe. Some have a broker's files. In some copies a file is missing,
old, doubled or damaged. Some are only read at first, or their groups' positions are
set. Then both continue: records, groups, transactions, publications, producers.

Queries of Spark continue with some of the copies (`copies_spark`).
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
from faults import copies_spark
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore import LogStoreError, TopicConfig, TopicPartition
from logstore.errors import CommitFailedError, GroupNotFoundError
from logstore.io import layout
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.cluster_files import CLUSTER, cluster_files, make_cluster

NAME = "copies"
UNIT = "copied stores"
COUNTS = {"commit": 400, "nightly": 5_000, "release": 50_000}

KEYS: Final = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
# All files are of one moment, and none is changed afterwards.
WHOLE: Final = (
    "snapshot", "asked", "closed", "linked", "moved", "back", "broker", "handed over",
    "topics handed over",
)  # fmt: skip
# These leave no original.
_GONE: Final = ("moved", "back", "broker", "handed over", "topics handed over")
_IDS: Final = {"a": b"a" * 16, "b": b"b" * 16}
# The first group commits offsets, the second one transactions.
COMMITS: Final = "g"
TRANSACTIONS: Final = "x"
GROUPS: Final = (COMMITS, TRANSACTIONS)
_TOLD: Final[Any] = ({"to": "earliest"}, {"to": "latest"}, {"to": 3}, {"shift": -2})
# Files of different moments.
MIXED: Final = ("running", "linked open", "over", "touched")
TOUCHES: Final = ("left out", "old", "doubled", "damaged", "cut")
# (file, its change). A store cannot notice an old or missing file among these: the last
# publication is published again. For the same reason a publisher does not repeat, in
# copies of `MIXED`, publications missing in their ledger.
BLIND: Final = frozenset(
    {(".logstore-published", "old"), (".logstore-published", "left out")}
)


def run(count: int, seed: int, tally: Tally) -> None:
    """Check `count` copies."""
    # A session takes longer than the smallest size has.
    through_spark = count // 100 if count > COUNTS["commit"] else 0
    notes = run_cases(__name__, count - through_spark, seed, tally)
    if through_spark:
        copies_spark.run(through_spark, seed, tally)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    rng = random.Random(f"copies {key}")
    with folder_of(in_memory=True) as folder:
        case = Case(Path(folder), rng, notes)
        found = case.run()
    return f"{case.what}: {found}" if found else ""


class _Busy(Files):
    """Writes to the store while a snapshot reads files of the root."""

    work: Callable[[], None] | None = None

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        work = self.work
        if work is not None and not write and _is_of_root(name):
            self.work = None
            with contextlib.suppress(logstore.errors.ReentrantCallError):
                work()
            self.work = work
        return super().open(dir_fd, name, write=write)


def _is_of_root(name: str) -> bool:
    if name.startswith(layout.GROUP_PREFIX):
        return "." not in name[1:]
    return name == layout.PRODUCERS


class _Truth:
    """History of a store.

    Attributes:
        records: all values of each partition, in order.
        positions: the committed offset of each group and partition.
        published: the values of each publication, by partition.
        sequence: of the named producer.
    """

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[bytes]] = {key: [] for key in KEYS}
        self.positions: dict[tuple[str, TopicPartition], int] = {}
        self.published: list[dict[TopicPartition, bytes]] = []
        self.sequence = -1

    def copy(self) -> _Truth:
        other = _Truth()
        other.records = {key: list(values) for key, values in self.records.items()}
        other.positions = dict(self.positions)
        other.published = list(self.published)
        other.sequence = self.sequence
        return other


class Case:
    """A store, its copy, and the history of both."""

    def __init__(self, folder: Path, rng: random.Random, notes: Counter[str]) -> None:
        self.rng, self.notes = rng, notes
        self.data, self.copy, self.old = (folder / n for n in ("data", "copy", "old"))
        self.truth = _Truth()
        self.number = 0
        self.what = ""
        self.touched: tuple[str, str] = ("", "")
        self.again: list[dict[TopicPartition, bytes]] = []
        # A damaged log may have ended at a higher offset: positions above the end stay.
        self.is_damaged = False
        # Recovery actions allowed at the opening of a whole copy.
        self.expected: tuple[str, ...] = ()
        # Positions of the copy, read before a writer opened it.
        self.seen: dict[tuple[str, TopicPartition], int | None] = {}
        self.cluster: dict[str, bytes] = {}

    def fill(self) -> None:
        rng = self.rng
        with logstore.open(self.data) as store:
            config = TopicConfig(
                segment_bytes=rng.choice((1200, 4000, 1 << 20)), message_format=2
            )
            store.create_topic("a", 2, config)
            store.create_topic("b", 1, config)
            self.steps(store, rng.randrange(3, 25))
        if rng.random() < 0.3:
            make_cluster(self.data, _IDS)
            self.notes["of a broker"] = 1
        self.cluster = cluster_files(self.data)

    def keep(self) -> None:
        shutil.copytree(self.data, self.old)

    def copy_by(self, way: str) -> None:
        getattr(self, f"_{way.replace(' ', '_')}")()

    def run(self) -> str:
        self.fill()
        self.keep()
        way = self.rng.choice(WHOLE + MIXED)
        self.what = way
        self.copy_by(way)
        if way in WHOLE:
            self.notes["whole"] = 1
            found = self.whole()
        else:
            self.notes["mixed"] = 1
            found = self.mixed()
        if found or way in _GONE:
            return found
        return self.original()

    # ------------------------------------------------------------ a history

    def steps(self, store: Any, count: int) -> None:
        for _ in range(count):
            self.step(store)

    def step(self, store: Any) -> None:
        rng, truth = self.rng, self.truth
        kind = rng.randrange(7)
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
        elif kind == 5:
            self.commit(store, key, rng.randrange(len(truth.records[key]) + 1))
        else:
            self.transact(store, key, rng.randrange(len(truth.records[key]) + 1))

    def commit(self, store: Any, key: TopicPartition, position: int) -> None:
        with logstore.Consumer(store, group=COMMITS, reset="error") as consumer:
            consumer.assign([key])
            consumer.seek(key, position)
            consumer.commit()
        self.truth.positions[COMMITS, key] = position

    def transact(self, store: Any, key: TopicPartition, position: int) -> None:
        with logstore.Consumer(
            store, group=TRANSACTIONS, reset="earliest", durable_only=False
        ) as consumer:
            consumer.assign([key])
            consumer.poll(timeout_ms=0, max_records=1)
            consumer.seek(key, position)
            consumer.transaction().commit()
        self.truth.positions[TRANSACTIONS, key] = position

    def hurry(self, store: Any) -> None:
        """Publish, and commit positions at an end: a copy must have each in full."""
        self.publish(store, self.truth, len(self.truth.published) + 1)
        key = self.rng.choice(KEYS)
        self.commit(store, key, len(self.truth.records[key]))
        if self.rng.random() < 0.5:
            self.transact(store, key, len(self.truth.records[key]))

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
        with open_store(self.data, _files=files) as store:
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
        """Replace the store by a backup."""
        self.moment = self.truth.copy()
        truth = self.truth.copy()
        self.later()
        shutil.rmtree(self.data)
        shutil.copytree(self.old, self.copy)
        self.truth = truth

    def _broker(self) -> None:
        """Let a broker use the directory, with logstore's files in it, and write;
        perhaps it is moved then."""
        if not self.cluster:
            make_cluster(self.data, _IDS)
        self.kafka_writes(self.data)
        self._moved()

    def kafka_writes(self, data: Path) -> None:
        """Append by another program, which ignores logstore's files."""
        self.expected = ("other-writer",)
        self.cluster = cluster_files(data)
        own = [*data.glob(".logstore-*"), *data.glob("*/.logstore-*")]
        aside = {path: path.read_bytes() for path in own}
        for path in own:
            path.unlink()
        # A log that another program writes has no files of logstore's.
        with logstore.open(data) as store:
            for key in KEYS:
                if self.rng.random() < 0.7:
                    values = [self.value() for _ in range(self.rng.randrange(1, 9))]
                    store.topic(key.topic)[key.partition].append_many(values)
                    self.truth.records[key] += values
        for path in (*data.glob(".logstore-*"), *data.glob("*/.logstore-*")):
            path.unlink()
        for path, content in aside.items():
            path.write_bytes(content)

    def new_broker(self) -> Path:
        """The directory of a broker that has made the topics, and was stopped."""
        broker = self.data.with_name("broker")
        with logstore.open(broker) as store:
            for topic, count in Counter(key.topic for key in KEYS).items():
                store.create_topic(topic, count)
            store.create_topic("other")[0].append(b"of the broker alone")
        for path in (*broker.glob(".logstore-*"), *broker.glob("*/.logstore-*")):
            path.unlink()
        make_cluster(broker, {topic: self.rng.randbytes(16) for topic in _IDS})
        return broker

    def _handed_over(self) -> None:
        """The whole store becomes the directory of a new broker, by the page's recipe;
        it is taken back later."""
        broker = self.new_broker()
        for name in CLUSTER:
            if (broker / name).is_dir():
                shutil.copytree(broker / name, self.data / name, dirs_exist_ok=True)
            else:
                shutil.copy2(broker / name, self.data / name)
        for path in broker.glob("*-*/partition.metadata"):
            shutil.copy2(path, self.data / path.parent.name)
        shutil.rmtree(broker)
        self.kafka_writes(self.data)
        self._moved()

    def _topics_handed_over(self) -> None:
        """Its topics are given to a broker that has others, by the page's recipe. Files
        in the root of the store are not copied: groups, publications, producers."""
        broker, name = self.new_broker(), "log-start-offset-checkpoint"
        for key in KEYS:
            for path in (broker / str(key)).iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            for path in (self.data / str(key)).iterdir():
                if path.name != "partition.metadata":
                    shutil.copy2(path, broker / str(key))
        lines = [
            line
            for data in (self.data, broker)
            if (data / name).exists()
            for line in (data / name).read_text().splitlines()[2:]
        ]
        (broker / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        records = self.truth.records
        self.truth = _Truth()
        self.truth.records = records
        shutil.rmtree(self.data)
        broker.rename(self.data)
        self.kafka_writes(self.data)
        self._moved()

    def _running(self) -> None:
        """Copy file by file, while the store is written to."""
        with logstore.open(self.data) as store:
            self.steps(store, self.rng.randrange(4))
            self.copy_slowly(lambda: self.rng.choice((self.step, self.hurry))(store))

    def _linked_open(self) -> None:
        with logstore.open(self.data) as store:
            self.steps(store, self.rng.randrange(4))
            shutil.copytree(self.data, self.copy, copy_function=os.link)
            self.steps(store, self.rng.randrange(6))

    def _over(self) -> None:
        """Copy over an older copy, whose other files stay."""
        self.later()
        shutil.copytree(self.old, self.copy)
        shutil.copytree(self.data, self.copy, dirs_exist_ok=True)

    def _touched(self) -> None:
        """Copy the store, and replace, remove or damage one file of the copy."""
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
        """Copy the files in any order, and `work` between two of them."""
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
        """Continue with the original."""
        with logstore.open(self.data) as store:
            self.steps(store, self.rng.randrange(6))

    # ------------------------------------------------------------ the judges

    def whole(self) -> str:
        """Check a copy that is of one moment."""
        moment = self.moment
        if not logstore.verify(self.copy, deep=True).ok:
            return "the copy is damaged"
        if cluster_files(self.copy) != self.cluster:
            return "a broker would not find its cluster in the copy"
        found = self.look()
        if found:
            return found
        with logstore.open(self.copy) as store:
            actions = store.recovery_report.actions
            if [one for one in actions if one.label not in self.expected]:
                return f"the opening reports {actions}"
            truth = _Truth()
            for key in KEYS:
                values = _read(store, key)
                if values[: len(moment.records[key])] != moment.records[key]:
                    return f"{key} has lost records"
                if values != self.truth.records[key][: len(values)]:
                    return f"{key} has other records"
                truth.records[key] = values
            for group, key in _all_positions():
                position = _committed(store, group, key)
                if (group, key) in moment.positions and position is None:
                    return f"the position of {group} in {key} is forgotten"
                if position is not None and position > len(truth.records[key]):
                    return f"the position of {group} in {key} is above the end"
            sequence = store.published("i") or 0
            if sequence < len(moment.published):
                return f"only {sequence} is known of {len(moment.published)}"
            truth.published = self.truth.published[:sequence]
            # The publisher repeats publications that the copy lacks.
            self.again = self.truth.published[sequence : sequence + 1]
            return self.goes_on(store, truth)

    def mixed(self) -> str:
        """Check that a mixed copy shows right contents, or raises a named error."""
        with contextlib.suppress(LogStoreError):
            self.is_damaged = not logstore.verify(self.copy).ok
        try:
            found = self.look()
            if found:
                return found
        except LogStoreError as error:
            self.notes[f"{type(error).__name__} to a reader"] += 1
        try:
            with logstore.open(self.copy) as store:
                truth = _Truth()
                for key in KEYS:
                    values = truth.records[key] = _read(store, key)
                    if values != self.truth.records[key][: len(values)]:
                        return f"{key} has other records"
                sequence = store.published("i") or 0
                truth.published = self.truth.published[:sequence]
                return self.goes_on(store, truth, is_whole=False)
        except LogStoreError as error:
            self.notes[type(error).__name__] += 1
            return ""

    def look(self) -> str:
        """Sometimes read a copy before a writer opens it; return a problem or ""."""
        if self.rng.random() < 0.5:
            return ""
        self.notes["read first"] = 1
        with logstore.open(self.copy, read_only=True) as store:
            for group, key in _all_positions():
                position = _committed(store, group, key)
                end = len(_read(store, key))
                if position is not None and position > end and not self.is_damaged:
                    return f"a reader of {group} has {position} in {key}, of {end}"
                self.seen[group, key] = position
            ends = {key: len(_read(store, key)) for key in KEYS}
        return self.told(ends)

    def told(self, ends: dict[TopicPartition, int]) -> str:
        """Reset a group of a copy that was only read: always if its position may be too
        high."""
        wanted = self.truth.positions
        is_above = any(wanted.get((COMMITS, key), 0) > ends[key] for key in KEYS)
        if self.rng.random() >= 0.4 and not is_above:
            return ""
        way, group = self.rng.choice(_TOLD), self.rng.choice(GROUPS)
        way, group = (_TOLD[-1], COMMITS) if is_above else (way, group)
        try:
            changes = logstore.reset_offsets(self.copy, group, dry_run=False, **way)
        except (GroupNotFoundError, CommitFailedError) as error:
            self.notes[f"{type(error).__name__} to who tells a group"] += 1
            return ""
        self.notes["told where to begin"] = 1
        for one in changes:
            key = TopicPartition(one.topic, one.partition)
            seen = self.seen[group, key]
            wanted = {"earliest": 0, "latest": ends[key], 3: min(3, ends[key])}
            after = wanted.get(way.get("to"), max((seen or 0) - 2, 0))
            if (one.before, one.after) != (seen, after) and not self.is_damaged:
                return f"{group} was at {seen} in {key}, and {way} led to {one}"
            self.seen[group, key] = one.after
        return ""

    def goes_on(self, store: Any, truth: _Truth, *, is_whole: bool = True) -> str:
        found = self.group_goes_on(store, truth, is_whole=is_whole)
        if found or self.touched in BLIND:
            return found
        return self.publisher_goes_on(store, truth, is_whole=is_whole)

    def group_goes_on(self, store: Any, truth: _Truth, *, is_whole: bool) -> str:
        ends = {key: len(truth.records[key]) for key in KEYS}
        for group, key in _all_positions():
            try:
                position = _committed(store, group, key)
                new = [self.value() for _ in range(8)]
                store.topic(key.topic)[key.partition].append_many(new, durable=True)
                truth.records[key] += new
                if position is None:
                    continue
                if position > ends[key]:
                    return f"{group} has {position} in {key}, that ended at {ends[key]}"
                got = _polled(store, group, key, 500)
            except LogStoreError as error:
                if is_whole:
                    raise
                self.notes[type(error).__name__] += 1
                continue
            at = f"{group} in {key}"
            if self.seen.get((group, key), position) != position:
                seen = self.seen[group, key]
                return f"{at}: a reader had {seen}, and the store has {position}"
            if got != truth.records[key][position:]:
                return f"{at}: from {position} on, {len(got)} records were delivered"
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
        """Check that the copied store has its whole history, and nothing else."""
        if not logstore.verify(self.data, deep=True).ok:
            return "the original is damaged"
        if cluster_files(self.data) != self.cluster:
            return "a broker would not find its cluster in the original"
        with logstore.open(self.data) as store:
            for key in KEYS:
                if _read(store, key) != self.truth.records[key]:
                    return f"the original has other records in {key}"
            for group, key in _all_positions():
                position = self.truth.positions.get((group, key))
                if _committed(store, group, key) != position:
                    return f"the original has another position of {group} in {key}"
        return ""


def _read(store: Any, key: TopicPartition) -> list[bytes]:
    records = store.topic(key.topic)[key.partition].read()
    return [record.value or b"" for record in records]


def _all_positions() -> list[tuple[str, TopicPartition]]:
    return [(group, key) for group in GROUPS for key in KEYS]


def _committed(store: Any, group: str, key: TopicPartition) -> int | None:
    with logstore.Consumer(store, group=group, reset="error") as consumer:
        found = consumer.committed(key)
    return None if found is None else found.offset


def _polled(store: Any, group: str, key: TopicPartition, most: int) -> list[bytes]:
    with logstore.Consumer(store, group=group, reset="error") as consumer:
        consumer.assign([key])
        found: list[bytes] = []
        while True:
            records = consumer.poll(timeout_ms=0, max_records=most).get(key, [])
            if not records:
                return found
            found += [record.value for record in records]
