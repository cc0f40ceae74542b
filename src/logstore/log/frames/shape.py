"""A filter and a choice of columns, applied to one record batch after the other.

This does not use Arrow's `Scanner.from_batches`, which reads ahead in its own threads.
If a query needs no more rows and the interpreter ends while such a thread is in Python
code, the thread blocks the end (pyarrow 26). Here the thread that made a batch also
evaluates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

__all__ = ["Shape"]


class Shape:
    """Applies a filter and a choice of columns to the rows that were read.

    Attributes:
        schema: of the result.
    """

    def __init__(
        self, read: Any, columns: Sequence[str] | Mapping[str, Any], condition: Any
    ) -> None:
        """Args:
        read: schema of the rows that are read.
        columns: names of its columns, or expressions by the name of their results.
        condition: a boolean expression; None: all rows.

        Raises:
            pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError: an expression cannot
                be evaluated.
        """
        self._condition = condition
        self._columns = columns
        if isinstance(columns, Mapping):
            self._expressions = list(columns.values())
            self._names = list(columns)
        else:
            self._names = list(columns)
        empty = pa.RecordBatch.from_pylist([], schema=read)
        if condition is not None:
            self._kept(empty)
        self.schema = self._chosen(empty).schema

    def apply(self, batch: Any) -> Any:
        """The wanted rows of a batch; there may be none."""
        if self._condition is not None:
            batch = self._kept(batch)
        return self._chosen(batch)

    def _kept(self, batch: Any) -> Any:
        mask = _evaluated(batch, [self._condition], ["kept"]).column(0)
        if pc.all(mask, skip_nulls=False).as_py():
            return batch  # without a copy: usual inside a range of offsets
        return batch.filter(mask.combine_chunks())

    def _chosen(self, batch: Any) -> Any:
        if not isinstance(self._columns, Mapping):
            return batch.select(self._names)
        table = _evaluated(batch, self._expressions, self._names).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def _evaluated(batch: Any, expressions: Sequence[Any], names: Sequence[str]) -> Any:
    """A table of the values of expressions for each row of a batch."""
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [
        acero.Declaration("table_source", source),
        acero.Declaration("project", acero.ProjectNodeOptions(expressions, names)),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)
