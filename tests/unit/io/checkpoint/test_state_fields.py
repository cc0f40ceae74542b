"""The fields of state files: values of the right type may still be impossible."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from logstore.errors import ConfigError
from logstore.io import layout
from logstore.io.checkpoint.state_fields import (
    CHECKS,
    STORE_PARTITIONS_MAX,
    check_partition_count,
)

MOST = (1 << 63) - 1
RIGHT: dict[str, dict[str, Any]] = {
    layout.OWNER: {"clean": True, "fingerprints": [{}]},
    layout.CLOSED: {"generation": "", "base_offset": -1, "size": MOST},
    layout.TOPICS: {"topics": {"a": {"partitions": 1, "config": {}, "id": ""}}},
    layout.PRODUCERS: {"producers": [["a", 0, [1, 2]], ["b", 32767, [MOST]]]},
    layout.UNKNOWN: {"unknown": [["a", MOST]]},
    layout.TOPIC_IDENTITY: {
        "id": "0a" * 16,
        "log_id": "0b" * 16,
        "kafka_id": "",
        "topic": "a",
        "partition": 0,
    },
}
# Wrong values, and their places as paths of keys.
WRONG: list[tuple[str, tuple[Any, ...], Any]] = [
    (layout.OWNER, ("clean",), 1),
    (layout.OWNER, ("fingerprints",), [1]),
    (layout.CLOSED, ("generation",), None),
    (layout.CLOSED, ("size",), -2),
    (layout.CLOSED, ("base_offset",), MOST + 1),
    (layout.TOPICS, ("topics", "a", "partitions"), 0),
    (layout.TOPICS, ("topics", "a", "partitions"), 1_000_001),
    (layout.TOPICS, ("topics", "a", "config"), []),
    (layout.TOPICS, ("topics", "a", "id"), 5),
    (layout.TOPICS, ("topics", "a", "id"), "\ud800"),
    (layout.TOPICS, ("topics", "a", "id"), "0A" * 16),
    (layout.TOPICS, ("topics", "a", "kafka_id"), "x"),
    (layout.TOPICS, ("topics", "a", "deleting"), "yes"),
    (layout.TOPICS, ("topics", "a", "message_format"), 3),
    (layout.TOPICS, ("topics", "a", "message_format"), None),
    (layout.TOPICS, ("topics", "../a"), {"partitions": 1}),
    (layout.PRODUCERS, ("producers", 1, 0), "a"),
    (layout.PRODUCERS, ("producers", 1, 0), ""),
    (layout.PRODUCERS, ("producers", 1, 1), 32768),
    (layout.PRODUCERS, ("producers", 0, 2), []),
    (layout.PRODUCERS, ("producers", 0, 2, 0), -1),
    (layout.UNKNOWN, ("unknown", 0, 1), -1),
    (layout.UNKNOWN, ("unknown", 0), ["a"]),
    (layout.TOPIC_IDENTITY, ("id",), "0A" * 16),
    (layout.TOPIC_IDENTITY, ("log_id",), "0b" * 15),
    (layout.TOPIC_IDENTITY, ("kafka_id",), "x"),
    (layout.TOPIC_IDENTITY, ("topic",), ".."),
    (layout.TOPIC_IDENTITY, ("partition",), 1 << 31),
]


@pytest.mark.parametrize("name", RIGHT)
def test_right_fields_pass(name: str) -> None:
    CHECKS[name](RIGHT[name])


@pytest.mark.parametrize(("name", "path", "wrong"), WRONG)
def test_wrong_field_is_refused(name: str, path: tuple[Any, ...], wrong: Any) -> None:
    """One field is wrong at a time, all others are right."""
    value = copy.deepcopy(RIGHT[name])
    place: Any = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises((ValueError, ConfigError)):
        CHECKS[name](value)


@pytest.mark.parametrize("name", RIGHT)
def test_missing_field_is_refused(name: str) -> None:
    for field in RIGHT[name]:
        value = {key: RIGHT[name][key] for key in RIGHT[name] if key != field}
        with pytest.raises(KeyError):
            CHECKS[name](value)


def test_store_has_a_limit_of_partitions() -> None:
    check_partition_count(STORE_PARTITIONS_MAX)
    with pytest.raises(ConfigError, match="nothing was changed"):
        check_partition_count(STORE_PARTITIONS_MAX + 1)
