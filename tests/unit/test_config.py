"""Settings of topics: defaults, limits, Kafka's own names."""

from __future__ import annotations

import dataclasses

import pytest

import logstore
from logstore import TopicConfig
from logstore.config import from_stored, to_stored
from logstore.log.retention import policies_of

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

DEFAULTS = {
    "segment_bytes": 1 << 30,
    "segment_ms": 604_800_000,
    "index_interval_bytes": 4096,
    "segment_index_bytes": 10 << 20,
    "retention_ms": -1,
    "retention_bytes": -1,
    "max_message_bytes": 1_048_588,
    "compression_type": "none",
    "message_timestamp_type": "CreateTime",
    "file_delete_delay_ms": 60_000,
    "message_format": 1,
    "flush_messages": 10_000,
    "flush_ms": 1_000,
}
LIMITS = {
    "segment_bytes": (14, INT32_MAX),
    "segment_ms": (1, INT64_MAX),
    "segment_jitter_ms": (0, INT64_MAX),
    "segment_index_bytes": (4, INT32_MAX),
    "index_interval_bytes": (0, INT32_MAX),
    "retention_ms": (-1, INT64_MAX),
    "retention_bytes": (-1, INT64_MAX),
    "max_message_bytes": (0, INT32_MAX),
    "file_delete_delay_ms": (0, INT64_MAX),
    "message_format": (0, 2),
    "flush_messages": (1, INT64_MAX),
    "flush_ms": (1, INT64_MAX),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_is_the_documented_one(name: str) -> None:
    """Kafka's, unless the documentation says otherwise."""
    assert getattr(TopicConfig(), name) == DEFAULTS[name]


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_inclusive(name: str) -> None:
    """The limits themselves are accepted; a value beyond is refused with name, value
    and range."""
    low, high = LIMITS[name]
    for good in (low, high):
        assert getattr(TopicConfig(**{name: good}), name) == good
    for bad in (low - 1, high + 1):
        with pytest.raises(logstore.ConfigError) as caught:
            TopicConfig(**{name: bad})
        assert (caught.value.name, caught.value.value) == (name, bad)
        for part in (name, bad, low, high):
            assert str(part) in str(caught.value)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("bad", ["5", 5.0, None, True])
def test_number_of_another_type_is_refused(name: str, bad: object) -> None:
    """Numbers are integers."""
    with pytest.raises(logstore.ConfigError) as caught:
        TopicConfig(**{name: bad})
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("compression_type", "brotli"),
        ("compression_type", "GZIP"),
        ("compression_type", None),
        ("compression_type", 1),
        ("message_timestamp_type", "createtime"),
        ("message_timestamp_type", 0),
        ("cleanup_policy", "shred"),
        ("cleanup_policy", None),
    ],
)
def test_choice_that_is_none_is_refused(name: str, bad: object) -> None:
    """Only the documented choices are accepted."""
    with pytest.raises(logstore.ConfigError) as caught:
        TopicConfig(**{name: bad})
    assert caught.value.name == name
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_compaction_is_a_policy(policy: str) -> None:
    """It can be combined with deletion; Kafka's names and a topics file have it,
    too."""
    config = TopicConfig(cleanup_policy=policy, min_cleanable_dirty_ratio=0.1)
    assert config.compacts
    assert config.deletes == ("delete" in policy)
    assert from_stored(to_stored(config)) == config
    assert TopicConfig.from_properties({"cleanup.policy": policy}).compacts


def test_compaction_has_kafkas_names_and_defaults() -> None:
    """The limits of time are checked against each other."""
    config = TopicConfig()
    assert (config.min_cleanable_dirty_ratio, config.delete_retention_ms) == (
        0.5,
        86_400_000,
    )
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (
        0,
        (1 << 63) - 1,
    )
    given = TopicConfig.from_properties(
        {
            "min.cleanable.dirty.ratio": "0.25",
            "delete.retention.ms": "1",
            "min.compaction.lag.ms": "2",
            "max.compaction.lag.ms": "3",
        }
    )
    assert given.min_cleanable_dirty_ratio == 0.25
    assert from_stored(to_stored(given)) == given
    for name, bad in (
        ("min_cleanable_dirty_ratio", 1.5),
        ("min_cleanable_dirty_ratio", "much"),
        ("min_cleanable_dirty_ratio", True),
        ("delete_retention_ms", -1),
        ("max_compaction_lag_ms", 0),
    ):
        with pytest.raises(logstore.ConfigError) as caught:
            TopicConfig(**{name: bad})
        assert caught.value.name == name
    with pytest.raises(logstore.ConfigError, match="is above"):
        TopicConfig(min_compaction_lag_ms=2, max_compaction_lag_ms=1)
    with pytest.raises(logstore.ConfigError, match="not a number"):
        TopicConfig.from_properties({"min.cleanable.dirty.ratio": "much"})


def test_compacted_topic_rolls_at_the_lag() -> None:
    """No record stays in the active segment for longer."""
    lag = {"segment_ms": 1000, "max_compaction_lag_ms": 10}
    assert TopicConfig(**lag).roll_ms == 1000
    assert TopicConfig(cleanup_policy="compact", **lag).roll_ms == 10


def test_topics_file_of_an_earlier_version_deletes_nothing_by_itself() -> None:
    """It left out a retention of 7 days, whether it was configured or the default, and
    accepted a policy that was never applied."""
    assert from_stored({}).retention_ms == -1
    assert from_stored({"retention_ms": 5}).retention_ms == 5
    compacted = from_stored({"cleanup_policy": "compact", "retention_ms": 5})
    assert policies_of(compacted) == []
    both = from_stored({"cleanup_policy": "compact,delete", "retention_ms": 5})
    assert len(policies_of(both)) == 1


@pytest.mark.parametrize("retention_ms", [-1, 5, 604_800_000])
def test_retention_is_written_down_as_it_is(retention_ms: int) -> None:
    """This includes the value that an earlier version left out."""
    config = TopicConfig(retention_ms=retention_ms)
    assert to_stored(config)["retention_ms"] == retention_ms
    assert from_stored(to_stored(config)) == config


def test_settings_for_new_topics_are_settings() -> None:
    with pytest.raises(TypeError, match="topic_defaults is dict, not TopicConfig"):
        logstore.StoreConfig(topic_defaults={})  # type: ignore[arg-type]
    assert logstore.StoreConfig().topic_defaults == TopicConfig()
    for bad in (0, -1, "5", None):
        with pytest.raises(logstore.ConfigError) as caught:
            logstore.StoreConfig(retention_check_ms=bad)  # type: ignore[arg-type]
        assert caught.value.name == "retention_check_ms"


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_needs_magic_2(magic: int) -> None:
    """Old messages have no zstd; the error names the setting that allows it."""
    with pytest.raises(logstore.ConfigError, match="message_format"):
        TopicConfig(compression_type="zstd", message_format=magic)
    assert TopicConfig(compression_type="zstd", message_format=2)


def test_log_append_time_needs_a_timestamp() -> None:
    """Magic 0 stores no timestamp."""
    with pytest.raises(logstore.ConfigError, match="message_format"):
        TopicConfig(message_timestamp_type="LogAppendTime", message_format=0)


def test_config_is_frozen_and_compared_by_value() -> None:
    """Two of the same settings are equal; none can be changed."""
    assert TopicConfig(segment_ms=5) == TopicConfig(segment_ms=5)
    assert hash(TopicConfig(segment_ms=5)) == hash(TopicConfig(segment_ms=5))
    assert TopicConfig(segment_ms=5) != TopicConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopicConfig().segment_ms = 5  # type: ignore[misc]


def test_from_properties_takes_kafkas_names() -> None:
    """Names with dots and texts, as in the properties of a topic."""
    config = TopicConfig.from_properties(
        {
            "segment.bytes": "1048576",
            "retention.ms": "-1",
            "compression.type": "lz4",
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": "delete",
            "index.interval.bytes": " 100 ",
        }
    )
    assert config == TopicConfig(
        segment_bytes=1048576,
        retention_ms=-1,
        compression_type="lz4",
        message_timestamp_type="LogAppendTime",
        cleanup_policy="delete",
        index_interval_bytes=100,
    )
    assert TopicConfig.from_properties({}) == TopicConfig()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment.byte", "1"),
        ("segment_bytes", "1048576"),
        ("segment.bytes", "1e6"),
        ("segment.bytes", ""),
        ("segment.bytes", "13"),
        ("compression.type", "brotli"),
    ],
)
def test_from_properties_refuses_bad_names_and_values(name: str, text: str) -> None:
    """An unknown name, or an invalid value, is a ConfigError."""
    with pytest.raises(logstore.ConfigError):
        TopicConfig.from_properties({name: text})


@pytest.mark.parametrize("name", ["compression_type"])
@pytest.mark.parametrize("text", ["producer", "uncompressed"])
def test_kafkas_other_words_for_no_compression_are_none(name: str, text: str) -> None:
    """`producer` and `uncompressed` compress nothing here."""
    assert getattr(TopicConfig(**{name: text}), name) == "none"
