"""The options of the sink: accepted, refused, ignored."""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from logstore import ConfigError, TopicConfig
from pyspark_logstore.write.options import (
    SINK_BATCH_ONLY,
    SINK_BOTH,
    SINK_REFUSED_OF_KAFKA,
    TOPIC_SETTINGS,
    SinkOptions,
    parse_sink,
)


def parse(streaming: bool = False, **given: str) -> SinkOptions:
    """Parse options in the form that Spark passes: in lower case."""
    lowered = {name.lower(): value for name, value in {"path": "d", **given}.items()}
    return parse_sink(lowered, streaming=streaming)


def test_defaults() -> None:
    """The defaults without any option."""
    found = parse()
    assert (found.path, found.topic, found.partitions) == ("d", "", 1)
    assert found.create_topic
    assert found.lock_timeout_ms == 60_000
    assert found.txn is None
    assert not found.allow_rewind
    assert found.topic_config(with_headers=False) == TopicConfig()
    config = found.store_config
    assert not config.group_access
    assert not config.allow_shared_directory
    assert not config.allow_network_filesystem


def test_every_option_is_taken() -> None:
    """Each option has its parsed value."""
    found = parse(
        topic="orders",
        createTopic="false",
        partitions="7",
        lockTimeout="5 s",
        allowRewind="TRUE",
        groupAccess="true",
        allowSharedDirectory="true",
        allowNetworkFilesystem="true",
        txnAppId="load",
        txnVersion="0",
    )
    assert (found.topic, found.create_topic, found.partitions) == ("orders", False, 7)
    assert (found.lock_timeout_ms, found.allow_rewind) == (5_000, True)
    assert found.txn == ("load", 0)
    config = found.store_config
    assert config.group_access
    assert config.allow_shared_directory
    assert config.allow_network_filesystem
    assert pickle.loads(pickle.dumps(found)) == found


def test_every_setting_of_a_topic_is_an_option() -> None:
    """Names are in camel case, values parsed as Kafka's properties."""
    assert set(TOPIC_SETTINGS.values()) == {
        field.name for field in dataclasses.fields(TopicConfig)
    }
    found = parse(
        messageFormat="2",
        compressionType="zstd",
        compressionZstdLevel="5",
        segmentBytes="1000000",
        retentionMs="-1",
        messageTimestampType="LogAppendTime",
        segmentDigests="true",
    )
    assert found.topic_config(with_headers=False) == TopicConfig(
        message_format=2,
        compression_type="zstd",
        compression_zstd_level=5,
        segment_bytes=1_000_000,
        retention_ms=-1,
        message_timestamp_type="LogAppendTime",
        segment_digests=True,
    )


def test_headers_make_a_topic_of_magic_2_unless_told_otherwise() -> None:
    """Magic 1 has no headers."""
    assert parse().topic_config(with_headers=True).message_format == 2
    told = parse(messageFormat="1")
    assert told.topic_config(with_headers=True).message_format == 1


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("path", "", "the directory of the store"),
        ("path", "hdfs://x/y", "mounted here"),
        ("topic", " ", "the name of a topic"),
        ("createTopic", "yes", "true and false"),
        ("partitions", "0", "at least 1"),
        ("lockTimeout", "soon", "it must be a number of at most"),
        ("allowRewind", "1", "true and false"),
        ("groupAccess", "1", "true and false"),
        ("allowSharedDirectory", "1", "true and false"),
        ("allowNetworkFilesystem", "1", "true and false"),
        ("messageFormat", "0", "1 and 2"),
        ("messageFormat", "3", r"\[0, 2\]"),
        ("messageFormat", "two", "integer"),
        ("compressionType", "brotli", "none, gzip, snappy, lz4, zstd"),
        ("compressionType", "zstd", "message_format=2"),
        ("compressionGzipLevel", "0", "not -1 or in"),
        ("segmentDigests", "1", "true or false"),
        ("retentionMs", "-2", r"\[-1, "),
        ("txnVersion", "-1", "at least 0"),
        ("txnAppId", "a" * 901, "1 to 900"),
        ("asyncProgressTrackingEnabled", "true", "allowed is false"),
        ("topics", "a", "did you mean topic?"),
        ("subscribe", "a", "use topic"),
        ("whatever", "a", "Known options: path, topic"),
    ],
)
def test_what_cannot_be_names_the_option_and_what_is_allowed(
    name: str, value: str, says: str
) -> None:
    """The name is the documented one, if there is one."""
    with pytest.raises(ConfigError, match=says) as caught:
        parse(**{name: value})
    known = name if name in {*SINK_BOTH, *SINK_BATCH_ONLY, *TOPIC_SETTINGS} else None
    if known is not None or name.startswith("async"):
        assert caught.value.name == name
    assert caught.value.name.lower() == name.lower()
    assert f"option {caught.value.name}=" in str(caught.value)


def test_txn_needs_both() -> None:
    """An id without a version is no identity, nor the other way round."""
    with pytest.raises(ConfigError, match="needs txnVersion"):
        parse(txnAppId="load")
    with pytest.raises(ConfigError, match="goes with txnVersion"):
        parse(txnVersion="1")
    with pytest.raises(ConfigError, match="1 to 900"):
        parse(txnAppId="", txnVersion="1")


@pytest.mark.parametrize("name", SINK_BATCH_ONLY)
def test_stream_has_an_identity_of_its_own(name: str) -> None:
    """Two identities would contradict each other."""
    with pytest.raises(ConfigError, match="for batch writes only"):
        parse(True, **{name: "1"})


@pytest.mark.parametrize("name", SINK_REFUSED_OF_KAFKA)
def test_what_the_kafka_sink_refuses_is_refused(name: str) -> None:
    """It would change what is written."""
    with pytest.raises(ConfigError, match="cast the column"):
        parse(**{name: "x"})


def test_what_is_not_for_the_sink_is_ignored() -> None:
    """Options of Spark's, of brokers, and of the Kafka source's columns."""
    found = parse(
        True,
        **{
            "checkpointLocation": "c",
            "queryName": "q",
            "includeHeaders": "true",
            "kafka.bootstrap.servers": "host:9092",
            "kafka.acks": "all",
            "asyncProgressTrackingEnabled": "false",
            "asyncProgressTrackingCheckpointIntervalMs": "10",
        },
    )
    assert found == parse(True)


def test_servers_instead_of_a_path_are_noticed() -> None:
    """The source reports it in the same way."""
    with pytest.raises(ConfigError, match=r"instead of kafka\.bootstrap"):
        parse(path="", **{"kafka.bootstrap.servers": "host:9092"})


# ---------------------------------------------------------------- docs/spark.md

PAGE = Path(__file__).parents[4] / "docs" / "spark.md"


def test_page_has_the_options_there_are() -> None:
    """The table of the sink has them, and no others; settings of topics by example."""
    text = PAGE.read_text(encoding="utf-8").split("## Options of the sink")[1]
    table = re.findall(r"^\| (`.*?) \|", text.split("\n## ")[0], re.MULTILINE)
    names = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert names - TOPIC_SETTINGS.keys() == {*SINK_BOTH, *SINK_BATCH_ONLY}
    for name in SINK_REFUSED_OF_KAFKA:
        assert f"`{name}`" in text


def test_options_of_the_job_that_moves_over_are_taken() -> None:
    """All of them are accepted, path instead of the servers."""
    text = PAGE.read_text(encoding="utf-8").split("moved over from the Kafka sink\n")[1]
    options = dict(re.findall(r'^    \.option\("([\w.]+)", "([\w:]+)"\)', text, re.M))
    job = ("kafka.bootstrap.servers", "topic", "kafka.acks", "checkpointLocation")
    given = {name: options[name] for name in job}
    assert parse_sink({**given, "path": "data"}, streaming=True).topic == "orders"


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize(
    "name", sorted({*SINK_BOTH, *SINK_BATCH_ONLY, *TOPIC_SETTINGS})
)
def test_hostile_value_is_refused_by_name_or_means_something(
    name: str, streaming: bool
) -> None:
    """No other error is raised, and each message is readable and printable."""
    many = "9" * 5000
    hostile: list[Any] = [
        *("", " ", "NaN", "-1", "1e3", "1.0", many, "-" + many, "\u0663", "1_000"),
        *("\x00", "\ud800", many + "d", "5d", "[" * 100_000, "x" * 100_000, "file:"),
        *(None, 5, True, [], {}),
    ]
    told: list[str] = []
    for value in hostile:
        given: Any = {"path": "d", "topic": "t", name: value}
        if name in SINK_BATCH_ONLY:
            given = {"txnAppId": "a", "txnVersion": "1", **given}
        try:
            parse_sink(given, streaming=streaming)
        except ConfigError as error:
            told.append(str(error))
    assert all(len(text) < 2000 and text.encode() for text in told)
