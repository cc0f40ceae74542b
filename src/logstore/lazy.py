"""Public modules whose names are imported when they are used.

A service that starts, and `logstore-dump --help`, load what they need and no more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["find", "table_of"]


def table_of(homes: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Public name -> (module of this package, its name there).

    Args:
        homes: module -> the names that it has, separated by spaces; ``public=inner``
            if it has another name there. A module itself has an empty inner name:
            ``kafka=``.
    """
    table = {}
    for home, names in homes.items():
        for name in names.split():
            public, sign, inner = name.partition("=")
            table[public] = home, inner if sign else public
    return table


def find(shown: str, home: str, inner: str) -> Any:
    """Import a module of this package; return its attribute `inner`, or the module if
    `inner` is empty.

    Args:
        shown: the public name, for the error.

    Raises:
        ReentrantCallError: called during the import of the module, from a signal
            handler or a finalizer.
        ImportError: a dependency of the module is missing.
    """
    try:
        try:
            module = importlib.import_module(f"{__package__}.{home}")
        except KeyError:
            # Python 3.11 and older: a finalizer has imported something while this
            # thread took the lock of the module (gh-106176).
            module = importlib.import_module(f"{__package__}.{home}")
    except ImportError as error:
        if not _is_begun(error.name):
            raise
        module = None
    if module is None or (inner and not hasattr(module, inner)):
        errors = importlib.import_module("logstore.errors")
        raise errors.ReentrantCallError(
            f"{shown} is being imported by the call that this one has come into, from "
            f"a signal handler or a finalizer; it did nothing"
        )
    return getattr(module, inner) if inner else module


def _is_begun(name: str | None) -> bool:
    """Whether a module is being imported, by a call that has not ended."""
    spec = getattr(sys.modules.get(name or ""), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
