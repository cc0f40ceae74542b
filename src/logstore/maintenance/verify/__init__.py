"""Checking a store without opening it, rebuilding indexes, inspecting one file.

`verify` works on a directory that refuses to open: it reads files, not a `Store`,
changes nothing, takes no lock and follows no symbolic link. It continues after damage
and lists all findings, first the log's and then findings about the files derived from
it. The effect of opening decides whether a fault is a problem or a note
(`logstore.log.recover`). `rebuild_index` alone writes, under the writer's lock.
"""

from logstore.maintenance.verify.frames import LogFrame, LogFrames
from logstore.maintenance.verify.inspect import (
    CheckpointEntry,
    EpochEntry,
    FileContents,
    LogEntry,
    OffsetEntry,
    TimeEntry,
    inspect_file,
)
from logstore.maintenance.verify.rebuild import BuiltIndexes, rebuild_index
from logstore.maintenance.verify.report import VerifyNote, VerifyProblem, VerifyReport
from logstore.maintenance.verify.store import verify

__all__ = [
    "BuiltIndexes",
    "CheckpointEntry",
    "EpochEntry",
    "FileContents",
    "LogEntry",
    "LogFrame",
    "LogFrames",
    "VerifyNote",
    "OffsetEntry",
    "VerifyProblem",
    "TimeEntry",
    "VerifyReport",
    "inspect_file",
    "rebuild_index",
    "verify",
]
