"""Modules of logstore that need an extra; they are imported when first used."""

from __future__ import annotations

import sys
from _thread import get_ident
from typing import Any

from logstore.errors import ReentrantCallError, UnsupportedError, storage_error
from logstore.lazy import import_module

__all__ = [
    "arrow_batches_module",
    "arrow_module",
    "arrow_routing_module",
    "frames_module",
    "pandas_module",
    "polars_module",
]


def arrow_module() -> Any:
    """`logstore.record.arrow`, which needs pyarrow: an extra, and slow to import.

    Raises:
        UnsupportedError: pyarrow is not installed.
        StorageError: its files cannot be read.
        ReentrantCallError: the call came from inside the import.
    """
    return _pyarrow("logstore.record.arrow")


def arrow_batches_module() -> Any:
    """`logstore.record.arrow_batches`. Raises: as `arrow_module`."""
    return _pyarrow("logstore.record.arrow_batches")


def arrow_routing_module() -> Any:
    """`logstore.record.arrow_routing`. Raises: as `arrow_module`."""
    return _pyarrow("logstore.record.arrow_routing")


def frames_module(name: str) -> Any:
    """`logstore.log.frames.<name>`. Raises: as `arrow_module`."""
    return _pyarrow(f"logstore.log.frames.{name}")


def pandas_module() -> Any:
    """pandas, which is in no extra of logstore.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return import_module("pandas")
    except ModuleNotFoundError as error:
        raise _not_installed("pandas") from error


def polars_module() -> Any:
    """polars. Raises: as `pandas_module`."""
    try:
        return import_module("polars")
    except ModuleNotFoundError as error:
        raise _not_installed("polars") from error


def _not_installed(name: str) -> UnsupportedError:
    return UnsupportedError(f"this needs {name}; install it with `pip install {name}`")


def _pyarrow(name: str) -> Any:
    module = sys.modules.get(name)
    if module is not None and hasattr(module, "IS_COMPLETE"):
        return module
    thread = get_ident()
    if thread in _importing:
        raise ReentrantCallError(
            "a call that needs pyarrow came in while it is being imported; nothing was "
            "changed"
        )
    try:
        _importing.append(thread)
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "Arrow needs pyarrow; install it with `pip install 'pylogstore[arrow]'`"
        ) from error
    except OSError as error:
        # For example, too many open files: a later call may succeed.
        raise storage_error(error, "import", name, "Nothing was changed.") from error
    finally:
        while thread in _importing:
            _importing.remove(thread)


# Threads that are importing the module.
_importing: list[int] = []
