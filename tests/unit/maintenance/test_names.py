"""Names and checkpoints as a broker reads them; tests/interop/test_handover.py checks
real brokers."""

from __future__ import annotations

import pytest

from logstore.io.layout import TopicPartition
from logstore.maintenance.names import (
    broker_checkpoint_fault,
    broker_partition,
    foreign_text,
    is_refused_file,
    is_refused_name,
)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("orders-0", False), ("a--1", False), ("a-b-12", False), ("backup", True),
        ("orders-", True), ("-0", True), ("orders-x", True), (".snapshots", True),
        ("lost+found", True), ("orders-0-delete", True), ("orders-0.abc-delete", False),
        ("orders-x.abc-delete", True), ("orders-0.abc-stray", False),
        ("__cluster_metadata-0", False), ("remote-log-index-cache", False),
        ("zz-2147483647", False), ("zz-2147483648", True), ("zz-9999999999", True),
        ("zz-+5", False),
    ],
)  # fmt: skip
def test_names_that_a_broker_refuses(name: str, is_refused: bool) -> None:
    """They are not named topic-number with a number of 32 bits, as Java reads it."""
    assert is_refused_name(name) == is_refused


@pytest.mark.parametrize("name", ["orders-5", "orders-05", "orders-+5"])
def test_partition_of_a_name_is_the_one_that_a_broker_takes(name: str) -> None:
    """Signs and zeros before the number do not count."""
    assert broker_partition(name) == TopicPartition("orders", 5)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("abc.log", True), ("abc.index", True), ("abc.snapshot", True), (".log", True),
        ("abc.log.swap", True), ("abc.log.deleted", False), ("abc.txt", False),
        (f"{5:020d}.log", False), ("5.timeindex", False), (f"{1 << 63}.log", True),
        ("partition.metadata", False), (".logstore-state", False),
    ],
)  # fmt: skip
def test_files_that_a_broker_refuses(name: str, is_refused: bool) -> None:
    """They are named like a file of a segment, but have no offset before the first
    dot."""
    assert is_refused_file(name) == is_refused


def test_directory_has_one_meaning() -> None:
    """The meaning is the same for logstore and for a broker."""
    assert foreign_text("orders-5") == foreign_text("remote-log-index-cache") == ""
    assert "takes it for orders-5" in foreign_text("orders-+5")
    assert "refuses to start" in foreign_text("orders-x")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", ""), (b"0\n", ""), (b"0\n1\na 0 5\n", ""), (b"0\n1\na 0 -5", ""),
        (b"0\r\n1\r\na 0 5\r\n", ""), (b"0\n0\n", ""),
        (b"1\n1\na 0 5\n", "version"), (b"garbage\n", "version"),
        (b"0\n2\na 0 5\n", "1 entries, not 2"), (b"0\n1\na 0 x\n", "not a topic"),
        (b"0\n1\na 0 5\n\n", "not a topic"), (b"0\n1\na 5\n", "not a topic"),
    ],
)  # fmt: skip
def test_checkpoint_is_read_as_a_broker_reads_it(text: bytes, fault: str) -> None:
    """Numbers below 0 are accepted."""
    found = broker_checkpoint_fault(text)
    assert fault in found
    assert bool(found) == bool(fault)
