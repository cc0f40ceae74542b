"""Topics that are deleted and made again, cut and grown, compacted, moved, and used by
another program, while readers, consumers and producers go on.

A history is a list of steps on one topic. Between any two of them each user takes a
step: handles read on, consumers of each kind poll and commit, transactions publish,
records are staged. Each record that is appended is unlike all others, so that it shows
which incarnation of the topic, and which growth of its log, it is of. The judge knows
all of them:

- a handle is never given a record of another incarnation than its own;
- a consumer that commits gets each record of the log that stands at most once since
  its last position that counts, and none that no log had;
- a transaction group never publishes one input twice, and leaves none out that was
  there when it was idle;
- a committed offset is there after everything but a re-creation and a cut below it;
- the id of the topic changes with each re-creation, and with nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore import LogStoreError
from logstore.io import layout
from logstore.store.store import open_store
from support.damage import Unsynced

NAME = "incarnations"
UNIT = "steps"
COUNTS = {"commit": 1_000, "nightly": 20_000, "release": 60_000}

_STEPS = 12
_T0 = logstore.TopicPartition("t", 0)

# What this method finds, and the part of the package that reads is to mend: each is
# looked for, and not counted as a failure.
KNOWN = {
    "goes on behind a cut": "a consumer that lives does not look at the cuts of the "
    "log: after a cut below its position, and growth, it goes on above it",
}


def run(count: int, seed: int, tally: Tally) -> None:
    """So many steps."""
    for name, is_there in (("goes on behind a cut", _goes_on_behind_a_cut),):
        if (name in KNOWN) != is_there():
            tally.failed(f"{name}: it is mended; take it from the list")
    notes = run_cases(__name__, count, seed, tally, worth=_STEPS)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def _goes_on_behind_a_cut() -> bool:
    """Whether the entry of `KNOWN` is still true."""
    with folder_of(in_memory=True) as folder:
        path = Path(folder) / "store"
        with (
            open_store(path, files=Unsynced()) as store,
            logstore.Consumer(path, reset="earliest", durable_only=False) as one,
        ):
            partition = store.create_topic("t")[0]
            partition.append_many([b"x"] * 10)
            one.assign([_T0])
            one.poll(timeout_ms=1000)
            partition.truncate_to(5)
            partition.append_many([b"y"] * 20)
            found = one.poll(timeout_ms=1000).get(_T0, [])
            return bool(found) and found[0].offset == 10


def problem(key: str, notes: Counter[str]) -> str:
    """What is wrong in a case; "" for nothing."""
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
        log: (incarnation, value) of each offset of the log that stands, from 0 on.
        start: its first offset.
        incarnation: how often the topic was made.
    """

    def __init__(self, path: Path, rng: random.Random, notes: Counter[str]) -> None:
        self.path, self.rng, self.notes = path, rng, notes
        self.steps: list[str] = []
        self.log: list[bytes] = []
        self.start = 0
        self.incarnation = 0
        self.serial = 0
        self.format = rng.choice((1, 2))
        self.owner: logstore.Store | None = None
        self.id = ""
        self.users: list[_User] = []
        self.is_without_ids = False

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
        self.append()
        kinds = list(_KINDS)
        self.rng.shuffle(kinds)
        self.users = [kind(self) for kind in kinds[: self.rng.randrange(2, 5)]]
        acts: list[Callable[[], None]] = [
            self.append, self.append, self.append, self.make_again, self.cut,
            self.cut_and_grow, self.delete_before, self.roll, self.other_program,
            self.close_owner, self.lose_owner_file, self.lose_topics,
            self.kafka_makes_again, self.rename_and_back, self.kafka_id,
        ]  # fmt: skip
        for _ in range(_STEPS):
            act = self.rng.choice(acts)
            self.steps.append(act.__name__)
            act()
            found = self.check_id() or self.users_step()
            if found:
                return found
        # Nobody does anything any more: each one gets the rest.
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
    def writing(self) -> Any:
        if self.owner is None:
            self.owner = open_store(self.path, files=Unsynced())
        yield self.owner

    # -- what happens to the topic

    def make(self) -> None:
        config = logstore.TopicConfig(
            message_format=self.format, segment_bytes=400, file_delete_delay_ms=0
        )
        with self.writing() as store:
            topic = store.create_topic("t", config=config)
            assert topic.id
            assert topic.id != self.id
            self.id = topic.id
        self.incarnation += 1
        self.log, self.start = [], 0

    def append(self) -> None:
        values = []
        for _ in range(self.rng.choice((1, 2, 5, 9))):
            self.serial += 1
            values.append(b"%d/%d" % (self.incarnation, self.serial))
        with self.writing() as store:
            store["t"][0].append_many(values, durable=True)
        self.log += values

    def make_again(self) -> None:
        with self.writing() as store:
            store.delete_topic("t")
        self.make()
        if self.rng.random() < 0.8:
            self.append()
        for user in self.users:
            user.was_made_again()

    def cut(self) -> None:
        at = self.rng.randrange(self.start, len(self.log) + 1)
        with self.writing() as store:
            try:
                at = store["t"][0].truncate_to(at)
            except logstore.UnsupportedError:
                return  # inside of a batch
        del self.log[at:]
        for user in self.users:
            user.was_cut(at)

    def cut_and_grow(self) -> None:
        self.cut()
        self.append()
        self.append()

    def delete_before(self) -> None:
        at = self.rng.randrange(self.start, len(self.log) + 1)
        with self.writing() as store:
            store["t"][0].delete_before(at)
            self.start = store["t"][0].start_offset

    def roll(self) -> None:
        with self.writing() as store:
            store["t"][0].roll()

    def close_owner(self) -> None:
        if self.owner is not None:
            self.owner.close()
            self.owner = None

    def other_program(self) -> None:
        """A broker has used the directory, and has changed nothing in this log."""
        self.close_owner()
        points = self.path / layout.RECOVERY_CHECKPOINT
        self.serial += 1
        points.write_text(f"0\n1\nx 0 {self.serial}\n")
        (self.path / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)

    def kafka_makes_again(self) -> None:
        """A broker deletes the topic, and makes another one of its name."""
        self.other_program()
        for name in (layout.LOG_START_CHECKPOINT, layout.HIGH_WATERMARKS):
            # It removes the lines with the topic.
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "t-0")
        (self.path / "t-0").mkdir(0o700)
        (self.path / "t-0" / "00000000000000000000.log").touch()
        self.log, self.start, self.id = [], 0, ""
        self.incarnation += 1
        for user in self.users:
            user.was_made_again()
        self.append()

    def kafka_id(self) -> None:
        """A broker, or the page on hand-over, puts Kafka's id there."""
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

    def lose_topics(self) -> None:
        """The settings are lost; an empty topic has its id there alone."""
        if not (self.path / "t-0" / layout.TOPIC_IDENTITY).exists():
            return
        self.close_owner()
        (self.path / layout.TOPICS).unlink(missing_ok=True)

    def rename_and_back(self) -> None:
        """Somebody moves the directory, opens the store, and moves it back."""
        if not (self.path / "t-0" / layout.TOPIC_IDENTITY).exists():
            return
        self.close_owner()
        os.rename(self.path / "t-0", self.path / "moved-0")
        with open_store(self.path, files=Unsynced()) as store:
            assert store["moved"].id == self.id, "a moved topic has another id"
        os.rename(self.path / "moved-0", self.path / "t-0")


class _User:
    """Somebody who goes on with the topic between any two steps."""

    name = ""

    def __init__(self, case: _Case) -> None:
        self.case = case

    def step(self) -> str:
        """Do something; what is wrong, "" for nothing."""
        raise NotImplementedError

    def rest(self) -> str:
        """The history is over."""
        return self.step()

    def was_made_again(self) -> None:
        """The topic was deleted and made again."""

    def was_cut(self, at: int) -> None:
        """The log was cut."""

    def close(self) -> None:
        """Let go."""


class _Handle(_User):
    """A partition that was opened once, in a read-only store."""

    name = "handle"

    def __init__(self, case: _Case) -> None:
        super().__init__(case)
        self.store = logstore.open(case.path, read_only=True)
        self.open()

    def open(self) -> None:
        topic = self.store.topic("t")
        self.incarnation = self.case.incarnation
        self.topic, self.partition = topic, topic[0]

    def close(self) -> None:
        self.store.close()

    def step(self) -> str:
        case = self.case
        ways: list[Callable[[], list[bytes]]] = [
            lambda: [r.value or b"" for r in self.partition.read()],
            lambda: [r.value or b"" for r in self.partition.fetch(case.start)],
            lambda: [self.partition.get(len(case.log) - 1).value or b""],
            lambda: [r.value or b"" for r in self.topic.read()],
        ]
        is_other = self.incarnation != case.incarnation
        try:
            found = case.rng.choice(ways)()
        except LogStoreError as error:
            if isinstance(error, logstore.TopicNotFoundError):
                if not is_other:
                    return f"the handle of the topic raises {error}"
                case.notes["handles that raise"] += 1
                if case.rng.random() < 0.5:
                    self.open()
            return ""
        if is_other and found:
            return f"a handle of incarnation {self.incarnation} gives {found[:3]}"
        if any(value not in case.log for value in found):
            return f"records that no log has: {found[:3]}"
        return ""


class _Staged(_User):
    """Records that were staged for the topic are published for it alone."""

    name = "staged"

    def __init__(self, case: _Case) -> None:
        super().__init__(case)
        self.waiting: list[tuple[int, bytes, Any]] = []

    def step(self) -> str:
        case = self.case
        if self.waiting and case.rng.random() < 0.6:
            incarnation, value, staged = self.waiting.pop()
            with case.writing() as store:
                try:
                    store.publish([staged])
                except logstore.TopicNotFoundError:
                    if incarnation == case.incarnation:
                        return "what was staged for this topic is refused"
                    store.discard_staged([staged])
                    return ""
            if incarnation != case.incarnation:
                return f"what was staged for incarnation {incarnation} is published"
            case.log.append(value)
            case.notes["staged records published"] += 1
            return ""
        case.serial += 1
        value = b"%d/%d" % (case.incarnation, case.serial)
        with (
            logstore.open(case.path, read_only=True) as store,
            store.stage() as stage,
        ):
            if store.topic("t").id == "":
                return ""
            stage.append_many(store.topic("t")[0], [value])
            self.waiting.append((case.incarnation, value, stage.finish()))
        return ""


class _Committer(_User):
    """A consumer in a group, opened again now and then: it goes on at its position.

    Attributes:
        counts: what must be committed; None: nothing, or that is not known.
        seen: values that were delivered.
    """

    name = "consumer"

    def __init__(self, case: _Case) -> None:
        super().__init__(case)
        self.counts: int | None = None
        self.is_cut = False
        self.one: logstore.Consumer | None = None
        self.incarnation = case.incarnation

    def open(self) -> logstore.Consumer:
        one = logstore.Consumer(
            self.case.path, group=self.name, reset="earliest", durable_only=False
        )
        one.subscribe(["t"])
        return one

    def close(self) -> None:
        if self.one is not None:
            self.one.close()
            self.one = None

    def was_made_again(self) -> None:
        self.counts = None

    def was_cut(self, at: int) -> None:
        if self.counts is not None and at < self.counts:
            # The proof of the position decides, at the next opening.
            self.counts, self.is_cut = None, True

    def poll(self) -> list[tuple[int, bytes]]:
        assert self.one is not None
        found = []
        for _ in range(3):
            for records in self.one.poll(timeout_ms=0).values():
                found += [(r.offset, r.value or b"") for r in records]
        return found

    def step(self) -> str:
        case = self.case
        # One that lives does not see the cut of a log: that is KNOWN.
        if self.one is not None and (self.is_cut or case.rng.random() < 0.3):
            self.close()
        is_new = self.one is None
        if self.one is None:
            self.one, self.is_cut = self.open(), False
        try:
            if is_new and self.counts is not None:
                at = self.one.committed(_T0)
                if at is None or at.offset != self.counts:
                    return f"committed is {at}, it was {self.counts}"
            found = self.poll()
            problem = self.judge(found, is_new=is_new)
            if problem:
                return problem
            if found:
                self.one.commit()
                self.counts = found[-1][0] + 1
                self.incarnation = case.incarnation
        except logstore.TopicNotFoundError:
            self.close()
        except logstore.GroupError:
            self.close()
        return ""

    def judge(self, found: list[tuple[int, bytes]], *, is_new: bool) -> str:
        case = self.case
        for offset, value in found:
            if offset >= len(case.log) or case.log[offset] != value:
                return f"{value!r} at offset {offset} is not in the log"
        if found and is_new and self.counts is not None:
            first = max(self.counts, case.start)
            if found[0][0] != first:
                return f"goes on at offset {found[0][0]}, {self.counts} was committed"
        return ""

    def rest(self) -> str:
        self.close()
        found = self.step()
        if found or self.one is None:
            return found
        case = self.case
        if self.counts is not None and max(self.counts, case.start) < len(case.log):
            return f"ends at {self.counts} of {len(self.case.log)}"
        return ""


class _Assigned(_Committer):
    """The same with `assign`."""

    name = "assigned"

    def open(self) -> logstore.Consumer:
        one = logstore.Consumer(
            self.case.path, group=self.name, reset="earliest", durable_only=False
        )
        one.assign([_T0])
        return one


class _Asyncio(_Committer):
    """The same with the consumer for asyncio."""

    name = "asyncio"

    def step(self) -> str:
        return asyncio.run(self._step())

    async def _step(self) -> str:
        case = self.case
        found: list[tuple[int, bytes]] = []
        async with logstore.aio.Consumer(
            case.path,
            group=self.name,
            topics=["t"],
            reset="earliest",
            durable_only=False,
        ) as one:
            try:
                at = await one.committed(_T0)
                if self.counts is not None and (at is None or at.offset != self.counts):
                    return f"committed is {at}, it was {self.counts}"
                records = await one.getmany(timeout_ms=20)
                for some in records.values():
                    found += [(r.offset, r.value or b"") for r in some]
                problem = self.judge(found, is_new=True)
                if problem:
                    return problem
                if found:
                    await one.commit()
                    self.counts = found[-1][0] + 1
            except (logstore.TopicNotFoundError, logstore.GroupError):
                pass
        return ""

    def rest(self) -> str:
        return self.step() or self.step()


class _Transactional(_Committer):
    """A group that publishes what it reads, with its positions."""

    name = "transactional"

    def step(self) -> str:
        case = self.case
        case.close_owner()
        one = self.open()
        try:
            with one.transaction() as transaction:
                self.one = one
                found = self.poll()
                problem = self.judge(found, is_new=True)
                if problem:
                    return problem
                for _, value in found:
                    transaction.append("out", value)
            if found:
                self.counts = found[-1][0] + 1
        except (logstore.TopicNotFoundError, logstore.GroupError) as error:
            case.notes[f"transactions with {type(error).__name__}"] += 1
        finally:
            one.close()
            self.one = None
        return self.outputs()

    def outputs(self) -> str:
        with logstore.open(self.case.path, read_only=True) as store:
            times = Counter(r.value for r in store["out"][0].read())
        twice = [value for value, n in times.items() if n > 1]
        # After a cut the group may begin again.
        if twice and not self.is_cut:
            return f"{len(twice)} outputs are there twice: {twice[:3]}"
        return ""

    def rest(self) -> str:
        found = self.step()
        if found:
            return found
        with logstore.open(self.case.path, read_only=True) as store:
            outputs = {r.value for r in store["out"][0].read()}
        missing = [v for v in self.case.log[self.case.start :] if v not in outputs]
        return f"{len(missing)} inputs were left out: {missing[:3]}" if missing else ""


_KINDS = (_Handle, _Staged, _Committer, _Assigned, _Asyncio, _Transactional)
