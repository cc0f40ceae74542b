"""The note that the sink keeps in the store with the number of a query's last batch,
to distinguish a repeated batch from one of another query with the same id.

A query is identified by the id in its checkpoint. A copy of the checkpoint has the same
id: a second query would look like the first one repeating its batches, and its rows
would be left out. So each publication carries the runs of the query so far, the newest
last: Spark gives each start of a query a new run id. A query that is restarted on its
checkpoint follows the run before, which then publishes nothing more; an earlier run
that still publishes runs concurrently. The publication also carries the number of bytes
of the batch, in addition to the number of records: a repeated batch has the same
number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import PublicationConflictError
from logstore.types import Publication

__all__ = ["CopiedCheckpointError", "Memory", "Turn", "bytes_of"]

logger = logging.getLogger("logstore.spark")

# Run ids have 36 characters, and a note has at most 1000.
RUNS_MAX: Final = 20
UNKNOWN_BYTES: Final = -1


class CopiedCheckpointError(PublicationConflictError):
    """Two queries run under one id, on copies of one checkpoint; or a repeated batch
    has other rows."""

    def __init__(self, identity: str, sequence: int, last: int, why: str) -> None:
        super().__init__(identity, sequence, last)
        self.args = (why,)


class Memory(NamedTuple):
    """The content of the note.

    Attributes:
        runs: the ids of the runs that have published, the newest last.
        bytes: of the keys and values of the last batch; -1: not known.
    """

    runs: tuple[str, ...] = ()
    bytes: int = UNKNOWN_BYTES

    def to_note(self) -> str:
        """Text for `Store.publish`."""
        return json.dumps(
            {"runs": self.runs[-RUNS_MAX:], "bytes": self.bytes}, separators=(",", ":")
        )

    @classmethod
    def of_note(cls, note: str) -> Memory:
        """Parse the text of `to_note`; any other text gives an empty memory."""
        try:
            value = json.loads(note)
            runs, size = value["runs"], value["bytes"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls()
        if not isinstance(runs, list) or type(size) is not int:
            return cls()
        return cls(tuple(run for run in runs if isinstance(run, str)), size)

    def with_run(self, run_id: str, size: int) -> Memory:
        """The memory after a publication of a run."""
        runs = [run for run in self.runs if run != run_id]
        return Memory((*runs, run_id) if run_id else tuple(runs), size)


class Turn(NamedTuple):
    """A batch to publish.

    Attributes:
        identity, sequence: under which it is published.
        records, bytes: the number of rows, and of their bytes.
        run_id: of the query; "" if Spark does not give it: then its runs cannot be
            distinguished. None for a batch write: the application guarantees that a
            repetition has the same rows.
    """

    identity: str
    sequence: int
    records: int
    bytes: int
    run_id: str | None

    def check(self, last: Publication | None, *, allow_rewind: bool) -> Memory:
        """Check that it may be published, or left out as published before; returns the
        memory to be kept with it.

        Args:
            last: the last publication under the identity.
            allow_rewind: leave out, with a warning, a batch that is not the one that
                was published under its number.

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
                f"{self.identity!r}: batch {self.sequence} comes from run "
                f"{run_id} of the query, and run {memory.runs[-1]}, which was "
                f"started later, has published batch {last.sequence}: two queries "
                "run on copies of one checkpoint, or the one before was not "
                "stopped. Nothing was published. Stop one of them, and restart "
                "the other one on another checkpoint",
            )
        if last is None or self.sequence != last.sequence:
            return memory.with_run(run_id, self.bytes)
        if self._is_other(last, memory):
            self._report(
                last, memory, fails=self.run_id is not None and not allow_rewind
            )
        # The number of bytes remains that of the rows in the log.
        return memory.with_run(run_id, memory.bytes)

    def _is_other(self, last: Publication, memory: Memory) -> bool:
        is_other_size = memory.bytes not in (UNKNOWN_BYTES, self.bytes)
        return self.records != last.records or is_other_size

    def _report(self, last: Publication, memory: Memory, *, fails: bool) -> None:
        of = "" if memory.bytes == UNKNOWN_BYTES else f" of {memory.bytes} bytes"
        what = (
            f"{self.identity!r}: {last.sequence} was published before, with "
            f"{last.records} rows{of}, and would be published again with "
            f"{self.records} rows of {self.bytes} bytes"
        )
        if not fails:
            logger.warning("%s; the new rows are skipped", what)
            return
        raise CopiedCheckpointError(
            self.identity,
            self.sequence,
            last.sequence,
            f"{what}. Another query runs on a copy of this checkpoint; or the "
            "query gives other rows when a batch is repeated (random values, a "
            "table that has changed). Nothing was published. For another query: "
            "a new checkpoint. Else start it once with allowRewind=true, which "
            "skips these rows",
        )


def _short(run_id: str) -> str:
    """A run id of limited length; Spark's ids stay unchanged."""
    if re.fullmatch(r"[0-9A-Za-z-]{0,36}", run_id):
        return run_id
    return hashlib.sha256(run_id.encode(errors="replace")).hexdigest()[:36]


def bytes_of(rows: Any) -> int:
    """The number of bytes in the keys and values of a record batch, independent of the
    order of the rows."""
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
