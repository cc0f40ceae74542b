"""The options of the sink, checked before anything is written.

Names and values are the same as in Spark's Kafka sink; settings of topics are in camel
case. This module needs neither Spark nor a store.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Final, NoReturn

from logstore import ConfigError, StoreConfig, TopicConfig
from pyspark_logstore.option_values import (
    Values,
    given_as_text,
    refuse,
    refuse_unknown,
)
from pyspark_logstore.read.options import path_of

__all__ = ["SinkOptions", "parse_sink"]

logger = logging.getLogger("logstore.spark")

LOCK_TIMEOUT_MS: Final = 60_000
TXN_APP_ID_MAX: Final = 900
SETTING_MAX: Final = 200  # characters; errors of `TopicConfig` have all of them


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of one sink. docs/spark.md explains them one by one.

    Attributes:
        settings: of a topic that the sink creates, by the names of `TopicConfig`.
        txn: txnAppId and txnVersion; None if they are not given.
    """

    path: str
    topic: str = ""
    create_topic: bool = True
    partitions: int = 1
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    lock_timeout_ms: int = LOCK_TIMEOUT_MS
    txn: tuple[str, int] | None = None
    allow_rewind: bool = False
    store_config: StoreConfig = dataclasses.field(default_factory=StoreConfig)

    def topic_config(self, *, with_headers: bool) -> TopicConfig:
        """The settings of a topic that the sink creates; headers need magic 2."""
        settings = dict(self.settings)
        if with_headers:
            settings.setdefault("message_format", 2)
        return TopicConfig(**settings)  # type: ignore[arg-type]


# The documented options of the sink.
SINK_BOTH: Final = (
    "path",
    "topic",
    "createTopic",
    "partitions",
    "lockTimeout",
    "allowRewind",
    "groupAccess",
    "allowSharedDirectory",
    "allowNetworkFilesystem",
)
SINK_BATCH_ONLY: Final = ("txnAppId", "txnVersion")
# Settings of a topic that the sink creates, and their names in `TopicConfig`.
TOPIC_SETTINGS: Final = {
    _camel(field.name): field.name for field in dataclasses.fields(TopicConfig)
}
# Spark's own options, which it passes to every sink; and one of the Kafka source.
NOT_OURS: Final = ("checkpointLocation", "queryName", "includeHeaders")
ASYNC_PROGRESS: Final = "asyncProgressTrackingEnabled"
# Spark's Kafka sink also refuses them.
SINK_REFUSED_OF_KAFKA: Final = {
    "kafka.key.serializer": "keys are strings or binary; cast the column",
    "kafka.value.serializer": "values are strings or binary; cast the column",
}
_OF_THE_SOURCE: Final = ("assign", "subscribe", "subscribepattern")
_CANONICAL: Final = {
    name.lower(): name
    for name in (
        *SINK_BOTH,
        *SINK_BATCH_ONLY,
        *TOPIC_SETTINGS,
        *NOT_OURS,
        ASYNC_PROGRESS,
    )
}


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a sink.

    Args:
        given: names (in any case) and values as the user wrote them.
        streaming: whether for ``writeStream``.

    Raises:
        ConfigError: an option is unknown, missing, or has an invalid value; the message
            names it and the allowed values.
    """
    values = _values_by_name(given, streaming=streaming)
    read = Values(values)
    if read.flag(ASYNC_PROGRESS, False):
        refuse(
            ASYNC_PROGRESS,
            values[ASYNC_PROGRESS],
            "allowed is false: with it Spark may repeat several batches as one, and "
            "rows would be written twice",
        )
    if read.has("topic") and not read.text("topic"):
        refuse("topic", values["topic"], "it must be the name of a topic")
    return SinkOptions(
        path=path_of(read.text("path"), given),
        topic=read.text("topic"),
        create_topic=read.flag("createTopic", True),
        partitions=read.number("partitions") or 1,
        settings=_settings(values),
        lock_timeout_ms=read.duration("lockTimeout", LOCK_TIMEOUT_MS),
        txn=_txn(read),
        allow_rewind=read.flag("allowRewind", False),
        store_config=StoreConfig(
            group_access=read.flag("groupAccess", False),
            allow_shared_directory=read.flag("allowSharedDirectory", False),
            allow_network_filesystem=read.flag("allowNetworkFilesystem", False),
        ),
    )


def _values_by_name(given: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """Values by documented name, of the options that have a meaning here."""
    values = {}
    for key, value in given_as_text(given).items():
        lowered = key.lower()
        name = _CANONICAL.get(lowered, key)
        if lowered in SINK_REFUSED_OF_KAFKA:
            refuse(lowered, value, f"not supported: {SINK_REFUSED_OF_KAFKA[lowered]}")
        if streaming and name in SINK_BATCH_ONLY:
            refuse(name, value, "it is for batch writes only: a stream has its own")
        if lowered.startswith("kafka."):
            logger.info("option %s has no effect without a broker; ignored", key)
        elif name in NOT_OURS or _is_of_async_progress(lowered):
            continue
        elif lowered not in _CANONICAL:
            _refuse_unknown(key, value)
        else:
            values[name] = value
    return values


def _is_of_async_progress(lowered: str) -> bool:
    """Whether it is another option of asynchronous progress, without meaning unless
    that is enabled."""
    return lowered.startswith("asyncprogress") and lowered != ASYNC_PROGRESS.lower()


def _refuse_unknown(key: str, value: str) -> NoReturn:
    if key.lower() in _OF_THE_SOURCE:
        refuse(key, value, "it is for reading; to write, use topic")
    names = (*SINK_BOTH, *SINK_BATCH_ONLY, *TOPIC_SETTINGS)
    refuse_unknown(key, value, _CANONICAL, names)


def _settings(values: Mapping[str, str]) -> dict[str, object]:
    """The given settings of topics, as `TopicConfig` accepts them."""
    properties = {
        field.replace("_", "."): values[option]
        for option, field in TOPIC_SETTINGS.items()
        if option in values
    }
    for name, text in properties.items():
        if len(text) > SETTING_MAX:
            refuse(
                _camel(name.replace(".", "_")),
                text,
                "the setting does not allow this value",
            )
    try:
        config = TopicConfig.from_properties(properties)
    except ConfigError as error:
        option = _camel(error.name.replace(".", "_"))
        refuse(option, values.get(option, ""), str(error))
    if config.message_format == 0:
        refuse("messageFormat", values["messageFormat"], "allowed are 1 and 2")
    return {
        name.replace(".", "_"): getattr(config, name.replace(".", "_"))
        for name in properties
    }


def _txn(read: Values) -> tuple[str, int] | None:
    app, version = read.text("txnAppId"), read.number("txnVersion", low=0)
    if not app and version is None and not read.has("txnAppId"):
        return None
    if not app or len(app) > TXN_APP_ID_MAX:
        refuse("txnAppId", app, f"it must have 1 to {TXN_APP_ID_MAX} characters, and "
               f"goes with txnVersion")  # fmt: skip
    try:
        app.encode()
    except UnicodeEncodeError as error:
        refuse("txnAppId", app, f"it must be text that UTF-8 can hold: {error.reason}")
    if version is None:
        refuse("txnAppId", app, "it needs txnVersion, too")
    return app, version
