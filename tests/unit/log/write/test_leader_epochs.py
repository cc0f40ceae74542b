"""The leader epochs of a log that logstore writes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from logstore.config import TopicConfig
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.layout import LEADER_EPOCHS
from logstore.log.write.context import LogContext
from logstore.log.write.leader_epochs import LeaderEpochWriter

ROWS = [(1, 0), (4, 10), (5, 20)]


class Store:
    """Parts of a store that are needed here."""

    begun = 0

    @property
    def state(self) -> Store:
        return self

    def begin_writing(self) -> None:
        self.begun += 1


def made(
    directory: Directory, *, is_contiguous: bool = False
) -> tuple[LeaderEpochWriter, Store]:
    store = Store()
    context = LogContext(
        cast(Any, store), directory, "orders", 0, TopicConfig(), log_id="",
        is_contiguous=is_contiguous, foreign_end=0,
    )  # fmt: skip
    return LeaderEpochWriter(context), store


@pytest.mark.parametrize(
    ("offset", "kept"), [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (99, 3)]
)
def test_epoch_that_begins_at_a_cut_is_dropped(
    directory: Directory, offset: int, kept: int
) -> None:
    """No batch of the epoch is left."""
    checkpoints.write_epochs(directory, ROWS)
    epochs, _ = made(directory)
    epochs.cut(offset)
    assert checkpoints.read_epochs(directory) == ROWS[:kept]
    assert epochs.known == (ROWS[kept - 1][0] if kept else -1)


def test_last_epoch_is_that_of_new_batches(directory: Directory) -> None:
    checkpoints.write_epochs(directory, ROWS)
    epochs, store = made(directory)
    assert epochs.known == -1
    assert epochs.at(30, ()) == 5
    assert epochs.known == 5
    assert store.begun == 0  # nothing was written


def test_first_epoch_is_in_the_file_before_the_first_batch(
    directory: Directory,
) -> None:
    epochs, store = made(directory, is_contiguous=True)
    assert epochs.at(7, ()) == 0
    assert store.begun == 1
    assert checkpoints.read_epochs(directory) == [(0, 7)]
    epochs.cut(7)
    assert epochs.known == -1
    assert epochs.at(5, ()) == 0
    assert checkpoints.read_epochs(directory) == [(0, 5)]


@pytest.mark.parametrize("content", [b"0\n1\n3 0\n", b"garbage"])
def test_epochs_that_logstore_does_not_write_are_replaced_in_its_own_log(
    directory: Directory, content: bytes
) -> None:
    """No checksum covers the file."""
    directory.write_file(LEADER_EPOCHS, content)
    epochs, _ = made(directory, is_contiguous=True)
    assert epochs.at(7, ()) == 0
    assert checkpoints.read_epochs(directory) == [(0, 7)]
