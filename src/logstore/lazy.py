"""Public modules whose names are imported when they are used.

A service that starts, and `logstore-dump --help`, load what they need and no more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["find", "getter", "import_module", "table_of"]

Table: TypeAlias = dict[str, tuple[str, str]]


def table_of(homes: Mapping[str, str]) -> Table:
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


def getter(module: str, names: dict[str, Any], table: Table) -> Callable[[str], Any]:
    """The ``__getattr__`` of a public module: imports a name at its first use.

    Args:
        module: its name.
        names: its globals, which have the value from then on.
        table: as of `table_of`.
    """

    def __getattr__(name: str) -> Any:
        if name not in table:
            text = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(text, name=name)
        names[name] = value = find(f"{module}.{name}", *table[name])
        return value

    return __getattr__


def find(shown: str, home: str, inner: str) -> Any:
    """The value of a name in a module of this package; the module for an empty name.

    Args:
        shown: the public name, for the error.

    Raises:
        ReentrantCallError: the call came into the import of the module, from a signal
            handler or a finalizer.
        ImportError: something that the module needs is missing.
    """
    try:
        module = import_module(f"{__package__}.{home}")
    except ImportError as error:
        if not _is_begun(error.name):
            raise
        module = None
    if module is None or (inner and not hasattr(module, inner)):
        errors = import_module("logstore.errors")
        raise errors.ReentrantCallError(
            f"{shown} is being imported by the call that a signal handler or a "
            "finalizer interrupted with this one; nothing was done"
        )
    return getattr(module, inner) if inner else module


def import_module(name: str) -> Any:
    """A module, imported at its first use; also inside of another import, by a signal
    handler or a finalizer."""
    try:
        return importlib.import_module(name)
    except KeyError:
        # Python 3.11 and older: a finalizer has imported something while this thread
        # took the lock of the module (gh-106176).
        return importlib.import_module(name)


def _is_begun(name: str | None) -> bool:
    """Whether a module is being imported, by a call that has not ended."""
    spec = getattr(sys.modules.get(name or ""), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
