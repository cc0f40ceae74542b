"""The logs and indexes of logstore equal the output of the segment classes of Kafka
4.2, byte for byte.

A broker takes one batch in a request, and has the clock of the machine. Here a small
Java program passes to Kafka's `LogSegment` the appends of a follower or an old client:
several batches, or a message set of magic 0 or 1, in one append, with a controlled
clock. One call of logstore is one such append. The sequences are as random as in
`test_identical_files`, and many more.
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.append_sequences import (
    TIMES,
    AppendSequence,
    Replay,
    partition_files,
    random_sequence,
)
from support.damage import stop_syncs
from support.kafka_broker import cache_directory
from support.kafka_tools import JAVA_OPTIONS, POM, KafkaTools, ToolsUnavailableError
from support.levels import IS_ALL
from support.releases import NEWEST

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT = 1800 if IS_ALL else 72
MAGICS = (0, 1, 2)
# These are not opened twice: if the first record of a segment has no timestamp, its age
# counts from its creation, which in Kafka is the last opening.
_WITHOUT_TIMES = ("none", "some")
# Kafka fails in the middle of an append whose entries do not fit into an index.
_INDEX_BYTES = 20_000
_START_MS = 1_800_000_000_000
_JAVA_SECONDS_MAX = 300
_APPEND, _OPEN = 0, 1


def sequences() -> list[AppendSequence]:
    found = []
    for number in range(COUNT):
        magic = MAGICS[number % len(MAGICS)]
        times = TIMES[number // len(MAGICS) % len(TIMES)]
        is_opened_once = magic == 0 or times in _WITHOUT_TIMES
        found.append(
            random_sequence(
                f"sequence-{number}",
                f"segments/{number}",
                magic,
                times,
                index_bytes_min=_INDEX_BYTES,
                phases=1 if is_opened_once else 2,
                is_alone=False,
            )
        )
    return found


def clock_of(sequence: AppendSequence) -> list[int]:
    """The time of each call: sometimes it jumps by more than the age limit of a
    segment."""
    rng = random.Random(sequence.name)
    now, times = _START_MS, []
    for _ in range(sum(map(len, sequence.phases))):
        now += rng.randrange(10)
        if rng.randrange(8) == 0:
            now += sequence.config.segment_ms
        times.append(now)
    return times


def appends_of(sequence: AppendSequence, batches: Sequence[bytes]) -> list[list[bytes]]:
    """The batches of each call."""
    calls = [call for calls in sequence.phases for call in calls]
    ends, end = [], 0
    for call in calls:
        end += len(call.rows)
        ends.append(end)
    found: list[list[bytes]] = [[] for _ in calls]
    at = 0
    for batch in batches:
        while first_offset(batch) >= ends[at]:
            at += 1
        found[at].append(batch)
    return found


def first_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


def last_offset(batch: bytes) -> int:
    delta = int.from_bytes(batch[23:27], "big") if batch[16] == 2 else 0
    return first_offset(batch) + delta


def largest_timestamp(batch: bytes) -> int:
    if batch[16] == 0:
        return -1
    at = 35 if batch[16] == 2 else 18
    found: int = struct.unpack_from(">q", batch, at)[0]
    return found


def step_of(time_ms: int, batches: Sequence[bytes]) -> bytes:
    """An append, for the Java program."""
    data = b"".join(batches)
    head = struct.pack(
        ">bqqqqi", _APPEND, time_ms, first_offset(batches[0]), last_offset(batches[-1]),
        max(map(largest_timestamp, batches)), len(data),
    )  # fmt: skip
    return head + data


def log_of(
    sequence: AppendSequence, directory: Path, batches: Sequence[bytes]
) -> bytes:
    """All steps of a sequence, for the Java program."""
    config, times = sequence.config, clock_of(sequence)
    appends, steps, at = appends_of(sequence, batches), [], 0
    for number, calls in enumerate(sequence.phases):
        if number:
            steps.append(struct.pack(">bq", _OPEN, times[at - 1] if at else _START_MS))
        for _ in calls:
            steps.append(step_of(times[at], appends[at]))
            at += 1
    name = str(directory).encode()
    head = struct.pack(f">H{len(name)}s", len(name), name)
    head += struct.pack(
        ">iqiii", config.segment_bytes, config.segment_ms, config.segment_index_bytes,
        config.index_interval_bytes, len(steps),
    )  # fmt: skip
    return head + b"".join(steps)


def test_files_are_those_of_kafka_s_segments(tmp_path: Path) -> None:
    """Each file of each log, including appends of several batches."""
    try:
        tools = KafkaTools.find(cache_directory(), NEWEST)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    made = sequences()
    with pytest.MonkeyPatch.context() as patch:
        stop_syncs(patch)
        replay = Replay(
            tmp_path / "store", made, {one.name: clock_of(one) for one in made}
        )
        for number in range(2):
            replay.phase(number)
    logs = [
        log_of(one, tmp_path / "kafka" / one.name, replay.batches(one)) for one in made
    ]
    steps = tmp_path / "steps"
    steps.write_bytes(struct.pack(">i", len(logs)) + b"".join(logs))
    program = str(POM.with_name("Segments.java"))
    command = [tools.java, *JAVA_OPTIONS, "-cp", tools.classpath, program, str(steps)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=_JAVA_SECONDS_MAX, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    bad, rolled, size = [], 0, 0
    for one in made:
        ours = partition_files(replay.partition(one))
        theirs = partition_files(tmp_path / "kafka" / one.name)
        rolled += len(ours) > 3
        size += sum(map(len, ours.values()))
        bad += [
            f"{one.name} magic {one.magic} {name}"
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
    assert bad == []
    assert rolled > COUNT // 4
    print(f"{COUNT} sequences, {rolled} of them with rolls, {size} bytes")
