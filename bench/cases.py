"""The cases, their rivals, and what is aimed at."""

from __future__ import annotations

from typing import Final

from bench import ours
from bench.peers import kafka_client, lmdb_store, raw_files
from bench.rounds import Case

__all__ = ["CASES", "case_of"]

_NO_CHECK: Final = "LMDB keeps no timestamp and no checksum"
_ALL_AGAIN: Final = "what was not synced is written again, and synced"
_SCANS: Final = (raw_files.Crc32, raw_files.ReadFile)
_DURABLE: Final = "fdatasync before each append returns"

CASES: Final = (
    Case(
        "append_many",
        ours.AppendMany,
        (lmdb_store.AppendMany, kafka_client.AppendMany, raw_files.PwriteBatches),
        target=0.5,
        note=_NO_CHECK,
    ),
    Case(
        "append_many_v2",
        ours.AppendManyV2,
        (lmdb_store.AppendMany, kafka_client.AppendManyV2),
        target=0.5,
        note=_NO_CHECK,
    ),
    Case(
        "append_arrow",
        ours.AppendArrow,
        (lmdb_store.AppendMany, raw_files.PwriteBatches),
        note="the Arrow batches are there, as are LMDB's tuples",
    ),
    Case(
        "append_arrow_v2",
        ours.AppendArrowV2,
        (lmdb_store.AppendMany,),
        note="the Arrow batches are there, as are LMDB's tuples",
    ),
    Case(
        "append",
        ours.AppendOne,
        (raw_files.PwriteOne,),
        target=0.2,
        records=50_000,
        batch=1,
        note="the rival's messages are ready-made",
    ),
    Case(
        "append_v2",
        ours.AppendOneV2,
        (raw_files.PwriteOne,),
        records=20_000,
        batch=1,
        note="the rival's messages are ready-made",
    ),
    Case(
        "durable",
        ours.Durable,
        (raw_files.PwriteSync,),
        records=1_000,
        batch=1,
        flush=_DURABLE,
        note="the rival's messages are ready-made",
    ),
    Case(
        "durable_8",
        ours.DurableThreads,
        (raw_files.PwriteSyncThreads,),
        records=1_000,
        batch=1,
        flush=_DURABLE,
        threads=8,
        note="one sync serves all who wait, the rival syncs once per record",
    ),
    Case(
        "read",
        ours.Read,
        (lmdb_store.Read, kafka_client.Read),
        target=0.5,
        note=_NO_CHECK,
    ),
    Case(
        "read_v2",
        ours.ReadV2,
        (lmdb_store.Read, kafka_client.ReadV2),
        target=0.5,
        note=_NO_CHECK,
    ),
    Case("read_arrow", ours.ReadArrow, (lmdb_store.Read,), target=3.0, note=_NO_CHECK),
    Case(
        "read_arrow_v2",
        ours.ReadArrowV2,
        (lmdb_store.Read,),
        target=3.0,
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow_views",
        ours.ReadArrowViews,
        (lmdb_store.Read, ours.ReadArrow),
        records=1_000_000,
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow_views_v2",
        ours.ReadArrowViewsV2,
        (lmdb_store.Read, ours.ReadArrowV2),
        records=1_000_000,
        note=_NO_CHECK,
    ),
    Case(
        "read_arrow_threads",
        ours.ReadArrowThreads,
        (ours.ReadArrow,),
        target=1.7,
        records=1_000_000,
        threads=2,
        note="the rival is one thread; needs two idle cores",
    ),
    Case(
        "read_arrow_views_threads",
        ours.ReadArrowViewsThreads,
        (ours.ReadArrowViews,),
        target=1.7,
        records=1_000_000,
        threads=2,
        note="the rival is one thread; needs two idle cores",
    ),
    Case(
        "random_read",
        ours.RandomRead,
        (lmdb_store.RandomRead, raw_files.Pread),
        unit="op",
        batch=1,
        note="os.pread knows where the record lies",
    ),
    Case(
        "random_read_v2",
        ours.RandomReadV2,
        (lmdb_store.RandomRead, raw_files.Pread),
        unit="op",
        note="a batch of 1,000 records is checked for each record",
    ),
    Case("verify", ours.Verify, _SCANS, unit="B", floor=4e9),
    Case("verify_v2", ours.VerifyV2, _SCANS, unit="B", floor=4e9),
    Case("verify_deep", ours.VerifyDeep, _SCANS, unit="B", floor=3e9),
    Case("verify_deep_v2", ours.VerifyDeepV2, _SCANS, unit="B", floor=3e9),
    Case("verify_large", ours.Verify, _SCANS, unit="B", floor=4e9, records=1_000_000),
    Case("rebuild_index", ours.RebuildIndex, (raw_files.Crc32,), unit="B"),
    Case("rebuild_index_v2", ours.RebuildIndexV2, (raw_files.Crc32,), unit="B"),
    Case("recheck", ours.Recheck, (raw_files.Crc32,), unit="B", floor=2e9),
    Case("recheck_v2", ours.RecheckV2, (raw_files.Crc32,), unit="B", floor=2e9),
    Case("recover", ours.Recover, (raw_files.Crc32,), unit="B", note=_ALL_AGAIN),
    Case("recover_v2", ours.RecoverV2, (raw_files.Crc32,), unit="B", note=_ALL_AGAIN),
    Case("open_clean", ours.OpenClean, (lmdb_store.OpenClean,), unit="op"),
)


def case_of(name: str) -> Case:
    """The case of that name."""
    return next(case for case in CASES if case.name == name)
