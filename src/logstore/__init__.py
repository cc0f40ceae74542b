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
from typing import Any, Final

__version__ = "0.1.0"

# The public names, by the module that has them; __init__.pyi has the same for type
# checkers. They are imported when the first of them is used, all at once:
# `logstore-dump --help` does not wait for the engine.
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
    "group.exports": "GroupExport export_group",
    "group.consumer.lowering": "",  # store.copies calls it
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
}
# Imported when they are used themselves: most services never look at a report, and many
# have no group.
_LATE: Final = {
    "aio": "aio",
    "Assignor": "group.member.assignors",
    "Consumer": "group.consumer.consumer",
    "ConsumerTransaction": "group.consumer.transaction",
    "GroupSubscription": "group.member.assignors",
    "OffsetAndMetadata": "group.consumer.options",
    "OffsetAndTimestamp": "group.consumer.options",
    "OffsetStore": "group.consumer.options",
    "Report": "maintenance.report.report",
    "kafka": "kafka",
    "metrics": "metrics",
    "report": "maintenance.report.report",
}
_RENAMED: Final = {"open": "open_store"}
_NAMES: Final = frozenset(" ".join(_HOMES.values()).split())

__all__ = sorted(_NAMES | _LATE.keys())


def __getattr__(name: str) -> Any:
    if name in _LATE:
        module = importlib.import_module(f"{__name__}.{_LATE[name]}")
        value = module if name == _LATE[name] else getattr(module, name)
        globals()[name] = value
    elif name in _NAMES:
        for home, names in _HOMES.items():
            module = importlib.import_module(f"{__name__}.{home}")
            for each in names.split():
                globals()[each] = getattr(module, _RENAMED.get(each, each))
    else:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name
        )
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
