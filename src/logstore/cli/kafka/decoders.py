"""Keys and values of records in Kafka's internal topics, in the text of its tool."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import logstore
from logstore.cli.kafka.java import ERRORS, json_text, set_order
from logstore.cli.kafka.wanted import Decoder, MessageError

__all__ = ["SHARE_SINCE", "offsets_decoder", "share_decoder", "transaction_decoder"]

_OFFSETS: Final = "__consumer_offsets"
_TRANSACTIONS: Final = "__transaction_state"
_CONSUMER: Final = "consumer"
_DELETE: Final = "<DELETE>"
_GROUP_METADATA: Final = 2
_VERSION_BYTES: Final = 2
# The newest type of record in `__consumer_offsets` that a release knows.
# Later ones know all that there are.
_NEWEST_TYPE: Final = {"3.9": 8}
# The first release with JSON for all internal topics, and that for share groups.
_JSON_SINCE: Final = "4.2"
SHARE_SINCE: Final = "4.2"
# The first whose JSON names the states of transactions.
_NAMED_SINCE: Final = "4.4"
_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def _version(data: bytes, what: str) -> int:
    """The version with which the bytes of a message begin."""
    if len(data) < _VERSION_BYTES:
        raise MessageError(f"Could not read version from {what}'s buffer.")
    return int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)


def _read(message: logstore.kafka.Message, data: bytes, release: str) -> dict[str, Any]:
    """The values of a message, as Kafka's classes read them."""
    return message.decode(data, release=release, errors=ERRORS)


def _part(
    message: logstore.kafka.Message, data: bytes, release: str, what: str
) -> dict[str, Any]:
    """Read a key or a value; damage is an error in the words of the tool."""
    try:
        return _read(message, data, release)
    except MessageError as error:
        raise MessageError(
            f"Could not read record with version {_version(data, what)} from {what}'s "
            f"buffer due to: {error.java}."
        ) from None


def _pair(
    types: dict[int, tuple[logstore.kafka.Message, logstore.kafka.Message]],
    release: str,
    offset: int,
    key: bytes,
    value: bytes | None,
) -> tuple[str | None, str | None]:
    """Key and value of a record as JSON."""
    kind = _version(key, "key")
    if kind not in types or kind > _NEWEST_TYPE.get(release, kind):
        return f"Unknown record type {kind} at offset {offset}, skipping.", None
    key_message, value_message = types[kind]
    names = _part(key_message, key, release, "key")
    shown = json_text({"type": str(kind), "data": names})
    if value is None:
        return shown, _DELETE
    version = _version(value, "value")
    if release >= _JSON_SINCE and not 0 <= version <= value_message.newest:
        raise MessageError(f"Found an unknown record version {version} for {kind} type")
    values = _part(value_message, value, release, "value")
    if value_message.name == "GroupMetadataValue":
        _open_members(values)
    if value_message.name == "TransactionLogValue" and release >= _NAMED_SINCE:
        state = values["transactionStatus"]
        known = 0 <= state < len(_STATES)
        values["transactionStatus"] = _STATES[state] if known else str(state)
    return shown, json_text({"version": str(version), "data": values})


def _open_members(values: dict[str, Any]) -> None:
    """Subscriptions and assignments in place of their bytes, if they can be read."""
    if values["protocolType"] != _CONSUMER:
        return
    for member in values["members"]:
        for part in ("subscription", "assignment"):
            message = logstore.kafka.message(f"ConsumerProtocol{part.capitalize()}")
            with contextlib.suppress(MessageError):
                member[part] = _read(message, member[part], "")


def _needed(key: bytes | None, offset: int, what: str) -> bytes:
    """The key of a record, which a decoder needs."""
    if key is None:
        raise MessageError(
            f"the record at offset {offset} has no key, which the {what} needs"
        )
    return key


def _json_decoder(topic: str, release: str, what: str) -> Decoder:
    types = logstore.kafka.messages(topic)

    def decode(
        offset: int, key: bytes | None, value: bytes | None
    ) -> tuple[str | None, str | None]:
        key = _needed(key, offset, what)
        try:
            return _pair(types, release, offset, key, value)
        except MessageError as error:
            return f"Error at offset {offset}, skipping. {error.java}", None

    return decode


def offsets_decoder(release: str) -> Decoder:
    """Decoder of ``__consumer_offsets``."""
    if release == "2.8":
        return _old_offsets
    return _json_decoder(_OFFSETS, release, "offsets decoder")


def share_decoder(release: str) -> Decoder:
    """Decoder of ``__share_group_state``; Kafka has it since `SHARE_SINCE`."""
    return _json_decoder("__share_group_state", release, "share group state decoder")


# ------------------------------------------------------------- Kafka 2.8


def _known(version: int, newest: int, what: str) -> int:
    if not 0 <= version <= newest:
        raise MessageError(f"{what} has version {version}; 0 to {newest} are known")
    return version


def _old_offsets(
    offset: int, key: bytes | None, value: bytes | None
) -> tuple[str | None, str | None]:
    key = _needed(key, offset, "offsets decoder")
    kind = _known(_version(key, "key"), _GROUP_METADATA, "the key of a record")
    types = logstore.kafka.messages(_OFFSETS)
    names = _read(types[kind][0], key, "")
    is_group = kind == _GROUP_METADATA
    shown = f"group_metadata::group={names['group']}"
    if not is_group:
        place = f"{names['topic']}-{names['partition']}"
        shown = f"offset_commit::group={names['group']},partition={place}"
    if value is None:
        return shown, _DELETE
    _known(_version(value, "value"), 3, "the value of a record")
    values = _read(types[kind or 1][1], value, "")
    if is_group:
        return shown, _old_group(values)
    text = f"offset={values['offset']}"
    return shown, text + (values["metadata"] and f",metadata={values['metadata']}")


def _old_group(values: dict[str, Any]) -> str:
    kind = values["protocolType"]
    members: dict[str, bytes] = {}
    for member in values["members"]:
        members.setdefault(member["memberId"], member["assignment"])
    order = set_order([[(name, logstore.kafka.java_hash(name))] for name in members])
    texts = (f"{name}={_old_assignment(members[name], kind)}" for name in order)
    return json_text(
        {
            "protocolType": kind,
            "protocol": values["protocol"],
            "generationId": values["generation"],
            "assignment": f"{{{','.join(texts)}}}",
        }
    )


def _hex(data: bytes) -> str:
    return f"{int.from_bytes(data, 'big'):X}" if data else ""


def _old_assignment(data: bytes, protocol_type: str) -> str:
    if protocol_type != _CONSUMER:
        return _hex(data)
    message = logstore.kafka.message("ConsumerProtocolAssignment")
    values = _read(message, data, "")
    places = ", ".join(
        f"{topic['topic']}-{number}"
        for topic in values["assignedPartitions"]
        for number in topic["partitions"]
    )
    user_data = _hex(values["userData"] or b"")
    return f"[{places}]" + (user_data and f":{user_data}")


# ------------------------------------------------------------- transactions


def transaction_decoder(release: str) -> Decoder:
    """Decoder of ``__transaction_state``."""
    if release >= _JSON_SINCE:
        return _json_decoder(_TRANSACTIONS, release, "transaction log decoder")
    key_message, value_message = logstore.kafka.messages(_TRANSACTIONS)[0]

    def decode(
        offset: int, key: bytes | None, value: bytes | None
    ) -> tuple[str | None, str | None]:
        key = _needed(key, offset, "transaction log decoder")
        kind = _version(key, "key")
        if kind != 0:
            if release == "2.8":
                raise MessageError(f"the key of a record has version {kind}, not 0")
            return f"unknown::version={kind}", None
        name = _read(key_message, key, release)["transactionalId"]
        shown = f"transaction_metadata::transactionalId={name}"
        if value is None:
            return shown, _DELETE
        newest = 0 if release == "2.8" else 1
        _known(_version(value, "value"), newest, "the value of a record")
        return shown, _transaction(_read(value_message, value, release))

    return decode


def _transaction(values: dict[str, Any]) -> str:
    state = values["transactionStatus"]
    if not 0 <= state < len(_STATES):
        raise MessageError(f"a transaction has state {state}, which does not exist")
    topics = values["transactionPartitions"] if state else []
    if topics is None:
        raise MessageError(f"a transaction in state {_STATES[state]} has no partitions")
    order = set_order(
        [
            (f"{topic['topic']}-{number}", _place_hash(topic["topic"], number))
            for number in topic["partitionIds"]
        ]
        for topic in topics
    )
    return (
        f"producerId:{values['producerId']},producerEpoch:{values['producerEpoch']},"
        f"state={_STATES[state]},partitions=[{','.join(order)}],"
        f"txnLastUpdateTimestamp={values['transactionLastUpdateTimestampMs']},"
        f"txnTimeoutMs={values['transactionTimeoutMs']}"
    )


def _place_hash(topic: str, number: int) -> int:
    """Java's hash code of a partition."""
    return 31 * (31 + number) + logstore.kafka.java_hash(topic)
