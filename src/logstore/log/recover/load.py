"""Loads a partition: survey and decide, then apply."""

from __future__ import annotations

import logging

from logstore.errors import LogStoreError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import closed_mark, was_closed
from logstore.log.recover.apply import apply, recovered_log
from logstore.log.recover.context import RecoveredLog, RecoveryContext
from logstore.log.recover.survey import survey

__all__ = ["load"]


logger = logging.getLogger("logstore")


def load(context: RecoveryContext) -> RecoveredLog:
    """Load a partition, and repair it if the context says so.

    Raises:
        LogStoreError, OSError: it cannot be examined, or its end is unknown.
    """
    try:
        loaded = _load(context)
    except (LogStoreError, OSError):
        _record_closed(context, is_damaged=True)
        raise
    _record_closed(context, is_damaged=loaded.damage is not None)
    return loaded


def _record_closed(context: RecoveryContext, *, is_damaged: bool) -> None:
    """Record that a log was closed, if it was found to be damaged. The store may be
    written to in other partitions, and then not be closed: the next opening would take
    the bytes after the end for a torn tail, and cut them.

    If the log is intact, remove the mark, durably: the log is about to be written to,
    so the mark would no longer be true.
    """
    metadata, directory = context.metadata, context.directory
    if not context.writable or not metadata.clean:
        return
    if not is_damaged:
        if directory.exists(layout.CLOSED):
            directory.unlink(layout.CLOSED, missing_ok=True)
            directory.sync()
        return
    try:
        if not was_closed(directory, metadata.store_epoch, metadata.state):
            mark = closed_mark(metadata.store_epoch, metadata.state)
            checkpoints.write_state(directory, layout.CLOSED, mark)
    except OSError as error:
        logger.warning(
            "cannot write down that %s was closed before it was damaged: %s. Repair it "
            "before the store is stopped in another way than by closing it",
            directory.path,
            error,
        )


def _load(context: RecoveryContext) -> RecoveredLog:
    result = survey(context)
    plan = result.plan
    if plan.is_end_unknown:
        assert plan.damage is not None
        raise plan.damage.error()
    if context.writable:
        return apply(context, plan, result)
    return recovered_log(context, plan, result)
