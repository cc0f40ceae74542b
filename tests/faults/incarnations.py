"""Topics that are deleted and created again, cut and grown, compacted, moved, and used
by another program, while readers, consumers and producers continue.

A history is a list of steps on one topic. Between any two of them each user takes a
step: handles read on, consumers of each kind poll and commit, transactions publish,
records are staged. Each appended record is unique, so that it shows the incarnation of
the topic, and the growth of its log, to which it belongs. The judge knows all of them:

- a handle never gets a record of another incarnation than its own;
- a named producer gets the sequence of its last record in the current log, finds its
  last call again, and continues after it;
- a consumer that commits gets each record of the current log once, in order, since its
  last valid position, and no record that no log had; an open one does not skip any
  either, at any place of a cut;
- a transaction group never publishes an input twice, and skips no input that was there
  when it was idle;
- a committed offset survives everything but a re-creation and a cut below it;
- the id of the topic changes with each re-creation, and only then.

A topic that was never written to cannot be distinguished from another one of its name:
if another program makes it again, it is the same topic.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import logstore
from faults.cases import folder_of, run_cases
from faults.incarnation_users import KINDS, User
from faults.method import Tally
from logstore import LogStoreError
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.lock_record import Purpose
from logstore.io.lock_wait import take_lock
from logstore.store.opening import open_store
from support.damage import Unsynced

NAME = "incarnations"
UNIT = "steps"
COUNTS = {"commit": 1_000, "nightly": 20_000, "release": 60_000}

_STEPS = 12
_KEYS = (b"a", b"b", b"c")


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` steps."""
    notes = run_cases(__name__, count, seed, tally, worth=_STEPS)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    rng = random.Random(f"incarnations {key}")
    with folder_of(in_memory=True) as folder:
        case = _Case(Path(folder) / "store", rng, notes)
        try:
            found = case.run()
        finally:
            case.close()
    notes["done"] = max(len(case.steps), 1)
    return f"{' '.join(case.steps)}: {found}" if found else ""


class _Case:
    """One history.

    Attributes:
        log: offset -> value of each record of the current log.
        start, end: its first offset, and the next one to be written.
        incarnation: how often the topic was made.
        is_compacted: whether the topic keeps the last record of each key alone.
        below: the records below `start` that may be there still.
        is_start_lost: the topic was moved since, and Kafka's checkpoint has the start
            offset under the old name: it is valid as long as logstore's state is.
    """

    def __init__(self, path: Path, rng: random.Random, notes: Counter[str]) -> None:
        self.path, self.rng, self.notes = path, rng, notes
        self.steps: list[str] = []
        self.log: dict[int, bytes] = {}
        self.start = self.end = 0
        self.keys: dict[bytes, bytes] = {}
        self.below: dict[int, bytes] = {}
        self.is_start_lost = False
        self.incarnation = 0
        self.serial = 0
        self.made = rng.choice((1, 2)), rng.random() < 0.3
        self.format, self.is_compacted = self.made
        self.owner: logstore.Store | None = None
        self.id = ""
        self.users: list[User] = []

    def close(self) -> None:
        for user in self.users:
            with contextlib.suppress(LogStoreError):
                user.close()
        if self.owner is not None:
            with contextlib.suppress(LogStoreError):
                self.owner.close()

    # -- the history

    def run(self) -> str:
        self.make()
        with self.writing() as store:
            store.create_topic("out")
            store.create_topic("out-assigned")
        self.append()
        kinds = list(KINDS)
        self.rng.shuffle(kinds)
        self.users = [kind(self) for kind in kinds[: self.rng.randrange(2, 5)]]
        acts: list[Callable[[], None]] = [
            self.append, self.append, self.append, self.make_again, self.cut,
            self.cut_and_grow, self.delete_before, self.roll, self.other_program,
            self.close_owner, self.lose_owner_file, self.lose_topics,
            self.kafka_makes_again, self.rename_and_back, self.kafka_id,
        ]  # fmt: skip
        if self.is_compacted:
            acts += [self.compact] * 3
        for _ in range(_STEPS):
            act = self.rng.choice(acts)
            self.steps.append(act.__name__)
            act()
            found = self.check_id() or self.users_step()
            if found:
                return found
        # The history has ended: each user gets the rest.
        for user in self.users:
            found = user.rest()
            if found:
                return f"{user.name}: {found}"
        return ""

    def users_step(self) -> str:
        for user in self.users:
            if self.rng.random() < 0.6:
                self.steps.append(user.name)
                found = user.step()
                if found:
                    return f"{user.name}: {found}"
        return ""

    def check_id(self) -> str:
        """The id of the topic, as a reader sees it."""
        with logstore.open(self.path, read_only=True) as store:
            if "t" not in store.topics():
                return ""
            now = store.topic("t").id
        before, self.id = self.id, now
        if before and now != before:
            return f"the topic has the id {now}, it had {before}"
        return ""

    @contextlib.contextmanager
    def writing(self) -> Iterator[logstore.Store]:
        if self.owner is None:
            self.owner = open_store(self.path, _files=Unsynced())
        yield self.owner

    # -- what happens to the topic

    def make(self) -> None:
        self.format, self.is_compacted = self.made
        config = logstore.TopicConfig(
            message_format=self.format,
            segment_bytes=400,
            file_delete_delay_ms=0,
            cleanup_policy="compact" if self.is_compacted else "delete",
        )
        with self.writing() as store:
            topic = store.create_topic("t", config=config)
            assert topic.id
            assert topic.id != self.id
            self.id = topic.id
        self.incarnation += 1
        self.log, self.below, self.start, self.end = {}, {}, 0, 0

    def rows(self, count: int) -> tuple[list[bytes], list[bytes] | None]:
        """Values of new records, and keys if the topic needs them."""
        values = []
        for _ in range(count):
            self.serial += 1
            values.append(b"%d/%d" % (self.incarnation, self.serial))
        if not self.is_compacted:
            return values, None
        keys = [self.rng.choice(_KEYS) for _ in values]
        self.keys.update(zip(values, keys, strict=True))
        return values, keys

    def note(self, first: int, values: list[bytes]) -> None:
        """Note appended records."""
        assert first >= self.end
        self.log.update(enumerate(values, first))
        self.end = first + len(values)

    def append(self) -> None:
        with self.writing() as store:
            self.append_to(store["t"][0])

    def append_to(self, partition: logstore.Partition) -> None:
        values, keys = self.rows(self.rng.choice((1, 2, 5, 9)))
        offsets = partition.append_many(values, keys, durable=True)
        self.note(offsets.start, values)

    def compact(self) -> None:
        if not self.is_compacted:
            return  # its settings were lost
        with self.writing() as store:
            store["t"][0].roll()
            store["t"][0].compact(force=True)
            found = {r.offset: r.value or b"" for r in store["t"][0].read()}
        last = {self.keys.get(value, b""): value for value in self.log.values()}
        assert found.items() <= self.log.items(), "compaction has changed a record"
        missing = set(last.values()) - {*found.values()} - {last.get(b"", b"")}
        assert not missing, f"compaction has removed {missing}"
        self.log = found

    def make_again(self) -> None:
        with self.writing() as store:
            store.delete_topic("t")
        self.make()
        if self.rng.random() < 0.8:
            self.append()
        for user in self.users:
            user.was_made_again()

    def cut(self) -> None:
        at = self.rng.randrange(self.start, self.end + 1)
        with self.writing() as store:
            try:
                at = store["t"][0].truncate_to(at)
            except logstore.errors.UnsupportedError:
                return  # inside of a batch
        self.log = {offset: v for offset, v in self.log.items() if offset < at}
        self.end = at
        for user in self.users:
            user.was_cut(at)

    def cut_and_grow(self) -> None:
        self.cut()
        self.append()
        self.append()

    def delete_before(self) -> None:
        at = self.rng.randrange(self.start, self.end + 1)
        with self.writing() as store:
            store["t"][0].delete_before(at)
            self.start = store["t"][0].start_offset
        self.below |= {o: value for o, value in self.log.items() if o < self.start}
        self.log = {o: value for o, value in self.log.items() if o >= self.start}
        self.is_start_lost = False

    def state_counts_no_more(self) -> None:
        """Take back the deletions that a broker does not know."""
        if not self.is_start_lost:
            return
        with logstore.open(self.path, read_only=True) as store:
            self.start = store.topic("t")[0].start_offset
        there = {o: value for o, value in self.below.items() if o >= self.start}
        self.log = {**there, **self.log}

    def roll(self) -> None:
        with self.writing() as store:
            store["t"][0].roll()

    def close_owner(self) -> None:
        if self.owner is not None:
            self.owner.close()
            self.owner = None
        # A user holds the lock for a moment: other programs must wait for it.
        root = Directory.open_root(Files(), str(self.path))
        take_lock(root, Purpose(timeout_ms=60_000)).release()
        root.close()

    def other_program(self) -> None:
        """Leave the directory as if a broker had used it and not changed this log."""
        self.close_owner()
        points = self.path / layout.RECOVERY_CHECKPOINT
        self.serial += 1
        points.write_text(f"0\n1\nx 0 {self.serial}\n")
        (self.path / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)
        self.state_counts_no_more()

    def kafka_makes_again(self) -> None:
        """Delete and create the topic as a broker does."""
        self.other_program()
        was_written = (self.path / "t-0" / layout.TOPIC_IDENTITY).exists()
        for name in (layout.LOG_START_CHECKPOINT, layout.HIGH_WATERMARKS):
            # A broker removes the lines with the topic.
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "t-0")
        (self.path / "t-0").mkdir(0o700)
        (self.path / "t-0" / "00000000000000000000.log").touch()
        self.log, self.below, self.start, self.end = {}, {}, 0, 0
        for user in self.users:
            user.was_replaced()
        if was_written:
            self.id = ""
            self.incarnation += 1
            for user in self.users:
                user.was_made_again()
        with logstore.open(self.path, read_only=True) as store:
            # Settings that were written under another name do not apply to this one.
            config = store.topic("t").config
        self.format = config.message_format
        self.is_compacted = "compact" in config.cleanup_policy
        self.append()

    def kafka_id(self) -> None:
        """Write Kafka's id of the topic, like a broker, or the page on hand-over."""
        self.other_program()
        digits = f"{self.serial:022d}"[-22:-1] + "A"
        file = self.path / "t-0" / layout.PARTITION_METADATA
        file.write_text(f"version: 0\ntopic_id: {digits}\n")

    def lose_owner_file(self) -> None:
        self.close_owner()
        file = self.path / layout.OWNER
        if self.rng.random() < 0.5:
            file.unlink(missing_ok=True)
        elif file.exists():
            data = bytearray(file.read_bytes())
            data[self.rng.randrange(len(data))] ^= 1
            file.write_bytes(data)
        self.state_counts_no_more()

    def lose_topics(self) -> None:
        """Lose the settings; an empty topic has its id only there."""
        if not (self.path / "t-0" / layout.TOPIC_IDENTITY).exists():
            return
        self.close_owner()
        (self.path / layout.TOPICS).unlink(missing_ok=True)
        self.format, self.is_compacted = logstore.TopicConfig().message_format, False

    def rename_and_back(self) -> None:
        """Move the directory as another program, open the store, perhaps append, and
        move it back."""
        if not (self.path / "t-0" / layout.TOPIC_IDENTITY).exists():
            return
        self.close_owner()
        os.rename(self.path / "t-0", self.path / "moved-0")
        with open_store(self.path, _files=Unsynced()) as store:
            assert store["moved"].id == self.id, "a moved topic has another id"
            if self.rng.random() < 0.5:
                self.append_to(store["moved"][0])
        os.rename(self.path / "moved-0", self.path / "t-0")
        self.is_start_lost = True
        self.state_counts_no_more()  # in case it was lost before the move
