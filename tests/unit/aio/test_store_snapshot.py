"""Snapshots of a `logstore.aio.Store`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import logstore


def test_snapshot_of_an_asyncio_store_has_its_records(tmp_path: Path) -> None:
    """It is made in another thread, while other tasks continue."""

    async def work() -> logstore.types.SnapshotReport:
        async with logstore.aio.open(tmp_path / "data") as store:
            topic = await store.create_topic("t")
            await topic.append(b"one")
            report, _ = await asyncio.gather(
                store.snapshot(tmp_path / "copy"), topic.append(b"two")
            )
            return report

    report = asyncio.run(work())
    assert (report.topics, report.partitions) == (1, 1)
    with logstore.open(tmp_path / "copy") as store:
        records = [record.value for record in store.topic("t")[0].read()]
    assert records in ([b"one"], [b"one", b"two"])
