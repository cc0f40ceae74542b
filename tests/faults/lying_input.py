"""Input that lies: each field of what callers and files hand in, set to its extremes.

Arrow columns whose positions lead out of their data; batches of all formats with a
header field, a length or a byte of a record replaced and the checksum put right;
staged files, and the values that name them; state files and checkpoints with right
checksums around wrong numbers; indexes, snapshots. Each is refused by an error with a
name, and then nothing has changed; or what was taken is right, and can be read. Nothing
that was acknowledged before is lost. There is no crash, and memory and time stay within
bounds.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import random
import resource
import shutil
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import xxhash

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Tally
from logstore import LogStoreError, Staged
from logstore.store.store import open_store
from support.damage import Unsynced, fixed_crc, frames_in
from support.values import FORMATS, append_records, config_of

NAME = "lying_input"
UNIT = "lies"
COUNTS = {"commit": 1_500, "nightly": 30_000, "release": 150_000}

# Lies that are told to one store.
_EACH = 12
# Address space beyond what the process has at the beginning; seconds of processor.
_ROOM = 6 << 30
_SECONDS = 10.0
# What a caller may be told of its arguments.
_NAMED = (LogStoreError, TypeError, ValueError)


def run(count: int, seed: int, tally: Tally) -> None:
    """So many lies."""
    notes = run_cases(__name__, count, seed, tally, worth=_EACH)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def kind_of(key: str) -> str:
    """What a case lies about."""
    return random.Random(f"lying input {key}").choice(tuple(_KINDS))


def problem(key: str, notes: Counter[str]) -> str:
    """What is wrong in a case; "" for nothing."""
    _limit_memory()
    rng = random.Random(f"lying input, {key}")
    kind = kind_of(key)
    with folder_of(in_memory=True) as folder:
        case = _KINDS[kind](Path(folder), rng)
        notes["done"] = 0
        for _ in range(_EACH):
            notes["done"] += 1
            begin = time.process_time()
            try:
                found = case.lie()
            except MemoryError as error:
                found = f"takes too much memory: {error}"
            took = time.process_time() - begin
            if not found and took > _SECONDS:
                found = f"takes {took:.0f} s"
            if case.is_spoiled and not found:
                break
            if found:
                case.end()
                return f"{kind}, {case.what}: {found}"
            notes[f"{kind} refused"] += case.was_refused
        found = case.end()
    return f"{kind}, at the end: {found}" if found else ""


@functools.cache
def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def extreme(rng: random.Random, bits: int, now: int = 0) -> int:
    """A signed number of so many bits that is on an edge, or beside what it was."""
    top = 1 << (bits - 1)
    found = (
        0, 1, -1, 2, top - 1, -top, top - 2, -top + 1, top // 2, 255, -256,
        now - 1, now + 1, 2 * now, -now,
    )  # fmt: skip
    return rng.choice([value for value in found if -top <= value < top])


class _Case:
    """A store that is lied to.

    Attributes:
        what: the lie.
        was_refused: whether it was.
        is_spoiled: whether nothing more can be asked of the store.
        believed: numbers of the partitions that have a batch which was believed.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.what = ""
        self.was_refused = False
        self.is_spoiled = False
        self.believed = set[int]()
        self.path = folder / "store"

    def lie(self) -> str:
        raise NotImplementedError

    def end(self) -> str:
        return ""


class _Appending(_Case):
    """Lies to a writer, in one of its calls."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        magic, codec = self.format()
        self.magic = magic
        self.store = open_store(self.path, files=Unsynced())
        topic = self.store.create_topic(
            "orders", 2,
            config_of(magic, codec, segment_bytes=rng.choice((2_000, 1 << 26)),
                      message_timestamp_type=self.timestamp_type()),
        )  # fmt: skip
        self.partitions = topic.partitions
        self.known: list[list[tuple[int, Any]]] = []
        for partition in self.partitions:
            append_records(partition, 3)
            self.known.append(_read(partition, 0))

    def format(self) -> tuple[int, str]:
        return self.rng.choice(FORMATS)

    def timestamp_type(self) -> str:
        return "CreateTime"

    def call(self, do: Callable[[], Any]) -> tuple[Any, str]:
        """(what a call returned, or None where it was refused; what is wrong)."""
        self.was_refused = False
        try:
            found = do()
        except _NAMED as error:
            if not str(error):
                return None, f"an error without a text: {error!r}"
            self.was_refused = True
            return None, ""
        except MemoryError:
            raise
        except Exception as error:
            return None, f"raises {type(error).__name__}: {str(error)[:300]}"
        return found, ""

    def look(self) -> str:
        """All that was known is there, and what has come can be read."""
        for number, partition in enumerate(self.partitions):
            known = self.known[number]
            try:
                found = _read(partition, 0)
            except LogStoreError as error:
                text = f"was taken, and then {type(error).__name__}: {str(error)[:300]}"
                return self.unreadable(number, text)
            if found[: len(known)] != known:
                return f"{partition.name} had {known[-3:]}, and has {found[:5]}"
            if found and found[-1][0] + 1 != partition.end_offset:
                return (
                    f"{partition.name} ends with {found[-1][0]}, {partition.end_offset}"
                )
            if self.was_refused and found != known:
                return f"was refused, and {found[len(known) :][:3]} are there"
            if found != known and self.believes:
                # From now on: lookups by time go by what batches say of themselves.
                self.believed.add(number)
            elif found != known and number not in self.believed:
                text = _times(partition, self.rng)
                if text:
                    return text
            self.known[number] = found
        return ""

    # Whether what a batch says of itself is believed.
    believes = False

    def unreadable(self, number: int, text: str) -> str:
        """Where a partition cannot be read to its end any more."""
        known: list[tuple[int, Any]] = self.known[number]
        found = []
        try:
            for r in self.partitions[number].read():
                row = r.timestamp_ms, r.key, r.value, r.headers
                found.append((r.offset, row))
        except LogStoreError as error:
            if self.believes and isinstance(error, logstore.CorruptRecordError):
                self.is_spoiled = True
                return "" if found[: len(known)] == known else f"{text}: {found}"
        return text

    def end(self) -> str:
        try:
            self.store.close()
            if self.is_spoiled:
                return ""
            report = logstore.verify(str(self.path), deep=True)
            if not report.ok:
                return f"verify: {report.problems[:2]}"
            with open_store(self.path, files=Unsynced()) as store:
                for number, known in enumerate(self.known):
                    found = _read(store.topic("orders")[number], 0)
                    if found != known:
                        return f"{number} had {known[-3:]}, and has {found[-3:]}"
        except LogStoreError as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
        return ""


def _read(partition: Any, first: int | None = None) -> list[tuple[int, Any]]:
    return [
        (r.offset, (r.timestamp_ms, r.key, r.value, r.headers))
        for r in partition.read(first)
    ]


def _times(partition: Any, rng: random.Random) -> str:
    """Whether it finds what it has by time."""
    rows = [(o, row[0]) for o, row in _read(partition, 0)]
    for _, when in rng.sample(rows, min(3, len(rows))):
        wanted = min((o for o, t in rows if t >= when), default=None)
        found = partition.offset_for_time(when)
        if found != wanted:
            return f"offset_for_time({when}) is {found}, not {wanted}"
    return ""


# ---------------------------------------------------------------- batches


@functools.cache
def _sound_batches() -> dict[tuple[int, str], list[bytes]]:
    """Batches as producers send them, of all formats."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with open_store(Path(folder) / "store", files=Unsynced()) as store:
            for number, (magic, codec) in enumerate(FORMATS):
                topic = store.create_topic(f"t{number}", config=config_of(magic, codec))
                for count in (1, 2, 7):
                    append_records(topic[0], count)
                found[magic, codec] = [bytes(b.buffer) for b in topic[0].read_batches()]
    return found


# (name, position, bytes) of the fields of a batch.
_FRAME_FIELDS = (("base offset", 0, 8), ("length", 8, 4), ("magic", 16, 1))
_FIELDS = {
    0: (*_FRAME_FIELDS, ("attributes", 17, 1), ("key length", 18, 4)),
    1: (*_FRAME_FIELDS, ("attributes", 17, 1), ("timestamp", 18, 8),
        ("key length", 26, 4)),
    2: (*_FRAME_FIELDS, ("leader epoch", 12, 4), ("attributes", 21, 2),
        ("last offset delta", 23, 4), ("base timestamp", 27, 8),
        ("max timestamp", 35, 8), ("producer id", 43, 8), ("producer epoch", 51, 2),
        ("base sequence", 53, 4), ("record count", 57, 4)),
}  # fmt: skip
_CODE = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}
_RECORDS = {0: 18, 1: 26, 2: 61}


def lying_batch(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """(what was done, a batch that says something wrong with the right checksum)."""
    magic = data[16]
    kind = rng.randrange(8)
    if kind < 4:
        name, pos, size = rng.choice(_FIELDS[magic])
        now = struct.unpack_from(_CODE[size], data, pos)[0]
        value = extreme(rng, 8 * size, now)
        changed = bytearray(data)
        struct.pack_into(_CODE[size], changed, pos, value)
        return f"{name} is {value}, not {now}", fixed_crc(bytes(changed))
    start = _RECORDS[magic]
    payload = bytearray(data[start:])
    is_gzip = magic == 2 and struct.unpack_from(">h", data, 21)[0] & 7 == 1
    if is_gzip and kind < 7:
        payload = bytearray(gzip.decompress(bytes(payload)))
    said = ""
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(payload))
        if kind == 4:
            payload[at] = rng.choice((0, 1, 0x7E, 0x7F, 0x80, 0xFE, 0xFF))
            said += f"byte {at} of the records is {payload[at]:#x}; "
        elif kind == 5:
            new = rng.choice((b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x80"))
            payload[at : at + 1] = new
            said += f"byte {at} of the records is {new.hex()}; "
        elif kind == 6:
            del payload[at : at + rng.choice((1, 2, 8))]
            said += f"byte {at} of the records is left out; "
            payload = payload or bytearray(b"\0")
        else:
            new = rng.randbytes(rng.choice((1, 2, 8)))
            payload += new
            said += f"{new.hex()} behind the records; "
    if is_gzip and kind < 7:
        payload = bytearray(gzip.compress(bytes(payload), mtime=0))
    changed = bytearray(data[:start]) + payload
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return said, fixed_crc(bytes(changed))


class _Batches(_Appending):
    """Buffers for `append_batches`."""

    def timestamp_type(self) -> str:
        kinds = ("CreateTime", "CreateTime", "LogAppendTime")
        return self.rng.choice(kinds) if self.magic else kinds[0]

    def lie(self) -> str:
        rng = self.rng
        kind = rng.choice(FORMATS)
        batches = list(rng.choices(_sound_batches()[kind], k=rng.choice((1, 1, 2))))
        at = rng.randrange(len(batches))
        self.what, batches[at] = lying_batch(batches[at], rng)
        data = b"".join(batches)
        if rng.random() < 0.1:
            size = rng.randrange(len(data))
            self.what += f"; cut to {size} bytes"
            data = data[:size]
        self.what = f"{kind}, batch {at} of {len(batches)}: {self.what}"
        _, text = self.call(lambda: self.partitions[0].append_batches(data))
        return text or self.look()


# ---------------------------------------------------------------- Arrow


def _is_harmless(error: Exception) -> bool:
    """Text is stored as the bytes that it is, and nobody believes a count of nulls."""
    text = str(error).lower().replace("_", " ")
    return "utf8" in text or "null count" in text


class _Arrow(_Appending):
    """Columns whose buffers lie."""

    def format(self) -> tuple[int, str]:
        return self.rng.choice(((2, "none"), (2, "none"), (2, "gzip"), (1, "none")))

    def lie(self) -> str:
        rng = self.rng
        count = rng.choice((1, 3, 8))
        name = rng.choice(("value", "value", "key", "timestamp", "headers"))
        if self.magic < 2 and name == "headers":
            name = "key"
        batch: Any
        try:
            if rng.random() < 0.4:
                batch = self.from_stream(count)
            else:
                value = pa.array([b"%d" % n for n in range(count)], pa.binary())
                array = self.array(name, count)
                batch = pa.RecordBatch.from_arrays(
                    [array] if name == "value" else [value, array],
                    ["value"] if name == "value" else ["value", name],
                )
        except Exception:
            self.was_refused = True
            return ""  # pyarrow has seen it
        is_sound, why = True, ""
        try:
            batch.validate(full=True)
            columns = [c for c in batch.schema.names if c in ("key", "value")]
            wanted = batch.select(columns).to_pylist()
        except pa.ArrowInvalid as error:
            is_sound, wanted, why = _is_harmless(error), [], str(error)
        except Exception as error:
            is_sound, wanted, why = False, [], str(error)
        if rng.random() < 0.3:
            found, text = self.call(lambda: self.staged(batch))
        else:
            found, text = self.call(lambda: self.partitions[0].append_arrow(batch))
        text = text or self.look()
        if text or found is None:
            return text
        if not is_sound:
            return f"pyarrow refuses it ({why}), and it was taken: {found}"
        stored = [row for _, row in self.known[0][found.start : found.stop]]
        if wanted and len(wanted) != len(stored):
            return f"{len(wanted)} rows were stored as {len(stored)}"
        for row, (_, key, value, _) in zip(wanted, stored, strict=False):
            given = [row.get("key"), row["value"]]
            given = [g.encode() if isinstance(g, str) else g for g in given]
            if given != [key, value]:
                return f"{given} was stored as {[key, value]}"
        return ""

    def staged(self, batch: Any) -> range:
        with self.store.stage() as stage:
            stage.append_arrow(self.partitions[0], batch)
            done = self.store.publish([stage.finish()])
        return next(iter(done.offsets.values()), range(0))

    def from_stream(self, count: int) -> Any:
        """A batch as a peer sends it, with some of its bytes replaced."""
        rng = self.rng
        kind = rng.choice((pa.binary(), pa.large_binary(), pa.string()))
        columns = {
            "value": pa.array([b"v%d" % n * n for n in range(count)], pa.binary()),
            "key": pa.array([f"k{n}" if n % 3 else None for n in range(count)], kind)
            if kind != pa.binary()
            else pa.array([b"k%d" % n if n % 3 else None for n in range(count)]),
            "timestamp": pa.array(range(count), pa.timestamp("ms")),
        }
        sink = pa.BufferOutputStream()
        table = pa.table(columns)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = bytearray(sink.getvalue().to_pybytes())
        body = len(pa.ipc.read_message(pa.py_buffer(bytes(data))).metadata) + 8
        said = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            size = rng.choice((1, 4, 4, 8, 8))
            pos = rng.randrange(body, len(data) - 8) // size * size
            value = extreme(rng, 8 * size)
            struct.pack_into("<" + _CODE[size][1], data, pos, value)
            said.append(f"{pos}: {value} ({size})")
        self.what = f"{kind} out of a stream, {', '.join(said)}"
        return pa.ipc.open_stream(bytes(data)).read_next_batch()

    def array(self, name: str, count: int) -> Any:
        if name == "timestamp":
            return self.times(count)
        if name == "headers":
            return self.lists(count)
        return self.binary(count, name)

    def binary(self, count: int, name: str) -> Any:
        rng = self.rng
        kind = rng.choice(
            (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(),
             pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()))
        )  # fmt: skip
        plain = [b"abc" * n for n in range(count)]
        if pa.types.is_dictionary(kind):
            index = pa.array(
                [extreme(rng, 32) if rng.random() < 0.3 else 0 for _ in range(count)],
                pa.int32(),
            )
            self.what = f"{name}: {kind} of indices {index.to_pylist()}"
            return pa.DictionaryArray.from_arrays(index, [b"a", b"b"], safe=False)
        array = pa.array(plain, pa.binary()).cast(kind)
        buffers = [b and bytearray(b.to_pybytes()) for b in array.buffers()]
        offset, length = 0, count
        for _ in range(rng.choice((1, 1, 2))):
            self.what = f"{name}: {kind} of {count}, {self.spoil(buffers, kind)}"
        if rng.random() < 0.2:
            length = count + rng.choice((1, 1_000, 1 << 20))
            self.what += f", length {length}"
        if rng.random() < 0.2:
            offset = rng.choice((1, 64, 1 << 20))
            self.what += f", offset {offset}"
        return pa.Array.from_buffers(
            kind, length, [b and pa.py_buffer(bytes(b)) for b in buffers],
            null_count=rng.choice((0, 0, -1)), offset=offset,
        )  # fmt: skip

    def spoil(self, buffers: list[Any], kind: Any) -> str:
        rng = self.rng
        which = rng.choice([n for n, b in enumerate(buffers) if b] or [0])
        buffer = buffers[which]
        if not buffer:
            return "nothing"
        size = (
            8 if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else 4
        )
        if rng.random() < 0.2:
            keep = rng.randrange(len(buffer))
            del buffer[keep:]
            return f"buffer {which} cut to {keep}"
        if len(buffer) < size:
            return "nothing"
        pos = rng.randrange(len(buffer) // size) * size
        value = extreme(rng, 8 * size, len(buffers[-1] or b""))
        struct.pack_into("<" + _CODE[size][1], buffer, pos, value)
        return f"buffer {which}, byte {pos} is {value}"

    def times(self, count: int) -> Any:
        rng = self.rng
        kind = rng.choice(
            (
                pa.int64(),
                pa.timestamp("s"),
                pa.timestamp("ms"),
                pa.timestamp("us", "UTC"),
                pa.timestamp("ns"),
                pa.int32(),
                pa.uint64(),
            )
        )
        width = kind.bit_width
        values = [extreme(rng, width) for _ in range(count)]
        if kind == pa.uint64():
            values = [abs(value) % (1 << 63) for value in values]
        data = struct.pack("<" + str(count) + ("i" if width == 32 else "q"), *values)
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        self.what = f"timestamp: {kind} {values}, {len(data)} bytes"
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])

    def lists(self, count: int) -> Any:
        rng = self.rng
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        plain = [[{"key": "k", "value": b"v"}] * (n % 3) for n in range(count)]
        array = pa.array(plain, kind)
        offsets = bytearray(array.buffers()[1].to_pybytes())
        pos = 4 * rng.randrange(count + 1)
        value = extreme(rng, 32, 1)
        struct.pack_into("<i", offsets, pos, value)
        self.what = f"headers: offset {pos // 4} is {value}"
        return pa.Array.from_buffers(
            kind, count, [None, pa.py_buffer(bytes(offsets))], children=[array.values]
        )


# ---------------------------------------------------------------- staged


class _Staged(_Appending):
    """Staged files that were changed, and values that say something else of them."""

    def format(self) -> tuple[int, str]:
        return self.rng.choice([kind for kind in FORMATS if kind[0]])

    def lie(self) -> str:
        rng = self.rng
        with self.store.stage() as stage:
            for partition in rng.sample(self.partitions, rng.choice((1, 2))):
                for _ in range(rng.choice((1, 2))):
                    stage.append_many(partition, [b"%d" % rng.randrange(99)] * 3)
            staged = stage.finish()
        before = self.others(staged)
        if rng.random() < 0.4:
            # Who may write into the store's directory may write into its logs as well:
            # the records inside of a staged batch, under a checksum that is right, are
            # believed. What was there before can be read all the same.
            self.believes = True
            self.spoil_file(staged)
        else:
            staged = self.spoil_value(staged)
        try:
            _, text = self.call(lambda: self.store.publish([staged]))
            text = text or self.look()
            self.believes = False
            if not text and self.others(None) != before:
                text = f"other files: {before} {self.others(None)}"
            return text
        finally:
            for file in self.path.glob(".logstore-staged*"):
                file.unlink()

    def others(self, staged: Staged | None) -> dict[str, Any]:
        """What is not to be touched."""
        outside = self.folder / "outside"
        if staged is not None:
            outside.write_bytes(b"outside")
            (self.path / "other").write_bytes(b"other")
        return {
            "outside": outside.exists() and outside.read_bytes(),
            "other": (self.path / "other").exists(),
            ".lock": (self.path / ".lock").exists(),
            "topics": (self.path / ".logstore-topics").exists(),
        }

    def spoil_file(self, staged: Staged) -> None:
        rng = self.rng
        path = self.path / rng.choice(staged.files)
        data = path.read_bytes()
        frame = rng.choice(frames_in(data))
        end = frame.pos + frame.size
        self.what, new = lying_batch(data[frame.pos : end], rng)
        if rng.random() < 0.5:
            # Of the same size, so that what was told of the file is true.
            new = new[: frame.size].ljust(frame.size, b"\0")
            if len(new) > 21:
                new = fixed_crc(new)
        path.write_bytes(data[: frame.pos] + new + data[end:])
        self.what = f"batch at {frame.pos} of a staged file: {self.what}"

    def spoil_value(self, staged: Staged) -> Any:
        rng = self.rng
        logs = list(staged.logs)
        at = rng.randrange(len(logs))
        log = logs[at]
        runs = list(log.runs)
        pos, size = runs[0]
        name = rng.choice([*log._fields, "runs", "runs", "logs"])
        value: Any = None
        if name == "runs":
            value = rng.choice(
                (
                    (), ((pos, extreme(rng, 64, size)),),
                    ((extreme(rng, 64, pos), size),),
                    (*runs, *runs), ((pos, size, 1),), ((pos,),), None, "runs",
                    ((pos, size // 2), (pos + size // 2, size - size // 2)),
                    (("0", size),), ((pos, 1.5),), runs * 1000, ((pos, 1 << 40),),
                    ((True, size),), 5, ((None, None),),
                )
            )  # fmt: skip
        elif name in ("records", "first", "magic", "partition"):
            now = getattr(log, name)
            value = rng.choice(
                (extreme(rng, 64, now), now + 1, "1", None, 1.5, 1 << 70)
            )
        elif name == "file":
            value = rng.choice(
                ("", "../outside", "other", ".lock", ".logstore-topics", "/etc/passwd",
                 "orders-0", "orders-0/00000000000000000000.log", "x" * 5000, "a\0b",
                 None, 5, ".logstore-staged-", log.file + "x", "\ud800",
                 ".logstore-staged-../other")
            )  # fmt: skip
        elif name == "topic":
            value = rng.choice(
                ("", "none", "..", None, 5, "orders-0", "\ud800", "a" * 999)
            )
        elif name == "is_alone":
            value = not log.is_alone
        if name == "logs":
            more = rng.choice(
                (logs, [*logs, *logs], logs[::-1], [None], [()], None, "x")
            )
            self.what = f"logs are {str(more)[:300]}"
            return Staged(more if more is None else tuple(more))
        if name not in log._fields:
            return staged
        self.what = f"{name} is {str(value)[:100]}, not {getattr(log, name)}"
        logs[at] = log._replace(**{name: value})
        return Staged(tuple(logs))


# ---------------------------------------------------------------- files


@functools.cache
def _template(number: int) -> tuple[tempfile.TemporaryDirectory[str], list[Any], Any]:
    """(where a closed store is, the records in the files of orders-0, where the log
    begins)."""
    where = folder_of(in_memory=True)
    rng = random.Random(number)
    magic, codec = FORMATS[number % len(FORMATS)]
    path = Path(where.name) / "store"
    config = config_of(
        magic, codec, segment_bytes=700, index_interval_bytes=60,
        segment_digests=number % 2 == 0,
    )  # fmt: skip
    with open_store(path, files=Unsynced()) as store:
        topic = store.create_topic("orders", 2, config=config)
        for _ in range(12):
            append_records(topic[0], 3)
        if magic:
            with store.stage("me", 1) as stage:
                stage.append_many(topic[1], [b"x"])
                store.publish([stage.finish()], identity="me", sequence=1)
        start = rng.choice((0, 7))
        records = _read(topic[0], 0)
        topic[0].delete_before(start)
        first = topic[0].segments[0].base_offset
    return where, [row for row in records if row[0] >= first], start


class _Files(_Case):
    """A closed store, one of whose files lies."""

    # What is in such a file can be found in the logs as well.
    derived = False

    def lie(self) -> str:
        rng = self.rng
        where, records, start = _template(rng.randrange(len(FORMATS)))
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(Path(where.name) / "store", self.path)
        if rng.random() < 0.3:
            self.unclean()
        files = sorted(path for path in self.path.rglob("*") if self.is_one(path))
        if not files:
            self.what = "nothing"
            return ""
        file = rng.choice(files)
        self.what = f"{file.relative_to(self.path)}: {self.spoil(file)}"
        return self.judge(records, start)

    def unclean(self) -> None:
        """As a writer leaves it that was killed."""
        (self.path / ".kafka_cleanshutdown").unlink(missing_ok=True)
        owner = self.path / ".logstore-owner"
        value = _value_of(owner)
        value["clean"] = False
        owner.write_bytes(_sealed(value))

    def is_one(self, path: Path) -> bool:
        raise NotImplementedError

    def spoil(self, path: Path) -> str:
        raise NotImplementedError

    def judge(self, records: list[Any], start: int) -> str:
        self.was_refused = False
        right, self.start = dict(records), start
        shown: list[Any] = []
        for read_only in (True, False):
            try:
                with open_store(
                    self.path, read_only=read_only, files=Unsynced()
                ) as store:
                    text, shown = self.look(store, right, read_only)
                    if text:
                        return f"{'reader' if read_only else 'writer'}: {text}"
            except _Refused:
                pass
            except LogStoreError:
                self.was_refused = True
        logstore.verify(str(self.path))
        # What was shown, and what was appended then, stays.
        with contextlib.suppress(LogStoreError):
            with open_store(self.path, read_only=True) as store:
                if not store.topics():
                    return ""
                found = _read(store.topic("orders")[0])
                if shown and found[: len(shown)] != shown and not self.was_refused:
                    return f"showed {shown[-2:]}, and then {found[-2:]}"
        return ""

    def look(
        self, store: Any, right: dict[int, Any], read_only: bool
    ) -> tuple[str, list[Any]]:
        try:
            partition = store.topic("orders")[0]
            found = _read(partition)
            list(partition.read(isolation="read_committed"))
            partition.offset_for_time(0)
            _ = partition.segments, partition.durable_offset
            stable = partition.last_stable_offset()
        except LogStoreError as error:
            self.was_refused = True
            raise _Refused from error
        for offset, row in found:
            if right.get(offset) != row:
                return f"offset {offset} is {row}, not {right.get(offset)}", []
        offsets = [offset for offset, _ in found]
        if offsets != list(
            range(offsets[0], offsets[0] + len(offsets)) if offsets else []
        ):
            return f"offsets {offsets}", []
        bounds = partition.start_offset, partition.end_offset
        if not bounds[0] <= stable <= bounds[1]:
            return f"last stable offset {stable}, and the log is {bounds}", []
        if self.derived:
            shown = {o: row for o, row in right.items() if o >= self.start}
            if found != sorted(shown.items()):
                return f"{len(found)} of {len(shown)} records", []
            text = self.lookups(partition, shown)
            if text:
                return text, []
        if read_only:
            return "", found
        try:
            told = partition.append(b"new")
        except LogStoreError:
            return "", found
        try:
            after = _read(partition)
        except LogStoreError as error:
            return (
                f"append is told {told}, and then {type(error).__name__}: {error}",
                [],
            )
        if not after or after[-1][0] != told or after[-1][1][2] != b"new":
            return f"append is told {told}, and the last is {after[-1:]}", []
        if after[:-1] != found:
            return f"append is told {told}; before {len(found)}, now {len(after)}", []
        return "", after

    def lookups(self, partition: Any, right: dict[int, Any]) -> str:
        for first in self.rng.sample(sorted(right), 5):
            try:
                record = next(iter(partition.read(first)))
                chunk = list(partition.fetch(first, 300))
            except LogStoreError:
                self.was_refused = True
                return ""
            if record.offset != first or (chunk and chunk[0].offset != first):
                return f"read({first}) begins with {record.offset}, {chunk[:1]}"
        return _times(partition, self.rng)


class _Refused(Exception):
    """By an error with a name."""


def _value_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes().split(b"\n")[1]))


def _sealed(value: Any) -> bytes:
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return b"xxh64 %016x\n%s\n" % (xxhash.xxh64_intdigest(body), body)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*path, number))


class _States(_Files):
    """logstore's own files: JSON under a checksum."""

    def is_one(self, path: Path) -> bool:
        return path.is_file() and path.name.startswith(".logstore")

    def spoil(self, path: Path) -> str:
        rng = self.rng
        if rng.random() < 0.03:
            data = path.read_bytes()
            data = rng.choice(
                (b"", data[: len(data) // 2], data + data, bytes(len(data)))
            )
            path.write_bytes(data)
            return f"{len(data)} other bytes"
        value = _value_of(path)
        leaves = list(_leaves(value))
        *way, last = rng.choice(leaves)
        inside = value
        for step in way:
            inside = inside[step]
        now = inside[last]
        new: Any
        if rng.random() < 0.1:
            del inside[last]
            path.write_bytes(_sealed(value))
            return f"{(*way, last)} is left out"
        if isinstance(now, bool):
            new = rng.choice((not now, 0, None, "true", []))
        elif isinstance(now, int):
            new = rng.choice(
                (extreme(rng, 64, now), extreme(rng, 32, now), extreme(rng, 64),
                 1 << 70, -(1 << 70), None, "5", [], True, 1.5)
            )  # fmt: skip
        elif isinstance(now, str):
            new = rng.choice(
                (
                    "",
                    "..",
                    "../../x",
                    "a\0b",
                    "x" * 100_000,
                    5,
                    None,
                    [],
                    "\ud800",
                    now * 2,
                )
            )
        elif isinstance(now, list):
            new = rng.choice(([], now * 2, now * 1000, {}, None, [[]], now[:-1], "x"))
        else:
            new = rng.choice(({}, [], None, {"": 1}, {**now, "more": 1}, 7))
        inside[last] = new
        path.write_bytes(_sealed(value))
        return f"{(*way, last)} is {str(new)[:60]}, not {str(now)[:60]}"


class _Checkpoints(_Files):
    """Kafka's text files."""

    def is_one(self, path: Path) -> bool:
        return path.is_file() and (
            path.name.endswith("checkpoint") or path.name == ".kafka_cleanshutdown"
        )

    def spoil(self, path: Path) -> str:
        rng = self.rng
        words = path.read_text().replace("\n", " \n ").split(" ")
        words = [word for word in words if word]
        at = rng.choice([n for n, word in enumerate(words) if word != "\n"])
        now = words[at]
        number = int(now) if now.lstrip("-").isdigit() else 0
        words[at] = rng.choice(
            (str(extreme(rng, 64, number)), str(extreme(rng, 32, number)), "9" * 30, "",
             "x", "-", "../x", now + " " + now, "\n", "1e9", "orders\0", "0x7")
        )  # fmt: skip
        path.write_text(" ".join(words).replace(" \n ", "\n").replace(" \n", "\n"))
        return f"word {at} is {words[at]!r}, not {now!r}"


class _Derived(_Files):
    """Indexes and producer snapshots: what they say can be found in the logs."""

    derived = True

    def is_one(self, path: Path) -> bool:
        return (
            path.suffix in (".index", ".timeindex") and path.parent.name == "orders-0"
        )

    def spoil(self, path: Path) -> str:
        rng = self.rng
        if rng.random() < 0.2:
            snapshot = path.parent / f"{rng.choice((9, 18, 36)):020d}.snapshot"
            entries = [
                tuple(
                    extreme(rng, bits) for bits in (64, 16, 32, 64, 32, 64, 32, 64)
                )
                for _ in range(rng.choice((0, 1, 3)))
            ]  # fmt: skip
            body = struct.pack(">i", rng.choice((len(entries), extreme(rng, 32))))
            body += b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
            snapshot.write_bytes(struct.pack(">hI", 1, crc32c.crc32c(body)) + body)
            return f"beside {snapshot.name} of {entries}"
        data = bytearray(path.read_bytes())
        form, size = (">ii", 8) if path.suffix == ".index" else (">qi", 12)
        if not data:
            entries = rng.choice((1, 2, 50))
            data = bytearray(size * entries)
        pos = rng.randrange(len(data) // size) * size
        fields = list(struct.unpack_from(form, data, pos))
        which = rng.randrange(2)
        now = fields[which]
        fields[which] = extreme(rng, 64 if form[which + 1] == "q" else 32, now)
        struct.pack_into(form, data, pos, *fields)
        if rng.random() < 0.1:
            data += rng.randbytes(rng.choice((1, size)))
        path.write_bytes(data)
        os.utime(path)
        return f"entry {pos // size}, field {which} is {fields[which]}, not {now}"


_KINDS: dict[str, Callable[[Path, random.Random], _Case]] = {
    "arrow": _Arrow,
    "batches": _Batches,
    "staged": _Staged,
    "states": _States,
    "checkpoints": _Checkpoints,
    "derived": _Derived,
}
