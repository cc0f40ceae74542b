"""The directory of a store as its owner file has it: whether a store was copied.

The inode of the root, and the UUID of its file system, if it is known. Not the number
of the device, which changes when the machine starts.
"""

from __future__ import annotations

from typing import Any, Final

from logstore.errors import CorruptCheckpointError, UnsupportedError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory

__all__ = [
    "FIELD",
    "NOWHERE",
    "is_elsewhere",
    "is_known_copy",
    "is_left_over",
    "place_of",
]

# Its name in the owner file.
FIELD: Final = "directory"
# The value for a copy in any place, as a snapshot, also in the place of the
# store that it was made of: no inode has this number.
NOWHERE: Final = (0, "")


def place_of(root: Directory) -> list[Any]:
    """The value for the owner file of a directory."""
    with root.use() as fd:
        return [root.files.stat(fd).inode, root.files.file_system_id(fd)]


def is_elsewhere(recorded: object, root: Directory) -> bool:
    """Whether an owner file was written in another directory; not if it does not say,
    as that of an earlier version."""
    if not isinstance(recorded, list) or len(recorded) != 2:
        return False
    inode, system = place_of(root)
    is_same_system = not (recorded[1] and system) or recorded[1] == system
    return not (recorded[0] == inode and is_same_system)


def is_known_copy(root: Directory) -> bool:
    """Whether the owner file of a store says that the directory is a copy, or was
    moved: nothing in it is in use by processes that use the original."""
    try:
        owner = checkpoints.read_state(root, layout.OWNER)
    except (OSError, CorruptCheckpointError, UnsupportedError):
        return False
    return owner is not None and is_elsewhere(owner.get(FIELD), root)


def is_left_over(root: Directory, name: str) -> bool:
    """Whether a file with several names is one of the original of this directory, which
    may still use it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with root.use() as fd:
        return root.files.links(fd, name) > 1 and is_known_copy(root)
