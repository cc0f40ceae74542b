"""Types that functions and methods of logstore return, pass to callbacks, or take.

They are for annotations and `isinstance`; a program rarely creates them itself.
"""

from __future__ import annotations

from typing import Final

from logstore.lazy import getter, table_of

# The names by the module that has them; types.pyi has the same for type checkers.
_HOMES: Final = table_of(
    {
        "aio.consumer": "AsyncTransaction",
        "aio.store": "Opening",
        "broker.lag": "GroupPartition OffsetChange",
        "errors": "Holder",
        "group.consumer.options": "OffsetAndTimestamp OffsetStore",
        "group.consumer.transaction": "ConsumerTransaction",
        "group.member.assignors": "Assignor GroupSubscription",
        "group.overview": "ConsumerGroup ConsumerGroups LiveMember",
        "io.checkpoint.cuts": "LogMark",
        "io.checkpoint.recovery_report": "RecoveryAction RecoveryReport",
        "io.segment_info": "SegmentInfo",
        "log.compact.compactor": "CompactionProgress CompactionReport",
        "log.read.corruption": "Damaged",
        "log.retention": "SegmentDeletion",
        "log.write.staged_files": "Staged StagedLog",
        "maintenance.environment": "EnvironmentFinding EnvironmentReport",
        "maintenance.repair": "RepairAction RepairReport",
        "maintenance.report.model": "Attention",
        "maintenance.report.report": "Report",
        "maintenance.verify": (
            "BuiltIndexes FileContents LogEntry LogFrame LogFrames VerifyNote "
            "VerifyProblem VerifyReport"
        ),
        "maintenance.verify.unchecked": "LogMessage",
        "record.batch": "Chunk ControlRecord",
        "record.record": "RecordMetadata",
        "store.copy.snapshot": "SnapshotProgress SnapshotReport",
        "store.partition.partitions": "RecoveryProgress",
        "store.publication.publication": "Publication",
    }
)

__all__ = sorted(_HOMES)

__getattr__ = getter(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__
