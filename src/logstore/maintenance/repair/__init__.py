"""Mending a damaged log, and keeping what is taken out of it.

`repair` works on a directory that refuses to open, under the writer's lock: it looks at
files as `logstore.verify` does, decides what stays (`plan`), keeps the rest
(`quarantine`), changes the files in steps that a crash cannot harm (`surgery`), and
looks again. docs/design.md, "Repair", has the cases.
"""

from logstore.maintenance.repair.report import RepairAction, RepairReport
from logstore.maintenance.repair.run import repair

__all__ = ["RepairAction", "RepairReport", "repair"]
