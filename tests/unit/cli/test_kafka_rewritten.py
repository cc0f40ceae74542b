"""`kafka-dump-log --kafka-release 4.3`: differences from the earlier tool, which was
rewritten there. tests/interop/test_kafka_text.py compares all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from support.cli import TXN
from support.damage import logs_in
from support.golden import SLICE

OLD, NEW = ("3.9", "4.2"), ("4.3", "4.4")


def dump(run: Any, release: str, *arguments: object) -> Any:
    *options, files = arguments
    given = ["--kafka-release", release, *options, "--files", files]
    return run("kafka-dump-log", *given)


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Two segments with gaps; some records have no key."""
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(3):
            partition.append_many([b"value"] * 2, [b"key", None])
        partition.roll()
        partition.append_many([b"value"] * 2)
    first, second = logs_in(tmp_path / "store" / "orders-0")
    data = first.read_bytes()
    size = len(data) // 3
    first.write_bytes(data[:size] + data[2 * size :])
    return [first, second]


def test_gaps_are_in_the_order_of_the_log_and_one_is_before_it(
    run: Any, logs: list[Path]
) -> None:
    first, second = logs
    more = first.read_bytes() * 2
    for release in OLD:
        assert (
            "Non-consecutive" not in dump(run, release, "--deep-iteration", second).err
        )
    for release in NEW:
        err = dump(run, release, "--deep-iteration", second).err
        assert err.splitlines()[1:] == ["  -1 is followed by 6"]
    first.write_bytes(more)
    gaps = ["  1 is followed by 4", "  5 is followed by 0", "  1 is followed by 4"]
    for release in OLD:
        found = dump(run, release, "--deep-iteration", first).err.splitlines()[1:]
        assert found == gaps[::-1]
    for release in NEW:
        found = dump(run, release, "--deep-iteration", first).err.splitlines()[1:]
        assert found == gaps


def test_value_without_a_key_has_the_mark_of_a_record(
    run: Any, logs: list[Path]
) -> None:
    """The mark is printed only if the record has nothing else."""
    options = ("--print-data-log", "--skip-record-metadata", logs[1])
    for release in OLD:
        assert dump(run, release, *options).lines[-1] == " payload: value"
    for release in NEW:
        assert dump(run, release, *options).lines[-1] == "| payload: value"


def test_checksum_of_magic_0_and_1_has_no_brace(run: Any) -> None:
    path = SLICE / "0.8.2.2" / "clean" / "compact-0" / f"{0:020d}.log"
    for release in (*OLD, *NEW):
        lines = dump(run, release, "--deep-iteration", path).lines
        records = [line for line in lines if line.startswith("| offset: ")]
        assert len(records) > 5
        assert {line.endswith("}") for line in records} == {release in OLD}


def test_producer_without_records_has_no_space_at_its_end(
    run: Any, tmp_path: Path
) -> None:
    """A snapshot has a producer of which only a transaction marker is left."""
    ends = {}
    for release in (*OLD, *NEW):
        found = set()
        for snapshot in sorted(TXN.parents[2].glob("*/*/*/*.snapshot")):
            found |= set(dump(run, release, snapshot).lines[1:])
        ends[release] = {line for line in found if "firstSequence" not in line}
    assert ends["3.9"] == ends["4.2"] == {f"{line} " for line in ends["4.4"]}
    assert ends["4.3"] == ends["4.4"] != set()


def test_time_index_with_offsets_that_are_not_there_is_named(
    run: Any, logs: list[Path]
) -> None:
    index = logs[0].with_suffix(".timeindex")
    index.write_bytes((1_800_000_000_000).to_bytes(8, "big") + bytes([0, 0, 0, 77]))
    said = "The following indexed offsets are not found in "
    for release in OLD:
        assert f"{said}the log.\n" in dump(run, release, index).err
    for release in NEW:
        assert f"{said}:{index}\n" in dump(run, release, index).err
