"""The work of logstore in each case."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import logstore
from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS, Digest, Workload
from logstore.maintenance.verify import rebuild_index, verify

NEVER = (1 << 63) - 1
# Enough for a batch of one record of 1 MiB.
_MESSAGE_BYTES_MAX = 2 << 20
# In one round of a case with lookups.
LOOKUPS: Final = 5_000


def config(magic: int, **settings: Any) -> logstore.TopicConfig:
    """A topic that syncs on request only."""
    return logstore.TopicConfig(
        message_format=magic, flush_messages=NEVER, flush_ms=NEVER, **settings
    )


def partition_of(
    store: logstore.Store, magic: int, value_bytes: int, codec: str = "none"
) -> logstore.Partition:
    settings: dict[str, Any] = {"compression_type": codec}
    if value_bytes >= 1 << 20:
        settings["max_message_bytes"] = _MESSAGE_BYTES_MAX
    topic = store.create_topic("bench", config=config(magic, **settings), exist_ok=True)
    return topic[0]


def encoded_batches(directory: Path, workload: Workload, magic: int) -> list[bytes]:
    """The bytes of the log of each batch of the workload. They have the same size,
    because all records do, and lie in one segment."""
    path = directory / "encoded"
    with logstore.open(path) as store:
        partition = partition_of(store, magic, workload.value_bytes)
        for keys, values in workload.batches:
            partition.append_many(values, keys, [TIMESTAMP_MS] * len(keys))
        (segment,) = partition.segments
        data = Path(segment.path).read_bytes()
    shutil.rmtree(path)
    size, rest = divmod(len(data), len(workload.batches))
    assert rest == 0
    return [data[i : i + size] for i in range(0, len(data), size)]


class _Appending(Contestant):
    """Each round appends to a new store that has taken one batch already."""

    magic: ClassVar[int] = 1
    codec: ClassVar[str] = "none"

    def before(self) -> None:
        self.path = self.directory / "store"
        self.store = logstore.open(self.path)
        size = self.workload.value_bytes
        self.partition = partition_of(self.store, self.magic, size, self.codec)
        keys, values = self.workload.batches[0]
        self.first = self.partition.append_many(values, keys).stop

    def after(self, result: Any) -> None:
        digest = Digest()
        columns = ("key", "value")
        for batch in self.partition.read_arrow(self.first, columns=columns):
            digest.add_arrow(batch)
        self.workload.check(digest, self.name)
        self.store.close()
        shutil.rmtree(self.path)


class AppendMany(_Appending):
    name = "logstore"

    def work(self) -> None:
        append_many = self.partition.append_many
        for keys, values in self.workload.batches:
            append_many(values, keys)


class AppendManyV2(AppendMany):
    name = "logstore magic 2"
    magic = 2


class AppendGzip(AppendManyV2):
    name = "logstore gzip"
    codec = "gzip"


class AppendSnappy(AppendManyV2):
    name = "logstore snappy"
    codec = "snappy"


class AppendLz4(AppendManyV2):
    name = "logstore lz4"
    codec = "lz4"


class AppendZstd(AppendManyV2):
    name = "logstore zstd"
    codec = "zstd"


class AppendArrow(_Appending):
    name = "logstore Arrow"

    def open(self) -> None:
        self.arrow = list(self.workload.arrow_batches())

    def work(self) -> None:
        append_arrow = self.partition.append_arrow
        for batch in self.arrow:
            append_arrow(batch)


class AppendArrowV2(AppendArrow):
    name = "logstore Arrow, magic 2"
    magic = 2


class AppendBatches(_Appending):
    """Whole batches, as a producer sends them: checked, given offsets, written."""

    name = "logstore append_batches"

    def open(self) -> None:
        self.blocks = encoded_batches(self.directory, self.workload, self.magic)

    def work(self) -> None:
        append_batches = self.partition.append_batches
        for block in self.blocks:
            append_batches(block)


class AppendBatchesV2(AppendBatches):
    name = "logstore append_batches, magic 2"
    magic = 2


class AppendOne(_Appending):
    """One record per call: they are with the operating system when each returns."""

    name = "logstore"

    def work(self) -> None:
        append = self.partition.append
        for key, value in zip(self.workload.keys, self.workload.values, strict=True):
            append(value, key)


class AppendOneV2(AppendOne):
    name = "logstore magic 2"
    magic = 2


class Durable(_Appending):
    """One record per call, on stable storage when each returns."""

    name = "logstore"
    threads: ClassVar[int] = 1

    def work(self) -> None:
        run_threads(self.threads, self._append)

    def _append(self, thread: int) -> None:
        append = self.partition.append
        keys, values = self.workload.keys, self.workload.values
        for i in range(thread, self.workload.count, self.threads):
            append(values[i], keys[i], durable=True)

    def after(self, result: Any) -> None:
        if self.partition.durable_offset != self.first + self.workload.count:
            raise AssertionError(f"durable up to {self.partition.durable_offset} only")
        # Threads append in any order, so both sides are sorted.
        records: list[Any] = list(self.partition.read(self.first))
        records.sort(key=lambda record: record.value)
        digest = Digest()
        digest.add([r.key for r in records], [r.value for r in records])
        expected = Digest()
        written = zip(self.workload.values, self.workload.keys, strict=True)
        values, keys = zip(*sorted(written), strict=True)
        expected.add(keys, values)
        if digest != expected:
            raise AssertionError(f"{self.name} gave {digest}, not {expected}")
        self.store.close()
        shutil.rmtree(self.path)


class Durable8(Durable):
    name = "logstore, 8 threads"
    threads = 8


class Durable64(Durable):
    name = "logstore, 64 threads"
    threads = 64


def run_threads(count: int, work: Any) -> None:
    """`work(number)` in each of `count` threads; in this one if it is only one."""
    if count == 1:
        work(0)
        return
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class _Reading(Contestant):
    """The log is written once; rounds read it from the page cache."""

    magic: ClassVar[int] = 1
    codec: ClassVar[str] = "none"
    is_flushed: ClassVar[bool] = True

    def open(self) -> None:
        self.path = self.directory / "store"
        self.store = logstore.open(self.path)
        size = self.workload.value_bytes
        self.partition = partition_of(self.store, self.magic, size, self.codec)
        for keys, values in self.workload.batches:
            self.partition.append_many(values, keys, [TIMESTAMP_MS] * len(keys))
        if self.is_flushed:
            self.partition.flush()

    def close(self) -> None:
        self.store.close()

    @property
    def log(self) -> Path:
        return Path(self.partition.segments[0].path)


class Read(_Reading):
    """Every record as a Python object, its key and value touched, every checksum
    compared."""

    name = "logstore"

    def work(self) -> int:
        count = 0
        for record in self.partition.read():
            _, _ = record.key, record.value
            count += 1
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        digest = Digest()
        keys: list[Any] = []
        values: list[Any] = []
        for n, record in enumerate(self.partition.read()):
            if record.offset != n or record.timestamp_ms != TIMESTAMP_MS:
                raise AssertionError(f"record {n} is {record}")
            keys.append(record.key)
            values.append(record.value)
        digest.add(keys, values)
        self.workload.check(digest, self.name)
        super().close()


class ReadV2(Read):
    name = "logstore magic 2"
    magic = 2


class ReadArrow(_Reading):
    """All four default columns as Arrow record batches, every checksum compared."""

    name = "logstore Arrow"
    options: ClassVar[dict[str, Any]] = {}

    def work(self) -> int:
        count = 0
        for batch in self.partition.read_arrow(**self.options):
            count += batch.num_rows
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        digest = Digest()
        table = self.partition.read_arrow(**self.options).read_all()
        for batch in table.to_batches():
            digest.add_arrow(batch)
        self.workload.check(digest, self.name)
        if table["offset"].to_pylist() != list(range(self.workload.count)):
            raise AssertionError("offsets are not 0, 1, 2, ...")
        if set(table["timestamp"].cast("int64").to_pylist()) != {TIMESTAMP_MS}:
            raise AssertionError("timestamps are not those that were written")
        super().close()


class ReadArrowV2(ReadArrow):
    name = "logstore Arrow, magic 2"
    magic = 2


class ReadArrowViews(ReadArrow):
    """The same with views of the bytes that were read."""

    name = "logstore Arrow, views"
    options: ClassVar[dict[str, Any]] = {"view": True}


class ReadArrowViewsV2(ReadArrowViews):
    name = "logstore Arrow, views, magic 2"
    magic = 2


class ReadArrowThreads(ReadArrow):
    name = "logstore Arrow, 2 threads"
    options: ClassVar[dict[str, Any]] = {"threads": 2}


class ReadArrowViewsThreads(ReadArrow):
    name = "logstore Arrow, views, 2 threads"
    options: ClassVar[dict[str, Any]] = {"threads": 2, "view": True}


class ReadArrowGzip(ReadArrowV2):
    name = "logstore Arrow, gzip"
    codec = "gzip"


class ReadArrowSnappy(ReadArrowV2):
    name = "logstore Arrow, snappy"
    codec = "snappy"


class ReadArrowLz4(ReadArrowV2):
    name = "logstore Arrow, lz4"
    codec = "lz4"


class ReadArrowZstd(ReadArrowV2):
    name = "logstore Arrow, zstd"
    codec = "zstd"


class RandomRead(_Reading):
    """One record at a random offset, as a Python object."""

    name = "logstore get"

    def open(self) -> None:
        super().open()
        self.offsets = random_offsets(LOOKUPS, self.workload.count)

    def amount(self) -> int:
        return LOOKUPS

    def work(self) -> list[bytes | None]:
        get = self.partition.get
        return [get(offset).value for offset in self.offsets]

    def after(self, result: list[bytes | None]) -> None:
        check_random(self, result)


class RandomReadV2(RandomRead):
    name = "logstore get, magic 2"
    magic = 2


def random_offsets(reads: int, count: int) -> list[int]:
    return random.Random(7).choices(range(count), k=reads)


def check_random(contestant: Any, result: Sequence[bytes | None]) -> None:
    values = contestant.workload.values
    if result != [values[offset] for offset in contestant.offsets]:
        raise AssertionError(f"{contestant.name} gave other values")


class OpenClean(_Reading):
    """Open for writing a store that was closed, look where its log ends, close it."""

    name = "logstore"
    opens: ClassVar[int] = 20

    def open(self) -> None:
        super().open()
        self.store.close()

    def amount(self) -> int:
        return self.opens

    def work(self) -> list[int]:
        ends = []
        for _ in range(self.opens):
            with logstore.open(self.path, create=False) as store:
                ends.append(store.topic("bench")[0].end_offset)
        return ends

    def after(self, result: list[int]) -> None:
        if set(result) != {self.workload.count}:
            raise AssertionError(f"the log ends at {result}")

    def close(self) -> None:
        pass


class _Files(_Reading):
    """Work on the log's bytes: the unit is bytes of `.log`."""

    def open(self) -> None:
        super().open()
        path = self.log
        self.bytes = self.partition.segments[0].size_bytes
        self.close_store()
        self.log_path = path

    def close_store(self) -> None:
        self.store.close()

    def amount(self) -> int:
        return self.bytes

    def close(self) -> None:
        pass


class Verify(_Files):
    """`logstore.verify`, shallow: frames, checksums, offsets, indexes, checkpoints."""

    name = "logstore.verify"
    deep: ClassVar[bool] = False

    def work(self) -> Any:
        return verify(self.path, deep=self.deep)

    def after(self, result: Any) -> None:
        if not result.ok or result.records != self.workload.count:
            raise AssertionError(f"{self.name} reports {result}")


class VerifyV2(Verify):
    name = "logstore.verify, magic 2"
    magic = 2


class VerifyDeep(Verify):
    name = "logstore.verify deep"
    deep = True


class VerifyDeepV2(VerifyDeep):
    name = "logstore.verify deep, magic 2"
    magic = 2


class RebuildIndex(_Files):
    """Both indexes of the segment, from its log, every checksum compared."""

    name = "logstore.rebuild_index"

    def before(self) -> None:
        for suffix in (".index", ".timeindex"):
            with contextlib.suppress(FileNotFoundError):
                self.log_path.with_suffix(suffix).unlink()

    def work(self) -> Any:
        return rebuild_index(self.log_path.parent)

    def after(self, result: Any) -> None:
        index = self.log_path.with_suffix(".index").read_bytes()
        if zlib.crc32(index) != self.index_crc or not index:
            raise AssertionError("the rebuilt index is another one")

    def open(self) -> None:
        super().open()
        self.index_crc = zlib.crc32(self.log_path.with_suffix(".index").read_bytes())


class RebuildIndexV2(RebuildIndex):
    name = "logstore.rebuild_index, magic 2"
    magic = 2


class Recheck(_Files):
    """Find the end of a log of which nothing was synced, as a kill leaves it: every
    batch is checked and indexed. The store is opened for reading, so that nothing is
    written."""

    name = "logstore, re-check"
    is_flushed = False

    def close_store(self) -> None:
        self.left = self.directory / "left"
        shutil.copytree(self.path, self.left)
        self.store.close()

    def work(self) -> int:
        return self._end(read_only=True)

    def _end(self, *, read_only: bool) -> int:
        config = logstore.StoreConfig(recovery_threads=1)
        store = logstore.open(
            self.left, create=False, read_only=read_only, config=config
        )
        with store:
            return store.topic("bench")[0].end_offset

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)


class RecheckV2(Recheck):
    name = "logstore, re-check, magic 2"
    magic = 2


class Recover(Recheck):
    """The same, opened for writing, and closed: what was not synced is also written
    again, and synced."""

    name = "logstore, recovery"

    def before(self) -> None:
        self.kept = self.directory / "kept"
        shutil.copytree(self.left, self.kept)

    def work(self) -> int:
        return self._end(read_only=False)

    def after(self, result: int) -> None:
        super().after(result)
        if self.log_bytes(self.left) != self.log_bytes(self.kept):
            raise AssertionError("recovery has changed the log")
        shutil.rmtree(self.left)
        self.kept.rename(self.left)

    def log_bytes(self, path: Path) -> bytes:
        return (path / self.log_path.relative_to(self.path)).read_bytes()


class RecoverV2(Recover):
    name = "logstore, recovery, magic 2"
    magic = 2
