"""Objects that are used once more: closed, finished, discarded, published, exhausted,
deleted or left, and then asked again.

Random programs over public calls keep what they were given, and use it later, whatever
has become of it: stores and stages after their end, staged records that were published,
chunks and batches in a second and a third pass, iterators behind their last record,
partitions of topics that were deleted and made anew. Each call does what a model says,
or raises an error with a name and changes nothing; at the end the log has each
acknowledged record once.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore import LogStoreError
from logstore.store.store import open_store, publication_token
from support.damage import Unsynced
from support.values import config_of

NAME = "second_use"
UNIT = "second uses"
COUNTS = {"commit": 6_000, "nightly": 100_000, "release": 400_000}

_CALLS = 45
_GONE = ("TopicNotFoundError", "PartitionNotFoundError")
_CLOSED = ("StoreClosedError",)


def run(count: int, seed: int, tally: Tally) -> None:
    """Programs with so many second uses."""
    notes = run_cases(__name__, count, seed, tally, worth=20)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """What is wrong in a case; "" for nothing."""
    rng = random.Random(f"second use {key}")
    with folder_of(in_memory=True) as folder:
        machine = _Machine(Path(folder) / "store", rng)
        try:
            machine.run()
        except _Wrong as wrong:
            return f"{wrong}; {' '.join(machine.trace[-25:])}"
        finally:
            notes["done"] = machine.again
            notes["refused"] = machine.refused
            machine.end()
    return ""


class _Wrong(Exception):
    """The model says otherwise."""


_REFUSED = object()


class _Log:
    """A partition as it should be.

    Attributes:
        values: by offset.
        start: the first that can be read.
        is_there: whether its topic is.
    """

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.start = 0
        self.is_there = True


class _Held:
    """An object that is kept.

    Attributes:
        thing: the object.
        store: which it came from.
        log: of which partition it is, if of one.
        uses: how often it was used.
        more: what else is known of it.
    """

    def __init__(self, thing: Any, store: Any, log: Any = None, **more: Any) -> None:
        self.thing = thing
        self.store = store
        self.log = log
        self.uses = 0
        self.more = more


class _Machine:
    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.trace: list[str] = []
        self.again = self.refused = 0
        self.serial = itertools.count()
        self.topics: dict[str, list[_Log]] = {}
        self.stores: list[Any] = []
        self.open: set[int] = set()
        self.held: dict[str, list[_Held]] = {
            kind: []
            for kind in ("partition", "topic", "stage", "staged", "chunk", "batch",
                         "iterator", "arrow")
        }  # fmt: skip
        self.new_store()
        self.make_topic()

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

    def check(self, is_right: bool, what: str) -> None:
        if not is_right:
            raise _Wrong(what)

    def ask(self, what: str, call: Callable[[], Any], *allowed: str) -> Any:
        """The answer of a call, or `_REFUSED` with one of the errors that may be."""
        try:
            return call()
        except LogStoreError as error:
            names = {kind.__name__ for kind in type(error).__mro__}
            if not names & set(allowed):
                text = f"{what} raises {type(error).__name__}: {str(error)[:250]}"
                raise _Wrong(f"{text}, not {allowed or 'nothing'}") from error
            self.refused += 1
            return _REFUSED
        except Exception as error:
            raise _Wrong(f"{what} raises {type(error).__name__}: {error}") from error

    def pick(self, kind: str) -> _Held | None:
        if not self.held[kind]:
            return None
        held = self.rng.choice(self.held[kind])
        held.uses += 1
        self.again += held.uses > 1
        return held

    def keep(self, kind: str, held: _Held) -> None:
        self.held[kind].append(held)
        if len(self.held[kind]) > 5:
            self.held[kind].pop(0)

    def is_open(self, held: _Held) -> bool:
        return id(held.store) in self.open

    def errors_of(self, held: _Held) -> tuple[str, ...]:
        """What a call on a partition or topic may raise."""
        if not self.is_open(held):
            return _CLOSED
        return () if held.log is None or held.log.is_there else _GONE

    # -- stores

    @property
    def store(self) -> Any:
        return self.stores[-1]

    def new_store(self) -> None:
        self.stores.append(open_store(self.path, files=Unsynced()))
        self.open.add(id(self.store))

    def use_close(self) -> None:
        """Close the store, or one that was closed; then go on in another."""
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
        """A store that is closed says so."""
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
            "publication_token": lambda: publication_token(store),
            "recover": store.recover,
            "discard_staged": store.discard_staged,
            "publish": lambda: store.publish([]),
        }
        name = self.rng.choice(list(calls))
        found = self.ask(f"{name} of a closed store", calls[name], *_CLOSED)
        self.check(found is _REFUSED, f"{name} of a closed store gives {found!r}")
        repr(store)

    # -- topics

    def make_topic(self) -> None:
        name = f"t{self.rng.randrange(3)}"
        magic, codec = self.rng.choice(
            ((1, "none"), (1, "gzip"), (2, "none"), (2, "lz4"))
        )
        config = config_of(
            magic, codec, segment_bytes=self.rng.choice((200, 1_000, 1 << 20)),
            file_delete_delay_ms=self.rng.choice((0, 60_000)),
        )  # fmt: skip
        count = self.rng.randrange(1, 3)
        store = self.store
        errors = ("TopicExistsError",) if name in self.topics else ()
        topic = self.ask(
            "create_topic", lambda: store.create_topic(name, count, config), *errors
        )
        self.check((topic is _REFUSED) == bool(errors), f"create_topic gives {topic}")
        if topic is not _REFUSED:
            self.topics[name] = [_Log() for _ in range(count)]
        self.again += bool(errors)
        self.keep_topic(name)

    def keep_topic(self, name: str) -> None:
        topic = self.store.topic(name)
        logs = self.topics[name]
        self.keep("topic", _Held(topic, self.store, logs[0], logs=logs, name=name))
        for number, log in enumerate(logs):
            self.keep("partition", _Held(topic[number], self.store, log))

    def use_create(self) -> None:
        self.make_topic()

    def use_topic_again(self) -> None:
        """A topic of this name, asked for once more."""
        if self.topics:
            self.keep_topic(self.rng.choice(list(self.topics)))

    def use_delete(self) -> None:
        name = f"t{self.rng.randrange(3)}"
        store, errors = self.store, () if name in self.topics else _GONE
        found = self.ask("delete_topic", lambda: store.delete_topic(name), *errors)
        self.check((found is _REFUSED) == bool(errors), f"delete_topic gives {found}")
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
        errors = (*self.errors_of(held), *(() if held.log.is_there else _GONE))
        found = self.ask(f"topic.{name}", calls[name], *errors)
        # By its name it may be another one now.
        logs = (
            held.more["logs"]
            if held.log.is_there
            else self.topics.get(held.more["name"])
        )
        if found is _REFUSED:
            return
        if name in ("config", "len") and not self.is_open(held):
            return  # nothing of the store is read
        if self.is_open(held) and logs is None:
            raise _Wrong(f"topic.{name} of a deleted topic gives {found!r}")
        self.check(
            self.is_open(held), f"topic.{name} of a closed store gives {found!r}"
        )
        if name == "append":
            log = logs[found.partition]
            self.check(found.offset == len(log.values), f"append is told {found}")
            log.values.append(value)
        elif name == "add_partitions":
            logs.append(_Log())
            self.check(found == len(logs), f"add_partitions gives {found}")
        elif name == "len":
            self.check(found == len(logs), f"len is {found}, not {len(logs)}")

    # -- partitions

    def new_value(self) -> bytes:
        return b"%d" % next(self.serial) + b"." * self.rng.choice((0, 5, 40))

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
        if span is _REFUSED:
            return
        self.check(log.is_there, f"{how} to a deleted topic is told {span}")
        self.check(self.is_open(held), f"{how} to a closed store is told {span}")
        end = len(log.values)
        self.check(
            span == range(end, end + len(values)), f"{how} is told {span}, not {end}"
        )
        log.values += values
        if how in ("generator", "reader twice"):
            # It is empty now.
            self.again += 1
            again = self.ask("the same again", call, "StorageError")
            is_empty = again is _REFUSED or not len(again)
            self.check(is_empty, f"an exhausted {how} gives {again}")

    def use_change(self) -> None:
        """Calls that may be made twice: the second changes nothing."""
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
            if found is _REFUSED:
                continue
            self.check(log.is_there, f"{name} of a deleted topic gives {found!r}")
            self.check(self.is_open(held), f"{name} of a closed store gives {found!r}")
            self.again += 1
            if name == "truncate_to":
                if offset < len(log.values):
                    # What has begun to read may be told so: other methods look at that.
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
        if found is _REFUSED:
            return
        self.check(log.is_there, f"{name} of a deleted topic gives {found!r}")
        self.check(self.is_open(held), f"{name} of a closed store gives {found!r}")
        right = wanted.get(name, log.values[log.start :])
        self.check(found == right, f"{name} gives {found!r}, not {right!r}")

    # -- what reading gives

    def use_new_reading(self) -> None:
        """Keep a chunk, a batch, an iterator, a reader."""
        held = self.pick("partition")
        if held is None or self.errors_of(held):
            return
        partition, log, rng = held.thing, held.log, self.rng
        first = rng.randint(log.start, len(log.values))
        options = {"isolation": rng.choice(("read_committed", "read_uncommitted"))}
        right = list(enumerate(log.values))[first:]
        more = {"right": right, "at": 0, "ended": False, "least": len(right)}
        kind = rng.choice(("chunk", "batch", "iterator", "arrow"))
        if kind == "chunk":
            thing = partition.fetch(first, rng.choice((1, 300, 1 << 20)), **options)
            more["right"] = list(enumerate(log.values))[first : thing.next_offset]
        elif kind == "batch":
            thing = next(iter(partition.read_batches(first, **options)), None)
            if thing is None:
                return
            more["right"] = list(enumerate(log.values))[
                thing.base_offset : thing.next_offset
            ]
        elif kind == "iterator":
            how = rng.choice((partition.read, partition.read, partition.follow))
            if how == partition.follow:
                options["timeout"] = 0
                more["right"] = None
            thing = how(first, **options)
            more["first"] = first
        else:
            size = rng.choice((1, 7, 100))
            thing = partition.read_arrow(first, batch_records=size, **options)
        self.keep(kind, _Held(thing, held.store, log, **more))

    def use_chunk(self) -> None:
        """Each pass over a chunk or batch gives the same, whatever came of its log."""
        held = self.pick(self.rng.choice(("chunk", "batch")))
        if held is None:
            return
        thing, right = held.thing, held.more["right"]
        begun = iter(thing)
        some = [
            (r.offset, r.value) for r in itertools.islice(begun, self.rng.randrange(3))
        ]
        whole = [(r.offset, r.value) for r in thing]
        some += [(r.offset, r.value) for r in begun]
        self.again += 2
        self.check(whole == right, f"{thing!r} gives {whole}, not {right}")
        self.check(
            some == right, f"{thing!r}, a pass beside another: {some}, not {right}"
        )
        bytes(thing.buffer)
        len(thing)
        if isinstance(thing, logstore.RecordBatch):
            self.check(thing.control_record() is None, "a control record")

    def use_iterator(self) -> None:
        held = self.pick("iterator")
        if held is None:
            return
        more = held.more
        right = more["right"]
        if right is None:
            right = list(enumerate(held.log.values))[more["first"] :]
        errors = _CLOSED if not self.is_open(held) else ()
        if more["right"] is None and not held.log.is_there:
            errors = (*errors, *_GONE)
        if more["right"] is None and held.log.start > more["first"] + more["at"]:
            errors = (*errors, "OffsetOutOfRangeError")
        if self.rng.random() < 0.1:
            held.thing.close()
            more["ended"] = True
        for _ in range(self.rng.randrange(1, 8)):
            try:
                record = self.ask("next", lambda: next(held.thing, None), *errors)
            except _Wrong:
                more["ended"] = True
                raise
            if record is _REFUSED:
                more["ended"] = True
            elif record is None:
                # A follower may have looked before the last of them came.
                complete = more["at"] >= more["least"] or more["ended"]
                self.check(complete, f"ends after {more['at']} of {len(right)} records")
                more["ended"] = True
            else:
                found = record.offset, record.value
                self.check(not more["ended"], f"ended, and then gives {found}")
                self.check(more["at"] < len(right), f"{found} is too much")
                self.check(
                    found == right[more["at"]], f"{found}, not {right[more['at']]}"
                )
                more["at"] += 1

    def use_arrow(self) -> None:
        """A RecordBatchReader, also behind its end."""
        held = self.pick("arrow")
        if held is None:
            return
        more = held.more
        for _ in range(self.rng.randrange(1, 4)):
            try:
                batch = held.thing.read_next_batch()
            except StopIteration:
                complete = more["at"] == len(more["right"]) or more["ended"]
                self.check(complete, f"ends after {more['at']} of {len(more['right'])}")
                more["ended"] = True
                continue
            except Exception as error:
                # pyarrow makes its own error of what comes through a stream.
                is_named = "closed" in str(error) and not self.is_open(held)
                self.check(is_named, f"read_arrow raises {type(error)}: {error}")
                more["ended"] = True
                continue
            self.check(not more["ended"], "a reader that has ended goes on")
            columns = (
                batch.column("offset").to_pylist(),
                batch.column("value").to_pylist(),
            )
            found = list(zip(*columns, strict=True))
            right = more["right"][more["at"] :][: len(found)]
            self.check(found == right, f"{found}, not {right}")
            more["at"] += len(found)

    # -- stages

    def use_new_stage(self) -> None:
        identity = self.rng.choice(("", f"me {next(self.serial)}"))
        stage = self.store.stage(identity, 1 if identity else 0)
        is_left = self.rng.random() < 0.2
        if is_left:
            with stage:
                pass
        self.keep(
            "stage",
            _Held(stage, self.store, None, identity=identity, rows=[], result=None,
                  gone=False, is_left=is_left, unsure=False),
        )  # fmt: skip

    def use_stage(self) -> None:
        held = self.pick("stage")
        target = self.pick("partition")
        if held is None or target is None or self.errors_of(target):
            return
        if target.store is not held.store:
            return
        more = held.more
        is_over = (
            more["result"] is not None
            or more["gone"]
            or more["unsure"]
            or not self.is_open(held)
        )
        values = [self.new_value() for _ in range(self.rng.choice((1, 3)))]
        if self.rng.random() < 0.5:
            call = lambda: held.thing.append_many(target.thing, values)  # noqa: E731
        else:
            table = pa.table({"value": values})
            call = lambda: held.thing.append_arrow(target.thing, table)  # noqa: E731
        may_refuse = is_over or more["is_left"]
        errors = ("LogStoreError",) if may_refuse else ()
        found = self.ask("stage.append", call, *errors)
        if found is _REFUSED:
            return
        self.check(not is_over, "a stage that has ended takes records")
        self.check(found == len(values), f"stage.append gives {found}")
        more["rows"].append((target.log, values))

    def use_finish(self) -> None:
        held = self.pick("stage")
        if held is None:
            return
        more = held.more
        is_over = more["gone"] or more["unsure"] or not self.is_open(held)
        errors = ("LogStoreError",) if is_over else ()
        staged = self.ask("finish", held.thing.finish, *errors)
        if staged is _REFUSED:
            return
        if more["result"] is not None:
            self.check(staged == more["result"], f"finish again gives {staged}")
            return
        count = sum(len(values) for _, values in more["rows"])
        if not more["gone"]:
            self.check(
                staged.records == count, f"{staged.records} of {count} are staged"
            )
        more["result"] = staged
        self.keep(
            "staged",
            _Held(
                staged, held.store, None, stage=more, published=False, doubtful=False
            ),
        )

    def use_discard(self) -> None:
        held = self.pick("stage")
        if held is None or self.rng.random() < 0.5:
            return
        errors = () if self.is_open(held) else _CLOSED
        self.ask("discard", held.thing.discard, *errors)
        # Where its store is closed, it has no way to the files any more.
        held.more["gone" if self.is_open(held) else "unsure"] = True

    def use_publish(self) -> None:
        held = self.pick("staged")
        if held is None:
            return
        more, store = held.more, self.store
        stage = more["stage"]
        identity = stage["identity"]
        is_double = self.rng.random() < 0.2
        given = [held.thing, held.thing] if is_double else [held.thing]
        rows = stage["rows"]
        known = bool(identity) and more["published"]
        bad = stage["gone"] or not all(log.is_there for log, _ in rows)
        may_fail = (
            bad or stage["unsure"] or more["published"] or more["doubtful"] or is_double
        )
        errors = ("LogStoreError",) if may_fail and rows and not known else ()
        if is_double and more["doubtful"]:
            errors = ("LogStoreError",)
        result = self.ask(
            "publish",
            lambda: store.publish(
                given, identity=identity, sequence=1 if identity else 0
            ),
            *errors,
        )
        if result is _REFUSED:
            more["doubtful"] = True
            return
        if known and rows:
            self.check(not result.is_new, f"published twice: {result}")
            return
        count = sum(len(values) for _, values in rows)
        if count:
            self.check(not more["published"], f"published twice: {result}")
            self.check(not bad, f"published, although it was gone: {result}")
        self.check(result.records == count, f"published {result.records} of {count}")
        for log, values in rows:
            log.values += values
        more["published"] = True

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
        """What was acknowledged is there once, and after closing as well."""
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
