"""Plans of calls on a compacted topic, and the promises of compaction.

No other calls touch this topic. The rules, whatever else happens around a call:

- the last acknowledged record of a key is there, unless it is a tombstone;
- each record was appended, and is at the offset that was returned; offsets ascend;
- a key whose tombstone is gone has no record from before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faults.scene_log import Plan
from faults.scene_state import SceneState, Unavailable
from faults.watched import Broken
from logstore import LogStoreError, TopicConfig

__all__ = ["COMPACTION_CALLS", "COMPACTION_TOPIC", "Compacted"]

COMPACTION_TOPIC = "compacted"
_KEYS = 5
_ROWS_MAX = 8
_FORMATS = ((1, "none"), (1, "gzip"), (2, "none"), (2, "none"), (2, "zstd"))

COMPACTION_CALLS = (
    "keyed", "keyed_many", "compact", "compact_store", "compact_dry", "roll_compacted",
    "read_compacted",
)  # fmt: skip

Row = tuple[bytes, bytes | None]


class Compacted(SceneState):
    """Plans of calls that append to a compacted topic, compact it and read it."""

    def begin_apart(self) -> None:
        """Make the topic."""
        super().begin_apart()
        magic, codec = self._forms.choice(_FORMATS)
        config = TopicConfig(
            cleanup_policy="compact",
            message_format=magic,
            compression_type=codec,
            segment_bytes=400,
            index_interval_bytes=64,
            flush_ms=4,
            file_delete_delay_ms=self._forms.choice((0, 5)),
            min_cleanable_dirty_ratio=self._forms.choice((0.0, 0.5)),
            delete_retention_ms=0,
        )
        self.store.create_topic(COMPACTION_TOPIC, config=config)
        # Acknowledged rows by offset; rows that may be there, at an unknown offset;
        # rows of calls under way.
        self._at: dict[int, Row] = {}
        self._loose_rows: list[Row] = []
        self._coming_rows: list[Row] = []

    def _compacted(self) -> Any:
        try:
            return self.store.topic(COMPACTION_TOPIC)[0]
        except LogStoreError as error:
            raise Unavailable(error) from error

    # ------------------------------------------------------------ appends

    def _plan_keyed(self, most: int = 1) -> Plan:
        partition = self._compacted()
        rows: list[Row] = []
        for value in self.values(self.rng.randint(1, most)):
            key = b"k%d" % self.rng.randrange(_KEYS)
            rows.append((key, None if self.rng.random() < 0.2 else value))
        values = self.given.many([v and self.given.data(v) for _, v in rows])
        keys = self.given.many([self.given.data(key) for key, _ in rows])
        durable = self.rng.random() < 0.2

        def call() -> Any:
            self._coming_rows += rows
            return partition.append_many(values, keys, durable=durable)

        def told(span: Any) -> None:
            self._have_come(rows)
            if len(span) != len(rows):
                raise Broken(f"{len(rows)} rows with keys are at {span}")
            for offset, row in zip(span, rows, strict=True):
                if offset in self._at:
                    raise Broken(f"a row with a key is at {offset}, as another one")
                self._at[offset] = row

        def failed(is_done: bool) -> None:
            self._have_come(rows)
            if is_done:
                self._loose_rows += rows

        plan = Plan(f"append of {len(rows)} rows with keys", call, told)
        plan.failed = failed
        if not self.given.is_plain:
            plan.expects = (TypeError,)
        return plan

    def _have_come(self, rows: list[Row]) -> None:
        for row in rows:
            if row in self._coming_rows:
                self._coming_rows.remove(row)

    def _plan_keyed_many(self) -> Plan:
        return self._plan_keyed(_ROWS_MAX)

    # ------------------------------------------------------------ compaction

    def _plan_compact(self) -> Plan:
        partition = self._compacted()
        force, callback = self.rng.random() < 0.7, self.given.callback()
        now_ms = self.given.number(1 << 42) if self.rng.random() < 0.5 else None
        return Plan(
            "compact",
            lambda: partition.compact(
                force=force, now_ms=now_ms, on_progress=callback
            ),
        )  # fmt: skip

    def _plan_compact_dry(self) -> Plan:
        partition, callback = self._compacted(), self.given.callback()

        def told(report: Any) -> None:
            most = len(self._at) + len(self._loose_rows) + len(self._coming_rows)
            if report.removed > most:
                raise Broken(f"{report.removed} of {most} records would be removed")

        return Plan(
            "a dry compaction",
            lambda: partition.compact(force=True, dry_run=True, on_progress=callback),
            told,
        )

    def _plan_compact_store(self) -> Plan:
        callback = self.given.callback()
        return Plan("compact of all", lambda: self.store.compact(on_progress=callback))

    def _plan_roll_compacted(self) -> Plan:
        return Plan("roll of the compacted topic", self._compacted().roll)

    # ------------------------------------------------------------ looking

    def _plan_read_compacted(self) -> Plan:
        partition = self._compacted()
        is_live = self.rng.random() < 0.3
        last = self._last()

        def read() -> list[Any]:
            return list(partition.follow(timeout=0) if is_live else partition.read())

        def told(found: list[Any]) -> None:
            self._check_rows(found, last, "a read", is_beside=True)

        return Plan("read of the compacted topic", read, told)

    def _last(self) -> dict[bytes, int]:
        """The offset of the last acknowledged record of each key."""
        return {self._at[offset][0]: offset for offset in sorted(self._at)}

    def _check_rows(
        self,
        found: Iterable[Any],
        last: dict[bytes, int],
        where: str,
        *,
        is_beside: bool,
    ) -> None:
        """Compare records with the acknowledged ones.

        Args:
            last: the last offset of each key that must be there, or be superseded.
            is_beside: others may have appended and compacted meanwhile.
        """
        seen: dict[bytes, int] = {}
        before = -1
        values: set[bytes] = set()
        maybe = self._loose_rows + self._coming_rows
        for record in found:
            row, offset = (record.key, record.value), record.offset
            if offset <= before:
                raise Broken(f"{offset} comes after {before} in {where}")
            if row != self._at.get(offset, row):
                raise Broken(f"{row} is at {offset} in {where}: {self._at[offset]}")
            if offset not in self._at and row not in maybe:
                raise Broken(f"{row} at {offset} in {where} was not acknowledged")
            if row[1] is not None and row[1] in values:
                raise Broken(f"{row} is twice in {where}")
            values.add(row[1] or b"")
            seen[row[0]] = before = offset
        for key, offset in last.items():
            there = seen.get(key)
            if there is not None and there >= offset:
                continue
            # The key was deleted, and no earlier record of it is left; unless that
            # happened during the read.
            is_fit = self._may_be_deleted(key, offset) and there is None
            if not is_fit and not (is_beside and self._has_gone_on(key, offset)):
                raise Broken(f"{key!r} is at {there} in {where}, not at {offset}")

    def _may_be_deleted(self, key: bytes, offset: int) -> bool:
        """Whether a tombstone of a key may be at an offset or after it."""
        known = (row for at, row in list(self._at.items()) if at >= offset)
        return (key, None) in [*known, *self._loose_rows, *self._coming_rows]

    def _has_gone_on(self, key: bytes, offset: int) -> bool:
        """Whether a record of a key may be after an offset, or a tombstone at it."""
        known = [row for at, row in list(self._at.items()) if at > offset]
        rows = [*known, *self._loose_rows, *self._coming_rows]
        return any(row[0] == key for row in rows) or self._may_be_deleted(key, offset)

    def settle_compacted(self, where: str, *, is_ended: bool) -> None:
        """Check the compacted topic, and continue from its content.

        Args:
            is_ended: it has ended for writing: the next opening may finish an
                interrupted call.
        """
        found = list(self._compacted().read())
        self._check_rows(found, self._last(), where, is_beside=False)
        if is_ended:
            return
        self._at = {record.offset: (record.key, record.value) for record in found}
        self._loose_rows = list(self._coming_rows)
