"""Publishing: records go into any number of partitions at once, or not at all, and
those of one identity and sequence number only once.

The pieces, in the root directory (docs/format.md, docs/design.md "Publishing"):

    .logstore-staged-*    what is to be published (staging.py)
    .logstore-publication while it is under way: where each log ended before
    .logstore-published   the last sequence number of each identity

`.logstore-publication` holds what `.logstore-published` will. As long as it has its
first name no reader looks past the ends that it gives, and whoever opens the store
takes away what lies behind them. Renaming it to the second name is the commit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from logstore import checkpoints, layout
from logstore._files import Directory
from logstore.errors import (
    LogStoreError,
    PublicationConflictError,
    StorageError,
    SyncFailedError,
    TopicNotFoundError,
    storage_error,
)
from logstore.marks import Marks
from logstore.staging import Staged, StagedLog, moved_runs, staged_sequence
from logstore.writer import PartitionWriter

__all__ = ["Publication", "Publications"]

logger = logging.getLogger("logstore")

TopicPartition = tuple[str, int]

# Identities that are remembered; beyond that, those that published last.
IDENTITIES_MAX: Final = 10_000
_QUIET: Final = None, None
# What a new segment takes beside its log, at the most that counts.
_SEGMENT_BYTES: Final = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Publication:
    """What was published.

    Attributes:
        identity, sequence: as given to `Store.publish`.
        records: how many, in all partitions.
        offsets: of each (topic, partition), the offsets that they have; empty where it
            was published before.
        is_new: False: it was published before, and nothing was done.
    """

    identity: str
    sequence: int
    records: int
    offsets: Mapping[TopicPartition, range]
    is_new: bool = True


class _Target:
    """A partition that is being published to."""

    def __init__(self, writer: PartitionWriter) -> None:
        self.writer = writer
        self.key = writer.topic, writer.partition
        self.parts: list[tuple[str, StagedLog]] = []
        self.base = 0
        self.place = 0, 0

    @property
    def bytes(self) -> int:
        return sum(log.bytes for _, log in self.parts)


class Publications:
    """The publications of one store.

    Args:
        writer_of: the writer of a partition, or why there is none.
    """

    def __init__(
        self,
        root: Directory,
        marks: Marks,
        writer_of: Callable[[TopicPartition], PartitionWriter],
    ) -> None:
        self._root = root
        self._marks = marks
        self._writer_of = writer_of
        # What `ceilings` found last, behind the token that it found it for.
        self._found: tuple[object, dict[TopicPartition, int]] = (_QUIET, {})

    # ------------------------------------------------------------ readers

    def token(self) -> tuple[object, object]:
        """What changes with every publication that begins or ends."""
        return self._look(layout.PUBLICATION), self._look(layout.PUBLISHED)

    def _look(self, name: str) -> object:
        try:
            info = self._root.stat(name)
        except FileNotFoundError:
            return None
        return info.inode, info.mtime_ns, info.size

    def ceilings(
        self, token: tuple[object, object]
    ) -> dict[TopicPartition, int] | None:
        """Where readers have to stop, by partition, at the time of a token.

        None: the publication of that time is over, and nobody knows how it ended.

        Raises:
            CorruptCheckpointError, OSError: the file cannot be read.
        """
        if token[0] is None:
            return {}
        known, found = self._found
        if token != known:
            value = checkpoints.read_state(self._root, layout.PUBLICATION)
            if value is None or self.token() != token:
                return None
            marks = Marks(self._root)
            marks.read_owner(self._root.names(), lambda action: None)
            found = _bases(value) if _is_of(value, marks) else {}
            self._found = token, found
        return found

    # ------------------------------------------------------------ what was published

    def published(self) -> dict[str, dict[str, int]]:
        """Of each identity: its last ``sequence``, ``records`` of that, ``time_ms``.

        Raises:
            CorruptCheckpointError: the file is damaged.
            OSError: it cannot be read.
        """
        value = checkpoints.read_state(self._root, layout.PUBLISHED)
        found: dict[str, dict[str, int]] = {} if value is None else value["published"]
        return found

    # ------------------------------------------------------------ recovery

    def finish(self, drop: Callable[[TopicPartition, int], None]) -> None:
        """Take away what a publication that was cut short has put into the logs.

        Where another program has written to the store since, what is there is that
        program's log, and stays.

        Args:
            drop: called with a partition and where it has to end; does nothing where it
                ends there already.

        Raises:
            CorruptCheckpointError, OSError: a file cannot be read or removed.
        """
        value = checkpoints.read_state(self._root, layout.PUBLICATION)
        if value is None:
            return
        left: dict[TopicPartition, int] = {}
        for key, base in _bases(value).items() if _is_of(value, self._marks) else ():
            try:
                drop(key, base)
            except TopicNotFoundError:
                continue
            except LogStoreError as error:
                logger.error("cannot undo a publication to %s-%d: %s", *key, error)
                left[key] = base
        self._end(value, left)

    def _end(self, value: dict[str, Any], left: Mapping[TopicPartition, int]) -> None:
        """Nothing is under way any more, but in partitions that are `left`."""
        if left:
            value = {**value, "bases": _rows(left)}
            checkpoints.write_state(self._root, layout.PUBLICATION, value)
            return
        self._root.unlink(layout.PUBLICATION, missing_ok=True)
        self._root.sync()

    # ------------------------------------------------------------ publishing

    def publish(
        self,
        staged: Iterable[Staged],
        identity: str,
        sequence: int,
        now_ms: int,
        begin_writing: Callable[[], None],
    ) -> Publication:
        """See `Store.publish`."""
        files = [one for one in staged if one.logs]
        published = self.published()
        last = published.get(identity) if identity else None
        if last is not None and sequence <= last["sequence"]:
            if sequence < last["sequence"]:
                raise PublicationConflictError(identity, sequence, last["sequence"])
            # Who published it may not have seen it become durable.
            checkpoints.write_state(
                self._root, layout.PUBLISHED, {"published": published}
            )
            self.discard(files)
            return Publication(identity, sequence, last["records"], {}, is_new=False)
        records = sum(one.records for one in files)
        if not files:
            return Publication(identity, sequence, 0, {})
        if self._root.exists(layout.PUBLICATION):
            raise StorageError(
                f"an earlier publication to {self._root.path} could not be undone; "
                f"nothing was published. Open the store again.",
                path=self._root.path_of(layout.PUBLICATION),
                action="publish to",
            )
        if identity:
            published.pop(identity, None)
            kept = list(published.items())[-(IDENTITIES_MAX - 1) :]
            entry = {"sequence": sequence, "records": records, "time_ms": now_ms}
            published = dict([*kept, (identity, entry)])
        begin_writing()
        with self._held(files) as targets:
            value = {
                "generation": self._marks.generation,
                "bases": _rows({target.key: target.base for target in targets}),
                "published": published,
            }
            self._put_in(targets, value)
            offsets = {t.key: range(t.base, t.writer.end_offset) for t in targets}
        self.discard(files)
        return Publication(identity, sequence, records, offsets)

    @contextlib.contextmanager
    def _held(self, files: Sequence[Staged]) -> Iterator[list[_Target]]:
        """The partitions of staged files, with their locks: nobody else appends."""
        targets: dict[TopicPartition, _Target] = {}
        for staged in files:
            for log in staged.logs:
                key = log.topic, log.partition
                if key not in targets:
                    targets[key] = _Target(self._writer_of(key))
                targets[key].parts.append((staged.name, log))
        with contextlib.ExitStack() as stack:
            for key in sorted(targets):
                stack.enter_context(targets[key].writer.sync_lock)
                stack.enter_context(targets[key].writer.lock)
            for target in targets.values():
                target.place = target.writer.place_of_end()
                target.base = target.writer.end_offset
            self._check_room(list(targets.values()))
            yield [targets[key] for key in sorted(targets)]

    def _check_room(self, targets: Sequence[_Target]) -> None:
        """Raise before the first byte where the disk has no room for all."""
        total = sum(target.bytes + _SEGMENT_BYTES for target in targets)
        targets[0].writer.check_room(total)

    def _put_in(self, targets: Sequence[_Target], value: dict[str, Any]) -> None:
        """Append, make durable, commit; or undo.

        1. write down where the logs end, and what will be published; 2. append to each
        log; 3. sync each; 4. rename the file (commit); 5. sync the directory.
        """
        root = self._root
        is_committed = False
        try:
            for target in targets:
                target.writer.ceiling = target.base
            checkpoints.write_state(root, layout.PUBLICATION, value)
            for target in targets:
                self._append(target)
            for target in targets:
                target.writer.sync_held()
            root.rename(layout.PUBLICATION, layout.PUBLISHED)
            is_committed = True
            root.sync()
        except BaseException as error:
            if not is_committed:
                self._undo(targets, value)
            else:
                self._show(targets)
            if isinstance(error, LogStoreError) or not isinstance(error, OSError):
                raise
            what = "publish to"
            failed = storage_error(error, what, root.path)
            if is_committed:
                raise SyncFailedError(
                    f"it was published to {root.path}, and a power cut may take it "
                    f"back: {error}",
                    errno=error.errno,
                    path=root.path,
                    action=what,
                ) from error
            raise failed from error
        self._show(targets)

    def _show(self, targets: Iterable[_Target]) -> None:
        for target in targets:
            target.writer.show_all()

    def _append(self, target: _Target) -> None:
        """All that was staged for one partition: one append, whole or absent."""
        writer, base, total = target.writer, target.base, target.bytes

        def runs() -> Iterator[tuple[Any, int]]:
            begin = base
            for name, log in target.parts:
                epoch = writer.leader_epoch(base) if log.magic == 2 else 0
                yield from moved_runs(self._root, name, log, begin, epoch)
                begin += log.records

        count = sum(log.records for _, log in target.parts)
        writer.append_runs(runs(), total, count)

    def _undo(self, targets: Sequence[_Target], value: dict[str, Any]) -> None:
        """Take the records out again; what cannot be undone takes no more appends, and
        is undone when the store is opened again."""
        left: dict[TopicPartition, int] = {}
        for target in targets:
            try:
                if target.writer.end_offset > target.base:
                    target.writer.truncate_to(target.base, target.place)
                elif target.writer.failed is not None:
                    raise target.writer.failed
            except (LogStoreError, OSError) as error:
                logger.error(
                    "cannot undo a publication to %s-%d: %s", *target.key, error
                )
                left[target.key] = target.base
        try:
            if left or self._root.exists(layout.PUBLICATION):
                self._end(value, left)
        except (LogStoreError, OSError) as error:
            # The next opening cuts all of them off where they end now.
            for target in targets:
                target.writer.end_for_good(error)
            return
        self._show(t for t in targets if t.key not in left)

    # ------------------------------------------------------------ staged files

    def discard(self, staged: Iterable[Staged]) -> None:
        """Remove staged files; one that cannot be removed costs only its space."""
        for one in staged:
            self._remove(one.name)

    def discard_leftovers(self, identity: str, before: int) -> None:
        """Remove the staged files of an identity with a sequence below `before`."""
        with contextlib.suppress(OSError):
            for name in self._root.names():
                sequence = staged_sequence(name, identity)
                if sequence is not None and sequence < before:
                    self._remove(name)

    def discard_older(self, before_ms: int) -> None:
        """Remove the staged files of all identities that were last written to before a
        time: their publication will not come any more."""
        with contextlib.suppress(OSError):
            for name in self._root.names():
                if not name.startswith(layout.STAGED_PREFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if self._root.stat(name).mtime_ns < before_ms * 1_000_000:
                        self._remove(name)

    def _remove(self, name: str) -> None:
        if not name.startswith(layout.STAGED_PREFIX):
            return
        try:
            self._root.unlink(name, missing_ok=True)
        except OSError as error:
            logger.warning("cannot remove the staged file %s: %s", name, error)


def _is_of(value: Mapping[str, Any], marks: Marks) -> bool:
    """Whether nobody but logstore has written to the store since a publication."""
    return marks.is_own and value["generation"] == marks.generation


def _rows(bases: Mapping[TopicPartition, int]) -> list[list[Any]]:
    return [[topic, number, base] for (topic, number), base in sorted(bases.items())]


def _bases(value: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {(topic, number): base for topic, number, base in value["bases"]}
