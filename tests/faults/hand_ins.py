"""kill -9 of processes that hand in, and of the owners that publish for them.

Several processes hand records in to one store. Owners come and go, and both kinds are
killed at random moments, alone and all at once. Acknowledged records are there once;
others, once or not at all, and once they were handed in, they are published. Each
process begins by asking for its publications, and repeats the unknown ones, or even the
known ones: nothing may be there twice. More identities publish than are remembered, so
the identities of the processes are pinned.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import logstore
from faults.children import forked
from faults.method import Tally
from faults.recorded_calls import scratch
from faults.workers import spread
from logstore import PublicationTimeoutError, StoreConfig, StoreLockedError
from logstore.errors import PublicationConflictError
from logstore.io.checkpoint import ledger
from logstore.io.checkpoint.process_requests import ProcessFile, Slot, process_of
from logstore.store.hand_in import requester
from support.values import FORMATS, config_of

__all__ = ["COUNTS", "NAME", "UNIT", "run", "store_of"]

NAME = "hand-ins"
UNIT = "kill -9"
COUNTS = {"commit": 60, "nightly": 1_000, "release": 2_000}

_WORKERS = 3
_PARTITIONS = 2
# Kills of one store; then a new one.
_ROUNDS = 20
_SECONDS = 60
# Long enough for a busy machine.
_TIMEOUT_MS = 30_000
# Sequences of each worker: of the last begun, handed in, and acknowledged publication.
_BEGUN, _PLACED, _DONE = range(3)
# Number of remembered identities, in addition to the pinned ones.
_REMEMBERED = 2


class _Shared:
    """Numbers that survive every kill: each is stored at once."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * 3 * _WORKERS)).cast("q")

    def get(self, worker: int, field: int) -> int:
        return self._numbers[3 * worker + field]

    def set(self, worker: int, field: int, value: int) -> None:
        self._numbers[3 * worker + field] = value


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` kills, in stores of all formats."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=scratch()) as folder:
        tasks = [
            (folder, 1000 * seed + number, min(_ROUNDS, count - first))
            for number, first in enumerate(range(0, count, _ROUNDS))
        ]
        published = 0
        for done, failures, records in spread(store_of, tasks):
            tally.passed(done - len(failures))
            published += records
            for failure in failures:
                tally.failed(failure)
        tally.note(f"{published:,} publications")


@mock.patch.object(ledger, "IDENTITIES_MAX", _REMEMBERED)
def store_of(folder: str, seed: int, rounds: int) -> tuple[int, list[str], int]:
    """(kills, what was wrong, publications) of one store."""
    own = Path(tempfile.mkdtemp(dir=folder))
    path, log = own / "store", own / "failures"
    rng = random.Random(seed)
    magic, codec = rng.choice([form for form in FORMATS if form[0]])
    with logstore.open(path) as store:
        config = config_of(magic, codec, segment_bytes=3_000)
        store.create_topic("orders", _PARTITIONS, config)
    shared, living = _Shared(), {}
    what = f"seed {seed} magic{magic}-{codec}"
    done, failures = 0, []
    try:
        for number in range(rounds):
            for role in range(_WORKERS + 1):
                if role not in living and rng.random() < 0.9:
                    living[role] = forked(
                        lambda r=role, n=number: _live(path, r, seed + n, shared), log
                    )
            time.sleep(rng.uniform(0, 0.06))
            everybody = list(living)
            for role in everybody if rng.random() < 0.3 else rng.sample(everybody, 1):
                os.kill(living[role], signal.SIGKILL)
                os.waitpid(living.pop(role), 0)
                done += 1
            for role, child in list(living.items()):
                if os.waitpid(child, os.WNOHANG)[0]:
                    del living[role]
            if log.exists():
                break
    finally:
        for child in living.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if log.exists():
        failures.append(f"{what}: {log.read_text(encoding='utf-8')[:1500]}")
    count = 0
    if not failures:
        try:
            count = _check(path, shared)
        except Exception as error:
            failures.append(f"{what}: {error!r} {traceback.format_exc()[-400:]}"[:900])
    shutil.rmtree(own, ignore_errors=True)
    return max(done, len(failures), 1), failures, count


def _live(path: Path, role: int, seed: int, shared: _Shared) -> None:
    """Run a worker; the last role is the owner's."""
    rng = random.Random(f"{seed}/{role}")
    for _ in _while_watched():
        if role == _WORKERS:
            _own(path, rng)
        else:
            _work(path, role, rng, shared)


def _while_watched() -> Iterator[None]:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and os.getppid() != 1:
        yield
    sys.exit(0)


def _own(path: Path, rng: random.Random) -> None:
    """Own the store for a moment, and publish something, too."""
    try:
        config = StoreConfig(publish_for_others=rng.random() < 0.9)
        store = logstore.open(path, config=config)
    except StoreLockedError:
        time.sleep(0.002)
        return
    with store:
        for _ in range(rng.randint(1, 4)):
            time.sleep(rng.uniform(0, 0.02))
            name = f"other {rng.randrange(1 << 30)}"
            store.publish([], identity=name, sequence=1, metadata=b"m")


def _work(path: Path, worker: int, rng: random.Random, shared: _Shared) -> None:
    """Hand in the next records, or ones that may be published already."""
    identity = f"worker {worker}"
    with logstore.open(path, read_only=True) as store:
        last = store.published(identity) or 0
        # Acknowledged hand-ins are known forever.
        assert last >= shared.get(worker, _DONE), (identity, last)
        again = last and rng.random() < 0.5
        for sequence in range(
            last if again else last + 1, last + 1 + rng.randint(1, 5)
        ):
            shared.set(worker, _BEGUN, max(sequence, shared.get(worker, _BEGUN)))
            with store.stage(identity, sequence) as stage:
                for partition in store.topic("orders"):
                    rows = range(1 + (worker + sequence) % 7)
                    values = [b"%d %d %d" % (worker, sequence, row) for row in rows]
                    stage.append_many(partition, values)
                staged = stage.finish()
            _note_request(worker, sequence, shared)
            try:
                store.submit(
                    [staged], identity=identity, sequence=sequence, pinned=True,
                    timeout_ms=_TIMEOUT_MS,
                )  # fmt: skip
                shared.set(worker, _DONE, max(sequence, shared.get(worker, _DONE)))
            except PublicationTimeoutError as error:
                if error.outcome == "not written":
                    # The request was withdrawn.
                    shared.set(worker, _PLACED, shared.get(worker, _DONE))
                return
            except PublicationConflictError as error:
                # A publication begun by the process before this one was completed
                # meanwhile.
                if not sequence < error.last <= shared.get(worker, _BEGUN):
                    raise
                return


def _note_request(worker: int, sequence: int, shared: _Shared) -> None:
    """Note when the next request of this process is in its file."""

    class Noted(ProcessFile):
        def put(self, content: bytes) -> Slot | None:
            slot = super().put(content)
            shared.set(worker, _PLACED, max(sequence, shared.get(worker, _PLACED)))
            return slot

    requester.ProcessFile = Noted  # type: ignore[misc]


def _check(path: Path, shared: _Shared) -> int:
    """Serve the pending requests as an owner; then check that each publication is there
    once, or not at all. Returns the number of publications."""
    with logstore.open(path, config=StoreConfig(publish_for_others=True)) as store:
        until = time.monotonic() + _SECONDS
        while any(map(process_of, os.listdir(path))):
            store._publishing.hand_in.serve()
            assert time.monotonic() < until, "a request is not served"
        found: dict[int, dict[int, list[set[int]]]] = defaultdict(dict)
        for partition in store.topic("orders"):
            for record in partition.read():
                worker, sequence, row = map(int, record.value.split())
                rows = found[worker].setdefault(
                    sequence, [set() for _ in range(_PARTITIONS)]
                )[partition.number]
                assert row not in rows, f"{record.value!r} is there twice"
                rows.add(row)
        for worker in range(_WORKERS):
            _check_worker(store, worker, found[worker], shared)
    report = logstore.verify(path, deep=True)
    assert not report.problems, report.problems
    return sum(map(len, found.values()))


def _check_worker(
    store: logstore.Store,
    worker: int,
    found: dict[int, list[set[int]]],
    shared: _Shared,
) -> None:
    last = store.published(f"worker {worker}") or 0
    assert sorted(found) == list(range(1, last + 1)), (worker, sorted(found), last)
    for sequence, parts in found.items():
        rows = set(range(1 + (worker + sequence) % 7))
        assert parts == [rows] * _PARTITIONS, (worker, sequence, parts)
    placed, done = shared.get(worker, _PLACED), shared.get(worker, _DONE)
    assert max(placed, done) <= last <= shared.get(worker, _BEGUN), (
        worker, placed, done, last,
    )  # fmt: skip
