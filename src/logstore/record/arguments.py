"""Arguments of callers: offsets, times and limits, converted to plain numbers.

Callers' code may run here (`__index__`, `utcoffset`), so the conversion is done before
any lock is taken. Each error names the argument.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import operator
from collections.abc import Iterable
from typing import Any, Final, NoReturn, TypeAlias

from logstore.errors import ConfigError

__all__ = [
    "ISOLATIONS",
    "Start",
    "Time",
    "as_integer",
    "as_items",
    "as_limit",
    "as_offset",
    "as_time_ms",
    "as_timeout",
    "check_choice",
    "is_time",
    "parse_time",
    "refuse_pickling",
    "to_milliseconds",
]

# A date is its midnight; a text is ISO 8601. Without a zone both are local time.
Time: TypeAlias = "datetime.date | str"  # a datetime is a date
Start: TypeAlias = "int | Time | None"

ISOLATIONS: Final = ("read_uncommitted", "read_committed")
_TIMES: Final = "a datetime, a date or an ISO 8601 text"
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless a value is one of these."""
    if value not in allowed:
        raise ConfigError(
            f"{name}={value!r} is not one of {', '.join(allowed)}",
            name=name,
            value=value,
        )


def refuse_pickling(thing: object, path: str, rest: str = "") -> NoReturn:
    """Refuse to pickle a store, topic or partition; the message says how to open it
    again instead. `rest` is the expression that leads from the store to it.

    Raises:
        TypeError: as Python itself does for objects that cannot be pickled.
    """
    kind = type(thing).__name__
    raise TypeError(
        f"a {kind} cannot be pickled or copied: it stands for files that are open in "
        f"this process. Send its path, and open it there: "
        f"logstore.open({path!r}, read_only=True){rest}"
    )


def as_integer(name: str, value: Any, expected: str) -> int:
    """An integer, also from another type with ``__index__``."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {type(value).__name__}, not {expected}") from None


def as_offset(name: str, value: Any, *, or_time: bool = False) -> int:
    """An offset; with `or_time`, the argument could also have been a time."""
    expected = "an offset (int)"
    if or_time:
        expected += f", {_TIMES}"
    return as_integer(name, value, expected)


def as_limit(value: Any) -> int:
    """``limit=``: the largest number of records."""
    limit = as_integer("limit", value, "a number of records (int) or None")
    if limit < 0:
        raise ConfigError(f"limit={limit} is below 0", name="limit", value=limit)
    return limit


def as_timeout(value: Any) -> float | None:
    """``timeout=``: seconds; None: no limit."""
    if value is None:
        return None
    seconds = math.nan
    if not isinstance(value, (str, bytes, bytearray)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            seconds = float(value)
    if math.isnan(seconds):
        raise TypeError(f"timeout is {value!r}, not a number of seconds or None")
    return seconds


def as_items(name: str, value: Any, *, of: str) -> Iterable[Any]:
    """An iterable that is neither text nor bytes."""
    kind = type(value)
    is_many = hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not is_many:
        raise TypeError(
            f"{name} is {kind.__name__}, not a sequence of {of}; nothing was done"
        )
    items: Iterable[Any] = value
    return items


def is_time(value: object) -> bool:
    """Whether it is a time and not an offset."""
    return isinstance(value, (datetime.date, str))


def as_time_ms(name: str, value: Any) -> int:
    """Unix milliseconds from milliseconds or from a time."""
    if is_time(value):
        return to_milliseconds(name, value)
    return as_integer(name, value, f"milliseconds (int), {_TIMES}")


def parse_time(text: str) -> datetime.datetime:
    """Parse an ISO 8601 text, with or without a zone.

    Raises:
        ValueError: the text does not follow ISO 8601.
    """
    text = text.strip()
    # Python 3.10 does not accept the Z.
    if text[-1:] in ("Z", "z"):
        text = text[:-1] + "+00:00"
    return datetime.datetime.fromisoformat(text)


def to_milliseconds(name: str, value: Any) -> int:
    """Unix milliseconds of a time, rounded up.

    Raises:
        ConfigError: the text is not an ISO 8601 time.
    """
    when = value
    if isinstance(value, str):
        try:
            when = parse_time(str(value))
        except ValueError:
            raise ConfigError(
                f"{name}={value!r} is not an ISO 8601 time, such as 2026-01-31 or "
                "2026-01-31T12:00:00+00:00",
                name=name,
                value=value,
            ) from None
    elif not isinstance(value, datetime.datetime):
        when = datetime.datetime(value.year, value.month, value.day)
    if when.utcoffset() is None:
        try:
            when = when.astimezone(datetime.timezone.utc)
        except (OverflowError, ValueError, OSError):
            # At the ends of the calendar no zone has an offset.
            when = when.replace(tzinfo=datetime.timezone.utc)
    delta: datetime.timedelta = when - _EPOCH
    return -(-(delta // datetime.timedelta(microseconds=1)) // 1000)
