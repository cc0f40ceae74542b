"""The options of the source, checked before anything is read.

Names and values are the same as in Spark's Kafka source. Spark passes names in lower
case; messages have them as documented. This module needs neither Spark nor a store.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Mapping
from typing import Final, NoReturn

from logstore import ConfigError, TopicPartition
from pyspark_logstore.option_values import (
    PARTITION_MAX,
    Values,
    given_as_text,
    refuse,
    refuse_unknown,
)

__all__ = [
    "Bound",
    "Selection",
    "SourceOptions",
    "check_reader",
    "parse",
    "parse_any",
    "path_of",
]

logger = logging.getLogger("logstore.spark")

EARLIEST: Final = -2
LATEST: Final = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The partitions to be read; exactly one attribute is set.

    Attributes:
        assigned: these partitions, from ``assign``.
        topics: all partitions of these topics, from ``subscribe``.
        pattern: all partitions of the topics whose whole name it matches, from
            ``subscribePattern``.
    """

    assigned: frozenset[TopicPartition] = frozenset()
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of a read; exactly one attribute besides `option` is set.

    Attributes:
        option: the option it comes from, for messages.
        keyword: "earliest" or "latest".
        offsets: by partition, -2 for earliest and -1 for latest among them.
        timestamp_ms: the first record at or after it, in every partition.
        timestamps_ms: the same by partition.
    """

    option: str
    keyword: str = ""
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Mapping[TopicPartition, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of one query. docs/spark.md explains them one by one."""

    path: str
    selection: Selection
    start: Bound
    end: Bound
    start_strategy: str = "error"
    include_headers: bool = False
    fail_on_data_loss: bool = True
    isolation: str = "read_uncommitted"
    durable_only: bool = False
    skips_damage: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    reader: str = "python"
    reader_id: str = ""
    state_dir: str = ""

    @property
    def limits_triggers(self) -> tuple[str, ...]:
        """Names of the given options that limit the size of one trigger."""
        given = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
        }
        return tuple(name for name, value in given.items() if value is not None)


# The documented options of the source.
BOTH: Final = (
    "path",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "isolation",
    "durableOnly",
    "onCorruption",
    "reader",
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "readerId",
    "stateDir",
)
# Options of Spark's Kafka source that concern brokers and consumers.
WITHOUT_MEANING: Final = (
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
)
ISOLATION_OF_KAFKA: Final = "kafka.isolation.level"
# Spark's Kafka source also refuses them: they would change the delivered records.
REFUSED_OF_KAFKA: Final = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "offsets are kept in the checkpoint of the query",
    "kafka.interceptor.classes": "records are delivered as they are",
    "kafka.key.deserializer": "keys are binary; cast the column",
    "kafka.value.deserializer": "values are binary; cast the column",
}
_CANONICAL: Final = {
    name.lower(): name
    for name in (*BOTH, *BATCH_ONLY, *STREAM_ONLY, *WITHOUT_MEANING, ISOLATION_OF_KAFKA)
}


def parse(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a query.

    Args:
        given: names (in any case) and values as the user wrote them.
        streaming: whether for ``readStream``.

    Raises:
        ConfigError: an option is unknown, missing, or has an invalid value; the message
            names it and the allowed values.
    """
    values = _values_by_name(given, streaming=streaming)
    read = Values(values)
    start, end = _bounds(read, streaming=streaming)
    max_offsets = read.number("maxOffsetsPerTrigger")
    min_offsets = read.number("minOffsetsPerTrigger")
    if (
        max_offsets is not None
        and min_offsets is not None
        and min_offsets > max_offsets
    ):
        refuse(
            "minOffsetsPerTrigger",
            min_offsets,
            f"it must not be larger than maxOffsetsPerTrigger, {max_offsets}",
        )
    reader_id, state_dir = read.text("readerId"), read.text("stateDir")
    if bool(reader_id) != bool(state_dir):
        name, other = (
            ("readerId", "stateDir") if reader_id else ("stateDir", "readerId")
        )
        refuse(name, values[name], f"it needs {other}, too")
    if reader_id and not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", reader_id):
        refuse("readerId", reader_id, "allowed are letters, digits, '.', '_' and '-'")
    return SourceOptions(
        path=path_of(read.text("path"), given),
        selection=_selection(read),
        start=start,
        end=end,
        start_strategy=read.choice(
            "startingOffsetsByTimestampStrategy", ("error", "latest")
        ),
        include_headers=read.flag("includeHeaders", False),
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        isolation=_isolation(read),
        durable_only=read.flag("durableOnly", False),
        skips_damage=read.choice("onCorruption", ("raise", "skip")) == "skip",
        min_partitions=read.number("minPartitions"),
        max_records_per_partition=read.number("maxRecordsPerPartition"),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_bytes_per_trigger=read.number("maxBytesPerTrigger"),
        max_trigger_delay_ms=read.duration("maxTriggerDelay", 15 * 60_000),
        reader=read.choice("reader", ("python", "auto", "jvm")),
        reader_id=reader_id,
        state_dir=_local_path("stateDir", state_dir) if state_dir else "",
    )


def parse_any(given: Mapping[str, str]) -> tuple[SourceOptions, bool | None]:
    """The options of a query that may be a batch query or a stream, and whether it is a
    stream; None: it may be either.

    Raises:
        ConfigError: they are valid for neither; or an option is for only one of the
            two, and they are not valid for it.
    """
    names = {key.lower() for key in given}
    for_batch = not names.isdisjoint(name.lower() for name in BATCH_ONLY)
    for_stream = not names.isdisjoint(name.lower() for name in STREAM_ONLY)
    if for_stream and not for_batch:
        return parse(given, streaming=True), True
    try:
        return parse(given, streaming=False), False if for_batch else None
    except ConfigError:
        if for_batch:
            raise
        return parse(given, streaming=True), True


def check_reader(given: Mapping[str, str]) -> None:
    """Raise `ConfigError` if the Python source is asked although the option ``reader``
    is ``jvm``: only `check_early` can follow it."""
    chosen = {key.lower(): value for key, value in given.items()}.get("reader", "")
    if chosen.strip().lower() == "jvm":
        refuse(
            "reader",
            chosen,
            "call logstore.spark.register(spark) before load(), or read with "
            'format("logstore-jvm")',
        )


def _values_by_name(given: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """Values by documented name, of the options that have a meaning here."""
    values = {}
    for key, value in given_as_text(given).items():
        lowered = key.lower()
        name = _CANONICAL.get(lowered, key)
        if lowered in REFUSED_OF_KAFKA:
            refuse(lowered, value, f"not supported: {REFUSED_OF_KAFKA[lowered]}")
        if streaming and name in BATCH_ONLY:
            refuse(name, value, "a stream has no end; it is for batch queries only")
        if not streaming and name in STREAM_ONLY:
            logger.warning("option %s has no effect in a batch query; ignored", name)
        elif name in WITHOUT_MEANING or (
            lowered.startswith("kafka.") and lowered != ISOLATION_OF_KAFKA
        ):
            logger.info("option %s has no effect without a broker; ignored", name)
        elif lowered not in _CANONICAL:
            _refuse_unknown(key, value)
        else:
            values[name] = value
    return values


def _refuse_unknown(key: str, value: str) -> NoReturn:
    lowered = key.lower()
    if lowered == "topic":
        refuse("topic", value, "it is for writing; to read, use subscribe")
    if lowered == "paths":
        refuse("path", value, "a query reads one store; read two and union them")
    refuse_unknown(key, value, _CANONICAL, (*BOTH, *BATCH_ONLY, *STREAM_ONLY))


def path_of(path: str, given: Mapping[str, str]) -> str:
    if not path:
        servers = {key.lower() for key in given} & {"kafka.bootstrap.servers"}
        instead = " instead of kafka.bootstrap.servers" if servers else ""
        refuse("path", path, f"give the directory of the store{instead}")
    return _local_path("path", path)


def _local_path(name: str, path: str) -> str:
    """A path without ``file:``; its target is not checked."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", path)
    local_path = path
    if scheme is not None:
        if scheme[1].lower() != "file":
            refuse(name, path, "it must be on a file system that is mounted here")
        local_path = path[len("file:") :]
        if local_path.startswith("//"):
            host, slash, rest = local_path[2:].partition("/")
            if host.lower() not in ("", "localhost"):
                refuse(name, path, f"it is on the host {host}; it must be mounted here")
            local_path = re.sub(r"^/+", "/", slash + rest)
    try:
        is_path = "\0" not in os.fsdecode(os.fsencode(local_path))
    except UnicodeError:
        is_path = False
    if not local_path or not is_path:
        refuse(name, path, "it is not a valid path")
    return local_path


def _selection(read: Values) -> Selection:
    given = [n for n in ("assign", "subscribe", "subscribePattern") if read.has(n)]
    if len(given) != 1:
        names = " and ".join(given) or "none"
        raise ConfigError(
            "give exactly one of the options assign, subscribe and "
            f"subscribePattern; given: {names}",
            name=given[0] if given else "subscribe",
        )
    (name,) = given
    text = read.text(name)
    if name == "subscribe":
        topics = tuple(sorted({t.strip() for t in text.split(",") if t.strip()}))
        if not topics:
            refuse(name, text, "it must be a comma-separated list of topics")
        return Selection(topics=topics)
    if name == "subscribePattern":
        if not text:
            refuse(name, text, "it must be a regular expression; .* matches all topics")
        try:
            return Selection(pattern=re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            refuse(name, text, f"not a regular expression: {error}")
    example = '{"topic": [0, 1]}'
    assigned = set()
    for topic, numbers in read.json_object(name, example).items():
        if not isinstance(numbers, list) or not all(
            type(number) is int and 0 <= number <= PARTITION_MAX for number in numbers
        ):
            refuse(name, text, f"it must be like {example}")
        assigned |= {TopicPartition(topic, number) for number in numbers}
    if not assigned:
        refuse(name, text, f"it must be like {example}")
    return Selection(assigned=frozenset(assigned))


def _bounds(read: Values, *, streaming: bool) -> tuple[Bound, Bound]:
    """Start and end. A timestamp precedes timestamps, and these precede offsets."""
    start = _bound(read, "starting", "latest" if streaming else "earliest")
    end = _bound(read, "ending", "latest")
    if not streaming and _asks_for(start, "latest", LATEST):
        refuse(
            start.option,
            read.text(start.option),
            "a batch query cannot start at the end (latest, -1)",
        )
    if _asks_for(end, "earliest", EARLIEST):
        refuse(
            end.option,
            read.text(end.option),
            "a query cannot end at the beginning (earliest, -2)",
        )
    return start, end


def _asks_for(bound: Bound, keyword: str, number: int) -> bool:
    return bound.keyword == keyword or number in (bound.offsets or {}).values()


def _bound(read: Values, prefix: str, default: str) -> Bound:
    option = f"{prefix}Timestamp"
    timestamp = read.time_ms(option)
    if timestamp is not None:
        return Bound(option, timestamp_ms=timestamp)
    option = f"{prefix}OffsetsByTimestamp"
    timestamps = read.times_ms_by_partition(option)
    if timestamps is not None:
        return Bound(option, timestamps_ms=timestamps)
    option = f"{prefix}Offsets"
    text = read.text(option).lower() if read.has(option) else default
    if text in ("earliest", "latest"):
        return Bound(option, keyword=text)
    if not text.startswith("{"):
        refuse(option, text, "allowed are earliest, latest and a JSON object")
    return Bound(option, offsets=read.by_partition(option, low=EARLIEST))


def _isolation(read: Values) -> str:
    allowed = ("read_uncommitted", "read_committed")
    mine, kafkas = read.has("isolation"), read.has(ISOLATION_OF_KAFKA)
    if not mine and kafkas:
        return read.choice(ISOLATION_OF_KAFKA, allowed)
    isolation = read.choice("isolation", allowed)
    if mine and kafkas and read.choice(ISOLATION_OF_KAFKA, allowed) != isolation:
        refuse("isolation", isolation, f"{ISOLATION_OF_KAFKA} has another value")
    return isolation
