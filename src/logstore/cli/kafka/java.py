"""Text as Java decodes and writes it, and the order of Scala's sets."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["ERRORS", "decoded", "json_text", "set_order"]

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# How full a table of Scala's is, and from which size on a set has one.
_LOAD: Final = 0.75
_HASH_SET_MIN: Final = 5
# How Java decodes text, by the name that `bytes.decode` knows it by.
ERRORS: Final = "logstore-java"
_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **{ord(c): f"\\{e}" for c, e in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)},
}


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data, start, end = error.object, error.start, error.end
    # Half a surrogate pair, written as if it were a character, is one to Java.
    if data[start] == 0xED and data[start + 1 : start + 2] >= b"\xa0":
        is_third = data[start + 2 : start + 3]
        if 0x80 <= data[start + 1] < 0xC0:
            end = start + 3 if not is_third or 0x80 <= is_third[0] < 0xC0 else start + 2
    return _REPLACEMENT, min(end, len(data))


codecs.register_error(ERRORS, _replaced)


def decoded(data: bytes) -> str:
    """Bytes as Java's ``new String(data, UTF_8)``: wrong ones become U+FFFD."""
    return data.decode("utf-8", ERRORS)


def json_text(value: Any) -> str:
    """A value as Jackson writes it: no spaces, characters outside ASCII not escaped,
    control characters as in ``\\u001F``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, dict):
        pairs = (f"{json_text(k)}:{json_text(v)}" for k, v in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(json_text, value))}]"
    return str(value)


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def set_order(groups: Iterable[Iterable[tuple[Any, int]]]) -> list[Any]:
    """Items, with their hash codes, in the order of a mutable set (or map) of Scala
    2.13 to which sets of them were added, one after the other: by their place in its
    table, which depends on how the table has grown.

    Args:
        groups: of one item each if they were added one by one.
    """
    length = 16
    hashes: dict[Any, int] = {}
    for group in groups:
        items = dict(group)
        hint = max(int((len(items) + 1) / _LOAD) - 1, 4)
        length = max(length, 1 << hint.bit_length())
        for item, code in items.items():
            # A larger set is copied without a look at the room.
            if len(items) < _HASH_SET_MIN and len(hashes) + 1 >= int(length * _LOAD):
                length *= 2
            unsigned = code & 0xFFFFFFFF
            hashes.setdefault(item, _int32(unsigned ^ unsigned >> 16))
    mask = length - 1
    return sorted(hashes, key=lambda item: (hashes[item] & mask, hashes[item]))
