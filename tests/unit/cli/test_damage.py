"""Reading over damage: `--on-corruption` in every subcommand that reads records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from support.cli import RECORDS, SMALL
from support.damage import append_garbage, flip_bit, frames, logs_in
from support.values import value_of, write_store

PARTITIONS = 3


class Damaged(NamedTuple):
    """A store whose second partition is damaged in one batch."""

    path: Path
    first: int  # the first offset that is lost
    following: int  # the first that can be read after the damage
    good: int  # records in each of the others


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    """t-0 and t-2 are whole, t-1 is damaged in the middle."""
    path = tmp_path / "data"
    config = logstore.TopicConfig(message_format=2, **SMALL)
    with logstore.open(path) as store:
        for part in store.create_topic("t", partitions=PARTITIONS, config=config):
            for offset in range(0, RECORDS, 5):
                values = [value_of(o) or b"v" for o in range(offset, offset + 5)]
                part.append_many(values)
    log = logs_in(path / "t-1")[1]
    frame, following = frames(log)[1:3]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    return Damaged(path, frame.offset, following.offset, RECORDS)


def offsets(lines: list[Any]) -> dict[int, list[int]]:
    """Partition number -> offsets of its records."""
    found: dict[int, list[int]] = {}
    for line in lines:
        found.setdefault(line["partition"], []).append(line["offset"])
    return found


def expected(damaged: Damaged, mode: str) -> dict[int, list[int]]:
    every = list(range(damaged.good))
    left = every[: damaged.first]
    if mode == "skip":
        left += every[damaged.following :]
    return {0: every, 1: left, 2: every}


@pytest.mark.parametrize("mode", ["raise", "skip", None])
def test_records_go_on_with_the_next_partition(
    run: Any, damaged: Damaged, mode: str | None
) -> None:
    """The damage is reported, the status is 1, and the end of the output lists what is
    missing."""
    options = ["--on-corruption", mode] if mode else []
    result = run("records", damaged.path, "--format", "jsonl", *options)
    assert result.status == 1
    assert offsets(result.json) == expected(damaged, mode or "raise")
    until = damaged.following if mode == "skip" else damaged.good
    lost = until - damaged.first
    *told, one, all_of_it = result.err.splitlines()
    assert "checksum differs" in told[0]
    text = f"missing: t-1 offsets {damaged.first}..{until - 1} ({lost} offsets, at most"
    assert text in one
    counts = f"missing in all: {lost} offsets of 1 partition, at most {lost} records"
    assert counts in all_of_it
    assert ("--on-corruption skip" in all_of_it) == (mode != "skip")


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_batches_go_on_with_the_next_partition(
    run: Any, damaged: Damaged, mode: str
) -> None:
    """`records` continues in the same way."""
    options = ("--format", "jsonl", "--on-corruption", mode)
    result = run("batches", damaged.path, *options)
    assert result.status == 1
    found: dict[int, list[int]] = {}
    for line in result.json:
        span = range(line["baseOffset"], line["lastOffset"] + 1)
        found.setdefault(line["partition"], []).extend(span)
    assert found == expected(damaged, mode)
    assert "missing in all: " in result.err


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_tail_goes_on_with_the_next_partition(
    run: Any, damaged: Damaged, mode: str
) -> None:
    """The last readable records are shown."""
    options = ("--format", "jsonl", "--on-corruption", mode, "-n", RECORDS)
    result = run("tail", damaged.path, *options)
    assert result.status == 1
    assert offsets(result.json) == expected(damaged, mode)
    behind = damaged.good - damaged.following
    result = run("tail", damaged.path, "--format", "jsonl", "-n", behind)
    assert result.status == 0  # a tail that begins after the damage is whole
    assert {len(found) for found in offsets(result.json).values()} == {behind}


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_export_goes_on_with_the_next_partition(
    run: Any, damaged: Damaged, tmp_path: Path, kind: str, mode: str
) -> None:
    """Every kind of file is written, with the status 1."""
    target = tmp_path / f"out.{kind}"
    options = ("-o", target, "--on-corruption", mode)
    result = run("export", damaged.path, *options)
    assert result.status == 1
    count = sum(map(len, expected(damaged, mode).values()))
    assert f"wrote {count} records" in result.out
    assert "missing in all: " in result.err
    if kind == "jsonl":
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        assert offsets(lines) == expected(damaged, mode)
    elif kind == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(target, columns=["partition", "offset"])
        assert offsets(table.to_pylist()) == expected(damaged, mode)


def test_export_of_nothing_whole_leaves_no_file(
    run: Any, damaged: Damaged, tmp_path: Path
) -> None:
    """The beginning of a partition would pass for an export of it; `skip` writes it."""
    target = tmp_path / "out.jsonl"
    result = run("export", damaged.path / "t-1", "-o", target)
    assert result.status == 1
    assert "out.jsonl was not written" in result.err
    assert not list(tmp_path.glob("out*"))
    options = ("-o", target, "--on-corruption", "skip")
    assert run("export", damaged.path / "t-1", *options).status == 1
    left = len(expected(damaged, "skip")[1])
    assert len(target.read_text().splitlines()) == left


def test_reading_that_begins_behind_the_damage_is_whole(
    run: Any, damaged: Damaged
) -> None:
    """Status 0, and nothing on standard error."""
    path = damaged.path / "t-1"
    result = run("records", path, "--from", damaged.following, "--format", "jsonl")
    assert (result.status, result.err) == (0, "")
    wanted = list(range(damaged.following, damaged.good))
    assert offsets(result.json)[1] == wanted
    result = run("records", path, "--from", -len(wanted), "--format", "jsonl")
    assert (result.status, offsets(result.json)[1]) == (0, wanted)


def test_what_is_missing_ends_where_reading_was_to_end(
    run: Any, damaged: Damaged
) -> None:
    """Offsets after the upper bound are not missing."""
    result = run("records", damaged.path / "t-1", "--until", damaged.first + 2)
    assert result.status == 1
    assert "missing in all: 2 offsets of 1 partition" in result.err


def test_several_damaged_batches_are_told_one_by_one(
    run: Any, damaged: Damaged
) -> None:
    """Each has its offsets, and a summary covers all of them."""
    log = logs_in(damaged.path / "t-0")[0]
    frame = frames(log)[0]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    log = logs_in(damaged.path / "t-1")[2]
    frame = frames(log)[0]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    result = run("records", damaged.path, "--on-corruption", "skip")
    assert result.status == 1
    assert result.err.count("missing: t-1 offsets ") == 2
    assert result.err.count("missing: t-0 offsets 0..4 ") == 1
    assert "missing in all: 15 offsets of 2 partitions" in result.err
    assert len(result.lines) == PARTITIONS * RECORDS - 15


@pytest.mark.parametrize("name", ["records", "batches"])
def test_a_file_ends_at_its_damage_if_told_so(
    run: Any, damaged: Damaged, name: str
) -> None:
    """By default a file is read over damage."""
    log = logs_in(damaged.path / "t-1")[1]
    base, last = int(log.stem), frames(log)[-1].offset
    options = ("--format", "jsonl")
    key = "offset" if name == "records" else "baseOffset"
    strict = run(name, log, *options, "--on-corruption", "raise")
    assert strict.status == 1
    assert {line[key] for line in strict.json} <= set(range(base, damaged.first))
    assert "missing: t-1 from offset" in strict.err
    over = run(name, log, *options)
    assert over.status == 1
    assert max(line[key] for line in over.json) >= last
    text = f"missing: t-1 offsets {damaged.first}..{damaged.following - 1}"
    assert text in over.err


def test_a_torn_end_of_a_file_is_not_missing(run: Any, damaged: Damaged) -> None:
    """It is a note, and the status is 0."""
    log = logs_in(damaged.path / "t-0")[-1]
    append_garbage(log, log.read_bytes()[:30])
    result = run("records", log)
    assert (result.status, "missing" in result.err) == (0, False)
    assert "before the end of a batch" in result.err
    assert str((1 << 63) - 1) not in result.err


def test_a_partition_that_cannot_be_read_for_another_reason_makes_status_two(
    run: Any, tmp_path: Path
) -> None:
    """The next ones are read nevertheless."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2, compression_type="gzip")
        topic = store.create_topic("t", partitions=2, config=config)
        topic[0].append_many([bytes(100_000)])
        topic[1].append_many([b"small"])
    options = ("--max-batch-decompressed-bytes", "50KiB", "--format", "jsonl")
    result = run("records", tmp_path, *options)
    assert result.status == 2
    assert "t-0: " in result.err
    assert [line["partition"] for line in result.json] == [1]


def test_store_of_a_closed_writer_is_not_changed_by_reading_over_damage(
    run: Any, tmp_path: Path
) -> None:
    """Files and their times stay the same."""
    partition = write_store(tmp_path / "store", RECORDS, magic=2, **SMALL)
    flip_bit(logs_in(partition)[0], 8 * 30)
    before = {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in partition.parent.rglob("*")
    }
    for name in ("records", "batches", "stat"):
        assert run(name, partition.parent, "--on-corruption", "skip").status == 1
    assert before == {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in partition.parent.rglob("*")
    }


@pytest.mark.parametrize("has_more", [True, False])
@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_intact_batches_behind_the_end_of_a_killed_log_are_told(
    run: Any, tmp_path: Path, mode: str, has_more: bool
) -> None:
    """A log that a broker did not close ends at its first bad batch after its recovery
    point. If intact ones follow, that may be damage: it is reported, and the status is
    1. A torn end alone is left by every kill."""
    path = tmp_path / "made"
    with logstore.open(path) as store:
        config = logstore.TopicConfig(message_format=2)
        partition = store.create_topic("t", config=config)[0]
        for number in range(10):
            partition.append(b"%d" % number)
    killed = tmp_path / "killed"
    (killed / "t-0").mkdir(parents=True, mode=0o700)
    log = killed / "t-0" / f"{0:020}.log"
    log.write_bytes(logs_in(path / "t-0")[0].read_bytes())
    bad = frames(log)[5 if has_more else 9]
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    points = killed / "recovery-point-offset-checkpoint"
    points.write_text("0\n1\nt 0 3\n")
    done = run("records", killed, "--on-corruption", mode)
    assert done.status == int(has_more)
    assert len(done.out.splitlines()) == (5 if has_more else 9)
    assert ("4 intact batches" in done.err) == has_more
