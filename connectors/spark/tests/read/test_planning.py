"""Conversion of ranges to tasks. No Spark needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore import TopicPartition
from pyspark_logstore.read.planning import (
    BATCH_RECORDS_MAX,
    BATCH_RECORDS_MIN,
    TASK_BYTES_MAX,
    LogRange,
    Sizes,
    batch_records,
    plan,
)

MIB = 1 << 20
Tasks = Sequence[tuple[LogRange, ...]]


def unaligned(partition: TopicPartition, offset: int) -> int:
    return offset


def to_hundreds(partition: TopicPartition, offset: int) -> int:
    """Batches of 100 records."""
    return offset - offset % 100


def log_range(number: int, start: int, stop: int, size: int) -> LogRange:
    return LogRange(TopicPartition("t", number), start, stop, size)


def counts(tasks: Tasks) -> list[int]:
    return [sum(found.count for found in task) for task in tasks]


@st.composite
def some_ranges(draw: st.DrawFn) -> list[LogRange]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 1000))
        count = draw(st.sampled_from([0, 1, 50, 10_000, 3_000_000]))
        size = draw(st.sampled_from([0, 1000, 50 * MIB, 3000 * MIB]))
        found.append(log_range(number, start, start + count, size))
    return found


@given(
    some_ranges(),
    st.integers(1, 16),
    st.one_of(st.none(), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(20_000, 10**7)),
    st.sampled_from([unaligned, to_hundreds]),
)
def test_every_offset_is_in_just_one_task(
    ranges: list[LogRange],
    core_count: int,
    min_tasks: int | None,
    max_records: int | None,
    align: object,
) -> None:
    """They are in order, whatever the options are; no task is empty or too large."""
    tasks = plan(
        ranges,
        core_count=core_count,
        min_tasks=min_tasks,
        max_records=max_records,
        align=align,  # type: ignore[arg-type]
    )
    ends: dict[TopicPartition, int] = {r.partition: r.start for r in ranges}
    for task in tasks:
        assert task
        for found in task:
            assert found.count > 0
            assert found.start == ends[found.partition]
            ends[found.partition] = found.stop
    assert ends == {r.partition: max(r.start, r.stop) for r in ranges}
    if max_records is not None:
        assert max(counts(tasks), default=0) <= max_records


def test_small_partitions_are_read_by_one_task() -> None:
    """A task costs more than reading them."""
    tasks = plan(
        [log_range(n, 0, 1000, 100_000) for n in range(50)],
        core_count=4,
        align=unaligned,
    )
    assert len(tasks) == 1


def test_large_partition_is_read_by_two_tasks_for_each_core() -> None:
    """The tasks have the same size."""
    tasks = plan(
        [log_range(0, 0, 8_000_000, 2000 * MIB)], core_count=2, align=unaligned
    )
    assert counts(tasks) == [2_000_000] * 4


def test_task_does_not_become_too_large() -> None:
    """A huge log makes more tasks than the cores ask for."""
    size = 100 * TASK_BYTES_MAX
    tasks = plan([log_range(0, 0, 10**9, size)], core_count=1, align=unaligned)
    assert len(tasks) >= 100


def test_uneven_partitions_give_even_tasks() -> None:
    """The large one is cut, the small ones go together."""
    ranges = [log_range(0, 0, 4_000_000, 400 * MIB)]
    ranges += [log_range(n, 0, 100_000, 10 * MIB) for n in range(1, 11)]
    tasks = plan(ranges, core_count=2, align=unaligned)
    assert len(tasks) == 4
    assert max(counts(tasks)) < 1.25 * min(counts(tasks))


def test_cut_is_moved_to_the_beginning_of_a_batch() -> None:
    """No batch is read and decompressed by two tasks."""
    tasks = plan(
        [log_range(0, 30, 10_010, 0)], core_count=1, min_tasks=3, align=to_hundreds
    )
    starts = [found.start for task in tasks for found in task]
    assert len(tasks) == 3
    assert starts[0] == 30
    assert [start % 100 for start in starts[1:]] == [0, 0]


def test_batch_larger_than_a_task_is_not_cut() -> None:
    """Everything is in one batch: one task, and the cutting ends."""
    tasks = plan(
        [log_range(0, 0, 100, 0)], core_count=1, min_tasks=7, align=lambda p, o: 0
    )
    assert sum(counts(tasks)) == 100
    assert len(tasks) == 1


@pytest.mark.parametrize("wanted", [1, 2, 7, 40])
def test_min_partitions_is_kept(wanted: int) -> None:
    """There are as many tasks as requested, of one partition or of many."""
    one = plan(
        [log_range(0, 0, 10_000, 0)], core_count=1, min_tasks=wanted, align=unaligned
    )
    many = plan(
        [log_range(n, 0, 1000, 0) for n in range(10)],
        core_count=1,
        min_tasks=wanted,
        align=unaligned,
    )
    assert len(one) == len(many) == wanted


def test_max_records_is_kept_exactly() -> None:
    """This includes tasks of several small partitions, and cuts within a batch."""
    ranges = [log_range(n, 0, 70, 0) for n in range(10)]
    tasks = plan(ranges, core_count=1, max_records=100, align=to_hundreds)
    assert len(tasks) == 7
    assert set(counts(tasks)) == {100}


def test_cut_goes_by_bytes_where_records_differ() -> None:
    """Large records come first: the first task has fewer of them."""
    sizes = Sizes([(0, 100, 900 * MIB), (100, 1000, 100 * MIB)])

    def cut_at(found: LogRange, part: float) -> int:
        size = sizes.between(found.start, found.stop)
        return sizes.offset_at(sizes.up_to(found.start) + int(size * part))

    tasks = plan(
        [log_range(0, 0, 1000, 1000 * MIB)],
        core_count=1,
        align=unaligned,
        cut_at=cut_at,
    )
    assert len(tasks) == 2
    assert counts(tasks)[0] < 100


# -------------------------------------------------------------------------------- sizes


def test_sizes_are_interpolated_within_segments() -> None:
    """It works both ways, bounded outside."""
    sizes = Sizes([(10, 20, 100), (20, 20, 0), (20, 30, 300)])
    assert [sizes.up_to(o) for o in (0, 10, 15, 20, 25, 30, 99)] == [
        0, 0, 50, 100, 250, 400, 400,
    ]  # fmt: skip
    assert sizes.between(15, 25) == 200
    assert [sizes.offset_at(b) for b in (-5, 0, 50, 100, 250, 400, 999)] == [
        10, 10, 15, 20, 25, 30, 30,
    ]  # fmt: skip
    assert Sizes([]).up_to(5) == Sizes([]).offset_at(5) == 0


def test_batches_have_about_a_mebibyte() -> None:
    """Sizes are bounded: neither tiny nor huge."""
    assert batch_records(10_000, 10_000 * 100) == MIB // 100
    assert batch_records(10_000, 10_000 * 10) == BATCH_RECORDS_MAX
    assert batch_records(10, 10 * MIB) == BATCH_RECORDS_MIN
    assert batch_records(10, 0) == BATCH_RECORDS_MAX
