"""The cases, their rivals, and what is aimed at."""

from __future__ import annotations

from typing import Final

from bench import lookups, ours
from bench.rounds import Case, Rival

__all__ = ["CASES", "case_of"]

_NO_CHECK: Final = "LMDB and SQLite check nothing when they read"
_ALL_AGAIN: Final = "what was not synced is written again, and synced"
_DURABLE: Final = "fdatasync before each append returns"
_READY_MADE: Final = "the messages of os.pwrite are ready-made"
_READY_ARROW: Final = "the Arrow batches are there, as are LMDB's tuples"
_WITHOUT: Final = "the codec alone neither encodes, decodes, checks nor writes"
_CRC32: Final = Rival("peers.raw_files.Crc32")
_SCANS: Final = (_CRC32, Rival("peers.raw_files.CachedBytes"))
_LMDB_CURSOR: Final = "peers.lmdb_store.Read"
_LMDB_PUT: Final = "peers.lmdb_store.AppendMany"
_GB: Final = 1e9
_US: Final = 1e6  # calls a second, divided by the microseconds of one

_APPENDING: Final = (
    Case(
        "append_many",
        ours.AppendMany,
        (
            Rival(_LMDB_PUT, 1.3),
            Rival("peers.aiokafka_records.AppendMany", 2.5),
            Rival("peers.kafka_python_records.AppendMany"),
            Rival("peers.rocksdb_store.AppendMany"),
            Rival("peers.sqlite_log.AppendMany"),
            Rival("peers.raw_files.PwriteBatches"),
        ),
        note="LMDB keeps no timestamp and no checksum",
    ),
    Case(
        "append_many_v2",
        ours.AppendManyV2,
        (
            Rival(_LMDB_PUT, 1.3),
            Rival("peers.aiokafka_records.AppendManyV2", 2.5),
            Rival("peers.kafka_python_records.AppendManyV2"),
            Rival("peers.raw_files.PwriteBatchesV2"),
        ),
        note="LMDB keeps no timestamp and no checksum",
    ),
    Case(
        "append_arrow",
        ours.AppendArrow,
        (
            Rival("peers.raw_files.PwriteBatches", 0.7),
            Rival("peers.raw_files.WriteBatches"),
            Rival(_LMDB_PUT),
            Rival("peers.parquet_file.Append"),
        ),
        note=_READY_ARROW,
    ),
    Case(
        "append_arrow_v2",
        ours.AppendArrowV2,
        (
            Rival("peers.raw_files.PwriteBatchesV2", 0.7),
            Rival(_LMDB_PUT),
            Rival("peers.parquet_file.Append"),
        ),
        note=_READY_ARROW,
    ),
    Case(
        "append_batches",
        ours.AppendBatchesV2,
        (Rival("peers.raw_files.PwriteBatchesV2"),),
        cpu_max=0.034,
        note="both have ready-made batches; logstore checks them",
    ),
    Case(
        "append_batches_v1",
        ours.AppendBatches,
        (Rival("peers.raw_files.PwriteBatches"),),
        cpu_max=0.034,
        note="both have ready-made messages; logstore checks them",
    ),
    Case(
        "append",
        ours.AppendOne,
        (
            Rival("peers.raw_files.PwriteOne", 0.45),
            Rival("peers.lite_queue.AppendOne", 15),
            Rival("peers.persist_queue.AppendOne"),
            Rival("peers.sqlite_log.AppendOne"),
        ),
        records=50_000,
        batch=1,
        note=_READY_MADE,
    ),
    Case(
        "append_v2",
        ours.AppendOneV2,
        (
            # At most 1.3 times the time.
            Rival("ours.AppendOne", 1 / 1.3),
            Rival("peers.raw_files.PwriteOne", 0.45),
            Rival("peers.lite_queue.AppendOne", 15),
        ),
        records=50_000,
        batch=1,
        note=_READY_MADE,
    ),
    Case(
        "durable",
        ours.Durable,
        (
            Rival("peers.raw_files.PwriteSync"),
            Rival("peers.sqlite_log.Durable"),
        ),
        records=1_000,
        batch=1,
        flush=_DURABLE,
        note=_READY_MADE,
    ),
    Case(
        "durable_8",
        ours.Durable8,
        (Rival("peers.raw_files.PwriteSync8", 1.8),),
        records=1_000,
        batch=1,
        flush=_DURABLE,
        threads=8,
        note="one sync serves several appends; the rival syncs once per record",
    ),
    Case(
        "durable_64",
        ours.Durable64,
        (Rival("ours.Durable"), Rival("peers.raw_files.PwriteSync64")),
        records=4_000,
        batch=1,
        flush=_DURABLE,
        threads=64,
        note="the first rival is logstore with one thread",
    ),
)

_READING: Final = (
    Case(
        "read",
        ours.Read,
        (
            Rival(_LMDB_CURSOR, 1.2),
            Rival("peers.aiokafka_records.Read", 1.5),
            Rival("peers.kafka_python_records.Read"),
            Rival("peers.rocksdb_store.Read"),
            Rival("peers.sqlite_log.Read"),
        ),
        note=_NO_CHECK,
    ),
    Case(
        "read_v2",
        ours.ReadV2,
        (
            Rival(_LMDB_CURSOR, 1.2),
            Rival("peers.aiokafka_records.ReadV2", 1.2),
            Rival("peers.kafka_python_records.ReadV2"),
        ),
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow",
        ours.ReadArrow,
        (
            Rival(_LMDB_CURSOR, 5),
            Rival("peers.parquet_file.Read"),
            Rival("peers.raw_files.CachedRead"),
            Rival("peers.raw_files.MemoryCopy"),
        ),
        note=f"{_NO_CHECK}; a read and a copy of the file's bytes make nothing of them",
    ),
    Case(
        "read_arrow_v2",
        ours.ReadArrowV2,
        (Rival(_LMDB_CURSOR, 5), Rival("peers.parquet_file.Read")),
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow_views",
        ours.ReadArrowViews,
        (Rival(_LMDB_CURSOR, 9), Rival("ours.ReadArrow")),
        records=1_000_000,
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow_views_v2",
        ours.ReadArrowViewsV2,
        (Rival(_LMDB_CURSOR, 9), Rival("ours.ReadArrowV2")),
        records=1_000_000,
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow_threads",
        ours.ReadArrowThreads,
        (
            Rival("ours.ReadArrow", 1.7),
            Rival("peers.raw_files.CachedReadThreads"),
            Rival("peers.raw_files.CachedRead"),
        ),
        records=1_000_000,
        threads=2,
        note="the rival is one thread; needs two idle cores",
    ),
    Case(
        "read_arrow_views_threads",
        ours.ReadArrowViewsThreads,
        (Rival("ours.ReadArrowViews", 1.7),),
        records=1_000_000,
        threads=2,
        note="the rival is one thread; needs two idle cores",
    ),
    Case(
        "get",
        ours.RandomRead,
        (Rival("peers.lmdb_store.RandomRead"), Rival("peers.raw_files.Pread")),
        unit="op",
        floor=_US / 6,
        note="os.pread knows the position of the record",
    ),
    Case(
        "get_v2",
        ours.RandomReadV2,
        (Rival("peers.lmdb_store.RandomRead"),),
        unit="op",
        floor=_US / 15,
        note="a batch of 1,000 records is checked for each record",
    ),
    Case(
        "get_segments",
        lookups.Get,
        (Rival("peers.lmdb_store.RandomRead"),),
        unit="op",
        floor=_US / 6,
        records=100_000,
        batch=10,
        note="10,000 segments; 5,000 offsets, so many segments at each round",
    ),
    Case(
        "get_segments_v2",
        lookups.GetV2,
        (Rival("peers.lmdb_store.RandomRead"),),
        unit="op",
        floor=_US / 15,
        records=100_000,
        batch=10,
        note="10,000 segments of one batch each",
    ),
    Case(
        "get_segments_few_files",
        lookups.GetWithFewFiles,
        (Rival("peers.lmdb_store.RandomRead"),),
        unit="op",
        records=100_000,
        batch=10,
        note="10,000 segments, of which 1,024 may be open (the default)",
    ),
    Case(
        "time",
        lookups.Time,
        (Rival("peers.lmdb_store.TimeLookup"),),
        unit="op",
        floor=_US / 20,
        note="one segment; LMDB has the times as keys",
    ),
    Case(
        "time_v2",
        lookups.TimeV2,
        (Rival("peers.lmdb_store.TimeLookup"),),
        unit="op",
        floor=_US / 20,
        note="one segment; LMDB has the times as keys",
    ),
    Case(
        "time_segments",
        lookups.TimeInMany,
        (Rival("peers.lmdb_store.TimeLookup"),),
        unit="op",
        floor=_US / 20,
        records=100_000,
        batch=10,
        note="10,000 segments; LMDB has the times as keys",
    ),
    Case(
        "time_segments_few_files",
        lookups.TimeWithFewFiles,
        (Rival("peers.lmdb_store.TimeLookup"),),
        unit="op",
        records=100_000,
        batch=10,
        note="10,000 segments, of which 1,024 may be open (the default)",
    ),
    Case(
        "time_segments_v2",
        lookups.TimeInManyV2,
        (Rival("peers.lmdb_store.TimeLookup"),),
        unit="op",
        floor=_US / 20,
        records=100_000,
        batch=10,
        note="10,000 segments; LMDB has the times as keys",
    ),
)

# Enough that what a call costs for any store does not matter.
_MANY: Final = 800_000

_MAINTAINING: Final = (
    Case(
        "verify",
        ours.Verify,
        _SCANS,
        unit="B",
        floor=4 * _GB,
        records=_MANY,
    ),
    Case(
        "verify_v2",
        ours.VerifyV2,
        _SCANS,
        unit="B",
        floor=4 * _GB,
        records=_MANY,
    ),
    Case(
        "verify_deep",
        ours.VerifyDeep,
        _SCANS,
        unit="B",
        floor=3 * _GB,
        records=_MANY,
    ),
    Case(
        "verify_deep_v2",
        ours.VerifyDeepV2,
        _SCANS,
        unit="B",
        floor=3 * _GB,
        records=_MANY,
    ),
    Case(
        "rebuild_index",
        ours.RebuildIndex,
        (_CRC32,),
        unit="B",
        records=_MANY,
    ),
    Case(
        "rebuild_index_v2",
        ours.RebuildIndexV2,
        (_CRC32,),
        unit="B",
        records=_MANY,
    ),
    Case(
        "recheck",
        ours.Recheck,
        (_CRC32,),
        unit="B",
        floor=2 * _GB,
        records=_MANY,
    ),
    Case(
        "recheck_v2",
        ours.RecheckV2,
        (_CRC32,),
        unit="B",
        floor=2 * _GB,
        records=_MANY,
    ),
    Case("recover", ours.Recover, (_CRC32,), unit="B", note=_ALL_AGAIN),
    Case("recover_v2", ours.RecoverV2, (_CRC32,), unit="B", note=_ALL_AGAIN),
    Case(
        "open_clean",
        ours.OpenClean,
        (Rival("peers.lmdb_store.OpenClean"),),
        unit="op",
    ),
)

# About 50 MB of values in each round, but less of the smallest.
_SIZES: Final = (
    ("10b", 10, 200_000, 1_000),
    ("1k", 1 << 10, 50_000, 500),
    ("10k", 10 << 10, 5_000, 50),
    ("1m", 1 << 20, 50, 1),
)

_SIZED: Final = tuple(
    case
    for name, size, records, batch in _SIZES
    for case in (
        Case(
            f"append_many_{name}",
            ours.AppendMany,
            (
                Rival(_LMDB_PUT),
                Rival("peers.rocksdb_store.AppendMany"),
                Rival("peers.sqlite_log.AppendMany"),
                Rival("peers.aiokafka_records.AppendMany"),
                Rival("peers.raw_files.PwriteBatches"),
            ),
            records=records,
            batch=batch,
            value_bytes=size,
        ),
        Case(
            f"read_{name}",
            ours.Read,
            (
                Rival(_LMDB_CURSOR),
                Rival("peers.rocksdb_store.Read"),
                Rival("peers.sqlite_log.Read"),
                Rival("peers.aiokafka_records.Read"),
                Rival("peers.raw_files.CachedRead"),
            ),
            records=records,
            batch=batch,
            value_bytes=size,
        ),
        Case(
            f"append_arrow_{name}",
            ours.AppendArrow,
            (
                Rival("peers.raw_files.PwriteBatches"),
                Rival("peers.parquet_file.Append"),
            ),
            records=records,
            batch=batch,
            value_bytes=size,
        ),
        Case(
            f"read_arrow_{name}",
            ours.ReadArrow,
            (
                Rival(_LMDB_CURSOR),
                Rival("peers.parquet_file.Read"),
                Rival("peers.raw_files.CachedRead"),
                Rival("peers.raw_files.MemoryCopy"),
            ),
            records=records,
            batch=batch,
            value_bytes=size,
        ),
    )
)

_CODECS: Final = tuple(
    case
    for name, write, read, alone, reversed_ in (
        ("gzip", ours.AppendGzip, ours.ReadArrowGzip, "Gzip", "Gunzip"),
        ("snappy", ours.AppendSnappy, ours.ReadArrowSnappy, "Snappy", "Unsnappy"),
        ("lz4", ours.AppendLz4, ours.ReadArrowLz4, "Lz4", "Unlz4"),
        ("zstd", ours.AppendZstd, ours.ReadArrowZstd, "Zstd", "Unzstd"),
    )
    for case in (
        Case(
            f"append_{name}",
            write,
            (Rival(f"peers.codecs.{alone}", 0.9), Rival("ours.AppendManyV2")),
            records=100_000,
            note=_WITHOUT,
        ),
        Case(
            f"read_arrow_{name}",
            read,
            (Rival(f"peers.codecs.{reversed_}", 0.9), Rival("ours.ReadArrowV2")),
            records=100_000,
            note=_WITHOUT,
        ),
    )
)

# Apart: a broker that runs disturbs other contestants.
_BROKER: Final = (
    Case(
        "broker_append",
        ours.AppendManyV2,
        (Rival("peers.kafka_broker.AppendMany"),),
        note="the CPU seconds of the broker are those of its contestant",
    ),
    Case(
        "broker_read",
        ours.ReadV2,
        (Rival("peers.kafka_broker.Read"),),
        note="the CPU seconds of the broker are those of its contestant",
    ),
)

CASES: Final = (*_APPENDING, *_READING, *_MAINTAINING, *_SIZED, *_CODECS, *_BROKER)


def case_of(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)
