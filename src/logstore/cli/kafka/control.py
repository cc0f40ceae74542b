"""The text about control records: markers of transactions, and KRaft's."""

from __future__ import annotations

import struct
from typing import Final

import logstore
from logstore.cli.kafka.java import ERRORS, json_text
from logstore.cli.kafka.wanted import MessageError

__all__ = ["control_text"]

_KEY: Final = struct.Struct(">hh")
_MARKER: Final = struct.Struct(">hi")
_ABORT, _COMMIT, _LEADER_CHANGE = 0, 1, 2
# The names of the types, as far as the tool of a release knows them.
_NAMES: Final = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
_NEWEST_OF_28: Final = 2
# The title and the name of the value of KRaft's, by its type.
_KRAFT: Final = {
    2: ("LeaderChange:", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}


def control_text(key: bytes | None, value: bytes | None, release: str) -> str:
    """The end of the line about a control record.

    Raises:
        MessageError: it has no type, or not the value of that type.
    """
    if key is None or len(key) < _KEY.size:
        raise MessageError("a control record has no type")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise MessageError(f"a control record has version {version}")
    if kind in (_ABORT, _COMMIT):
        if value is None or len(value) < _MARKER.size:
            raise MessageError("the marker of a transaction has no coordinator epoch")
        epoch = _MARKER.unpack_from(value)[1]
        return f" endTxnMarker: {_NAMES[kind]} coordinatorEpoch: {epoch}"
    since = "4.2" if kind == _LEADER_CHANGE else "3.9"
    if kind not in _KRAFT or release < since:
        known = release != "2.8" or kind <= _NEWEST_OF_28
        name = _NAMES.get(kind, "UNKNOWN") if known else "UNKNOWN"
        return f" controlType: {name}({kind})"
    title, name = _KRAFT[kind]
    message = logstore.kafka.message(name)
    values = message.decode(value or b"", 0, release=release, errors=ERRORS)
    return f" {title} {json_text(values)}"
