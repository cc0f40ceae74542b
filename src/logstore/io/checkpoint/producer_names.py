"""The named producers of a store, `.logstore-producers`: the id and the epoch of each.

The file is written whole, durably, before a producer may use a new epoch, and nothing
is ever removed from it: a name that was forgotten would begin again with another id,
and its records would be appended twice.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.state_fields import EPOCH_MAX
from logstore.io.directory import Directory

__all__ = ["NAMED_ID_MIN", "NamedProducer", "read_names", "take_over"]

# Ids of named producers begin here. A broker assigns its own from 0 on.
NAMED_ID_MIN: Final = 1 << 62


class NamedProducer(NamedTuple):
    """A row of the file.

    Attributes:
        epoch: the newest one, of the newest id.
        ids: the newest first. Each had all epochs before the next one was taken.
    """

    epoch: int
    ids: tuple[int, ...]


def read_names(root: Directory) -> dict[str, NamedProducer]:
    """The named producers of a store.

    Raises:
        CorruptCheckpointError: the file is damaged.
        OSError: it cannot be read.
    """
    value: dict[str, Any] | None = checkpoints.read_state(root, layout.PRODUCERS)
    rows = [] if value is None else value["producers"]
    return {name: NamedProducer(epoch, tuple(ids)) for name, epoch, ids in rows}


def take_over(root: Directory, name: str) -> NamedProducer:
    """Give a name its next epoch, durably; at first, and after the last epoch, another
    id with epoch 0.

    Raises:
        CorruptCheckpointError: the file is damaged; it is not changed.
        OSError: it cannot be read or written; EFBIG if it has too many names. The name
            has its old epoch, or the new one.
    """
    names = read_names(root)
    before = names.get(name)
    if before is None:
        after = NamedProducer(0, (_new_id(),))
    elif before.epoch < EPOCH_MAX:
        after = before._replace(epoch=before.epoch + 1)
    else:
        after = NamedProducer(0, (_new_id(), *before.ids))
    names[name] = after
    rows = [
        [producer_name, row.epoch, list(row.ids)]
        for producer_name, row in names.items()
    ]
    checkpoints.write_state(root, layout.PRODUCERS, {"producers": rows})
    return after


def _new_id() -> int:
    """No two stores have the same: their partitions may be copied."""
    return NAMED_ID_MIN + secrets.randbelow(NAMED_ID_MIN)
