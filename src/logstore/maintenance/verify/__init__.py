"""Checking a store without opening it, building indexes anew, looking into one file.

`verify` works on a directory that refuses to open: it looks at files, not at a `Store`,
changes nothing, takes no lock and follows no symbolic link. It goes on behind what is
damaged and lists everything, the log first and then what is derived from it. What
opening would do to a file (`logstore.log.recover`) decides whether a fault is a problem
or a note. `rebuild_index` alone writes, under the writer's lock.
"""

from logstore.maintenance.verify.inspect import (
    CheckpointEntry,
    EpochEntry,
    FileContents,
    LogEntry,
    OffsetEntry,
    TimeEntry,
    inspect_file,
)
from logstore.maintenance.verify.rebuild import rebuild_index
from logstore.maintenance.verify.report import Note, Problem, VerifyReport
from logstore.maintenance.verify.store import verify

__all__ = [
    "CheckpointEntry",
    "EpochEntry",
    "FileContents",
    "LogEntry",
    "Note",
    "OffsetEntry",
    "Problem",
    "TimeEntry",
    "VerifyReport",
    "inspect_file",
    "rebuild_index",
    "verify",
]
