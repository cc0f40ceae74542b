r"""Text for people: escapes, sizes, times, counts, paths.

No text from data reaches a terminal as a control sequence: characters that cannot be
printed are escaped (``\n``, ``\x1b``).
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from typing import Final

_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def escape(text: str) -> str:
    r"""Text that has no effect on a terminal: characters that cannot be printed become
    ``\n``, ``\r``, ``\t`` or the bytes of their UTF-8 form as ``\xNN``."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_ESCAPED.__getitem__, text))


def harmless(text: str) -> str:
    """Same as `escape`, but keeps backslashes: for messages, which repeat the user's
    input."""
    return "\\".join(map(escape, text.split("\\")))


class _Escaped(dict[str, str]):
    """Each character as `escape` shows it.

    A binary value needs an escape for most of its characters, and a look into a
    dictionary takes a fifteenth of the time of a call in Python. Characters that
    differ are few in all but hostile data, so the memory is limited.
    """

    _KEPT_MAX: Final = 1 << 16

    def __missing__(self, char: str) -> str:
        value = _escaped(char)
        if len(self) < self._KEPT_MAX:
            self[char] = value
        return value


def _escaped(char: str) -> str:
    short = _SHORT_ESCAPES.get(char)
    if short is not None:
        return short
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in _bytes_of(char))


_ESCAPED: Final = _Escaped()


def _bytes_of(char: str) -> bytes:
    """The original bytes of a character: the byte that a character of `decode` stands
    for, else its UTF-8 form, also of half a surrogate pair."""
    try:
        return char.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return char.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """Bytes as text; bytes that are not UTF-8 are kept, and printed as escapes."""
    return data.decode("utf-8", "surrogateescape")


def readable(data: bytes) -> str:
    r"""Bytes as text, with ``\xNN`` for each byte that is not UTF-8."""
    if b"\\udc" in data:
        return data.decode("utf-8", "backslashreplace")
    # Python's decoder makes an object for each such byte; its encoder does not, and
    # writes the characters that stand for them as \udcNN.
    coded = decode(data).encode("utf-8", "backslashreplace")
    return coded.replace(b"\\udc", b"\\x").decode()


def quoted(data: bytes) -> str:
    """Bytes as escaped text in quotation marks."""
    return '"' + escape(decode(data)).replace('"', '\\"') + '"'


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: half a surrogate pair becomes an escape."""
    if text.isascii():
        return text
    return "".join(
        "".join(f"\\x{byte:02x}" for byte in _bytes_of(char))
        if "\ud800" <= char <= "\udfff"
        else char
        for char in text
    )


def size_text(count: float) -> str:
    """Bytes for people: ``1.5 MiB``."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{grouped(int(count))} B" if unit == "B" else f"{value:,.1f} {unit}"


def time_text(timestamp_ms: int) -> str:
    """A timestamp in UTC; ``-`` for none; the number if no calendar has it."""
    if timestamp_ms < 0:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    try:
        when = _EPOCH + datetime.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plural(word: str) -> str:
    """The plural of the last word: entries, batches, indexes, days."""
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|ch|sh)$", word) else "s")


def counted(number: int, word: str) -> str:
    """``1 record``, ``12,345 records``, ``no records``."""
    if number == 1:
        return f"1 {word}"
    return f"{grouped(number) if number else 'no'} {plural(word)}"


def grouped(number: int) -> str:
    """A number as every table and message shows it, the bars and the report too:
    ``2,000,700``. Offsets in messages and lines are plain, since they are copied."""
    return f"{number:,}"


def offsets_text(
    first: int, next_offset: int, *, number: Callable[[int], str] = str
) -> str:
    """A half-open range of offsets as people write it: ``25..29``, ``25``, ``-``."""
    if next_offset <= first:
        return "-"
    last = number(next_offset - 1)
    return last if next_offset == first + 1 else f"{number(first)}..{last}"


def relative(text: str) -> str:
    """A text whose paths below the working directory are relative to it."""
    try:
        directory = os.getcwd()
    except OSError:
        return text
    if directory == os.sep or directory not in text:
        return text
    text = re.sub(rf"(?<![\w./-]){re.escape(directory)}/", "", text)
    return re.sub(rf"(?<![\w./-]){re.escape(directory)}(?![\w./-])", ".", text)
