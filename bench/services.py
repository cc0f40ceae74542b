"""Performance of services on one machine, compared with their rivals, in one run.

    python -m bench.services                    # without Kafka: three minutes
    python -m bench.services --kafka            # also a broker; needs Java and Maven
    python -m bench.services --kafka --json docs/measurements/services.json
    python -m bench.services --only queue --quick

- ``groups``: a consumer group: how fast a partition changes hands, polls, commits, and
  the cost of a member that waits (`bench.groups`);
- ``kafka`` (with ``--kafka``): the same with confluent-kafka and a Kafka 3.9.1 on the
  same cores: session timeout 6 s, the lowest that a broker takes by default (clients
  have 45 s); ``group.initial.rebalance.delay.ms`` at its default, 3 s;
- ``queue``: to put, get and acknowledge values, each of the three durable before the
  next, compared with a queue in SQLite (WAL, ``synchronous=FULL``), persist-queue and
  localqueue;
- ``hand-in``: how fast processes publish (`bench.handin`);
- ``follow``: another process follows a log (`bench.aio`).

The result is a table in Markdown. A ratio says how many times as fast logstore is.
Contestants take turns in every round, numbers are medians of the rounds, and records
read are compared with the written ones. Other work on the machine shows in the times of
syncs and in the 99th percentiles first.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import logstore
from bench import aio, groups, handin, report
from bench.rounds import UnavailableError

__all__ = ["main", "table"]

_VALUE_BYTES: Final = 100
_ROUNDS: Final = 7
_QUEUE_VALUES: Final = 200
_QUEUE_BATCH: Final = 100
_KAFKA_COMMITS: Final = 300
_HAND_IN_BATCHES: Final = 1_600

Row = dict[str, Any]


def row(
    measure: str,
    unit: str,
    ours: float,
    rival: str = "",
    theirs: float | None = None,
    *,
    ratio: float | None = None,
    target: str = "",
    met: bool | None = None,
) -> Row:
    """A measure, with the value of a rival.

    Args:
        unit: "s", "ms" and "us" of times, "%" of a core, "/s" of rates.
        ratio: the median of the ratios of pairs; None: the ratio of the two values.
        target: as text; `met`: whether it is met.
    """
    if theirs is not None and ratio is None:
        ratio = ours / theirs if unit == "/s" else theirs / ours
    return {
        "measure": measure,
        "unit": unit,
        "ours": ours,
        "rival": rival,
        "theirs": theirs,
        "ratio": ratio,
        "target": target,
        "met": met,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, as docs/services.md has them."""
    program = Path(__file__).parents[1] / "docs" / "make_benchmarks.py"
    return "\n".join(runpy.run_path(str(program))["services"](rows))


# ---------------------------------------------------------------------- groups


class _Groups:
    """Measurements of groups, for `kafka_rows`, too."""

    def __init__(self, folder: Path, rounds: int, count: int) -> None:
        self.path = folder / "groups"
        groups.fill(self.path)
        self.rounds = rounds
        self.taken = groups.takeovers(self.path, count)
        self.first = groups.first_records(self.path, count)

    def rows(self) -> Iterator[Row]:
        p99 = report.quantile(self.taken, 0.99)
        yield row(
            "takeover after SIGKILL, p99", "s", p99, target="≤ 0.5 s", met=p99 <= 0.5
        )
        first = statistics.median(self.first) * 1000
        yield row("to the first record", "ms", first, target="≤ 50 ms", met=first <= 50)
        pairs = list(groups.polls(self.path, self.rounds))
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        yield row(
            "`poll`, records",
            "/s",
            statistics.median(ours for ours, _ in pairs),
            "`Partition.read`",
            statistics.median(theirs for _, theirs in pairs),
            target="≥ 0.9",
            met=ratio >= 0.9,
            ratio=ratio,
        )
        quick, durable, rival, ratio = groups.commits(self.path)
        yield row("commits", "/s", quick, target="≥ 20,000/s", met=quick >= 20_000)
        yield row(
            "durable commits",
            "/s",
            durable,
            "write + fdatasync",
            rival,
            target="≥ 0.9",
            met=ratio >= 0.9,
            ratio=ratio,
        )
        share = 100 * groups.idle(self.path)
        yield row(
            "a member that waits, of a core", "%", share, target="< 0.1 %",
            met=share < 0.1,
        )  # fmt: skip


def kafka_rows(found: _Groups, folder: Path, *, is_quick: bool) -> Iterator[Row]:
    """The same with Kafka."""
    try:
        peer = importlib.import_module("bench.peers.kafka_groups")
    except ImportError as error:
        raise UnavailableError(f"{error.name} is not installed") from error
    values = list(groups.values())
    folder.mkdir()
    with peer.KafkaGroups(folder, values) as kafka:
        count = 1 if is_quick else 5
        taken, first = kafka.takeovers(count), kafka.first_records(count)
        ours = groups.touched_polls(found.path, found.rounds)
        pairs = list(zip(ours, kafka.polls(found.rounds, at_once=True), strict=True))
        singles = list(kafka.polls(found.rounds, at_once=False))
        commits = kafka.commits(_KAFKA_COMMITS)
    yield row(
        "takeover after SIGKILL, median",
        "s",
        statistics.median(found.taken),
        "Kafka, timeout 6 s (default 45)",
        statistics.median(taken),
    )
    yield row(
        "to the first record, median",
        "s",
        statistics.median(found.first),
        "Kafka",
        statistics.median(first),
    )
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    yield row(
        "`poll`, values touched",
        "/s",
        statistics.median(mine for mine, _ in pairs),
        "confluent-kafka `consume`",
        statistics.median(theirs for _, theirs in pairs),
        target="≥ 20",
        met=ratio >= 20,
        ratio=ratio,
    )
    yield row(
        "`poll`, values touched",
        "/s",
        statistics.median(mine for mine, _ in pairs),
        "confluent-kafka `poll`, one by one",
        statistics.median(singles),
        target="≥ 20",
        met=statistics.median(mine for mine, _ in pairs)
        >= 20 * statistics.median(singles),
    )
    _, durable, _, _ = groups.commits(found.path)
    yield row("durable commits", "/s", durable, "confluent-kafka, not synced", commits)


# ---------------------------------------------------------------------- queue


class _Queue(Protocol):
    name: str
    has_batches: bool

    def put(self, values: list[bytes]) -> None: ...
    def get(self, count: int) -> list[bytes]: ...
    def acknowledge(self) -> None: ...
    def close(self) -> int: ...


class LogQueue:
    """A topic and a consumer of it: put is `append`, get is `poll`, acknowledge is
    `commit`, each durable."""

    name = "logstore"
    has_batches = True

    def __init__(self, folder: Path) -> None:
        self._store = logstore.open(folder / "store")
        self._topic = self._store.create_topic("q")
        self._consumer = logstore.Consumer(
            self._store, group="g", topics=["q"], reset="earliest"
        )

    def put(self, values: list[bytes]) -> None:
        self._topic[0].append_many(values, durable=True)

    def get(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            for records in self._consumer.poll(1000, count - len(found)).values():
                found += [record.value or b"" for record in records]
        return found

    def acknowledge(self) -> None:
        self._consumer.commit()

    def close(self) -> int:
        """The number of remaining values."""
        left = sum(self._consumer.lag().values())
        self._consumer.close()
        self._store.close()
        return left


def _work(queue: _Queue, batch: int, values: list[bytes]) -> float:
    """Values per second that are put, got and acknowledged, `batch` at a time."""
    found: list[bytes] = []
    begin = time.perf_counter()
    for at in range(0, len(values), batch):
        queue.put(values[at : at + batch])
        found += queue.get(batch)
        queue.acknowledge()
    taken = time.perf_counter() - begin
    if found != values:
        raise AssertionError(f"{queue.name} gave other values")
    return len(values) / taken


def queue_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """To put, get and acknowledge, one value at a time, and many."""
    peers = importlib.import_module("bench.peers.ack_queues")
    queues: list[_Queue] = []
    for number, kind in enumerate(
        (LogQueue, peers.SQLiteQueue, peers.PersistQueue, peers.LocalQueue)
    ):
        where = folder / f"queue{number}"
        where.mkdir(parents=True)
        try:
            queues.append(kind(where))
        except ImportError as error:
            print(f"without {kind.name}: {error}", file=sys.stderr)
    rates: dict[tuple[str, int], list[float]] = {}
    values = [os.urandom(_VALUE_BYTES) for _ in range(_QUEUE_VALUES)]
    many = [os.urandom(_VALUE_BYTES) for _ in range(20 * _QUEUE_BATCH)]
    for number, batch in itertools.product(range(rounds), (1, _QUEUE_BATCH)):
        turn = number % len(queues)
        for queue in queues[turn:] + queues[:turn]:
            if batch == 1 or queue.has_batches:
                rate = _work(queue, batch, values if batch == 1 else many)
                rates.setdefault((queue.name, batch), []).append(rate)
    for queue in queues:
        if queue.close():
            raise AssertionError(f"{queue.name} has values left")
    for (name, batch), found in rates.items():
        if name == LogQueue.name:
            continue
        mine = rates[LogQueue.name, batch]
        text = "one by one" if batch == 1 else f"{batch} at a time"
        ratio = statistics.median(a / b for a, b in zip(mine, found, strict=True))
        yield row(
            f"put, get, acknowledge, {text}",
            "/s",
            statistics.median(mine),
            name,
            statistics.median(found),
            ratio=ratio,
        )


# ---------------------------------------------------------------------- the rest


def hand_in_rows(folder: Path, rounds: int) -> Iterator[Row]:
    """Batches of 100 records, each durable, by one process and by eight."""
    turns: list[tuple[type[handin.Contestant], int]] = [
        (handin.Publish, 1),
        (handin.Submit, 1),
        (handin.Alone, 1),
        (handin.Submit, 8),
        (handin.Append, 1),
        (handin.Append, 8),
        (handin.SQLite, 1),
        (handin.SQLite, 8),
        (handin.LocalQueue, 8),
    ]
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        turn = number % len(turns)
        for kind, processes in turns[turn:] + turns[:turn]:
            with tempfile.TemporaryDirectory(dir=folder) as where:
                batches = _HAND_IN_BATCHES // processes
                try:
                    seconds = handin.measure(kind(Path(where)), processes, batches)
                except ImportError as error:
                    print(f"without {kind.name}: {error}", file=sys.stderr)
                    continue
            found = rates.setdefault((kind.name, processes), [])
            found.append(processes * batches / seconds)

    def rate(name: str, processes: int) -> float:
        return statistics.median(rates[name, processes])

    for partitions in (1, 16):
        path = folder / f"publish{partitions}"
        path.mkdir()
        pairs = handin.publish_beside_write(path, partitions, rounds, 200)
        slower = statistics.median(ours / theirs for ours, theirs in pairs)
        where_ = "a partition" if partitions == 1 else f"{partitions} partitions"
        yield row(
            f"stage and `publish` 100 records, {where_}", "ms",
            1000 * statistics.median(ours for ours, _ in pairs), "write + fdatasync",
            1000 * statistics.median(theirs for _, theirs in pairs), ratio=1 / slower,
            target="≤ 1.7 x", met=slower <= 1.7,
        )  # fmt: skip
    publish = 1000 / rate("publish", 1)
    yield row(
        "`publish` of 100 records", "ms", publish, "SQLite (WAL, FULL)",
        1000 / rate("SQLite", 1),
    )  # fmt: skip
    for name, what in (("submit", "an owner"), ("submit, no owner", "nobody else")):
        submit = 1000 / rate(name, 1)
        yield row(
            f"`submit` of 100 records, {what}", "ms", submit, "`publish`", publish,
            target="≤ 1.25 x `publish`", met=submit <= 1.25 * publish,
        )  # fmt: skip
    firsts = []
    for number in range(rounds):
        path = folder / f"alone{number}"
        path.mkdir()
        firsts.append(handin.first_submit(path))
    first = 1000 * statistics.median(firsts)
    yield row("the first one of these", "ms", first, target="≤ 10 ms", met=first <= 10)
    sqlite = rate("SQLite", 8)
    for kind in (handin.Append, handin.Submit):
        ours = rate(kind.name, 8)
        is_goal = kind is handin.Append
        yield row(
            f"`{kind.name}` by 8 processes, batches", "/s", ours, "SQLite (WAL, FULL)",
            sqlite, target="≥ 2" if is_goal else "",
            met=ours >= 2 * sqlite if is_goal else None,
        )  # fmt: skip
    if (handin.LocalQueue.name, 8) in rates:
        yield row(
            "`append` by 8 processes, batches", "/s", rate("append", 8),
            "localqueue (DURABLE)", rate(handin.LocalQueue.name, 8),
        )  # fmt: skip


def follow_rows(folder: Path) -> Iterator[Row]:
    """Another process follows the log."""
    found = aio.follow_there(folder)
    yield row("append to follower, p50", "us", found["p50_us"])
    yield row("append to follower, p99", "us", found["p99_us"])
    idle = found["idle_cpu_percent"]
    yield row(
        "a follower that waits, of a core", "%", idle, target="< 0.1 %", met=idle < 0.1
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.services",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ("groups", "queue", "hand-in", "follow")
    parser.add_argument("--kafka", action="store_true", help="also a Kafka broker")
    parser.add_argument("--only", choices=names, action="append", default=[])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look")
    parser.add_argument("--json", metavar="FILE", help="- for standard output")
    options = parser.parse_args(argv)
    if options.kafka and options.only and "groups" not in options.only:
        parser.error("--kafka is a rival of the groups, which --only leaves out")
    rounds = 2 if options.quick else _ROUNDS
    rows: list[Row] = []

    def add(found: Iterator[Row]) -> None:
        for one in found:
            rows.append({**one, "rounds": rounds})
            print(one["measure"], "...", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="logstore-bench-") as name:
        folder = Path(name)

        def measure_groups() -> None:
            found = _Groups(folder, rounds, 10 if options.quick else 40)
            add(found.rows())
            if options.kafka:
                try:
                    add(kafka_rows(found, folder / "kafka", is_quick=options.quick))
                except UnavailableError as error:
                    print(f"without Kafka: {error}", file=sys.stderr)

        cases: dict[str, Callable[[], None]] = {
            "groups": measure_groups,
            "queue": lambda: add(queue_rows(folder, rounds)),
            "hand-in": lambda: add(hand_in_rows(folder, rounds)),
            "follow": lambda: add(follow_rows(folder)),
        }
        try:
            for case, work in cases.items():
                if not options.only or case in options.only:
                    work()
        finally:
            print(table(rows))  # also what was measured before a failure
    if options.json:
        report.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
