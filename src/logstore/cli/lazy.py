"""Packages of the command line, imported at their first use.

`logstore-dump --help` must answer at once, so rich, orjson and pybase64 are only
imported when there is something to print. If a package is missing (`pip install
--no-deps`), the error names the command that installs it. orjson is optional: without
it, `plain_json` writes the same bytes.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import logstore

# A top-level module and the distribution to install for it.
_INSTALL = {
    "click": "pip install pylogstore",
    "rich": "pip install pylogstore",
    "pybase64": "pip install pylogstore",
    "pyarrow": "pip install 'pylogstore[arrow]'",
    "textual": "pip install 'pylogstore[browse]'",
}


def import_package(name: str) -> Any:
    """Import a module of another distribution.

    Raises:
        UnsupportedError: its distribution is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise logstore.errors.UnsupportedError(
            f"this command needs {package}; install it with `{_INSTALL[package]}`"
        ) from error


class LazyPackage:
    """A module that is imported when one of its names is used.

    Args:
        instead: a module of ours with the same names, used if it is not installed.
    """

    def __init__(self, name: str, instead: str = "") -> None:
        self._name = name
        self._instead = instead
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = self._imported()
        return getattr(self._module, name)

    def _imported(self) -> Any:
        if not self._instead:
            return import_package(self._name)
        try:
            return importlib.import_module(self._name)
        except ImportError:
            return importlib.import_module(self._instead)


orjson: Any = LazyPackage("orjson", "logstore.cli.plain_json")
pybase64: Any = LazyPackage("pybase64")
