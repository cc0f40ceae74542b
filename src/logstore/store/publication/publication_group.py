"""The requests that a single commit publishes, and the partitions it publishes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from logstore.errors import ConfigError, LogStoreError, OffsetConflictError
from logstore.io.checkpoint.ledger import Call, Ledger, LedgerEntry
from logstore.io.layout import TopicPartition
from logstore.log.write.calls import CallerEndedError
from logstore.log.write.exclusive import ExclusiveLog
from logstore.log.write.staged_files import StagedLog
from logstore.log.write.writer import PartitionWriter
from logstore.store.publication.publication import (
    Outcome,
    Publication,
    PublicationRequest,
)

__all__ = ["RequestGroup", "TargetPartition", "check_fits"]

# How many bytes of staged files are kept in memory, at most.
_CONTENTS_BYTES: Final = 4 << 20


class TargetPartition:
    """A partition that is being published to.

    Attributes:
        parts, owners: staged logs published to it, in order, and the request number
            of each.
        base, place: previous end of its log: the offset, and (segment, position).
        written: the bytes written to it, if they were a single write.
    """

    def __init__(self, writer: PartitionWriter) -> None:
        self.writer = writer
        self.key = writer.context.key
        self.parts: list[StagedLog] = []
        self.owners: list[int] = []
        self.base = 0
        self.place = 0, 0
        self.written: bytearray | None = None
        self.log: ExclusiveLog

    def begin(self) -> None:
        """The caller holds the locks of the log, for as long as it uses it.

        Raises:
            LogStoreError: the reason why nothing can be appended.
        """
        self.log = self.writer.exclusive()
        self.place = self.log.position()
        self.base = self.writer.end_offset

    def spans(self) -> Iterator[tuple[int, range]]:
        """The offsets of each part, with the number of its request."""
        end = self.base
        for log, owner in zip(self.parts, self.owners, strict=True):
            begin, end = end, end + log.records
            yield owner, range(begin, end)


class RequestGroup:
    """Requests that are committed together.

    Attributes:
        refused: the error of each request that is refused, by its number.
        targets: the partitions that are published to.
        logs: the staged records of the requests that are committed.
        used: the staged files that are no longer needed, also files of requests that
            were published before, perhaps the same.
        identities: the identities of the requests, which are remembered.
        changes: by identity, the entries that differ from the remembered ones.
        contents: of the staged files that are small, by name.
        room: how many bytes of contents may be added.
    """

    def __init__(self, requests: Sequence[PublicationRequest], ledger: Ledger) -> None:
        self.requests = requests
        self.identities = {request.identity for request in requests}
        self.refused: dict[int, LogStoreError] = {}
        # The entry of each request that is not refused, and whether it is new.
        self._entries: dict[int, tuple[LedgerEntry, bool]] = {}
        self.targets: dict[TopicPartition, TargetPartition] = {}
        self.logs: list[StagedLog] = []
        self.used: list[StagedLog] = []
        self._ledger = ledger
        self.changes: dict[str, LedgerEntry | None] = {}
        self.contents: dict[str, bytes] = {}
        self.room = _CONTENTS_BYTES
        self._files: set[str] = set()
        # The offsets of requests that were carried out before.
        self._known: dict[int, Mapping[TopicPartition, range]] = {}
        self._ended: set[str] = set()
        # Once all logs have their records: the offsets of each request.
        self._offsets: dict[int, dict[TopicPartition, range]] = {}

    def has_file_of(self, logs: Sequence[StagedLog]) -> bool:
        """Whether a file of other staged logs is in it."""
        return any(log.file in self._files for log in logs)

    def last(self, identity: str) -> LedgerEntry | None:
        """The last publication of an identity, including publications of the group."""
        if identity in self.changes:
            return self.changes[identity]
        return self._ledger.get(identity)

    def check_room(self, number: int, entry: LedgerEntry, *, is_new: bool) -> None:
        """Raise `ConfigError` if the entry of a request does not fit into the file, in
        addition to the pinned entries and the group's. The entry of a process has no
        text of a caller, and always fits."""
        if self.requests[number].is_call:
            return
        identity = self._remembered(number, is_new=is_new)
        if identity:
            mine = {name: known for name, known in self.changes.items() if known}
            check_fits(self._ledger, {**mine, identity: entry}, identity)

    def _remembered(self, number: int, *, is_new: bool) -> str:
        """The identity of a request; "" if no entry is kept for it."""
        request = self.requests[number]
        return request.identity if request.is_remembered or not is_new else ""

    def remember(self, number: int, entry: LedgerEntry, *, is_new: bool) -> None:
        """Remember a request as the last one of all, unless there is nothing to be
        remembered of it."""
        self._entries[number] = entry, is_new
        identity = self._remembered(number, is_new=is_new)
        if identity:
            self.changes.pop(identity, None)
            self.changes[identity] = entry

    def remember_call(self, number: int, spans: Mapping[TopicPartition, range]) -> None:
        """Remember a request of a process that was carried out before."""
        request = self.requests[number]
        entry = LedgerEntry(request.sequence, request.records, 0)
        self._entries[number] = entry, False
        self._known[number] = spans

    def forget(self, identities: set[str]) -> None:
        """Forget the identities of processes that have ended, if anything is committed
        with it."""
        self._ended = identities

    def committed_changes(self) -> dict[str, LedgerEntry | None]:
        """The changes, with the offsets of the records that processes have handed in,
        and without processes that have ended."""
        calls: dict[str, list[Call]] = {}
        offsets = self._offsets = self._found_offsets()
        for number, request in enumerate(self.requests):
            if request.is_call and number in offsets:
                spans = tuple(
                    (*key, span.start, span.stop)
                    for key, span in offsets[number].items()
                )
                calls.setdefault(request.identity, []).append((request.sequence, spans))
        changes = dict(self.changes)
        for identity, mine in calls.items():
            entry = changes[identity]
            assert entry is not None
            last = max(entry.sequence, *(number for number, _ in mine))
            changes[identity] = entry._replace(sequence=last, calls=tuple(mine))
        for identity in self._ended - changes.keys():
            if self._ledger.get(identity) is not None:
                changes[identity] = None
        self._ended.clear()
        return changes

    def forget_oldest(self) -> None:
        """Forget other identities, as the limits demand."""
        if self.changes:
            gone = self._ledger.evicted(self.changes, self.identities)
            self.changes.update(dict.fromkeys(gone))

    def add(
        self,
        number: int,
        writers: Mapping[TopicPartition, PartitionWriter],
        contents: Mapping[str, bytes],
    ) -> None:
        """Publish the records of a request; `contents` are of its files."""
        self.contents.update(contents)
        self.room -= sum(map(len, contents.values()))
        request = self.requests[number]
        self.logs += request.logs
        self.used += [log for log in request.logs if log.file not in request.contents]
        for log in request.logs:
            self._files.add(log.file)
            key = TopicPartition(log.topic, log.partition)
            if key not in self.targets:
                self.targets[key] = TargetPartition(writers[key])
            self.targets[key].parts.append(log)
            self.targets[key].owners.append(number)

    def check_expected(self) -> None:
        """Raise `OffsetConflictError` unless the logs, which are locked, end where the
        only request expects it."""
        for request in self.requests:
            expected = request.expected_offset
            for target in self.targets.values():
                if expected not in (None, target.base):
                    assert expected is not None
                    name = target.writer.context.name
                    raise OffsetConflictError(expected, target.base, partition=name)

    def check_wanted(self) -> None:
        """Raise `CallerEndedError` if a process has ended that has handed in a request:
        the owner may have been stopped for long since it was taken, and the caller's
        successor has made another request."""
        calls = {call.identity: call for call in self.requests if call.is_call}
        for identity, request in calls.items():
            if not request.is_wanted():
                raise CallerEndedError(f"{identity} has ended; nothing was written")

    def in_order(self) -> list[TargetPartition]:
        """The partitions in the order of their locks."""
        return [self.targets[key] for key in sorted(self.targets)]

    def outcomes(self) -> list[Outcome]:
        """Outcome of each request, once the group is committed."""
        offsets, outcomes = self._offsets, list[Outcome]()
        for number, request in enumerate(self.requests):
            if number in self.refused:
                outcomes.append(self.refused[number])
            else:
                entry, is_new = self._entries[number]
                spans = self._known.get(number) or offsets.get(number, {})
                known = Publication.known(request.identity, entry, spans, is_new)
                outcomes.append(known)
        return outcomes

    def _found_offsets(self) -> dict[int, dict[TopicPartition, range]]:
        """Offsets of the records of each request, by request number and partition."""
        offsets: dict[int, dict[TopicPartition, range]] = {}
        for target in self.in_order():
            for number, span in target.spans():
                mine = offsets.setdefault(number, {})
                begin = mine[target.key].start if target.key in mine else span.start
                mine[target.key] = range(begin, span.stop)
        return offsets


def check_fits(
    ledger: Ledger, entries: Mapping[str, LedgerEntry], identity: str
) -> None:
    """Raise `ConfigError` if the file of publications cannot hold these entries, of
    which one is of `identity`, besides all that is pinned."""
    if not ledger.has_room(entries):
        raise ConfigError(
            f"identity {identity[:100]!r} does not fit into the file of publications, "
            f"besides the identities that are pinned; nothing was done. Give its "
            f"publications less metadata, a shorter note or no pin, or unpin others",
            name="pinned" if entries[identity].is_pinned else "identity",
            value=identity,
        )
