"""`verify` in several threads returns the same, and raises the errors of its progress
callback."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from support import verifying
from support.damage import append_garbage, flip_bit, logs_in, zero
from support.values import fill
from support.verifying import RECORDS, SMALL

# Fixtures.
partition = verifying.partition


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_verify_in_threads_reports_the_same(
    tmp_path: Path, threads: int, deep: bool
) -> None:
    """Problems and notes in the same order, the same counts, on a store with damage in
    each of its partitions."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        for number in range(5):
            topic = store.create_topic(
                f"t{number}",
                config=logstore.TopicConfig(**SMALL, message_format=number % 3),
            )
            fill(topic[0], RECORDS)
    for number in range(5):
        logs = logs_in(path / f"t{number}-0")
        zero(logs[1], 100, 300)
        append_garbage(logs[-1])
        flip_bit(logs[0], 8 * 70)
        logs[2].with_suffix(".index").write_bytes(b"\x01" * 20)
    one = logstore.verify(path, deep, threads=1)
    assert len(one.problems) > 15
    for _ in range(3):
        assert logstore.verify(path, deep, threads=threads) == one


def test_verify_in_threads_tells_a_progress_that_rises(partition: Path) -> None:
    """The calls are sequential, up to the end."""
    told: list[int] = []
    report = logstore.verify(
        partition, on_progress=lambda done, total: told.append(done), threads=4
    )
    assert told == sorted(told)
    assert told[-1] == report.bytes


@pytest.mark.parametrize("threads", [1, 4])
def test_verify_ends_with_what_its_progress_raises(
    partition: Path, threads: int
) -> None:
    """All threads end, and no more calls are made."""
    calls: list[int] = []

    def fail(done: int, total: int) -> None:
        calls.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        logstore.verify(partition.parent, on_progress=fail, threads=threads)
    assert len(calls) <= threads


@pytest.mark.parametrize("threads", [0, 65, 1.5, True, "2"])
def test_verify_refuses_a_bad_number_of_threads(
    partition: Path, threads: object
) -> None:
    """Nothing is opened."""
    with pytest.raises(logstore.ConfigError, match="threads"):
        logstore.verify(partition, threads=threads)  # type: ignore[arg-type]
