"""Loads a partition: surveys it, makes a plan, and applies that."""

from __future__ import annotations

import dataclasses

from logstore.errors import LogStoreError
from logstore.log.recover.apply import apply, recovered_log
from logstore.log.recover.context import RecoveredLog, RecoveryContext
from logstore.log.recover.standing import record_verdicts
from logstore.log.recover.survey import survey

__all__ = ["load", "record_damage"]


def load(context: RecoveryContext) -> RecoveredLog:
    """Load a partition, and repair it if the context says so.

    Damage is recorded before anything else of the partition is.

    Raises:
        LogStoreError, OSError: it cannot be examined, or its end is unknown.
    """
    result = survey(context)
    plan = result.plan
    unwritten: LogStoreError | None = None
    if context.writable:
        unwritten = record_verdicts(context, result.facts, plan)
    if plan.is_end_unknown:
        assert plan.damage is not None
        raise plan.damage.error()
    if not context.writable or unwritten is not None:
        # Without the record nothing else may be written.
        as_read = dataclasses.replace(context, writable=False)
        log = recovered_log(as_read, plan, result)
        log.unwritten = unwritten
        return log
    return apply(context, plan, result)


def record_damage(context: RecoveryContext) -> LogStoreError | None:
    """Try again to record the damage of a partition that `load` has found; it takes
    no appends. Returns: as `record_verdicts`.

    Raises:
        OSError: its directory cannot be read.
    """
    result = survey(context)
    return record_verdicts(context, result.facts, result.plan)
