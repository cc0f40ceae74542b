"""Loading a partition: the three steps, one after the other."""

from __future__ import annotations

import logging

from logstore.errors import CorruptCheckpointError, LogStoreError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import closed_mark, was_closed
from logstore.io.checkpoint.recovery_report import STATE_DAMAGED
from logstore.io.directory import Directory
from logstore.log.recover.context import Case, RecoveredLog
from logstore.log.recover.leftovers import Names
from logstore.log.recover.log_end import End
from logstore.log.recover.segments import Segments
from logstore.log.recover.survey import survey

__all__ = ["load"]


logger = logging.getLogger("logstore")


def load(case: Case) -> RecoveredLog:
    """Load a partition, and repair it if the case says so.

    Raises:
        LogStoreError, OSError: it cannot be examined, or its end is unknown.
    """
    try:
        loaded = _load(case)
    except (LogStoreError, OSError):
        _note_closed(case, is_damaged=True)
        raise
    _note_closed(case, is_damaged=loaded.damage is not None)
    return loaded


def _note_closed(case: Case, *, is_damaged: bool) -> None:
    """Record that a log was closed, if it was found to be damaged. The store may be
    written to in other partitions, and then not be closed: the next opening would take
    the bytes after the end for a torn tail, and cut them.

    If the log is intact, remove the mark, durably: the log is about to be written to,
    so the mark would no longer be true.
    """
    situation, directory = case.situation, case.directory
    if not case.writable or not situation.clean:
        return
    if not is_damaged:
        if directory.exists(layout.CLOSED):
            directory.unlink(layout.CLOSED, missing_ok=True)
            directory.sync()
        return
    try:
        if not was_closed(directory, situation.generation, situation.state):
            mark = closed_mark(situation.generation, situation.state)
            checkpoints.write_state(directory, layout.CLOSED, mark)
    except OSError as error:
        logger.warning(
            "cannot write down that %s was closed before it was damaged: %s. Repair it "
            "before the store is stopped in another way than by closing it",
            directory.path,
            error,
        )


def _load(case: Case) -> RecoveredLog:
    situation = case.situation
    if situation.state_error is not None:
        case.report(
            STATE_DAMAGED,
            layout.PARTITION_STATE,
            f"{situation.state_error}; the log was checked as if it were not there",
        )
    found = survey(case.directory, case.descriptors)
    names = Names(case, found)
    names.finish()
    segments = Segments(case, found).open()
    end = End(case)
    loaded = end.settle(segments)
    if segments:
        end.write_indexes(loaded, found.names)
    loaded.deleted = found.deleted
    loaded.digested = names.digests()
    state = situation.state
    if state is not None:
        loaded.cuts = state.cuts
        loaded.log_id = state.log_id
        loaded.is_gapless = state.is_gapless
        loaded.is_truncating = state.is_truncating
    elif not segments:
        loaded.is_gapless = _is_without_epochs(case.directory)
    return loaded


def _is_without_epochs(directory: Directory) -> bool:
    """Whether logstore's leader epoch, 0, is right for a log that has no records: a
    broker may have used the log before."""
    try:
        epochs = checkpoints.read_epochs(directory)
    except (CorruptCheckpointError, OSError):
        return False
    return not any(epoch for epoch, _ in epochs)
