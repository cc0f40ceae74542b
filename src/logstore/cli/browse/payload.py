"""A record as a whole: place, key, headers, value, batch.

A document is a list of blocks, each a number of lines that are made when they are
shown: the hex of 10 MB is 655,360 lines, of which a terminal shows fifty.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import logstore
from logstore.cli.batches import batch_text
from logstore.cli.browse.lines import clean, low, wrapped
from logstore.cli.schema import parsed_json
from logstore.cli.text import counted, decode, escape, time_text

MODES: Final = ("auto", "text", "json", "hex")
_HEX_WIDTH: Final = 16
# Larger JSON would have millions of lines: only on request.
_PRETTY_MAX: Final = 1 << 20
# Each element is indented by its depth: 121 kB of JSON, 500 deep, would be 60 MB. So
# the text may be longer by this factor, which is reached at a depth of about 15.
_GROWTH_MAX: Final = 16
_ALWAYS: Final = 1 << 16


class Block(NamedTuple):
    """Some lines of a document.

    Attributes:
        style: of all of them: ``head``, ``note`` or "".
    """

    height: int
    line: Callable[[int], str]
    style: str = ""


class Document:
    """Blocks, one below the other."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._blocks = [block for block in blocks if block.height]
        counts = (block.height for block in self._blocks)
        self._ends = list(itertools.accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def line(self, number: int) -> tuple[str, str]:
        """(text, style) of a line; both empty after the end."""
        if not 0 <= number < len(self):
            return "", ""
        slot = bisect.bisect_right(self._ends, number)
        block = self._blocks[slot]
        return block.line(number - (self._ends[slot] - block.height)), block.style


class Whole(NamedTuple):
    """A record and the batch that it is in; None: the batch could not be read."""

    topic: str
    partition: int
    record: logstore.Record
    batch: logstore.RecordBatch | None


def whole_of(partition: logstore.Partition, offset: int) -> Whole:
    """Read a record, and the head of its batch.

    Raises: as `Partition.get`.
    """
    record = partition.get(offset)
    batch = next(partition.read_batches(offset, limit=1), None)
    return Whole(partition.topic, partition.number, record, batch)


def document_of(whole: Whole, mode: str, width: int) -> Document:
    """All of a record, in lines of at most `width` cells."""
    record = whole.record
    name = f"{whole.topic}-{whole.partition}"
    facts = (
        f"{name}  offset {record.offset}  {time_text(record.timestamp_ms)} "
        f"({record.timestamp_type.kafka_name})"
    )
    blocks = [
        _texts([clean(facts)], width),
        *_payload("key", record.key, mode, width),
        *_payload("value", record.value, mode, width),
        _texts([f"headers: {len(record.headers) or 'none'}"], width, "head"),
    ]
    for header, value in record.headers:
        title = f"  {clean(header)}"
        blocks += _payload(title, value, mode, width, style="")
    if whole.batch is not None:
        blocks.append(_texts(["batch"], width, "head"))
        blocks.append(_texts([clean(batch_text(None, None, whole.batch))], width))
    return Document(blocks)


def _texts(lines: Iterable[str], width: int, style: str = "") -> Block:
    pieces = [piece for text in lines for piece in wrapped(text, width)]
    return Block(len(pieces), pieces.__getitem__, style)


def _payload(
    title: str, data: bytes | None, mode: str, width: int, style: str = "head"
) -> Iterable[Block]:
    if data is None:
        yield _texts([f"{title}: null"], width, style)
        return
    kind, block = _shown(data, mode, width)
    size = counted(len(data), "byte")
    yield _texts([f"{title}: {size}{f', {kind}' * bool(data)}"], width, style)
    yield block


def _shown(data: bytes, mode: str, width: int) -> tuple[str, Block]:
    """(the name of the form, the lines)."""
    is_large, is_deep = len(data) > _PRETTY_MAX, False
    if mode == "json" or (mode == "auto" and not is_large):
        pretty = _pretty(data)
        if pretty:
            return "JSON", _texts(map(clean, pretty.split("\n")), width)
        is_deep = pretty == ""
    if mode == "hex" or (mode == "auto" and not _is_text(data)):
        return "hex", _hex(data, width)
    label = "text"
    if is_deep:
        label = "text, since it is nested deeply"
    elif mode == "json":
        label = "text, since it is not a JSON object or list"
    elif mode == "auto" and is_large:
        label = "text, since it is large (v: as JSON)"
    lines = (low(escape(line)) for line in decode(data).split("\n"))
    return label, _texts(lines, width)


def _pretty(data: bytes) -> str | None:
    """JSON over several lines; None if it is not JSON, or not an object or a list; ""
    if most of the text would be indentation."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    strict = parsed_json(data)
    if strict is None:
        return None
    left = _ALWAYS + _GROWTH_MAX * len(data)
    parts = []
    try:
        encoder = json.JSONEncoder(ensure_ascii=False, indent=2)
        for part in encoder.iterencode(json.loads(strict)):
            left -= len(part)
            if left < 0:
                return ""
            parts.append(part)
    except RecursionError:
        return ""
    return "".join(parts)


def _is_text(data: bytes) -> bool:
    """Whether it is UTF-8 without zeros and the like."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(char < " " and char not in "\t\n\r\x1b" for char in text[:4096])


def _hex(data: bytes, width: int) -> Block:
    """A dump as `xxd` prints it, narrower on a narrow terminal."""
    per_line = _HEX_WIDTH if width >= 76 else _HEX_WIDTH // 2
    digits = 4 if len(data) <= 1 << 16 else 8

    def line(number: int) -> str:
        begin = number * per_line
        some = data[begin : begin + per_line]
        pairs = some.hex(" ", -2)
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        return f"{begin:0{digits}x}: {pairs:{per_line * 5 // 2 - 1}}  {shown}"

    return Block(-(-len(data) // per_line), line)
