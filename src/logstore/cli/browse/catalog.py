"""The topics and partitions of a directory, with the facts that are quickly read.

Sizes and offsets are the same as in `ls`, the counts that need all batches the same as
in `stat`. Damage is found by opening a partition, or by `verify`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import logstore
from logstore.cli.browse.window import BrowserView, plain
from logstore.cli.ls import ListedPartition
from logstore.cli.paths import FILE, PARTITION, kind_of
from logstore.cli.sources import DIRECTORY, chosen_topics, no_partition
from logstore.cli.stat import Tally, first_time
from logstore.cli.text import size_text

_MS_OF: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))

# The id of the topic, start, end, and size: a compacted log is smaller.
_Counted = tuple[str, int, int, int]


@dataclass(slots=True)
class PartitionRow:
    """A partition as a row.

    Attributes:
        listed: as `ls` shows it; None: it cannot be opened.
        first_ms: the first timestamp of its first batch; -1: unknown.
        form: magic and codec of that batch; "": there is no batch.
        trouble: why the partition, or its first batch, cannot be read; or "".
        tally: the counts of `stat` for the present log; None: not counted yet.
        problems: number of problems found by `verify`; None: it has not run.
    """

    topic: str
    number: int
    listed: ListedPartition | None = None
    first_ms: int = -1
    form: str = ""
    trouble: str = ""
    tally: Tally | None = None
    problems: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(slots=True)
class TopicRow:
    """A topic as a row: the sums over its partitions.

    Attributes:
        trouble: why its settings cannot be read; "".
    """

    name: str
    policy: str = "-"
    trouble: str = ""
    partitions: list[PartitionRow] = field(default_factory=list)

    @property
    def listed(self) -> list[ListedPartition]:
        return [
            partition.listed
            for partition in self.partitions
            if partition.listed is not None
        ]

    @property
    def offsets(self) -> int:
        return sum(partition.end - partition.start for partition in self.listed)

    @property
    def records(self) -> int | None:
        """How many records `stat` has counted; None: not all partitions were."""
        tallies = [partition.tally for partition in self.partitions]
        if not tallies or None in tallies:
            return None
        return sum(tally.records for tally in tallies if tally is not None)

    @property
    def size(self) -> int:
        return sum(partition.size for partition in self.listed)

    @property
    def first_ms(self) -> int:
        return min((p.first_ms for p in self.partitions if p.first_ms >= 0), default=-1)

    @property
    def last_ms(self) -> int:
        return max((partition.last_ms for partition in self.listed), default=-1)

    @property
    def form(self) -> str:
        return ", ".join(dict.fromkeys(p.form for p in self.partitions if p.form))


class BrowserCatalog:
    """The topics and partitions of a path that were chosen. Any thread may call it.

    Args:
        path: a store, a broker's log directory, or a partition directory.
        topics, numbers: as ``--topic`` and ``--partition``; empty: all.

    Raises:
        StoreNotFoundError: the path is something else, or does not exist.
        TopicNotFoundError, PartitionNotFoundError: nothing is chosen.
        LogStoreError, OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: str,
        topics: Sequence[str] = (),
        numbers: Sequence[int] = (),
        config: logstore.StoreConfig | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        full = os.path.abspath(path)
        self._patterns, self._numbers = tuple(topics), frozenset(numbers)
        self._only: tuple[str, int] | None = None
        self.root = full
        if kind_of(full, path) == PARTITION:
            parsed = DIRECTORY.fullmatch(os.path.basename(full))
            assert parsed is not None  # by check_path
            self._only = parsed[1], int(parsed[2])
            self.root = os.path.dirname(full)
        self.target = full  # for `verify`: its parent may be anything
        # Of the log that was counted: one that changed has another number.
        self._tallies: dict[str, tuple[_Counted, Tally]] = {}
        self._store = logstore.open(self.root, read_only=True, config=config)
        try:
            names = self.names()
            if self._numbers and not any(self.numbers(name) for name in names):
                raise no_partition(path, self._patterns, self._numbers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._store.close()

    @property
    def is_store(self) -> bool:
        """Whether the path is the whole directory, which may have groups."""
        return self._only is None

    # ------------------------------------------------------------------ what there is

    def names(self) -> list[str]:
        """The topics that are chosen, as there are now."""
        kind_of(self.target, self.path)  # a directory that is gone has no topics
        if self._only is not None:
            return [self._only[0]]
        return chosen_topics(self.path, self._patterns, self._store.topics())

    def numbers(self, topic: str) -> tuple[int, ...]:
        """The partitions of a topic that are chosen."""
        if self._only is not None:
            return (self._only[1],)
        numbers = self._store.topic(topic).numbers
        return tuple(n for n in numbers if not self._numbers or n in self._numbers)

    def topic_row(self, name: str) -> TopicRow:
        """Read the row of a topic. It has the reason why the settings, or a partition,
        cannot be read.

        Raises:
            TopicNotFoundError: the topic no longer exists.
        """
        topic = self._store.topic(name)
        row = TopicRow(name)
        try:
            row.policy = policy_text(topic.stored_config)
        except logstore.TopicNotFoundError:
            raise
        except logstore.LogStoreError as error:
            row.trouble = plain(str(error))
        row.partitions = [self._partition_row(topic, n) for n in self.numbers(name)]
        return row

    def _partition_row(self, topic: logstore.Topic, number: int) -> PartitionRow:
        row = PartitionRow(topic.name, number)
        try:
            partition = topic[number]
            row.listed = ListedPartition(partition)
            counted, tally = self._tallies.get(row.name, (None, None))
            if counted == _counted_of(partition, row.listed):
                row.tally = tally
            for batch in partition.read_batches(limit=1):
                row.first_ms = first_time(batch)
                row.form = f"v{batch.magic} {batch.compression}"
        except logstore.LogStoreError as error:
            row.trouble = plain(str(error))
        return row

    def view(self, topic: str, number: int | None = None) -> BrowserView:
        """The records of a partition; None: of all that are chosen, by their times.

        Raises: as `Store.topic`, `Topic.__getitem__`.
        """
        opened_topic = self._store.topic(topic)
        numbers = self.numbers(topic) if number is None else (number,)
        return BrowserView(
            [opened_topic[partition_number] for partition_number in numbers],
            opened_topic,
        )

    # ------------------------------------------------------------------ counting

    def count(
        self,
        names: Iterable[tuple[str, int]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Count the records of partitions as `stat` does, over damage; what cannot be
        read, or is deleted meanwhile, is left out."""
        partitions = []
        for topic, number in names:
            try:
                partition = self._store.topic(topic)[number]
                partitions.append((partition, Tally.of(partition)))
            except logstore.LogStoreError:
                continue  # its row says why
        total = sum(tally.size for _, tally in partitions)
        done = 0
        for partition, tally in partitions:
            try:
                # Appended records would be counted too, but `end` stays.
                for batch in partition.read_batches(
                    stop=tally.end, on_corruption="skip"
                ):
                    tally.add(batch)
                    on_progress(done + min(tally.batch_bytes, tally.size), total)
                self._tallies[partition.name] = _counted_of(partition, tally), tally
            except (logstore.LogStoreError, OSError):
                pass  # it is gone, or its row says why; the others are counted
            done += tally.size
        on_progress(total, total)


def _counted_of(
    partition: logstore.Partition, extent: ListedPartition | Tally
) -> _Counted:
    return partition.topic_id, extent.start, extent.end, extent.size


def check_path(path: str) -> None:
    """Raise an error that says what to give, unless a path can be browsed.

    Raises:
        StoreNotFoundError, OSError: as `kind_of`.
    """
    full = os.path.abspath(path)
    kind = kind_of(full, path)
    if kind == FILE:
        raise logstore.StoreNotFoundError(
            f"{path} is a file: browse takes a store or a partition directory; "
            f"`logstore-dump records` prints a file",
            path=full,
        )
    if kind == PARTITION and DIRECTORY.fullmatch(os.path.basename(full)) is None:
        raise logstore.StoreNotFoundError(
            f"{path} has the files of a partition, but not the name of one, such as "
            f"orders-0; `logstore-dump records` prints its files",
            path=full,
        )


def policy_text(config: logstore.TopicConfig | None) -> str:
    """The retention settings of a topic in a few words; ``-``: the topic has no such
    settings. The settings of a broker are not in its log directory."""
    if config is None:
        return "-"
    parts = []
    if config.retention_ms >= 0:
        parts.append(duration_text(config.retention_ms))
    if config.retention_bytes >= 0:
        parts.append(size_text(config.retention_bytes))
    policy = config.cleanup_policy
    if policy == "delete" and not parts:
        return "-"
    return " ".join([policy or "keeps all", *parts])


def duration_text(ms: int) -> str:
    """Milliseconds in the largest unit that says them exactly."""
    for unit, size in _MS_OF:
        if ms >= size and ms % size == 0:
            return f"{ms // size:,} {unit}"
    return f"{ms:,} ms"


def partition_of(path: str) -> tuple[str, int] | None:
    """The topic and number of the partition directory that a file is in, if any."""
    for name in (os.path.basename(os.path.dirname(path)), os.path.basename(path)):
        parsed = DIRECTORY.fullmatch(name)
        if parsed is not None:
            return parsed[1], int(parsed[2])
    return None


def problems_by_partition(
    report: logstore.types.VerifyReport,
) -> dict[tuple[str, int], int]:
    """How many problems `verify` has found in each partition."""
    counts: dict[tuple[str, int], int] = {}
    for problem in report.problems:
        name = partition_of(problem.path)
        if name is not None:
            counts[name] = counts.get(name, 0) + 1
    return counts


def rows_of(catalog: BrowserCatalog, check: Callable[[], None]) -> Iterator[TopicRow]:
    """The rows of all topics, one after the other; one that is gone is left out.

    Args:
        check: called before each; an exception of it ends the work.
    """
    for name in catalog.names():
        check()
        try:
            yield catalog.topic_row(name)
        except logstore.TopicNotFoundError:
            continue
