"""A reader of the connector as Spark makes it, and what its tasks deliver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import types

import logstore
from pyspark_logstore.read.batch import BatchReader
from pyspark_logstore.read.columns import source_schema
from pyspark_logstore.read.options import parse

MakeTopic = Callable[..., logstore.Topic]
SCHEMA = source_schema(include_headers=True)


def reader_of(path: str, schema: Any = SCHEMA, **options: str) -> BatchReader:
    """A reader as Spark makes it."""
    given = {"path": path, **options}
    if not {"assign", "subscribe", "subscribePattern"} & given.keys():
        given["subscribe"] = "orders"
    return BatchReader(schema, parse(given, streaming=False))


def rows_of(reader: BatchReader, planned: list[Any] | None = None) -> list[Any]:
    """Rows of all tasks, as dicts."""
    found: list[Any] = []
    for task in reader.partitions() if planned is None else planned:
        for batch in reader.read(task):
            found += batch.to_pylist()
    return found


def offsets_of(reader: BatchReader, planned: list[Any] | None = None) -> list[int]:
    return [row["offset"] for row in rows_of(reader, planned)]


def schema_of(*names: str) -> Any:
    return types.StructType([SCHEMA[name] for name in names])
