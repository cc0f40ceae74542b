"""Kafka's messages: what the records of its internal topics say, as values.

import logstore

tables = logstore.kafka.messages("__consumer_offsets")
with logstore.open("/var/lib/kafka", read_only=True) as store:
    for record in store.topic("__consumer_offsets").read():
        key, value = tables[int.from_bytes(record.key[:2], "big")]
        print(key.decode(record.key), record.value and value.decode(record.value))

`RELEASES` names the releases of Kafka whose tools and brokers are known, the oldest
first, as ``4.4``: for ``release`` of `Message.decode` and `logstore.kafka.check_handover`.
"""

from __future__ import annotations

from logstore.broker.fields import Message, MessageError
from logstore.broker.placement import java_hash
from logstore.broker.releases import RELEASES
from logstore.broker.schemas import message, messages

__all__ = ["RELEASES", "Message", "MessageError", "java_hash", "message", "messages"]
