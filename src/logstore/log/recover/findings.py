"""Collects the findings of a decision about a partition, and its damage."""

from __future__ import annotations

import os

from logstore.io import layout
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    DAMAGE_GONE,
    INDEX_REBUILT,
    LEFTOVERS_REMOVED,
    STATE_DAMAGED,
    SWAP_FINISHED,
    UNREADABLE,
    UNSUPPORTED,
)
from logstore.io.layout import INDEX, LOG, SWAP, segment_file
from logstore.log.recover.facts import Facts, Refusal, WalkFacts
from logstore.log.recover.names import Operations
from logstore.log.recover.plan import (
    CASES,
    TAKES_NO_APPENDS,
    UNREAD_VERDICT,
    LogDamage,
    OpeningFinding,
)

__all__ = ["EndUnknownError", "Findings"]


class EndUnknownError(Exception):
    """The damage that was found hides where the log ends."""


class Findings:
    """The findings of one decision, in order.

    Invariant: if the case of a finding says that the partition takes no appends,
    `damage` is set. Damage that was recorded before counts like damage that is found:
    `is_refused` is true from the beginning, and `add_recorded` sets `damage` at last.

    Attributes:
        damage: why the partition takes no appends; None if it does, as far as is known.
        verdicts: that were recorded, and stay.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._findings: list[OpeningFinding] = []
        self.damage: LogDamage | None = None
        self.verdicts = tuple(s.verdict for s in facts.standings if s.is_there)

    @property
    def _fault(self) -> str:
        """Why the verdicts cannot be read; "" if they can."""
        return self._facts.metadata.verdicts.fault

    @property
    def is_refused(self) -> bool:
        """Whether the partition takes no appends: nothing of it is cut or built."""
        return self.damage is not None or bool(self.verdicts or self._fault)

    def all(self) -> tuple[OpeningFinding, ...]:
        return tuple(self._findings)

    # -- adding

    def path_of(self, name: str) -> str:
        return os.path.join(self._facts.path, name)

    def name_of(self, base: int, suffix: str = LOG) -> str:
        """The name of a file of a segment. Opening for writing finishes interrupted
        operations, which gives it its final name."""
        is_swap = base in self._facts.swap_ends and not self._facts.is_writable
        return segment_file(base, suffix) + (SWAP if is_swap else "")

    def add(self, finding: OpeningFinding) -> None:
        self._findings.append(finding)

    def refuse(
        self,
        label: str,
        base: int,
        reason: str,
        *,
        position: int,
        offset: int,
        name: str | None = None,
        size: int = 0,
        first_offset: int | None = None,
        refusal: Refusal | None = None,
        is_file: bool = False,
        detail: str = "",
        more: str = "",
        message: str = "",
    ) -> None:
        """Add damage: the partition takes no appends.

        Args:
            base: of the segment concerned; -1: no segment.
            position, offset: of the damage.
            name: of the file; None: the `.log` file of the segment.
            first_offset: of the finding, if it is another one.
            is_file: the finding concerns a whole file, without a position.
            more: after the damage, in the message of the finding.
            message: in place of it.
        """
        assert CASES[label] == TAKES_NO_APPENDS
        name = self.name_of(base) if name is None else name
        path = self.path_of(name)
        self.damage = LogDamage(label, path, reason, position, offset, refusal)
        self.add(
            OpeningFinding(
                label,
                name,
                message or f"{self.damage.error()}{more}",
                -1 if is_file else position,
                size,
                offset if first_offset is None else first_offset,
                base,
                detail,
            )
        )

    def add_unreadable(
        self, base: int, refusal: Refusal, name: str | None = None
    ) -> None:
        """Add a file that the system does not let us read; arguments as in `refuse`."""
        self.refuse(
            UNREADABLE, base, "", position=-1, offset=-1, name=name, refusal=refusal
        )

    def add_corrupt(self, base: int, walk: WalkFacts, *, size: int) -> None:
        """Add damage of a segment that must not be cut: `size` bytes from where its
        valid batches end."""
        self.refuse(
            UNSUPPORTED if walk.is_unsupported else CORRUPT,
            base,
            walk.reason,
            position=walk.pos,
            offset=walk.last_offset + 1,
            size=size,
            more=" Nothing was cut; the partition takes no appends.",
        )

    def add_rebuilt(self, base: int, text: str) -> None:
        """Add a segment whose indexes are built; `text` has a place for the name."""
        name = self.name_of(base, INDEX)
        message = text.format(name)
        self.add(
            OpeningFinding(INDEX_REBUILT, name, message, first_offset=base, base=base)
        )

    def add_state_error(self) -> None:
        """Add the damage of the own state file, if there is any."""
        error = self._facts.metadata.state_error
        if error is not None:
            message = f"{error}; the log was checked as if it were not there"
            self.add(OpeningFinding(STATE_DAMAGED, layout.PARTITION_STATE, message))

    def add_operations(self, operations: Operations) -> None:
        """Add the findings about interrupted operations.

        Raises:
            EndUnknownError: the system does not let us read a `.swap` file.
        """
        for base, end in self._facts.swap_ends.items():
            if isinstance(end, Refusal):
                self.add_unreadable(base, end, segment_file(base, LOG) + SWAP)
                raise EndUnknownError
        swaps, leftovers = operations.swaps, operations.leftovers
        if swaps:
            message = (
                f"renamed {len(swaps)} .swap files to their final names; removed "
                f"{len(operations.superseded)} files that they supersede"
            )
            self.add(OpeningFinding(SWAP_FINISHED, swaps[0], message))
        if leftovers:
            message = f"removed {len(leftovers)} files of an unfinished compaction"
            self.add(OpeningFinding(LEFTOVERS_REMOVED, leftovers[0], message))

    # -- damage that was recorded

    def is_condemned(self, base: int) -> bool:
        """Whether damage in a segment was recorded and is there: then a bad batch
        of it is no torn tail, whatever the marks say now."""
        return bool(self._fault) or any(v.segment == base for v in self.verdicts)

    def known_end(self, base: int) -> int:
        """The end of the log when its damage was found, but not below `base`."""
        return max([base, *(v.end_offset for v in self.verdicts)])

    def add_recorded(self) -> None:
        """Add damage that was recorded, if nothing that was read now shows damage.
        Report damage that is gone."""
        name = layout.DAMAGED
        for standing in self._facts.standings:
            if not standing.is_there:
                v, message = standing.verdict, standing.message
                place = v.position, 0, v.good_end, v.segment
                self.add(OpeningFinding(DAMAGE_GONE, name, message, *place))
        if self.damage is not None:
            return
        if self._fault:
            self.refuse(
                CORRUPT,
                -1,
                f"damage was recorded, and cannot be read: {self._fault}",
                position=0,
                offset=-1,
                name=name,
                is_file=True,
                detail=UNREAD_VERDICT,
            )
        for v in self.verdicts[:1]:
            self.refuse(
                v.kind,
                v.segment,
                f"{v.reason} (found by release {v.release or '?'} of logstore, and the "
                f"bytes have not become a whole log since; repair it)",
                position=v.position,
                offset=v.good_end,
                name=v.name,
                size=max(v.end_position - v.position, 0),
                detail=v.detail,
            )
