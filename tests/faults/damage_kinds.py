"""Single damages to the files of a store, numbered, so that each can be repeated.

`Damages` counts them for a tree of files, and applies the n-th to a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logstore.io.layout import INDEX, LOG, TIME_INDEX, parse_segment_file, segment_file

__all__ = ["Damage", "Damages"]

BLOCK = 64

Tree = dict[str, bytes | None]


class Damage(NamedTuple):
    """A change of a file.

    Attributes:
        path: the file, below the store.
        kind: of damage.
        at: the byte (of "flip": the bit), or a number that the kind explains.
    """

    path: str
    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind} {self.path} at {self.at}"


# Each kind, with its number of damages for a file of n bytes.
_SIZES = {
    "flip": lambda n: 8 * n,
    "to-00": lambda n: n,
    "to-ff": lambda n: n,
    "cut": lambda n: n,
    # Blocks of 64 bytes, independent of batches.
    "zero-block": lambda n: -(-n // BLOCK),
    "repeat-block": lambda n: -(-n // BLOCK),
    "lose-block": lambda n: -(-n // BLOCK),
    "swap-block": lambda n: n // BLOCK - 1 if n >= 2 * BLOCK else 0,
    "old-block": lambda n: -(-n // BLOCK),
    "grow-zeros": lambda n: 4 if n else 0,
    "grow-copy": lambda n: 4 if n else 0,
    "missing": lambda n: 1,
    "empty": lambda n: 1 if n else 0,
    "zeros": lambda n: 1 if n else 0,
    "ones": lambda n: 1 if n else 0,
}
# Only for logs: `at` is a base offset, or the slot of another segment.
_BATCH_KINDS = ("lose-batch", "repeat-batch", "swap-batches", "old-batch")
_LOG_KINDS = ("copy-as", "swap-segments", "copy-over", "rename-to")


class Damages:
    """All single damages to the files of a tree."""

    def __init__(self, tree: Mapping[str, bytes | None], end_offset: int) -> None:
        self.tree = dict(tree)
        self._blocks: list[tuple[int, str, str]] = []
        self._total = 0
        self.logs = sorted(p for p in tree if p.endswith(LOG))
        self._end = end_offset
        for path, data in tree.items():
            if data is None or path == ".lock":
                continue
            for kind, count in _SIZES.items():
                self._add(path, kind, count(len(data)))
            if path.endswith(LOG):
                for kind in _BATCH_KINDS:
                    self._add(path, kind, len(_batches(data)))
                self._add(path, "copy-as", end_offset + 3)
                self._add(path, "rename-to", end_offset + 3)
                self._add(path, "swap-segments", len(self.logs))
                self._add(path, "copy-over", len(self.logs))

    def _add(self, path: str, kind: str, count: int) -> None:
        if count:
            self._total += count
            self._blocks.append((self._total, path, kind))

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number: int) -> Damage:
        low, high = 0, len(self._blocks) - 1
        while low < high:
            middle = (low + high) // 2
            if number < self._blocks[middle][0]:
                high = middle
            else:
                low = middle + 1
        before = self._blocks[low - 1][0] if low else 0
        end, path, kind = self._blocks[low]
        assert number < end
        return Damage(path, kind, number - before)

    def done(self, damage: Damage) -> Tree:
        """A copy of the tree with a damage done to it."""
        tree: Tree = dict(self.tree)
        path, kind, at = damage
        data = tree[path]
        assert data is not None
        if kind == "missing":
            del tree[path]
        elif kind in _LOG_KINDS:
            self._displace(tree, damage)
        elif kind in _BATCH_KINDS:
            tree[path] = self._with_batches(data, damage)
        else:
            tree[path] = self._changed(data, kind, at, path)
        return tree

    def _changed(self, data: bytes, kind: str, at: int, path: str) -> bytes:
        if kind == "flip":
            byte = at // 8
            flipped = data[byte] ^ (1 << at % 8)
            return data[:byte] + bytes([flipped]) + data[byte + 1 :]
        if kind == "to-00":
            return data[:at] + b"\x00" + data[at + 1 :]
        if kind == "to-ff":
            return data[:at] + b"\xff" + data[at + 1 :]
        if kind == "cut":
            return data[:at]
        if kind in ("zeros", "ones", "empty"):
            return {"zeros": b"\0", "ones": b"\xff", "empty": b""}[kind] * len(data)
        if kind == "grow-zeros":
            return data + bytes((1, 8, 61, 512)[at])
        if kind == "grow-copy":
            return data + (data[-BLOCK:], data[:BLOCK], data, data[:7])[at]
        return self._blocked(data, kind, BLOCK * at, path)

    def _blocked(self, data: bytes, kind: str, at: int, path: str) -> bytes:
        end = min(at + BLOCK, len(data))
        if kind == "zero-block":
            return data[:at] + bytes(end - at) + data[end:]
        if kind == "repeat-block":
            return data[:end] + data[at:]
        if kind == "lose-block":
            return data[:at] + data[end:]
        if kind == "swap-block":
            behind = end + BLOCK
            return data[:at] + data[end:behind] + data[at:end] + data[behind:]
        # The block at this place of another file of this kind, as if it had been
        # written to the wrong file; for the only file of its kind: the block before.
        others = [p for p in self.tree if p != path and _kind(p) == _kind(path)]
        other = self.tree[others[at // BLOCK % len(others)]] if others else None
        old = (other or b"")[at:end] or data[max(at - BLOCK, 0) :][: end - at]
        return data[:at] + old.ljust(end - at, b"\0") + data[end:]

    def _with_batches(self, data: bytes, damage: Damage) -> bytes:
        parts = _batches(data)
        at = damage.at
        if damage.kind == "lose-batch":
            del parts[at]
        elif damage.kind == "repeat-batch":
            parts.insert(at, parts[at])
        elif damage.kind == "swap-batches":
            other = (at + 1) % len(parts)
            parts[at], parts[other] = parts[other], parts[at]
        else:
            # A batch of an older segment, as a block that is used again may hold it.
            first = self.tree[self.logs[0]]
            assert first is not None
            old = _batches(first)
            parts[at] = old[at % len(old)]
        return b"".join(parts)

    def _displace(self, tree: Tree, damage: Damage) -> None:
        path, kind, at = damage
        folder = path.rpartition("/")[0]
        if kind in ("copy-as", "rename-to"):
            base = _base(path)
            for suffix in (LOG, INDEX, TIME_INDEX):
                old = f"{folder}/{segment_file(base, suffix)}"
                new = f"{folder}/{segment_file(at, suffix)}"
                if old in tree:
                    tree[new] = self.tree[old]
                    if kind == "rename-to" and old != new:
                        del tree[old]
            return
        other = self.logs[at]
        tree[other] = self.tree[path]
        if kind == "swap-segments":
            tree[path] = self.tree[other]


def _batches(data: bytes) -> list[bytes]:
    """The batches of an intact log."""
    parts, pos = [], 0
    while pos < len(data):
        size = 12 + int.from_bytes(data[pos + 8 : pos + 12], "big")
        parts.append(data[pos : pos + size])
        pos += size
    return parts


def _kind(path: str) -> str:
    return path.rpartition(".")[2]


def _base(path: str) -> int:
    parsed = parse_segment_file(path.rpartition("/")[2])
    assert parsed is not None
    return parsed.base_offset
