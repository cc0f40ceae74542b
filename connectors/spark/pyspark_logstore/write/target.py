"""Whether a sink can write where its options say, looked up before it writes."""

from __future__ import annotations

import os

import logstore
from logstore import ConfigError, Store, StoreNotFoundError
from logstore.io import layout
from pyspark_logstore.option_values import refuse
from pyspark_logstore.write.options import SinkOptions

__all__ = ["check_target"]


def check_target(options: SinkOptions, directory: str = "") -> bool:
    """Whether the topic of a sink has to be created, perhaps with its store. Changes
    nothing.

    Args:
        directory: base of a relative path; "" for the directory of this process.

    Raises:
        StoreNotFoundError: there is no store, and the options do not let it be created;
            or something else is at the path.
        ConfigError: there is no such topic, and the options do not let it be created,
            or its name is invalid; or its format cannot hold the rows.
        StorageError: the store cannot be read.
    """
    path = os.path.abspath(os.path.join(directory, options.path))
    topics = "none"
    try:
        with logstore.open(path, read_only=True) as store:
            if not options.topic or options.topic in store.topics():
                _check_format(store, options.topic)
                return False
            topics = ", ".join(store.topics()) or topics
    except StoreNotFoundError:
        is_created = options.topic and options.create_topic
        if not is_created or not _may_become_store(path):
            raise
    if not options.create_topic:
        refuse(
            "topic",
            options.topic,
            f"the store {path} has no such topic, and createTopic=false; its topics: "
            f"{topics}",
        )
    layout.check_new_topic_name(options.topic)
    return True


def _may_become_store(path: str) -> bool:
    """Whether nothing is there, or a directory that is not one of a partition."""
    if not os.path.lexists(path):
        return True
    return os.path.isdir(path) and not any(
        layout.parse_segment_file(name) for name in os.listdir(path)
    )


def _check_format(store: Store, topic: str) -> None:
    if topic and store.topic(topic).config.message_format == 0:
        raise ConfigError(
            f"option topic={topic!r}: the topic has message_format=0, but the "
            "sink needs 1 or 2",
            name="topic",
            value=topic,
        )
