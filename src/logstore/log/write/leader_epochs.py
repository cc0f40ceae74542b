"""The leader epochs of a log: Kafka's checkpoint of them."""

from __future__ import annotations

from logstore.errors import CorruptCheckpointError, LogStoreError, storage_error
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.log.write.context import LogContext
from logstore.segment import Segment

__all__ = ["LeaderEpochWriter"]


class LeaderEpochWriter:
    """The leader-epoch-checkpoint of one log. The log's lock guards it.

    Invariant: `_epochs` is the content of the file; None if it is unknown or empty.
    """

    __slots__ = ("_context", "_epochs")

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._epochs: list[tuple[int, int]] | None = None

    def at(self, base: int, segments: tuple[Segment, ...]) -> int:
        """The epoch to stamp on batches of magic 2; the first is 0, from `base` on.

        Kafka wants the epoch in leader-epoch-checkpoint before the data.
        """
        context = self._context
        try:
            if self._epochs is None:
                self._epochs = self._read()
            if not self._epochs:
                context.services.state.begin_writing()
                epoch = 0 if context.is_contiguous else _newest(segments)
                epochs = [(epoch, base)]
                checkpoints.write_epochs(context.directory, epochs)
                self._epochs = epochs
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            path = context.directory.path_of(layout.LEADER_EPOCHS)
            raise storage_error(
                error, "read or write", path, "Nothing was appended."
            ) from error
        return self._epochs[-1][0]

    @property
    def known(self) -> int:
        """The epoch that `at` returned last; -1 before, and after a cut that removed
        all epochs."""
        return self._epochs[-1][0] if self._epochs else -1

    def _read(self) -> list[tuple[int, int]]:
        """The epochs in the checkpoint; empty if they are impossible. No checksum
        covers the file, and logstore alone writes epoch 0 only."""
        is_contiguous = self._context.is_contiguous
        try:
            epochs = checkpoints.read_epochs(self._context.directory)
        except CorruptCheckpointError:
            if is_contiguous:
                return []
            raise
        if is_contiguous and any(epoch for epoch, _ in epochs):
            return []
        return epochs

    def cut(self, offset: int) -> None:
        """Drop the epochs that begin at an offset or after it."""
        epochs = self._read()
        kept = [entry for entry in epochs if entry[1] < offset]
        if kept != epochs:
            checkpoints.write_epochs(self._context.directory, kept)
        self._epochs = kept or None


def _newest(segments: tuple[Segment, ...]) -> int:
    """The epoch of the last batches of magic 2; 0 without such batches."""
    if not segments or not segments[-1].size:
        return 0
    headers = segments[-1].headers(checks=0)
    return max(0, max(header.leader_epoch for header, _, _ in headers))
