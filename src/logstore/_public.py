"""The public names, gathered from all layers; `logstore` takes them from here.

`Report`, `report` and `metrics` it loads itself, when they are used.
"""

from typing import TYPE_CHECKING

from logstore.batches import Chunk, ControlRecord, RecordBatch
from logstore.config import StoreConfig, TopicConfig
from logstore.cuts import LogMark
from logstore.diagnosis import Diagnosis, Observation, doctor
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
from logstore.partition import Partition
from logstore.partition_writers import RecoveryProgress
from logstore.partitioners import (
    ConsistentHashPartitioner,
    KafkaPartitioner,
    Partitioner,
)
from logstore.publishing import Publication
from logstore.records import Record, RecordMetadata, TimestampType, TopicRecord
from logstore.recovery_report import RecoveryAction, RecoveryReport
from logstore.repair import RepairAction, RepairReport, repair
from logstore.retention import (
    Deletion,
    RetainAge,
    RetainBytes,
    RetainFreeSpace,
    RetentionPolicy,
)
from logstore.segment import SegmentInfo
from logstore.staging import Stage, Staged, StagedLog
from logstore.store import Store
from logstore.store import open_store as open
from logstore.topic import Topic
from logstore.verify import (
    FileContents,
    LogEntry,
    Note,
    Problem,
    VerifyReport,
    inspect_file,
    rebuild_index,
    verify,
)

if TYPE_CHECKING:
    from logstore import metrics
    from logstore.reporting.report import Report, report

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
    "Publication",
    "PublicationConflictError",
    "Partitioner",
    "Problem",
    "ReadOnlyError",
    "ReentrantCallError",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "RecordNotFoundError",
    "RecordTooLargeError",
    "RecoveryAction",
    "RecoveryProgress",
    "RecoveryReport",
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
