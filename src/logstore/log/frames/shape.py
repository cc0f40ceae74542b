"""A filter and a choice of columns, applied to one record batch after the other.

Not by Arrow's `Scanner.from_batches`: that reads ahead in threads of its own, and one
that is in Python code when the interpreter ends, because a query wanted no more, blocks
it (pyarrow 26). Here each batch is evaluated in the thread that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

__all__ = ["Shape"]


class Shape:
    """What becomes of the rows that were read.

    Attributes:
        schema: of the result.
    """

    def __init__(
        self, read: Any, columns: Sequence[str] | Mapping[str, Any], condition: Any
    ) -> None:
        """Args:
        read: schema of what is read.
        columns: names of it, or expressions by the name that each is to have.
        condition: a boolean expression; None: all rows.

        Raises:
            pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError: an expression that
                cannot be evaluated.
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
        """The rows that are wanted of a batch, which may be none."""
        if self._condition is not None:
            batch = self._kept(batch)
        return self._chosen(batch)

    def _kept(self, batch: Any) -> Any:
        mask = _evaluated(batch, [self._condition], ["kept"]).column(0)
        if pc.all(mask, skip_nulls=False).as_py():
            return batch  # without a copy: so it is inside of a range of offsets
        return batch.filter(mask.combine_chunks())

    def _chosen(self, batch: Any) -> Any:
        if not isinstance(self._columns, Mapping):
            return batch.select(self._names)
        table = _evaluated(batch, self._expressions, self._names).combine_chunks()
        found = table.to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], table.schema)


def _evaluated(batch: Any, expressions: Sequence[Any], names: Sequence[str]) -> Any:
    """A table of what expressions give for each row of a batch."""
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    steps = [
        acero.Declaration("table_source", source),
        acero.Declaration("project", acero.ProjectNodeOptions(expressions, names)),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)
