"""`.logstore-topic`: the topic and the log of a partition's directory."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint.topic_identity import (
    TopicIdentity,
    derived_id,
    has_own_files,
    kafka_id_of,
    log_id_of,
)
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.damage import flip_bit

ONE = TopicIdentity("1" * 32, "orders", 3, "", "2" * 32)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory.open_root(Files(), str(tmp_path))


def test_identity_that_was_written_is_read(directory: Directory) -> None:
    """The file contains the written values."""
    assert TopicIdentity.read(directory) is None
    ONE.write(directory)
    assert TopicIdentity.read(directory) == ONE


def test_identity_with_a_damaged_bit_is_refused(
    directory: Directory, tmp_path: Path
) -> None:
    """A damaged file counts for nothing."""
    ONE.write(directory)
    file = tmp_path / layout.TOPIC_IDENTITY
    for position in range(0, file.stat().st_size, 7):
        flip_bit(file, position)
        with pytest.raises(CorruptCheckpointError):
            TopicIdentity.read(directory)
        flip_bit(file, position)


@pytest.mark.parametrize("field", ["topic_id", "log_id", "kafka_id"])
def test_identity_with_a_strange_id_is_not_written(
    directory: Directory, field: str
) -> None:
    """No file is written that could not be read again."""
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        ONE._replace(**{field: "../x"}).write(directory)


def test_identity_under_another_name_is_moved_or_copied() -> None:
    """A moved topic keeps its id; a copy has a different id, always the same."""
    assert ONE.id_as("orders", is_copy=True) == ONE.topic_id
    assert ONE.id_as("sales", is_copy=False) == ONE.topic_id
    copied = ONE.id_as("sales", is_copy=True)
    assert copied == derived_id(ONE.topic_id, "sales") != ONE.topic_id
    assert ONE.is_of(copied, "sales")
    assert not ONE.is_of("3" * 32, "sales")


def test_log_ids_of_partitions_differ() -> None:
    """Each partition of each topic has a separate log."""
    ids = {log_id_of(topic * 32, n) for topic in "12" for n in range(3)}
    assert len(ids) == 6


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"version: 0\ntopic_id: %s\n", "0123456789abcdef0123456789abcdef"),
        (b"version: 0\n", ""),
        (b"topic_id: AAAAAAAAAAAAAAAAAAAAAA\n", ""),
    ],
)
def test_kafka_id_is_that_of_the_metadata(
    directory: Directory, tmp_path: Path, text: bytes, found: str
) -> None:
    """Kafka writes it in URL-safe base 64, and zeros if there is no id."""
    assert kafka_id_of(directory) == ""
    raw = base64.urlsafe_b64encode(bytes.fromhex(found)).rstrip(b"=")
    (tmp_path / layout.PARTITION_METADATA).write_bytes(text.replace(b"%s", raw))
    assert kafka_id_of(directory) == found


def test_own_files_are_those_with_the_prefix(
    directory: Directory, tmp_path: Path
) -> None:
    """Kafka's files say nothing about logstore."""
    (tmp_path / "00000000000000000000.log").touch()
    assert not has_own_files(directory)
    (tmp_path / layout.PARTITION_STATE).touch()
    assert has_own_files(directory)
    assert not has_own_files(directory.child("gone"))


def test_file_that_was_not_finished_is_no_own_file(
    directory: Directory, tmp_path: Path
) -> None:
    """A first append that was interrupted leaves nothing of logstore's."""
    (tmp_path / f"{layout.TOPIC_IDENTITY}.tmp").touch()
    assert not has_own_files(directory)
