"""The groups of consumers of a store, and of a broker that has its directory, as a
report shows them."""

from __future__ import annotations

from collections.abc import Iterator

from logstore.broker.groups import KafkaGroup, kafka_groups
from logstore.group.overview import ConsumerGroup, groups
from logstore.maintenance.report.model import GroupView, MemberView

__all__ = ["groups_in"]


def groups_in(path: str) -> Iterator[GroupView]:
    """The groups in the directory of a store. A group that cannot be read is left out:
    `verify` reports its file.

    Raises:
        LogStoreError: the directory cannot be read.
    """
    for own in groups(path):
        held = _held(own)
        members = [
            MemberView(
                one.pid,
                f"process {one.pid}",
                one.has_ended,
                -1 if one.stuck_ms is None else one.stuck_ms,
                held.get(one.member_id, []),
            )
            for one in own.members
        ]
        yield GroupView(own.group, "logstore", own.state, members, _lags(own))
    for found in kafka_groups(path):
        held = _held(found)
        clients = [
            MemberView(
                -1,
                f"{one.client_id} at {one.host}",
                partitions=held.get(one.member_id, []),
            )
            for one in found.members
        ]
        yield GroupView(found.group, found.protocol, found.state, clients, _lags(found))


def _held(group: ConsumerGroup | KafkaGroup) -> dict[str, list[str]]:
    """The names of the partitions that members have, by the id of the member."""
    held: dict[str, list[str]] = {}
    for key, member in group.assignment.items():
        held.setdefault(member, []).append(f"{key.topic}-{key.partition}")
    return held


def _lags(group: ConsumerGroup | KafkaGroup) -> dict[str, int | None]:
    return {f"{row.topic}-{row.partition}": row.lag for row in group.partitions}
