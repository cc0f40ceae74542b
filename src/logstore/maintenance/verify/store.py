"""`verify` itself: the kind of a path, and the checks of stores and single files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import partial

from logstore.config import StoreConfig
from logstore.errors import LogStoreError, StoreNotFoundError, storage_errors
from logstore.group.file.group_file import GroupFile
from logstore.io import layout
from logstore.io.checkpoint.publications import Publications
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import is_directory, open_root
from logstore.io.layout import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    SegmentFile,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
    partition_directory,
    segment_file,
)
from logstore.maintenance.finding import (
    FOREIGN,
    GROUP,
    LEFTOVER,
    LOST_SEGMENT,
    NOT_REGULAR,
    UNCLEAN_STOP,
    UNPUBLISHED,
    Finding,
)
from logstore.maintenance.finding import STATE as STATE_FAULT
from logstore.maintenance.names import foreign_text
from logstore.maintenance.verify.again import (
    CHECKS_MAX,
    partition_jobs,
    report_confirmed,
    seen,
)
from logstore.maintenance.verify.context import (
    StoreMetadata,
    check_checkpoint,
    context_of,
    own_state,
)
from logstore.maintenance.verify.decided import plan_of
from logstore.maintenance.verify.log import EndVerdict, LogWalk
from logstore.maintenance.verify.parallel import CheckJob, check_threads, run_jobs
from logstore.maintenance.verify.partition import check_snapshot, log_bytes
from logstore.maintenance.verify.paths import (
    OFFSET_CHECKPOINTS,
    STATE,
    kind_of_file,
    open_given,
    partitions_in,
)
from logstore.maintenance.verify.report import Check, Progress, Run, VerifyReport
from logstore.maintenance.verify.transactions import check_txn_index

PathLike = str | os.PathLike[str]


def verify(
    path_or_paths: PathLike | Iterable[PathLike],
    deep: bool = False,
    on_progress: Progress | None = None,
    *,
    threads: int | None = None,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
) -> VerifyReport:
    """Check stores, partition directories or single files, and list all problems.

    Changes nothing, takes no lock, follows no symbolic link below a path that is given,
    and may run while a writer or a broker works on the store: if a partition changes
    during its check, a problem is only reported if further checks find it, too.

    Shallow (the default), at the speed of the disk: of every batch the checksum, the
    lengths, the order of offsets, and the structure of records that are not compressed;
    segments do not overlap; every entry of an offset index points to the start of a
    batch and does not lead past its offset; time indexes rise and agree with the log;
    transaction indexes, producer snapshots, checkpoints and logstore's own state are
    valid; no byte and no segment that the state lists is missing. With `deep`, also the
    contents of compressed batches (with the checksums of inner messages), the names and
    values of record headers, control records, and that the transaction index names
    markers which are in the log.

    Args:
        path_or_paths: a store, a partition directory, or a file (`.log`, `.index`,
            `.timeindex`, `.txnindex`, `.snapshot`, a checkpoint), or several of them.
        deep: decompress and decode everything.
        on_progress: called with (bytes done, bytes in all) of `.log` files, never by
            two threads at a time; the first number never decreases.
        threads: how many check segments concurrently (1 to 64); None: the number of
            cores, at most 8. The report is the same for any number.
        store_config: its ``max_batch_decompressed_bytes`` limits how much is
            decompressed (with `deep`): a larger batch is not decompressed, but noted.

    Raises:
        ConfigError: a bad number of threads.
        StoreNotFoundError: a path does not exist, or cannot be checked.
        StorageError: a path cannot be read. An unreadable file below it is a problem.
    """
    run = examine(
        path_or_paths,
        deep,
        on_progress,
        threads=threads,
        store_config=store_config,
        files=_files,
    )
    return run.report()


def examine(
    path_or_paths: PathLike | Iterable[PathLike],
    deep: bool,
    on_progress: Progress | None,
    *,
    threads: int | None = None,
    store_config: StoreConfig | None = None,
    files: Files | None = None,
) -> Run:
    """Verify, and return the run with its findings, for callers that judge them."""
    if isinstance(path_or_paths, str | os.PathLike):
        path_or_paths = [path_or_paths]
    count = check_threads(threads, os.cpu_count())
    run = Run(files or Files(), deep, on_progress, store_config)
    checks: list[Check] = []
    try:
        for path in path_or_paths:
            checks.append(_target(run, os.path.abspath(os.fspath(path))))
        run.meter.total = sum(check.size() for check in checks)
        run_jobs((job for c in checks for job in c.jobs()), count, run.meter.stop)
    finally:
        for check in checks:
            check.close()
    return run


class StoreCheck(Check):
    """A whole store."""

    def __init__(self, run: Run, root: Directory) -> None:
        super().__init__(run, root)
        self.partitions = [root.child(name) for name in partitions_in(root)]

    def _is_partition(self, name: str) -> bool:
        try:
            return self.root.stat(name).is_directory
        except OSError:
            return False

    def size(self) -> int:
        return sum(log_bytes(directory) for directory in self.partitions)

    def jobs(self) -> Iterator[CheckJob]:
        run, root = self.run_of, self.root
        facts = self._check_root()
        if self.partitions and not facts.clean:
            run.note(
                UNCLEAN_STOP,
                root.path,
                "the store is in use, or its last writer died: opening it for "
                "writing repairs torn ends",
            )
        for directory in self.partitions:
            yield from partition_jobs(run, directory, partial(facts.now, directory))

    def root_problems(self) -> list[Finding]:
        """The faults in the store's directory, without its partitions."""
        self._check_root()
        return self.run_of.problems

    def _check_root(self) -> StoreMetadata:
        run, root = self.run_of, self.root
        facts = StoreMetadata(root, run)
        self._check_names(facts.names)
        for name in OFFSET_CHECKPOINTS:
            if name in facts.names:
                check_checkpoint(run, root, name)
        self._check_publication(facts)
        for name in (layout.PUBLISHED, layout.UNKNOWN, layout.PRODUCERS):
            own_state(root, name, run)
        self._check_topics(facts)
        for name in layout.group_files(facts.names):
            self._check_group(name)
        return facts

    def _check_group(self, name: str) -> None:
        """The file of a consumer group, as a member reads it."""
        file = GroupFile(self.root, name)
        with self.run_of.reporting(GROUP, self.root.path_of(name)):
            try:
                file.refresh()
            finally:
                file.close()

    def _check_publication(self, facts: StoreMetadata) -> None:
        """Whether a publication was cut short, or is under way: a log has more than the
        journal commits."""
        run, publications = self.run_of, Publications(self.root)
        path = self.root.path_of(layout.PUBLICATION)
        count = 0
        with run.reporting(STATE_FAULT, path, later=STATE_FAULT):
            cache_key = publications.cache_key()
            bases = publications.high_watermarks(cache_key) or {}
            count = sum(self._ends_after(facts, *each) for each in bases.items())
            if publications.cache_key() != cache_key:
                count = 0  # its writer publishes
        if count:
            run.note(
                UNPUBLISHED,
                path,
                f"{path}: a publication in {count} partitions has not ended, and "
                f"nothing of it was acknowledged, unless this is a copy; readers stop "
                f"before its records, and if its writer is gone, the next opening for "
                f"writing removes them",
            )

    def _ends_after(self, facts: StoreMetadata, key: TopicPartition, base: int) -> bool:
        """Whether the log of a partition has records from an offset on, as far as can
        be seen; its own check says what is wrong with it."""
        run, directory = self.run_of, self.root.child(partition_directory(*key))
        try:
            plan = plan_of(run, directory, facts.now(directory))[1]
        except (LogStoreError, OSError):
            return False
        return plan.end_offset > base

    def _check_topics(self, facts: StoreMetadata) -> None:
        """Check that the partitions in logstore's list of topics exist.

        A topic that is in the list, and is being neither created nor deleted, has all
        its directories at that moment. If one is missing a moment later, the list is
        read again: the topic may be deleted by now, and even created again.
        """
        run, root = self.run_of, self.root
        for _ in range(CHECKS_MAX):
            cache_key, findings = root.stamp(layout.TOPICS), run.child()
            missing = self._missing(findings, facts)
            if not missing or root.stamp(layout.TOPICS) == cache_key:
                break
        run.merge(findings)
        for name in missing:
            path = root.path_of(name)
            run.problem(LOST_SEGMENT, path, f"the directory {path} is gone")

    def _missing(self, run: Run, facts: StoreMetadata) -> list[str]:
        """The directories that the list of topics has and that do not exist."""
        value = own_state(self.root, layout.TOPICS, run)
        topics = value["topics"] if value and facts.own else {}
        names: list[str] = []
        for topic, settings in topics.items():
            if settings.get("creating") or settings.get("deleting"):
                continue
            expected = [
                layout.partition_directory(topic, number)
                for number in range(settings["partitions"])
            ]
            missing = [n for n, w in enumerate(expected) if not self._is_partition(w)]
            if missing and not layout.is_renamed_for_deletion(
                self.root.names(),
                topic,
                settings.get("id", ""),
                set(missing) if len(missing) < len(expected) else None,
            ):
                names += [expected[number] for number in missing]
        return names

    def _check_names(self, names: list[str]) -> None:
        run, root = self.run_of, self.root
        for name in names:
            path = root.path_of(name)
            try:
                info = root.stat(name)
            except OSError:
                continue
            special = not info.is_file and not info.is_directory
            is_valid = name in layout.NOT_PARTITIONS or parse_partition_directory(name)
            if special and (is_valid or name in (*OFFSET_CHECKPOINTS, layout.LOCK)):
                what = "a directory" if is_valid else "a regular file"
                run.problem(NOT_REGULAR, path, f"{path} is not {what}")
            if not info.is_directory or is_valid:
                continue
            moved = layout.transition_topic(name)
            if moved is not None:
                run.note(
                    LEFTOVER,
                    path,
                    f"{path}: a partition that was set aside ({moved[2]})",
                )
            else:
                run.note(FOREIGN, path, f"{path} {foreign_text(name)}")


class FileCheck(Check):
    """One file that was given by itself; its neighbours are checked, not reported."""

    def __init__(self, run: Run, directory: Directory, name: str) -> None:
        super().__init__(run, directory)
        self.name = name
        self.path = directory.path_of(name)
        self.parsed = parse_segment_file(name)
        self.kind = kind_of_file(name)
        if not self.kind:
            self.close()
            raise StoreNotFoundError(
                f"{self.path} is not a file of a store that can be checked",
                path=self.path,
            )

    def size(self) -> int:
        if self.kind not in (LOG, INDEX, TIME_INDEX):
            return 0
        try:
            return self.root.stat(self._log_name()).size
        except OSError:
            return 0

    def _log_name(self) -> str:
        if self.kind == LOG or self.parsed is None:
            return self.name
        return segment_file(self.parsed.base_offset, LOG) + self.parsed.transition

    def jobs(self) -> Iterator[CheckJob]:
        findings, before = self.run_of.child(), seen(self.root)
        yield CheckJob(None, partial(self._check, findings))
        yield CheckJob(
            None,
            partial(
                report_confirmed, self.run_of, findings, self.root, before, self._check
            ),
        )

    def _check(self, run: Run) -> None:
        root, name = self.root, self.name
        if self.kind in (LOG, INDEX, TIME_INDEX):
            self._check_log(run)
        elif self.kind == TXN_INDEX:
            parsed = self.parsed or SegmentFile(0, TXN_INDEX, "")
            check_txn_index(run, root, name, parsed, None)
        elif self.kind == SNAPSHOT:
            check_snapshot(run, root, name, is_clean=True)
        elif self.kind == STATE:
            own_state(root, name, run)
        else:
            check_checkpoint(run, root, name)

    def _check_log(self, run: Run) -> None:
        root = self.root
        base = self.parsed.base_offset if self.parsed else 0
        bases = [
            p.base_offset
            for other in root.names()
            if (p := parse_segment_file(other)) and p.suffix == LOG and not p.transition
        ]
        context = context_of(run.files, root)
        name = self._log_name()
        following = min((other for other in bases if other > base), default=None)
        end = EndVerdict()
        if following is None:
            # A directory of which nothing can be decided is no reason not to look.
            with contextlib.suppress(OSError):
                plan = plan_of(run, root, context)[1]
                if plan.tail is not None and plan.tail.name == name:
                    end = EndVerdict(plan.tail, plan.tail.pos + plan.tail.size)
        walk = LogWalk(run, root, name, base, context, following, end=end)
        if self.kind != LOG:
            if not root.exists(name):
                raise StoreNotFoundError(
                    f"{self.path} cannot be checked without its log, {name}",
                    path=self.path,
                )
            walk.index_names = (
                self.name if self.kind == INDEX else "",
                self.name if self.kind == TIME_INDEX else "",
            )
        walk.run()
        if self.kind != LOG:
            path = walk.facts.path
            run.findings = [finding for finding in run.findings if finding.path != path]


class LonePartition(Check):
    """A partition directory that was given by itself."""

    def size(self) -> int:
        return log_bytes(self.root)

    def jobs(self) -> Iterator[CheckJob]:
        files, root = self.run_of.files, self.root
        return partition_jobs(self.run_of, root, partial(context_of, files, root))


def _target(run: Run, path: str) -> Check:
    """The check for a path, by the kind of the path."""
    if not is_directory(run.files, path):
        parent = open_root(run.files, os.path.dirname(path))
        return FileCheck(run, parent, os.path.basename(path))
    root, _, is_one = open_given(run.files, path)
    try:
        with storage_errors("verify", path):
            return LonePartition(run, root) if is_one else StoreCheck(run, root)
    except BaseException:
        root.close()
        raise
