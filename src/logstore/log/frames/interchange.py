"""Arrow's PyCapsule interface, and `read_arrow` of several partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from logstore.config import check_int
from logstore.log.frames.columns import requested_columns, schema_of
from logstore.log.frames.log import Log
from logstore.log.frames.payloads import Payloads
from logstore.log.frames.pieces import cut_to_size, segments_of
from logstore.log.frames.stream import reader_over, usable_threads
from logstore.record.arrow_batches import check_view

__all__ = ["IS_COMPLETE", "exported_schema", "exported_stream", "read_arrow"]

BATCH_RECORDS_MAX: Final = 1 << 24


def read_arrow(
    logs: Sequence[Log],
    columns: Sequence[str],
    batch_records: int = 65536,
    threads: int | None = None,
    limit: int | None = None,
    *,
    view: bool = False,
    text: bool = False,
    json: Mapping[str, str] | None = None,
) -> Any:
    """A `pyarrow.RecordBatchReader` over logs, one after the other.

    Args:
        threads: how many read at the same time; None: as `usable_threads` returns.
        limit, view: as in `reader_over`.
        text, json: as in `Payloads`.

    Raises:
        ConfigError, TypeError: a column, or a number, is invalid.
        UnsupportedError: this pyarrow has no views.
    """
    check_view(view)
    payloads = Payloads(columns, text=text, json=json, view=view)
    check_int("batch_records", batch_records, 1, BATCH_RECORDS_MAX)
    count = usable_threads(threads)
    pieces = [piece for log in logs for piece in segments_of(log)]
    ranges = cut_to_size(pieces, is_parallel=count > 1 and limit is None)
    return reader_over(ranges, payloads, batch_records, count, limit, view)


def exported_schema(columns: Sequence[str]) -> object:
    """A PyCapsule with the ArrowSchema of these columns."""
    return schema_of(columns).__arrow_c_schema__()


def exported_stream(
    read: Callable[[Sequence[str]], Any], columns: Sequence[str], requested: object
) -> object:
    """A PyCapsule with an ArrowArrayStream.

    Args:
        read: makes a `RecordBatchReader` of columns.
        columns: used if the consumer requests nothing else.
        requested: a PyCapsule with the ArrowSchema that the consumer requests, or None.
            Its columns are read, in its order, as its types.

    Raises:
        ConfigError: it has a column that a log does not have.
        pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError: a column cannot be
            converted to such a type. If a value cannot, the stream raises the error
            when it reaches the value.
    """
    if requested is None:
        return read(columns).__arrow_c_stream__()
    names, schema = requested_columns(requested)
    reader = read(names)
    if reader.schema.equals(schema, check_metadata=False):
        return reader.__arrow_c_stream__()
    return reader.cast(schema).__arrow_c_stream__()


# The last line of the import: until it has run, the module must not be used.
IS_COMPLETE: Final = True
