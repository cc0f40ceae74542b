"""logstore: a durable, partitioned log in Apache Kafka's on-disk format, in a library.

    import logstore

    with logstore.open("data") as store:
        orders = store.create_topic("orders", partitions=4, exist_ok=True)
        orders.append(b"value", key=b"key")
        for record in orders[0].read():
            print(record.offset, record.key, record.value)

Everything promised is in ``logstore.__all__``.
"""

import importlib
import sys
from typing import Any, Final

__version__ = "0.1.0"

# The public names, by the module that has them; __init__.pyi has the same for type
# checkers. Each is imported when it is used: `logstore-dump --help` does not wait for
# the engine, and a service that starts loads what it needs.
_HOMES: Final = {
    "config": "StoreConfig TopicConfig",
    "errors": (
        "ConfigError CorruptCheckpointError CorruptIndexError "
        "CorruptRecordError CorruptionError DiskFullError DuplicateSequenceError "
        "EventLoopError ForkedError InvalidProducerEpochError InvalidRecordError "
        "LogStoreError "
        "OffsetConflictError OffsetOutOfRangeError OutOfOrderSequenceError "
        "PartitionNotFoundError ProducerError ProducerFencedError "
        "PublicationConflictError PublicationTimeoutError "
        "PublicationUnknownError ReadOnlyError "
        "RecordNotFoundError RecordTooLargeError ReentrantCallError "
        "StorageError StoreClosedError StoreLockedError StoreNotFoundError "
        "SyncFailedError TopicExistsError TopicNotFoundError "
        "UnsupportedError"
    ),
    "broker.groups": "KafkaGroup KafkaGroups KafkaMember kafka_groups",
    "group.errors": (
        "CommitFailedError FencedError GroupError GroupNotEmptyError "
        "GroupNotFoundError InconsistentAssignorError MemberIdInUseError "
        " NoOffsetForPartitionError OffsetMetadataTooLargeError"
    ),
    "group.consumer.consumer": "Consumer",
    "group.consumer.options": "OffsetAndMetadata OffsetAndTimestamp OffsetStore",
    "group.consumer.transaction": "ConsumerTransaction",
    "group.exports": "GroupExport export_group",
    "group.member.assignors": "Assignor GroupSubscription",
    "group.overview": "Group Groups LiveMember groups",
    "broker.progress": "GroupPartition OffsetChange",
    "group.resets": "reset_offsets",
    "io.checkpoint.cuts": "LogMark",
    "io.checkpoint.recovery_report": "RecoveryAction RecoveryReport",
    "io.layout": "TopicPartition",
    "log.compact.compactor": "CompactionProgress CompactionReport",
    "log.read.corruption": "Damaged",
    "log.retention": "Deletion RetainAge RetainBytes RetainFreeSpace RetentionPolicy",
    "log.write.staged_files": "Staged StagedLog",
    "log.write.staging": "Stage",
    "maintenance.environment": "EnvironmentReport EnvironmentFinding doctor",
    "maintenance.handover": "HandoverFinding HandoverReport check_handover",
    "maintenance.report.report": "Report report",
    "maintenance.repair": "RepairAction RepairReport repair",
    "maintenance.verify": (
        "BuiltIndexes FileContents LogEntry LogFrame LogFrames Note Problem "
        "VerifyReport inspect_file rebuild_index verify"
    ),
    "record.batch": "Chunk ControlRecord RecordBatch",
    "record.partitioner": "ConsistentHashPartitioner KafkaPartitioner Partitioner",
    "record.record": "Record RecordMetadata TimestampType TopicRecord",
    "segment": "SegmentInfo",
    "store.partition.partition": "Partition",
    "store.partition.partitions": "RecoveryProgress",
    "store.publication.producer": "Producer",
    "store.publication.publication": "Publication",
    "store.copy.snapshot": "SnapshotProgress SnapshotReport",
    "store.opening": "open",
    "store.store": "Store",
    "store.topic.topic": "Topic",
    "aio": "aio",
    "kafka": "kafka",
    "metrics": "metrics",
}
_RENAMED: Final = {"open": "open_store"}
_HOME_OF: Final = {
    name: home for home, names in _HOMES.items() for name in names.split()
}

__all__ = sorted(_HOME_OF)


def _is_begun(name: str | None) -> bool:
    """Whether a module is being imported, by a call that has not ended."""
    spec = getattr(sys.modules.get(name or ""), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name
        )
    inner = _RENAMED.get(name, name)
    try:
        try:
            module = importlib.import_module(f"{__name__}.{home}")
        except KeyError:
            # Python 3.11 and older: a finalizer has imported something while this
            # thread took the lock of the module (gh-106176).
            module = importlib.import_module(f"{__name__}.{home}")
    except ImportError as error:
        if not _is_begun(error.name):
            raise
        module = None
    if module is None or (name != home and not hasattr(module, inner)):
        errors = importlib.import_module(f"{__name__}.errors")
        raise errors.ReentrantCallError(
            f"logstore.{name} is being imported by the call that this one has come "
            f"into, from a signal handler or a finalizer; it did nothing"
        )
    value = module if name == home else getattr(module, inner)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
