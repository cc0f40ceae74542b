"""Files of a closed store that lie: logstore's own, Kafka's, and derived ones."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crc32c
import xxhash

import logstore
from faults.cases import folder_of
from faults.lies import Case, extreme, rows_of, time_fault
from logstore import LogStoreError
from logstore.io.layout import DURABLE
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.values import FORMATS, append_records, config_of


@functools.cache
def _template(number: int) -> tuple[tempfile.TemporaryDirectory[str], list[Any], Any]:
    """(directory of a closed store, the records in the files of orders-0, start offset
    of the log)."""
    where = folder_of(in_memory=True)
    rng = random.Random(number)
    magic, codec = FORMATS[number % len(FORMATS)]
    path = Path(where.name) / "store"
    config = config_of(
        magic, codec, segment_bytes=700, index_interval_bytes=60,
        segment_digests=number % 2 == 0,
    )  # fmt: skip
    with open_store(path, _files=Unsynced()) as store:
        topic = store.create_topic("orders", 2, config=config)
        for _ in range(12):
            append_records(topic[0], 3)
        if magic:
            with store.stage("me", 1) as stage:
                stage.append_many(topic[1], [b"x"])
                store.publish([stage.finish()], identity="me", sequence=1)
        start = rng.choice((0, 7))
        records = rows_of(topic[0], 0)
        topic[0].delete_before(start)
        first = topic[0].segments[0].base_offset
    return where, [row for row in records if row[0] >= first], start


class _Files(Case):
    """A closed store, one of whose files lies."""

    # Whether the content of the file can be derived from the logs.
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
        """Leave the store in the state of a killed writer."""
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
                    self.path, read_only=read_only, _files=Unsynced()
                ) as store:
                    text, shown = self.look(store, right, read_only)
                    if text:
                        return f"{'reader' if read_only else 'writer'}: {text}"
            except _Refused:
                pass
            except LogStoreError:
                self.was_refused = True
        logstore.verify(str(self.path))
        # Records that were shown, and records appended then, stay.
        with contextlib.suppress(LogStoreError):
            with open_store(self.path, read_only=True) as store:
                if not store.topics():
                    return ""
                found = rows_of(store.topic("orders")[0])
                if shown and found[: len(shown)] != shown and not self.was_refused:
                    return f"showed {shown[-2:]}, and then {found[-2:]}"
        return ""

    def look(
        self, store: Any, right: dict[int, Any], read_only: bool
    ) -> tuple[str, list[Any]]:
        try:
            partition = store.topic("orders")[0]
            found = rows_of(partition)
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
            after = rows_of(partition)
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
        return time_fault(partition, self.rng)


class _Refused(Exception):
    """The lie was refused by an error with a name."""


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


class States(_Files):
    """logstore's own files: JSON under a checksum, and one that has only numbers."""

    def is_one(self, path: Path) -> bool:
        return path.is_file() and path.name.startswith(".logstore")

    def spoil(self, path: Path) -> str:
        rng = self.rng
        if rng.random() < 0.03 or path.name == DURABLE:
            data = path.read_bytes()
            data = rng.choice(
                (
                    b"", data[: len(data) // 2], data + data, bytes(len(data)),
                    rng.randbytes(len(data)),
                )
            )  # fmt: skip
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


class Checkpoints(_Files):
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


class Derived(_Files):
    """Indexes and producer snapshots, whose content can be derived from the logs."""

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
