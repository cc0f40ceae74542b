"""Numbers and times as people read them."""

from __future__ import annotations

import datetime
from typing import Final

__all__ = [
    "count_text",
    "duration_text",
    "number_text",
    "percent_text",
    "size_text",
    "time_text",
]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_STEPS: Final = (
    (365 * 86_400_000, "year"),
    (30 * 86_400_000, "month"),
    (86_400_000, "day"),
    (3_600_000, "hour"),
    (60_000, "minute"),
    (1_000, "second"),
)


def size_text(count: float) -> str:
    """Bytes: ``1.5 MiB``."""
    value = float(count)
    unit = 0
    # From 1023.95 on it would be shown as 1024.0.
    while value >= 1023.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def number_text(count: float) -> str:
    """A count with separators: ``1,234,567``."""
    return f"{round(count):,}"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """``1 segment``, ``2 segments``."""
    return f"{number_text(count)} {noun if count == 1 else plural or noun + 's'}"


def percent_text(part: float, whole: float) -> str:
    """``12 %``; ``<1 %`` for a small part above 0."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 1:
        return "<1 %"
    if 99 < share < 100:
        return ">99 %"
    return f"{share:.0f} %"


def duration_text(ms: float) -> str:
    """A length of time in its largest unit: ``3 days``."""
    for length, noun in _STEPS:
        if ms >= length:
            return count_text(round(ms / length), noun)
    return f"{max(round(ms), 0)} ms"


def time_text(timestamp_ms: int, *, seconds: bool = True) -> str:
    """A time in UTC: ``2026-11-05 12:00:07``; ``-`` for none, and the number if no
    calendar has it."""
    if timestamp_ms == -1:
        return "-"
    try:
        when = _EPOCH + datetime.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    form = "%H:%M:%S" if seconds else "%H:%M"
    return f"{when.date().isoformat()} {when.strftime(form)}"
