"""The kinds of values that options take, as click parameter types."""

from __future__ import annotations

import base64
import datetime
import os
import re
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

_COUNT_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 20
_MILLISECONDS: Final = re.compile(r"(-?[0-9]+)ms")
_GROUPED: Final = re.compile(r"[0-9]{1,3}(,[0-9]{3})+", re.ASCII)
_FROM_END: Final = re.compile(r"-[0-9]+", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]+) ?(|B|KiB|MiB|GiB)", re.ASCII)
_UNIT_BITS: Final = {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}
_PARTITION: Final = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


# Generic since click 8.5, and only for type checkers.
if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType


class FromEnd(int):
    """An offset counted from the end of a log: 10 is the tenth last."""


Bound = int | datetime.datetime | FromEnd | None


def parse_bound(text: str) -> int | datetime.datetime:
    """An offset (also ``2,000,700``, as `ls` prints it), ``-N`` (the N last:
    `FromEnd`), or a time: ISO 8601, or Unix milliseconds followed by ``ms``.

    Raises:
        ValueError, OverflowError: none of these.
    """
    milliseconds = _MILLISECONDS.fullmatch(text)
    if milliseconds is not None:
        return _EPOCH + datetime.timedelta(milliseconds=int(milliseconds[1]))
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if text.isascii() and text.isdigit():
        return _clipped(text)
    if _FROM_END.fullmatch(text):
        return FromEnd(_clipped(text[1:]))
    iso = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
    when = datetime.datetime.fromisoformat(iso)
    milliseconds_of(when)  # fails for the ends of the first and last year in UTC
    return when


def milliseconds_of(when: datetime.datetime) -> int:
    """Unix milliseconds, rounded up; without a zone it is local time."""
    delta = when.astimezone(datetime.timezone.utc) - _EPOCH
    return -(-(delta // datetime.timedelta(microseconds=1)) // 1000)


def is_reversed(start: Bound, stop: Bound) -> bool:
    """Whether a bound lies after another one of the same sort: two offsets, two numbers
    from the end, or two times. Others cannot be compared without a log."""
    if isinstance(start, datetime.datetime) and isinstance(stop, datetime.datetime):
        return milliseconds_of(start) > milliseconds_of(stop)
    if isinstance(start, FromEnd) and isinstance(stop, FromEnd):
        return start < stop
    if isinstance(start, FromEnd) or isinstance(stop, FromEnd):
        return False
    return isinstance(start, int) and isinstance(stop, int) and start > stop


def bound_text(bound: Bound) -> str:
    """A bound on the command line."""
    if isinstance(bound, datetime.datetime):
        return bound.isoformat()
    return f"-{int(bound)}" if isinstance(bound, FromEnd) else str(bound)


def _clipped(digits: str) -> int:
    # Larger than in any log: code that counts with machine words takes no more.
    return min(int(digits[:_DIGITS_MAX]), _COUNT_MAX)


class CountType(_ParamType):
    """A number from 0 on."""

    name = "N"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        if not (value.isascii() and value.isdigit()):
            self.fail(f"'{value}' is not a number of at least 0", param, ctx)
        return _clipped(value)


class SizeType(_ParamType):
    """A number of bytes, or one with a unit."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        if match is None:
            self.fail(
                f"'{value}' is not a size: a number of bytes, or one followed by "
                f"KiB, MiB, GiB",
                param,
                ctx,
            )
        return _clipped(match[1]) << _UNIT_BITS[match[2]]


class BoundType(_ParamType):
    """An offset, the N last records, or a time."""

    name = "N|-N|TIME"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse_bound(value)
        except (ValueError, OverflowError):
            self.fail(
                f"'{value}' is not an offset, a number from the end such as -10, an "
                f"ISO 8601 time, or milliseconds such as 1714564800000ms",
                param,
                ctx,
            )


class TargetType(_ParamType):
    """Offset or time at which a group begins."""

    name = "earliest|latest|N|TIME"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value
        try:
            target = parse_bound(value)
        except (ValueError, OverflowError):
            target = FromEnd()
        if isinstance(target, FromEnd):
            self.fail(
                f"'{value}' is not 'earliest', 'latest', an offset, an ISO 8601 time, "
                f"or milliseconds such as 1714564800000ms",
                param,
                ctx,
            )
        return target


class PatternType(_ParamType):
    """A regular expression over bytes."""

    name = "RE"

    def convert(self, value: Any, param: Any, ctx: Any) -> re.Pattern[bytes]:
        if isinstance(value, re.Pattern):
            return value
        try:
            return re.compile(value.encode("utf-8", "surrogateescape"))
        # The second: a{99999999999}; the third: 500 brackets in each other.
        except (re.error, OverflowError, RecursionError) as error:
            self.fail(f"'{value}' is not a regular expression: {error}", param, ctx)


class KeyType(_ParamType):
    """The bytes of a key: text, or coded after ``hex:`` or ``base64:``."""

    name = "KEY"

    def convert(self, value: Any, param: Any, ctx: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        code, colon, coded = value.partition(":")
        try:
            if code + colon == "hex:":
                return bytes.fromhex(coded)
            if code + colon == "base64:":
                return base64.b64decode(coded, validate=True)
        except ValueError:
            self.fail(f"'{value}' has no {code} after the colon", param, ctx)
        return os.fsencode(value)


class TopicType(_ParamType):
    """A topic's name or a glob; a shell completes the names in PATH."""

    name = "GLOB"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # The command line is incomplete: the first argument left over is the path.
        path = ctx.params.get("path") or next(iter(ctx.args), None)
        try:
            names = os.listdir(path) if path else []
        except OSError:
            return []
        parsed = (_PARTITION.fullmatch(name) for name in names)
        topics = sorted({match[1] for match in parsed if match})
        return [CompletionItem(name) for name in topics if name.startswith(incomplete)]


class FileType(_ParamType):
    """A path, which a shell completes; the command checks whether it exists."""

    name = "PATH"

    def __init__(self, name: str = "PATH") -> None:
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return os.fsdecode(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


COUNT: Final = CountType()
SIZE: Final = SizeType()
BOUND: Final = BoundType()
PATTERN: Final = PatternType()
KEY: Final = KeyType()
TARGET: Final = TargetType()
TOPIC: Final = TopicType()
