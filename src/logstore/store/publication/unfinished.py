"""Decides, when a store is opened for writing, about the publication that the last
owner did not finish: it counts, or its records are removed again."""

from __future__ import annotations

import sys

from logstore._native.locks import logger
from logstore.errors import CorruptRecordError, LogStoreError, TopicNotFoundError
from logstore.io.checkpoint.log_spans import LogSpan, SpanState, found_in
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import Journal, Publications, is_of
from logstore.io.checkpoint.recovery_report import CORRUPT, RecoveryAction
from logstore.io.checkpoint.verdicts import (
    Verdict,
    Verdicts,
    digest_at,
    write_verdicts,
)
from logstore.io.layout import LOG, TopicPartition, partition_directory, segment_file
from logstore.store.context import StoreContext
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["end_unfinished"]


def end_unfinished(
    context: StoreContext,
    topics: OpenTopics,
    publications: Publications,
    journal: PublicationJournal,
) -> dict[TopicPartition, int] | None:
    """End all logs where the journal says, and then the journal. If another program has
    written to the store since, the logs are that program's, and are left unchanged.

    Returns:
        The logs that could not be cut, with the offsets where they must end; None:
        there was no journal.

    Raises:
        CorruptCheckpointError, OSError: a file cannot be read or removed.
    """
    read, counted = publications.journal(), journal.decide()
    if read is None or counted is None:
        return None
    ownership = context.state.ownership
    pending: dict[TopicPartition, int] = {}
    if is_of(counted, ownership):
        if counted.bases == read.bases and not ownership.is_copy:
            pending = _damaged(context, topics, read)
        for key, base in counted.bases.items():
            if key in pending:
                continue
            try:
                topics.drop_unpublished(key, base)
            except TopicNotFoundError:
                continue
            except LogStoreError as error:
                name = partition_directory(*key)
                logger.error("cannot undo a publication to %s: %s", name, error)
                pending[key] = base
    journal.settle(pending)
    return pending


def _damaged(
    context: StoreContext, topics: OpenTopics, journal: Journal
) -> dict[TopicPartition, int]:
    """The logs with other whole batches in the place of the batches that a journal
    entry names: no crash leaves that, so nothing is cut, and they take no appends."""
    damaged_logs: dict[TopicPartition, int] = {}
    for key, span in journal.spans.items():
        try:
            if found_in(context.root, key, span) is not SpanState.OTHER:
                continue
            writer = topics.writer_of(key)
            # Bytes that are no whole batch were judged when the log was examined.
            is_there = writer.health.damage is None and writer.end_offset >= span.end
            if not is_there or found_in(context.root, key, span) is not SpanState.OTHER:
                continue
        except TopicNotFoundError:
            continue
        except LogStoreError as error:
            name = partition_directory(*key)
            logger.error("cannot undo a publication to %s: %s", name, error)
            continue
        damage = _record(context, topics, key, span)
        with writer.lock:
            writer.health.refuse(damage)
        topics.writers.hide_from(key, span.base, damage)
        damaged_logs[key] = span.base
    return damaged_logs


def _record(
    context: StoreContext, topics: OpenTopics, key: TopicPartition, span: LogSpan
) -> CorruptRecordError:
    """Record the verdict, durably; returns the error for appends."""
    directory = context.root.child(partition_directory(*key))
    name = segment_file(span.segment, LOG)
    end = span.position + span.size
    reason = "these are not the records of the unfinished publication"
    size, digest = digest_at(directory, name, span.position, end)
    verdict = Verdict(
        CORRUPT,
        "a publication",
        span.segment,
        span.position,
        size,
        digest,
        span.base,
        end,
        span.end,
        reason,
        getattr(sys.modules.get("logstore"), "__version__", ""),
        context.files.now_ms(),
    )
    verdicts = Verdicts.read(directory)
    rows = [row for row in verdicts.rows if row.place != verdict.place]
    write_verdicts(directory, [*rows, verdict], verdicts.closed)
    path = directory.path_of(name)
    message = (
        f"{path} at byte {span.position}: {reason}; the log takes no appends, and is "
        f"read up to offset {span.base}"
    )
    topics.writers.record(
        RecoveryAction(
            CORRUPT, *key, path, span.position, span.size, span.base, None, message
        )
    )
    return CorruptRecordError(
        reason, path=path, position=span.position, offset=span.base
    )
