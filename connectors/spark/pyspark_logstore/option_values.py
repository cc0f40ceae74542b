"""Parses the text of options: numbers, times, offsets by partition."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from logstore import ConfigError, TopicPartition
from logstore.record.arguments import parse_time, to_milliseconds

__all__ = [
    "INT64_MAX",
    "MARKS",
    "PARTITION_MAX",
    "Values",
    "given_as_text",
    "partition_number",
    "refuse",
    "refuse_unknown",
]

INT64_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
# A text with more digits is out of range, and is not converted: Python refuses some
# thousand digits with an error that names no option.
_DIGITS_MAX: Final = len(str(INT64_MAX))
# A key next to the topics in the offsets of a stream: no topic can have this name.
MARKS: Final = "@logs"
_TIME_EXAMPLE: Final = "2026-01-31T12:00:00+00:00"
# How many characters of a value are shown.
_SHOWN_MAX: Final = 200
_UNIT_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def refuse(name: str, value: object, why: str) -> NoReturn:
    """Raise `ConfigError` for the value of an option."""
    raise ConfigError(f"option {name}={_shown(value)}: {why}", name=name, value=value)


def _shown(value: object) -> str:
    """A value for a message: a short one whole, otherwise its beginning and length."""
    text = repr(value)
    if len(text) <= _SHOWN_MAX:
        return text
    return f"{text[:_SHOWN_MAX]}... ({len(text)} characters)"


def refuse_unknown(
    key: str, value: str, canonical: Mapping[str, str], names: Iterable[str]
) -> NoReturn:
    """Raise `ConfigError` for an option that does not exist.

    Args:
        canonical: all names that have a meaning, by their lower case.
        names: the names that the message lists.
    """
    near = difflib.get_close_matches(key.lower(), canonical, n=1)
    hint = f"did you mean {canonical[near[0]]}?" if near else "no such option."
    refuse(key, value, f"{hint} Known options: {', '.join(names)}")


def given_as_text(given: Mapping[str, Any]) -> dict[str, str]:
    """The given options, each of which must be a text.

    Raises:
        ConfigError: one is not: a null, which Spark passes for Python's None.
    """
    for name, value in given.items():
        if not isinstance(value, str):
            refuse(name, value, "it has no value; leave it out, or give it one")
    return dict(given)


def integer(text: str) -> int | None:
    """A decimal number; None: the text is not a number, or has too many digits."""
    match = re.fullmatch(r"([+-]?)0*([0-9]+)", text)
    if match is None or len(match[2]) > _DIGITS_MAX:
        return None
    return int(match[1] + match[2])


class Values:
    """The parsed values of options by documented name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        return self._values.get(name, "").strip()

    def has(self, name: str) -> bool:
        return name in self._values

    def number(self, name: str, low: int = 1) -> int | None:
        if name not in self._values:
            return None
        text = self.text(name)
        number = integer(text)
        if number is None or not low <= number <= INT64_MAX:
            refuse(
                name,
                text,
                f"it must be an integer of at least {low} and at most {INT64_MAX}",
            )
        return number

    def time_ms(self, name: str) -> int | None:
        """Unix milliseconds, given as such or as an ISO 8601 text with a zone."""
        if name not in self._values:
            return None
        text = self.text(name)
        number = integer(text)
        return _milliseconds(name, text, "it", text if number is None else number)

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if name not in self._values:
            return default
        if text not in ("true", "false"):
            refuse(name, self._values[name], "allowed are true and false")
        return text == "true"

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of `allowed`, of which the first one is the default."""
        text = self.text(name).lower()
        if name not in self._values:
            return allowed[0]
        if text not in allowed:
            refuse(name, self._values[name], f"allowed are {' and '.join(allowed)}")
        return text

    def duration(self, name: str, default: int) -> int:
        """Milliseconds."""
        if name not in self._values:
            return default
        match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", self.text(name).lower())
        unit = match[2] or "ms" if match else ""
        count = integer(match[1]) if match else None
        if count is None or unit not in _UNIT_MS:
            allowed = ", ".join(_UNIT_MS)
            refuse(
                name,
                self._values[name],
                f"it must be a number of at most {_DIGITS_MAX} digits with one of "
                f"{allowed}",
            )
        return min(int(count * _UNIT_MS[unit]), INT64_MAX)

    def by_partition(self, name: str, low: int = 0) -> dict[TopicPartition, int] | None:
        """``{"topic": {"0": 23}}`` as numbers by partition; None: not given."""
        values = {}
        for place, number in self._by_partition(name, '{"topic": {"0": 23}}'):
            if type(number) is not int or not low <= number <= INT64_MAX:
                refuse(
                    name,
                    self._values[name],
                    f"{_shown(str(place))}: {_shown(number)} must be an integer of "
                    f"at least {low} and at most {INT64_MAX}",
                )
            values[place] = number
        return values if self.has(name) else None

    def times_ms_by_partition(self, name: str) -> dict[TopicPartition, int] | None:
        """The same of times: Unix milliseconds, or ISO 8601 texts with a zone."""
        example = f'{{"topic": {{"0": 1700000000000, "1": "{_TIME_EXAMPLE}"}}}}'
        values = {
            place: _milliseconds(
                name, self._values[name], f"{_shown(str(place))}: {_shown(time)}", time
            )
            for place, time in self._by_partition(name, example)
        }
        return values if self.has(name) else None

    def _by_partition(
        self, name: str, example: str
    ) -> Iterator[tuple[TopicPartition, Any]]:
        """The members of ``{"topic": {"0": 23}}``; none if it was not given."""
        if not self.has(name):
            return
        for topic, members in self.json_object(name, example).items():
            if topic == MARKS:
                continue  # the progress of a query, given to another one
            if not isinstance(members, dict) or not members:
                refuse(name, self._values[name], f"it must be like {example}")
            for partition, value in members.items():
                index = partition_number(partition)
                if index is None:
                    refuse(
                        name,
                        self._values[name],
                        f"{_shown(topic)}: {_shown(partition)} is not the number of a "
                        f"partition; it must be like {example}",
                    )
                yield TopicPartition(topic, index), value

    def json_object(self, name: str, example: str) -> dict[str, Any]:
        try:
            value = json.loads(self._values[name], object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            refuse(name, self._values[name], f"it must be like {example}: {error}")
        if not isinstance(value, dict) or not value:
            refuse(name, self._values[name], f"it must be like {example}")
        return value


def _milliseconds(name: str, given: str, subject: str, time: object) -> int:
    """Unix milliseconds of a time: of an integer, or of an ISO 8601 text.

    A text without a zone is refused. Elsewhere in logstore it is local time, but here
    the driver, its Python process and the session (``spark.sql.session.timeZone``) can
    have different zones, and a query that is restarted on another machine must begin
    at the same record.

    Args:
        given: the whole value of the option.
        subject: what messages call the time.
    """
    if isinstance(time, str):
        try:
            when = parse_time(time)
        except ValueError:
            pass  # refused below
        else:
            if when.utcoffset() is None:
                refuse(
                    name,
                    given,
                    f"{subject} has no zone, and Spark may have another one than this "
                    f"machine; give one, such as {_TIME_EXAMPLE}",
                )
            time = to_milliseconds(name, when)
    if type(time) is int and 0 <= time <= INT64_MAX:
        return time
    refuse(
        name,
        given,
        f"{subject} must be a time from 1970 on: Unix milliseconds, an integer of at "
        f"least 0 and at most {INT64_MAX}, or an ISO 8601 text with a zone, such as "
        f"{_TIME_EXAMPLE}",
    )


def partition_number(text: str) -> int | None:
    """The number of a partition, in its canonical form; None: it is not a number.

    Each number has only one form: of "1" and "01" in one object, only one would count.
    """
    number = integer(text)
    if number is None or not 0 <= number <= PARTITION_MAX or str(number) != text:
        return None
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. A repeated name is an error: only one value would be kept."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{_shown(twice)} is given twice")
    return members
