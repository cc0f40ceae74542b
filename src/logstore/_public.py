"""The public names, gathered from all layers; `logstore` takes them from here.

`Report`, `report` and `metrics` it loads itself, when they are used.
"""

from typing import TYPE_CHECKING

from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    CorruptIndexError,
    CorruptionError,
    CorruptRecordError,
    DiskFullError,
    ForkedError,
    LogStoreError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    PublicationConflictError,
    ReadOnlyError,
    RecordNotFoundError,
    RecordTooLargeError,
    ReentrantCallError,
    StorageError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
    SyncFailedError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedError,
)
from logstore.io.checkpoint.cuts import LogMark
from logstore.io.checkpoint.recovery_report import RecoveryAction, RecoveryReport
from logstore.log.retention import (
    Deletion,
    RetainAge,
    RetainBytes,
    RetainFreeSpace,
    RetentionPolicy,
)
from logstore.log.write.staging import Stage, Staged, StagedLog
from logstore.maintenance.environment import Diagnosis, Observation, doctor
from logstore.maintenance.repair import RepairAction, RepairReport, repair
from logstore.maintenance.verify import (
    FileContents,
    LogEntry,
    Note,
    Problem,
    VerifyReport,
    inspect_file,
    rebuild_index,
    verify,
)
from logstore.record.batch import Chunk, ControlRecord, RecordBatch
from logstore.record.partitioner import (
    ConsistentHashPartitioner,
    KafkaPartitioner,
    Partitioner,
)
from logstore.record.record import Record, RecordMetadata, TimestampType, TopicRecord
from logstore.segment import SegmentInfo
from logstore.store.partition import Partition
from logstore.store.partitions import RecoveryProgress
from logstore.store.publisher import Publication
from logstore.store.store import Store
from logstore.store.store import open_store as open
from logstore.store.topic import Topic

if TYPE_CHECKING:
    from logstore import metrics
    from logstore.maintenance.report.report import Report, report

__all__ = [
    "Chunk",
    "ConfigError",
    "ConsistentHashPartitioner",
    "ControlRecord",
    "CorruptCheckpointError",
    "CorruptIndexError",
    "CorruptRecordError",
    "CorruptionError",
    "Deletion",
    "Diagnosis",
    "DiskFullError",
    "FileContents",
    "ForkedError",
    "KafkaPartitioner",
    "LogEntry",
    "LogMark",
    "LogStoreError",
    "Note",
    "Observation",
    "OffsetConflictError",
    "OffsetOutOfRangeError",
    "Partition",
    "PartitionNotFoundError",
    "Partitioner",
    "Problem",
    "Publication",
    "PublicationConflictError",
    "ReadOnlyError",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "RecordNotFoundError",
    "RecordTooLargeError",
    "RecoveryAction",
    "RecoveryProgress",
    "RecoveryReport",
    "ReentrantCallError",
    "RepairAction",
    "RepairReport",
    "Report",
    "RetainAge",
    "RetainBytes",
    "RetainFreeSpace",
    "RetentionPolicy",
    "SegmentInfo",
    "Stage",
    "Staged",
    "StagedLog",
    "StorageError",
    "Store",
    "StoreClosedError",
    "StoreConfig",
    "StoreLockedError",
    "StoreNotFoundError",
    "SyncFailedError",
    "TimestampType",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicRecord",
    "UnsupportedError",
    "VerifyReport",
    "doctor",
    "inspect_file",
    "metrics",
    "open",
    "rebuild_index",
    "repair",
    "report",
    "verify",
]
