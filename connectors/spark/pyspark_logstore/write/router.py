"""The columns that a sink accepts, and the partition of each row.

Rows stay in Arrow batches throughout; rows of one partition keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from logstore import (
    ConfigError,
    KafkaPartitioner,
    Store,
    TopicConfig,
    TopicNotFoundError,
)

__all__ = ["Destination", "Router", "check_sink_schema", "used"]

logger = logging.getLogger("logstore.spark")

_TEXT: Final = (types.StringType, types.BinaryType)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
# The allowed types by column name, in words and as Spark's types.
_ALLOWED: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "value": ("string or binary", _TEXT),
    "key": ("string or binary", _TEXT),
    "headers": (_HEADERS, ()),
    "topic": ("string", (types.StringType,)),
    "partition": ("int", (types.IntegerType,)),
    "timestamp": ("timestamp", (types.TimestampType,)),
}
# Other columns that the source delivers; they do not affect the written rows.
_OF_THE_SOURCE: Final = frozenset({"offset", "timestampType"})
_STORED: Final = ("value", "key", "headers", "timestamp")
# Rows are distributed when there are this many for each partition, or this many bytes:
# each share becomes a separate batch, and small batches cost twice the time.
GATHER_ROWS: Final = 1000
GATHER_BYTES: Final = 16 << 20


def check_sink_schema(schema: Any, topic: str) -> None:
    """Raise unless a sink can accept these columns. Other columns are ignored, as by
    Spark's Kafka sink, with a warning if the source does not deliver them either.

    Args:
        schema: the `StructType` of the rows.
        topic: the option ``topic``; "" if it is not given.

    Raises:
        ConfigError: a column is missing, occurs twice, or has the wrong type; the
            message names the allowed ones.
    """
    allowed = ", ".join(f"{name} ({kind[0]})" for name, kind in _ALLOWED.items())
    names = schema.fieldNames()
    for field in schema.fields:
        if field.name not in _ALLOWED:
            continue
        if names.count(field.name) > 1:
            raise ConfigError(f"there are several columns {field.name}", name="columns")
        words, kinds = _ALLOWED[field.name]
        if field.name == "headers":
            is_right = _is_headers(field.dataType)
        else:
            is_right = isinstance(field.dataType, kinds)
        if not is_right:
            raise ConfigError(
                f"the column {field.name} is {field.dataType.simpleString()}; allowed "
                f"is {words}: cast it",
                name=field.name,
                value=field.dataType.simpleString(),
            )
    if "value" not in names:
        raise ConfigError(
            f"the sink needs a column value; there are {', '.join(names) or 'none'}. "
            f"Allowed are {allowed}",
            name="value",
        )
    if not topic and "topic" not in names:
        raise ConfigError(
            "option topic or a column topic says where rows go; neither is given",
            name="topic",
        )

    ignored = sorted(set(names) - _ALLOWED.keys() - _OF_THE_SOURCE)
    if ignored:
        logger.warning(
            "the sink ignores the columns %s; those it knows are %s",
            ", ".join(ignored),
            ", ".join(_ALLOWED),
        )


def used(names: Iterable[str]) -> list[str]:
    """Names of the columns that affect the written rows."""
    return [name for name in names if name in _ALLOWED]


def _is_headers(kind: Any) -> bool:
    element = getattr(kind, "elementType", None)
    if not isinstance(kind, types.ArrayType) or not isinstance(
        element, types.StructType
    ):
        return False
    key, value = types.StringType, types.BinaryType
    return (
        element.fieldNames() == ["key", "value"]
        and isinstance(element["key"].dataType, key)
        and isinstance(element["value"].dataType, value)
    )


class Destination(NamedTuple):
    """A partition as `Stage.append_arrow` expects it. Its log is not opened: that may
    take long, and a task does not need it."""

    topic: str
    number: int
    config: TopicConfig


class _Target(NamedTuple):
    """A topic that rows go to."""

    topic: str
    numbers: tuple[int, ...]
    config: TopicConfig


class Router:
    """Sends the rows of one task to their partitions.

    The column ``partition`` determines the partition if it is not null, otherwise
    Kafka's murmur2 of the key. If the option sends a row to another topic than its
    column ``topic`` names, the column ``partition`` refers to the named topic, and is
    ignored: so the rows of the source can be written unchanged. Rows with neither stay
    together: all rows routed in one step go to one partition, the rows of the next step
    to the next partition.

    Args:
        topic: of all rows; "" if the column ``topic`` gives it.
        task: number of the task: tasks begin at different partitions.
        store: has the topics.
    """

    def __init__(self, topic: str, task: int, store: Store) -> None:
        self._topic = topic
        self._turn = task
        self._store = store
        self._targets: dict[str, _Target] = {}

    def routed(self, batches: Iterable[Any]) -> Iterator[tuple[Destination, Any]]:
        """The rows of all batches, some batches at a time: see `pieces`."""
        waiting: list[Any] = []
        rows = size = 0
        for batch in batches:
            batch = batch.select(used(batch.schema.names))
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= self._rows_to_gather(batch.schema) or size >= GATHER_BYTES:
                for gathered in _joined(waiting):
                    yield from self.pieces(gathered)
                waiting, rows, size = [], 0, 0
        for gathered in _joined(waiting):
            yield from self.pieces(gathered)

    def _rows_to_gather(self, schema: Any) -> int:
        """How many rows to gather before they are distributed."""
        names = {"key", "partition", "topic"} - ({"topic"} if self._topic else set())
        if names.isdisjoint(schema.names):
            return 0
        if self._topic:
            self._target(self._topic)
        counts = (len(target.numbers) for target in self._targets.values())
        return GATHER_ROWS * max(counts, default=0)

    def pieces(self, batch: Any) -> Iterator[tuple[Destination, Any]]:
        """The rows of a record batch, by partition: (partition, record batch).

        Raises:
            ConfigError: a topic is null or does not exist, or a partition does not
                exist.
        """
        if not batch.num_rows:
            return
        for topic, rows in self._by_topic(batch):
            target = self._target(topic)
            chosen = self._choose(target, rows)
            names = [name for name in _STORED if name in rows.schema.names]
            for index, group in _groups(chosen, rows.select(names)):
                number = target.numbers[index]
                yield Destination(topic, number, target.config), group
        self._turn += 1

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any]]:
        if self._topic:
            yield self._topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise ConfigError(
                f"the column topic is null in {column.null_count} of "
                f"{batch.num_rows} rows; it must be the name of a topic, or the option "
                f"topic be given",
                name="topic",
            )
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        for index, rows in _groups(encoded.indices, batch):
            yield names[index], rows

    def _target(self, name: str) -> _Target:
        target = self._targets.get(name)
        if target is None:
            try:
                topic = self._store.topic(name)
                numbers = topic.numbers
            except TopicNotFoundError as error:
                raise ConfigError(
                    f"the column topic has {name!r}: {error}. The sink makes the topic "
                    f"of the option topic only; create it first",
                    name="topic",
                    value=name,
                ) from error
            target = self._targets[name] = _Target(name, numbers, topic.config)
        return target

    def _choose(self, target: _Target, rows: Any) -> Any:
        """The index of each row's partition among the partitions of the topic."""
        given = rows.column("partition") if "partition" in rows.schema.names else None
        if given is not None and self._topic and "topic" in rows.schema.names:
            is_other = pc.not_equal(rows.column("topic"), self._topic)
            none = pa.scalar(None, pa.int32())
            given = pc.if_else(pc.fill_null(is_other, False), none, given)
        if given is not None and given.null_count == len(given):
            given = None
        if given is not None:
            given = _indices(target, given)
            if not given.null_count:
                return given
        count = len(target.numbers)
        turn = pa.scalar(self._turn % count, pa.int32())
        if count == 1 or "key" not in rows.schema.names:
            chosen = pa.repeat(turn, rows.num_rows)
        else:
            keys = rows.column("key")
            chosen = KafkaPartitioner.partitions_of(keys, count)
            if keys.null_count:
                chosen = pc.if_else(pc.is_valid(keys), chosen, turn)
        return chosen if given is None else pc.coalesce(given, chosen)


def _joined(batches: list[Any]) -> list[Any]:
    """The rows of some batches, combined into one batch."""
    if len(batches) < 2:
        return batches
    joined: list[Any] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _indices(target: _Target, given: Any) -> Any:
    """A column ``partition`` as indices into the partitions of the topic."""
    numbers = pa.array(target.numbers, pa.int32())
    indices = pc.index_in(given, value_set=numbers, skip_nulls=True)
    if indices.null_count > given.null_count:
        wrong = pc.filter(given, pc.and_(pc.is_null(indices), pc.is_valid(given)))
        raise ConfigError(
            f"the column partition has {wrong[0].as_py()}, and the topic "
            f"{target.topic} has {len(numbers)} partitions: allowed are "
            f"{_ranges(target.numbers)}",
            name="partition",
            value=wrong[0].as_py(),
        )
    return indices


def _ranges(numbers: tuple[int, ...]) -> str:
    if numbers == tuple(range(len(numbers))):
        return "0" if len(numbers) == 1 else f"0 to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _groups(indices: Any, batch: Any) -> Iterator[tuple[int, Any]]:
    """The rows of a batch by index, in ascending order of indices; rows of the same
    index keep their order."""
    lowest, highest = pc.min_max(indices).values()
    if lowest == highest:
        yield lowest.as_py(), batch
        return
    counts = {
        pair["values"]: pair["counts"] for pair in pc.value_counts(indices).to_pylist()
    }
    ordered = batch.take(pc.sort_indices(indices))  # a stable sort
    first = 0
    for index in sorted(counts):
        yield index, ordered.slice(first, counts[index])
        first += counts[index]
