"""The report of `verify`, and how its parts collect it."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from logstore import _native as native
from logstore.config import StoreConfig
from logstore.errors import (
    CorruptIndexError,
    CorruptionError,
    StorageError,
    UnsupportedError,
    storage_error,
)
from logstore.io.directory import NOT_A_FILE, Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.maintenance.finding import (
    CONTENTS,
    NOT_REGULAR,
    NOTE,
    PROBLEM,
    UNREADABLE,
    UNSUPPORTED,
    Finding,
)
from logstore.maintenance.verify.parallel import CheckJob

Progress: TypeAlias = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyProblem:
    """Something that is wrong.

    Attributes:
        kind: the fault, in a word: ``damaged-batch``, ``partial-batch``, ``zeros``,
            ``offsets``, ``lost-bytes``, ``extra-bytes``, ``lost-segment``,
            ``not-a-regular-file``, ``unreadable``, ``offset-index``, ``time-index``,
            ``transaction-index``, ``producer-snapshot``, ``checkpoint``, ``state``,
            ``digest``, ``unsupported``, ``start-beyond-end``, ``group``.
        path: absolute path of the file.
        position: its first byte; None if a position has no meaning.
        first_offset, last_offset: the offsets that cannot be read because of it,
            inclusive; None for no offsets or unknown ones.
        message: the same as a sentence.
    """

    kind: str
    path: str
    position: int | None
    first_offset: int | None
    last_offset: int | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyNote:
    """Something that is worth knowing and no problem; fields as in `Problem`.

    `kind` is ``torn-tail``, ``zero-tail``, ``leftover``, ``missing-index``, ``orphan``,
    ``unclean-stop``, ``in-use``, ``other-writer``, ``unpublished``, ``foreign``,
    ``known-damage`` (what an opening has recorded), or that of a `Problem` which
    the next opening for writing repairs.
    """

    kind: str
    path: str
    position: int | None
    first_offset: int | None
    last_offset: int | None
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`.

    Attributes:
        problems: all faults.
        notes: findings that are not faults but worth knowing.
        segments: number of `.log` files that were checked.
        batches: intact batches in them.
        records: records in those, control records left out. Without `deep`, the number
            in a wrapper of magic 0 or 1 is computed from its offsets.
        bytes: size of those files together.
        deep: whether the contents of compressed batches were checked.
        unopened: compressed batches whose contents were not checked, for want of
            `deep`; of magic 0 and 1 these have the offsets of their messages.
    """

    problems: tuple[VerifyProblem, ...] = ()
    notes: tuple[VerifyNote, ...] = ()
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    deep: bool = False
    unopened: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


class StoppedError(Exception):
    """The call has ended meanwhile: the work that a thread still does is not used."""


class Meter:
    """Bytes done and in all, reported to `on_progress` by one thread at a time."""

    def __init__(self, on_progress: Progress | None) -> None:
        self.on_progress = on_progress
        self.done = self.total = 0
        self.is_stopped = False
        self._lock = threading.Lock()

    def advance(self, size: int) -> None:
        with self._lock:
            if self.is_stopped:
                raise StoppedError
            self.done += size
            if self.on_progress is not None:
                self.on_progress(min(self.done, self.total), self.total)

    def stop(self) -> None:
        """Have all threads end at their next step."""
        self.is_stopped = True


class Run:
    """The findings of one call, and the objects that all its parts share.

    A part that is checked concurrently with others collects its findings in a `child`,
    which is merged when its turn comes: the order is the same for any number of
    threads.

    Attributes:
        refusing: paths of the partitions that would take no appends if they were opened
            for writing.
    """

    def __init__(
        self,
        files: Files,
        deep: bool,
        on_progress: Progress | None,
        config: StoreConfig | None = None,
    ) -> None:
        self.files = files
        self.deep = deep
        self.meter = Meter(on_progress)
        self.descriptors = Descriptors(files, 16)
        self.limit = (config or StoreConfig()).max_batch_decompressed_bytes
        self._decoders = threading.local()
        self._begin()

    def _begin(self) -> None:
        self.findings: list[Finding] = []
        self.refusing: set[str] = set()
        self.segments = self.batches = self.records = self.bytes = self.unopened = 0

    @property
    def decoder(self) -> native.Decoder:
        """The decoder of this thread."""
        decoder: native.Decoder | None = getattr(self._decoders, "decoder", None)
        if decoder is None:
            decoder = self._decoders.decoder = native.Decoder()
        return decoder

    def child(self) -> Run:
        """A run of the same call without findings."""
        child = copy.copy(self)
        child._begin()
        return child

    def merge(self, child: Run) -> None:
        """Append the findings of a child to this run's."""
        self.findings += child.findings
        self.refusing |= child.refusing
        self.segments += child.segments
        self.batches += child.batches
        self.records += child.records
        self.bytes += child.bytes
        self.unopened += child.unopened

    @property
    def problems(self) -> list[Finding]:
        """The faults."""
        return [finding for finding in self.findings if finding.is_problem]

    def problem(self, kind: str, path: str, message: str, *place: int | None) -> None:
        """A fault; `place`: position, first and last offset, as far as known."""
        self._add(PROBLEM, kind, path, message, *place)

    def note(self, kind: str, path: str, message: str, *place: int | None) -> None:
        """Worth knowing, and no fault; `place` as in `problem`."""
        self._add(NOTE, kind, path, message, *place)

    def _add(
        self,
        severity: str,
        kind: str,
        path: str,
        message: str,
        position: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        place = position, first, last
        self.findings.append(Finding(CONTENTS, kind, severity, path, message, *place))

    def unreadable(self, path: str, error: OSError) -> None:
        """Report a path that the system does not let us read, or no regular file."""
        if error.errno in NOT_A_FILE:
            self.problem(NOT_REGULAR, path, f"{path} is not a regular file")
            return
        if not isinstance(error, StorageError):
            error = storage_error(error, "read", path)
        self.problem(UNREADABLE, path, str(error))

    def reporting(self, kind: str, path: str, *, later: str = UNSUPPORTED) -> Reporting:
        """``with`` it, an error of the body is a problem of a file.

        Args:
            kind: if the file is damaged.
            later: if a later version wrote it.
        """
        return Reporting(self, kind, path, later)

    def report(self) -> VerifyReport:
        findings = tuple(dict.fromkeys(self.findings))
        return VerifyReport(
            tuple(
                VerifyProblem(*view(finding))
                for finding in findings
                if finding.is_problem
            ),
            tuple(
                VerifyNote(*view(finding))
                for finding in findings
                if not finding.is_problem
            ),
            self.segments,
            self.batches,
            self.records,
            self.bytes,
            self.deep,
            self.unopened,
        )


class Reporting:
    """See `Run.reporting`."""

    def __init__(self, run: Run, kind: str, path: str, later: str) -> None:
        self._run, self._kind, self._path, self._later = run, kind, path, later

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        run, kind, path = self._run, self._kind, self._path
        if isinstance(error, CorruptionError):
            is_index = isinstance(error, CorruptIndexError)
            position = error.position if is_index else None
            run.problem(kind, path, str(error), position)
        elif isinstance(error, UnsupportedError):
            run.problem(self._later, path, str(error))
        elif isinstance(error, OSError):
            run.unreadable(path, error)
        elif isinstance(error, ValueError):
            run.problem(kind, path, f"{path} cannot be used: {error}")
        else:
            return False
        return True


def view(finding: Finding) -> tuple[str, str, int | None, int | None, int | None, str]:
    """The fields of a `Problem` or `Note`."""
    offsets = finding.first_offset, finding.last_offset
    return finding.kind, finding.path, finding.position, *offsets, finding.message


class Check:
    """One path that was given."""

    def __init__(self, run: Run, root: Directory) -> None:
        self.run_of = run
        self.root = root

    def size(self) -> int:
        """Bytes of `.log` files, if they are known."""
        raise NotImplementedError

    def jobs(self) -> Iterator[CheckJob]:
        """The jobs of the check, in order (`logstore.maintenance.verify.parallel`)."""
        raise NotImplementedError

    def close(self) -> None:
        self.root.close()


# Pickles of 0.1 have these names, until 0.2.
Problem = VerifyProblem
Note = VerifyNote
