"""`--from` and `--until` over damage: printed and missing records."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from logstore.cli.params import is_reversed, parse_bound
from support.damage import flip_bit, frames, logs_in
from support.values import new_partition

RECORDS = 200
IN_BATCH = 10
NOON = 1_700_000_000_000


def time_of(offset: int) -> int:
    """A second for each record; every seventh is late, which is allowed in a log."""
    return NOON + 1000 * (offset - (20 if offset % 7 == 0 else 0))


class Log(NamedTuple):
    """A partition in one segment with one damaged batch.

    Attributes:
        path: its directory.
        lost: the offsets of that batch.
        times: whether its format has them.
    """

    path: Path
    lost: range
    times: bool

    @property
    def file(self) -> Path:
        return logs_in(self.path)[0]

    @property
    def left(self) -> list[int]:
        """The offsets that can be read."""
        return [o for o in range(RECORDS) if o not in self.lost]

    def offset_of(self, bound: str | None, default: int) -> int:
        """An offset for a bound, as the documentation defines it."""
        if bound is None:
            return default
        if bound.startswith("-"):
            return self.left[int(bound)]
        if not bound.endswith("ms"):
            return int(bound)
        since = int(bound[:-2])
        found = (o for o in self.left if self.times and time_of(o) >= since)
        return next(found, RECORDS)


def damaged(path: Path, magic: int, codec: str, **settings: Any) -> Log:
    """Damage near the middle."""
    settings.setdefault("index_interval_bytes", 300)
    with logstore.open(path) as store:
        partition = new_partition(store, magic, codec, **settings)
        for first in range(0, RECORDS, IN_BATCH):
            batch = range(first, first + IN_BATCH)
            times = [time_of(o) for o in batch] if magic else None
            partition.append_many([b"value %d" % o for o in batch], None, times)
    log = logs_in(path / "orders-0")[0]
    found = frames(log)
    at = len(found) // 2
    before, frame, after = found[at - 1 : at + 2]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    lost = range(frame.offset, after.offset)
    if magic < 2:  # a wrapper has the offset of its last message
        lost = range(before.offset + 1, frame.offset + 1)
    return Log(path / "orders-0", lost, magic > 0)


@pytest.fixture(
    params=[(0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "zstd")],
    ids=lambda found: f"magic{found[0]}-{found[1]}",
)
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Log:
    return damaged(tmp_path / "store", *request.param)


def bounds_of(log: Log) -> Iterator[tuple[str | None, str | None]]:
    """Pairs of bounds before, in and after the damage, of every sort."""
    first, behind = log.lost.start, log.lost.stop
    places = [first - 15, (first + behind) // 2, behind, behind + 15]
    sorts: list[list[str | None]] = [
        [None],
        [str(offset) for offset in places],
        [f"-{RECORDS - offset}" for offset in (places[0], behind + 15)],
        [f"{time_of(offset)}ms" for offset in (*places, RECORDS + 50)],
    ]
    every = list(itertools.chain(*sorts))
    for start, stop in itertools.product(every, every):
        low, high = log.offset_of(start, 0), log.offset_of(stop, RECORDS)
        given = [bound and parse_bound(bound) for bound in (start, stop)]
        if low <= high and not is_reversed(*given):
            yield start, stop


def arguments(start: str | None, stop: str | None, mode: str) -> list[str]:
    found = ["--on-corruption", mode]
    found += [] if start is None else ["--from", start]
    return found + ([] if stop is None else ["--until", stop])


def check(log: Log, mode: str, read: Callable[[list[str]], Any]) -> None:
    """Every pair of bounds, against the definition."""
    for start, stop in bounds_of(log):
        low, high = log.offset_of(start, 0), log.offset_of(stop, RECORDS)
        wanted = [o for o in log.left if low <= o < high]
        lost = [o for o in log.lost if low <= o < high]
        if lost and mode == "raise":
            wanted = [o for o in wanted if o < lost[0]]
        result = read(arguments(start, stop, mode))
        is_time = (start or "").endswith("ms")
        told = re.findall(r"missing: orders-0 .*?offsets? (\d+)", result.err)
        if is_time and told and low == log.lost.stop and mode == "raise":
            # No older record is between them: the matching time may be in the damage.
            if low < high:
                assert told.pop() == str(low), (start, stop)
            wanted = []
        assert [int(line) for line in result.lines] == wanted, (start, stop)
        assert result.status == (1 if result.err else 0), (start, stop)
        if lost:
            assert told == [str(lost[0])], (start, stop)
        elif told:
            # Only damage before a time may be within the bounds.
            assert is_time, (start, stop)
            assert "it is not known whether they were requested" in result.err
            assert [log.lost.start] == [int(offset) for offset in told]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["partition", "file"])
def test_records_over_damage_are_those_between_the_bounds(
    run: Any, log: Log, mode: str, kind: str
) -> None:
    """This holds for each kind of bound; damage outside of them is ignored, and none is
    printed twice."""
    path = log.path if kind == "partition" else log.file
    check(log, mode, lambda given: run("records", path, *given, "-f", r"%o\n"))


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_what_is_missing_ends_where_the_bound_lies(
    run: Any, tmp_path: Path, mode: str
) -> None:
    """Only offsets within the bounds are counted."""
    log = damaged(tmp_path / "store", 2, "none")
    for start, stop in bounds_of(log):
        low, high = log.offset_of(start, 0), log.offset_of(stop, RECORDS)
        lost = [o for o in log.lost if low <= o < high]
        if lost:
            count = (high if mode == "raise" else lost[-1] + 1) - lost[0]
            given = arguments(start, stop, mode)
            err = run("records", log.path, *given, "--limit", RECORDS).err
            assert f"missing in all: {count} offset" in err, (start, stop)


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["partition", "file"])
def test_batches_over_damage_are_those_between_the_bounds(
    run: Any, tmp_path: Path, mode: str, kind: str
) -> None:
    """Whole batches: from the one with the first offset on, if it is intact."""
    log = damaged(tmp_path / "store", 2, "none")
    path = log.path if kind == "partition" else log.file
    for start, stop in bounds_of(log):
        low, high = log.offset_of(start, 0), log.offset_of(stop, RECORDS)
        bases = {o - o % IN_BATCH for o in log.left if low <= o < high}
        if mode == "raise" and any(low <= o < high for o in log.lost):
            bases = {base for base in bases if base < log.lost.start}
        given = arguments(start, stop, mode)
        result = run("batches", path, *given, "--format", "jsonl")
        if mode == "raise" and low == log.lost.stop and "not known" in result.err:
            bases = set()
        found = [line["baseOffset"] for line in result.json]
        assert found == sorted(bases), (start, stop)


@pytest.mark.parametrize("kind", ["jsonl", "csv.gz", "parquet", "arrow"])
@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_export_over_damage_has_the_records_between_the_bounds(
    run: Any, tmp_path: Path, kind: str, mode: str
) -> None:
    """Rows and columns are written; also from a time after the damage."""
    log = damaged(tmp_path / "store", 2, "none")
    target = tmp_path / f"out.{kind}"
    behind = log.lost.stop + 15
    wanted = [o for o in range(RECORDS) if o >= behind]
    for start in (str(behind), f"-{len(wanted)}", f"{time_of(behind)}ms"):
        given = arguments(start, None, mode)
        result = run("export", log.path, "-o", target, "--force", *given)
        # A file that may lack records must not be taken for complete.
        is_kept = mode == "skip" or not start.endswith("ms")
        assert target.exists() == is_kept, start
        if is_kept:
            assert f"wrote {len(wanted)} records" in result.out, start
            target.unlink()


def test_damage_before_a_time_is_known_by_the_time_of_the_segment(
    run: Any, tmp_path: Path
) -> None:
    """Records older than a segment's largest time are outside of the bounds."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, "none", segment_bytes=1000)
        for offset in range(RECORDS):
            partition.append(b"v", timestamp_ms=NOON + 1000 * offset)
    log = logs_in(tmp_path / "orders-0")[1]
    flip_bit(log, 8 * (frames(log)[3].pos + 70))
    for mode in ("raise", "skip"):
        given = arguments(f"{NOON + 1000 * 150}ms", None, mode)
        result = run("records", tmp_path, *given, "-f", r"%o\n")
        assert (result.status, result.err) == (0, "")
        assert [int(line) for line in result.lines] == list(range(150, RECORDS))


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_each_damaged_batch_before_a_time_is_reported(
    run: Any, tmp_path: Path, mode: str
) -> None:
    """Its offsets are printed; the records of the time follow."""
    # The entries of a time index would show that these batches are older.
    log = damaged(tmp_path / "store", 2, "none", index_interval_bytes=1 << 20)
    found = frames(log.file)
    after = next(f for f in found if f.offset == log.lost.stop + IN_BATCH)
    flip_bit(log.file, 8 * (after.pos + after.size - 1))
    since = log.lost.stop + 4 * IN_BATCH + 1
    given = arguments(f"{time_of(since)}ms", None, mode)
    for path in (log.path, log.file):
        result = run("records", path, *given, "-f", r"%o\n")
        assert result.status == 1
        assert [int(line) for line in result.lines] == list(range(since, RECORDS))
        assert result.err.count("it is not known whether they were requested") == 2
        assert "missing in all: 20 offsets of 1 partition" in result.err
        assert "--on-corruption skip" not in result.err


def test_the_next_partitions_follow_a_time_over_damage(
    run: Any, tmp_path: Path
) -> None:
    """Each with its own beginning."""
    with logstore.open(tmp_path) as store:
        for partition in store.create_topic("t", partitions=3):
            for first in range(0, RECORDS, IN_BATCH):
                times = [NOON + o for o in range(first, first + IN_BATCH)]
                partition.append_many([b"v"] * IN_BATCH, None, times)
    log = logs_in(tmp_path / "t-1")[0]
    flip_bit(log, 8 * (frames(log)[3].pos + 70))
    for mode in ("raise", "skip"):
        given = arguments(f"{NOON + 60}ms", f"{NOON + 70}ms", mode)
        result = run("records", tmp_path, *given, "-f", r"%p %o\n")
        assert result.status == 1
        wanted = [f"{p} {o}" for p in range(3) for o in range(60, 70)]
        assert result.lines == wanted


def test_tail_of_a_file_begins_behind_its_damage(run: Any, tmp_path: Path) -> None:
    """A partition's tail is the same: the damage is not among the last records."""
    log = damaged(tmp_path / "store", 2, "none")
    for mode in ("raise", "skip"):
        result = run("tail", log.file, "-n", 5, "--on-corruption", mode)
        assert (result.status, result.err, len(result.lines)) == (0, "", 5)
        result = run("tail", log.file, "-n", RECORDS, "--on-corruption", mode)
        assert result.status == 1
        wanted = (
            log.left if mode == "skip" else [o for o in log.left if o < log.lost[0]]
        )
        assert len(result.lines) == len(wanted)


@pytest.mark.parametrize("kind", ["partition", "file"])
def test_a_time_that_may_begin_in_the_damage_ends_a_partition_with_raise(
    run: Any, tmp_path: Path, kind: str
) -> None:
    """If the time is in the damage, the rest is printed only with `skip`; if it is
    later, always: an older record in between shows the order."""
    log = damaged(tmp_path / "store", 2, "none", index_interval_bytes=1 << 20)
    path = log.path if kind == "partition" else log.file
    inside, behind = log.lost[3], log.lost.stop + 3
    rest = range(log.lost.stop, RECORDS)
    for since, mode, wanted in (
        (inside, "raise", range(0)),
        (inside, "skip", rest),
        (behind, "raise", rest[3:]),
        (behind, "skip", rest[3:]),
    ):
        given = arguments(f"{time_of(since)}ms", None, mode)
        result = run("records", path, *given, "-f", r"%o\n")
        assert result.status == 1
        assert [int(line) for line in result.lines] == list(wanted), (since, mode)
        assert f"missing: orders-0 offsets {log.lost[0]}..{log.lost[-1]} " in result.err
        assert ("--on-corruption skip" in result.err) == (not wanted)
