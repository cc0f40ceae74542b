"""Loading a partition: the three steps, one behind the other."""

from __future__ import annotations

from logstore import checkpoints, layout
from logstore._files import Directory
from logstore.errors import CorruptCheckpointError
from logstore.loading.case import Case, Loaded
from logstore.loading.end import End
from logstore.loading.names import Names
from logstore.loading.segments import Segments
from logstore.recovery import STATE_DAMAGED, survey

__all__ = ["load"]


def load(case: Case) -> Loaded:
    """Load a partition, and mend it where the case says so.

    Raises:
        LogStoreError, OSError: it cannot be looked at, or nobody knows where it ends.
    """
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
    loaded = End(case).settle(segments)
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
    broker may have had it before."""
    try:
        epochs = checkpoints.read_epochs(directory)
    except (CorruptCheckpointError, OSError):
        return False
    return not any(epoch for epoch, _ in epochs)
