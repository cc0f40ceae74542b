"""Repairing a damaged log, and keeping the bytes that are taken out of it.

`repair` works on a directory that refuses to open, under the writer's lock: it checks
the files as `logstore.verify` does, decides which bytes stay (`plan`), keeps the rest
(`quarantine`), changes the files in steps that a crash cannot harm (`rewrite`), and
checks again. docs/design.md, "Repair", has the cases.
"""

from logstore.maintenance.repair.report import RepairAction, RepairReport
from logstore.maintenance.repair.run import repair

__all__ = ["RepairAction", "RepairReport", "repair"]
