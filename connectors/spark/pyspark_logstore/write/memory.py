"""What the sink keeps in the store beside the number of a query's last batch, so that a
batch that is repeated is told from one of another query with the same id.

A query is known by the id in its checkpoint. In a copy of the checkpoint it is the same
one: a second query would be taken for the first one that repeats its batches, and its
rows be left out. So each publication carries which runs of the query there were, the
newest last: Spark gives each start of a query a run id of its own. A query that is
started again on its checkpoint comes behind the run before, which never comes back; one
that does come back runs beside it. And it carries how many bytes the batch had, beside
how many records: a batch that is repeated has as many.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from logstore import Publication, PublicationConflictError

__all__ = ["CopiedCheckpointError", "Memory", "Turn", "bytes_of"]

logger = logging.getLogger("logstore.spark")

# Run ids have 36 characters, and a note has 1000 at the most.
RUNS_MAX: Final = 20
UNKNOWN_BYTES: Final = -1


class CopiedCheckpointError(PublicationConflictError):
    """Two queries run under one id, on copies of one checkpoint; or a batch that is
    repeated has other rows."""

    def __init__(self, identity: str, sequence: int, last: int, why: str) -> None:
        super().__init__(identity, sequence, last)
        self.args = (why,)


class Memory(NamedTuple):
    """What is kept.

    Attributes:
        runs: the ids of the runs that have published, the newest last.
        bytes: of the keys and values of the last batch; -1: not known.
    """

    runs: tuple[str, ...] = ()
    bytes: int = UNKNOWN_BYTES

    def to_note(self) -> str:
        """As text for `Store.publish`."""
        return json.dumps(
            {"runs": self.runs[-RUNS_MAX:], "bytes": self.bytes}, separators=(",", ":")
        )

    @classmethod
    def of_note(cls, note: str) -> Memory:
        """What `to_note` made; of any other text, nothing is known."""
        try:
            value = json.loads(note)
            runs, size = value["runs"], value["bytes"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls()
        if not isinstance(runs, list) or type(size) is not int:
            return cls()
        return cls(tuple(run for run in runs if isinstance(run, str)), size)

    def with_run(self, run_id: str, size: int) -> Memory:
        """The same after a publication of a run."""
        runs = [run for run in self.runs if run != run_id]
        return Memory((*runs, run_id) if run_id else tuple(runs), size)


class Turn(NamedTuple):
    """A batch that is to be published.

    Attributes:
        identity, sequence: under which.
        records, bytes: how many rows, and of how many bytes.
        run_id: of the query, "" where Spark does not say: then nothing tells its runs
            apart. None for a batch write: the application says that it is the same.
    """

    identity: str
    sequence: int
    records: int
    bytes: int
    run_id: str | None

    def check(self, last: Publication | None, *, allow_rewind: bool) -> Memory:
        """Whether it may be published, or left out as one that was published before;
        returns what is to be kept with it.

        Args:
            last: what was published last under the identity.
            allow_rewind: leave out, with a warning, what is not the batch that was
                published under its number.

        Raises:
            CopiedCheckpointError: another query publishes under the identity.
        """
        run_id = _short(self.run_id or "")
        memory = Memory() if last is None else Memory.of_note(last.note)
        if last is not None and run_id in memory.runs[:-1]:
            raise CopiedCheckpointError(
                self.identity,
                self.sequence,
                last.sequence,
                f"{self.identity!r}: batch {self.sequence} comes from run {run_id} of "
                f"the query, and run {memory.runs[-1]}, which was started later, has "
                f"published batch {last.sequence}: two queries run on copies of one "
                f"checkpoint, or the one before was not stopped. Nothing was "
                f"published. Stop one of them; the other one is started again, on a "
                f"checkpoint of its own",
            )
        if last is None or self.sequence != last.sequence:
            return memory.with_run(run_id, self.bytes)
        if self._is_other(last, memory):
            self._tell(last, memory, fails=self.run_id is not None and not allow_rewind)
        # The bytes are those of the rows that are in the log.
        return memory.with_run(run_id, memory.bytes)

    def _is_other(self, last: Publication, memory: Memory) -> bool:
        known = memory.bytes not in (UNKNOWN_BYTES, self.bytes)
        return self.records != last.records or known

    def _tell(self, last: Publication, memory: Memory, *, fails: bool) -> None:
        of = "" if memory.bytes == UNKNOWN_BYTES else f" of {memory.bytes} bytes"
        what = (
            f"{self.identity!r}: {last.sequence} was published before, with "
            f"{last.records} rows{of}, and is to be published with {self.records} rows "
            f"of {self.bytes} bytes"
        )
        if not fails:
            logger.warning("%s; these are left out, the others stay", what)
            return
        raise CopiedCheckpointError(
            self.identity,
            self.sequence,
            last.sequence,
            f"{what}. Another query runs on a copy of this checkpoint; or the query "
            f"gives other rows when a batch is repeated (random values, a table that "
            f"has changed). Nothing was published. For another query: a new "
            f"checkpoint. Else start it once with allowRewind=true, which leaves these "
            f"rows out",
        )


def _short(run_id: str) -> str:
    """A run id that takes no more room than it may; Spark's stay as they are."""
    if re.fullmatch(r"[0-9A-Za-z-]{0,36}", run_id):
        return run_id
    return hashlib.sha256(run_id.encode(errors="replace")).hexdigest()[:36]


def bytes_of(rows: Any) -> int:
    """How many bytes the keys and values of a record batch have, the same in whatever
    order the rows come."""
    size = 0
    for name in ("key", "value"):
        if name in rows.schema.names:
            column = rows.column(name)
            if pa.types.is_binary_view(column.type) or pa.types.is_string_view(
                column.type
            ):
                column = column.cast(pa.large_binary())
            size += pc.sum(pc.binary_length(column)).as_py() or 0
    return size
