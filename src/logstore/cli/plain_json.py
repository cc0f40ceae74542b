"""JSON as orjson writes it, byte for byte, where orjson is not installed.

It has the two names of orjson that are used here. It takes several times as long, less
for text alone, which C code of Python writes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Final

__all__ = ["Fragment", "dumps"]

_INT_MIN: Final = -(1 << 63)
_INT_END: Final = 1 << 64
_DEPTH_MAX: Final = 254
_WORDS: Final = {None: "null", True: "true", False: "false"}

_Default = Callable[[Any], Any]


class Fragment:
    """JSON that is written unchanged."""

    __slots__ = ("contents",)

    def __init__(self, contents: bytes) -> None:
        self.contents = contents


def dumps(value: Any, default: _Default | None = None) -> bytes:
    """A value as JSON in UTF-8, without spaces.

    Args:
        default: makes of a value of another type one that can be written.

    Raises:
        TypeError: an integer has more than 64 bits, a name is not a string, a text has
            half a surrogate pair, a type cannot be written, or it is too deep.
    """
    parts: list[str] = []
    _write(value, default, parts, 0)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"a string is not valid UTF-8: {error}") from error


def _write(value: Any, default: _Default | None, parts: list[str], depth: int) -> None:
    if isinstance(value, str):
        parts.append(encode_basestring(value))
    elif value is None or isinstance(value, bool):
        parts.append(_WORDS[value])
    elif isinstance(value, int):
        if not _INT_MIN <= value < _INT_END:
            raise TypeError("an integer has more than 64 bits")
        parts.append(int.__repr__(value))
    elif type(value) is float:
        parts.append(_float(value))
    elif isinstance(value, dict):
        _write_members(value, default, parts, _deeper(depth))
    elif isinstance(value, list) or type(value) is tuple:
        _write_items(value, default, parts, _deeper(depth))
    elif isinstance(value, Fragment):
        parts.append(value.contents.decode())
    elif isinstance(value, enum.Enum):
        _write(value.value, default, parts, depth)
    elif default is not None:
        _write(default(value), default, parts, _deeper(depth))
    else:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _deeper(depth: int) -> int:
    if depth == _DEPTH_MAX:
        raise TypeError(f"it is nested more than {_DEPTH_MAX} levels deep")
    return depth + 1


def _write_members(
    value: dict[Any, Any], default: _Default | None, parts: list[str], depth: int
) -> None:
    before = "{"
    for name, item in value.items():
        if type(name) is not str:
            raise TypeError(f"the name {name!r} is not a string")
        parts.append(f"{before}{encode_basestring(name)}:")
        _write(item, default, parts, depth)
        before = ","
    parts.append("}" if value else "{}")


def _write_items(
    value: list[Any] | tuple[Any, ...],
    default: _Default | None,
    parts: list[str],
    depth: int,
) -> None:
    before = "["
    for item in value:
        parts.append(before)
        _write(item, default, parts, depth)
        before = ","
    parts.append("]" if value else "[]")


def _float(value: float) -> str:
    """Python's text, but for small numbers: 0.00001 instead of 1e-05, 1e-6."""
    if not math.isfinite(value):
        return "null"
    text = repr(value)
    digits, is_small, exponent = text.partition("e-")
    if not is_small:
        return text
    if exponent != "05":
        return f"{digits}e-{exponent.lstrip('0')}"
    sign = "-" if value < 0 else ""
    return f"{sign}0.0000{digits.lstrip('-').replace('.', '')}"
