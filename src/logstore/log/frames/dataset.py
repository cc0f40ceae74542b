"""`LogDataset`: partitions as a `pyarrow.dataset.Dataset` with pushdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from logstore.errors import UnsupportedError
from logstore.log.frames.columns import ALL_COLUMNS, SCHEMA, schema_of
from logstore.log.frames.log import Log
from logstore.log.frames.pieces import Piece, cut_to_size, segments_of
from logstore.log.frames.pushdown import Filter, columns_in
from logstore.log.frames.shape import Shape
from logstore.log.frames.stream import batches_of, usable_threads
from logstore.record.arrow_batches import stream_of

__all__ = ["IS_COMPLETE", "LogDataset", "LogScanner"]

# Decoded bytes of a batch, about.
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS_MAX: Final = 1 << 16


class LogDataset(ds.UnionDataset):  # type: ignore[misc]
    """The records of some partitions; each scan reads them again.

    A scan reads only the requested columns, and only the segments and batches for which
    the filter can be true: by `offset`, `partition`, `topic`, and by a lower bound of
    `timestamp`. pyarrow, DuckDB and Polars (`pl.scan_pyarrow_dataset`) push their own
    filters and columns down to it.

    Made by `Partition.to_dataset` and `Topic.to_dataset`. It can be read while the
    store is open, and cannot be pickled. Functions of pyarrow that do not call
    `scanner` (joins of datasets, datasets of datasets) raise `UnsupportedError`: pass
    them a table instead.
    """

    def __init__(
        self, logs: Callable[[], Sequence[Log]], name: str, threads: int | None
    ) -> None:
        """Args:
        logs: returns the present partitions; each scan calls it.
        name: for messages.
        threads: how many read at the same time; None: as `usable_threads` returns.

        Raises:
            ConfigError: the number of threads is invalid.
        """
        schema = schema_of(ALL_COLUMNS)
        super().__init__(schema, [_unread(name, schema)])
        self._logs = logs
        self._name = name
        self._threads = usable_threads(threads)
        self._condition: Any = None

    def __repr__(self) -> str:
        return f"<logstore dataset of {self._name}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the dataset of {self._name} cannot be pickled: it reads through an open "
            f"store. Give the path to the other process, and open the store there with "
            f"read_only=True"
        )

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        filter: Any = None,
        batch_size: int = _BATCH_RECORDS_MAX,
        use_threads: bool = True,
        **others: Any,
    ) -> LogScanner:
        """A scanner for some columns and a filter; each use of it is one scan.

        Args:
            columns: names, or expressions by name; None: all.
            filter: a `pyarrow.compute.Expression`.
            batch_size: records in a batch, at most.
            use_threads: False: one thread reads.
            others: other arguments of pyarrow's scanners; they are ignored.

        Raises:
            pyarrow.ArrowInvalid: a column does not exist, or an expression cannot be
                evaluated.
        """
        if self._condition is not None:
            filter = self._condition if filter is None else self._condition & filter
        condition = None if filter is None else Filter(filter, self.schema)
        names = self._needed(columns, condition)
        chosen = ALL_COLUMNS if columns is None else columns
        shape = Shape(schema_of(names), chosen, filter)
        threads = self._threads if use_threads else 1

        def batches() -> Iterator[Any]:
            logs = self._logs()
            pieces = _pieces(logs, condition, is_parallel=threads > 1)
            rows = max(1, min(batch_size, _rows_in_batch(logs)))
            return batches_of(pieces, names, rows, threads, shape.apply)

        return LogScanner(self.schema, shape.schema, batches)

    def _needed(self, columns: Any, condition: Filter | None) -> tuple[str, ...]:
        """The columns to be read, in the order of the schema."""
        if columns is None:
            return ALL_COLUMNS
        if isinstance(columns, Mapping):
            requested = set().union(
                *(columns_in(part, self.schema) for part in columns.values())
            )
        else:
            requested = set(columns)
            for name in sorted(requested - SCHEMA.keys()):
                raise pa.ArrowInvalid(
                    f"no column {name!r} in {self!r}; it has {', '.join(SCHEMA)}"
                )
        if condition is not None:
            requested |= condition.columns
        # Rows can only be counted if there is a column.
        return tuple(n for n in ALL_COLUMNS if n in requested) or ("timestampType",)

    def to_batches(self, columns: Any = None, **options: Any) -> Iterator[Any]:
        """The record batches of `scanner`."""
        return self.scanner(columns, **options).to_batches()

    def to_table(self, columns: Any = None, **options: Any) -> Any:
        """All rows of `scanner`, as a `pyarrow.Table`."""
        return self.scanner(columns, **options).to_table()

    def head(self, num_rows: int, columns: Any = None, **options: Any) -> Any:
        """The first rows of `scanner`; it reads no more than necessary."""
        return self.scanner(columns, **options).head(num_rows)

    def take(self, indices: Any, columns: Any = None, **options: Any) -> Any:
        """The rows at these indices in the result of `scanner`."""
        return self.scanner(columns, **options).take(indices)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """The number of rows, or of the rows for which a filter is true."""
        scanner = self.scanner(["timestampType"], filter=filter, **options)
        return scanner.count_rows()

    def filter(self, expression: Any) -> LogDataset:
        """The same dataset with a filter that each scan applies."""
        dataset = LogDataset(self._logs, self._name, self._threads)
        before = self._condition
        dataset._condition = expression if before is None else before & expression
        return dataset

    def sort_by(self, sorting: Any, **options: Any) -> Any:
        """The dataset, sorted. As with any dataset, all of it is read into memory."""
        return ds.InMemoryDataset(self.to_table()).sort_by(sorting, **options)


class LogScanner:
    """A scan of a `LogDataset`, with the methods of a `pyarrow.dataset.Scanner`.

    It is not a subclass: pyarrow's scanners read ahead in threads that block the end of
    the interpreter (`logstore.log.frames.shape`). Functions that require one can take
    `to_reader()` instead.

    Attributes:
        dataset_schema, projected_schema: of the dataset, and of the result.
    """

    def __init__(
        self, dataset_schema: Any, schema: Any, batches: Callable[[], Iterator[Any]]
    ) -> None:
        self.dataset_schema = dataset_schema
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> Any:
        """A `pyarrow.RecordBatchReader` of the log at the time of its first read."""
        return stream_of(self.projected_schema, self.to_batches())

    def to_batches(self) -> Iterator[Any]:
        """The record batches."""
        yield from self._batches()

    def to_table(self) -> Any:
        """All rows, as a `pyarrow.Table`."""
        return pa.Table.from_batches(self._batches(), self.projected_schema)

    def head(self, num_rows: int) -> Any:
        """The first rows, as a `pyarrow.Table`."""
        batches: list[Any] = []
        remaining = num_rows
        for batch in self._batches() if remaining > 0 else ():
            batches.append(batch.slice(0, remaining))
            remaining -= batches[-1].num_rows
            if remaining <= 0:
                break
        return pa.Table.from_batches(batches, self.projected_schema)

    def take(self, indices: Any) -> Any:
        """The rows at these indices, as a `pyarrow.Table`; it reads all rows."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self._batches())

    def __arrow_c_schema__(self) -> object:
        """The columns, as a PyCapsule."""
        return self.projected_schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, in a PyCapsule."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def _pieces(
    logs: Sequence[Log], condition: Filter | None, *, is_parallel: bool
) -> Iterator[Piece]:
    if condition is None:
        pieces = [piece for log in logs for piece in segments_of(log)]
    else:
        pieces = condition.pieces(logs)
    return cut_to_size(pieces, is_parallel=is_parallel)


def _rows_in_batch(logs: Sequence[Log]) -> int:
    """The number of records in about `_BATCH_BYTES`, from the sizes of the files."""
    records = sum(log.view.end_offset - log.view.start_offset for log in logs)
    size = sum(segment.size for log in logs for segment in log.view.segments)
    return max(64, min(_BATCH_RECORDS_MAX, _BATCH_BYTES * records // max(size, 1)))


def _unread(name: str, schema: Any) -> Any:
    """The part of a `LogDataset` that Arrow's C++ code sees: a file that cannot be
    opened. Code that does not call `scanner` gets an error; a dataset without rows
    would give it a wrong result."""
    files = fs.PyFileSystem(_Unreadable(name))
    form = ds.IpcFileFormat()
    fragment = form.make_fragment(name, files)
    return ds.FileSystemDataset([fragment], schema, form, files)


class _Unreadable(fs.FileSystemHandler):  # type: ignore[misc]
    """A file system whose files all raise an error that says what to do instead."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_type_name(self) -> str:
        return "logstore"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> NoReturn:
        raise UnsupportedError(
            f"the dataset of {self._name} is read by its own scanner(): to_table(), "
            f"to_batches(), head(), take(), count_rows(), write_dataset(), DuckDB, "
            f"Polars. As a part of another dataset, or of a join, take a table: "
            f"to_table(columns=[...])"
        )

    open_input_stream = get_file_info = get_file_info_selector = open_input_file
    create_dir = delete_dir = delete_dir_contents = open_input_file
    delete_root_dir_contents = delete_file = move = copy_file = open_input_file
    open_output_stream = open_append_stream = open_input_file


# The last line of the import: until it has run, the module must not be used.
IS_COMPLETE: Final = True
