"""The id of a topic without an id in the catalog."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from logstore.io.checkpoint.topic_identity import TopicIdentity, derived_id
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.catalog.topic_ids import TopicIds
from support.groups import T0, consumer, drain, store_with

KAFKA_ID = "0123456789abcdef0123456789abcdef"


def kafka_gives_id(path: Path) -> None:
    raw = base64.urlsafe_b64encode(bytes.fromhex(KAFKA_ID)).rstrip(b"=")
    (path / layout.PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: %s\n" % raw)


def test_copy_of_a_topic_that_only_kafka_knows_has_an_id_of_its_own(
    tmp_path: Path,
) -> None:
    """This holds if the original topic still exists. Alone, the copy keeps Kafka's
    id."""
    (tmp_path / "copy-0").mkdir()
    kafka_gives_id(tmp_path / "copy-0")
    root = Directory.open_root(Files(), str(tmp_path))
    ids = TopicIds(root, {"copy": [0]})
    assert ids.found("copy", lambda *given: False) == KAFKA_ID
    asked = []

    def is_taken(topic_id: str, name: str) -> bool:
        asked.append((topic_id, name))
        return True

    assert ids.found("copy", is_taken) == derived_id(KAFKA_ID, "copy")
    assert asked == [(KAFKA_ID, "")]
    (tmp_path / "copy-0" / layout.PARTITION_METADATA).unlink()
    assert ids.found("copy", is_taken) == ""
    root.close()


@pytest.mark.parametrize(
    ("name", "is_taken", "expected"),
    [
        ("orders", False, "0a" * 16),
        ("orders", True, derived_id("0a" * 16, "orders")),
        ("copy", False, "0a" * 16),  # it was moved
        ("copy", True, derived_id("0a" * 16, "copy")),
    ],
)
def test_topic_has_the_id_of_its_directories_unless_another_one_has_it(
    tmp_path: Path, name: str, is_taken: bool, expected: str
) -> None:
    directory = tmp_path / f"{name}-0"
    directory.mkdir()
    root = Directory.open_root(Files(), str(tmp_path))
    identity = TopicIdentity("0a" * 16, "orders", 0, "", "0b" * 16)
    identity.write(root.child(directory.name))
    ids = TopicIds(root, {name: [0]})
    assert ids.found(name, lambda *given: is_taken) == expected
    root.close()


@pytest.mark.parametrize(
    "how", ["lost with the marks", "of NULs", "of another program"]
)
def test_committed_offsets_count_without_the_owner_file(
    tmp_path: Path, how: str
) -> None:
    """A copy leaves it out with Kafka's marks, a power failure leaves NULs, or a broker
    has had the directory: the topics keep their ids."""
    path = store_with(tmp_path / "s", 1, 50)
    with consumer(path) as one:
        drain(one, 50)
        one.commit()
    owner = path / layout.OWNER
    if how == "of NULs":
        owner.write_bytes(bytes(owner.stat().st_size))
    elif how == "lost with the marks":
        for name in (layout.OWNER, layout.CLEAN_SHUTDOWN, layout.RECOVERY_CHECKPOINT):
            (path / name).unlink()
    else:
        (path / layout.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":5}')
    with logstore.open(path) as store:
        store["t"][0].append(b"new", durable=True)
    with consumer(path) as one:
        assert one.committed(T0) == logstore.OffsetAndMetadata(50)
        assert drain(one, 1) == [b"new"]
