"""logstore: a durable, partitioned log in Apache Kafka's on-disk format, in a library.

    import logstore

    with logstore.open("data") as store:
        orders = store.create_topic("orders", partitions=4, exist_ok=True)
        orders.append(b"value", key=b"key")
        for record in orders[0].read():
            print(record.offset, record.key, record.value)

Everything promised is in ``logstore.__all__``, and in that of `logstore.errors` (each
exception), `logstore.types` (what functions return), `logstore.kafka` (what Kafka has
and logstore has not), `logstore.aio` and `logstore.metrics`.
"""

import sys as _sys
import warnings as _warnings
from typing import Any as _Any

from logstore.lazy import find as _find
from logstore.lazy import getter as _getter
from logstore.lazy import table_of as _table_of

__version__ = "0.1.0"

# The public names, by the module that has them; __init__.pyi has the same for type
# checkers.
_HOMES = _table_of(
    {
        "config": "StoreConfig TopicConfig",
        "errors": (
            "errors= ConfigError CorruptRecordError CorruptionError DiskFullError "
            "LogStoreError OffsetOutOfRangeError PublicationTimeoutError StorageError "
            "StoreLockedError StoreNotFoundError TopicExistsError TopicNotFoundError"
        ),
        "group.consumer.consumer": "Consumer",
        "group.consumer.options": "OffsetAndMetadata",
        "group.overview": "groups",
        "group.resets": "reset_offsets",
        "io.layout": "TopicPartition",
        "log.retention": "RetainAge RetainBytes RetainFreeSpace RetentionPolicy",
        "log.write.staging": "Stage",
        "maintenance.environment": "doctor",
        "maintenance.report.report": "report",
        "maintenance.repair": "repair",
        "maintenance.verify": "inspect_file rebuild_index verify",
        "record.batch": "RecordBatch",
        "record.partitioner": "ConsistentHashPartitioner KafkaPartitioner Partitioner",
        "record.record": "Record TimestampType TopicRecord",
        "store.partition.partition": "Partition",
        "store.publication.producer": "Producer",
        "store.opening": "open=open_store",
        "store.store": "Store",
        "store.topic.topic": "Topic",
        "aio": "aio=",
        "kafka": "kafka=",
        "metrics": "metrics=",
        "types": "types=",
    }
)
# Names that were here in 0.1 and go in 0.2, by the public module that has them now.
_MOVED = _table_of(
    {
        "errors": (
            "CommitFailedError CorruptCheckpointError CorruptIndexError "
            "DuplicateSequenceError EventLoopError FencedError ForkedError GroupError "
            "GroupNotEmptyError GroupNotFoundError InconsistentAssignorError "
            "InvalidProducerEpochError InvalidRecordError MemberIdInUseError "
            "NoOffsetForPartitionError OffsetConflictError OffsetMetadataTooLargeError "
            "OutOfOrderSequenceError PartitionNotFoundError ProducerError "
            "ProducerFencedError PublicationConflictError PublicationUnknownError "
            "ReadOnlyError RecordNotFoundError RecordTooLargeError ReentrantCallError "
            "StoreClosedError SyncFailedError UnsupportedError"
        ),
        "kafka": (
            "GroupExport HandoverFinding HandoverReport KafkaGroup KafkaGroups "
            "KafkaMember check_handover export_group kafka_groups=groups"
        ),
        "types": (
            "Assignor BuiltIndexes Chunk CompactionProgress CompactionReport "
            "ConsumerTransaction ControlRecord Damaged Deletion=SegmentDeletion "
            "EnvironmentFinding EnvironmentReport FileContents Group=ConsumerGroup "
            "GroupPartition GroupSubscription Groups=ConsumerGroups LiveMember "
            "LogEntry LogFrame LogFrames LogMark Note=VerifyNote OffsetAndTimestamp "
            "OffsetChange OffsetStore Problem=VerifyProblem Publication RecordMetadata "
            "RecoveryAction RecoveryProgress RecoveryReport RepairAction RepairReport "
            "Report SegmentInfo SnapshotProgress SnapshotReport Staged StagedLog "
            "VerifyReport"
        ),
    }
)

__all__ = sorted(_HOMES)


_own = _getter(__name__, globals(), _HOMES)


def __getattr__(name: str) -> _Any:
    if name in _MOVED:
        shown, (home, inner) = f"{__name__}.{name}", _MOVED[name]
        value = getattr(_find(shown, home, ""), inner)
        # ``from logstore import name`` asks twice: Python's import first looks whether
        # the name is there.
        if _sys._getframe(1).f_globals.get("__name__") != "importlib._bootstrap":
            _warnings.warn(
                f"{shown} is {__name__}.{home}.{inner} now; the old name goes in 0.2",
                DeprecationWarning,
                stacklevel=2,
            )
        return value
    return _own(name)


def __dir__() -> list[str]:
    about = ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__")
    return sorted([*__all__, *about])
