"""Offsets: their text, start and end of a query, shares of a limit. No Spark needed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore import ConfigError, TopicPartition
from pyspark_logstore.read.admission import limit_bytes, limit_rows, share
from pyspark_logstore.read.offsets import (
    Bounds,
    DataLossError,
    LossPolicy,
    from_json,
    resolve_end,
    resolve_start,
    to_json,
)
from pyspark_logstore.read.options import Bound
from pyspark_logstore.read.planning import Sizes

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: Bounds(10, 20), A1: Bounds(0, 5), B0: Bounds(7, 7)}
STRICT, LENIENT = LossPolicy(True), LossPolicy(False)

partitions = st.builds(
    TopicPartition, st.text("ab-.", min_size=1, max_size=3), st.integers(0, 30)
)
counts = st.dictionaries(partitions, st.integers(1, 10**15), min_size=1, max_size=8)


def no_time(partition: TopicPartition, timestamp_ms: int) -> int | None:
    raise AssertionError("no time was asked for")


# -------------------------------------------------------------------------------- text


@given(st.dictionaries(partitions, st.integers(0, 2**62)))
def test_text_of_offsets_reads_back(offsets: dict[TopicPartition, int]) -> None:
    """Conversion to JSON and back loses nothing."""
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_text_of_offsets_has_one_order() -> None:
    """Spark compares the text: topics by name, partitions by number, not as text."""
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, A0: 3}
    assert json.dumps(to_json(offsets)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


@pytest.mark.parametrize("value", [[1], {"a": 1}, {"a": {"x": 1}}, {"a": {"0": None}}])
def test_other_text_is_refused(value: object) -> None:
    """Other JSON is not converted to offsets."""
    with pytest.raises(ValueError, match="not offsets"):
        from_json(value)  # type: ignore[arg-type]


# -------------------------------------------------------------------------- resolution


def test_keywords_are_the_bounds() -> None:
    """The keywords are earliest and latest."""
    earliest, latest = Bound("o", "earliest"), Bound("o", "latest")
    assert resolve_start(earliest, BOUNDS, no_time, "error", STRICT) == {
        p: b.start for p, b in BOUNDS.items()
    }
    assert resolve_end(latest, BOUNDS, no_time, STRICT) == {
        p: b.end for p, b in BOUNDS.items()
    }


def test_offsets_may_be_given_with_keywords_among_them() -> None:
    """-2 and -1 stand for earliest and latest."""
    bound = Bound("o", offsets={A0: 12, A1: -1, B0: -2})
    found = resolve_start(bound, BOUNDS, no_time, "error", STRICT)
    assert found == {A0: 12, A1: 5, B0: 7}


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ({A0: 12, A1: 1}, "not named: b-0"),
        ({A0: 1, A1: 1, B0: 1, TopicPartition("c", 3): 1}, "not read: c-3"),
    ],
)
def test_offsets_must_name_all_partitions_and_no_others(
    offsets: dict[TopicPartition, int], named: str
) -> None:
    """The message names the partitions."""
    for bound in (Bound("o", offsets=offsets), Bound("o", timestamps_ms=offsets)):
        with pytest.raises(ConfigError, match=named):
            resolve_start(bound, BOUNDS, no_time, "error", STRICT)
        with pytest.raises(ConfigError, match=named):
            resolve_end(bound, BOUNDS, no_time, STRICT)


@pytest.mark.parametrize(("offset", "nearest"), [(9, 10), (21, 20)])
def test_offset_outside_its_partition_is_a_loss(offset: int, nearest: int) -> None:
    """The error has the bounds; otherwise the nearest offset is used."""
    bound = Bound("startingOffsets", offsets={A0: offset})
    bounds = {A0: BOUNDS[A0]}
    with pytest.raises(DataLossError, match="a-0 has the offsets 10 to 20") as caught:
        resolve_start(bound, bounds, no_time, "error", STRICT)
    assert "failOnDataLoss=false" in str(caught.value)
    assert resolve_start(bound, bounds, no_time, "error", LENIENT) == {A0: nearest}
    with pytest.raises(DataLossError):
        resolve_end(bound, bounds, no_time, STRICT)
    assert resolve_end(bound, bounds, no_time, LENIENT) == {A0: nearest}


def test_time_without_a_record_is_an_error_or_the_end() -> None:
    """The strategy decides about a start; an end is always the end of the log."""

    def find(partition: TopicPartition, timestamp_ms: int) -> int | None:
        return 13 if (partition, timestamp_ms) == (A0, 99) else None

    one = Bound("startingTimestamp", timestamp_ms=99)
    with pytest.raises(ConfigError, match="a-1 has no record at or after 99 ms"):
        resolve_start(one, BOUNDS, find, "error", STRICT)
    found = resolve_start(one, BOUNDS, find, "latest", STRICT)
    assert found == {A0: 13, A1: 5, B0: 7}
    each = Bound("o", timestamps_ms={A0: 98, A1: 99, B0: 99})
    assert resolve_end(each, BOUNDS, find, STRICT) == {A0: 20, A1: 5, B0: 7}


# -------------------------------------------------------------------------- admission


@given(counts, st.integers(1, 10**16))
def test_shares_are_fair_and_never_too_large(
    sizes: dict[TopicPartition, int], limit: int
) -> None:
    """Each gets something, none more than it has; the sum exceeds the limit at most by
    the number of partitions that would have got nothing."""
    shares = share(limit, sizes)
    assert shares.keys() == sizes.keys()
    assert all(1 <= shares[p] <= sizes[p] for p in sizes)
    assert sum(shares.values()) <= limit + len(sizes)
    if limit >= sum(sizes.values()):
        assert shares == sizes


def test_limit_is_divided_by_backlog() -> None:
    """The rule is the Kafka source's: in proportion, rounded down, small ones at least
    1."""
    start = {A0: 0, A1: 100, B0: 5}
    end = {A0: 900, A1: 190, B0: 6}
    assert limit_rows(start, end, 100) == {A0: 90, A1: 109, B0: 6}
    assert limit_rows(start, end, 10_000) == end


def test_partition_without_backlog_stays() -> None:
    """There is nothing new, or the end went back: the end is used unchanged."""
    assert limit_rows({A0: 5, A1: 9}, {A0: 5, A1: 3}, 1) == {A0: 5, A1: 3}


def test_bytes_are_estimated_from_segments() -> None:
    """Half of the bytes of evenly spread records are half of the offsets."""
    sizes = {
        A0: Sizes([(0, 100, 10_000), (100, 200, 10_000)]),
        B0: Sizes([(0, 10, 100)]),
    }
    start, end = {A0: 0, B0: 0}, {A0: 200, B0: 10}
    assert limit_bytes(start, end, sizes, 1 << 20) == end
    found = limit_bytes(start, end, sizes, 10_050)
    assert found == {A0: 100, B0: 5}
    # Every partition progresses, however small the limit is.
    assert limit_bytes(start, end, sizes, 1) == {A0: 1, B0: 1}
