"""Apache Kafka's side: a broker's groups, hand-overs, and its messages as values.

import logstore

tables = logstore.kafka.messages("__consumer_offsets")
with logstore.open("/var/lib/kafka", read_only=True) as store:
    for record in store.topic("__consumer_offsets").read():
        key, value = tables[int.from_bytes(record.key[:2], "big")]
        print(key.decode(record.key), record.value and value.decode(record.value))

`RELEASES` names the releases of Kafka whose tools and brokers are known, the oldest
first, as ``4.4``: for ``release`` of `Message.decode` and of `check_handover`.
"""

from __future__ import annotations

from typing import Final

from logstore.lazy import getter, table_of

# The names by the module that has them; kafka.pyi has the same for type checkers.
_HOMES: Final = table_of(
    {
        "broker.fields": "Field Message MessageError Struct",
        "broker.groups": "KafkaGroup KafkaGroups KafkaMember groups=kafka_groups",
        "broker.placement": "java_hash",
        "broker.releases": "RELEASES",
        "broker.schemas": "message messages",
        "group.exports": "GroupExport export_group",
        "maintenance.handover": "HandoverFinding HandoverReport check_handover",
    }
)

__all__ = sorted(_HOMES)

__getattr__ = getter(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
