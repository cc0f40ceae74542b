"""The reader of ``spark.read.format("logstore")``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader

from pyspark_logstore.read.columns import check_schema
from pyspark_logstore.read.offsets import (
    LossPolicy,
    Offsets,
    resolve_end,
    resolve_start,
)
from pyspark_logstore.read.options import SourceOptions
from pyspark_logstore.read.tasks import Task, plan_tasks, read_task
from pyspark_logstore.stores import find_time, settled, store_at

__all__ = ["BatchReader", "Narrow"]

Narrow = Callable[[Offsets, Offsets], tuple[Offsets, Offsets]]


class BatchReader(DataSourceReader):
    """Reads a range of offsets of each partition, fixed when it is planned."""

    def __init__(self, schema: Any, options: SourceOptions) -> None:
        check_schema(schema)
        self._schema = schema
        self._options = options
        # Tasks may run in another directory.
        self._path = os.path.abspath(options.path)

    def partitions(self) -> list[Task]:
        """The tasks. From Spark 4.1 on, this runs once per ``load()``.

        Raises:
            ConfigError: a topic or partition that the options name does not exist.
            DataLossError: offsets that the options name are gone.
        """
        return settled(self.plan)

    def plan(self, narrow: Narrow | None = None) -> list[Task]:
        """The tasks, once.

        Args:
            narrow: returns start and end offsets that are a part of those given.
        """
        options = self._options
        selected = store_at(self._path).check_selected(options.selection)
        opened = store_at(self._path, selected)
        bounds = opened.bounds(selected, options)
        for name in selected:
            if name not in bounds:
                opened.partition(name)  # raises
        find = find_time(opened)
        loss = LossPolicy(options.fail_on_data_loss)
        start = resolve_start(options.start, bounds, find, options.start_strategy, loss)
        end = resolve_end(options.end, bounds, find, loss)
        if narrow is not None:
            start, end = narrow(start, end)
        marks = {name: b.mark for name, b in bounds.items() if b.mark is not None}
        return plan_tasks(opened, start, end, marks, options, loss)

    def read(self, partition: Any) -> Iterator[Any]:
        """The record batches of a task."""
        return read_task(partition, self._schema, self._path, self._options)
