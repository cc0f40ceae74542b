"""What makes a partition and a topic tables for pyarrow, Polars, pandas and DuckDB."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

from logstore.log.frames.log import Log
from logstore.log.read.options import ReadOptions
from logstore.record.arguments import check_choice
from logstore.record.extras import frames_module

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = ["ArrowSource"]


class ArrowSource(abc.ABC):
    """Partitions that data frame libraries read directly."""

    _COLUMNS: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def _logs_now(self, options: ReadOptions) -> list[Log]:
        """Its partitions as a scan sees them, as of now."""

    @abc.abstractmethod
    def _table_name(self) -> str:
        """Its name, which messages of a dataset show."""

    def __arrow_c_schema__(self) -> object:
        """The columns of `__arrow_c_stream__`, as a PyCapsule."""
        return frames_module("interchange").exported_schema(self._COLUMNS)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All records as an Arrow stream, in a PyCapsule: with it ``pa.table(p)``,
        ``pl.DataFrame(p)``, ``pd.DataFrame.from_arrow(p)`` and DuckDB read a partition
        or a topic directly. Each call reads the log again, as it is then, in several
        threads.

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

    def to_dataset(
        self,
        *,
        threads: int | None = None,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
    ) -> pyarrow.dataset.Dataset:
        """The records as a ``pyarrow.dataset.Dataset``. Each scan reads them as they
        are then: only the columns that a query needs, and only the partitions,
        segments, and parts of them, that its conditions on offset, timestamp (from
        below), partition and topic select. DuckDB, Polars
        (``pl.scan_pyarrow_dataset``) and pyarrow push both down.

        Its columns are those of `read_arrow`, and topic (string), partition (int32).

        Args:
            threads: how many read at the same time, 1 to 64; None: one for each
                processor, 8 at most.
            durable_only, isolation: as in `Partition.read`.
            on_corruption: ``"skip"`` leaves out damaged data. Scans are in threads of
                their own, so it takes no function.
        """
        check_choice("on_corruption", on_corruption, ("raise", "skip"))
        options = ReadOptions.of(durable_only, isolation, on_corruption)

        def logs() -> list[Log]:
            return self._logs_now(options)

        return frames_module("dataset").LogDataset(logs, self._table_name(), threads)
