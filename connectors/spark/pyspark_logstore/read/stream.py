"""The reader of ``spark.readStream.format("logstore")``.

One object lives in a process next to the driver as long as the query and plans its
batches; others, in the workers, only read. The reader is designed for the interface of
Spark 4.2, which requests the size of each trigger; 4.0 and 4.1 only request the latest
offset.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from logstore import ConfigError, TopicPartition
from logstore.types import LogMark
from pyspark_logstore.option_values import INT64_MAX
from pyspark_logstore.read.admission import limit_bytes, limit_rows
from pyspark_logstore.read.columns import check_schema
from pyspark_logstore.read.offsets import (
    Bounds,
    LossPolicy,
    Mark,
    Marks,
    Offsets,
    backlog,
    from_json,
    marks_from_json,
    resolve_start,
    to_json,
)
from pyspark_logstore.read.options import SourceOptions
from pyspark_logstore.read.planning import Sizes
from pyspark_logstore.read.start_file import StartFile
from pyspark_logstore.read.tasks import Task, plan_tasks, read_task, sizes_of
from pyspark_logstore.stores import (
    DELETED,
    Identity,
    OpenStore,
    find_time,
    settled,
    store_at,
)

limits: Any = None  # before Spark 4.2
with contextlib.suppress(ImportError):
    limits = importlib.import_module("pyspark.sql.streaming.datasource")

__all__ = ["StreamReader"]

OffsetText = dict[str, dict[str, Any]]
Ends = dict[TopicPartition, Bounds]


_AvailableNow: Any = object if limits is None else limits.SupportsTriggerAvailableNow


class StreamReader(DataSourceStreamReader, _AvailableNow):
    """Plans and reads the micro-batches of one query."""

    # Whether Spark says where a batch starts when it asks for its end.
    _knows_starts = limits is not None

    def __init__(self, schema: Any, options: SourceOptions) -> None:
        check_schema(schema)
        if not self._knows_starts and options.limits_triggers:
            raise ConfigError(
                f"option {options.limits_triggers[0]} needs Spark 4.2 or later: "
                "earlier releases do not pass the start of a batch to a source",
                name=options.limits_triggers[0],
            )
        self._schema = schema
        self._options = options
        self._path = os.path.abspath(options.path)
        self._loss = LossPolicy(options.fail_on_data_loss)
        self._start_file = StartFile.of(options)
        self._initial: OffsetText | None = None
        self._latest: Ends = {}
        # The directories of the partitions when their bounds were last read.
        self._identities: dict[TopicPartition, Identity] = {}
        # With AvailableNow: the end of the query, once it is known.
        self._stops_at_target = False
        self._target: Ends | None = None
        # Long ago: the first batch is not delayed.
        self._last_batch_at = float("-inf")

    # ------------------------------------------------------------ next to the driver

    def initialOffset(self) -> OffsetText:
        """The start of a new query; called again until its first batch is complete."""
        if self._initial is None:
            self._initial = self._start_file.read()
        if self._initial is None:
            self._initial = settled(self._resolve_start)
            self._start_file.write(self._initial)
        return self._initial

    def _resolve_start(self) -> OffsetText:
        selected = store_at(self._path).check_selected(self._options.selection)
        opened = store_at(self._path, selected)
        bounds = self._bounds(opened, selected)
        for name in selected:
            if name not in bounds:
                opened.partition(name)  # raises: it has just been deleted
        start = resolve_start(
            self._options.start,
            bounds,
            find_time(opened),
            self._options.start_strategy,
            self._loss,
        )
        return to_json(start, _marks_of(bounds))

    def _bounds(self, opened: OpenStore, selected: Sequence[TopicPartition]) -> Ends:
        options = self._options
        return opened.bounds(selected, options)

    def getDefaultReadLimit(self) -> Any:
        """The limit that the options set. Spark supports only one; if it passes this
        one back, the reader applies all of them."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return limits.ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return limits.ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return limits.ReadMinRows(options.min_offsets_per_trigger)
        return limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at the offsets that exist at its first request. Not at earlier
        ones: a batch planned by an earlier run may come first, and may end later."""
        self._stops_at_target = True
        self._target = None

    def latestOffset(self, start: Any = None, limit: Any = None) -> OffsetText:
        """The end of the next batch; `start` itself if there is nothing new.

        Raises:
            DataLossError: partitions, or the end of one, are gone.
        """
        if start is None:  # before Spark 4.2
            self._latest = self._selected_bounds()
            return to_json(_ends_of(self._latest), _marks_of(self._latest))
        read_up_to = from_json(start)
        self._latest = (
            self._selected_bounds() if self._target is None else self._target_bounds()
        )
        if self._stops_at_target and self._target is None:
            self._target = self._latest
        self._check_deleted(read_up_to, self._latest)
        begin = self._begin(read_up_to, marks_from_json(start), self._latest)
        for name in sorted(begin.keys() & self._latest.keys()):
            latest_end = self._latest[name].end
            if begin[name] == read_up_to[name] > latest_end:
                self._loss.report(
                    f"{name}: it ends at {latest_end} and was read up to "
                    f"{begin[name]} already: its tail was cut, or its topic was "
                    "created again"
                )
        end = self._admit(begin, _ends_of(self._latest), limit)
        if end == read_up_to and begin == read_up_to:
            same: OffsetText = start
            return same  # the identical text: Spark compares it
        return to_json(end, _marks_of(self._latest))

    def _selected_bounds(self) -> Ends:
        """The bounds of the selected partitions now."""
        selected = self._open().select(self._options.selection)
        opened = store_at(self._path, selected)
        bounds = self._bounds(opened, selected)
        for name in bounds:
            seen = opened.identity_seen(name)
            if seen is not None:
                self._identities[name] = seen
        return bounds

    def _target_bounds(self) -> Ends:
        """The target of AvailableNow, as far as it still exists: records cut from it
        are not read, and records that replaced them are left to the next run."""
        ends = {}
        now, target = self._selected_bounds(), self._target or {}
        for name in now.keys() & target.keys():
            bounds, target_bounds = now[name], target[name]
            below = self._unchanged_below(name, target_bounds.mark, bounds.mark)
            end = min(bounds.end, target_bounds.end, max(below, bounds.start))
            ends[name] = bounds._replace(end=end)
        return ends

    def _open(self) -> OpenStore:
        """The store; reports partitions that were deleted and created again."""
        self._report_replaced()
        return store_at(self._path)

    def _report_replaced(self) -> set[TopicPartition]:
        """Report the partitions that have another directory than when last read, each
        of them once; returns them."""
        opened = store_at(self._path, self._identities)
        others = set()
        for name, seen in list(self._identities.items()):
            now = opened.identity_of(name)
            if now is not None and now != seen:
                others.add(name)
                self._identities[name] = now
        if others:
            names = ", ".join(map(str, sorted(others)))
            self._loss.report(f"{names}: deleted and created again while it was read")
        return others

    def _unchanged_below(
        self, name: TopicPartition, mark: Mark | None, now: Mark | None
    ) -> int:
        """The offset below which a log is unchanged since a mark; 0 if it is another
        log, `INT64_MAX` if this is unknown or nothing was cut."""
        if mark is None or now is None or mark == now:
            return INT64_MAX
        if mark.log_id != now.log_id:
            return 0
        try:
            partition = store_at(self._path, [name]).partition(name)
            below = partition.unchanged_below(LogMark(mark.log_id, mark.serial))
        except DELETED:
            return 0
        return INT64_MAX if below is None else below

    def _check_deleted(self, start: Offsets, latest: Ends) -> None:
        deleted = sorted(start.keys() - latest.keys())
        if deleted:
            names = ", ".join(map(str, deleted))
            self._loss.report(f"{names}: deleted since the last batch")

    def _begin(self, start: Offsets, marks: Marks, planned: Ends) -> Offsets:
        """The offsets at which reading continues: the last end, unless a log was cut.

        If a log was cut and has grown again, the records after the cut are new, and
        have not been read.

        Args:
            start, marks: the end offsets of the last batch, and in which logs.
            planned: the end offsets of the next batch, and in which logs.

        Raises:
            DataLossError: read records are gone, and ``failOnDataLoss`` is true.
        """
        begin = dict(start)
        for name in sorted(start.keys() & planned.keys()):
            offset, mark, (first, end, now) = (
                start[name],
                marks.get(name),
                planned[name],
            )
            below = self._unchanged_below(name, mark, now)
            if below >= offset or mark is None or now is None:
                continue
            if mark.log_id == now.log_id:
                begin[name] = max(below, first)
                self._loss.report(
                    f"{name}: it ends at {end} and was read up to {offset} already: "
                    f"its tail was cut at {below}"
                )
                continue
            self._loss.report(
                f"{name}: it was read up to {offset}, and is another log now (id "
                f"{now.log_id}, not {mark.log_id}) with the offsets {first} to {end}: "
                f"its topic was deleted and created again"
            )
            # In the same directory it may be the same log, whose state was lost: its
            # records were read. So reading continues there, as far as possible.
            if mark.inode != now.inode or end < offset:
                begin[name] = first
        return begin

    def _admit(self, start: Offsets, latest: Offsets, limit: Any) -> Offsets:
        """The end of the next batch. Spark's own limit counts only if it requests
        everything, for ``Trigger.Once``; otherwise it is ours, passed back."""
        options = self._options
        if not options.limits_triggers or self._is_everything(limit):
            return latest
        begin = {**self._starts_of_new(start, latest), **start}
        if not self._is_due(backlog(begin, latest)):
            return start
        end = latest
        if options.max_offsets_per_trigger is not None:
            end = limit_rows(begin, end, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            sizes = self._sizes(backlog(begin, end))
            end = {p: end[p] for p in end if p in sizes or p not in backlog(begin, end)}
            end = limit_bytes(begin, end, sizes, options.max_bytes_per_trigger)
        return end

    def _is_everything(self, limit: Any) -> bool:
        return isinstance(limit, limits.ReadAllAvailable)

    def _sizes(
        self, names: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Sizes]:
        """Bytes by offset of the partitions that exist."""
        opened, sizes = self._open(), {}
        for name in names:
            try:
                sizes[name] = sizes_of(opened.partition(name))
            except DELETED as error:
                self._loss.report(f"{name}: deleted before it was read: {error}")
        return sizes

    def _is_due(self, waiting: Mapping[TopicPartition, int]) -> bool:
        """Whether enough records are waiting, or the delay is over; always true with
        AvailableNow, since no more will be read."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._stops_at_target or not waiting:
            return True  # if nothing waits there is no batch, and no delay begins
        now = time.monotonic()
        waited_ms = (now - self._last_batch_at) * 1000
        is_early = waited_ms < self._options.max_trigger_delay_ms
        if is_early and sum(waiting.values()) < least:
            return False
        self._last_batch_at = now
        return True

    def _starts_of_new(self, start: Offsets, latest: Offsets) -> Offsets:
        """The start offsets of the partitions added since the last batch."""
        new = sorted(latest.keys() - start.keys())
        return store_at(self._path, new).starts(new) if new else {}

    def reportLatestOffset(self) -> OffsetText | None:
        """The ends as of the last look, for the progress of the query."""
        return to_json(_ends_of(self._latest)) if self._latest else None

    def partitions(self, start: Any, end: Any) -> list[Task]:
        """The tasks of a batch.

        Raises:
            DataLossError: a batch that was planned before can no longer be read.
        """
        begin, stop = from_json(start), from_json(end)
        marks = marks_from_json(end)
        others = self._report_replaced()
        new = self._starts_of_new(begin, stop)
        for name, offset in new.items():
            if offset > 0:
                self._loss.report(
                    f"{name} is new to the query and starts at {offset}: earlier "
                    "records are gone"
                )
        for name in sorted(begin.keys() - stop.keys()):
            self._loss.report(f"{name}: deleted since the last batch")
        opened = store_at(self._path, stop)
        selected = set(opened.select(self._options.selection))
        starts = opened.starts(selected & stop.keys())
        for name in sorted(stop.keys() - starts.keys()):
            self._loss.report(f"{name}: deleted before it was read")
        planned = {n: Bounds(starts[n], stop[n], marks.get(n)) for n in starts}
        read_up_to = {name: begin[name] for name in begin.keys() & starts.keys()}
        begin = self._begin(read_up_to, marks_from_json(start), planned)
        for name in sorted(begin):
            if begin[name] == read_up_to[name] > stop[name]:
                self._loss.report(
                    f"{name}: a batch ends at {stop[name]} and starts at "
                    f"{begin[name]}. Either its tail was cut; or the query died in its "
                    f"first batch, and startingOffsets=latest now means another offset "
                    f"(readerId and stateDir keep it)"
                )
        begin.update((name, new[name]) for name in new.keys() & starts.keys())
        for name in others - marks.keys():
            begin.pop(name, None)  # these are offsets of the previous partition
        return plan_tasks(opened, begin, stop, marks, self._options, self._loss)

    def commit(self, end: Any) -> None:
        """A batch is complete: from now on its end is in the checkpoint."""
        self._start_file.remove()

    def stop(self) -> None:
        """The query has ended; its process will end, too."""

    # ------------------------------------------------------------ in the workers

    def read(self, partition: Any) -> Iterator[Any]:
        """The record batches of a task."""
        return read_task(partition, self._schema, self._path, self._options)


def _ends_of(ends: Ends) -> Offsets:
    return {name: bounds.end for name, bounds in ends.items()}


def _marks_of(ends: Ends) -> Marks:
    return {
        name: bounds.mark for name, bounds in ends.items() if bounds.mark is not None
    }
