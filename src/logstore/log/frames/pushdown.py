"""Finds the parts of a log for which a filter can be true, with the help of Arrow.

pyarrow does not show the contents of an expression, but its datasets leave out a
fragment whose guarantee contradicts a filter. So each question becomes a fragment that
is never read: can this filter be true if `partition` is 3, if `offset` is in [0, 500),
if `timestamp` is below T? Arrow answers "no" only if it is sure, for any expression.
The remaining parts are read, and the filter is applied to each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from logstore.log.frames.columns import SCHEMA
from logstore.log.frames.log import Log
from logstore.log.frames.pieces import Piece, later_than, latest_in, segments_of

__all__ = ["Filter", "columns_in"]

_FORMAT: Final = ds.IpcFileFormat()
_FILES: Final = fs.LocalFileSystem()
# Milliseconds: the end of the year 9999. No lower bound beyond it is sought.
_TIME_MAX: Final = 253_402_300_800_000
_TIME: Final = SCHEMA["timestamp"].type


def columns_in(expression: Any, schema: Any) -> frozenset[str]:
    """The columns of a schema that an expression needs.

    Raises:
        pyarrow.ArrowInvalid: it needs a column that does not exist, or cannot be
            evaluated.
    """
    needed = expression.is_valid()  # a filter has to be boolean
    _survivors(needed, schema, [pc.scalar(True)])
    names = set()
    for index, name in enumerate(schema.names):
        try:
            _survivors(needed, schema.remove(index), [pc.scalar(True)])
        except pa.ArrowException:
            names.add(name)
    return frozenset(names)


def _survivors(expression: Any, schema: Any, guarantees: Sequence[Any]) -> list[int]:
    """The indices of the guarantees that do not contradict a filter."""
    fragments = [
        _FORMAT.make_fragment(str(index), _FILES, partition_expression=guarantee)
        for index, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, _FILES)
    return [int(fragment.path) for fragment in dataset.get_fragments(expression)]


class Filter:
    """A filter over the rows of a topic.

    Attributes:
        columns: the columns that it needs.
    """

    def __init__(self, expression: Any, schema: Any) -> None:
        self._expression = expression
        self._schema = schema
        try:
            self.columns = columns_in(expression, schema)
        except pa.ArrowNotImplementedError as error:
            if str(_TIME) not in str(error):
                raise
            raise pa.ArrowNotImplementedError(
                f"{error}. The column timestamp has times in UTC: compare it with an "
                f"aware time, as datetime.datetime(2026, 11, 29, "
                f"tzinfo=datetime.timezone.utc)"
            ) from error

    def pieces(self, logs: Sequence[Log]) -> list[Piece]:
        """The parts of some logs that must be read: a piece for each segment that can
        have rows for which the filter is true."""
        logs = self._logs(logs)
        if not logs:
            return []
        first, stop = self._offsets(logs)
        earliest = self._earliest() if "timestamp" in self.columns else None
        pieces = []
        for log in logs:
            start, end = max(log.start, first), min(log.stop, stop)
            log = log._replace(
                start=start,
                stop=max(start, end),
                go_on=log.go_on if end == log.stop else None,
            )
            for piece in segments_of(log):
                rest = piece if earliest is None else later_than(piece, earliest)
                if rest is not None:
                    pieces.append(rest)
        if len(pieces) < 2 or self.columns <= {"key", "value", "headers"}:
            return pieces
        return [
            pieces[index] for index in self._possible(map(self._rows_of_piece, pieces))
        ]

    def _possible(self, guarantees: Iterable[Any]) -> list[int]:
        """The indices of the guarantees about rows for which the filter can be true."""
        return _survivors(self._expression, self._schema, list(guarantees))

    def _logs(self, logs: Sequence[Log]) -> list[Log]:
        if not self.columns & {"topic", "partition"}:
            return list(logs)
        return [logs[index] for index in self._possible(map(_rows_of_log, logs))]

    def _offsets(self, logs: Sequence[Log]) -> tuple[int, int]:
        """The range of offsets for which the filter can be true, in any of the logs."""
        low = min(log.start for log in logs)
        high = max(log.stop for log in logs)
        if "offset" not in self.columns or low >= high:
            return low, high

        def is_possible(first: int, stop: int) -> bool:
            return bool(self._possible([_offsets_in(first, stop)]))

        if not is_possible(low, high):
            return low, low
        first = _last_false(lambda stop: is_possible(low, stop), low, high)
        stop = -_last_false(lambda start: is_possible(-start, high), -high, -low)
        return first, stop

    def _earliest(self) -> int | None:
        """A time before which the filter is true for no row; None: no such time.

        Upper bounds are not used: no index has the smallest time of a segment.
        """

        def is_possible(time_ms: int) -> bool:
            return bool(self._possible([_earlier_than(time_ms)]))

        if is_possible(0):
            return None
        if not is_possible(_TIME_MAX):
            return _TIME_MAX
        return _last_false(is_possible, 0, _TIME_MAX)

    def _rows_of_piece(self, piece: Piece) -> Any:
        guarantee = _rows_of_log(piece.log) & _offsets_in(piece.start, piece.stop)
        latest = latest_in(piece) if "timestamp" in self.columns else None
        return guarantee if latest is None else guarantee & _earlier_than(latest + 1)


def _last_false(is_true: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in [low, high) for which `is_true` is false. It is false at
    `low` and true at `high`, and changes once between them."""
    if high - low > 1 and is_true(low + 1):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if is_true(middle):
            high = middle
        else:
            low = middle
    return low


def _rows_of_log(log: Log) -> Any:
    topic = pc.field("topic") == pa.scalar(log.topic)
    return topic & (pc.field("partition") == pa.scalar(log.number, pa.int32()))


def _offsets_in(first: int, stop: int) -> Any:
    low, high = pa.scalar(first, pa.int64()), pa.scalar(stop, pa.int64())
    return (pc.field("offset") >= low) & (pc.field("offset") < high)


def _earlier_than(time_ms: int) -> Any:
    """The condition of an earlier timestamp, or a null: rows of magic 0 have nulls."""
    time = pc.field("timestamp")
    return (time < pa.scalar(time_ms, _TIME)) | time.is_null()
