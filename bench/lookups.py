"""Lookups in a partition of many segments: by offset, and by time."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import ClassVar

import logstore
from bench.ours import LOOKUPS, check_random, random_offsets
from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS

__all__ = [
    "Get",
    "GetV2",
    "GetWithFewFiles",
    "Time",
    "TimeInMany",
    "TimeInManyV2",
    "TimeV2",
    "TimeWithFewFiles",
]


class _Segments(Contestant):
    """Each batch of the workload is a segment. Segments are made as files, as another
    program leaves them, and taken over: to roll 10,000 times measures the disk.

    The time of record n is n milliseconds after the first.
    """

    magic: ClassVar[int] = 1
    is_one_segment: ClassVar[bool] = False
    # One file for each segment; the store takes at most three quarters of the limit of
    # the process.
    max_open_files: ClassVar[int] = 16_384

    def open(self) -> None:
        self.offsets = random_offsets(LOOKUPS, self.workload.count)
        path = self.directory / "store"
        folder = path / "bench-0"
        folder.mkdir(mode=0o700, parents=True)
        path.chmod(0o700)
        for number, data in enumerate(self._logs()):
            base = number * self.workload.batch_records
            (folder / f"{base:020d}.log").write_bytes(data)
        logger = logging.getLogger("logstore")
        level = logger.level
        logger.setLevel(logging.ERROR)  # it warns of a store that it has not made
        config = logstore.StoreConfig(max_open_files=self.max_open_files)
        self.store = logstore.open(path, config=config)
        self.partition = self.store.topic("bench")[0]
        if self.partition.end_offset != self.workload.count:
            raise AssertionError(f"the log ends at {self.partition.end_offset}")
        logger.setLevel(level)

    def _logs(self) -> list[bytes]:
        path = self.directory / "made"
        with logstore.open(path) as store:
            config = logstore.TopicConfig(message_format=self.magic)
            partition = store.create_topic("bench", config=config)[0]
            for keys, values in self.workload.batches:
                base = partition.end_offset
                times = [TIMESTAMP_MS + base + n for n in range(len(keys))]
                partition.append_many(values, keys, times)
            (segment,) = partition.segments
            data = Path(segment.path).read_bytes()
        shutil.rmtree(path)
        if self.is_one_segment:
            return [data]
        size, rest = divmod(len(data), len(self.workload.batches))
        assert rest == 0
        return [data[i : i + size] for i in range(0, len(data), size)]

    def amount(self) -> int:
        return LOOKUPS

    def close(self) -> None:
        self.store.close()


class Get(_Segments):
    """The record at each of some random offsets."""

    name = "logstore get, many segments"

    def work(self) -> list[bytes | None]:
        get = self.partition.get
        return [get(offset).value for offset in self.offsets]

    def after(self, result: list[bytes | None]) -> None:
        check_random(self, result)


class GetV2(Get):
    name = "logstore get, magic 2, many segments"
    magic = 2


class GetWithFewFiles(Get):
    name = "logstore get, many segments, few open files"
    max_open_files = 1024


class Time(_Segments):
    """The offset of each of some random times."""

    name = "logstore offset_for_time"
    is_one_segment = True

    def work(self) -> list[int | None]:
        offset_for_time = self.partition.offset_for_time
        return [offset_for_time(TIMESTAMP_MS + offset) for offset in self.offsets]

    def after(self, result: list[int | None]) -> None:
        if result != self.offsets:
            raise AssertionError(f"{self.name} gave other offsets")


class TimeV2(Time):
    name = "logstore offset_for_time, magic 2"
    magic = 2


class TimeInMany(Time):
    name = "logstore offset_for_time, many segments"
    is_one_segment = False


class TimeWithFewFiles(TimeInMany):
    name = "logstore offset_for_time, many segments, few open files"
    max_open_files = 1024


class TimeInManyV2(TimeInMany):
    name = "logstore offset_for_time, magic 2, many segments"
    magic = 2
