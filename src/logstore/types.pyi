from logstore.aio.consumer import AsyncTransaction as AsyncTransaction
from logstore.aio.store import Opening as Opening
from logstore.broker.lag import GroupPartition as GroupPartition
from logstore.broker.lag import OffsetChange as OffsetChange
from logstore.errors import Holder as Holder
from logstore.group.consumer.options import OffsetAndTimestamp as OffsetAndTimestamp
from logstore.group.consumer.options import OffsetStore as OffsetStore
from logstore.group.consumer.transaction import (
    ConsumerTransaction as ConsumerTransaction,
)
from logstore.group.member.assignors import Assignor as Assignor
from logstore.group.member.assignors import GroupSubscription as GroupSubscription
from logstore.group.overview import ConsumerGroup as ConsumerGroup
from logstore.group.overview import ConsumerGroups as ConsumerGroups
from logstore.group.overview import LiveMember as LiveMember
from logstore.io.checkpoint.cuts import LogMark as LogMark
from logstore.io.checkpoint.recovery_report import RecoveryAction as RecoveryAction
from logstore.io.checkpoint.recovery_report import RecoveryReport as RecoveryReport
from logstore.io.segment_info import SegmentInfo as SegmentInfo
from logstore.log.compact.compactor import CompactionProgress as CompactionProgress
from logstore.log.compact.compactor import CompactionReport as CompactionReport
from logstore.log.read.corruption import Damaged as Damaged
from logstore.log.retention import SegmentDeletion as SegmentDeletion
from logstore.log.write.staged_files import Staged as Staged
from logstore.log.write.staged_files import StagedLog as StagedLog
from logstore.maintenance.environment import EnvironmentFinding as EnvironmentFinding
from logstore.maintenance.environment import EnvironmentReport as EnvironmentReport
from logstore.maintenance.repair import RepairAction as RepairAction
from logstore.maintenance.repair import RepairReport as RepairReport
from logstore.maintenance.report.model import Attention as Attention
from logstore.maintenance.report.report import Report as Report
from logstore.maintenance.verify import BuiltIndexes as BuiltIndexes
from logstore.maintenance.verify import FileContents as FileContents
from logstore.maintenance.verify import LogEntry as LogEntry
from logstore.maintenance.verify import LogFrame as LogFrame
from logstore.maintenance.verify import LogFrames as LogFrames
from logstore.maintenance.verify import VerifyNote as VerifyNote
from logstore.maintenance.verify import VerifyProblem as VerifyProblem
from logstore.maintenance.verify import VerifyReport as VerifyReport
from logstore.maintenance.verify.unchecked import LogMessage as LogMessage
from logstore.record.batch import Chunk as Chunk
from logstore.record.batch import ControlRecord as ControlRecord
from logstore.record.record import RecordMetadata as RecordMetadata
from logstore.store.copy.snapshot import SnapshotProgress as SnapshotProgress
from logstore.store.copy.snapshot import SnapshotReport as SnapshotReport
from logstore.store.partition.partitions import RecoveryProgress as RecoveryProgress
from logstore.store.publication.publication import Publication as Publication

__all__: list[str]
