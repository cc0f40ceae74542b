"""The reader of ``spark.readStream.format("logstore")``.

One object lives beside the driver as long as the query and plans its batches; others,
in the workers, only read. Made for the interface of Spark 4.2, which asks how much a
trigger may take; 4.0 and 4.1 ask for the latest offset, and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from logstore import ConfigError
from pyspark_logstore.admission import limit_bytes, limit_rows
from pyspark_logstore.columns import check_schema
from pyspark_logstore.offsets import (
    LossPolicy,
    Offsets,
    backlog,
    from_json,
    resolve_start,
    to_json,
)
from pyspark_logstore.options import SourceOptions, TopicPartition
from pyspark_logstore.start_file import StartFile
from pyspark_logstore.stores import OpenStore, find_time, store_at
from pyspark_logstore.tasks import Task, plan_tasks, read_task, sizes_of

limits: Any = None  # before Spark 4.2
with contextlib.suppress(ImportError):
    limits = importlib.import_module("pyspark.sql.streaming.datasource")

__all__ = ["StreamReader"]

OffsetText = dict[str, dict[str, int]]


_AvailableNow: Any = object if limits is None else limits.SupportsTriggerAvailableNow


class StreamReader(DataSourceStreamReader, _AvailableNow):
    """Plans and reads the micro-batches of one query."""

    def __init__(self, schema: Any, options: SourceOptions) -> None:
        check_schema(schema)
        if limits is None and options.limits_triggers:
            raise ConfigError(
                f"option {options.limits_triggers[0]} needs Spark 4.2 or later: "
                f"before, Spark does not tell a source where a batch starts",
                name=options.limits_triggers[0],
            )
        self._schema = schema
        self._options = options
        self._path = os.path.abspath(options.path)
        self._loss = LossPolicy(options.fail_on_data_loss)
        self._start_file = StartFile.of(options)
        self._initial: Offsets | None = None
        self._latest: Offsets = {}
        # With AvailableNow: where the query ends, once that is known.
        self._stops_at_target = False
        self._target: Offsets | None = None
        # Long ago: the first batch is not held back.
        self._last_batch_at = float("-inf")

    # ------------------------------------------------------------ beside the driver

    def initialOffset(self) -> OffsetText:
        """Where a new query starts; asked again until its first batch is complete."""
        if self._initial is None:
            self._initial = self._start_file.read()
        if self._initial is None:
            self._initial = self._resolve_start()
            self._start_file.write(self._initial)
        return to_json(self._initial)

    def _resolve_start(self) -> Offsets:
        opened = store_at(self._path)
        selected = opened.check_selected(self._options.selection)
        return resolve_start(
            self._options.start,
            opened.bounds(selected, self._options),
            find_time(opened),
            self._options.start_strategy,
            self._loss,
        )

    def getDefaultReadLimit(self) -> Any:
        """The limit that the options ask for. Spark knows one only; all of them are
        kept when it gives this one back."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return limits.ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return limits.ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return limits.ReadMinRows(options.min_offsets_per_trigger)
        return limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at what is there when it first asks. Not before: a batch that
        was planned by an earlier run may come first, and may end further on."""
        self._stops_at_target = True
        self._target = None

    def latestOffset(self, start: Any = None, limit: Any = None) -> OffsetText:
        """Where the next batch ends; `start` itself where there is nothing new.

        Raises:
            DataLossError: partitions, or the end of one, are gone.
        """
        if start is None:  # before Spark 4.2
            self._latest = self._ends()
            return to_json(self._latest)
        begin = from_json(start)
        latest = self._target
        if latest is None:
            latest = self._ends()
            if self._stops_at_target:
                self._target = latest
        self._latest = latest
        self._check_losses(begin, latest)
        end = self._admit(begin, latest, limit)
        return start if end == begin else to_json(end)

    def _ends(self) -> Offsets:
        opened = self._open()
        selected = opened.select(self._options.selection)
        bounds = opened.bounds(selected, self._options)
        return {name: found.end for name, found in bounds.items()}

    def _open(self) -> OpenStore:
        anew = [name for name in self._latest if not store_at(self._path).is_same(name)]
        opened = store_at(self._path, anew)
        there = [name for name in anew if opened.identity_of(name) is not None]
        if there:
            names = ", ".join(map(str, sorted(there)))
            self._loss.report(f"{names}: deleted and created again while it was read")
        return opened

    def _check_losses(self, start: Offsets, latest: Offsets) -> None:
        gone = sorted(start.keys() - latest.keys())
        if gone:
            names = ", ".join(map(str, gone))
            self._loss.report(f"{names}: deleted since the last batch")
        for name in sorted(start.keys() & latest.keys()):
            if latest[name] < start[name]:
                self._loss.report(
                    f"{name}: it ends at {latest[name]} and was read up to "
                    f"{start[name]} already: its tail was cut, or its topic was "
                    f"created anew"
                )

    def _admit(self, start: Offsets, latest: Offsets, limit: Any) -> Offsets:
        """How far the next batch goes. Spark's own limit counts only where it asks for
        everything, for ``Trigger.Once``; else it is ours, given back."""
        options = self._options
        if not options.limits_triggers or isinstance(limit, limits.ReadAllAvailable):
            return latest
        begin = {**self._starts_of_new(start, latest), **start}
        if not self._is_due(backlog(begin, latest)):
            return start
        end = latest
        if options.max_offsets_per_trigger is not None:
            end = limit_rows(begin, end, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            opened = self._open()
            sizes = {p: sizes_of(opened.partition(p)) for p in backlog(begin, end)}
            end = limit_bytes(begin, end, sizes, options.max_bytes_per_trigger)
        return end

    def _is_due(self, waiting: Mapping[TopicPartition, int]) -> bool:
        """Whether enough has come, or the delay is over; always with AvailableNow,
        where nothing more will come."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._stops_at_target or not waiting:
            return True  # with nothing waiting there is no batch, and no delay begins
        now = time.monotonic()
        waited_ms = (now - self._last_batch_at) * 1000
        is_early = waited_ms < self._options.max_trigger_delay_ms
        if is_early and sum(waiting.values()) < least:
            return False
        self._last_batch_at = now
        return True

    def _starts_of_new(self, start: Offsets, latest: Offsets) -> Offsets:
        """The beginnings of the partitions that have come since the last batch."""
        new = sorted(latest.keys() - start.keys())
        if not new:
            return {}
        bounds = store_at(self._path, new).bounds(new, self._options)
        return {name: found.start for name, found in bounds.items()}

    def reportLatestOffset(self) -> OffsetText | None:
        """The ends as of the last look, for the progress of the query."""
        return to_json(self._latest) if self._latest else None

    def partitions(self, start: Any, end: Any) -> list[Task]:
        """The tasks of a batch.

        Raises:
            DataLossError: a batch that was planned before cannot be read any more.
        """
        begin, stop = from_json(start), from_json(end)
        new = self._starts_of_new(begin, stop)
        for name, offset in new.items():
            if offset > 0:
                self._loss.report(
                    f"{name} is new to the query and starts at {offset}: what was "
                    f"before is gone"
                )
        for name in sorted(begin.keys() - stop.keys()):
            self._loss.report(f"{name}: deleted since the last batch")
        for name in sorted(stop.keys() - begin.keys() - new.keys()):
            self._loss.report(f"{name}: deleted before it was read")
        for name in sorted(begin.keys() & stop.keys()):
            if stop[name] < begin[name]:
                self._loss.report(
                    f"{name}: a batch ends at {stop[name]} and starts at "
                    f"{begin[name]}. Either its tail was cut; or the query died in its "
                    f"first batch, and startingOffsets=latest now means another offset "
                    f"(readerId and stateDir keep it)"
                )
        begin = {**new, **begin}
        begin = {name: offset for name, offset in begin.items() if name in stop}
        opened = store_at(self._path, begin)
        there = set(opened.select(self._options.selection))
        for name in sorted(begin.keys() - there):
            self._loss.report(f"{name}: deleted before it was read")
        begin = {name: offset for name, offset in begin.items() if name in there}
        return plan_tasks(opened, begin, stop, self._options)

    def commit(self, end: Any) -> None:
        """A batch is complete: from now on its end is in the checkpoint."""
        self._start_file.remove()

    def stop(self) -> None:
        """The query has ended; its process will, too."""

    # ------------------------------------------------------------ in the workers

    def read(self, partition: Any) -> Iterator[Any]:
        """The record batches of a task."""
        return read_task(partition, self._schema, self._path, self._options)
