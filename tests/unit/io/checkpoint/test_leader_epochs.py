"""Kafka's leader epochs show how far a log of another program is unchanged."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.cuts import NO_CUT
from logstore.io.checkpoint.leader_epochs import LeaderEpochs
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import Unsynced
from support.values import config_of

Rows = tuple[tuple[int, int], ...]

CASES: dict[str, tuple[Rows, Rows, int | None]] = {
    "the same": (((1, 0), (2, 10)), ((1, 0), (2, 10)), NO_CUT),
    "another leader": (((1, 0),), ((1, 0), (2, 10)), 10),
    "cut, and another leader": (((1, 0), (2, 10)), ((1, 0), (3, 7)), 7),
    "cut behind the last epoch": (((1, 0), (2, 10)), ((1, 0), (2, 10), (3, 15)), 15),
    "cut, and nobody leads": (((1, 0), (2, 10)), ((1, 0),), 10),
    "cut to the start": (((1, 0), (2, 10)), ((3, 0),), 0),
    "head deleted": (((1, 0), (2, 10)), ((1, 5), (2, 10)), NO_CUT),
    "head deleted, and cut": (((1, 0), (2, 10)), ((1, 5), (3, 8)), 8),
    "an epoch deleted with the head": (((1, 0), (2, 10)), ((2, 12),), NO_CUT),
    "begun anew behind its end": (((1, 0),), ((2, 30),), 30),
    "nothing known": ((), ((1, 0),), None),
    "nothing known now": (((1, 0),), (), None),
}


@pytest.mark.parametrize("case", CASES)
def test_log_is_the_same_below_the_first_epoch_that_differs(case: str) -> None:
    was, now, expected = CASES[case]
    assert LeaderEpochs(was).same_below(LeaderEpochs(now)) == expected
    assert LeaderEpochs(now).same_below(LeaderEpochs(was)) == expected


def test_epochs_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    """This holds even if it is too young for its time to show it; a damaged or missing
    file has no epochs."""
    path = tmp_path / "leader-epoch-checkpoint"
    directory = Directory.open_root(Files(), str(tmp_path))
    known = LeaderEpochs.of(directory)
    assert known.rows == ()
    assert known.now(directory) is known
    for rows in (((1, 0),), ((2, 0),), ((3, 0),)):
        lines = "".join(f"{epoch} {first}\n" for epoch, first in rows)
        path.write_text(f"0\n{len(rows)}\n{lines}")
        assert known.now(directory) is not known
        known = known.now(directory)
        assert known.rows == rows
        assert known.now(directory) is known
    os.utime(path, (1, 1))
    time.sleep(0.1)  # another program may set the time of a later change back
    assert known.now(directory) is known
    assert known.cache_key is not None
    for text in ("damaged", "0\n1\n2147483648 0\n", f"0\n1\n0 {1 << 63}\n"):
        path.write_text(text)
        assert known.now(directory).rows == ()
    directory.close()


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_epoch_that_no_batch_can_have_is_named_or_put_right(
    tmp_path: Path, is_closed: bool
) -> None:
    """The file is under no checksum. A log of logstore's own has epoch 0."""
    with open_store(tmp_path / "own", _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        partition.append(b"one")
        if not is_closed:
            shutil.copytree(tmp_path / "own", tmp_path / "copy")
    path = tmp_path / ("own" if is_closed else "copy")
    for is_foreign in (False, True):
        if is_foreign:
            foreign(path)
        epochs = path / "orders-0" / "leader-epoch-checkpoint"
        epochs.write_text(f"0\n1\n{(1 << 63) - 2} 0\n")
        with open_store(path, _files=Unsynced()) as store:
            partition = store.topic("orders")[0]
            end = partition.end_offset
            if is_foreign:
                store.topic("orders").configure(config_of(2))
                with pytest.raises(
                    logstore.errors.CorruptCheckpointError, match="not a number"
                ):
                    partition.append(b"two")
            else:
                partition.append(b"two")
                assert epochs.read_text() == "0\n1\n0 1\n"
                end += 1
            assert len(list(partition.read())) == partition.end_offset == end
