"""The bytes after the end of a log in its last file."""

from __future__ import annotations

import os
import time
from typing import Final

import logstore
from logstore.cli.text import counted

__all__ = ["intact_behind"]

# A writer that is at work may be in the middle of an append.
_WAIT_S: Final = 0.1


def intact_behind(partition: logstore.Partition) -> str:
    """A sentence on intact batches after the end of a log; "" if no batch follows.

    A log that was not closed ends at its first bad batch, as a kill may leave it. If
    other batches follow the bad one, the log is damaged.
    """
    text = _intact_behind(partition)
    if text:
        time.sleep(_WAIT_S)
        return text if _intact_behind(partition) == text else ""
    return ""


def _intact_behind(partition: logstore.Partition) -> str:
    segments, end = partition.segments, partition.end_offset
    if not segments:
        return ""
    path, size = segments[-1].path, segments[-1].size_bytes
    try:
        if os.path.getsize(path) <= size:
            return ""
        entries = logstore.inspect_file(path).entries
    except (logstore.LogStoreError, OSError):
        return ""  # reading has reported it, or the writer has removed the file
    is_bad = False
    count, last = 0, end
    for entry in entries:
        if entry.position < size:
            continue
        if entry.damage is not None:
            is_bad = True
        elif is_bad:
            count, last = count + 1, entry.batch.last_offset
    if not count:
        return ""
    return (
        f"the log ends at offset {end}, because {path} has no intact batch at byte "
        f"{size}, as after a kill. But {counted(count, 'intact batch')} after that, "
        f"up to offset {last}, were left out; `logstore-dump records {path}` has them"
    )
