"""`repair` itself: the kind of a path, the lock, and the partitions one by one."""

from __future__ import annotations

import contextlib
import errno
import os

from logstore.config import StoreConfig, TopicConfig
from logstore.errors import ConfigError, StorageError, storage_errors
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import open_root, prepare_root
from logstore.io.layout import TopicPartition, parse_partition_directory
from logstore.io.lock_record import TOOL
from logstore.io.lock_wait import take_lock
from logstore.maintenance.finding import UNREADABLE, Finding
from logstore.maintenance.repair.copy import check_empty, copy_store
from logstore.maintenance.repair.ownership import RepairedOwnership
from logstore.maintenance.repair.partition import PartitionRepair
from logstore.maintenance.repair.report import RepairAction, RepairReport
from logstore.maintenance.repair.store_files import repair_root
from logstore.maintenance.verify import VerifyProblem
from logstore.maintenance.verify.context import StoreMetadata, topic_config
from logstore.maintenance.verify.parallel import check_threads, run_jobs
from logstore.maintenance.verify.partition import PartitionCheck, log_bytes
from logstore.maintenance.verify.paths import (
    no_log_directory,
    open_given,
    partitions_in,
)
from logstore.maintenance.verify.report import Progress, Run, view
from logstore.maintenance.verify.store import StoreCheck

PathLike = str | os.PathLike[str]


def repair(
    path: PathLike,
    mode: str | None = None,
    quarantine: PathLike | None = None,
    *,
    dry_run: bool = False,
    to: PathLike | None = None,
    on_progress: Progress | None = None,
    config: TopicConfig | None = None,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
) -> RepairReport:
    """Repair a damaged store or partition, and keep the bytes that are taken out of it.

    Holds the writer's lock during the call (not with `dry_run`). Batches that stay keep
    their offsets and their bytes. The call may be interrupted at any point and
    repeated. If a partition has contents that are not understood (a magic above 2, a
    codec that its magic does not have) or that the system refuses to read, the whole
    partition is not changed.

    Args:
        path: a store, or one partition directory.
        mode: which of two losses to accept; `dry_run` shows what each takes out. None:
            none. The logs are only examined, deeply; of a partition in which nothing
            is found, the damage that an opening has recorded (`.logstore-damaged`)
            is removed. ``"cut"``: the log ends at its first damage.
            ``"skip"``: only the damaged parts are removed; intact parts before and
            after them stay, with a gap in the offsets, and offsets that were durable
            are never assigned again.
        quarantine: where to keep the bytes taken out, in a directory for each partition
            there; made if missing. None: in a directory ``.logstore-quarantine-*``
            inside that of the partition. A manifest in it records the original places.
        dry_run: change nothing, and report what would be done.
        to: copy the store or partition into this directory, which must be missing or
            empty, and repair the copy: the source is only read, without its lock.
        on_progress: called with (bytes done, bytes in all) of `.log` files.
        config: its ``index_interval_bytes`` is used; None: that of the topic.
        store_config: whether a directory that others may change, or a network file
            system, is written to, the modes of new files, and how much of a batch is
            decompressed: the contents of a larger one are not checked, and it stays.

    Returns:
        The changes, and the problems that remain.

    Raises:
        ConfigError: an unknown mode; `to` is not empty, or is given together with
            `dry_run` or without a mode; others may change the directory, or it is on a
            network file system, and `store_config` does not allow that.
        StoreLockedError: a writer has the store.
        StoreNotFoundError: `path` is neither a store nor a partition directory.
        DiskFullError: there is no space for the bytes to keep, and the log is as it
            was; or for a later step: repeat the call when there is.
        StorageError: the system refuses. Repeat the call when the cause is fixed.
    """
    if mode not in ("cut", "skip", None):
        raise ConfigError(
            f"mode={mode!r}: it must be 'cut', 'skip' or None; nothing was done",
            name="mode",
            value=mode,
        )
    if to is not None and (dry_run or mode is None):
        raise ConfigError(
            "to needs a mode, and no dry_run: a dry run writes nothing",
            name="to",
            value=os.fspath(to),
        )
    files = _files or Files()
    outside = None if quarantine is None else os.path.abspath(os.fspath(quarantine))
    full = os.path.abspath(os.fspath(path))
    unchanged = "The remaining steps were not done; try again."
    with storage_errors("repair", full, unchanged), contextlib.ExitStack() as stack:
        root, names, is_whole = _open(files, full, stack)
        first: list[RepairAction] = []
        if to is not None:
            target = os.path.abspath(os.fspath(to))
            is_new = files.make_root(target)
            copy = open_root(files, target)
            stack.callback(copy.close)
            prepare_root(copy, store_config or StoreConfig(), is_new=is_new)
            check_empty(copy)
            stack.callback(take_lock(copy, TOOL).release)
            first = copy_store(root, copy, None if is_whole else names[0], names)
            root = copy
        elif not dry_run:
            prepare_root(root, store_config or StoreConfig())
            stack.callback(take_lock(root, TOOL).release)
        run = Run(files, True, on_progress, store_config)
        repair_of = _StoreRepair(root, mode, outside, dry_run, run, config)
        return repair_of.run(names, is_whole, first)


def _open(
    files: Files, full: str, stack: contextlib.ExitStack
) -> tuple[Directory, list[str], bool]:
    """(directory of the store, names of partitions, whether the store was given)."""
    directory, _, is_one = open_given(files, full)
    stack.callback(directory.close)
    if not is_one:
        return directory, partitions_in(directory), True
    if parse_partition_directory(directory.name) is None:
        raise no_log_directory(full)
    root = open_root(files, os.path.dirname(full))
    stack.callback(root.close)
    return root, [directory.name], False


def _facts_of(root: Directory) -> StoreMetadata:
    """The facts in the store's files. A file that the system refuses to read is an
    error, and not treated as missing."""
    run = Run(root.files, False, None)
    facts = StoreMetadata(root, run)
    for problem in run.problems:
        if problem.kind == UNREADABLE:
            raise StorageError(
                f"{problem.message}. Nothing was done",
                errno=errno.EIO,
                path=problem.path,
                action="read",
            )
    return facts


class _StoreRepair:
    """One call of `repair`."""

    def __init__(
        self,
        root: Directory,
        mode: str | None,
        outside: str | None,
        dry_run: bool,
        run: Run,
        config: TopicConfig | None,
    ) -> None:
        self.root = root
        self.mode = mode
        self.outside = outside
        self.dry_run = dry_run
        self.config = config
        self.threads = check_threads(None, os.cpu_count())
        self.run_of = run
        self.actions: list[RepairAction] = []
        self.problems: list[Finding] = []
        self.places: list[str] = []

    def run(
        self, names: list[str], is_whole: bool, first: list[RepairAction]
    ) -> RepairReport:
        self.actions += first
        if is_whole and self.mode is not None:
            self._repair_root(self.mode)
            if not self.dry_run:
                names = partitions_in(self.root)
        # Everything is checked before the repair, and once more afterwards.
        total = sum(log_bytes(self.root.child(name)) for name in names)
        self.run_of.meter.total = total if self.dry_run else 2 * total
        facts = _facts_of(self.root)
        ownership = RepairedOwnership(self.root, facts)
        ends: dict[TopicPartition, int] = {}
        for name in names:
            self._repair_partition(name, facts, ownership, ends)
        if not self.dry_run:
            ownership.finish(ends)
            self._verify(names, is_whole)
        return RepairReport(
            tuple(self.actions),
            tuple(
                VerifyProblem(*view(problem))
                for problem in dict.fromkeys(self.problems)
            ),
            self.mode,
            self.dry_run,
            tuple(self.places),
        )

    def _repair_root(self, mode: str) -> None:
        actions, problems, place = repair_root(
            self.run_of.child(),
            self.root,
            mode,
            self.outside,
            dry_run=self.dry_run,
        )
        self.actions += actions
        if self.dry_run:
            self.problems += problems
        if place is not None:
            self.places.append(place)

    def _repair_partition(
        self,
        name: str,
        facts: StoreMetadata,
        ownership: RepairedOwnership,
        ends: dict[TopicPartition, int],
    ) -> None:
        key = parse_partition_directory(name)
        assert key is not None  # chosen so
        directory = self.root.child(name)
        config = self.config or topic_config(self.root, directory)
        partition_repair = PartitionRepair(
            directory,
            key,
            config,
            facts,
            ownership,
            self.mode,
            self.outside,
            dry_run=self.dry_run,
        )
        try:
            seen = partition_repair.run(self.run_of.child(), self.threads)
        finally:
            self.actions += partition_repair.actions
            if partition_repair.quarantine.path is not None:
                self.places.append(partition_repair.quarantine.path)
        if partition_repair.end is not None:
            ends[key] = partition_repair.end
        if self.dry_run:
            self.problems += seen.problems

    def _verify(self, names: list[str], is_whole: bool) -> None:
        """The findings of `verify` after the repair."""
        run = self.run_of
        if is_whole:
            check = StoreCheck(run, self.root)
            run_jobs(check.jobs(), self.threads, run.meter.stop)
        else:
            facts = StoreMetadata(self.root)
            for name in names:
                directory = self.root.child(name)
                part = PartitionCheck(run, directory, facts.context(directory, run))
                run_jobs(part.jobs(), self.threads, run.meter.stop)
        self.problems += run.problems
