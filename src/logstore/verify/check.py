def verify(
    path_or_paths: PathLike | Iterable[PathLike],
    deep: bool = False,
    on_progress: Progress | None = None,
    *,
    files: Files | None = None,
) -> VerifyReport:
    """Check stores, partition directories or single files, and list all problems.

    Changes nothing, takes no lock, follows no symbolic link below a path that is given,
    and may run while a writer or a broker works on the store.

    Shallow (the default), at the speed of the disk: of every batch the checksum, the
    lengths, the order of offsets, and the structure of records that are not compressed;
    segments do not overlap; every entry of an offset index points where a batch begins
    and does not lead past its offset; time indexes rise and say what the log says;
    transaction indexes, producer snapshots, checkpoints and logstore's own state are
    sound; no byte and no segment is missing that the state knows of. With `deep`, also
    what is inside compressed batches (with the checksums of inner messages), the names
    and values of record headers, control records, and that the transaction index names
    markers which are in the log.

    Args:
        path_or_paths: a store, a partition directory, or a file (`.log`, `.index`,
            `.timeindex`, `.txnindex`, `.snapshot`, a checkpoint), or several of them.
        deep: decompress and decode everything.
        on_progress: called with (bytes done, bytes in all) of `.log` files.
        files: the system calls to use (for tests).

    Raises:
        StoreNotFoundError: a path is not there, or is nothing that can be checked.
        StorageError: a path cannot be read. What cannot be read below it is a problem.
    """
    if isinstance(path_or_paths, str | os.PathLike):
        path_or_paths = [path_or_paths]
    run = _Run(files or Files(), deep, on_progress)
    checks = [_target(run, os.path.abspath(os.fspath(p))) for p in path_or_paths]
    try:
        run.total = sum(check.size() for check in checks)
        for check in checks:
            check.run()
    finally:
        for check in checks:
            check.close()
    return run.report()


class _Check:
    """One path that was given."""

    def __init__(self, run: _Run, root: Directory) -> None:
        self.run_of = run
        self.root = root

    def size(self) -> int:
        """Bytes of `.log` files, as far as they can be seen."""
        raise NotImplementedError

    def run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.root.close()


def _open_root(files: Files, path: str) -> Directory:
    try:
        return Directory.open_root(files, path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {path}", path=path) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error


def _is_directory(files: Files, path: str) -> bool:
    try:
        files.close(files.open_root(path))
    except NotADirectoryError:
        return False
    except FileNotFoundError as error:
        raise StoreNotFoundError(f"there is nothing at {path}", path=path) from error
    except OSError as error:
        raise storage_error(error, "open", path) from error
    return True


def _target(run: _Run, path: str) -> _Check:
    """What kind of thing a path is."""
    if not _is_directory(run.files, path):
        parent = _open_root(run.files, os.path.dirname(path))
        return _FileCheck(run, parent, os.path.basename(path))
    root = _open_root(run.files, path)
    names = root.names()
    if _is_partition(root, names):
        return _PartitionCheck(run, root, _context_of(run.files, root, run))
    if not _is_store(names):
        root.close()
        raise StoreNotFoundError(
            f"{path} is neither a store nor a partition directory", path=path
        )
    return _StoreCheck(run, root)


def _is_partition(root: Directory, names: list[str]) -> bool:
    own = (layout.PARTITION_STATE, layout.LEADER_EPOCHS, _PARTITION_METADATA)
    if any(parse_segment_file(name) or name in own for name in names):
        return True
    return parse_partition_directory(root.name) is not None and not _is_store(names)


def _is_store(names: list[str]) -> bool:
    marks = (
        layout.LOCK,
        layout.CLEAN_SHUTDOWN,
        layout.META_PROPERTIES,
        layout.OWNER,
        layout.TOPICS,
        *_OFFSET_CHECKPOINTS,
    )
    return any(name in marks or parse_partition_directory(name) for name in names)


def _context_of(files: Files, directory: Directory, run: _Run | None) -> _Context:
    """The context of a partition directory that was given by itself."""
    try:
        root = Directory.open_root(files, os.path.dirname(directory.path))
    except OSError:
        return _Context()
    try:
        return _StoreFacts(root).context(directory, run)
    except OSError:
        return _Context()
    finally:
        root.close()


class _StoreCheck(_Check):
    """A whole store."""

    def __init__(self, run: _Run, root: Directory) -> None:
        super().__init__(run, root)
        self.partitions = [
            root.child(name)
            for name in root.names()
            if parse_partition_directory(name) and self._is_directory(name)
        ]

    def _is_directory(self, name: str) -> bool:
        try:
            return self.root.stat(name).is_directory
        except OSError:
            return False

    def size(self) -> int:
        return sum(_log_bytes(directory) for directory in self.partitions)

    def run(self) -> None:
        run, root = self.run_of, self.root
        facts = _StoreFacts(root, run)
        self._check_names(facts.names)
        for name in _OFFSET_CHECKPOINTS:
            if name in facts.names:
                _check_checkpoint(run, root, name)
        _own_state(root, layout.TOPICS, run)
        if self.partitions and not facts.clean:
            run.note(
                UNCLEAN_STOP,
                root.path,
                "the store is in use, or its last writer died: opening it for writing "
                "mends what is torn",
            )
        for directory in self.partitions:
            try:
                context = facts.context(directory, run)
                _PartitionCheck(run, directory, context).run()
            except OSError as error:
                run.unreadable(directory.path, error)

    def _check_names(self, names: list[str]) -> None:
        run, root = self.run_of, self.root
        for name in names:
            path = root.path_of(name)
            try:
                info = root.stat(name)
            except OSError:
                continue
            special = not info.is_file and not info.is_directory
            known = name in layout.NOT_PARTITIONS or parse_partition_directory(name)
            if special and (known or name in (*_OFFSET_CHECKPOINTS, layout.LOCK)):
                what = "a directory" if known else "a regular file"
                run.problem(NOT_REGULAR, path, f"{path} is not {what}")
            if not info.is_directory or known:
                continue
            moved = layout.transition_topic(name)
            if moved is not None:
                run.note(LEFTOVER, path, f"{path}: a partition put aside ({moved[2]})")
            else:
                run.note(
                    FOREIGN,
                    path,
                    f"{path} is no partition; a Kafka broker refuses to start on it",
                )


def _log_bytes(directory: Directory) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for name in directory.names():
            if name.endswith((LOG, LOG + SWAP)):
                with contextlib.suppress(OSError):
                    total += directory.stat(name).size
    return total


class _PartitionCheck(_Check):
    """One partition directory."""

    def __init__(self, run: _Run, directory: Directory, context: _Context) -> None:
        super().__init__(run, directory)
        self.directory = directory
        self.context = context
        self.aborted: set[tuple[int, int]] = set()

    def size(self) -> int:
        return _log_bytes(self.directory)

    def run(self) -> None:
        names = self._regular(self.directory.names())
        found = self._survey(names)
        bases = sorted(found.logs)
        self._check_missing(found)
        last_before = -1
        for base in bases:
            log = self._segment(base, found, is_last=base == bases[-1])
            log.last_before = last_before
            log.run()
            last_before = max(log.last_offset, last_before)
        if bases:
            self._check_end(log)
        self._check_others(names, found)

    def _regular(self, names: list[str]) -> list[str]:
        """The names without those that are no regular files."""
        run, kept = self.run_of, []
        for name in names:
            path = self.directory.path_of(name)
            try:
                info = self.directory.stat(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                run.unreadable(path, error)
                continue
            known = parse_segment_file(name) or name in (
                layout.LEADER_EPOCHS,
                _PARTITION_METADATA,
                layout.PARTITION_STATE,
            )
            if info.is_file:
                kept.append(name)
            elif known:
                run.problem(NOT_REGULAR, path, f"{path} is not a regular file")
        return kept

    def _survey(self, names: list[str]) -> Survey:
        """What the names mean (`recovery.survey`), with notes about leftovers."""
        run, directory = self.run_of, self.directory
        try:
            found = survey(directory, run.descriptors)
        except OSError:
            # A `.swap` that cannot be read (reported already): as if it were not there.
            logs = {
                p.base_offset: ""
                for name in names
                if (p := parse_segment_file(name)) and not p.transition
                if p.suffix == LOG
            }
            found = Survey(logs, [], [], [], [], frozenset(names))
        regular = set(names)
        found.logs = {
            base: transition
            for base, transition in found.logs.items()
            if segment_file(base, LOG) + transition in regular
        }
        for suffix, some, meaning in (
            (DELETED, found.deleted, "wait for their deletion"),
            (CLEANED, found.leftovers, "are left of an unfinished compaction"),
            (SWAP, found.swaps, "replace others as soon as the log is opened"),
        ):
            if some:
                run.note(
                    LEFTOVER,
                    directory.path_of(some[0]),
                    f"{directory.path}: {len(some)} {suffix} files {meaning}",
                )
        return found

    def _segment(self, base: int, found: Survey, *, is_last: bool) -> _LogCheck:
        transition = found.logs[base]
        log = _LogCheck(
            self.run_of,
            self.directory,
            segment_file(base, LOG) + transition,
            base,
            self.context,
            is_last=is_last,
            aborted=self.aborted,
        )
        log.index = _OffsetIndexCheck(log, segment_file(base, INDEX) + transition)
        log.times = _TimeIndexCheck(log, segment_file(base, TIME_INDEX) + transition)
        return log

    def _check_missing(self, found: Survey) -> None:
        """Segments and bytes that logstore's own state knows of."""
        state = self.context.state
        if state is None:
            return
        present = set(found.logs)
        active = state.active["base_offset"]
        wanted = {row[0]: row for row in state.sealed}
        bases = sorted({*wanted, active})
        for base in bases:
            if base in present:
                if base in wanted:
                    self._check_sealed_size(base, wanted[base][1])
                continue
            if base == active and state.active["size"] == 0:
                continue
            if self._is_deleted_since(base):
                continue
            path = self.directory.path_of(segment_file(base, LOG))
            last = wanted[base][2] - 1 if base in wanted else state.durable_offset - 1
            self.run_of.problem(
                LOST_SEGMENT,
                path,
                f"segment {path} is gone: offsets {base} to {last}",
                first=base,
                last=last,
            )

    def _is_deleted_since(self, base: int) -> bool:
        """Whether a writer has deleted a segment after its state was read."""
        for _ in range(_ATTEMPTS):
            value = _own_state(self.directory, layout.PARTITION_STATE, None)
            try:
                state = None if value is None else PartitionState.from_dict(value)
            except (KeyError, TypeError, ValueError):
                return False
            if state is None or base < state.start_offset:
                known = {row[0] for row in state.sealed} if state else set()
                return base not in known
        return False

    def _check_sealed_size(self, base: int, size: int) -> None:
        name = segment_file(base, LOG)
        path = self.directory.path_of(name)
        try:
            found = self.directory.stat(name).size
        except OSError:
            return
        if found < size:
            self.run_of.problem(
                LOST_BYTES,
                path,
                f"{path} has {found} bytes, {size} were durable: {size - found} are "
                f"gone",
                position=found,
            )
        elif found > size:
            self.run_of.problem(
                EXTRA_BYTES,
                path,
                f"{path} is sealed and has {found} bytes, not {size}: {found - size} "
                f"too many",
                position=size,
            )

    def _check_end(self, log: _LogCheck) -> None:
        """Whether the log reaches as far as it is known to be durable."""
        run, context, path = self.run_of, self.context, log.path
        state = context.state
        end = log.last_offset + 1
        if state is not None:
            active = state.active
            if active["base_offset"] != log.base:
                return
            if log.size < active["size"]:
                run.problem(
                    LOST_BYTES,
                    path,
                    f"{path} has {log.size} bytes, {active['size']} were durable: "
                    f"{active['size'] - log.size} are gone from its end",
                    position=log.size,
                    first=end,
                    last=max(state.durable_offset - 1, end),
                )
            elif context.clean and log.size > active["size"]:
                run.problem(
                    EXTRA_BYTES,
                    path,
                    f"{path} has {log.size - active['size']} bytes behind the end of a "
                    f"log that was closed at byte {active['size']}",
                    position=active["size"],
                )
            return
        if log.batches and log.is_sound and end < context.recovery_point:
            run.problem(
                LOST_BYTES,
                path,
                f"{path} ends before offset {end}; according to "
                f"{layout.RECOVERY_CHECKPOINT} everything below "
                f"{context.recovery_point} was durable",
                position=log.size,
                first=end,
                last=context.recovery_point - 1,
            )

    def _check_others(self, names: list[str], found: Survey) -> None:
        """Files that are no log and no index of one."""
        run, directory = self.run_of, self.directory
        gone = {*found.superseded, *found.leftovers, *found.deleted}
        for name in names:
            if name in gone:
                continue
            parsed = parse_segment_file(name)
            if parsed is None:
                if name in (layout.LEADER_EPOCHS, _PARTITION_METADATA):
                    _check_checkpoint(run, directory, name)
                elif name.startswith(layout.TORN_PREFIX):
                    path = directory.path_of(name)
                    run.note(LEFTOVER, path, f"{path}: a torn tail that was cut")
                continue
            if parsed.suffix == SNAPSHOT:
                self._check_snapshot(name)
            elif parsed.suffix == TXN_INDEX:
                _check_txn_index(run, directory, name, parsed, self.aborted)
            elif parsed.suffix != LOG and parsed.base_offset not in found.logs:
                path = directory.path_of(name)
                run.note(ORPHAN, path, f"{path} has no log beside it")

    def _check_snapshot(self, name: str) -> None:
        run, path = self.run_of, self.directory.path_of(name)
        try:
            parse_snapshot(self.directory.read_file(name), path)
        except CorruptCheckpointError as error:
            # Not synced before its name appears: a crash may leave a part of it.
            tell = run.problem if self.context.clean else run.note
            tell(PRODUCER_SNAPSHOT, path, str(error))
        except OSError as error:
            run.unreadable(path, error)


class _FileCheck(_Check):
    """One file that was given by itself; its neighbours are looked at, not reported."""

    def __init__(self, run: _Run, directory: Directory, name: str) -> None:
        super().__init__(run, directory)
        self.name = name
        self.path = directory.path_of(name)
        self.parsed = parse_segment_file(name)
        self.kind = _kind_of_file(name)
        if not self.kind:
            self.close()
            raise StoreNotFoundError(
                f"{self.path} is no file of a store that can be checked",
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

    def run(self) -> None:
        run, root, name = self.run_of, self.root, self.name
        if self.kind in (LOG, INDEX, TIME_INDEX):
            self._check_log()
        elif self.kind == TXN_INDEX:
            parsed = self.parsed or SegmentFile(0, TXN_INDEX, "")
            _check_txn_index(run, root, name, parsed, None)
        elif self.kind == SNAPSHOT:
            _PartitionCheck(run, root, _Context(clean=True))._check_snapshot(name)
        elif self.kind == STATE:
            _own_state(root, name, run)
        else:
            _check_checkpoint(run, root, name)

    def _check_log(self) -> None:
        run, root = self.run_of, self.root
        base = self.parsed.base_offset if self.parsed else 0
        bases = [
            p.base_offset
            for other in root.names()
            if (p := parse_segment_file(other)) and p.suffix == LOG and not p.transition
        ]
        context = _context_of(run.files, root, None)
        name = self._log_name()
        is_last = base >= max(bases, default=base)
        log = _LogCheck(run, root, name, base, context, is_last=is_last)
        if self.kind == LOG:
            log.run()
            return
        if not root.exists(name):
            raise StoreNotFoundError(
                f"{self.path} cannot be checked without its log, {name}",
                path=self.path,
            )
        if self.kind == INDEX:
            log.index = _OffsetIndexCheck(log, self.name)
        else:
            log.times = _TimeIndexCheck(log, self.name)
        log.run()
        run.problems = [p for p in run.problems if p.path != log.path]
        run.notes = [p for p in run.notes if p.path != log.path]
