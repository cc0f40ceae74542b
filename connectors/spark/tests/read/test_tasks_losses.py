"""Retention, cuts, deletions and damage during a query: an error, or skipped if
configured."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import logstore
from logstore.log.follow.read_only_log import ReadOnlyLog

pytest.importorskip("pyspark", reason="pyspark is not installed")


from pyspark_logstore import stores
from pyspark_logstore.read import tasks
from pyspark_logstore.read.offsets import DataLossError
from pyspark_logstore.stores import StoreCache
from support.spark_reading import MakeTopic, offsets_of, reader_of, rows_of


def test_retention_that_overtakes_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The error names the deleted offsets; otherwise the query continues after them."""
    partition = make_topic(count=200)[0]
    strict = reader_of(writer.path)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    planned = strict.partitions()
    partition.delete_before(60)
    with pytest.raises(DataLossError, match="orders-0: offsets 0 to 59 were deleted"):
        rows_of(strict, planned)
    assert offsets_of(lenient, planned) == [*range(60, 200)]
    partition.delete_before(200)
    with pytest.raises(DataLossError, match="offsets 0 to 199 were"):
        rows_of(strict, planned)
    assert offsets_of(lenient, planned) == []


def test_retention_while_a_task_reads_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are removed while they are read: a gap is always an error."""
    monkeypatch.setattr(tasks, "batch_records", lambda count, size: 64)
    monkeypatch.setattr(tasks, "FEW_RECORDS", 0)
    partition = make_topic(count=3000, file_delete_delay_ms=0)[0]
    for fails in ("true", "false"):
        reader = reader_of(writer.path, failOnDataLoss=fails)
        (task,) = reader.partitions()
        batches = reader.read(task)
        seen = next(batches).column("offset").to_pylist()
        partition.delete_before(partition.start_offset + 1400)
        wait_until_files_are_gone(partition)
        if fails == "true":
            with pytest.raises(DataLossError, match="deleted while it was read"):
                for batch in batches:
                    seen += batch.column("offset").to_pylist()
        else:
            for batch in batches:
                seen += batch.column("offset").to_pylist()
            assert seen[-1] == 2999
            assert len(seen) < 3000 - 1400
        assert seen == sorted(set(seen))


def wait_until_files_are_gone(partition: logstore.Partition) -> None:
    """A deletion removes files a moment later, in a thread of the writer."""
    import time

    for _ in range(500):
        if not list(Path(partition.path).glob("*.deleted")):
            return
        time.sleep(0.01)
    pytest.fail("deleted files stay")


def test_cut_tail_under_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The planned records do not exist any more."""
    partition = make_topic(count=100, message_format=2)[0]
    strict = reader_of(writer.path)
    planned = strict.partitions()
    partition.truncate_to(50)
    with pytest.raises(
        DataLossError, match="ends at 50 now, and was to be read up to 100"
    ):
        rows_of(strict, planned)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    assert offsets_of(lenient, planned) == [*range(50)]


def test_worker_with_an_old_view_of_the_files_opens_them_anew(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may show an old size of a file that is open."""
    partition = make_topic(count=100)[0]
    worker = StoreCache()
    monkeypatch.setattr(stores, "_CACHE", worker)
    assert len(offsets_of(reader_of(writer.path))) == 100  # and the store stays open
    monkeypatch.setattr(ReadOnlyLog, "_look_quickly", lambda self: False)
    monkeypatch.setattr(ReadOnlyLog, "_look", lambda self: None)
    partition.append_many([b"value"] * 50)
    monkeypatch.setattr(stores, "_CACHE", StoreCache())  # the driver's
    reader = reader_of(writer.path)
    planned = reader.partitions()
    monkeypatch.setattr(stores, "_CACHE", worker)
    assert offsets_of(reader, planned) == [*range(150)]


def test_topic_deleted_under_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The error names the partition."""
    make_topic(count=100)
    make_topic("users", count=1)
    strict = reader_of(writer.path, subscribe="orders,users")
    planned = strict.partitions()
    writer.delete_topic("orders")
    with pytest.raises(DataLossError, match="orders-0 was deleted before it was read"):
        rows_of(strict, planned)
    lenient = reader_of(writer.path, subscribe="orders,users", failOnDataLoss="false")
    assert [row["topic"] for row in rows_of(lenient, planned)] == ["users"]


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "lenient"])
def test_topic_deleted_while_it_is_read_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store, is_strict: bool
) -> None:
    """Its segments that were not open yet are gone; earlier rows are right."""
    partition = make_topic(segment_bytes=4096, file_delete_delay_ms=0)[0]
    for _ in range(40):
        partition.append_many([b"value" * 200] * 100)
    reader = reader_of(writer.path, failOnDataLoss=str(is_strict).lower())
    batches = (batch for task in reader.partitions() for batch in reader.read(task))
    found = next(batches).column("offset").to_pylist()
    writer.delete_topic("orders")
    with contextlib.ExitStack() as stack:
        if is_strict:
            told = "orders-0 was deleted while it was read"
            stack.enter_context(pytest.raises(DataLossError, match=told))
        for batch in batches:
            found += batch.column("offset").to_pylist()
    assert found == [*range(len(found))]
    assert 0 < len(found) < 4000


def test_damage_is_raised_after_what_is_before_it(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """failOnDataLoss does not matter: damage is no retention."""
    partition = make_topic(count=100)[0]
    path = Path(partition.segments[0].path)
    writer.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reader = reader_of(writer.path, failOnDataLoss="false")
    seen = []
    with pytest.raises(logstore.CorruptRecordError):
        for task in reader.partitions():
            for batch in reader.read(task):
                seen += batch.column("offset").to_pylist()
    assert seen == [*range(len(seen))]
    assert 0 < len(seen) < 100


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("tasks", ["1", "16"])
def test_damage_is_skipped_where_that_is_asked_for(
    make_topic: MakeTopic,
    writer: logstore.Store,
    caplog: pytest.LogCaptureFixture,
    isolation: str,
    tasks: str,
) -> None:
    """Everything besides the damaged batches is delivered, in order, and each of them
    is in a warning with its offsets."""
    topic = make_topic(count=400, partitions=2, segment_bytes=8000, message_format=2)
    want = [[*range(400)], [*range(400)]]
    damaged = []
    for number, wanted in ((0, 120), (0, 399), (1, 260)):
        partition = topic[number]
        batch = next(partition.read_batches(wanted))
        damaged.append(
            (_path_of(partition, wanted), batch.position + batch.size_bytes - 2)
        )
        lost = range(batch.base_offset, batch.next_offset)
        want[number] = [o for o in want[number] if o not in lost]
    writer.close()
    for path, position in damaged:
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(b"\xff\xfe")
    options = {"onCorruption": "skip", "minPartitions": tasks, "isolation": isolation}
    rows = rows_of(reader_of(writer.path, **options))
    found = [[r["offset"] for r in rows if r["partition"] == n] for n in (0, 1)]
    assert found == want
    told = [r.getMessage() for r in caplog.records if "skipped" in r.getMessage()]
    assert all("checksum" in text for text in told)
    assert len(told) == 3
    assert any("orders-0: damage in the offsets 100 to 149" in text for text in told)
    assert any("orders-0: damage in the offsets 350 to 399" in text for text in told)
    assert any("orders-1: damage in the offsets 250 to 299" in text for text in told)
    with pytest.raises(logstore.CorruptRecordError):
        rows_of(reader_of(writer.path, isolation=isolation))


def _path_of(partition: logstore.Partition, offset: int) -> str:
    """The segment that holds an offset."""
    (path,) = (
        s.path for s in partition.segments if s.base_offset <= offset < s.next_offset
    )
    return path


def test_damage_does_not_stop_the_planning(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """A cut falls on it: the records before it are still delivered."""
    partition = make_topic(count=400, segment_bytes=1 << 20)[0]
    path = Path(partition.segments[0].path)
    writer.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 500] = b"?" * 500
    path.write_bytes(data)
    reader = reader_of(writer.path, minPartitions="16")
    seen = []
    with pytest.raises((logstore.CorruptRecordError, logstore.errors.UnsupportedError)):
        for task in reader.partitions():
            for batch in reader.read(task):
                seen += batch.column("offset").to_pylist()
    assert seen == [*range(len(seen))]
    assert len(seen) > 100
