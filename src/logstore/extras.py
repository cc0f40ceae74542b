"""Modules of logstore that need an extra: imported when they are used, not before."""

from __future__ import annotations

import importlib
from typing import Any

from logstore.errors import UnsupportedError

__all__ = ["arrow_module"]


def arrow_module() -> Any:
    """`logstore.arrow`, which needs pyarrow: an extra, and slow to import."""
    try:
        return importlib.import_module("logstore.arrow")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "Arrow needs pyarrow; install it with `pip install logstore[arrow]`"
        ) from error
