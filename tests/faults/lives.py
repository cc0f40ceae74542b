"""A log that was found damaged stays damaged, whatever happens to the store next.

A store of logstore's, a copy without its marks, or the directory of a broker gets one
damage, and then lives: it is opened, closed, killed, closed half-way, verified,
repaired without a mode, copied without its marks or with a broker's marks, moved to
another run of the machine, damaged once more, and its bytes are put back, all of them
or only the last damage.

- No opening removes a byte from a `.log` file: nothing here is a torn tail.
- Once an opening has found the damage, each later one finds it, appends are refused,
  `verify` has a problem, and a read raises an error.
- This ends when the bytes are back: then the next opening reports it, and takes
  appends. Or with a `repair` with a mode, which leaves no damage.
- It does not keep other partitions from being compacted in the background, and its own
  failure there is raised once in the life of a store, not in each round.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    Unsynced,
    crash,
    flip_bit,
    frames_in,
    logs_in,
    restart_machine,
)
from support.values import config_of, fill

NAME = "lives"
UNIT = "lives of a damaged log"
COUNTS = {"commit": 600, "nightly": 10_000, "release": 50_000}

_FORMATS = (
    (2, "none"),
    (2, "none"),
    (2, "gzip"),
    (1, "none"),
    (1, "gzip"),
    (0, "none"),
)
_STEPS = (5, 12)
# Share of lives in which the other partitions are checked. They take longer.
_BESIDE = 0.05
_BESIDE_S = 20.0
# A compacted partition has two records, and is smaller; one with fifty is larger.
_COMPACTED_BYTES = 400
_LOG_KINDS = frozenset(
    ("damaged-batch", "partial-batch", "zeros", "offsets", "lost-bytes", "extra-bytes",
     "lost-segment", "unsupported")
)  # fmt: skip
# Kind of damage -> (position in a batch, the bytes that are written there).
_WRITTEN = {"zeros": (0, bytes(30)), "format": (16, b"\3"), "offset": (7, b"\xfe")}
_MARKS = (
    ".logstore-owner",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
)
_POINTS = "recovery-point-offset-checkpoint"


def run(count: int, seed: int, tally: Tally) -> None:
    """Runs `count` lives."""
    notes = run_cases(__name__, count, seed, tally)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a life; return its problem, or ""."""
    logging.getLogger("logstore").setLevel(logging.CRITICAL)
    rng = random.Random(f"lives {key}")
    beside = random.Random(f"lives beside a damaged log {key}")
    if beside.random() < _BESIDE:
        with folder_of(in_memory=True) as folder:
            return _live_beside(Path(folder) / "store", beside, notes)
    with folder_of(in_memory=True) as folder:
        life = _Life(Path(folder), rng)
        try:
            life.live()
        except _Wrong as wrong:
            return f"{' > '.join(life.told)}: {wrong}"
        notes["done"] = 1
        notes["found by an opening"] += life.was_found
        notes["openings"] += life.openings
    return ""


class _Wrong(Exception):
    """A broken promise."""


class _Damage:
    """One damage of a file, and how its bytes are put back."""

    def __init__(self, path: Path, rng: random.Random, kind: str) -> None:
        self.name, self.kind, self.at = path.name, kind, 0
        data = path.read_bytes()
        self.lost = b""
        if kind == "missing":
            self.lost = data
            path.unlink()
        elif kind == "short":
            self.at = rng.randrange(max(len(data) - 60, 1), len(data))
            self.lost = data[self.at :]
            with path.open("r+b") as file:
                file.truncate(self.at)
        elif kind == "long":
            self.at = len(data)
            with path.open("ab") as file:
                file.write(rng.choice((bytes(40), rng.randbytes(40))))
        elif kind in _WRITTEN:
            # In a batch that is followed by intact ones.
            frame = rng.choice(frames_in(data)[:-1])
            begin, new = _WRITTEN[kind]
            self.at = frame.pos + begin
            self.lost = data[self.at : self.at + len(new)]
            _write(path, self.at, new)
        else:
            # A bit that a checksum covers, of a batch followed by intact ones.
            frames = frames_in(data)
            frame = frames[rng.randrange(max(len(frames) - 1, 1))]
            begin = 21 if frame.magic == 2 else 17
            if frame.size <= begin:
                raise IndexError("an earlier damage has left no such batch")
            self.at = 8 * (frame.pos + rng.randrange(begin, frame.size))
            flip_bit(path, self.at)

    def undo(self, directory: Path) -> None:
        path = directory / self.name
        if self.kind == "flip":
            flip_bit(path, self.at)
        elif self.kind == "long":
            with path.open("r+b") as file:
                file.truncate(self.at)
        elif self.kind == "short" or self.kind in _WRITTEN:
            _write(path, self.at, self.lost)
        else:
            path.write_bytes(self.lost)


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


class _Life:
    """One store, from its first damage to the end.

    Attributes:
        told: the actions, for the report.
        is_known: an opening has found the damage, which was not removed since.
        damages: damages whose bytes were not put back.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.path = folder / "0"
        self.number = 0
        self.told: list[str] = []
        self.is_known = self.was_found = self.is_broker = False
        self.openings = 0
        self.damages: list[_Damage] = []
        self.sound: dict[str, bytes] = {}

    @property
    def directory(self) -> Path:
        return self.path / "orders-0"

    def bytes(self) -> dict[str, bytes]:
        return {log.name: log.read_bytes() for log in logs_in(self.directory)}

    # -- the store

    def live(self) -> None:
        self._be_born()
        self._damage()
        steps = [
            self._open, self._open, self._open, self._append, self._kill,
            self._close_half, self._verify, self._verify, self._read,
            self._repair_without_a_mode, self._repair_dry,
        ]  # fmt: skip
        later = [self._restart, self._lose_marks, self._take_marks_of_a_broker]
        later += [self._damage_again, self._put_back, self._put_back_one]
        for _ in range(self.rng.randint(*_STEPS)):
            step = self.rng.choice(steps + (later if self.is_known else []))
            self._do(step)
        # No repair removes data of another format.
        is_other = any(damage.kind == "format" for damage in self.damages)
        ends = (self._put_back, self._put_back if is_other else self._repair)
        self._do(self.rng.choice(ends))
        if self.damages:
            return
        self._do(self._append)

    def _do(self, step: Callable[[], None]) -> None:
        self.told.append(step.__name__.strip("_"))
        step()

    def _be_born(self) -> None:
        rng = self.rng
        magic, codec = rng.choice(_FORMATS)
        many = rng.random() < 0.6
        config = config_of(magic, codec, segment_bytes=600 if many else 1 << 20)
        kind = rng.choice(("closed", "killed", "copy", "broker", "broker"))
        with open_store(self.path, _files=Unsynced()) as store:
            topic = store.create_topic("orders", 2, config=config)
            fill(topic[1], 2)
            for _ in range(rng.randint(8, 14)):
                fill(topic[0], 2, call=2)
            if kind == "killed":
                self._move(crash)
        if kind in ("copy", "broker"):
            for name in _MARKS:
                (self.path / name).unlink(missing_ok=True)
        if kind == "broker":
            self.is_broker = True
            self._forget_own()
        self.kind = kind
        self.told.append(f"{kind} magic{magic}-{codec}")
        self.sound = self.bytes()

    def _forget_own(self) -> None:
        for directory in (self.path, *self.path.glob("orders-*")):
            for own in directory.glob(".logstore-*"):
                if own.name != ".logstore-damaged" and own.is_file():
                    own.unlink()

    def _move(self, copy: Callable[[Path, Path], object]) -> None:
        self.number += 1
        to = self.folder / str(self.number)
        copy(self.path, to)
        to.chmod(0o700)
        self.path = to

    def _damage(self) -> None:
        rng = self.rng
        logs = logs_in(self.directory)
        kinds = ["flip"] * 4 + [*_WRITTEN]
        if self.kind == "closed":
            kinds += ["missing", "short", "long"]
        elif self.kind == "killed":
            kinds += ["missing"]
        kind = rng.choice(kinds)
        # Bytes after the last batch of a log that was not closed are no damage.
        is_inside = kind == "flip" or kind in _WRITTEN
        log = rng.choice(logs) if is_inside or kind == "missing" else logs[-1]
        if is_inside and len(frames_in(log.read_bytes())) < 2:
            log = max(logs, key=lambda one: one.stat().st_size)
        self.told.append(f"{kind} {log.name.lstrip('0')}")
        self.damages.append(_Damage(log, rng, kind))
        self.sound = self.bytes()

    # -- steps

    def _looked(self, open_it: Callable[[], Any]) -> None:
        """Open for writing, and check that no log was changed wrongly."""
        before, was_known = self.bytes(), self.is_known
        self.openings += 1
        open_it()
        now = self.bytes()
        for name, data in before.items():
            if not now.get(name, b"").startswith(data):
                raise _Wrong(
                    f"{len(data) - len(now.get(name, b''))} bytes of {name} went"
                )
            if was_known and self.damages and now[name] != data:
                raise _Wrong(f"{name} has grown, though it is damaged")
        if was_known and self.damages and not self.is_known:
            raise _Wrong("the damage is forgotten")

    def _ask(self, store: Any, *, append: bool) -> None:
        """Check whether the opening has found the damage."""
        labels = {
            action.label
            for action in store.recovery_report.actions
            if (action.topic, action.partition) == ("orders", 0)
        }
        if "torn-tail" in labels:
            raise _Wrong("a torn tail was cut")
        is_refused = bool(
            labels & {"corrupt", "unsupported", "lost-end", "lost-segment"}
        )
        if append or is_refused:
            try:
                store.topic("orders")[0].append(b"more")
                if is_refused:
                    raise _Wrong("it is damaged, and has taken an append")
            except logstore.LogStoreError as error:
                if not is_refused:
                    raise _Wrong(f"append: {error}") from error
        is_taken_away = bool(labels & {"damage-gone"}) or not self.damages
        if self.is_known and not is_refused and not is_taken_away:
            raise _Wrong(f"the damage is not found, only {sorted(labels)}")
        if is_refused and not self.damages:
            raise _Wrong(f"its bytes are back, and it is {sorted(labels)}")
        self.is_known = is_refused
        self.was_found |= is_refused

    def _open(self) -> None:
        def opened() -> None:
            with open_store(self.path, _files=Unsynced()) as store:
                self._ask(store, append=False)

        self._looked(opened)

    def _append(self) -> None:
        """Append to the other partition, and close the store."""

        def opened() -> None:
            with open_store(self.path, _files=Unsynced()) as store:
                store.topic("orders")[1].append(b"beside")
                self._ask(store, append=not self.damages)

        self._looked(opened)

    def _kill(self) -> None:
        def opened() -> None:
            with open_store(self.path, _files=Unsynced()) as store:
                self._ask(store, append=False)
                fill(store.topic("orders")[1], 3)
                self._move(crash)

        self._looked(opened)

    def _close_half(self) -> None:
        """Close the store while some of its calls fail."""

        def opened() -> None:
            files = FaultyFiles()
            store = open_store(self.path, _files=files)
            try:
                self._ask(store, append=False)
                store.topic("orders")[1].append(b"beside")
                method = self.rng.choice(("rename", "sync", "create", "unlink"))
                files.fail(method, times=self.rng.randrange(1, 4))
            finally:
                with contextlib.suppress(logstore.LogStoreError):
                    store.close()

        self._looked(opened)

    def _restart(self) -> None:
        restart_machine(self.path)

    def _lose_marks(self) -> None:
        """Copy like tools that leave out the files of the root."""
        for name in self.rng.sample(_MARKS, self.rng.randint(1, 3)):
            (self.path / name).unlink(missing_ok=True)

    def _take_marks_of_a_broker(self) -> None:
        self._forget_own()
        (self.path / _POINTS).write_text("0\n1\norders 0 0\n")
        mark = self.path / ".kafka_cleanshutdown"
        if self.rng.random() < 0.5:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def _damage_again(self) -> None:
        logs = [log for log in logs_in(self.directory) if log.stat().st_size > 100]
        if logs and len(self.damages) < 3:
            log = self.rng.choice(logs)
            before = [(one.name, one.kind, one.at) for one in self.damages if one.at]
            with contextlib.suppress(AssertionError, IndexError):
                again = _Damage(log, self.rng, "flip")
                if (again.name, again.kind, again.at) in before:
                    again.undo(self.directory)  # it has restored the bit
                else:
                    self.damages.append(again)

    def _put_back_one(self) -> None:
        """Undo the last damage; the others stay, and an opening finds them."""
        if len(self.damages) > 1:
            self.damages.pop().undo(self.directory)

    def _put_back(self) -> None:
        """Undo all damages, the last one first: they may be in one file."""
        while self.damages:
            self.damages.pop().undo(self.directory)
        self.is_known = False

    # -- judges

    def _verify(self) -> None:
        is_deep = self.rng.random() < 0.5
        report = logstore.verify(self.path, deep=is_deep)
        found = [p for p in report.problems if "orders-0" in p.path]
        if self.is_known and self.damages and not found:
            raise _Wrong("verify has no problem")
        if self.is_known and self.damages and self.rng.random() < 0.3:
            handover = logstore.kafka.check_handover(self.path)
            if not any("orders-0" in f.path for f in handover.problems):
                raise _Wrong("the hand-over has no problem")
            if not logstore.doctor(self.path).problems:
                raise _Wrong("doctor has no problem")

    def _read(self) -> None:
        count = 0
        with open_store(self.path, read_only=True) as store:
            partition = store.topic("orders")[0]
            try:
                for _ in partition.read():
                    count += 1
            except (logstore.CorruptionError, logstore.errors.UnsupportedError):
                return
        is_whole = all(d.kind == "long" for d in self.damages)
        if self.is_known and self.damages and not is_whole:
            raise _Wrong(f"a read ends after {count} records, without an error")

    def _repair_without_a_mode(self) -> None:
        before = self.bytes()
        report = logstore.repair(self.path)
        if self.bytes() != before:
            raise _Wrong("a repair without a mode has changed a log")
        if self.is_known and self.damages and report.ok:
            raise _Wrong("a repair without a mode finds nothing")

    def _repair_dry(self) -> None:
        before = self.bytes()
        logstore.repair(self.path, "cut", dry_run=True)
        if self.bytes() != before:
            raise _Wrong("a dry run has changed a log")

    def _repair(self) -> None:
        mode = self.rng.choice(("cut", "skip"))
        report = logstore.repair(self.path, mode)
        left = [p for p in report.remaining if p.kind in _LOG_KINDS]
        if left:
            raise _Wrong(f"repair leaves {left[0].message}")
        self.damages.clear()
        self.is_known = False
        self._append()


def _live_beside(path: Path, rng: random.Random, notes: Counter[str]) -> str:
    """Check that a store compacts partitions in the background while others are
    damaged; return the problem, or ""."""
    count = rng.randint(2, 5)
    damaged = sorted(rng.sample(range(count), rng.randint(1, count - 1)))
    sound = [number for number in range(count) if number not in damaged]
    config = config_of(
        2, "none", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0,
        file_delete_delay_ms=0,
    )  # fmt: skip
    with open_store(path, _files=Unsynced()) as store:
        for partition in store.create_topic("kept", count, config=config):
            _be_dirty(partition)
    for number in damaged:
        flip_bit(path / f"kept-{number}" / f"{0:020}.log", 8 * rng.randrange(80, 800))
    told = f"kept-{damaged} of {count} damaged"
    for life in range(rng.randint(1, 3)):
        notes["lives beside a damaged log"] += 1
        settings = logstore.StoreConfig(compaction_ms=rng.choice((2, 10)))
        if life:
            with open_store(path, _files=Unsynced()) as store:
                for number in sound:
                    _be_dirty(store.topic("kept")[number])
        with open_store(path, _files=Unsynced(), config=settings) as store:
            until = time.monotonic() + _BESIDE_S
            while left := [n for n in sound if not _is_compacted(path / f"kept-{n}")]:
                if time.monotonic() > until:
                    return f"{told}, life {life}: kept-{left} are not compacted"
                time.sleep(0.01)
            heard = _heard(store.topics)
        many = [text for text, times in heard.items() if times > 1]
        if many or len(heard) > len(damaged):
            return f"{told}, life {life}: failures that are told again: {dict(heard)}"
    return ""


def _be_dirty(partition: logstore.Partition) -> None:
    partition.append_many([b"v" * 20] * 50, [b"k"] * 50)
    partition.roll()
    partition.append(b"v", b"k")


def _is_compacted(directory: Path) -> bool:
    try:
        size = sum(log.stat().st_size for log in logs_in(directory))
    except FileNotFoundError:
        return False  # it is just being replaced
    return size < _COMPACTED_BYTES


def _heard(call: Callable[[], object]) -> Counter[str]:
    """Background failures that calls raise while the rounds continue."""
    heard: Counter[str] = Counter()
    for _ in range(20):
        try:
            call()
        except logstore.CorruptionError as error:
            heard[str(error)] += 1
        time.sleep(0.005)
    return heard
