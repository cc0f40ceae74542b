"""Partitions and topics as tables for pyarrow, Polars, pandas and DuckDB."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from logstore.errors import LogStoreError
from logstore.log.frames.log import Log
from logstore.log.read.options import ReadOptions
from logstore.record.arguments import check_choice
from logstore.record.extras import frames_module, pandas_module, polars_module

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow.dataset

    from logstore.log.read.corruption import OnCorruption

__all__ = ["ArrowSource", "dataset_options"]


_HEAD: Final = ("partition", "start offset", "end offset", "segments", "bytes")


class ArrowSource(abc.ABC):
    """Partitions that data frame libraries read directly."""

    _COLUMNS: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def _logs_now(self, options: ReadOptions) -> list[Log]:
        """Its partitions as a scan sees them, as of now."""

    @abc.abstractmethod
    def _table_name(self) -> str:
        """Its name, which messages of a dataset show."""

    @abc.abstractmethod
    def read_arrow(
        self, start: Any = None, stop: Any = None, columns: Sequence[str] = ()
    ) -> pyarrow.RecordBatchReader:
        """The records as an Arrow stream, with these columns."""

    def _partitions_now(self) -> Sequence[Any]:
        """Its partitions, in order."""
        return (self,)

    def _repr_html_(self) -> str | None:
        """A table of its partitions, for notebooks. None if they cannot be read: then a
        notebook shows the text."""
        try:
            partitions = self._partitions_now()
            segments = [partition.segments for partition in partitions]
            ends = [
                (partition.start_offset, partition.end_offset)
                for partition in partitions
            ]
        except LogStoreError:
            return None
        notebook = frames_module("notebook")
        number, size = notebook.Cell.number, notebook.Cell.size
        rows = [
            [
                number(partition.number),
                number(start),
                number(end),
                number(len(some)),
                size(sum(segment.size_bytes for segment in some)),
            ]
            for partition, some, (start, end) in zip(
                partitions, segments, ends, strict=True
            )
        ]
        page: str = notebook.shown(repr(self), _HEAD, rows)
        return page

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be an array of numpy's, or a ``pd.DataFrame(...)``, which would
        have the partitions, or nothing, for its rows.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"{self!r} is not an array of numbers. Its records are in "
            "to_pandas(), to_polars() and to_table()"
        )

    def __arrow_c_schema__(self) -> object:
        """The columns of `__arrow_c_stream__`, as a PyCapsule."""
        return frames_module("interchange").exported_schema(self._COLUMNS)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All records as an Arrow stream, in a PyCapsule: with it ``pa.table(p)``,
        ``pl.DataFrame(p)``, ``pd.DataFrame.from_arrow(p)`` and DuckDB read a partition
        or a topic directly. Each call reads the current log again, in several threads.

        Args:
            requested_schema: a PyCapsule with the columns, and types, that the consumer
                would like; None: offset, timestamp, key, value, and before them, of a
                topic, topic and partition.

        Raises: as `read_arrow`; the consumer raises an error met while reading, as its
        own error with the same text.
        """
        interchange = frames_module("interchange")
        return interchange.exported_stream(
            lambda names: interchange.read_arrow(self._logs_now(ReadOptions()), names),
            self._COLUMNS,
            requested_schema,
        )

    def to_table(
        self,
        start: Any = None,
        stop: Any = None,
        columns: Sequence[str] | None = None,
        *,
        text: bool = False,
        json: Mapping[str, str] | None = None,
        threads: int | None = None,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> pyarrow.Table:
        """The records as a ``pyarrow.Table``, all in memory. `read_arrow` reads one
        batch after the other, `to_dataset` only what a condition selects.

        Args:
            columns: as in `read_arrow`; None: offset, timestamp, key, value, and before
                them, of a topic, topic and partition.
            text: keys and values as ``string``; bytes that are not UTF-8 become
                U+FFFD.
            json: names of members of the JSON objects in the values, and the type of
                each: string, int32, int64, double or bool. After the other columns
                there is one for each, null if the value is not a JSON object, or has no
                such member, or has one of another type.
            threads: how many read at the same time, 1 to 64; None: one for each
                processor, 8 at most.
            start, stop, durable_only, isolation, on_corruption, limit: as in
                `read_arrow`.

        Raises: as `read_arrow`, both at the call and while it reads.
        """
        options: dict[str, Any] = {
            "text": text,
            "json": json,
            "threads": frames_module("stream").usable_threads(threads),
            "durable_only": durable_only,
            "isolation": isolation,
            "on_corruption": on_corruption,
            "limit": limit,
        }
        names = self._COLUMNS if columns is None else columns
        return self.read_arrow(start, stop, names, **options).read_all()

    def to_pandas(
        self, /, start: Any = None, stop: Any = None, **options: Any
    ) -> pandas.DataFrame:
        """The records as a ``pandas.DataFrame``.

        Keys and values are objects of bytes, which take several times the memory: with
        ``text=True`` they are text. Columns of ``json=...`` have pandas' types for
        numbers with nulls (``Int64``, ``boolean``).

        Args:
            start, stop, options: as in `to_table`.

        Raises: as `to_table`.
            UnsupportedError: pandas is not installed.
        """
        package = pandas_module()
        table = self.to_table(start, stop, **options)
        frame: pandas.DataFrame = table.to_pandas()
        # A column of floats, as pandas has for integers with nulls, has no large ones.
        kinds = frames_module("payloads").nullable_kinds(package)
        for name in options.get("json") or ():
            frame[name] = table[name].to_pandas(types_mapper=kinds.get)
        return frame

    def to_polars(
        self, /, start: Any = None, stop: Any = None, **options: Any
    ) -> polars.DataFrame:
        """The records as a ``polars.DataFrame``.

        Args:
            start, stop, options: as in `to_table`.

        Raises: as `to_table`.
            UnsupportedError: polars is not installed.
        """
        package, table = polars_module(), self.to_table(start, stop, **options)
        frame: polars.DataFrame = package.DataFrame(table)
        return frame

    def head(self, /, n: int = 10, **options: Any) -> pyarrow.Table:
        """The first `n` records, as a ``pyarrow.Table``; of a topic, the records of its
        first partition come first.

        Args:
            options: as in `to_table`.

        Raises: as `to_table`.
        """
        return self.to_table(limit=n, **options)

    def to_dataset(
        self,
        *,
        threads: int | None = None,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
    ) -> pyarrow.dataset.Dataset:
        """The records as a ``pyarrow.dataset.Dataset``. Each scan reads the current
        log: only the columns that a query needs, and only the partitions,
        segments, and parts of them, that its conditions on offset, timestamp (from
        below), partition and topic select. DuckDB, Polars
        (``pl.scan_pyarrow_dataset``) and pyarrow push both down.

        Its columns are as in `read_arrow`, and topic (string), partition (int32).

        Args:
            threads: how many read at the same time, 1 to 64; None: one for each
                processor, 8 at most.
            durable_only, isolation: as in `Partition.read`.
            on_corruption: ``"skip"`` leaves out damaged data. Scans run in separate
                threads, so it takes no function.
        """
        options = dataset_options(durable_only, isolation, on_corruption)
        return frames_module("dataset").LogDataset(
            lambda: self._logs_now(options), self._table_name(), threads
        )


def dataset_options(
    durable_only: bool, isolation: str, on_corruption: str
) -> ReadOptions:
    """How the scans of a dataset read. Raises: ConfigError, TypeError."""
    check_choice("on_corruption", on_corruption, ("raise", "skip"))
    return ReadOptions.of(durable_only, isolation, on_corruption)
