"""Repairing the files in a store's directory: checkpoints and logstore's own files.

None of them holds records. A damaged file is put aside, and the store works without it:
a recovery point is then unknown, a store without its owner file is treated as Kafka
would treat it, and topics without settings have the defaults.
"""

from __future__ import annotations

import os

from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition, parse_partition_directory
from logstore.maintenance import finding as kinds
from logstore.maintenance.finding import Finding
from logstore.maintenance.repair.quarantine import Quarantine
from logstore.maintenance.repair.report import PUT_ASIDE, STATE_BUILT, RepairAction
from logstore.maintenance.verify.paths import OFFSET_CHECKPOINTS, partitions_in
from logstore.maintenance.verify.report import Run
from logstore.maintenance.verify.store import StoreCheck

_WITHOUT = {
    layout.OWNER: "The store is opened as Kafka would open it, until it is written to",
    layout.TOPICS: "Topics have default settings: set theirs again",
    layout.RECOVERY_CHECKPOINT: "Recovery points are unknown",
    layout.LOG_START_CHECKPOINT: "Rebuilt from logstore's state of its partitions",
}


def repair_root(
    run: Run,
    root: Directory,
    mode: str,
    outside: str | None,
    *,
    dry_run: bool,
) -> tuple[list[RepairAction], list[Finding], str | None]:
    """Repair the files of a store's directory.

    1. copy damaged files into the quarantine, with a manifest; 2. remove them, or
    rewrite them; 3. create the missing directories of partitions.

    Returns (actions, problems found, where things were put).
    """
    problems = StoreCheck(run, root).root_problems()
    bad = {
        os.path.basename(p.path): p.message
        for p in problems
        if p.remedy == kinds.PUT_ASIDE
        and os.path.basename(p.path)
        in (*OFFSET_CHECKPOINTS, layout.OWNER, layout.TOPICS)
    }
    actions: list[RepairAction] = []
    if layout.RECOVERY_CHECKPOINT in bad and root.exists(layout.OWNER):
        # Its fingerprint is in the owner file, which is not valid from now on.
        path = root.path_of(layout.OWNER)
        bad.setdefault(layout.OWNER, f"{path} refers to a damaged checkpoint")
    quarantine = Quarantine(root, mode, outside, is_root=True)
    for name, reason in bad.items():
        kept = None if dry_run else quarantine.move(name, None, None, reason)
        label = STATE_BUILT if name == layout.LOG_START_CHECKPOINT else PUT_ASIDE
        message = f"{reason}. {_WITHOUT.get(name, 'Done without')}"
        path = root.path_of(name)
        actions.append(RepairAction(label, path, None, 0, None, None, kept, message))
    if bad and not dry_run:
        quarantine.ready()
        # The owner first: a crash from here on leaves a store that Kafka could have
        # written, and not one whose owner file is wrong.
        for name in sorted(bad, key=lambda name: name != layout.OWNER):
            if name == layout.LOG_START_CHECKPOINT:
                _rebuild_starts(root, quarantine)
            else:
                quarantine.take_out(name)
    for problem in problems:
        name = os.path.basename(problem.path)
        if (
            problem.kind != kinds.LOST_SEGMENT
            or parse_partition_directory(name) is None
        ):
            continue
        if not dry_run:
            root.make(name)
            root.sync()
        message = f"{problem.message}; created again, without its records"
        actions.append(
            RepairAction(STATE_BUILT, problem.path, None, 0, None, None, None, message)
        )
    return actions, problems, quarantine.path


def _rebuild_starts(root: Directory, quarantine: Quarantine) -> None:
    """Rebuild log start offsets from the states of partitions. A start only ever rises,
    so a state gives a correct start even if the state itself is not valid."""
    starts: dict[TopicPartition, int] = {}
    for name in partitions_in(root):
        try:
            state = PartitionState.read(root.child(name))
        except (CorruptCheckpointError, OSError):
            continue
        key = parse_partition_directory(name)
        if key is not None and state is not None and state.start_offset:
            starts[key] = state.start_offset
    data = checkpoints.format_offsets(starts)
    quarantine.take_out(layout.LOG_START_CHECKPOINT)
    root.write_file(layout.LOG_START_CHECKPOINT, data)
