from logstore import aio as aio
from logstore import kafka as kafka
from logstore import metrics as metrics
from logstore.broker.groups import KafkaGroup as KafkaGroup
from logstore.broker.groups import KafkaGroups as KafkaGroups
from logstore.broker.groups import KafkaMember as KafkaMember
from logstore.broker.groups import kafka_groups as kafka_groups
from logstore.broker.progress import GroupPartition as GroupPartition
from logstore.broker.progress import OffsetChange as OffsetChange
from logstore.config import StoreConfig as StoreConfig
from logstore.config import TopicConfig as TopicConfig
from logstore.errors import ConfigError as ConfigError
from logstore.errors import CorruptCheckpointError as CorruptCheckpointError
from logstore.errors import CorruptIndexError as CorruptIndexError
from logstore.errors import CorruptionError as CorruptionError
from logstore.errors import CorruptRecordError as CorruptRecordError
from logstore.errors import DiskFullError as DiskFullError
from logstore.errors import DuplicateSequenceError as DuplicateSequenceError
from logstore.errors import EventLoopError as EventLoopError
from logstore.errors import ForkedError as ForkedError
from logstore.errors import InvalidProducerEpochError as InvalidProducerEpochError
from logstore.errors import InvalidRecordError as InvalidRecordError
from logstore.errors import LogStoreError as LogStoreError
from logstore.errors import OffsetConflictError as OffsetConflictError
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
from logstore.group.consumer.options import OffsetAndTimestamp as OffsetAndTimestamp
from logstore.group.consumer.options import OffsetStore as OffsetStore
from logstore.group.consumer.transaction import (
    ConsumerTransaction as ConsumerTransaction,
)
from logstore.group.errors import CommitFailedError as CommitFailedError
from logstore.group.errors import FencedError as FencedError
from logstore.group.errors import GroupError as GroupError
from logstore.group.errors import GroupNotEmptyError as GroupNotEmptyError
from logstore.group.errors import GroupNotFoundError as GroupNotFoundError
from logstore.group.errors import InconsistentAssignorError as InconsistentAssignorError
from logstore.group.errors import MemberIdInUseError as MemberIdInUseError
from logstore.group.errors import NoOffsetForPartitionError as NoOffsetForPartitionError
from logstore.group.errors import (
    OffsetMetadataTooLargeError as OffsetMetadataTooLargeError,
)
from logstore.group.exports import GroupExport as GroupExport
from logstore.group.exports import export_group as export_group
from logstore.group.member.assignors import Assignor as Assignor
from logstore.group.member.assignors import GroupSubscription as GroupSubscription
from logstore.group.overview import Group as Group
from logstore.group.overview import Groups as Groups
from logstore.group.overview import LiveMember as LiveMember
from logstore.group.overview import groups as groups
from logstore.group.resets import reset_offsets as reset_offsets
from logstore.io.checkpoint.cuts import LogMark as LogMark
from logstore.io.checkpoint.recovery_report import RecoveryAction as RecoveryAction
from logstore.io.checkpoint.recovery_report import RecoveryReport as RecoveryReport
from logstore.io.layout import TopicPartition as TopicPartition
from logstore.log.compact.compactor import CompactionProgress as CompactionProgress
from logstore.log.compact.compactor import CompactionReport as CompactionReport
from logstore.log.read.corruption import Damaged as Damaged
from logstore.log.retention import Deletion as Deletion
from logstore.log.retention import RetainAge as RetainAge
from logstore.log.retention import RetainBytes as RetainBytes
from logstore.log.retention import RetainFreeSpace as RetainFreeSpace
from logstore.log.retention import RetentionPolicy as RetentionPolicy
from logstore.log.write.staged_files import Staged as Staged
from logstore.log.write.staged_files import StagedLog as StagedLog
from logstore.log.write.staging import Stage as Stage
from logstore.maintenance.environment import EnvironmentFinding as EnvironmentFinding
from logstore.maintenance.environment import EnvironmentReport as EnvironmentReport
from logstore.maintenance.environment import doctor as doctor
from logstore.maintenance.handover import HandoverFinding as HandoverFinding
from logstore.maintenance.handover import HandoverReport as HandoverReport
from logstore.maintenance.handover import check_handover as check_handover
from logstore.maintenance.repair import RepairAction as RepairAction
from logstore.maintenance.repair import RepairReport as RepairReport
from logstore.maintenance.repair import repair as repair
from logstore.maintenance.report.report import Report as Report
from logstore.maintenance.report.report import report as report
from logstore.maintenance.verify import BuiltIndexes as BuiltIndexes
from logstore.maintenance.verify import FileContents as FileContents
from logstore.maintenance.verify import LogEntry as LogEntry
from logstore.maintenance.verify import LogFrame as LogFrame
from logstore.maintenance.verify import LogFrames as LogFrames
from logstore.maintenance.verify import Note as Note
from logstore.maintenance.verify import Problem as Problem
from logstore.maintenance.verify import VerifyReport as VerifyReport
from logstore.maintenance.verify import inspect_file as inspect_file
from logstore.maintenance.verify import rebuild_index as rebuild_index
from logstore.maintenance.verify import verify as verify
from logstore.record.batch import Chunk as Chunk
from logstore.record.batch import ControlRecord as ControlRecord
from logstore.record.batch import RecordBatch as RecordBatch
from logstore.record.partitioner import (
    ConsistentHashPartitioner as ConsistentHashPartitioner,
)
from logstore.record.partitioner import KafkaPartitioner as KafkaPartitioner
from logstore.record.partitioner import Partitioner as Partitioner
from logstore.record.record import Record as Record
from logstore.record.record import RecordMetadata as RecordMetadata
from logstore.record.record import TimestampType as TimestampType
from logstore.record.record import TopicRecord as TopicRecord
from logstore.segment import SegmentInfo as SegmentInfo
from logstore.store.copy.snapshot import SnapshotProgress as SnapshotProgress
from logstore.store.copy.snapshot import SnapshotReport as SnapshotReport
from logstore.store.opening import open_store as _open
from logstore.store.partition.partition import Partition as Partition
from logstore.store.partition.partitions import RecoveryProgress as RecoveryProgress
from logstore.store.publication.producer import Producer as Producer
from logstore.store.publication.publication import Publication as Publication
from logstore.store.store import Store as Store
from logstore.store.topic.topic import Topic as Topic

open = _open

__version__: str
__all__: list[str]
