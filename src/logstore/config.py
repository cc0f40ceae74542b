"""Settings: `StoreConfig` of an open store, `TopicConfig` of a topic.

Both are frozen and checked when they are made: a setting that cannot work raises a
`ConfigError` with its name, its value and the allowed values.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from logstore.errors import ConfigError

__all__ = ["CODECS", "StoreConfig", "TopicConfig"]

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
PARTITIONS_MAX = 1_000_000
_THREADS_MAX = 8

# Codec names in the order of their ids in the attributes of a batch.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise `ConfigError` unless `value` is an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(
            f"{name}={value!r} is not an integer in [{low}, {high}]",
            name=name,
            value=value,
        )
    if not low <= value <= high:
        raise ConfigError(
            f"{name}={value} is outside [{low}, {high}]", name=name, value=value
        )


def check_ratio(name: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is a number in [0, 1]."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:  # type: ignore[operator]
        raise ConfigError(
            f"{name}={value!r} is not a number in [0, 1]", name=name, value=value
        )


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise `TypeError` unless `value` is of this class."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {type(value).__name__}, not {kind.__name__}")


def worker_threads(config: StoreConfig) -> int:
    """The number of threads that ``recovery_threads`` means."""
    cores = len(os.sched_getaffinity(0))
    return config.recovery_threads or min(cores, _THREADS_MAX)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{name}={value!r} is not one of {', '.join(allowed)}",
            name=name,
            value=value,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How this process uses a store. These settings are not kept on disk.

    Attributes:
        max_open_files: descriptors of files of partitions kept open at most (>= 8),
            also of active segments and of deleted ones that a reader still uses; never
            more than three quarters of the process's limit.
        min_free_bytes: appends are refused with `DiskFullError` if fewer bytes would
            be left on the file system (0: no reserve).
        max_batch_decompressed_bytes: limit on one decompressed batch (bombs).
        topic_defaults: settings of topics that are created without any.
        retention_check_ms: how often the store applies the retention of its topics, if
            they set one (milliseconds, >= 1); the first time after 30 s, or this if it
            is less. If that fails, the next call raises the error.
        compaction_ms: how often the store compacts the topics whose ``cleanup_policy``
            has "compact", if their settings require it (milliseconds; 0: never by
            itself); the first time after 30 s, or this if it is less. If that fails,
            the next call raises the error.
        flush_checkpoint_ms: how often, at the most, the durable point of a partition is
            recorded while it is being flushed. A longer time makes recovery longer,
            nothing else.
        recovery_threads: partitions that are recovered, and staged files that are
            checked, at the same time, at most; 0: one per core, up to 8.
        group_access: give the group of the store's directory the same access to new
            files as to that directory: read (0640, 0750) or read and write (0660,
            0770). False: only the owner has access (0600, 0700).
        publish_for_others: write what other processes hand in (``shared=True``,
            `Store.submit`), as long as this store is open for writing: a thread waits
            for their requests, and commits waiting ones together. False: they wait.
        allow_shared_directory: write although the store's directory belongs to another
            user, or others may write to it. Danger: they can change the records, and
            replace files while they are being written.
        allow_network_filesystem: write although the store is on a network or FUSE file
            system. Danger: there the lock may not exclude a second writer, and synced
            data may not be on stable storage.
    """

    max_open_files: int = 1024
    min_free_bytes: int = 0
    max_batch_decompressed_bytes: int = 256 << 20
    topic_defaults: TopicConfig = dataclasses.field(
        default_factory=lambda: TopicConfig()  # below
    )
    retention_check_ms: int = 300_000
    compaction_ms: int = 60_000
    flush_checkpoint_ms: int = 5_000
    recovery_threads: int = 0
    group_access: bool = False
    publish_for_others: bool = True
    allow_shared_directory: bool = False
    allow_network_filesystem: bool = False

    def __post_init__(self) -> None:
        check_int("max_open_files", self.max_open_files, 8, 1 << 20)
        check_int("min_free_bytes", self.min_free_bytes, 0, INT64_MAX)
        check_int(
            "max_batch_decompressed_bytes",
            self.max_batch_decompressed_bytes,
            1024,
            INT32_MAX,
        )
        check_kind("topic_defaults", self.topic_defaults, TopicConfig)
        check_int("retention_check_ms", self.retention_check_ms, 1, INT64_MAX)
        check_int("compaction_ms", self.compaction_ms, 0, INT64_MAX)
        check_int("flush_checkpoint_ms", self.flush_checkpoint_ms, 0, INT64_MAX)
        check_int("recovery_threads", self.recovery_threads, 0, 256)
        for name in (
            "group_access",
            "publish_for_others",
            "allow_shared_directory",
            "allow_network_filesystem",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(
                    f"{name}={value!r} is not True or False", name=name, value=value
                )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Settings of a topic: Kafka's, in snake case, with Kafka's units and, except for
    `retention_ms` (Kafka: 7 days), Kafka's defaults.

    Attributes:
        segment_bytes: a segment is rolled before it would grow beyond this (bytes).
        segment_ms: also rolled by an append this many ms after its first one.
        segment_jitter_ms: rolled earlier by a random time up to this, per segment.
        segment_index_bytes: size at which an index file is full, which rolls, too.
        index_interval_bytes: bytes of log between two index entries, at least.
        retention_ms: age at which a segment is deleted; -1 (default) never. If this or
            the next one is set, the store applies it by itself, see
            ``StoreConfig.retention_check_ms``.
        retention_bytes: size the log is kept near; -1: any size.
        max_message_bytes: largest batch (magic 2, or compressed) or message (magic 0
            and 1), in bytes, with the 12 of offset and length.
        compression_type: codec of new batches: none, gzip, snappy, lz4, zstd
            (``uncompressed`` means none; so does ``producer``, since batches given to
            ``append_batches`` keep their codec anyway).
        compression_gzip_level, compression_lz4_level, compression_zstd_level: Kafka's.
        message_timestamp_type: CreateTime (the caller's, or the time of the append) or
            LogAppendTime (always the time of the append).
        file_delete_delay_ms: how long the files of a deleted segment stay on disk for
            readers in other processes.
        message_format: magic of new batches: 0, 1 (default) or 2. A topic that only a
            broker has written to is continued in magic 2 if its logs end with it, until
            it gets settings; the first append persists this.
        flush_messages: sync after this many records at the latest (M).
        flush_ms: sync at the latest this long after an append (S), in milliseconds.
        segment_digests: write a side file with a digest (XXH3) of each segment when it
            is rolled, with which `verify` detects any change. Reads the segment once
            more.
        cleanup_policy: "delete": the age and the size above apply; "compact":
            `Partition.compact` keeps the last record of each key, and every record
            needs a key; "compact,delete": both; "" deletes nothing.
        min_cleanable_dirty_ratio: `compact` does nothing while the part of the log
            that was not compacted yet is no larger than this share of it (0 to 1).
        delete_retention_ms: how long a tombstone (a record with a key and no value)
            stays after it was first compacted, so that all readers see it.
        min_compaction_lag_ms: records are not compacted before this age.
        max_compaction_lag_ms: a record stays uncompacted no longer than this, whatever
            the ratio; also rolls segments by time, as `segment_ms` does.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = -1
    retention_bytes: int = -1
    max_message_bytes: int = 1048588
    compression_type: str = "none"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = "CreateTime"
    file_delete_delay_ms: int = 60_000
    message_format: int = 1
    flush_messages: int = 10_000
    flush_ms: int = 1_000
    segment_digests: bool = False
    cleanup_policy: str = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            check_int(name, getattr(self, name), low, high)
        if not isinstance(self.segment_digests, bool):
            raise ConfigError(
                f"segment_digests={self.segment_digests!r} is not True or False",
                name="segment_digests",
                value=self.segment_digests,
            )
        if self.compression_type in ("uncompressed", "producer"):
            object.__setattr__(self, "compression_type", "none")
        _check_choice("compression_type", self.compression_type, CODECS)
        _check_choice(
            "message_timestamp_type", self.message_timestamp_type, TIMESTAMP_TYPES
        )
        if self.compression_gzip_level == 0:
            raise ConfigError(
                "compression_gzip_level=0 is not -1 or in [1, 9]",
                name="compression_gzip_level",
                value=0,
            )
        if not isinstance(self.cleanup_policy, str):
            raise ConfigError(
                f"cleanup_policy={self.cleanup_policy!r} is not a string",
                name="cleanup_policy",
                value=self.cleanup_policy,
            )
        if not self._policies <= {"compact", "delete", ""}:
            raise ConfigError(
                f"cleanup_policy={self.cleanup_policy!r} is not 'delete', 'compact' or "
                f"'compact,delete'",
                name="cleanup_policy",
                value=self.cleanup_policy,
            )
        check_ratio("min_cleanable_dirty_ratio", self.min_cleanable_dirty_ratio)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                f"min_compaction_lag_ms={self.min_compaction_lag_ms} is above "
                f"max_compaction_lag_ms={self.max_compaction_lag_ms}",
                name="min_compaction_lag_ms",
                value=self.min_compaction_lag_ms,
            )
        if self.compression_type == "zstd" and self.message_format < 2:
            raise ConfigError(
                "compression_type='zstd' needs message_format=2, not "
                f"{self.message_format}: magic 0 and 1 do not support zstd",
                name="compression_type",
                value="zstd",
            )
        if self.message_timestamp_type == "LogAppendTime" and self.message_format == 0:
            raise ConfigError(
                "message_timestamp_type='LogAppendTime' needs message_format 1 or 2: "
                "magic 0 has no timestamps",
                name="message_timestamp_type",
                value="LogAppendTime",
            )

    @property
    def _policies(self) -> set[str]:
        return {part.strip() for part in self.cleanup_policy.split(",")}

    @property
    def compacts(self) -> bool:
        """Whether the cleanup policy has "compact": every record needs a key."""
        return "compact" in self._policies

    @property
    def deletes(self) -> bool:
        """Whether the cleanup policy has "delete": age and size limits hold."""
        return "delete" in self._policies

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is rolled."""
        if not self.compacts:
            return self.segment_ms
        return min(self.segment_ms, self.max_compaction_lag_ms)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TopicConfig:
        """Make one from Kafka's own names and texts: ``{"segment.bytes": "1048576"}``.

        Raises:
            ConfigError: an unknown name, or a bad value.
        """
        values: dict[str, Any] = {}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, text in properties.items():
            field = fields.get(name.replace(".", "_"))
            if field is None or "_" in name:
                raise ConfigError(
                    f"unknown setting {name!r}; known: "
                    + ", ".join(sorted(f.replace("_", ".") for f in fields)),
                    name=name,
                    value=text,
                )
            values[field.name] = _parse(name, text, field.type)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, by field name."""
        return dataclasses.asdict(self)


# The value of a setting that a topics file (docs/format.md) leaves out: the file is
# written whole at each change. These values never change: a later default of
# `TopicConfig` is for new topics only. `retention_ms` is not here, see `from_stored`.
_STORED_DEFAULTS: Final[Mapping[str, Any]] = {
    "segment_bytes": 1_073_741_824,
    "segment_ms": 604_800_000,
    "segment_jitter_ms": 0,
    "segment_index_bytes": 10_485_760,
    "index_interval_bytes": 4096,
    "retention_bytes": -1,
    "max_message_bytes": 1_048_588,
    "compression_type": "none",
    "compression_gzip_level": -1,
    "compression_lz4_level": 9,
    "compression_zstd_level": 3,
    "message_timestamp_type": "CreateTime",
    "file_delete_delay_ms": 60_000,
    "message_format": 1,
    "flush_messages": 10_000,
    "flush_ms": 1_000,
    "segment_digests": False,
    "cleanup_policy": "delete",
    "min_cleanable_dirty_ratio": 0.5,
    "delete_retention_ms": 86_400_000,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": INT64_MAX,
}
# Written with a `cleanup_policy` that has "compact": earlier
# versions accepted one and ignored it.
_COMPACTS: Final = "compacts"


def to_stored(config: TopicConfig) -> dict[str, Any]:
    """The settings of a topic in the form of a topics file."""
    # State files have no numbers but integers.
    settings = {
        name: str(value) if isinstance(value, float) else value
        for name, value in config.to_dict().items()
        if name not in _STORED_DEFAULTS or _STORED_DEFAULTS[name] != value
    }
    return {**settings, _COMPACTS: True} if config.compacts else settings


def sets_retention(settings: Mapping[str, Any]) -> bool:
    """Whether settings in the form of a topics file set an age or a size at which
    segments are deleted."""
    names = ("retention_ms", "retention_bytes")
    return any(settings.get(name, -1) != -1 for name in names)


def compacts(settings: Mapping[str, Any]) -> bool:
    """Whether settings in the form of a topics file ask for compaction."""
    return settings.get(_COMPACTS) is True


def from_stored(settings: Mapping[str, Any]) -> TopicConfig:
    """The settings of a topic from a topics file; settings of a later version are
    ignored.

    Earlier versions left out a `retention_ms` of 7 days, whether it was requested or
    not, and deleted nothing by themselves: without one, nothing is deleted. They
    accepted a `cleanup_policy` of "compact" and ignored it: theirs is still ignored.

    Raises:
        ConfigError, TypeError: the settings are invalid.
    """
    fields = TopicConfig.__dataclass_fields__
    kept = {name: value for name, value in settings.items() if name in fields}
    ratio = kept.get("min_cleanable_dirty_ratio")
    if isinstance(ratio, str):
        kept["min_cleanable_dirty_ratio"] = _parse(
            "min_cleanable_dirty_ratio", ratio, "float"
        )
    policy = kept.get("cleanup_policy")
    if isinstance(policy, str) and not compacts(settings):
        parts = [part.strip() for part in policy.split(",")]
        if "compact" in parts:
            kept["cleanup_policy"] = "delete" if "delete" in parts else ""
    return TopicConfig(**{"retention_ms": -1, **_STORED_DEFAULTS, **kept})


def _parse(name: str, text: object, kind: object) -> object:
    if kind == "bool":
        chosen = {"true": True, "false": False}.get(str(text).strip().lower())
        if chosen is None:
            raise ConfigError(
                f"{name}={text!r} is not true or false", name=name, value=text
            )
        return chosen
    if kind == "float":
        try:
            return float(str(text).strip())
        except ValueError:
            raise ConfigError(
                f"{name}={text!r} is not a number", name=name, value=text
            ) from None
    if kind != "int":
        return text
    try:
        return int(str(text).strip())
    except ValueError:
        raise ConfigError(
            f"{name}={text!r} is not an integer", name=name, value=text
        ) from None


_RANGES = {
    "segment_bytes": (14, INT32_MAX),
    "segment_ms": (1, INT64_MAX),
    "segment_jitter_ms": (0, INT64_MAX),
    "segment_index_bytes": (4, INT32_MAX),
    "index_interval_bytes": (0, INT32_MAX),
    "retention_ms": (-1, INT64_MAX),
    "retention_bytes": (-1, INT64_MAX),
    "max_message_bytes": (0, INT32_MAX),
    "compression_gzip_level": (-1, 9),
    "compression_lz4_level": (1, 17),
    "compression_zstd_level": (-131072, 22),
    "file_delete_delay_ms": (0, INT64_MAX),
    "message_format": (0, 2),
    "flush_messages": (1, INT64_MAX),
    "flush_ms": (1, INT64_MAX),
    "delete_retention_ms": (0, INT64_MAX),
    "min_compaction_lag_ms": (0, INT64_MAX),
    "max_compaction_lag_ms": (1, INT64_MAX),
}
