"""Every kind of file with bits flipped, lengths cut, parts lost: a reader gets just the
records that were written, or an error after a prefix of them; never anything else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import logstore
from support.damage import cut, flip_bit, frames, logs_in, zero
from support.levels import some
from support.values import every_format, expected, timestamp_of, write_store

COUNT = 24
EPOCHS = "leader-epoch-checkpoint"


def damaged_store(path: Path, magic: int, codec: str) -> Path:
    return write_store(
        path, COUNT, magic, codec, call=3, segment_bytes=400, index_interval_bytes=100
    )


def outcome(path: Path, magic: int) -> str:
    """Result of a read: "same" or "loud"; anything else fails the test."""
    found: list[logstore.Record] = []
    want = expected(magic, 0, COUNT)
    try:
        with logstore.open(path, read_only=True) as store:
            for record in store.topic("orders")[0].read():
                found.append(record)
    except (logstore.CorruptRecordError, logstore.errors.UnsupportedError):
        return "loud" if found == want[: len(found)] else f"wrong: {found}"
    return "same" if found == want else f"silent: {found}"


def bits_of_frames(log: Path) -> Iterator[tuple[int, int]]:
    """All bits that no checksum covers, and some of the rest, of a random batch and
    the last one: (bit, byte in batch)."""
    rng = random.Random(log.name)
    whole = frames(log)
    for frame in {rng.choice(whole), whole[-1]}:
        for byte in range(frame.size):
            chosen = range(8) if byte < 17 else (rng.randrange(8),)
            if byte >= 40 and rng.random() < 0.8:
                continue
            for bit in chosen:
                yield 8 * (frame.pos + byte) + bit, byte


@every_format
def test_flipped_bit_of_a_log_is_loud(tmp_path: Path, magic: int, codec: str) -> None:
    """No bit of any batch can flip unnoticed, those outside the checksum included
    (offset, length, leader epoch, magic). One says nothing of a record and may: the
    offset of a magic 0 wrapper, whose messages have their own."""
    for log in logs_in(damaged_store(tmp_path, magic, codec)):
        for bit, byte in some(list(bits_of_frames(log)), 24, log.name):
            flip_bit(log, bit)
            found = outcome(tmp_path, magic)
            flip_bit(log, bit)
            quiet = magic == 0 and codec != "none" and byte < 8
            assert found == "loud" or (quiet and found == "same"), (log, bit, byte)


@every_format
def test_log_cut_anywhere_is_loud(tmp_path: Path, magic: int, codec: str) -> None:
    """A closed store whose file has become shorter, by a byte or by all of it."""
    rng = random.Random(magic)
    for log in logs_in(damaged_store(tmp_path, magic, codec)):
        data = log.read_bytes()
        edges = [f.pos for f in frames(log)]
        for size in {*edges, len(data) - 1, *rng.sample(range(len(data)), 5)}:
            cut(log, size)
            assert outcome(tmp_path, magic) == "loud", (log, size)
            log.write_bytes(data)


@every_format
def test_zeroed_block_is_loud(tmp_path: Path, magic: int, codec: str) -> None:
    """A lost write leaves zeros; they are neither records nor an end."""
    for log in logs_in(damaged_store(tmp_path, magic, codec)):
        data = log.read_bytes()
        for frame in frames(log):
            zero(log, frame.pos, frame.pos + frame.size)
            assert outcome(tmp_path, magic) == "loud"
            log.write_bytes(data)
        zero(log, 0, len(data))
        assert outcome(tmp_path, magic) == "loud"
        log.write_bytes(data)


@every_format
def test_batches_swapped_repeated_or_lost_are_loud(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Misdirected and lost writes: each batch is intact, their order is not."""
    for log in logs_in(damaged_store(tmp_path, magic, codec)):
        data = log.read_bytes()
        parts = [data[f.pos : f.pos + f.size] for f in frames(log)]
        for i in range(len(parts)):
            rest = parts[:i] + parts[i + 1 :]
            for wrong in (
                rest,
                [*parts[:i], parts[i], *parts[i:]],
                [parts[i], *rest] if i else None,
                [*parts[:i], parts[i - 1], *parts[i + 1 :]] if i else None,
            ):
                if wrong is None:
                    continue
                log.write_bytes(b"".join(wrong))
                # Readers ignore bytes after the end of a closed log.
                more = log.read_bytes().startswith(data)
                assert outcome(tmp_path, magic) == ("same" if more else "loud"), (
                    log,
                    i,
                )
        log.write_bytes(data)


@every_format
def test_segment_copied_over_another_is_loud(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The name of the segment is not the offset of its first batch."""
    logs = logs_in(damaged_store(tmp_path, magic, codec))
    assert len(logs) > 2
    for one, two in [(0, 1), (1, 0), (1, 2), (-1, 0), (0, -1)]:
        data = logs[two].read_bytes()
        logs[two].write_bytes(logs[one].read_bytes())
        assert outcome(tmp_path, magic) == "loud", (one, two)
        logs[two].write_bytes(data)


@every_format
def test_flipped_bit_of_an_index_changes_nothing(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Indexes are hints: with any bit of them flipped, reads from any offset and time
    lookups return the same records."""
    directory = damaged_store(tmp_path, magic, codec)
    rng = random.Random(magic)
    records = expected(magic, 0, COUNT)
    for path in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        size = path.stat().st_size
        bits = rng.sample(range(8 * size), min(8 * size, 10))
        for bit in some(bits, 5, path.name):
            flip_bit(path, bit)
            with logstore.open(tmp_path, read_only=True) as store:
                partition = store.topic("orders")[0]
                for start in range(0, COUNT, 3):
                    assert list(partition.read(start)) == records[start:]
                    stamp = timestamp_of(start)
                    want = next(
                        (r.offset for r in records if r.timestamp_ms >= stamp), None
                    )
                    assert partition.offset_for_time(stamp) == want
            flip_bit(path, bit)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("name", [".logstore-state", ".logstore-owner",
                                  ".logstore-topics", ".kafka_cleanshutdown",
                                  "recovery-point-offset-checkpoint",
                                  EPOCHS])  # fmt: skip
def test_flipped_bit_of_a_state_file_costs_no_record(
    tmp_path: Path, magic: int, name: str
) -> None:
    """Whatever a state file says, the log is read whole, and appends continue at its
    end; an error follows if Kafka's recovery point says that there was more."""
    points = "recovery-point-offset-checkpoint"
    damaged_store(tmp_path / "from", magic, "none")
    found = list((tmp_path / "from").rglob(name))
    if not found:
        assert (magic, name) != (2, EPOCHS)
        return
    path = found[0]
    rng = random.Random(name)
    sound = {p: p.read_bytes() for p in (tmp_path / "from").rglob("*") if p.is_file()}
    for bit in some(rng.sample(range(8 * path.stat().st_size), 12), 5):
        flip_bit(path, bit)
        seen = outcome(tmp_path / "from", magic)
        assert seen == "same" or (seen == "loud" and name == points), bit
        with logstore.open(tmp_path / "from") as store:
            partition = store.topic("orders")[0]
            records = partition.read()
            assert list(islice(records, COUNT)) == expected(magic, 0, COUNT)
            try:
                assert list(records) == []
                assert partition.append(b"x", timestamp_ms=1) == COUNT
            except logstore.CorruptionError:
                # The recovery point is beyond the end of the log.
                assert name == points
        for file in (tmp_path / "from").rglob("*"):
            if file.is_file() and file not in sound:
                file.unlink()
        for file, data in sound.items():
            file.write_bytes(data)
