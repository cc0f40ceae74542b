"""Random sequences of appends, from a seed, and the logs that logstore writes for them.

A sequence has the settings of a topic and calls in phases. Between two phases the store
is closed and opened again, or killed.
"""

from __future__ import annotations

import dataclasses
import gzip
import random
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import logstore
from logstore import Partition, TopicConfig
from logstore.store.opening import open_store
from support.damage import FixedClock, fixed_crc, frames_in, logs_in
from support.hostile import record, varint

__all__ = [
    "TIMES",
    "AppendCall",
    "AppendSequence",
    "Replay",
    "Row",
    "batch_of",
    "message_of",
    "partition_files",
    "random_sequence",
    "without_epochs",
]

# Sequences of record timestamps; with "some", some records lack one; with "leaps",
# they jump over the time that a segment lasts.
TIMES = ("rising", "equal", "disorder", "none", "some", "leaps")
START_MS = 1_700_000_000_000
SUFFIXES = (".log", ".index", ".timeindex")
_GZIP = 1
_CALLS_MIN = 20
_NO_ROLL_MS = 7 * 24 * 3600 * 1000
# Maximum sizes: of a batch or message without its rows, of a row without key and value.
_HEADER_BYTES, _ROW_BYTES = 61, 40


class Row(NamedTuple):
    """A record to append."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class AppendCall(NamedTuple):
    """One call of `append`, `append_many` or `append_batches`.

    Attributes:
        way: the name of the method.
        codec: of the batches for `append_batches`: 0 none, 1 gzip.
        batches: in magic 2, how many of them; the rows are shared out.
    """

    way: str
    rows: tuple[Row, ...]
    codec: int = 0
    batches: int = 1

    def data(self, magic: int) -> bytes:
        """The batches or messages, for `append_batches`."""
        rows = self.rows
        if magic < 2:
            return b"".join(message_of(row, magic) for row in rows)
        size = -(-len(rows) // self.batches)
        parts = [rows[at : at + size] for at in range(0, len(rows), size)]
        return b"".join(batch_of(part, self.codec) for part in parts)


@dataclasses.dataclass(frozen=True, slots=True)
class AppendSequence:
    """Appends to one topic of one partition.

    Attributes:
        config: of the topic; its timestamp type is that of the log.
        phases: the calls of each.
    """

    name: str
    config: TopicConfig
    phases: tuple[tuple[AppendCall, ...], ...]

    def calls(self, phase: int) -> tuple[AppendCall, ...]:
        """Calls of a phase; none after the last phase."""
        return self.phases[phase] if phase < len(self.phases) else ()

    @property
    def magic(self) -> int:
        return self.config.message_format

    @property
    def is_append_time(self) -> bool:
        """Whether the time of each append replaces the timestamps."""
        return self.config.message_timestamp_type == "LogAppendTime"

    def settings(self) -> dict[str, str]:
        """The same topic in a broker, which deletes nothing of it."""
        config = self.config
        names = (
            "segment_bytes", "segment_ms", "segment_index_bytes",
            "index_interval_bytes", "message_timestamp_type",
        )  # fmt: skip
        settings = {
            name.replace("_", "."): str(getattr(config, name)) for name in names
        }
        return settings | {"retention.ms": "-1", "retention.bytes": "-1"}


# ------------------------------------------------------------------ bytes


def message_of(row: Row, magic: int = 1) -> bytes:
    """A message of magic 0 or 1 at offset 0."""

    def sized(data: bytes | None) -> bytes:
        return struct.pack(">i", -1 if data is None else len(data)) + (data or b"")

    body = sized(row.key) + sized(row.value)
    if magic:
        body = struct.pack(">q", row.timestamp_ms) + body
    return fixed_crc(struct.pack(">qiIbb", 0, len(body) + 6, 0, magic, 0) + body)


def batch_of(rows: Sequence[Row], codec: int = 0) -> bytes:
    """A batch of magic 2 at offset 0, as a client makes it."""
    first = rows[0].timestamp_ms

    def sized(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    payload = b""
    for number, row in enumerate(rows):
        fields = b"\0" + varint(row.timestamp_ms - first) + varint(number)
        payload += record(fields + sized(row.key) + sized(row.value) + varint(0))
    if codec == _GZIP:
        payload = gzip.compress(payload, mtime=0)
    largest = max(row.timestamp_ms for row in rows)
    covered = struct.pack(
        ">hiqqqhii", codec, len(rows) - 1, first, largest, -1, -1, -1, len(rows)
    )
    head = struct.pack(">qiibI", 0, len(covered) + len(payload) + 9, -1, 2, 0)
    return fixed_crc(head + covered + payload)


def without_epochs(log: bytes) -> bytes:
    """A `.log` whose batches of magic 2 have the leader epoch 0."""
    data = bytearray(log)
    for frame in frames_in(log):
        if frame.magic == 2:
            data[frame.pos + 12 : frame.pos + 16] = bytes(4)
    return bytes(data)


def partition_files(directory: Path) -> dict[str, bytes]:
    """The logs and indexes of a partition, by name."""
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.suffix in SUFFIXES
    }


# ------------------------------------------------------------------ sequences


def random_sequence(
    name: str,
    seed: str,
    magic: int,
    times: str,
    *,
    index_bytes_min: int = 40,
    phases: int,
    is_alone: bool = True,
) -> AppendSequence:
    """A sequence; the same one for the same arguments.

    Args:
        times: one of `TIMES`.
        index_bytes_min: no `segment_index_bytes` is smaller than this.
        is_alone: each call makes one batch, and the clock is that of the machine.
    """
    rng = random.Random(seed)
    is_append_time = magic > 0 and times != "leaps" and rng.randrange(4) == 0
    is_clocked = is_alone and times != "leaps"
    fills_indexes = times == "equal"  # with no entries in the time index
    config = TopicConfig(
        message_format=magic,
        segment_bytes=rng.choice(
            [60_000] if fills_indexes else [200, 1000, 5000, 60_000]
        ),
        # If a batch may have no timestamp, the clock decides when to roll.
        segment_ms=_NO_ROLL_MS if is_clocked else rng.choice([50, 1000]),
        segment_index_bytes=max(
            index_bytes_min,
            rng.choice([40] if fills_indexes else [40, 100, 10 << 20]),
        ),
        index_interval_bytes=rng.choice(
            [0, 1] if fills_indexes else [0, 1, 70, 300, 1000, 4096]
        ),
        message_timestamp_type="LogAppendTime" if is_append_time else "CreateTime",
    )
    size = rng.choice([5, 60, 400])
    clock = START_MS

    def row() -> Row:
        nonlocal clock
        if times == "leaps" and rng.randrange(8) == 0:
            clock += config.segment_ms + rng.choice([-1, 0, 1, 1])
        elif times != "equal":
            clock += rng.randrange(20)
        when = clock
        if times == "disorder":
            when += rng.randrange(-500, 500)
        if times == "none" or (times == "some" and rng.randrange(3) == 0):
            when = -1
        key = rng.choice([None, b"", b"k%d" % rng.randrange(100)])
        value = rng.choice([None, b"", *[rng.randbytes(rng.randrange(size))] * 4])
        return Row(when, key, value)

    def call() -> AppendCall:
        way = rng.choice(["append", "append_many", "append_batches"])
        if is_append_time and magic == 2:
            # `append` and `append_many` store no other timestamp at all.
            way = "append_batches"
        count = 1 if way == "append" else rng.choice([1, 1, 2, 5, 12])
        if is_alone and magic < 2:
            count = 1  # each message is a batch
        codec, batches = 0, 1
        if way == "append_batches" and magic == 2:
            codec = _GZIP if rng.randrange(10) == 0 else 0
            batches = 1 if is_alone else min(count, rng.randrange(1, 4))
        return AppendCall(way, tuple(row() for _ in range(count)), codec, batches)

    def phase() -> tuple[AppendCall, ...]:
        return tuple(call() for _ in range(rng.choice([0, 1, 5, 20, 50])))

    made = tuple(phase() for _ in range(phases))
    if sum(map(len, made)) < _CALLS_MIN:
        made = (*made[:-1], tuple(call() for _ in range(_CALLS_MIN)))
    # A broker refuses what is larger than a segment.
    largest = max((_most_bytes(call) for calls in made for call in calls), default=0)
    config = dataclasses.replace(
        config, segment_bytes=max(config.segment_bytes, largest)
    )
    return AppendSequence(name, config, made)


def _most_bytes(call: AppendCall) -> int:
    """Upper bound of the size of each batch of a call."""
    return _HEADER_BYTES * call.batches + sum(
        _ROW_BYTES + len(row.key or b"") + len(row.value or b"") for row in call.rows
    )


# ------------------------------------------------------------------ logstore


class Replay:
    """A store that gets the calls of several sequences, phase by phase.

    Args:
        directory: does not exist yet; may be another one after a kill.
        times: the time of each append in each sequence, in order: the store's clock.
            None: the clock of the machine, and the timestamps of the rows; then all
            topics have CreateTime.
    """

    def __init__(
        self,
        directory: Path,
        sequences: Sequence[AppendSequence],
        times: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.directory = directory
        self.sequences = sequences
        self._times = None
        self._clock = None
        if times is not None:
            self._times = {name: iter(found) for name, found in times.items()}
            self._clock = FixedClock(START_MS)
        with open_store(directory) as store:
            for sequence in sequences:
                config = sequence.config
                if times is None:
                    config = dataclasses.replace(
                        config, message_timestamp_type="CreateTime"
                    )
                store.create_topic(sequence.name, config=config)

    def phase(self, number: int, *, kill: bool = False) -> None:
        """Make the calls of a phase, and close the store, or kill its writer."""
        with open_store(self.directory, _files=self._clock) as store:
            for sequence in self.sequences:
                partition = store.topic(sequence.name)[0]
                for call in sequence.calls(number):
                    if self._times is not None and self._clock is not None:
                        self._clock.now = next(self._times[sequence.name])
                    _append(partition, call, sequence.magic)
            if kill:
                killed = self.directory.with_name(f"{self.directory.name}-{number}")
                shutil.copytree(self.directory, killed, symlinks=True)
        if kill:
            shutil.rmtree(self.directory)
            killed.rename(self.directory)

    def recover(self) -> None:
        """Open the store after a kill, and close it."""
        with open_store(self.directory, _files=self._clock) as store:
            store.recover()

    def rebuild(self, sequence: AppendSequence, offset: int) -> None:
        """Rebuild the indexes of the closed log, starting with the segment that
        contains an offset, or ends there."""
        logs = logs_in(self.partition(sequence))
        bases = [int(log.name[:20]) for log in logs]
        first = max((base for base in bases if base <= offset), default=0)
        for log, base in zip(logs, bases, strict=True):
            if base >= first:
                logstore.rebuild_index(log)

    def end_offset(self, sequence: AppendSequence) -> int:
        """One past the last record of the closed log."""
        with logstore.open(self.directory, read_only=True) as store:
            return store.topic(sequence.name)[0].end_offset

    def partition(self, sequence: AppendSequence) -> Path:
        return self.directory / f"{sequence.name}-0"

    def batches(self, sequence: AppendSequence) -> list[bytes]:
        """Everything that was appended so far, batch by batch."""
        found = []
        for log in logs_in(self.partition(sequence)):
            data = log.read_bytes()
            for frame in frames_in(data):
                found.append(data[frame.pos : frame.pos + frame.size])
        return found


def _append(partition: Partition, call: AppendCall, magic: int) -> None:
    rows = call.rows
    if call.way == "append":
        (row,) = rows
        partition.append(row.value, key=row.key, timestamp_ms=row.timestamp_ms)
    elif call.way == "append_many":
        partition.append_many(
            [row.value for row in rows],
            keys=[row.key for row in rows],
            timestamps_ms=[row.timestamp_ms for row in rows],
        )
    else:
        partition.append_batches(call.data(magic))
