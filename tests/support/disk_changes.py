"""Nodes of a disk in memory, and changes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ROOT = 1
# Contents of a file; names in a directory, to the numbers of nodes.
Node = bytes | dict[str, int]
Nodes = dict[int, Node]


class Write(NamedTuple):
    """Bytes were written into a file."""

    node: int
    pos: int
    data: bytes


class Cut(NamedTuple):
    """A file got another length."""

    node: int
    size: int


class Names(NamedTuple):
    """Names in a directory changed, all of them or none: (name, node or None)."""

    directory: int
    entries: tuple[tuple[str, int | None], ...]
    fresh: Node | None = None  # the initial content of a node that it creates


Change = Write | Cut | Names


class Moment(NamedTuple):
    """A disk between two calls.

    Attributes:
        nodes: the state that programs see, and that a kill of the program leaves.
        base: the state that survives a power cut.
        pending: changes that a power cut may drop, in the order of the calls.
        clock: nanoseconds.
        what: the call before.
    """

    nodes: Nodes
    base: Nodes
    pending: tuple[Change, ...]
    clock: int
    what: str


def apply(nodes: Nodes, change: Change) -> None:
    """Make a change to nodes."""
    if isinstance(change, Write):
        old = nodes.get(change.node, b"")
        pos, data = change.pos, change.data
        if len(old) == pos:
            nodes[change.node] = old + data
        else:
            head = old[:pos].ljust(pos, b"\0")
            nodes[change.node] = head + data + old[pos + len(data) :]
    elif isinstance(change, Cut):
        old = nodes.get(change.node, b"")
        nodes[change.node] = old[: change.size].ljust(change.size, b"\0")
    else:
        names = nodes.get(change.directory)
        if names is None:
            return
        names = dict(names)
        for name, node in change.entries:
            if node is None:
                names.pop(name, None)
            else:
                # One whose beginning was lost is an empty file.
                nodes.setdefault(node, b"" if change.fresh is None else change.fresh)
                names[name] = node
        nodes[change.directory] = names


def tree(nodes: Nodes, directory: int = ROOT, path: str = "") -> dict[str, bytes]:
    """Paths below a directory, with the contents of files; b"/" for a directory."""
    found: dict[str, bytes] = {}
    for name, number in nodes[directory].items():
        node = nodes.get(number, b"")
        if isinstance(node, dict):
            found[f"{path}{name}"] = b"/"
            found.update(tree(nodes, number, f"{path}{name}/"))
        else:
            found[f"{path}{name}"] = node
    return found


def changes_up_to(pending: list[Change], cut: Cut) -> Iterator[Change]:
    """Changes made before a durable cut, without the parts of writes past its size:
    parts that are not on the disk yet never get there."""
    for change in pending:
        if isinstance(change, Write) and change.node == cut.node:
            data = change.data[: max(cut.size - change.pos, 0)]
            if data:
                yield change._replace(data=data)
        else:
            yield change
