"""Processes that append to one store, and owners of it, are killed: every acknowledged
record is there once, and in the order of its process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.process_requests import process_of
from support.levels import IS_ALL
from support.values import config_of

OWNER = """
import sys, logstore
config = logstore.StoreConfig(publish_for_others=True)
with logstore.open(sys.argv[1], config=config, lock_timeout_ms=60_000):
    print("open", flush=True)
    sys.stdin.read()
"""
APPENDER = """
import sys, logstore
name = sys.argv[2]
with logstore.open(sys.argv[1], shared=True, hand_in_timeout_ms=60_000) as store:
    topic, number = store.topic("a"), 0
    print("open", flush=True)
    while True:
        span = topic[number % 2].append_many([b"%s %d" % (name.encode(), number)] * 2)
        print(number, span.start, flush=True)
        number += 1
"""


class Appender:
    """A process that appends until it is killed, and says what was appended."""

    def __init__(self, path: str, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", APPENDER, path, name], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"open\n"

    def kill(self) -> dict[int, int]:
        """Kill it; the first offset of each acknowledged pair, by number."""
        self.process.kill()
        out, _ = self.process.communicate()
        lines = [line.split() for line in out.split(b"\n")[:-1]]
        return {int(number): int(first) for number, first in lines}


def owner_for(path: str, seconds: float) -> None:
    """Own the store, and be killed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        time.sleep(seconds)
        owner.kill()


@pytest.mark.parametrize("has_owners", [True, False], ids=["owners", "keepers"])
def test_acknowledged_records_are_there_once(tmp_path: Path, has_owners: bool) -> None:
    """Whichever process is killed, at whatever moment. A process that keeps the lock
    for a moment is killed with it."""
    path = str(tmp_path / "store")
    with logstore.open(path) as store:
        store.create_topic("a", 2, config_of(2))
    rng, names = random.Random(7), iter(range(1 << 30))
    appenders = [Appender(path, f"p{next(names)}") for _ in range(3)]
    said: dict[str, dict[int, int]] = {}
    try:
        for _ in range(60 if IS_ALL else 4):
            if has_owners:
                owner_for(path, rng.random() * 0.3)
            else:
                time.sleep(rng.random() * 0.5)
            if not has_owners or rng.random() < 0.4:
                victim = appenders.pop(rng.randrange(len(appenders)))
                said[victim.name] = victim.kill()
                appenders.append(Appender(path, f"p{next(names)}"))
    finally:
        for appender in appenders:
            said[appender.name] = appender.kill()
    config = logstore.StoreConfig(publish_for_others=True)
    with logstore.open(path, lock_timeout_ms=60_000, config=config) as store:
        found = [list(partition.read()) for partition in store.topic("a").partitions]
        while [name for name in os.listdir(path) if process_of(name)]:
            time.sleep(0.01)
    assert sum(map(len, said.values())) > 10
    for name, acknowledged in said.items():
        for number, first in acknowledged.items():
            value = b"%s %d" % (name.encode(), number)
            records = [r for r in found[number % 2] if r.value == value]
            assert [r.offset for r in records] == [first, first + 1], value
    counts = Counter(r.value for records in found for r in records)
    assert set(counts.values()) == {2}
    for records in found:
        last: dict[bytes, int] = {}
        for record in records:
            assert record.value is not None
            name_, number_ = record.value.split()
            assert last.get(name_, -1) <= int(number_)
            last[name_] = int(number_)
    in_log = {tuple(value.split()) for value in counts if value is not None}
    for name, acknowledged in said.items():
        mine = {int(n) for who, n in in_log if who == name.encode()}
        # At most one more: the append during which it was killed.
        assert len(mine - acknowledged.keys()) <= 1


@pytest.mark.parametrize("state", ["owner", "keeper"])
def test_stopped_process_delays_nobody_beyond_the_time(
    tmp_path: Path, state: str
) -> None:
    """The owner, or a process that holds the lock for a moment, is stopped: an append
    that is reported as not written is never written later."""
    path = str(tmp_path / "store")
    with logstore.open(path) as store:
        store.create_topic("a", 2, config_of(2))
    if state == "owner":
        stopped = subprocess.Popen(
            [sys.executable, "-c", OWNER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == b"open\n"
    else:
        stopped = Appender(path, "p").process
        time.sleep(0.3)
    try:
        outcomes = []
        with logstore.open(path, shared=True, hand_in_timeout_ms=300) as shared:
            for number in range(30 if IS_ALL else 3):
                stopped.send_signal(signal.SIGSTOP)
                begun = time.monotonic()
                try:
                    shared.topic("a")[0].append(b"%d" % number)
                    outcomes.append("written")
                except logstore.PublicationTimeoutError as error:
                    outcomes.append(error.outcome)
                assert time.monotonic() - begun < 10
                stopped.send_signal(signal.SIGCONT)
                time.sleep(0.05)
    finally:
        stopped.kill()
        stopped.communicate()
    with logstore.open(path, lock_timeout_ms=60_000) as store:
        values = Counter(record.value for record in store.topic("a")[0].read())
    for number, outcome in enumerate(outcomes):
        found = values[b"%d" % number]
        expected = {"written": (1,), "not written": (0,), "unknown": (0, 1)}
        assert found in expected[outcome], (number, outcome)
