"""What the commands print: escaped text, payloads, JSON lines, tables, progress."""

from __future__ import annotations

import argparse
import base64
import binascii
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TextIO

import logstore

PAYLOADS: Final = ("utf8", "hex", "base64", "json", "none")

_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# In JSON: an escaped backslash, a pair of surrogates, or half of one.
_SURROGATE: Final = re.compile(
    r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|\\u(?P<half>d[89a-f][0-9a-f]{2})"
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_BAR_SECONDS: Final = 0.1
_BAR_CELLS: Final = 30


def escape(text: str) -> str:
    r"""Text that does nothing to a terminal: what cannot be printed becomes ``\n``,
    ``\r``, ``\t`` or the bytes of its UTF-8 form as ``\xNN``."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    short = _SHORT_ESCAPES.get(char)
    if short is not None:
        return short
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in _bytes_of(char))


def _bytes_of(char: str) -> bytes:
    """A character as it came: the byte that one of `decode` stands for, else its UTF-8
    form, which half a surrogate pair has, too, where something had to be made of it."""
    try:
        return char.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return char.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """Bytes as text; those that are not UTF-8 stay, as escapes, when it is printed."""
    return data.decode("utf-8", "surrogateescape")


def quoted(data: bytes) -> str:
    """Bytes as escaped text in quotation marks."""
    return '"' + escape(decode(data)).replace('"', '\\"') + '"'


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _parsed(data: bytes) -> Any:
    """A JSON value, or the text where it is none, or none that can be written again so
    that every parser takes it: with NaN or an infinity (which is what Python makes of
    1e999), half a surrogate pair, or nested too deep."""
    try:
        value = json.loads(data, parse_constant=_refuse)
        # Deeper than it is written later: where the stack ends is not for then.
        json.dumps([[[[[[[[value]]]]]]]], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return data.decode("utf-8", "backslashreplace")
    return value


def payload_text(data: bytes | None, payload: str) -> str:
    """A key or value for the text format."""
    if data is None:
        return "null"
    if payload == "hex":
        return binascii.hexlify(data).decode()
    if payload == "base64":
        return base64.b64encode(data).decode()
    if payload == "none":
        return f"({len(data)} bytes)"
    if payload == "json":
        value = _parsed(data)
        if not isinstance(value, str):
            return escape(json.dumps(value, ensure_ascii=False))
    return quoted(data)


def payload_json(data: bytes | None, payload: str) -> Any:
    """A key or value for JSON; bytes that are not UTF-8 are escapes in the text."""
    if data is None:
        return None
    if payload == "hex":
        return binascii.hexlify(data).decode()
    if payload == "base64":
        return base64.b64encode(data).decode()
    if payload == "json":
        return _parsed(data)
    return data.decode("utf-8", "backslashreplace")


def json_line(value: Any) -> str:
    """A value as one line of JSON."""
    return json_text(value, (",", ":"))


def json_text(value: Any, separators: tuple[str, str] | None = None) -> str:
    """A value as JSON that every parser takes, in ASCII: bytes of names that are not
    UTF-8, and what else no text may hold, are escapes in the text."""
    text = json.dumps(value, separators=separators, allow_nan=False)
    return _SURROGATE.sub(_sayable_escape, text) if "\\ud" in text else text


def _sayable_escape(match: re.Match[str]) -> str:
    half = match["half"]
    if half is None:
        return match[0]
    return sayable(chr(int(half, 16))).replace("\\", "\\\\")


def sayable(text: str) -> str:
    """A text that UTF-8 can say: half a surrogate pair is an escape in it."""
    if text.isascii():
        return text
    return "".join(
        "".join(f"\\x{byte:02x}" for byte in _bytes_of(char))
        if "\ud800" <= char <= "\udfff"
        else char
        for char in text
    )


def size_text(count: int) -> str:
    """Bytes for people: ``1.5 MiB``."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def time_text(timestamp_ms: int) -> str:
    """A timestamp in UTC; ``-`` for none; the number where no calendar has it."""
    if timestamp_ms < 0:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    try:
        when = _EPOCH + datetime.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a table; numbers stand to the right, and so do their heads."""
    rows = list(rows)
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    numeric = [
        all(isinstance(row[at], int) or row[at] == "-" for row in rows) and bool(rows)
        for at in range(len(head))
    ]
    widths = [
        max([len(name), *(len(row[at]) for row in cells)])
        for at, name in enumerate(head)
    ]
    lines = []
    for row in ([*head], *cells):
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


_CONFIG_OPTIONS: Final = (
    "group_access",
    "allow_shared_directory",
    "allow_network_filesystem",
    "max_batch_decompressed_bytes",
)


def config_of(args: argparse.Namespace) -> logstore.StoreConfig:
    """The settings of the store that the subcommand has options for."""
    given = {name: getattr(args, name, None) for name in _CONFIG_OPTIONS}
    return logstore.StoreConfig(**{k: v for k, v in given.items() if v is not None})


class Printer:
    """Standard output and standard error of one command."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr

    def line(self, text: str) -> None:
        """Print a line, in whatever encoding standard output has."""
        try:
            self.out.write(text + "\n")
        except UnicodeEncodeError:
            encoding = self.out.encoding or "ascii"
            safe = text.encode(encoding, "backslashreplace").decode(encoding)
            self.out.write(safe + "\n")

    def json(self, value: Any) -> None:
        self.out.write(json_line(value) + "\n")

    def warn(self, text: str) -> None:
        """A line on standard error."""
        self.out.flush()
        self.err.write(f"logstore-dump: {escape(text)}\n")
        self.err.flush()

    def flush(self) -> None:
        self.out.flush()


class Progress:
    """A bar on standard error while that is a terminal; else nothing.

    A context manager: the bar is gone when the block ends.
    """

    def __init__(
        self,
        what: str,
        err: TextIO | None = None,
        unit: Callable[[int], str] = size_text,
    ) -> None:
        self._what = what
        self._err = err or sys.stderr
        self._unit = unit
        self._shown = self._err.isatty() and os.environ.get("TERM") != "dumb"
        self._next = 0.0
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._err.write("\r" + " " * self._width + "\r")
            self._err.flush()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` is done, a few times a second at the most."""
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _BAR_SECONDS
        part = min(done / total, 1.0) if total else 0.0
        bar = "#" * int(part * _BAR_CELLS)
        text = (
            f"{self._what} [{bar:<{_BAR_CELLS}}] {part:4.0%} "
            f"{self._unit(done)} of {self._unit(total)}"
        )
        self._err.write("\r" + text.ljust(self._width))
        self._err.flush()
        self._width = max(self._width, len(text))
