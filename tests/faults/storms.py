"""Storms: threads, rolls, syncs, real timers and asynchronous exceptions on one store.

Some threads append, durably or not, one record and many, from lists and from Arrow;
they also sync, roll, read, compact, cut the tail or the head, and change the settings.
The main thread does the same under a real timer whose handler raises; in the
other threads an exception is raised from outside at any instruction. In the end the
main thread closes the store, interrupted as well, and closes it again.

No call crashes the process or hangs. When the store is opened again, acknowledged
records are there, unless a cut or a compaction may have removed them; an interrupted
call is there whole or not at all; no record has changed, or comes twice; and no opening
finds damage.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from faults.storm_ledger import Ledger
from faults.tracing import may_raise_in
from logstore import CorruptionError, LogStoreError, TopicConfig
from logstore.record.extras import arrow_module

NAME = "storms"
UNIT = "calls"
COUNTS = {"commit": 20_000, "nightly": 1_000_000, "release": 3_000_000}

_LIVES: Final = 2
_CALLS: Final = 60  # of each thread, in each life
_WORTH: Final = 400
_NEVER: Final = 1 << 60
# Allowed findings of an opening, none of which is damage.
_HARMLESS: Final = ("index-rebuilt", "leftovers-removed", "swap-finished", "torn-tail")
# Arrow has its own threads, and is not instrumented: not under the thread sanitizer.
_WITH_ARROW: Final = os.environ.get("LOGSTORE_STORMS_ARROW", "1") == "1"

if _WITH_ARROW:
    import pyarrow as pa

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but raised by these cases only."""


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` calls."""
    notes = run_cases(__name__, count, seed, tally, worth=_WORTH)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    rng = random.Random(f"storms {key}")
    with folder_of(in_memory=rng.random() < 0.9) as folder:
        storm = _Storm(Path(folder) / "store", rng)
        found = ""
        for _ in range(_LIVES):
            found = found or storm.live()
        notes["done"] = storm.done
        notes.update(storm.notes)
    return found


# ---------------------------------------------------------------- one thread


class _Actor:
    """A thread that makes calls, counts them, and keeps its problem.

    Attributes:
        gate: held by the thread that raises in it, and while it begins or ends a call.
        is_armed: an exception may be raised in it now.
        is_shot: one was, in this call.
    """

    def __init__(self, storm: _Storm, number: int, rng: random.Random) -> None:
        self.storm, self.number = storm, number
        self.rng = random.Random(rng.random())
        self.done = self.interrupts = 0
        self.wrong = ""
        self.has_ended = False
        self.gate = threading.Lock()
        self.is_armed = self.is_shot = False
        self.ident = 0

    def run(self) -> None:
        """Run a thread other than the main one."""
        self.ident = threading.get_ident()
        for _ in range(_CALLS):
            if self.has_ended or self.storm.is_over:
                break
            self.one()

    def one(self) -> None:
        """Make one call, which may be interrupted."""
        call = self.storm.call_of(self.rng, self.number)
        try:
            try:
                self.begin()
                call()
            finally:
                self.end()
        except Interrupt:
            self.interrupts += 1
        except logstore.errors.StoreClosedError:
            self.has_ended = True
        except CorruptionError:
            self.wrong = traceback.format_exc()[-1500:]
        except LogStoreError as error:
            self.storm.notes[type(error).__name__] += 1
        except BaseException:
            self.wrong = traceback.format_exc()[-1500:]
        self.done += 1

    def begin(self) -> None:
        with self.gate:
            self.is_shot, self.is_armed = False, True

    def end(self) -> None:
        """Allow no more exceptions; a pending one is raised here."""
        while True:
            with contextlib.suppress(Interrupt):
                with self.gate:
                    self.is_armed = False
                if self.is_shot:
                    for _ in range(100):
                        time.sleep(0)
                break

    def shoot(self) -> None:
        """Raise in it, from another thread."""
        with self.gate:
            if self.is_armed and not self.is_shot and self.ident:
                self.is_shot = True
                _raise_in(self.ident, Interrupt)


class _Main(_Actor):
    """The main thread, where a timer raises."""

    def begin(self) -> None:
        self.is_armed = True
        seconds = self.rng.choice((0.0, 0.00005, 0.0003, 0.002))
        signal.setitimer(signal.ITIMER_REAL, seconds, max(seconds, 0.001))

    def end(self) -> None:
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_armed and may_raise_in(frame):
            raise Interrupt


# ---------------------------------------------------------------- the store


class _Storm:
    """One store, and the known facts about its logs.

    Attributes:
        done: calls so far.
        is_over: the main thread is about to close the store.
    """

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.notes: Counter[str] = Counter()
        self.done = 0
        self.is_over = False
        self.ledgers = [Ledger("plain"), Ledger("cut"), Ledger("keyed")]
        self.partitions: list[logstore.Partition] = []
        self.config = self._config()
        with logstore.open(path) as store:
            for ledger in self.ledgers:
                store.create_topic(ledger.kind, 1, self._config_of(ledger.kind))

    def _config(self) -> dict[str, Any]:
        return {
            "message_format": self.rng.choice((0, 1, 1, 2, 2, 2)),
            "segment_bytes": self.rng.choice((300, 2_000, 20_000, 1 << 20)),
            "compression_type": self.rng.choice(("none", "none", "none", "gzip")),
            "flush_messages": self.rng.choice((_NEVER, _NEVER, 7)),
            "file_delete_delay_ms": 0,
            "retention_ms": -1,
        }

    def _config_of(self, kind: str) -> TopicConfig:
        policy = "compact" if kind == "keyed" else "delete"
        return TopicConfig(**self.config, cleanup_policy=policy)

    def live(self) -> str:
        """Open it, run all threads, close it, and check it; the problem, or ""."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(self.rng.choice((1e-5, 1e-4, 5e-3)))
        try:
            found = self._live()
        finally:
            sys.setswitchinterval(before)
        return found or self._look()

    def _live(self) -> str:
        store = logstore.open(self.path)
        self.store = store
        self.partitions = [store.topic(one.kind)[0] for one in self.ledgers]
        self.is_over = False
        _warm_up()
        main = _Main(self, 0, self.rng)
        actors = [_Actor(self, n, self.rng) for n in range(1, self.rng.randint(3, 5))]
        old = signal.signal(signal.SIGALRM, main.handle)
        threads = [threading.Thread(target=one.run) for one in actors]
        shooter = threading.Thread(target=self._shoot, args=(actors,))
        try:
            for thread in (*threads, shooter):
                thread.start()
            for _ in range(_CALLS):
                main.one()
            self._close(store, main)
        finally:
            self.is_over = True
            for thread in (*threads, shooter):
                thread.join()
            signal.signal(signal.SIGALRM, old)
        for one in (main, *actors):
            self.done += one.done
            self.notes["interrupts"] += one.interrupts
        return next((one.wrong for one in (main, *actors) if one.wrong), "")

    def _shoot(self, actors: list[_Actor]) -> None:
        rng = random.Random(self.rng.random())
        while not self.is_over:
            time.sleep(rng.uniform(0.0001, 0.003))
            rng.choice(actors).shoot()

    def _close(self, store: logstore.Store, main: _Main) -> None:
        """Close it, interrupted now and then, until it is closed."""
        for _ in range(self.rng.randint(0, 4)):
            main.done += 1
            try:
                try:
                    main.begin()
                    store.close()
                finally:
                    main.end()
            except Interrupt:
                main.interrupts += 1
            except LogStoreError as error:
                self.notes[type(error).__name__] += 1
        main.done += 1
        # `close` also raises the error of a call that could not be undone.
        with contextlib.suppress(logstore.StorageError):
            store.close()

    def _look(self) -> str:
        """Open the closed store and check it; return a problem, or ""."""
        with logstore.open(self.path) as store:
            labels = {one.label for one in store.recovery_report.actions}
            if not labels <= set(_HARMLESS):
                return f"opening has found {sorted(labels)}: {store.recovery_report}"
            for ledger in self.ledgers:
                found = ledger.problem(store.topic(ledger.kind)[0])
                if found:
                    return f"{ledger.kind}, {self.config}: {found}"
        return ""

    # ------------------------------------------------------------ calls

    def call_of(self, rng: random.Random, number: int) -> Any:
        """A call on one of the partitions."""
        at = rng.randrange(3)
        partition, ledger = self.partitions[at], self.ledgers[at]
        draw = rng.random()
        if draw < 0.72:
            return lambda: self._append(rng, partition, ledger, number)
        if draw < 0.80:
            return partition.flush
        if draw < 0.86:
            return partition.roll
        if draw < 0.92:
            return lambda: self._read(partition, ledger)
        if draw < 0.95:
            return lambda: self.store.topic(ledger.kind).configure(
                self._config_of(ledger.kind)
            )
        if ledger.kind == "keyed":
            return lambda: partition.compact(force=True)
        if ledger.kind == "cut":
            return lambda: self._cut(rng, partition, ledger)
        return partition.flush

    def _append(
        self,
        rng: random.Random,
        partition: logstore.Partition,
        ledger: Ledger,
        number: int,
    ) -> None:
        durable = rng.random() < 0.5
        how = rng.choice(("one", "one", "many", "many", "arrow", "bytearrays"))
        many = rng.choice((2, 9, 30))
        append = ledger.begin(
            number, 1 if how == "one" else many, rng.choice((0, 0, 90, 2_000)), rng
        )
        values, keys = append.values, append.keys
        if how == "one":
            offset = partition.append(values[0], key=keys[0], durable=durable)
            append.offsets = range(offset, offset + 1)
        elif how == "arrow" and _WITH_ARROW:
            batch = pa.RecordBatch.from_arrays(
                [pa.array(values, pa.binary()), pa.array(keys, pa.binary())],
                names=["value", "key"],
            )
            append.offsets = partition.append_arrow(batch, durable=durable)
        else:
            given: Any = values if how == "many" else [bytearray(v) for v in values]
            append.offsets = partition.append_many(given, keys, durable=durable)
        ledger.acknowledge(append)
        if durable and partition.durable_offset < append.offsets[-1] + 1:
            # A cut may have come after it.
            ledger.check_durable(append, partition)

    def _read(self, partition: logstore.Partition, ledger: Ledger) -> None:
        found = [(record.offset, record.value) for record in partition.read(limit=200)]
        ledger.check_seen(found)

    def _cut(
        self, rng: random.Random, partition: logstore.Partition, ledger: Ledger
    ) -> None:
        start, end = partition.start_offset, partition.end_offset
        at = rng.randint(max(start, end - 40), max(start, end))
        with ledger.cutting(is_tail=rng.random() < 0.6, at=at) as cut:
            if cut.is_tail:
                partition.truncate_to(at)
            else:
                partition.delete_before(min(at, start + 20))


def _warm_up() -> None:
    """Do the work of Python's first calls (logging, the import of pyarrow) now: an
    exception from outside would leave their locks held."""
    if _WITH_ARROW:
        arrow_module()
    for logger in (logging.getLogger(), logging.getLogger("logstore")):
        for level in (10, 20, 30, 40, 50):
            logger.isEnabledFor(level)


if __name__ == "__main__":
    sys.exit(sum(bool(problem(f"by hand/{n}", Counter())) for n in range(20)))
