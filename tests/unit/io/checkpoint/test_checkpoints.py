"""Offset checkpoints: in one piece as Kafka writes them, else entry by entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from support.disk import MemoryDisk

NAME = layout.RECOVERY_CHECKPOINT
MOST = (1 << 63) - 1


def read(data: bytes) -> dict[TopicPartition, int]:
    disk = MemoryDisk()
    disk.make_root("/store")
    root = Directory.open_root(disk, "/store")
    try:
        root.write_file(NAME, data)
        return checkpoints.read_offsets(root, NAME)
    finally:
        root.close()


@pytest.mark.parametrize(
    ("data", "offsets"),
    {
        "empty": (b"", {}),
        "version alone": (b"0\n", {}),
        "no entry": (b"0\n0\n", {}),
        "as Kafka writes it": (b"0\n2\na 0 5\na-b 12 0\n", {"a-0": 5, "a-b-12": 0}),
        "no end of line": (b"0\n1\na 0 5", {"a-0": 5}),
        "spaces and empty lines": (b"0 \n 1\n\n  a 0\t5 \n\n", {"a-0": 5}),
        "zeros in front": (b"0\n01\na 00 05\n", {"a-0": 5}),
        "largest numbers": (b"0\n1\na 2147483647 %d\n" % MOST, {"a-2147483647": MOST}),
        "an entry twice": (b"0\n2\na 0 5\na 0 7\n", {"a-0": 7}),
    }.values(),
)
def test_checkpoint_is_read_however_it_is_spaced(
    data: bytes, offsets: dict[str, int]
) -> None:
    assert {str(key): offset for key, offset in read(data).items()} == offsets


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n",
        b"0\n1\n",
        b"0\n1\na 0 5\nb 0 5\n",
        b"0\n3\na 0 5\nb 0 5\n",
        b"0\n%s\na 0 5\n" % (b"1" * 5000),
        b"0\n1\na 0\n",
        b"0\n1\na 0 5 6\n",
        b"0\n1\na 2147483648 5\n",
        b"0\n1\na 0 %d\n" % (MOST + 1),
        b"0\n1\na 0 -1\n",
        b"0\n1\na x 1\n",
        b"0\n1\na 0 \xff\n",
    ],
)
def test_checkpoint_with_a_fault_is_refused_whole(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        read(data)


@given(st.text("aA0._-", min_size=1, max_size=9), st.integers(0, layout.PARTITION_MAX))
def test_directory_of_each_partition_is_found_by_its_name(
    topic: str, number: int
) -> None:
    name = layout.partition_directory(topic, number)
    parsed = layout.parse_partition_directory(name)
    assert parsed == (None if topic in (".", "..") else (topic, number))
    assert layout.parse_partition_directory(f"{topic}-0{number}") is None
    assert layout.parse_partition_directory(f"{topic}-{number + (1 << 31)}") is None
