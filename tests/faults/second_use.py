"""Objects that are used once more after they were closed, finished, discarded,
published, exhausted or deleted.

Random programs over public calls keep each returned object, and use it later, in any
state: stores and stages after their end, staged records that were published,
chunks and batches in a second and a third pass, iterators after their last record,
partitions of topics that were deleted and created again. Each call does what a model
says, or raises an error with a name and changes nothing; at the end the log has each
acknowledged record once.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from faults.second_use_reading import Readings
from faults.second_use_staging import Stages
from faults.second_use_state import CLOSED, GONE, REFUSED, Log, Wrong
from logstore import LogStoreError
from logstore.store.package_access import publication_key

NAME = "second_use"
UNIT = "second uses"
COUNTS = {"commit": 6_000, "nightly": 100_000, "release": 400_000}

_CALLS = 45


def run(count: int, seed: int, tally: Tally) -> None:
    """Runs programs with `count` second uses."""
    notes = run_cases(__name__, count, seed, tally, worth=20)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    rng = random.Random(f"second use {key}")
    with folder_of(in_memory=True) as folder:
        machine = Machine(Path(folder) / "store", rng)
        try:
            machine.run()
        except Wrong as wrong:
            return f"{wrong}; {' '.join(machine.trace[-25:])}"
        finally:
            notes["done"] = machine.again
            notes["refused"] = machine.refused
            machine.end()
    return ""


class Machine(Readings, Stages):
    """Random calls on kept objects, whatever their state."""

    # -- how it goes

    def run(self) -> None:
        calls = [
            getattr(self, name)
            for name in sorted(dir(type(self)))
            if name[:4] == "use_"
        ]
        weights = [_WEIGHTS.get(call.__name__, 2) for call in calls]
        for call in self.rng.choices(calls, weights, k=_CALLS):
            self.trace.append(call.__name__[4:])
            call()
        self.check_all()

    def end(self) -> None:
        for store in self.stores:
            with contextlib.suppress(LogStoreError):
                store.close()

    def use_close(self) -> None:
        """Close the store, or an already closed one; then continue in another."""
        store = self.rng.choice(self.stores[-3:])
        self.again += id(store) not in self.open
        how = self.rng.randrange(3)
        if how == 0 and id(store) in self.open:
            with store:
                pass
        else:
            self.ask("close", store.close)
        if how == 1:
            self.ask("close again", store.close)
            self.again += 1
        self.open.discard(id(store))
        if store is self.store:
            self.new_store()

    def use_closed_store(self) -> None:
        """Check that calls on a closed store raise the right error."""
        store = self.rng.choice(self.stores[-3:])
        if id(store) in self.open:
            return
        self.again += 1
        calls: dict[str, Callable[[], Any]] = {
            "topics": store.topics,
            "topic": lambda: store.topic("t0"),
            "create_topic": lambda: store.create_topic("closed"),
            "delete_topic": lambda: store.delete_topic("t0"),
            "stage": lambda: store.stage(),
            "published": lambda: store.published("me"),
            "publication_key": lambda: publication_key(store),
            "recover": store.recover,
            "discard_staged": store.discard_staged,
            "publish": lambda: store.publish([]),
        }
        name = self.rng.choice(list(calls))
        found = self.ask(f"{name} of a closed store", calls[name], *CLOSED)
        self.check(found is REFUSED, f"{name} of a closed store gives {found!r}")
        repr(store)

    def use_create(self) -> None:
        self.make_topic()

    def use_topic_again(self) -> None:
        """Get the object of a topic once more."""
        if self.topics:
            self.keep_topic(self.rng.choice(list(self.topics)))

    def use_delete(self) -> None:
        name = f"t{self.rng.randrange(3)}"
        store, errors = self.store, () if name in self.topics else GONE
        found = self.ask("delete_topic", lambda: store.delete_topic(name), *errors)
        self.check((found is REFUSED) == bool(errors), f"delete_topic gives {found}")
        self.again += bool(errors)
        for log in self.topics.pop(name, []):
            log.is_there = False

    def use_topic(self) -> None:
        held = self.pick("topic")
        if held is None:
            return
        topic = held.thing
        value = self.new_value()
        number = self.rng.randrange(len(held.more["logs"]))
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: topic.append(value, partition=number),
            "len": lambda: len(topic),
            "partitions": lambda: topic.partitions,
            "flush": topic.flush,
            "config": lambda: topic.config,
            "apply_retention": topic.apply_retention,
            "add_partitions": lambda: topic.add_partitions(1),
        }
        name = self.rng.choice(list(calls))
        # A closed store may know that the topic was deleted before.
        errors = (*self.errors_of(held), *(() if held.log.is_there else GONE))
        found = self.ask(f"topic.{name}", calls[name], *errors)
        # Its name may belong to another topic now.
        logs = (
            held.more["logs"]
            if held.log.is_there
            else self.topics.get(held.more["name"])
        )
        if found is REFUSED:
            return
        if name in ("config", "len") and not self.is_open(held):
            return  # nothing of the store is read
        if self.is_open(held) and logs is None:
            raise Wrong(f"topic.{name} of a deleted topic gives {found!r}")
        self.check(
            self.is_open(held), f"topic.{name} of a closed store gives {found!r}"
        )
        if name == "append":
            log = logs[found.partition]
            self.check(found.offset == len(log.values), f"append is told {found}")
            log.values.append(value)
        elif name == "add_partitions":
            logs.append(Log())
            self.check(found == len(logs), f"add_partitions gives {found}")
        elif name == "len":
            self.check(found == len(logs), f"len is {found}, not {len(logs)}")

    def use_append(self) -> None:
        held = self.pick("partition")
        if held is None:
            return
        partition, log = held.thing, held.log
        values = [self.new_value() for _ in range(self.rng.choice((1, 1, 3)))]
        how = self.rng.choice(("append", "many", "arrow", "generator", "reader twice"))
        if how == "append":
            values = values[:1]
            call: Callable[[], Any] = lambda: range(  # noqa: E731
                (first := partition.append(values[0])), first + 1
            )
        elif how == "many":
            call = lambda: partition.append_many(values)  # noqa: E731
        elif how == "arrow":
            call = lambda: partition.append_arrow(pa.table({"value": values}))  # noqa: E731
        elif how == "generator":
            found = iter(values)
            call = lambda: partition.append_many(found)  # noqa: E731
        else:
            reader = pa.table({"value": values}).to_reader()
            call = lambda: partition.append_arrow(reader)  # noqa: E731
        span = self.ask(how, call, *self.errors_of(held))
        if span is REFUSED:
            return
        self.check(log.is_there, f"{how} to a deleted topic is told {span}")
        self.check(self.is_open(held), f"{how} to a closed store is told {span}")
        end = len(log.values)
        self.check(
            span == range(end, end + len(values)), f"{how} is told {span}, not {end}"
        )
        log.values += values
        if how in ("generator", "reader twice"):
            # The iterator is exhausted now.
            self.again += 1
            again = self.ask("the same again", call, "StorageError")
            is_empty = again is REFUSED or not len(again)
            self.check(is_empty, f"an exhausted {how} gives {again}")

    def use_change(self) -> None:
        """Make a call that may be made twice: the second one changes nothing."""
        held = self.pick("partition")
        if held is None:
            return
        partition, log, rng = held.thing, held.log, self.rng
        name = rng.choice(
            ("roll", "flush", "delete_before", "truncate_to", "retention")
        )
        offset = rng.randint(log.start, len(log.values))
        if name == "truncate_to" and rng.random() < 0.5:
            offset = len(log.values)
        calls: dict[str, Callable[[], Any]] = {
            "roll": partition.roll,
            "flush": partition.flush,
            "delete_before": lambda: partition.delete_before(offset),
            "truncate_to": lambda: partition.truncate_to(offset),
            "retention": lambda: partition.apply_retention(dry_run=True),
        }
        errors = self.errors_of(held)
        if name == "truncate_to":
            errors = (*errors, "UnsupportedError")
        for _ in range(rng.choice((1, 2))):
            found = self.ask(name, calls[name], *errors)
            if found is REFUSED:
                continue
            self.check(log.is_there, f"{name} of a deleted topic gives {found!r}")
            self.check(self.is_open(held), f"{name} of a closed store gives {found!r}")
            self.again += 1
            if name == "truncate_to":
                if offset < len(log.values):
                    # Open reads may get an error: other methods test that.
                    self.held["iterator"].clear()
                    self.held["arrow"].clear()
                del log.values[offset:]
            elif name == "delete_before":
                log.start = max(log.start, offset)
        if log.is_there and self.is_open(held):
            bounds = partition.start_offset, partition.end_offset
            self.check(bounds == (log.start, len(log.values)), f"{name}: {bounds}")

    def use_look(self) -> None:
        held = self.pick("partition")
        if held is None:
            return
        partition, log = held.thing, held.log
        calls: dict[str, Callable[[], Any]] = {
            "start_offset": lambda: partition.start_offset,
            "end_offset": lambda: partition.end_offset,
            "segments": lambda: all(
                s.base_offset <= log.start for s in partition.segments[:1]
            ),
            "read": lambda: [r.value for r in partition.read()],
            "follow": lambda: [r.value for r in partition.follow(timeout=0)],
            "read_batches": lambda: [
                r.value
                for b in partition.read_batches()
                for r in b
                if r.offset >= log.start
            ],
            "read_arrow": lambda: (
                partition.read_arrow().read_all()["value"].to_pylist()
            ),
            "offset_for_time": lambda: partition.offset_for_time(-1),
            "fetch": lambda: [r.value for r in partition.fetch(log.start, 1 << 20)][:1],
        }
        wanted = {
            "start_offset": log.start,
            "end_offset": len(log.values),
            "segments": True,
            "offset_for_time": log.start if log.values[log.start :] else None,
            "fetch": log.values[log.start :][:1],
        }
        name = self.rng.choice(list(calls))
        found = self.ask(f"{name} of a partition", calls[name], *self.errors_of(held))
        if found is REFUSED:
            return
        self.check(log.is_there, f"{name} of a deleted topic gives {found!r}")
        self.check(self.is_open(held), f"{name} of a closed store gives {found!r}")
        right = wanted.get(name, log.values[log.start :])
        self.check(found == right, f"{name} gives {found!r}, not {right!r}")

    # -- reports

    def use_verify(self) -> None:
        if self.rng.random() < 0.7:
            return
        report = logstore.verify(str(self.path))
        one, two = report.to_dict(), report.to_dict()
        self.again += 1
        self.check(one == two, "a report says something else the second time")
        self.check(report.ok, f"verify: {report.problems[:2]}")
        self.check(list(report.problems) == list(report.problems), "problems")
        recovery = self.store.recovery_report
        self.check(recovery.to_dict() == recovery.to_dict(), "recovery_report")

    def check_all(self) -> None:
        """Check that acknowledged records are there once, before and after closing."""
        for _ in range(2):
            for name, logs in self.topics.items():
                for number, log in enumerate(logs):
                    partition = self.store.topic(name)[number]
                    found = [r.value for r in partition.read()]
                    right = log.values[log.start :]
                    self.check(found == right, f"at the end {found}, not {right}")
            self.check(
                self.store.topics() == sorted(self.topics), f"{self.store.topics()}"
            )
            self.store.close()
            report = logstore.verify(str(self.path))
            self.check(report.ok, f"verify at the end: {report.problems[:2]}")
            self.new_store()


_WEIGHTS = {
    "use_append": 8, "use_look": 5, "use_change": 4, "use_new_reading": 6,
    "use_chunk": 6, "use_iterator": 6, "use_stage": 6, "use_finish": 4,
    "use_publish": 5, "use_new_stage": 3, "use_close": 1, "use_verify": 1,
}  # fmt: skip
