"""The lag of a streaming query: from its progress reports, and with a listener.

Spark has no place for metrics of a Python source, but it reports the end of each batch
and the ends of the partitions (from 4.2 on); the lag is their difference.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from pyspark_logstore.option_values import MARKS

__all__ = ["Lag", "LagListener", "lags_of"]

logger = logging.getLogger("logstore.spark")


@dataclasses.dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one source of a query when a batch ended, in offsets.

    Attributes:
        query_id, query_name: of the query; the name is "" if it is unnamed.
        batch_id: the number of the batch.
        source: the number of the source in the query, from 0.
        by_partition: the lag by topic and partition ("orders-0").
    """

    query_id: str
    query_name: str
    batch_id: int
    source: int
    by_partition: Mapping[str, int]

    @property
    def min(self) -> int:
        """The smallest lag of a partition."""
        return min(self.by_partition.values(), default=0)

    @property
    def max(self) -> int:
        """The largest lag of a partition."""
        return max(self.by_partition.values(), default=0)

    @property
    def avg(self) -> float:
        """The average lag of the partitions."""
        count = len(self.by_partition)
        return sum(self.by_partition.values()) / count if count else 0.0

    @property
    def total(self) -> int:
        """The sum of the lags of all partitions."""
        return sum(self.by_partition.values())


def lags_of(progress: Any) -> list[Lag]:
    """The lags of the sources that report offsets by topic and partition.

    Args:
        progress: a `StreamingQueryProgress`, or the same as a dict
            (``query.lastProgress``).

    Returns:
        Empty before Spark 4.2, which does not report the ends of the partitions.
    """
    if not isinstance(progress, dict):
        progress = json.loads(progress.json)
    lags = []
    for number, source in enumerate(progress.get("sources", ())):
        read, latest = _offsets(source, "endOffset"), _offsets(source, "latestOffset")
        if read is None or latest is None:
            continue
        by_partition = {
            name: max(0, latest[name] - read.get(name, 0)) for name in latest
        }
        lags.append(
            Lag(
                str(progress["id"]),
                progress.get("name") or "",
                int(progress["batchId"]),
                number,
                by_partition,
            )
        )
    return lags


def _offsets(source: Mapping[str, Any], field: str) -> dict[str, int] | None:
    """Offsets by "topic-partition"; None: the source reports something else."""
    value = source.get(field)
    try:
        if isinstance(value, str):
            value = json.loads(value)
        if not isinstance(value, dict) or not value:
            return None
        return {
            f"{topic}-{int(number)}": int(offset)
            for topic, numbers in value.items()
            if topic != MARKS
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        return None


class LagListener(StreamingQueryListener):
    """Keeps the newest lag of each query, and passes each lag to a callback.

    ``spark.streams.addListener(LagListener(print))``. Spark calls it in a separate
    thread.
    """

    def __init__(self, on_lag: Callable[[Lag], None] | None = None) -> None:
        """Args: on_lag: called with the `Lag` of each source after each batch."""
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._newest: dict[str, list[Lag]] = {}

    def newest(self, query_id: object) -> list[Lag]:
        """The lags of a running query's sources after its newest batch."""
        with self._lock:
            return list(self._newest.get(str(query_id), ()))

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch has ended."""
        lags = lags_of(event.progress)
        if not lags:
            return
        with self._lock:
            self._newest[lags[0].query_id] = lags
        for lag in lags:
            logger.debug(
                "query %s, batch %d, source %d: %d to %d offsets behind",
                lag.query_name or lag.query_id,
                lag.batch_id,
                lag.source,
                lag.min,
                lag.max,
            )
            if self._on_lag is not None:
                self._on_lag(lag)

    def onQueryIdle(self, event: Any) -> None:
        """No new batch: the newest lags do not change."""

    def onQueryTerminated(self, event: Any) -> None:
        """Remove the lags of a query that has ended."""
        with self._lock:
            self._newest.pop(str(event.id), None)
