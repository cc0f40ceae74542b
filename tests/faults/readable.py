"""Round trips of written data: names, identities, settings, keys, headers, times.

Every argument of a caller is chosen at random, often on the edge of the legal range,
for each public call that writes a record or a state file. A call that refuses it
changes nothing; accepted values are read back unchanged, in the same store, by a
concurrent reader, and by the next writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import reprlib
import string
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore import LogStoreError, StoreConfig, TopicConfig
from logstore.store.opening import open_store
from support.damage import Unsynced

NAME = "readable"
UNIT = "written and read"
COUNTS = {"commit": 2_500, "nightly": 50_000, "release": 300_000}

_CALLS = 14
_NAMED = (LogStoreError, TypeError, ValueError)
_LEGAL = string.ascii_letters + string.digits + "._-"
_ODD = "[]{}()\"'\\,:/\0\n\r\t \u2028\ud7ff\U0010ffff\ufeff%\x7f\x85é"


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` calls that write something."""
    notes = run_cases(__name__, count, seed, tally, worth=_CALLS)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    rng = random.Random(f"readable {key}")
    with folder_of(in_memory=True) as folder:
        case = _Case(Path(folder) / "store", rng)
        found = ""
        for _ in range(_CALLS):
            found = case.call()
            if found:
                break
        found = found or case.look_again()
        notes["done"] = max(case.done, 1)
        notes["refused"] = case.refused
        case.close()
    return f"{case.what[:400]}: {found}" if found else ""


# ---------------------------------------------------------------- what is chosen


def text_of(rng: random.Random, longest: int) -> str:
    """Any text: brackets, digits, controls, other planes, lone halves of pairs."""
    kind = rng.randrange(9)
    size = rng.choice((1, 1, 2, 5, 20, rng.randrange(1, longest + 1)))
    if kind == 0:
        return "".join(rng.choice(_ODD) for _ in range(size))
    if kind == 1:
        return "".join(chr(rng.randrange(1, 0xD800)) for _ in range(size))
    if kind == 2:
        digits = str(rng.randrange(10 ** rng.randrange(1, 40)))
        return rng.choice((":", ",", "[", "-", "")) + digits
    if kind == 3:
        return rng.choice(("[", "{", "(", "]", "}", ")")) * size
    if kind == 4:
        return "\ud800" * size if rng.random() < 0.3 else "\0" * size
    if kind == 5:
        return rng.choice(("null", "true", "1e400", "NaN", "-0", "\\u0000", '"', "\\"))
    return "".join(rng.choice(_LEGAL) for _ in range(size))


def name_of(rng: random.Random) -> str:
    """A name of a topic: most are legal."""
    kind = rng.randrange(12)
    if kind == 0:
        return text_of(rng, 300)
    if kind == 1:
        return rng.choice(_LEGAL) * rng.choice((1, 2, 243, 248, 249, 250))
    if kind == 2:
        parts = (".", "-", "_", "0", "-0", "-00", "deleted", "-delete", "-stray", "log",
                 "swap", "-future", "logstore", "__cluster_metadata")  # fmt: skip
        return "".join(rng.choice(parts) for _ in range(rng.randrange(1, 5)))
    return "".join(rng.choice(_LEGAL) for _ in range(rng.choice((1, 3, 10, 60))))


def number_of(rng: random.Random) -> int:
    top = (1 << 63) - 1
    return rng.choice(
        (0, 1, -1, -2, 2, 14, 1_000, 1 << 20, (1 << 31) - 1, 1 << 31, top, top - 1,
         -top - 1, top + 1, rng.randrange(top), rng.randrange(1 << 32))
    )  # fmt: skip


def bytes_of(rng: random.Random) -> bytes | None:
    kind = rng.randrange(6)
    if kind == 0:
        return None
    return rng.randbytes(rng.choice((0, 1, 3, 60, 127, 128, 8191, 8192)))


def config_of(rng: random.Random) -> TopicConfig | None:
    """Settings of a topic, if they are legal."""
    settings: dict[str, Any] = {}
    settings["message_format"] = rng.choice((0, 1, 2, 2))
    fields = {field.name: field for field in dataclasses.fields(TopicConfig)}
    for name in rng.sample(sorted(fields), rng.randrange(0, 7)):
        default = fields[name].default
        if isinstance(default, bool):
            settings[name] = rng.random() < 0.5
        elif isinstance(default, int):
            settings[name] = number_of(rng)
        elif name == "compression_type":
            settings[name] = rng.choice(("none", "gzip", "snappy", "lz4", "zstd"))
        elif name == "message_timestamp_type":
            settings[name] = rng.choice(("CreateTime", "LogAppendTime"))
    # Nothing is synced or deleted in the background.
    settings.update(flush_ms=1 << 62, retention_ms=-1, retention_bytes=-1)
    settings.setdefault("segment_ms", 1 << 62)
    try:
        return TopicConfig(**settings)
    except _NAMED:
        return None


# ---------------------------------------------------------------- the case


def _short(*things: Any) -> str:
    """Values for a message: their ends are enough."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 24
    short.maxlist = short.maxtuple = 3
    return short.repr(things)


class _Case:
    """A store, and all values that its calls have accepted.

    Attributes:
        topics: settings, and the records of each partition.
        published: identity -> its last sequence.
    """

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.done = self.refused = 0
        self.what = ""
        self.topics: dict[str, tuple[TopicConfig, list[list[Any]]]] = {}
        self.published: dict[str, int] = {}
        self.config = StoreConfig(retention_check_ms=1 << 40) if _HAS_CHECK else None
        self.store = self.open()

    def open(self, *, read_only: bool = False) -> Any:
        return open_store(
            self.path, read_only=read_only, _files=Unsynced(), config=self.config
        )

    def close(self) -> None:
        with contextlib.suppress(LogStoreError):
            self.store.close()

    def call(self) -> str:
        rng = self.rng
        choices: list[Callable[[], str]] = [self.create]
        if self.topics:
            choices += [self.append] * 4 + [self.append_many] * 3
            choices += [self.append_arrow, self.configure, self.grow, self.trim]
            choices += [self.publish] * 3 + [self.delete, self.reopen]
            choices += [self.compact]
        try:
            return rng.choice(choices)()
        except RecursionError:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:400]}"

    def ask(self, do: Callable[[], Any]) -> Any:
        """Result of a call; None if it raises a named error."""
        try:
            found = do()
        except _NAMED as error:
            self.refused += 1
            text = str(error)
            if type(error) is UnicodeEncodeError or not text:
                raise AssertionError(
                    f"an error that says nothing: {error!r}"
                ) from error
            return None
        self.done += 1
        return found

    def some(self) -> tuple[str, Any, TopicConfig, list[Any], Any]:
        """(name of a topic, its number, settings, records, the partition)."""
        name = self.rng.choice(sorted(self.topics))
        config, logs = self.topics[name]
        number = self.rng.randrange(len(logs))
        return name, number, config, logs[number], self.store.topic(name)[number]

    # -- calls

    def create(self) -> str:
        name, config = name_of(self.rng), config_of(self.rng)
        if config is None:
            return ""
        count = self.rng.choice((1, 1, 2, 3, 0, -1))
        self.what = f"create_topic({name!r}, {count}, {config})"
        if name in self.topics:
            return ""
        if self.ask(lambda: self.store.create_topic(name, count, config)) is not None:
            self.topics[name] = config, [[] for _ in range(count)]
        return self.look(self.store)

    def configure(self) -> str:
        name, _, old, _, _ = self.some()
        config = config_of(self.rng)
        if config is None:
            return ""
        self.what = f"configure {old} to {config}"
        done = self.ask(lambda: self.store.topic(name).configure(config) or True)
        if done:
            self.topics[name] = config, self.topics[name][1]
        return self.look(self.store)

    def grow(self) -> str:
        name = self.some()[0]
        self.what = f"add_partitions to {name!r}"
        if self.ask(lambda: self.store.topic(name).add_partitions(1)):
            self.topics[name][1].append([])
        return ""

    def trim(self) -> str:
        name, _, _, rows, partition = self.some()
        offset = self.rng.randint(partition.start_offset, partition.end_offset)
        self.what = f"delete_before({offset}) of {name!r}"
        if self.ask(lambda: partition.delete_before(offset)) is not None:
            rows[:] = [row for row in rows if row[0] >= offset]
        return self.look(self.store)

    def compact(self) -> str:
        """The last record of each key stays, and all of the last segment."""
        name, _, config, rows, partition = self.some()
        self.what = f"compact {name!r} with {config}"
        if not config.compacts:
            config = dataclasses.replace(config, cleanup_policy="compact")
            keys_are_there = all(row[2] is not None for row in rows)
            do = self.store.topic(name).configure
            if not keys_are_there or not self.ask(lambda: do(config) or True):
                return ""
            self.topics[name] = config, self.topics[name][1]
        partition.roll()
        end = partition.segments[-1].base_offset
        if self.ask(lambda: partition.compact(force=True, max_memory=6 << 20)):
            last = {row[2]: row[0] for row in rows if row[0] < end}
            found = {record.offset for record in partition.read()}
            # Others may be gone: superseded ones, those without a key, and tombstones
            # that are old enough.
            rows[:] = [
                (offset, when, key, value, headers)
                for offset, when, key, value, headers in rows
                if offset >= end
                or offset in found
                or (last[key] == offset and None not in (key, value))
            ]
        return self.look_at(partition, config, rows)

    def delete(self) -> str:
        name = self.some()[0]
        self.what = f"delete_topic({name!r})"
        if self.ask(lambda: self.store.delete_topic(name) or True):
            del self.topics[name]
        return self.look(self.store)

    def row(self, config: TopicConfig) -> tuple[Any, ...]:
        """(time, key, value, headers)."""
        rng = self.rng
        when = rng.choice((None, number_of(rng), rng.randrange(1 << 41)))
        headers: tuple[Any, ...] = ()
        if config.message_format == 2 and rng.random() < 0.5:
            headers = tuple(
                (text_of(rng, 40), bytes_of(rng)) for _ in range(rng.randrange(1, 4))
            )
        return when, bytes_of(rng), bytes_of(rng), headers

    def append(self) -> str:
        _, _, config, rows, partition = self.some()
        when, key, value, headers = self.row(config)
        self.what = f"append({when}, {_short(headers, key, value)}) with {config}"
        offset = self.ask(
            lambda: partition.append(value, key, timestamp_ms=when, headers=headers)
        )
        if offset is not None:
            rows.append((offset, when, key, value, headers))
        return self.look_at(partition, config, rows)

    def append_many(self) -> str:
        _, _, config, rows, partition = self.some()
        new = [self.row(config) for _ in range(self.rng.choice((1, 2, 30)))]
        self.what = f"append_many({_short(*new)}) with {config}"
        times, keys, values, headers = (list(part) for part in zip(*new, strict=True))
        span = self.ask(
            lambda: partition.append_many(
                values, keys, times, headers if any(headers) else None
            )
        )
        if span is not None:
            rows += [(o, *row) for o, row in zip(span, new, strict=True)]
        return self.look_at(partition, config, rows)

    def append_arrow(self) -> str:
        _, _, config, rows, partition = self.some()
        new = [self.row(config) for _ in range(self.rng.choice((1, 5)))]
        new = [(t, k, v, ()) for t, k, v, _ in new if t is None or abs(t) < 1 << 63]
        if not new:
            return ""
        times, keys, values, _ = (list(part) for part in zip(*new, strict=True))
        table = pa.table(
            {
                "value": pa.array(values, pa.binary()),
                "key": pa.array(keys, pa.binary()),
                "timestamp": pa.array(times, pa.int64()),
            }
        )
        self.what = f"append_arrow({_short(*new)}) with {config}"
        span = self.ask(lambda: partition.append_arrow(table))
        if span is not None:
            rows += [(o, *row) for o, row in zip(span, new, strict=True)]
        return self.look_at(partition, config, rows)

    def publish(self) -> str:
        name, number, config, rows, partition = self.some()
        identity = "" if self.rng.random() < 0.1 else text_of(self.rng, 1_003)
        sequence = self.rng.choice((0, 1, 5, 10**18, number_of(self.rng)))
        new = [self.row(config) for _ in range(self.rng.choice((1, 2)))]
        self.what = f"publish as {identity!r}, {sequence}: {_short(*new)}, {config}"
        times, keys, values, headers = (list(part) for part in zip(*new, strict=True))

        def do() -> Any:
            with self.store.stage(identity, sequence) as stage:
                stage.append_many(
                    partition, values, keys, times, headers if any(headers) else None
                )
                staged = stage.finish()
            return self.store.publish([staged], identity=identity, sequence=sequence)

        done = self.ask(do)
        if done is not None and done.is_new:
            span = done.offsets[name, number]
            rows += [(o, *row) for o, row in zip(span, new, strict=True)]
            if identity:
                self.published[identity] = sequence
        elif done is not None and self.published.get(identity, -1) < sequence:
            return f"said to be published before: {done}"
        return self.look_at(partition, config, rows) or self.look(self.store)

    def reopen(self) -> str:
        self.what += "; reopened"
        self.store.close()
        self.store = self.open()
        return self.look_again_at(self.store)

    # -- looking

    def look(self, store: Any) -> str:
        """Check that state files have the written content."""
        if store.topics() != sorted(self.topics):
            return f"topics {store.topics()} for {sorted(self.topics)}"
        for name, (config, logs) in self.topics.items():
            topic = store.topic(name)
            if topic.config != config:
                return f"settings of {name!r} are {topic.config}, not {config}"
            if len(topic) != len(logs):
                return f"{name!r} has {len(topic)} partitions of {len(logs)}"
        for identity, sequence in self.published.items():
            if store.published(identity) != sequence:
                return f"{identity!r} has published {store.published(identity)}"
        return ""

    def look_at(self, partition: Any, config: TopicConfig, rows: list[Any]) -> str:
        found = list(partition.read())
        if [r.offset for r in found] != [row[0] for row in rows]:
            return f"offsets {[r.offset for r in found][-5:]} for {len(rows)} records"
        for record, (_, when, key, value, headers) in zip(found, rows, strict=True):
            if (record.key, record.value) != (key, value):
                return f"{record} for {key!r}, {value!r}"
            if record.headers != headers:
                return f"headers {record.headers!r} for {headers!r}"
            is_kept = record.timestamp_type == logstore.TimestampType.CREATE_TIME
            if is_kept and when is not None and record.timestamp_ms != when:
                return f"timestamp {record.timestamp_ms} for {when}"
        return ""

    def look_again_at(self, store: Any) -> str:
        text = self.look(store)
        for name, (config, logs) in self.topics.items():
            for number, rows in enumerate(logs):
                text = text or self.look_at(store.topic(name)[number], config, rows)
        return text

    def look_again(self) -> str:
        """Check the store by a concurrent reader, by verify, and by the next writer."""
        try:
            with self.open(read_only=True) as store:
                text = self.look_again_at(store)
                if text:
                    return f"a reader: {text}"
            self.store.close()
            report = logstore.verify(str(self.path), deep=True)
            if not report.ok:
                return f"verify: {report.problems[:2]}"
            self.store = self.open()
            if self.store.recovery_report:
                return f"opened with {self.store.recovery_report.to_dict()}"
            return self.look_again_at(self.store)
        except LogStoreError as error:
            return f"{type(error).__name__}: {str(error)[:400]}"


_HAS_CHECK = any(
    f.name == "retention_check_ms" for f in dataclasses.fields(StoreConfig)
)
