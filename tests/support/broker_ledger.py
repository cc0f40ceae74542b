"""Records that producers have sent to a running broker, to check reads of its logs.

Each record has its number in its first header, or before a colon in its value if there
are no headers. A read is right if each of its records was sent, if no record changes
its place, and if no record is missing between its first and its last one except those
removed by compaction or of aborted transactions.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

from logstore import Record

__all__ = ["Ledger", "number_of"]

OPEN, COMMITTED, ABORTED, UNKNOWN = "open", "committed", "aborted", "unknown"


def number_of(record: Record) -> int:
    """The number that the sender gave to a record."""
    if not record.headers:
        assert record.value is not None
        return int(record.value.partition(b":")[0])
    name, value = record.headers[0]
    assert name == "number"
    assert value is not None
    return int(value)


class _Topic:
    """Known state of a topic's partition.

    Attributes:
        place: the offset of a record, by its number; acknowledged, or seen.
        number: the same the other way round.
        acknowledged: the offsets that the broker has returned.
        last_of: the last offset of each key, of records that are not known to be
            aborted.
    """

    def __init__(self) -> None:
        self.place: dict[int, int] = {}
        self.number: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.last_of: dict[bytes | None, int] = {}


class Ledger:
    """Ledger for one thread that sends, and others that check."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = defaultdict(_Topic)
        self._sent: dict[int, Record] = {}
        self._transaction_of: dict[int, int] = {}
        self._transactions: list[str] = []
        self.compared = 0

    # ------------------------------------------------------------ senders

    def begin_transaction(self) -> int:
        """Begin a transaction; its number."""
        with self._lock:
            self._transactions.append(OPEN)
            return len(self._transactions) - 1

    def end_transaction(self, transaction: int, state: str) -> None:
        """Note that it was committed or aborted, or that its end is unknown."""
        with self._lock:
            self._transactions[transaction] = state

    def add(self, record: Record, transaction: int | None) -> None:
        """Note that a record is about to be sent."""
        with self._lock:
            number = number_of(record)
            self._sent[number] = record
            if transaction is not None:
                self._transaction_of[number] = transaction

    def acknowledge(self, topic: str, number: int, offset: int) -> None:
        """Note the offset that the broker has returned for a record."""
        with self._lock:
            self._note(self._topics[topic], number, offset)
            self._topics[topic].acknowledged.add(offset)

    def _note(self, known: _Topic, number: int, offset: int) -> None:
        assert known.place.setdefault(number, offset) == offset
        assert known.number.setdefault(offset, number) == number
        if self._state(number) != ABORTED:
            key = self._sent[number].key
            known.last_of[key] = max(known.last_of.get(key, -1), offset)

    def _state(self, number: int) -> str:
        transaction = self._transaction_of.get(number)
        return COMMITTED if transaction is None else self._transactions[transaction]

    # ------------------------------------------------------------ readers

    def acknowledged_until(self, topic: str) -> int:
        """The end of the acknowledged records."""
        with self._lock:
            return max(self._topics[topic].acknowledged, default=-1) + 1

    def check(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        compacted: bool = False,
        isolation: str = "read_uncommitted",
        until: int = 0,
    ) -> None:
        """Check a read.

        Args:
            records: all that were read, from the first one on.
            until: the log had this end, or a later one, before the read; with
                ``"read_committed"`` the read may end before.

        Raises:
            AssertionError: it is wrong; the message says where.
        """
        with self._lock:
            known = self._topics[topic]
            before = -1
            for record in records:
                assert record.offset > before, (topic, record.offset, before)
                before = record.offset
                number = number_of(record)
                sent = self._sent[number]
                assert record[1:5] == sent[1:5], (topic, record, sent)
                self._note(known, number, record.offset)
                if isolation == "read_committed":
                    assert self._state(number) != ABORTED, (topic, record)
            self.compared += len(records)
            end = before + 1
            if isolation == "read_uncommitted":
                end = max(end, until)
            found = {record.offset for record in records}
            first = 0 if compacted or not records else records[0].offset
            for offset in known.acknowledged - found:
                if first <= offset < end:
                    self._explain(topic, offset, compacted, isolation)

    def _explain(
        self, topic: str, offset: int, compacted: bool, isolation: str
    ) -> None:
        known = self._topics[topic]
        number = known.number[offset]
        record, state = self._sent[number], self._state(number)
        is_gone = isolation == "read_committed" and state != COMMITTED
        if compacted:
            is_gone |= state in (ABORTED, UNKNOWN) or record.value is None
            is_gone |= known.last_of[record.key] > offset
        assert is_gone, (topic, offset, isolation, state, record)

    def first_since(self, topic: str, timestamp_ms: int, start: int) -> int | None:
        """The first acknowledged offset from `start` on with at least this time."""
        with self._lock:
            known = self._topics[topic]
            return min(
                (
                    offset
                    for offset in known.acknowledged
                    if offset >= start
                    and self._sent[known.number[offset]].timestamp_ms >= timestamp_ms
                ),
                default=None,
            )

    def sent_at(self, topic: str, offset: int) -> Record | None:
        """Record known to be at an offset, or None."""
        with self._lock:
            number = self._topics[topic].number.get(offset)
            return None if number is None else self._sent[number]
