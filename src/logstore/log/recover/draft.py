"""A decision in the making, and its first step: operations that names on disk show."""

from __future__ import annotations

import os

from logstore.io import layout
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    DAMAGE_GONE,
    LEFTOVERS_REMOVED,
    STATE_DAMAGED,
    SWAP_FINISHED,
    UNREADABLE,
)
from logstore.io.layout import (
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from logstore.log.recover.facts import Facts, Refusal
from logstore.log.recover.names import below_the_state, classify, readable
from logstore.log.recover.plan import (
    CASES,
    TAKES_NO_APPENDS,
    UNREAD_VERDICT,
    Damage,
    Finding,
    PlannedSegment,
)

__all__ = ["Draft", "EndUnknownError"]


class EndUnknownError(Exception):
    """The damage that was found hides where the log ends."""


class Draft:
    """What is decided so far.

    Attributes:
        logs: base offset -> transition of the files in use.
        names: the names when all interrupted operations are finished.
        dropped, deleted: as in `Plan`.
        segments: of the log, in order; the last one gets its end at last.
        result: the other fields of the plan.
        verdicts: that were recorded, and stay.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.metadata = facts.metadata
        self.state = facts.metadata.state
        self.findings: list[Finding] = []
        self.damage: Damage | None = None
        self.segments: list[PlannedSegment] = []
        self.logs: dict[int, str] = {}
        self.names = facts.names
        self.dropped: tuple[int, ...] = ()
        self.deleted: tuple[int, ...] = ()
        self.result: dict[str, object] = {}
        self.verdicts = tuple(s.verdict for s in facts.standings if s.is_there)

    @property
    def is_refused(self) -> bool:
        """Whether the partition takes no appends: nothing of it is cut or built."""
        return self.damage is not None or bool(self.verdicts or self._fault)

    @property
    def _fault(self) -> str:
        """Why the verdicts cannot be read; "" if they can."""
        return self.metadata.verdicts.fault

    # -- findings

    def path_of(self, name: str) -> str:
        return os.path.join(self.facts.path, name)

    def name_of(self, base: int, suffix: str = LOG) -> str:
        """The name of a file of a segment, when interrupted operations are finished."""
        transition = "" if self.facts.is_writable else self.logs.get(base, "")
        return segment_file(base, suffix) + transition

    def add_finding(
        self,
        label: str,
        name: str,
        message: str,
        *,
        position: int = -1,
        size: int = 0,
        first_offset: int = -1,
        base: int = -1,
        detail: str = "",
    ) -> None:
        self.findings.append(
            Finding(label, name, message, position, size, first_offset, base, detail)
        )

    def refuse(
        self,
        label: str,
        name: str,
        reason: str,
        *,
        position: int,
        offset: int,
        base: int = -1,
        size: int = 0,
        first_offset: int | None = None,
        refusal: Refusal | None = None,
        is_file: bool = False,
        detail: str = "",
        more: str = "",
        message: str = "",
    ) -> None:
        """The partition takes no appends.

        Args:
            position, offset: of the damage.
            first_offset: of the finding, if it is another one.
            is_file: the finding concerns a whole file, without a position.
            more: after the damage, in the message of the finding.
            message: in place of it.
        """
        assert CASES[label] == TAKES_NO_APPENDS
        path = self.path_of(name)
        self.damage = Damage(label, path, reason, position, offset, refusal)
        self.add_finding(
            label,
            name,
            message or f"{self.damage.error()}{more}",
            position=-1 if is_file else position,
            size=size,
            first_offset=offset if first_offset is None else first_offset,
            base=base,
            detail=detail,
        )

    def unreadable(self, base: int, refusal: Refusal) -> None:
        self.refused(self.name_of(base), base, refusal)

    def refused(self, name: str, base: int, refusal: Refusal) -> None:
        """The system does not let us read a file."""
        self.refuse(
            UNREADABLE, name, "", position=-1, offset=-1, base=base, refusal=refusal
        )

    def state_error(self) -> None:
        error = self.metadata.state_error
        if error is not None:
            message = f"{error}; the log was checked as if it were not there"
            self.add_finding(STATE_DAMAGED, layout.PARTITION_STATE, message)

    # -- verdicts

    def is_condemned(self, base: int) -> bool:
        """Whether damage in a segment was recorded and is there: then a bad batch
        of it is no torn tail, whatever the marks say now."""
        return bool(self._fault) or any(v.segment == base for v in self.verdicts)

    def written_verdicts(self) -> None:
        """At last: damage that was recorded counts also if nothing that was read
        now shows it. Damage that is gone is reported."""
        name = layout.DAMAGED
        for standing in self.facts.standings:
            if not standing.is_there:
                v, message = standing.verdict, standing.message
                self.add_finding(
                    DAMAGE_GONE,
                    name,
                    message,
                    position=v.position,
                    first_offset=v.good_end,
                    base=v.segment,
                )
        if self.damage is not None:
            return
        if self._fault:
            self.refuse(
                CORRUPT,
                name,
                f"damage was recorded, and cannot be read: {self._fault}",
                position=0,
                offset=-1,
                is_file=True,
                detail=UNREAD_VERDICT,
            )
        for v in self.verdicts[:1]:
            self.refuse(
                v.kind,
                v.name,
                f"{v.reason} (found by release {v.release or '?'} of logstore, and the "
                f"bytes have not become a whole log since; repair it)",
                position=v.position,
                offset=v.good_end,
                base=v.segment,
                size=max(v.end_position - v.position, 0),
                detail=v.detail,
            )

    def known_end(self, base: int) -> int:
        """Where the log ended when its damage was found, but not below `base`."""
        return max([base, *(v.end_offset for v in self.verdicts)])

    # -- names

    def interrupted_operations(self) -> None:
        """What names on disk show was begun and not finished."""
        names = classify(
            self.facts.names,
            readable(self.facts.swap_ends),
            self.metadata.swapping,
        )
        self.logs = dict(names.logs)
        self.truncation()
        self.deletion()
        self.result.update(
            superseded=names.superseded,
            swaps=names.swaps,
            leftovers=names.leftovers,
            waiting=names.deleted,
        )
        if names.swaps:
            message = (
                f"renamed {len(names.swaps)} .swap files to their final names; removed "
                f"{len(names.superseded)} files that they supersede"
            )
            self.add_finding(SWAP_FINISHED, names.swaps[0], message)
        if names.leftovers:
            message = (
                f"removed {len(names.leftovers)} files of an unfinished compaction"
            )
            self.add_finding(LEFTOVERS_REMOVED, names.leftovers[0], message)
        removed = {*names.superseded, *names.swaps, *names.leftovers}
        self.names = frozenset(
            [
                *(self.facts.names - removed),
                *(n.removesuffix(SWAP) for n in names.swaps),
            ]
        )
        self.orphans()

    def truncation(self) -> None:
        """A `truncate_to` that was interrupted after its commit."""
        state = self.state
        if state is None or not state.is_truncating:
            return
        base, size = state.active["base_offset"], state.active["size"]
        self.dropped = tuple(b for b in self.logs if b > base)
        for dropped in self.dropped:
            del self.logs[dropped]
        truncated = (base, size) if base in self.logs else None
        self.result.update(truncated=truncated, dropped=self.dropped)

    def deletion(self) -> None:
        """A deletion that was interrupted after its commit: the segments below the
        first one that the state knows. A crash may have restored any of their names."""
        if self.state is None:
            return
        self.deleted = below_the_state(self.state, self.logs)
        for base in self.deleted:
            del self.logs[base]
        self.result["deleted"] = self.deleted

    def orphans(self) -> None:
        """Index files without a log; Kafka removes them, too."""
        bases = {*self.logs, *self.dropped, *self.deleted}
        self.result["orphans"] = tuple(
            name
            for name in sorted(self.names)
            if (p := parse_segment_file(name)) and not p.transition
            if p.suffix in (INDEX, TIME_INDEX, TXN_INDEX)
            if p.base_offset not in bases
        )

    def unreadable_swaps(self) -> None:
        """Without the end of a `.swap` file, the files that it replaces are unknown."""
        for base, end in self.facts.swap_ends.items():
            if isinstance(end, Refusal):
                name = segment_file(base, LOG) + SWAP
                self.refused(name, base, end)
                raise EndUnknownError
