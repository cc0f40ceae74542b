"""Errors as plain values, which one process sends another in a file."""

from __future__ import annotations

from typing import Any

from logstore import errors
from logstore.errors import LogStoreError, made_again

__all__ = ["error_of", "plain_error"]


def plain_error(error: LogStoreError) -> dict[str, Any]:
    """An error as plain values, for another process; facts other than strings, integers
    and booleans are left out."""
    _, (kind, _, facts) = error.__reduce__()
    while kind.__name__ not in errors.__all__:
        kind = kind.__base__
    plain = {
        name: value if isinstance(value, str) or _is_number(value) else None
        for name, value in facts.items()
    }
    return {"kind": kind.__name__, "message": str(error), "facts": plain}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def error_of(value: Any) -> LogStoreError:
    """The error of `plain_error`; of a kind that is not known here: `LogStoreError`.

    Raises:
        ValueError: that is not an error.
    """
    if not isinstance(value, dict) or not isinstance(value.get("facts"), dict):
        raise ValueError("an error is not an object with facts")
    kind, message = value.get("kind"), value.get("message")
    if not isinstance(kind, str) or not isinstance(message, str):
        raise ValueError("an error has no kind or message")
    known = getattr(errors, kind) if kind in errors.__all__ else None
    if not isinstance(known, type) or not issubclass(known, LogStoreError):
        known = LogStoreError
    facts = {
        name: fact
        for name, fact in value["facts"].items()
        if name.isidentifier() and not name.startswith("_")
    }
    return made_again(known, (message,), facts)
