"""In which partition of `__consumer_offsets` a broker keeps a group."""

from __future__ import annotations

from typing import Final

from logstore.errors import ConfigError

__all__ = ["OFFSETS_TOPIC", "java_hash", "partition_of_group"]

OFFSETS_TOPIC: Final = "__consumer_offsets"


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java, from -2**31 to 2**31 - 1. By it Kafka chooses the
    partition of a group in `__consumer_offsets`."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of_group(group: str, count: int) -> int:
    """The partition of a group, of `count` ones, as Kafka chooses it.

    Raises:
        ConfigError: `count` is not positive.
    """
    if count < 1:
        raise ConfigError(
            f"{OFFSETS_TOPIC} has {count} partitions: a group has no place in it",
            name="count",
            value=count,
        )
    value = java_hash(group)
    # Kafka's abs() of the smallest int, which Java cannot negate, is 0.
    return 0 if value == -(1 << 31) else abs(value) % count
