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
                member.pid,
                f"process {member.pid}",
                member.has_ended,
                -1 if member.stuck_ms is None else member.stuck_ms,
                held.get(member.member_id, []),
            )
            for member in own.members
        ]
        yield GroupView(own.group, "logstore", own.state, members, _lags(own))
    for broker_group in kafka_groups(path):
        held = _held(broker_group)
        clients = [
            MemberView(
                -1,
                f"{member.client_id} at {member.host}",
                partitions=held.get(member.member_id, []),
            )
            for member in broker_group.members
        ]
        yield GroupView(
            broker_group.group,
            broker_group.protocol,
            broker_group.state,
            clients,
            _lags(broker_group),
        )


def _held(group: ConsumerGroup | KafkaGroup) -> dict[str, list[str]]:
    """The names of the partitions that members have, by the id of the member."""
    held: dict[str, list[str]] = {}
    for key, member in group.assignment.items():
        held.setdefault(member, []).append(f"{key.topic}-{key.partition}")
    return held


def _lags(group: ConsumerGroup | KafkaGroup) -> dict[str, int | None]:
    return {f"{row.topic}-{row.partition}": row.lag for row in group.partitions}
