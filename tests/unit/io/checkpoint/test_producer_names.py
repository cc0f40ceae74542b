"""The ids and epochs of named producers."""

from __future__ import annotations

import pytest

from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.producer_names import (
    NAMED_ID_MIN,
    NamedProducer,
    read_names,
    take_over,
)
from logstore.io.checkpoint.state_fields import EPOCH_MAX
from logstore.io.directory import Directory


def write(root: Directory, rows: list[list[object]]) -> None:
    checkpoints.write_state(root, layout.PRODUCERS, {"producers": rows})


def test_each_taking_over_gives_the_next_epoch(root: Directory) -> None:
    first, other = take_over(root, "a"), take_over(root, "b")
    assert first.epoch == other.epoch == 0
    assert first.ids != other.ids
    assert min(*first.ids, *other.ids) >= NAMED_ID_MIN
    assert take_over(root, "a") == first._replace(epoch=1)
    assert read_names(root) == {"a": first._replace(epoch=1), "b": other}


def test_name_gets_another_id_after_the_last_epoch(root: Directory) -> None:
    """The batches of the earlier ids still belong to the name."""
    write(root, [["a", EPOCH_MAX - 1, [NAMED_ID_MIN + 5, NAMED_ID_MIN + 4]]])
    ids = NAMED_ID_MIN + 5, NAMED_ID_MIN + 4
    assert take_over(root, "a") == NamedProducer(EPOCH_MAX, ids)
    after = take_over(root, "a")
    assert after.epoch == 0
    assert after.ids[1:] == ids
    assert after.ids[0] not in ids
    assert read_names(root) == {"a": after}


@pytest.mark.parametrize(
    "rows",
    [
        [["a", 0, [NAMED_ID_MIN]], ["a", 1, [NAMED_ID_MIN + 1]]],
        [["", 0, [NAMED_ID_MIN]]],
        [["a", EPOCH_MAX + 1, [NAMED_ID_MIN]]],
        [["a", -1, [NAMED_ID_MIN]]],
        [["a", 0, []]],
        [["a", 0, [True]]],
        [["a", 0]],
        [[7, 0, [NAMED_ID_MIN]]],
    ],
)
def test_file_that_contradicts_itself_is_damaged_and_stays(
    root: Directory, rows: list[list[object]]
) -> None:
    data = checkpoints.pack_state({"producers": rows})
    root.write_file(layout.PRODUCERS, data)
    with pytest.raises(CorruptCheckpointError):
        take_over(root, "b")
    assert root.read_file(layout.PRODUCERS) == data
