"""The lines about records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logstore.cli.kafka.control import control_text
from logstore.cli.kafka.heads import CODECS, Head, boolean, following
from logstore.cli.kafka.java import decoded
from logstore.cli.kafka.wanted import REWRITTEN, Wanted

__all__ = ["record_lines", "records_of"]


def record_lines(frame: Any, head: Head, wanted: Wanted) -> Iterator[tuple[int, str]]:
    """(offset, line) of each record of a `LogFrame`; those before damage come before
    its error.

    Raises:
        CorruptRecordError, RecordTooLargeError, UnsupportedError: it cannot be read.
        MessageError: a record is not what the decoder reads.
    """
    decoder, sequence, base = wanted.decoder, head.sequence, head.base
    with_contents = wanted.contents and not head.is_control
    records, checks = records_of(frame, head)
    metadata = None
    if wanted.metadata:
        if head.magic < 2 and wanted.release == "2.8":
            base = records[0].offset
        metadata = _metadata_of(head, base, wanted.release)
    for record in records:
        offset, key, value = record.offset, record.key, record.value
        line, before_key = "", "| "
        if metadata is not None:
            number = -1 if sequence < 0 else following(sequence, offset - base)
            line, before_key = metadata(record, number, next(checks, None)), " "
            if head.is_control:
                line += control_text(key, value, wanted.release)
        if with_contents:
            if decoder is not None:
                shown_key, shown_value = decoder(offset, key, value)
            else:
                shown_key = None if key is None else decoded(key)
                shown_value = None if value is None else decoded(value)
            before_value = before_key if wanted.release >= REWRITTEN else " "
            if shown_key is not None:
                line += f"{before_key}key: {shown_key}"
                before_value = " "
            if shown_value is not None:
                line += f"{before_value}payload: {shown_value}"
        yield offset, line


def records_of(frame: Any, head: Head) -> tuple[Any, Iterator[Any]]:
    """The records, and in magic 0 and 1 also a `LogMessage` for each of them."""
    if head.magic < 2:
        messages = frame.messages()
        return [message.record for message in messages], iter(messages)
    return frame.records() if head.records else (), iter(())


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _metadata_of(head: Head, base: int, release: str) -> Any:
    """A function that gives the text about a record, but for its key and value."""
    label, is_old = head.label, head.magic < 2

    def metadata(record: Any, sequence: int, message: Any) -> str:
        text = (
            f"| offset: {record.offset} {label}: {record.timestamp_ms} "
            f"keySize: {_size(record.key)} valueSize: {_size(record.value)}"
        )
        if is_old:
            # The brace was a mistake of the tool's.
            end = "}" if release < REWRITTEN else ""
            return (
                f"{text} isValid: {boolean(message.is_valid)} crc: {message.crc}{end}"
            )
        names = ",".join([name for name, _ in record.headers])
        return f"{text} sequence: {sequence} headerKeys: [{names}]"

    if release != "2.8":
        return metadata
    about_batch = (
        f"baseOffset: {base} lastOffset: {head.last} "
        f"baseSequence: {head.sequence} lastSequence: {head.last_sequence} "
        f"producerEpoch: {head.producer_epoch} "
        f"partitionLeaderEpoch: {head.leader_epoch} batchSize: {head.size} "
        f"magic: {head.magic} compressType: {CODECS[head.codec].upper()} "
        f"position: {head.position}"
    )

    def metadata_28(record: Any, sequence: int, message: Any) -> str:
        is_valid = boolean(not is_old or message.is_valid)
        crc = message.crc if is_old else "null"
        text = (
            f"| offset: {record.offset} isValid: {is_valid} crc: {crc} "
            f"keySize: {_size(record.key)} valueSize: {_size(record.value)} "
            f"{label}: {record.timestamp_ms} {about_batch}"
        )
        if is_old:
            return f"{text} crc: {crc} isvalid: {is_valid}"
        names = ",".join([name for name, _ in record.headers])
        return f"{text} sequence: {sequence} headerKeys: [{names}]"

    return metadata_28
