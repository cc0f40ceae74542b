"""The columns of a topic in Arrow: topic, partition, and the columns of its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from logstore.errors import ConfigError
from logstore.record.arrow_batches import SCHEMA as RECORD_SCHEMA
from logstore.record.arrow_batches import as_views

__all__ = [
    "ALL_COLUMNS",
    "PARTITION_COLUMNS",
    "SCHEMA",
    "TOPIC_COLUMNS",
    "SourceColumns",
    "check_columns",
    "requested_columns",
    "schema_of",
]

SCHEMA: Final = {
    "topic": pa.field("topic", pa.string(), nullable=False),
    "partition": pa.field("partition", pa.int32(), nullable=False),
    **RECORD_SCHEMA,
}
PARTITION_COLUMNS: Final = ("offset", "timestamp", "key", "value")
TOPIC_COLUMNS: Final = ("topic", "partition", *PARTITION_COLUMNS)
ALL_COLUMNS: Final = (*TOPIC_COLUMNS, "timestampType", "headers")


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """`columns` as a tuple.

    Raises:
        ConfigError: a column does not exist or is named twice, or no column is named.
        TypeError: `columns` is a text instead of a sequence of names.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns is a str, {columns!r}, not a sequence of names")
    names = tuple(columns)
    for name in names:
        if name not in SCHEMA:
            raise ConfigError(
                f"columns has {name!r}, which is not one of {', '.join(SCHEMA)}",
                name="columns",
                value=name,
            )
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"columns={names!r}: it needs at least one name, and each of them once",
            name="columns",
            value=names,
        )
    return names


def schema_of(columns: Sequence[str], view: bool = False) -> Any:
    """The `pyarrow.Schema` of these columns; with `view`, of views."""
    schema = pa.schema([SCHEMA[name] for name in columns])
    return as_views(schema) if view else schema


def requested_columns(requested: Any) -> tuple[tuple[str, ...], Any]:
    """(columns, `pyarrow.Schema`) that a consumer of Arrow's C stream asks for.

    Args:
        requested: a PyCapsule with an ArrowSchema.

    Raises:
        ConfigError: it has a column that a log does not have.
    """
    schema = pa.Schema._import_from_c_capsule(requested)
    return check_columns(schema.names), schema


class SourceColumns:
    """Puts the columns `topic` and `partition` in front of, or between, the others."""

    def __init__(self, schema: Any, topic: str, number: int) -> None:
        self._schema = schema
        self._values = {"topic": topic, "partition": number}
        self._arrays: dict[str, Any] = {}

    def add(self, batch: Any) -> Any:
        """The requested columns, for a batch that has the columns of the records."""
        arrays = [
            self._constant(name, batch.num_rows)
            if name in self._values
            else batch.column(name)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, count: int) -> Any:
        """A column with one value in all rows: a slice of one that was made once."""
        array = self._arrays.get(name)
        if array is None or len(array) < count:
            value = pa.scalar(self._values[name], SCHEMA[name].type)
            array = self._arrays[name] = pa.repeat(value, count)
        return array.slice(0, count)
