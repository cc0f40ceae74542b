"""The reports of the tool at the end, on standard error: index entries that do not fit
the log, offsets that do not follow each other.

Healthy files lead to such reports, too: files of Kafka before 4.1 (an index has one
entry for several batches), and compacted files.
"""

from __future__ import annotations

from collections.abc import Iterator

from logstore.cli.kafka.wanted import REWRITTEN

__all__ = ["Complaints"]

_Pairs = dict[str, list[tuple[int, int]]]


class Complaints:
    """The reports of one run, by absolute path.

    Args:
        release: whose words and order they have.
    """

    def __init__(self, release: str) -> None:
        self._is_rewritten = release >= REWRITTEN
        self._mismatches: _Pairs = {}
        self._times: _Pairs = {}
        self._disorder: _Pairs = {}
        self._missing: _Pairs = {}
        self._gaps: _Pairs = {}

    def mismatch(self, path: str, indexed: int, log_offset: int) -> None:
        """An index entry whose batch ends with another offset."""
        self._mismatches.setdefault(path, []).append((indexed, log_offset))

    def wrong_time(self, path: str, indexed: int, log_timestamp: int) -> None:
        """A time index entry whose batch has another largest timestamp."""
        self._times.setdefault(path, []).append((indexed, log_timestamp))

    def disorder(self, path: str, indexed: int, before: int) -> None:
        """A time index entry that is not later than the one before it."""
        self._disorder.setdefault(path, []).append((indexed, before))

    def missing(self, path: str, indexed: int, log_offset: int) -> None:
        """A time index entry of which no batch ends with its offset; `log_offset` is
        the next last offset, or -1."""
        self._missing.setdefault(path, []).append((indexed, log_offset))

    def gap(self, path: str, before: int, offset: int) -> None:
        """A record that does not follow the one before it."""
        self._gaps.setdefault(path, []).append((before, offset))

    def lines(self) -> Iterator[str]:
        """All of them, in the order of the tool: of indexes the last first."""
        for path, pairs in self._mismatches.items():
            yield f"Mismatches in :{path}"
            for indexed, log_value in reversed(pairs):
                yield f"  Index offset: {indexed}, log offset: {log_value}"
        for path, pairs in self._times.items():
            yield f"Found timestamp mismatch in :{path}"
            for indexed, log_value in pairs:
                yield f"  Index timestamp: {indexed}, log timestamp: {log_value}"
        for path, pairs in self._disorder.items():
            yield f"Found out of order timestamp in :{path}"
            for indexed, before in pairs:
                yield (
                    f"  Index timestamp: {indexed}, Previously indexed timestamp: "
                    f"{before}"
                )
        for path, pairs in self._missing.items():
            where = f":{path}" if self._is_rewritten else "the log."
            yield f"The following indexed offsets are not found in {where}"
            for indexed, log_value in pairs:
                yield f"Indexed offset: {indexed}, found log offset: {log_value}"
        for path, pairs in self._gaps.items():
            yield f"Non-consecutive offsets in {path}"
            for before, offset in pairs[:: 1 if self._is_rewritten else -1]:
                yield f"  {before} is followed by {offset}"
