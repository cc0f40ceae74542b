"""Rows as Arrow batches, for Spark 4.0, whose stream sinks only get rows."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types

from pyspark_logstore.read.columns import arrow_schema
from pyspark_logstore.write.router import used

__all__ = ["batches_of"]

BATCH_ROWS: Final = 10_000


def batches_of(rows: Iterable[Any], schema: Any) -> Iterator[Any]:
    """Record batches of up to 10,000 rows each.

    Args:
        rows: Spark's rows; their timestamps are local times without a zone.
        schema: their `StructType`; columns that the sink does not use are left out.
    """
    names = schema.fieldNames()
    places = [at for at, name in enumerate(names) if name in used(names)]
    output_schema = arrow_schema(types.StructType([schema.fields[at] for at in places]))
    waiting = iter(rows)
    while chunk := list(itertools.islice(waiting, BATCH_ROWS)):
        columns = [
            pa.array([_plain(row[at]) for row in chunk], field.type)
            for at, field in zip(places, output_schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=output_schema)


def _plain(value: Any) -> Any:
    """A value as pyarrow accepts it."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc)
    if isinstance(value, list):  # headers
        return [None if one is None else {"key": one[0], "value": one[1]}
                for one in value]  # fmt: skip
    return value
