"""Decides what opening does with a partition: from facts alone, without any file.

Opening for writing, read-only opening, `verify` and `repair` use the same decision. Its
cases are in the table of docs/design.md (`plan.CASES`). Bytes below the durable point
are never cut, nor bytes that are not understood.

1. `names`: the operations that were interrupted.
2. `segments`: the segments, and the damage that names and sizes show.
3. `log_end`: the end of the log; `torn_tail` decides whether its last bytes are cut.
4. `findings`: the damage that was recorded before.
"""

from __future__ import annotations

import dataclasses

from logstore.log.recover.facts import Facts
from logstore.log.recover.findings import EndUnknownError, Findings
from logstore.log.recover.log_end import find_end
from logstore.log.recover.names import interrupted_operations
from logstore.log.recover.plan import Plan
from logstore.log.recover.segments import PlannedSegments

__all__ = ["make_plan"]


def make_plan(facts: Facts) -> Plan:
    """The decision about a partition.

    Raises:
        MissingFactError: it depends on a fact that is not there.
    """
    findings, operations = Findings(facts), interrupted_operations(facts)
    segments = PlannedSegments(facts, findings, operations)
    findings.add_state_error()
    try:
        findings.add_operations(operations)
        segments.find()
        segments.undo_roll()
        segments.find_doubtful_indexes()
        plan = find_end(facts, findings, segments)
    except EndUnknownError:
        plan = Plan(is_end_unknown=True)
    findings.add_recorded()
    digested, stale_digests = segments.digests()
    return dataclasses.replace(
        plan,
        findings=findings.all(),
        damage=findings.damage,
        verdicts=findings.verdicts,
        operations=operations,
        segments=tuple(segments.planned),
        indexed=segments.indexed,
        put_aside=segments.put_aside,
        digested=digested,
        stale_digests=stale_digests,
    )
