"""Decides what opening does with a partition: from facts alone, without any file.

Opening for writing, read-only opening, `verify` and `repair` use the same decision. Its
cases are those of the table in docs/design.md (`plan.CASES`). Bytes below the durable
point are never cut, nor bytes that are not understood.
"""

from __future__ import annotations

from logstore.log.recover.draft import EndUnknownError
from logstore.log.recover.facts import Facts
from logstore.log.recover.log_end import EndDraft
from logstore.log.recover.plan import Plan

__all__ = ["decide"]


def decide(facts: Facts) -> Plan:
    """The decision about a partition: names, then segments, then the end of the log.

    Raises:
        MissingFactError: it depends on a fact that is not there.
    """
    draft = EndDraft(facts)
    draft.state_error()
    is_end_unknown = False
    try:
        draft.unreadable_swaps()
        draft.interrupted_operations()
        draft.listed_segments()
        draft.undone_roll()
        draft.sealed_indexes()
        draft.log_end()
    except EndUnknownError:
        is_end_unknown = True
    draft.written_verdicts()
    draft.digests()
    return Plan(
        findings=tuple(draft.findings),
        damage=draft.damage,
        verdicts=draft.verdicts,
        is_end_unknown=is_end_unknown,
        segments=tuple(draft.segments),
        **draft.result,  # type: ignore[arg-type]
    )
