"""Parses the text of options: numbers, times, offsets by partition."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from logstore import ConfigError, TopicPartition

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
    hint = f"did you mean {canonical[near[0]]}?" if near else "there is no such option."
    refuse(key, value, f"{hint} Known are {', '.join(names)}")


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
    """A decimal number; None: the text is none, or has too many digits."""
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
                f"allowed is a number and one of {allowed}, and no number with more "
                f"than {_DIGITS_MAX} digits",
            )
        return min(int(count * _UNIT_MS[unit]), INT64_MAX)

    def by_partition(self, name: str, low: int = 0) -> dict[TopicPartition, int] | None:
        """``{"topic": {"0": 23}}`` as numbers by partition; None: not given."""
        if name not in self._values:
            return None
        example = '{"topic": {"0": 23}}'
        values = {}
        for topic, numbers in self.json_object(name, example).items():
            if topic == MARKS:
                continue  # the progress of a query, given to another one
            if not isinstance(numbers, dict) or not numbers:
                refuse(name, self._values[name], f"it must be like {example}")
            for partition, number in numbers.items():
                index = partition_number(partition)
                is_number = type(number) is int and low <= number <= INT64_MAX
                if index is None or not is_number:
                    refuse(
                        name,
                        self._values[name],
                        f"{_shown(topic)}: {_shown(partition)}: {_shown(number)} must "
                        f"be the number of a partition and an integer of at least "
                        f"{low} and at most {INT64_MAX}",
                    )
                values[TopicPartition(topic, index)] = number
        return values

    def json_object(self, name: str, example: str) -> dict[str, Any]:
        try:
            value = json.loads(self._values[name], object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            refuse(name, self._values[name], f"it must be like {example}: {error}")
        if not isinstance(value, dict) or not value:
            refuse(name, self._values[name], f"it must be like {example}")
        return value


def partition_number(text: str) -> int | None:
    """The number of a partition, in its canonical form; None: it is none.

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
        raise ValueError(f"{_shown(twice)} is there twice")
    return members
