from logstore import aio as aio
from logstore import errors as errors
from logstore import kafka as kafka
from logstore import metrics as metrics
from logstore import types as types
from logstore.config import StoreConfig as StoreConfig
from logstore.config import TopicConfig as TopicConfig
from logstore.errors import CommitFailedError as CommitFailedError
from logstore.errors import ConfigError as ConfigError
from logstore.errors import CorruptCheckpointError as CorruptCheckpointError
from logstore.errors import CorruptIndexError as CorruptIndexError
from logstore.errors import CorruptionError as CorruptionError
from logstore.errors import CorruptRecordError as CorruptRecordError
from logstore.errors import DiskFullError as DiskFullError
from logstore.errors import DuplicateSequenceError as DuplicateSequenceError
from logstore.errors import EventLoopError as EventLoopError
from logstore.errors import FencedError as FencedError
from logstore.errors import ForkedError as ForkedError
from logstore.errors import GroupError as GroupError
from logstore.errors import GroupNotEmptyError as GroupNotEmptyError
from logstore.errors import GroupNotFoundError as GroupNotFoundError
from logstore.errors import InconsistentAssignorError as InconsistentAssignorError
from logstore.errors import InvalidProducerEpochError as InvalidProducerEpochError
from logstore.errors import InvalidRecordError as InvalidRecordError
from logstore.errors import LogStoreError as LogStoreError
from logstore.errors import MemberIdInUseError as MemberIdInUseError
from logstore.errors import NoOffsetForPartitionError as NoOffsetForPartitionError
from logstore.errors import OffsetConflictError as OffsetConflictError
from logstore.errors import OffsetMetadataTooLargeError as OffsetMetadataTooLargeError
from logstore.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
from logstore.errors import OutOfOrderSequenceError as OutOfOrderSequenceError
from logstore.errors import PartitionNotFoundError as PartitionNotFoundError
from logstore.errors import ProducerError as ProducerError
from logstore.errors import ProducerFencedError as ProducerFencedError
from logstore.errors import PublicationConflictError as PublicationConflictError
from logstore.errors import PublicationTimeoutError as PublicationTimeoutError
from logstore.errors import PublicationUnknownError as PublicationUnknownError
from logstore.errors import ReadOnlyError as ReadOnlyError
from logstore.errors import RecordNotFoundError as RecordNotFoundError
from logstore.errors import RecordTooLargeError as RecordTooLargeError
from logstore.errors import ReentrantCallError as ReentrantCallError
from logstore.errors import StorageError as StorageError
from logstore.errors import StoreClosedError as StoreClosedError
from logstore.errors import StoreLockedError as StoreLockedError
from logstore.errors import StoreNotFoundError as StoreNotFoundError
from logstore.errors import SyncFailedError as SyncFailedError
from logstore.errors import TopicExistsError as TopicExistsError
from logstore.errors import TopicNotFoundError as TopicNotFoundError
from logstore.errors import UnsupportedError as UnsupportedError
from logstore.group.consumer.consumer import Consumer as Consumer
from logstore.group.consumer.options import OffsetAndMetadata as OffsetAndMetadata
from logstore.group.overview import groups as groups
from logstore.group.resets import reset_offsets as reset_offsets
from logstore.io.layout import TopicPartition as TopicPartition
from logstore.kafka import GroupExport as GroupExport
from logstore.kafka import HandoverFinding as HandoverFinding
from logstore.kafka import HandoverReport as HandoverReport
from logstore.kafka import KafkaGroup as KafkaGroup
from logstore.kafka import KafkaGroups as KafkaGroups
from logstore.kafka import KafkaMember as KafkaMember
from logstore.kafka import check_handover as check_handover
from logstore.kafka import export_group as export_group
from logstore.kafka import groups as _groups
from logstore.log.retention import RetainAge as RetainAge
from logstore.log.retention import RetainBytes as RetainBytes
from logstore.log.retention import RetainFreeSpace as RetainFreeSpace
from logstore.log.retention import RetentionPolicy as RetentionPolicy
from logstore.log.write.staging import Stage as Stage
from logstore.maintenance.environment import doctor as doctor
from logstore.maintenance.repair import repair as repair
from logstore.maintenance.report.report import report as report
from logstore.maintenance.verify import inspect_file as inspect_file
from logstore.maintenance.verify import rebuild_index as rebuild_index
from logstore.maintenance.verify import verify as verify
from logstore.record.batch import RecordBatch as RecordBatch
from logstore.record.partitioner import (
    ConsistentHashPartitioner as ConsistentHashPartitioner,
)
from logstore.record.partitioner import KafkaPartitioner as KafkaPartitioner
from logstore.record.partitioner import Partitioner as Partitioner
from logstore.record.record import Record as Record
from logstore.record.record import TimestampType as TimestampType
from logstore.record.record import TopicRecord as TopicRecord
from logstore.store.opening import open_store as _open_store
from logstore.store.partition.partition import Partition as Partition
from logstore.store.publication.producer import Producer as Producer
from logstore.store.store import Store as Store
from logstore.store.topic.topic import Topic as Topic
from logstore.types import Assignor as Assignor
from logstore.types import BuiltIndexes as BuiltIndexes
from logstore.types import Chunk as Chunk
from logstore.types import CompactionProgress as CompactionProgress
from logstore.types import CompactionReport as CompactionReport
from logstore.types import ConsumerGroup as _ConsumerGroup
from logstore.types import ConsumerGroups as _ConsumerGroups
from logstore.types import ConsumerTransaction as ConsumerTransaction
from logstore.types import ControlRecord as ControlRecord
from logstore.types import Damaged as Damaged
from logstore.types import EnvironmentFinding as EnvironmentFinding
from logstore.types import EnvironmentReport as EnvironmentReport
from logstore.types import FileContents as FileContents
from logstore.types import GroupPartition as GroupPartition
from logstore.types import GroupSubscription as GroupSubscription
from logstore.types import LiveMember as LiveMember
from logstore.types import LogEntry as LogEntry
from logstore.types import LogFrame as LogFrame
from logstore.types import LogFrames as LogFrames
from logstore.types import LogMark as LogMark
from logstore.types import OffsetAndTimestamp as OffsetAndTimestamp
from logstore.types import OffsetChange as OffsetChange
from logstore.types import OffsetStore as OffsetStore
from logstore.types import Publication as Publication
from logstore.types import RecordMetadata as RecordMetadata
from logstore.types import RecoveryAction as RecoveryAction
from logstore.types import RecoveryProgress as RecoveryProgress
from logstore.types import RecoveryReport as RecoveryReport
from logstore.types import RepairAction as RepairAction
from logstore.types import RepairReport as RepairReport
from logstore.types import Report as Report
from logstore.types import SegmentDeletion as _SegmentDeletion
from logstore.types import SegmentInfo as SegmentInfo
from logstore.types import SnapshotProgress as SnapshotProgress
from logstore.types import SnapshotReport as SnapshotReport
from logstore.types import Staged as Staged
from logstore.types import StagedLog as StagedLog
from logstore.types import VerifyNote as _VerifyNote
from logstore.types import VerifyProblem as _VerifyProblem
from logstore.types import VerifyReport as VerifyReport

open = _open_store
# Names of 0.1, until 0.2.
Deletion = _SegmentDeletion
Group = _ConsumerGroup
Groups = _ConsumerGroups
Note = _VerifyNote
Problem = _VerifyProblem
kafka_groups = _groups

__version__: str
__all__: list[str]
