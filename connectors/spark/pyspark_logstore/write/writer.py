"""The writers of ``df.write`` and ``df.writeStream`` with ``format("logstore")``.

Tasks stage their rows: each writes a file into the store's directory, which readers
ignore and which needs no lock. The commit, in a process next to the driver, takes the
writer's lock and publishes the files of all tasks at once. Spark creates a stream's
writer twice for each batch, in different processes: only options and commit messages
connect them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyspark.sql.datasource as api
from pyspark import TaskContext

import logstore
from logstore import ConfigError, LogStoreError, Store, TopicExistsError
from logstore.types import Staged
from pyspark_logstore.stores import check_store, identity_of
from pyspark_logstore.write.access import with_store
from pyspark_logstore.write.commit import Commit, RewoundError
from pyspark_logstore.write.memory import CopiedCheckpointError, bytes_of
from pyspark_logstore.write.options import SinkOptions
from pyspark_logstore.write.router import Router, check_sink_schema
from pyspark_logstore.write.target import check_target

__all__ = [
    "BatchWriter",
    "CopiedCheckpointError",
    "RewoundError",
    "StagedTask",
    "StreamRowWriter",
    "StreamWriter",
]

logger = logging.getLogger("logstore.spark")

STREAM_IDENTITY: Final = "spark-query:"
BATCH_IDENTITY: Final = "spark-txn:"


@dataclasses.dataclass(frozen=True)
class StagedTask(api.WriterCommitMessage):
    """The staged rows of one task, with their batch and query.

    Attributes:
        run_id: which run of the query; "" if Spark does not give it.
        bytes: of its keys and values.
    """

    staged: Staged
    query_id: str = ""
    batch_id: int = -1
    run_id: str = ""
    bytes: int = 0


class _Sink:
    """The common part of batch and stream writers. Pickled for the tasks."""

    def __init__(self, schema: Any, options: SinkOptions, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                "the sink cannot overwrite: a log only grows. Allowed are mode append "
                "and, for streams, the output mode append",
                name="mode",
                value="overwrite",
            )
        check_sink_schema(schema, options.topic)
        self._options = options
        self._path = os.path.abspath(options.path)
        self._prepare(with_headers="headers" in schema.fieldNames())
        self._directory = identity_of(self._path, names=True)

    # ------------------------------------------------------------ next to the driver

    def _prepare(self, *, with_headers: bool) -> None:
        """Create the store and the topic, or check that they exist."""
        options = self._options
        if not check_target(options):
            return
        config = options.topic_config(with_headers=with_headers)

        def create(store: Store) -> None:
            if options.topic not in store.topics():
                store.create_topic(options.topic, options.partitions, config)

        def ask_for(store: Store, wait_ms: int) -> None:
            # Another query may have been faster.
            with contextlib.suppress(TopicExistsError):
                store.create_topic(options.topic, options.partitions, config)

        with_store(self._path, options, create, ask_for, create=True)

    def _publish(
        self,
        messages: Sequence[StagedTask],
        identity: str,
        sequence: int,
        run_id: str | None,
    ) -> None:
        """Publish the staged rows of the tasks, in their order.

        Args:
            run_id: of the query; None for a batch write, for which the application
                guarantees that it is the same.
        """
        commit = Commit(
            staged=[message.staged for message in messages],
            bytes=sum(message.bytes for message in messages),
            identity=identity,
            sequence=sequence,
            run_id=run_id,
            allow_rewind=self._options.allow_rewind,
        )
        if not commit.has_rows:
            return  # a batch without rows: a repetition has nothing to do either
        with_store(self._path, self._options, commit.publish, commit.hand_in)

    def _discard(self, messages: Iterable[StagedTask | None]) -> None:
        """Remove staged files. Published rows are in the logs, and stay."""
        staged = [message.staged for message in messages if message is not None]
        try:
            with logstore.open(self._path, read_only=True) as store:
                store.discard_staged(staged)
        except LogStoreError as error:
            logger.warning("cannot remove staged files of %s: %s", self._path, error)

    # ------------------------------------------------------------ in the workers

    def _stage(
        self, batches: Iterable[Any], identity: str, sequence: int
    ) -> tuple[Staged, int]:
        """Stage the rows of one task; also returns the bytes of keys and values."""
        topic = self._options.topic
        if self._directory is not None:
            check_store(self._path, self._directory)
        with logstore.open(self._path, read_only=True) as store:
            router, size = Router(topic, _task_number(), store), 0
            with store.stage(identity, sequence) as stage:
                for partition, rows in router.routed(batches):
                    size += bytes_of(rows)
                    stage.append_arrow(partition, rows)
                return stage.finish(), size


class BatchWriter(_Sink, api.DataSourceArrowWriter):
    """Writes a data frame: all of its rows, or none."""

    def _identity(self) -> tuple[str, int]:
        txn = self._options.txn
        return ("", 0) if txn is None else (BATCH_IDENTITY + txn[0], txn[1])

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        """Stage the rows of one task."""
        staged, size = self._stage(iterator, *self._identity())
        return StagedTask(staged, bytes=size)

    def commit(self, messages: Sequence[Any]) -> None:
        """Publish the staged rows of the tasks.

        Raises:
            StoreLockedError: another process still has the store after
                ``lockTimeout``, and takes no requests, or does not answer.
            PublicationTimeoutError: it has begun, and has not answered. The same
                commit, repeated, publishes once.
            RewoundError: a later ``txnVersion`` was published.
        """
        self._publish(_whole(messages), *self._identity(), run_id=None)

    def abort(self, messages: Sequence[Any]) -> None:
        """Remove staged rows; published rows stay."""
        self._discard(messages)


class _StreamSink(_Sink):
    """Writes the micro-batches of one query, each of them once."""

    def _stage_batch(self, batches: Iterable[Any]) -> StagedTask:
        query_id, batch_id = _micro_batch()
        staged, size = self._stage(batches, STREAM_IDENTITY + query_id, batch_id)
        return StagedTask(staged, query_id, batch_id, _run_id(), size)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Publish the staged rows of the tasks, unless they were published before.

        Raises:
            StoreLockedError: another process still has the store after
                ``lockTimeout``, and takes no requests, or does not answer.
            PublicationTimeoutError: it has begun, and has not answered. The same
                commit, repeated, publishes once.
            RewoundError: the query has published a later batch.
            CopiedCheckpointError: another query has published under the same id.
        """
        messages = _whole(messages)
        queries = {(m.query_id, m.batch_id, m.run_id) for m in messages}
        if not queries:
            return
        if len(queries) > 1 or next(iter(queries))[1] != batchId:
            raise LogStoreError(
                f"the tasks of batch {batchId} say that they are of {sorted(queries)}; "
                f"nothing was published"
            )
        ((query_id, _, run_id),) = queries
        self._publish(messages, STREAM_IDENTITY + query_id, batchId, run_id)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Remove staged rows; published rows stay."""
        self._discard(messages)


class StreamRowWriter(_StreamSink, api.DataSourceStreamWriter):
    """Stream sink for Spark 4.0, which gives sinks of streams no Arrow batches."""

    def __init__(self, schema: Any, options: SinkOptions, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite)
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        """Stage the rows of one task."""
        from pyspark_logstore.write.row_batches import batches_of

        return self._stage_batch(batches_of(iterator, self._schema))


StreamWriter: Callable[[Any, SinkOptions, bool], Any] = StreamRowWriter
if hasattr(api, "DataSourceStreamArrowWriter"):  # since 4.1

    class StreamArrowWriter(_StreamSink, api.DataSourceStreamArrowWriter):
        """Stream sink for Spark 4.1 and later."""

        def write(self, iterator: Iterator[Any]) -> StagedTask:
            """Stage the rows of one task."""
            return self._stage_batch(iterator)

    StreamWriter = StreamArrowWriter


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def _micro_batch() -> tuple[str, int]:
    """The query and the batch of this task, from its Spark properties."""
    context = TaskContext.get()
    query_id = context and context.getLocalProperty("sql.streaming.queryId")
    batch_id = context and context.getLocalProperty("streaming.sql.batchId")
    if not query_id or not batch_id:
        raise LogStoreError(
            "Spark did not pass the query and the batch of this task "
            "(sql.streaming.queryId, streaming.sql.batchId): without them, a "
            "repeated batch would be written twice. Nothing was written"
        )
    return query_id, int(batch_id)


def _run_id() -> str:
    """The id of the query's run that this task belongs to, which Spark uses as the name
    of its jobs; "" if Spark does not give it."""
    context = TaskContext.get()
    run_id = context and context.getLocalProperty("spark.jobGroup.id")
    return str(run_id or "")


def _whole(messages: Sequence[Any]) -> list[StagedTask]:
    """The messages of all tasks of a commit.

    Raises:
        LogStoreError: the message of a task is missing.
    """
    if not all(isinstance(message, StagedTask) for message in messages):
        raise LogStoreError(
            "Spark commits without the messages of all tasks, so it is not known "
            "what they staged; nothing was published"
        )
    return list(messages)
