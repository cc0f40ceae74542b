r"""The rows of the browser: a record each, or a notice in place of records.

Keys and values are strangers: no text from them reaches the terminal with an effect.
`escape` takes the control characters; here only the characters without a width are
limited, since a thousand of them on one letter cover the rows above it.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, Final

from logstore.cli.lazy import import_package
from logstore.cli.text import escape

# Maximum bytes of a key or value in a row: wider than any terminal.
PREVIEW_BYTES: Final = 600
_STACKED_MAX: Final = 2
# They turn the character before into an emoji, whose width depends on the terminal.
_SELECTORS: Final = range(0xFE00, 0xFE10)
# Texts that would be taken for something else without quotation marks.
_AMBIGUOUS: Final = ("null", '""')
_utf8: Final = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record as a row: what fits there, never the whole of it.

    Attributes:
        key, value: the beginnings, harmless; None: null.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    headers: int

    @property
    def next_offset(self) -> int:
        return self.offset + 1


@dataclass(frozen=True, slots=True)
class NoticeLine:
    """A row in place of records: they are damaged, or were deleted.

    Attributes:
        offset, next_offset: the offsets [offset, next_offset) that are not shown.
    """

    partition: int
    offset: int
    next_offset: int
    text: str
    is_damage: bool = True


Line = RecordLine | NoticeLine


def line_of(partition: int, record: Any) -> RecordLine:
    """The row of a record."""
    return RecordLine(
        partition,
        record.offset,
        record.timestamp_ms,
        preview(record.key),
        preview(record.value),
        len(record.headers),
    )


def preview(data: bytes | None) -> str | None:
    """The beginning of a key or value as harmless text in one line."""
    if data is None:
        return None
    # A character that the cut goes through is left out.
    decoder = _utf8("surrogateescape")
    text = decoder.decode(data[:PREVIEW_BYTES], len(data) <= PREVIEW_BYTES)
    if not text or text in _AMBIGUOUS:
        return f'"{text}"'
    return clean(text)


def clean(text: str) -> str:
    """Text without an effect on a terminal, in one line."""
    return low(escape(text))


def low(text: str) -> str:
    """Escaped text in which no letter has more than two characters without a width, nor
    one that changes its width."""
    if text.isascii():
        return text
    width = import_package("rich.cells").cell_len
    parts, stacked = [], 0
    for char in text:
        stacked = stacked + 1 if ord(char) > 127 and not width(char) else 0
        if stacked <= _STACKED_MAX and ord(char) not in _SELECTORS:
            parts.append(char)
        else:
            parts += [f"\\x{byte:02x}" for byte in char.encode("utf-8")]
    return "".join(parts)


def fitted(text: str, width: int) -> str:
    """Text cut or filled to a number of cells; an ellipsis marks a cut."""
    if text.isascii():
        if len(text) > width:
            return text[: max(width - 1, 0)] + "…" * (width > 0)
        return text.ljust(width)
    cells = import_package("rich.cells")
    if cells.cell_len(text) > width:
        return str(cells.set_cell_size(text, max(width - 1, 0))) + "…" * (width > 0)
    return str(cells.set_cell_size(text, width))


def wrapped(text: str, width: int) -> list[str]:
    """Escaped text in pieces of at most `width` cells; at least one piece."""
    width = max(width, 2)
    if text.isascii():
        return [
            text[start : start + width] for start in range(0, len(text), width)
        ] or [""]
    size = import_package("rich.cells").cell_len
    pieces, begin, used = [], 0, 0
    for index, char in enumerate(text):
        cells = 1 if ord(char) < 128 else size(char)
        if used + cells > width:
            pieces.append(text[begin:index])
            begin, used = index, 0
        used += cells
    return [*pieces, text[begin:]]
