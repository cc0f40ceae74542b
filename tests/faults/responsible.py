"""Methods that catch mistakes in a part of the engine, according to planted bugs."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from faults import planted
from faults.methods import METHODS

__all__ = ["methods_for"]


def methods_for(path: str) -> list[str]:
    """The names of the methods that must catch the bugs planted in a file, or below a
    directory, in the order of the programme; empty if none is planted there.

    Args:
        path: relative to the repository or to the package: ``src/logstore/log/write``,
            ``log/write``, ``connectors/spark``.
    """
    wanted = PurePosixPath(path.rstrip("/").removeprefix("src/logstore/"))
    found = Counter(
        bug.method
        for bug in planted.BUGS
        if wanted in (file := PurePosixPath(bug.file), *file.parents)
    )
    names = {name.replace("-", "_") for name in found}
    return [m.NAME for m in METHODS if m.NAME.replace("-", "_") in names]
