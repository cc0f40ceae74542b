"""Routes each record of a call to a partition, and appends to all of them.

The code of callers (iterables, buffers, partitioners) runs first, while no lock is
held; then everything is checked that can be; then the records are appended to the
partitions, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from logstore import _native as native
from logstore.errors import ConfigError, LogStoreError, partly_done
from logstore.record.encoder import (
    Column,
    as_bytes,
    as_columns,
    check_payload_type,
    pack_rows,
)
from logstore.record.extras import arrow_module, arrow_routing_module
from logstore.record.partitioner import KafkaPartitioner, Partitioner
from logstore.store.partition.partition import Partition, appends_of
from logstore.store.partition.shared_appends import SharedAppends, append_shared

__all__ = [
    "Choose",
    "append_short",
    "append_to",
    "arrow_rows_for",
    "batches_of",
    "chooser",
    "columns_of",
    "length_of",
    "route",
    "route_arrow",
    "rows_for",
]

# Maps the key, and the bytes of key and value, to the number of a partition.
Choose: TypeAlias = Callable[[bytes | None, int], int]
Appended: TypeAlias = tuple[tuple[int, range], ...]


def chooser(topic: str, partitioner: Partitioner, numbers: Sequence[int]) -> Choose:
    """A function that calls a partitioner.

    Args:
        numbers: of the existing partitions.
    """

    def choose(key: bytes | None, size: int) -> int:
        return chosen(topic, partitioner, numbers, key, size)

    return choose


def chosen(
    topic: str,
    partitioner: Partitioner,
    numbers: Sequence[int],
    key: bytes | None,
    size: int,
) -> int:
    """The partition that a partitioner chooses of the existing ones."""
    count = len(numbers)
    choice = partitioner.partition(key, size, count)
    try:
        is_one = 0 <= choice < count
    except TypeError:
        is_one = False
    if not is_one:
        raise ConfigError(
            f"the partitioner of topic {topic} chose {choice!r}, of {count} "
            f"partitions; nothing was written",
            name="partitioner",
            value=choice,
        )
    return numbers[choice]


def length_of(data: Any) -> int:
    """Bytes of a key or value."""
    if type(data) is bytes:
        return len(data)
    return 0 if data is None else memoryview(data).nbytes


class RecordColumns(NamedTuple):
    """The records of a call, column by column."""

    values: Column
    keys: Column | None
    timestamps_ms: Column | None
    headers: Column | None

    def of(self, places: Sequence[int]) -> RecordColumns:
        """Some of them."""
        columns = [
            None if column is None else tuple(column[place] for place in places)
            for column in self
        ]
        return RecordColumns(columns[0] or (), *columns[1:])


def columns_of(values: Any, keys: Any, timestamps: Any, headers: Any) -> RecordColumns:
    """The arguments of `append_many`, iterated over once. Raises: as `as_columns`."""
    columns = RecordColumns(*as_columns(values, keys, timestamps, headers))
    keys = None if columns.keys is None else _plain(columns.keys, "key")
    return columns._replace(values=_plain(columns.values, "value"), keys=keys)


def _plain(column: Column, name: str) -> Column:
    """A copy of a column as bytes: a partitioner may change mutable objects."""
    plain = list(column)
    for place, item in enumerate(plain):
        if type(item) is not bytes and item is not None:
            check_payload_type(item, name, place)
            plain[place] = as_bytes(item)
    return tuple(plain)


def route(
    columns: RecordColumns,
    topic: str,
    partitioner: Partitioner,
    numbers: Sequence[int],
) -> dict[int, list[int]]:
    """The places of the records of each partition, by its number.

    Args:
        numbers: of the existing partitions.
    """
    routed: dict[int, list[int]] = {}
    if columns.keys is None and type(partitioner) is KafkaPartitioner:
        sizes = [len(value) if value else 0 for value in columns.values]
        choices = partitioner.spread(sizes, len(numbers))
        if choices and choices.count(choices[0]) == len(choices):
            return {numbers[choices[0]]: list(range(len(choices)))}
        for place, choice in enumerate(choices):
            routed.setdefault(numbers[choice], []).append(place)
        return routed
    choose = chooser(topic, partitioner, numbers)
    keys = columns.keys or [None] * len(columns.values)
    for place, (value, key) in enumerate(zip(columns.values, keys, strict=True)):
        size = len(value or b"") + len(key or b"")
        routed.setdefault(choose(key, size), []).append(place)
    return routed


def rows_for(
    partition: Partition, columns: RecordColumns, places: Sequence[int]
) -> list[native.EncodedColumns]:
    """The rows of one partition. Raises: as `pack_rows`."""
    if len(places) < len(columns.values):
        columns = columns.of(places)
    return [pack_rows(*columns, magic=appends_of(partition).magic)]


# ---------------------------------------------------------------- Arrow


def batches_of(data: Any) -> list[Any]:
    """All record batches of an argument that `append_arrow` takes."""
    return list(arrow_module().tables_of(data))


def route_arrow(
    batches: Sequence[Any],
    choose: Choose,
    hashed_to: tuple[int, ...] | None,
    number_of: Callable[[Any], int],
) -> dict[int, list[Any]]:
    """The record batches of each partition, by its number.

    Args: as `logstore.record.arrow_routing.split`.
    """
    routed: dict[int, list[Any]] = {}
    split = arrow_routing_module().split
    for batch in batches:
        if batch.num_rows:
            for number, part in split(batch, choose, hashed_to, number_of).items():
                routed.setdefault(number, []).append(part)
    return routed


def arrow_rows_for(
    partition: Partition, batches: Sequence[Any]
) -> list[native.EncodedColumns]:
    """The rows of one partition. Raises: as `Partition.append_arrow`."""
    return appends_of(partition).rows_of_arrow(batches)


# ---------------------------------------------------------------- append


def append_short(
    targets: Mapping[int, Partition],
    columns: RecordColumns,
    chosen_of: Mapping[str, int],
) -> Appended | None:
    """Append to one partition of a shared store records that the core encodes in one
    call. None: nothing was done, they go the usual way.

    Args, Raises: as `append_to`.
    """
    if len(targets) != 1 or columns.headers is not None:
        return None
    ((number, target),) = targets.items()
    appends = appends_of(target)
    if not isinstance(appends, SharedAppends):
        return None
    values, keys, timestamps_ms, _ = columns
    span = appends.short.append_many(values, keys, timestamps_ms, chosen_of)
    return None if span is None else ((number, span),)


def append_to(
    targets: Mapping[int, Partition],
    rows: Mapping[int, list[native.EncodedColumns]],
    *,
    durable: bool,
    chosen_of: Mapping[str, int],
) -> Appended:
    """Append to each partition its records.

    1. check that each can take them; 2. append; 3. sync, if `durable`. A shared store
    hands all of them in at once.

    Args:
        chosen_of: how many partitions topics had, if the partitioner has chosen.

    Raises:
        OutdatedChoiceError: another number than that, in a shared store.
    """
    shared = {
        number: (appends, rows[number])
        for number, target in targets.items()
        if isinstance(appends := appends_of(target), SharedAppends)
    }
    if shared:
        return append_shared(shared, chosen_of)
    writers = {
        number: appends_of(target).writer() for number, target in targets.items()
    }
    for number, writer in writers.items():
        writer.appends.check_append(rows[number], durable)
    done: list[tuple[int, range]] = []
    try:
        for number, writer in writers.items():
            base, end, _ = writer.appends.append_rows(
                rows[number], expected_offset=None, durable=False
            )
            done.append((number, range(base, end)))
        if durable:
            for number, span in done:
                writers[number].syncs.sync(span.stop)
    except LogStoreError as error:
        if not done:
            raise
        raise partly_done(error, tuple(done)) from error
    except BaseException as error:
        # Out of stack or memory, or an interrupt: it also reports what was appended.
        if done:
            vars(error)["appended"] = tuple(done)
        raise
    return tuple(done)
