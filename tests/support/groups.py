"""Consumer groups for tests: their files, alone and in a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import logstore
from logstore.broker.kafka_records import OffsetCommit
from logstore.group.file.group_file import GroupFile, record_id
from logstore.group.file.slots import Slots
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class OneMember:
    """The two files of a group, as one member has them open.

    Attributes:
        at_once: whether a commit is tried in one call before it is made step by step,
            as a consumer does it.
    """

    at_once = True

    def __init__(self, path: Path | str, group: str = "g", files: Any = None) -> None:
        self.root = Directory.open_root(files or Files(), str(path))
        name = layout.group_file(group)
        self.slots = Slots(self.root, name, group)
        self.file = GroupFile(self.root, name, record_id(group), write=True)

    def commit(
        self,
        offset: int,
        key: TopicPartition = T0,
        *,
        durable: bool = False,
        **more: Any,
    ) -> None:
        """Commit an offset, as a member does."""
        commit = OffsetCommit("g", *key, offset, commit_ms=1, **more)
        if self.at_once and self.file.append_at_once(
            self.slots, [commit], durable=durable
        ):
            return

        def work() -> None:
            self.file.refresh_held(self.slots)
            self.file.append(self.slots, [commit])

        self.slots.locked(work, 10)
        if durable:
            self.file.sync(self.slots, self.file.end)

    def offset(self, key: TopicPartition = T0) -> int | None:
        """Committed offset, read now."""
        self.file.refresh()
        commit = self.file.committed(key)
        return None if commit is None else commit.offset

    def close(self) -> None:
        self.slots.close()
        self.file.close()


def offset_in(
    path: Path | str, key: TopicPartition = T0, files: Any = None
) -> int | None:
    """Committed offset that a new member reads under the mutex."""
    one = OneMember(path, files=files)
    try:
        one.slots.locked(lambda: one.file.refresh_held(one.slots), 10)
        return one.offset(key)
    finally:
        one.close()


def store_with(
    path: Path, partitions: int = 2, records: int = 10, topic: str = "t"
) -> Path:
    """A closed store: each partition has records ``<partition>:<number>``."""
    with logstore.open(path) as store:
        made = store.create_topic(topic, partitions)
        for partition in made:
            values = [b"%d:%d" % (partition.number, n) for n in range(records)]
            partition.append_many(values)
    return path


def consumer(path: Path | logstore.Store, **given: Any) -> Any:
    """A consumer of group "g" that begins at the start."""
    options = {"group": "g", "topics": ["t"], "reset": "earliest", **given}
    return logstore.Consumer(path, **options)


def drain(one: Any, most: int = 10_000) -> list[bytes]:
    """The values that a consumer delivers until there are no more."""
    found: list[bytes] = []
    while len(found) < most:
        records = one.poll(max_records=min(500, most - len(found)))
        if not records:
            break
        found += [record.value for some in records.values() for record in some]
    return found


def settle(*consumers: Any) -> None:
    """Let consumers coordinate their group until none has work left."""
    for _ in range(4):
        for one in consumers:
            one._core.look_now()
            one._core.partitions.coordinate()


def partitions_of(consumers: Sequence[Any]) -> list[list[int]]:
    """The numbers of the partitions of each."""
    return [sorted(key.partition for key in one.assignment()) for one in consumers]


def outputs(path: Path) -> list[bytes]:
    """The values in topic ``out``, sorted."""
    with logstore.open(path, read_only=True) as store:
        return sorted(record.value or b"" for record in store.topic("out").read())


def copy_some(one: Any, most: int = 500) -> int:
    """Copy records in one transaction; their number."""
    with one.transaction() as transaction:
        count = 0
        for records in one.poll(max_records=most).values():
            for record in records:
                transaction.append("out", record.value)
                count += 1
    return count
