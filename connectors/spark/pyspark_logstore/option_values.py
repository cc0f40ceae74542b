"""The text of an option as what it stands for: numbers, times, offsets by partition."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from logstore import ConfigError

__all__ = ["TopicPartition", "Values", "refuse", "refuse_unknown"]

INT64_MAX: Final = (1 << 63) - 1
_UNIT_MS: Final = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


def refuse(name: str, value: object, why: str) -> NoReturn:
    """Raise `ConfigError` for the value of an option."""
    raise ConfigError(f"option {name}={value!r}: {why}", name=name, value=value)


def refuse_unknown(
    key: str, value: str, canonical: Mapping[str, str], known: Iterable[str]
) -> NoReturn:
    """Raise `ConfigError` for an option that there is not.

    Args:
        canonical: all names that mean something, by their lower case.
        known: those that are told.
    """
    near = difflib.get_close_matches(key.lower(), canonical, n=1)
    hint = f"did you mean {canonical[near[0]]}?" if near else "there is no such option."
    refuse(key, value, f"{hint} Known are {', '.join(known)}")


class Values:
    """The values of options by documented name, each as what it stands for."""

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
        if not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= INT64_MAX:
            refuse(name, text, f"it must be an integer of at least {low}")
        return int(text)

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
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", self.text(name).lower())
        unit = found[2] or "ms" if found else ""
        if not found or unit not in _UNIT_MS:
            allowed = ", ".join(_UNIT_MS)
            refuse(
                name, self._values[name], f"allowed is a number and one of {allowed}"
            )
        return int(int(found[1]) * _UNIT_MS[unit])

    def by_partition(self, name: str, low: int = 0) -> dict[TopicPartition, int] | None:
        """``{"topic": {"0": 23}}`` as numbers by partition; None: not given."""
        if name not in self._values:
            return None
        example = '{"topic": {"0": 23}}'
        found = {}
        for topic, numbers in self.json_object(name, example).items():
            if not isinstance(numbers, dict) or not numbers:
                refuse(name, self._values[name], f"it must be like {example}")
            for partition, number in numbers.items():
                if not partition.isdecimal() or type(number) is not int or number < low:
                    refuse(
                        name,
                        self._values[name],
                        f"{topic!r}: {partition!r}: {number!r} must be the number of a "
                        f"partition and an integer of at least {low}",
                    )
                found[TopicPartition(topic, int(partition))] = number
        return found

    def json_object(self, name: str, example: str) -> dict[str, Any]:
        try:
            value = json.loads(self._values[name])
        except ValueError as error:
            refuse(name, self._values[name], f"it must be like {example}: {error}")
        if not isinstance(value, dict) or not value:
            refuse(name, self._values[name], f"it must be like {example}")
        return value
