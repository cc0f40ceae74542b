"""Options: accepted values, and errors for wrong ones. No Spark needed."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest

from logstore import ConfigError, TopicPartition
from pyspark_logstore.read.options import (
    BATCH_ONLY,
    BOTH,
    STREAM_ONLY,
    SourceOptions,
    parse,
    parse_any,
)

MINIMAL = {"path": "data", "subscribe": "orders"}


def batch(**options: str) -> SourceOptions:
    return parse({**MINIMAL, **options}, streaming=False)


def stream(**options: str) -> SourceOptions:
    return parse({**MINIMAL, **options}, streaming=True)


def test_defaults_are_those_of_the_kafka_source() -> None:
    """A batch reads everything, a stream new records; losses fail the query."""
    options = batch()
    assert (options.start.keyword, options.end.keyword) == ("earliest", "latest")
    assert stream().start.keyword == "latest"
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.isolation == "read_uncommitted"
    assert options.start_strategy == "error"
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert stream().limits_triggers == ()


def test_names_are_taken_in_any_case() -> None:
    """Spark hands names over in lower case."""
    options = {key.lower(): value for key, value in FULL_STREAM.items()}
    assert parse(options, streaming=True) == parse(FULL_STREAM, streaming=True)


FULL_STREAM = {
    "path": "file:///data/store",
    "assign": '{"orders": [0, 2], "users": [1]}',
    "startingOffsets": '{"orders": {"0": 23, "2": -1}, "users": {"1": -2}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "minPartitions": "4",
    "maxRecordsPerPartition": "1000",
    "failOnDataLoss": "FALSE",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "durableOnly": "true",
    "maxOffsetsPerTrigger": "1000",
    "minOffsetsPerTrigger": "10",
    "maxBytesPerTrigger": "1000000",
    "maxTriggerDelay": "2m",
    "readerId": "clean-orders.1",
    "stateDir": "state",
}


def test_every_value_arrives() -> None:
    """Each option of a stream has its parsed value."""
    options = parse(FULL_STREAM, streaming=True)
    assert options.path == "/data/store"
    zero, two = TopicPartition("orders", 0), TopicPartition("orders", 2)
    one = TopicPartition("users", 1)
    assert options.selection.assigned == {zero, two, one}
    assert options.start.offsets == {zero: 23, two: -1, one: -2}
    assert options.start_strategy == "latest"
    assert options.min_partitions == 4
    assert options.max_records_per_partition == 1000
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.isolation == "read_committed"
    assert options.durable_only
    assert options.max_offsets_per_trigger == 1000
    assert options.min_offsets_per_trigger == 10
    assert options.max_bytes_per_trigger == 1_000_000
    assert options.max_trigger_delay_ms == 120_000
    assert (options.reader_id, options.state_dir) == ("clean-orders.1", "state")


def test_topics_are_split_at_commas() -> None:
    """Spaces and repeats do not matter."""
    assert batch(subscribe=" b, a ,b").selection.topics == ("a", "b")


def test_pattern_is_a_regular_expression() -> None:
    """It is matched against the whole name later."""
    options = parse({"path": "d", "subscribePattern": "or.*"}, streaming=False)
    assert options.selection.pattern is not None
    assert options.selection.pattern.fullmatch("orders")


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (("Timestamp", "OffsetsByTimestamp", "Offsets"), "Timestamp"),
        (("OffsetsByTimestamp", "Offsets"), "OffsetsByTimestamp"),
        (("Offsets",), "Offsets"),
    ],
)
@pytest.mark.parametrize("prefix", ["starting", "ending"])
def test_precedence_is_timestamp_then_timestamps_then_offsets(
    prefix: str, given: tuple[str, ...], option: str
) -> None:
    """The Kafka source has the same precedence, whatever the order of the options."""
    values = {
        "Timestamp": "1000",
        "OffsetsByTimestamp": '{"orders": {"0": 1000}}',
        "Offsets": '{"orders": {"0": 7}}',
    }
    options = batch(**{f"{prefix}{name}": values[name] for name in given})
    bound = options.start if prefix == "starting" else options.end
    assert bound.option == f"{prefix}{option}"
    place = TopicPartition("orders", 0)
    expected: dict[str, Any] = {
        "Timestamp": (1000, None, None),
        "OffsetsByTimestamp": (None, {place: 1000}, None),
        "Offsets": (None, None, {place: 7}),
    }
    found = (bound.timestamp_ms, bound.timestamps_ms, bound.offsets)
    assert found == expected[option]


NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
NOON = (
    "1769860800000",
    "2026-01-31T12:00:00Z",
    "2026-01-31t12:00z",
    " 2026-01-31 13:00:00.000+01:00 ",
    "2026-01-31T11:59:59.999001+00:00",
)


@pytest.mark.parametrize("text", NOON)
@pytest.mark.parametrize("prefix", ["starting", "ending"])
def test_time_is_milliseconds_or_an_iso_text_with_a_zone(
    prefix: str, text: str
) -> None:
    """Every zone is accepted, rounded up to milliseconds, for all partitions and for
    each; a datetime is passed as text."""
    options = batch(**{f"{prefix}Timestamp": text})
    bound = options.start if prefix == "starting" else options.end
    assert (bound.option, bound.timestamp_ms) == (f"{prefix}Timestamp", NOON_MS)
    member: Any = int(text) if text.isdigit() else text
    members = json.dumps({"orders": {"0": member, "1": 5}})
    options = batch(**{f"{prefix}OffsetsByTimestamp": members})
    bound = options.start if prefix == "starting" else options.end
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert bound.timestamps_ms == {zero: NOON_MS, one: 5}


@pytest.mark.parametrize("text", NOON)
def test_stream_starts_at_the_same_times(text: str) -> None:
    assert stream(startingTimestamp=text).start.timestamp_ms == NOON_MS
    assert stream(startingTimestamp=str(EPOCH)).start.timestamp_ms == 0


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
NO_ZONE = ("2026-01-31", "2026-01-31T12:00:00", "2026-01-31 12:00")
NO_TIME = ("now", "", "31.01.2026", "2026-02-30T00:00:00Z", "1969-12-31T23:00:00Z")


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("text", [*NO_ZONE, *NO_TIME])
def test_text_without_a_zone_or_time_is_refused_with_an_example(
    text: str, streaming: bool
) -> None:
    """The message names the fault, and the part of the option."""
    members = json.dumps({"orders": {"0": 5, "1": text}})
    given = {"startingTimestamp": text, "startingOffsetsByTimestamp": members}
    if not streaming:
        given |= {"endingTimestamp": text, "endingOffsetsByTimestamp": members}
    for name, value in given.items():
        with pytest.raises(ConfigError) as caught:
            parse({**MINIMAL, name: value}, streaming=streaming)
        assert caught.value.name == name
        told = str(caught.value)
        assert ("has no zone" in told) == (text in NO_ZONE)
        assert ("must be a time" in told) == (text in NO_TIME)
        assert "such as 2026-01-31T12:00:00+00:00" in told
        assert (f"'orders-1': {text!r} " in told) == ("ByTimestamp" in name)


# By the name of the option in the message: options, streaming, and the part of the
# message that lists allowed values.
REFUSED: dict[str, tuple[str, dict[str, str], bool, str]] = {
    "typo": (
        "startingOffset",
        {"startingOffset": "earliest"},
        False,
        "startingOffsets",
    ),
    "unknown": ("nonsense", {"nonsense": "1"}, False, "Known options: path, assign"),
    "sink": ("topic", {"topic": "orders"}, True, "subscribe"),
    "paths": ("path", {"paths": '["a","b"]'}, False, "one store"),
    "bad-kafka": (
        "kafka.auto.offset.reset",
        {"kafka.auto.offset.reset": "latest"},
        True,
        "startingOffsets",
    ),
    "deserializer": (
        "kafka.value.deserializer",
        {"kafka.value.deserializer": "x"},
        False,
        "binary",
    ),
    "two-selections": ("subscribe", {"assign": '{"a":[0]}'}, False, "assign and"),
    "no-topics": ("subscribe", {"subscribe": " , "}, False, "comma-separated"),
    "flag": ("failOnDataLoss", {"failOnDataLoss": "no"}, False, "true and false"),
    "number": ("minPartitions", {"minPartitions": "many"}, False, "at least 1"),
    "zero": ("minPartitions", {"minPartitions": "0"}, False, "at least 1"),
    "huge": ("minPartitions", {"minPartitions": "9" * 20}, False, "at least 1"),
    "negative": (
        "maxOffsetsPerTrigger",
        {"maxOffsetsPerTrigger": "-5"},
        True,
        "at least 1",
    ),
    "min-over-max": (
        "minOffsetsPerTrigger",
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        True,
        "maxOffsetsPerTrigger, 8",
    ),
    "delay": ("maxTriggerDelay", {"maxTriggerDelay": "soon"}, True, "ms"),
    "delay-unit": ("maxTriggerDelay", {"maxTriggerDelay": "5 years"}, True, "ms"),
    "strategy": (
        "startingOffsetsByTimestampStrategy",
        {"startingOffsetsByTimestampStrategy": "first"},
        False,
        "error and latest",
    ),
    "isolation": ("isolation", {"isolation": "none"}, False, "read_committed"),
    "isolations": (
        "isolation",
        {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"},
        False,
        "kafka.isolation.level",
    ),
    "keyword": ("startingOffsets", {"startingOffsets": "first"}, False, "earliest"),
    "not-json": ("startingOffsets", {"startingOffsets": '{"a":'}, False, '"0": 23'),
    "not-numbers": (
        "startingOffsets",
        {"startingOffsets": '{"a":{"0":"x"}}'},
        False,
        "integer of at least -2",
    ),
    "no-number": (
        "startingOffsets",
        {"startingOffsets": '{"a":{"x":1}}'},
        False,
        "number of a partition",
    ),
    "list": ("startingOffsets", {"startingOffsets": '{"a":[1]}'}, False, '"0": 23'),
    "below-earliest": (
        "endingOffsets",
        {"endingOffsets": '{"a":{"0":-3}}'},
        False,
        "at least -2",
    ),
    "batch-from-latest": (
        "startingOffsets",
        {"startingOffsets": "latest"},
        False,
        "cannot start at the end",
    ),
    "batch-from-minus-one": (
        "startingOffsets",
        {"startingOffsets": '{"orders":{"0":-1}}'},
        False,
        "cannot start at the end",
    ),
    "to-earliest": (
        "endingOffsets",
        {"endingOffsets": "earliest"},
        False,
        "cannot end at the beginning",
    ),
    "to-minus-two": (
        "endingOffsets",
        {"endingOffsets": '{"orders":{"0":-2}}'},
        False,
        "cannot end at the beginning",
    ),
    "stream-end": ("endingOffsets", {"endingOffsets": "latest"}, True, "no end"),
    "stream-end-time": ("endingTimestamp", {"endingTimestamp": "1"}, True, "no end"),
    "timestamp": ("startingTimestamp", {"startingTimestamp": "now"}, False, "integer"),
    "hdfs": ("path", {"path": "hdfs://host/x"}, False, "mounted"),
    "id-alone": ("readerId", {"readerId": "a"}, True, "stateDir"),
    "dir-alone": ("stateDir", {"stateDir": "a"}, True, "readerId"),
    "id-path": ("readerId", {"readerId": "a/b", "stateDir": "s"}, True, "letters"),
}


@pytest.mark.parametrize(
    ("name", "options", "streaming", "allowed"), REFUSED.values(), ids=REFUSED
)
def test_wrong_option_is_refused_by_name(
    name: str, options: dict[str, str], streaming: bool, allowed: str
) -> None:
    """The error names the option as documented, and its allowed values."""
    with pytest.raises(ConfigError) as caught:
        parse({**MINIMAL, **options}, streaming=streaming)
    assert name in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"assign": "[0]"},
        {"assign": "{}"},
        {"assign": '{"a": []}'},
        {"assign": '{"a": [-1]}'},
        {"assign": '{"a": ["0"]}'},
        {"subscribePattern": "("},
        {},
    ],
    ids=str,
)
def test_wrong_selection_is_refused(options: dict[str, str]) -> None:
    """A query must select its topics in exactly one of three ways."""
    with pytest.raises(ConfigError) as caught:
        parse({"path": "data", **options}, streaming=False)
    assert next(iter(options), "subscribe") in str(caught.value)


def test_path_is_needed_and_replaces_the_servers() -> None:
    """The message names the replacement for a job from Kafka."""
    with pytest.raises(ConfigError, match=r"instead of kafka\.bootstrap\.servers"):
        parse(
            {"kafka.bootstrap.servers": "host:9092", "subscribe": "a"}, streaming=False
        )
    with pytest.raises(ConfigError, match="option path"):
        parse({"subscribe": "a"}, streaming=False)


@pytest.mark.parametrize(
    "name",
    [
        "kafka.bootstrap.servers",
        "kafka.group.id",
        "kafka.sasl.mechanism",
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
    ],
)
def test_option_about_brokers_is_ignored(name: str) -> None:
    """A job that is moved over keeps them."""
    assert batch(**{name: "x"}) == batch()
    assert stream(**{name: "x"}) == stream()


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_option_for_streams_is_ignored_in_a_batch(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning is logged, as in the Kafka source."""
    assert batch(**{name: "1"}) == batch()
    assert name in caplog.text


@pytest.mark.parametrize("name", [*BOTH, *STREAM_ONLY, *BATCH_ONLY])
def test_typo_in_an_option_gets_a_suggestion(name: str) -> None:
    """One letter is missing: the message has the right name, or all names."""
    with pytest.raises(ConfigError, match=name):
        batch(**{name[:-1]: "1"})


# ------------------------------------------------------------------- hostile values

DIGITS = "9" * 5000
HOSTILE = (
    *("", " ", "NaN", "inf", "-1", "-0", "+0", "00", "1e3", "1.0", "True", "null"),
    *(DIGITS, "-" + DIGITS, "0" * 5000 + "1", "\u0663", "\uff11", "\xb2", "1_000"),
    *("\x00", "a\x00b", "\ud800", "5 us", DIGITS + "us", DIGITS + "d", "1.5s", "-5s"),
    *("[", "{", "{}", "[]", "[" * 100_000, '{"a":' * 100_000, '"x"', "a,,b", ","),
    *(f'{{"t":{{"0":{DIGITS}}}}}', f'{{"t":{{"{DIGITS}":0}}}}', f'{{"t":[{DIGITS}]}}'),
    *('{"t":{"0":NaN}}', '{"t":{"0":1.0}}', '{"t":{"0":true}}', '{"t":{"0":null}}'),
    *('{"t":{"0":"5"}}', '{"t":{"0":-3}}', '{"t":{"-1":3}}', '{"t":{"\u0663":3}}'),
    *('{"t":{"0":3},"t":{"1":4}}', '{"t":{"0":3,"0":4}}', '{"t":{"0":3,"00":4}}'),
    *('{"t":[true]}', '{"t":[-1]}', '{"t":[1.0]}', '{"t":[[]]}', '{"t":{}}'),
    *('{"\\ud800":[0]}', '{"":[0]}', '{"..":{"0":0}}', "../x", "a/b", "\ud800x"),
    *("(", "(?P<", "a{99999999999999999999}", "(" * 5000, "*", "x" * 100_000),
    *("file:", "file://host/x", "file:///", "hdfs://x", "s3a://b", "~", "."),
    *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "2026-01-31T12:00:00\u0663"),
    *('{"t":{"0":"\\ud800"}}', '{"t":{"0":"2026-01-31"}}', '{"\\ud800":{"0":""}}'),
    *(None, 5, True, [], {}),
)


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("name", sorted({*FULL_STREAM, *BATCH_ONLY}))
def test_hostile_value_is_refused_by_name_or_means_something(
    name: str, streaming: bool
) -> None:
    """No other error is raised, and each message is readable and printable."""
    others = {"path": "d", "subscribe": "t", "readerId": "a", "stateDir": "s"}
    if name in ("assign", "subscribePattern"):
        del others["subscribe"]
    told: list[str] = []
    for value in HOSTILE:
        given: Any = {**others, name: value}
        try:
            parse(given, streaming=streaming)
        except ConfigError as error:
            told.append(str(error))
    assert all(len(text) < 2000 and text.encode() for text in told)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("minPartitions", DIGITS, "at most 9223372036854775807"),
        ("maxRecordsPerPartition", "\u0663", "integer of at least 1"),
        ("startingTimestamp", str(1 << 63), "at most 9223372036854775807"),
        ("startingOffsets", f'{{"t":{{"0":{1 << 63}}}}}', "at most"),
        ("startingOffsets", '{"t":{"0":1},"t":{"1":2}}', "'t' is given twice"),
        ("startingOffsets", '{"t":{"00":1}}', "number of a partition"),
        ("startingOffsetsByTimestamp", '{"t":{"0":1.0}}', "integer"),
        ("startingOffsetsByTimestamp", '{"t":{"x":1}}', "number of a partition"),
        ("startingOffsetsByTimestamp", '{"t":{"0":"5"}}', "ISO 8601 text"),
        ("startingTimestamp", "2" * 5000 + "Z", "ISO 8601 text"),
        ("assign", f'{{"t":[{1 << 31}]}}', "like"),
        ("subscribePattern", "", "regular expression"),
        ("subscribePattern", "a{99999999999999999999}", "not a regular expression"),
        ("path", "file://host/data", "on the host host"),
        ("path", "a\x00b", "not a valid path"),
        ("failOnDataLoss", None, "it has no value"),
    ],
)
def test_value_that_cannot_be_is_told_with_what_is_allowed(
    option: str, value: Any, told: str
) -> None:
    """A value of thousands of characters is cut to its beginning."""
    given: Any = {"path": "d", "subscribe": "t", option: value}
    if option in ("assign", "subscribePattern"):
        del given["subscribe"]
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        parse(given, streaming=False)
    assert caught.value.name == option
    assert len(str(caught.value)) < 1000


# ------------------------------------------------------------- at load() and start()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"subscribe": "a", "startingOfsets": "earliest"}, "startingOfsets"),
        ({"subscribe": "a", "onCorruption": "ignore"}, "onCorruption"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribe": "a", "endingOffsets": "x", "readerId": "r"}, "endingOffsets"),
        ({}, "subscribe"),
        ({"topic": "a"}, "topic"),
    ],
)
def test_wrong_option_is_found_also_where_nobody_knows_of_a_stream(
    options: dict[str, str], name: str
) -> None:
    """Spark asks for the schema at `load()`, for either kind of query."""
    with pytest.raises(ConfigError) as caught:
        parse_any({"path": "data", **options})
    assert caught.value.name == name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingOffsets": "latest"},
        {"endingOffsets": "latest"},
        {"maxOffsetsPerTrigger": "5"},
        {"endingOffsets": "latest", "maxOffsetsPerTrigger": "5"},
        {"onCorruption": "skip"},
    ],
    ids=str,
)
def test_option_that_is_right_for_one_of_them_is_let_through(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """An option of streams is not reported as ignored."""
    parse_any({"path": "data", "subscribe": "a", **options})
    if "endingOffsets" not in options:
        assert not caplog.records
