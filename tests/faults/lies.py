"""A store that gets lying input, and the checks of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from logstore import LogStoreError
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.values import FORMATS, append_records, config_of

# Errors that a caller may get for its arguments.
_NAMED = (LogStoreError, TypeError, ValueError)


def extreme(rng: random.Random, bits: int, now: int = 0) -> int:
    """A signed number of `bits` bits, at a limit, or next to its old value."""
    top = 1 << (bits - 1)
    found = (
        0, 1, -1, 2, top - 1, -top, top - 2, -top + 1, top // 2, 255, -256,
        now - 1, now + 1, 2 * now, -now,
    )  # fmt: skip
    return rng.choice([value for value in found if -top <= value < top])


class Case:
    """A store that gets lying input.

    Attributes:
        what: the lie.
        was_refused: whether the lie was refused.
        is_spoiled: whether the store is of no more use.
        believed: numbers of the partitions that have a lying batch which was accepted.
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


class Appending(Case):
    """Lies to a writer, in one of its calls."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__(folder, rng)
        magic, codec = self.format()
        self.magic = magic
        self.store = open_store(self.path, _files=Unsynced())
        topic = self.store.create_topic(
            "orders", 2,
            config_of(magic, codec, segment_bytes=rng.choice((2_000, 1 << 26)),
                      message_timestamp_type=self.timestamp_type()),
        )  # fmt: skip
        self.partitions = topic.partitions
        self.known: list[list[tuple[int, Any]]] = []
        for partition in self.partitions:
            append_records(partition, 3)
            self.known.append(rows_of(partition, 0))

    def format(self) -> tuple[int, str]:
        return self.rng.choice(FORMATS)

    def timestamp_type(self) -> str:
        return "CreateTime"

    def call(self, do: Callable[[], Any]) -> tuple[Any, str]:
        """(result of a call, or None if it was refused; the problem)."""
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
        """Check that all known records are there, and that new ones can be read."""
        for number, partition in enumerate(self.partitions):
            known = self.known[number]
            try:
                found = rows_of(partition, 0)
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
                # From now on lookups by time follow the times in the batches' headers.
                self.believed.add(number)
            elif found != known and number not in self.believed:
                text = time_fault(partition, self.rng)
                if text:
                    return text
            self.known[number] = found
        return ""

    # Whether the claims of a batch are accepted.
    believes = False

    def unreadable(self, number: int, text: str) -> str:
        """Problem of a partition that cannot be read to its end any more, or ""."""
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
            with open_store(self.path, _files=Unsynced()) as store:
                for number, known in enumerate(self.known):
                    found = rows_of(store.topic("orders")[number], 0)
                    if found != known:
                        return f"{number} had {known[-3:]}, and has {found[-3:]}"
        except LogStoreError as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
        return ""


def rows_of(partition: Any, first: int | None = None) -> list[tuple[int, Any]]:
    return [
        (r.offset, (r.timestamp_ms, r.key, r.value, r.headers))
        for r in partition.read(first)
    ]


def time_fault(partition: Any, rng: random.Random) -> str:
    """Check that the partition finds its records by time; return a problem, or ""."""
    rows = [(o, row[0]) for o, row in rows_of(partition, 0)]
    for _, when in rng.sample(rows, min(3, len(rows))):
        wanted = min((o for o, t in rows if t >= when), default=None)
        found = partition.offset_for_time(when)
        if found != wanted:
            return f"offset_for_time({when}) is {found}, not {wanted}"
    return ""
