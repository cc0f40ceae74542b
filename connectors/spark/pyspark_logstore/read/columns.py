"""The columns of the source, and the conversion of a log's batches for Spark."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from logstore import ConfigError, LogStoreError, TopicPartition

__all__ = ["BatchShaper", "arrow_schema", "check_schema", "sliced", "source_schema"]

# The same in all records of a partition; `Partition.read_arrow` gives the others.
_CONSTANT: Final = ("topic", "partition")
_HEADER: Final = types.StructType(
    [
        types.StructField("key", types.StringType()),
        types.StructField("value", types.BinaryType()),
    ]
)
_TYPES: Final = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(_HEADER),
}
# Spark's times are microseconds.
MILLIS_MAX: Final = ((1 << 63) - 1) // 1000
# Larger batches are cut: Spark holds a whole one in memory, twice.
SLICE_BYTES: Final = 4 << 20


class BatchShaper:
    """Makes batches of exactly the columns that Spark expects, with its types.

    Attributes:
        columns: the columns to request from `Partition.read_arrow`.
    """

    def __init__(self, schema: Any) -> None:
        """Args: schema: the `StructType` that Spark expects.

        Raises:
            ConfigError: it has a column, or a type, that the source does not have.
        """
        check_schema(schema)
        self._schema = arrow_schema(schema)
        names = [field.name for field in schema.fields if field.name not in _CONSTANT]
        # Offsets always: they show the progress of the read.
        self.columns = ("offset", *(name for name in names if name != "offset"))
        self._constants: dict[tuple[str, TopicPartition], Any] = {}

    def shape(self, batch: Any, partition: TopicPartition) -> Any:
        """One record batch as Spark expects it."""
        arrays = []
        for field in self._schema:
            if field.name in _CONSTANT:
                array = self._constant(field, partition, batch.num_rows)
            else:
                array = batch.column(field.name)
            if field.name == "timestamp":
                array = _microseconds(batch, field.type, partition)
            elif field.name == "headers":
                array = _headers(array, field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, field: Any, partition: TopicPartition, count: int) -> Any:
        key = (field.name, partition)
        array = self._constants.get(key)
        if array is None or len(array) < count:
            value = partition.topic if field.name == "topic" else partition.partition
            array = pa.repeat(pa.scalar(value, field.type), count)
            self._constants = {
                k: v for k, v in self._constants.items() if k[1] == partition
            }
            self._constants[key] = array
        return array.slice(0, count)


def source_schema(*, include_headers: bool) -> Any:
    """The columns of Spark's Kafka source. All are nullable, since Spark also compares
    that."""
    names = [name for name in _TYPES if include_headers or name != "headers"]
    return types.StructType([types.StructField(n, _TYPES[n]) for n in names])


def arrow_schema(schema: Any) -> Any:
    """A schema as Spark expects it of a source: times in UTC."""
    # The parameter has another name since 4.2; before, UTC was the default.
    named = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, **({"timezone": "UTC"} if named else {}))


def check_schema(schema: Any) -> None:
    """Raise `ConfigError` unless each column is one of the source's, with its type."""
    allowed = {name: kind.simpleString() for name, kind in _TYPES.items()}
    listed = ", ".join(f"{name} {kind}" for name, kind in allowed.items())
    names = [field.name for field in schema.fields]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"the schema {schema.simpleString()} needs columns, each once, out of: "
            f"{listed}",
            name="schema",
        )
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if allowed.get(field.name) != kind:
            raise ConfigError(
                f"the schema has a column {field.name} {kind}; the columns of the "
                f"source are {listed}. Cast after loading",
                name="schema",
                value=field.name,
            )


def _microseconds(batch: Any, kind: Any, partition: TopicPartition) -> Any:
    array = batch.column("timestamp")
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        times = array.cast(pa.int64())
        is_too_far = pc.or_(pc.greater(times, MILLIS_MAX), pc.less(times, -MILLIS_MAX))
        index = pc.index(is_too_far, True).as_py()
        offset = batch.column("offset")[index].as_py()
        raise LogStoreError(
            f"{partition}: the record at offset {offset} has the timestamp "
            f"{times[index].as_py()} ms, and Spark's timestamps reach from "
            f"-{MILLIS_MAX} to {MILLIS_MAX} ms. Leave the column out with "
            ".schema(...), or start after it"
        ) from error


def _headers(array: Any, kind: Any) -> Any:
    """Null if a record has no headers, as in Spark's Kafka source."""
    array = array.cast(kind)
    empty = pc.equal(pc.list_value_length(array), 0)
    return pc.if_else(empty, pa.scalar(None, kind), array)


def sliced(batch: Any) -> Iterator[Any]:
    """A batch in pieces of about `SLICE_BYTES`, without a copy."""
    if batch.nbytes <= SLICE_BYTES or batch.num_rows == 1:
        yield batch
        return
    rows = max(1, batch.num_rows * SLICE_BYTES // batch.nbytes)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
