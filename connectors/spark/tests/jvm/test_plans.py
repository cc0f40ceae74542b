"""Plans for Java, and the parts that Java leaves to Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import logstore
from logstore import CorruptRecordError
from pyspark_logstore.jvm.plans import plan_json, rest_of, stands, task_from
from pyspark_logstore.read.batch import BatchReader
from pyspark_logstore.read.columns import source_schema
from pyspark_logstore.read.offsets import DataLossError
from pyspark_logstore.read.options import SourceOptions, parse
from pyspark_logstore.read.tasks import Task
from support.damage import frames, overwrite

SCHEMA = source_schema(include_headers=False)


def planned(path: str, **given: str) -> tuple[list[Task], Any, SourceOptions]:
    options = parse({"path": path, "subscribe": "orders", **given}, streaming=False)
    tasks = BatchReader(SCHEMA, options).plan()
    return tasks, plan_json(tasks, path, options), options


def test_plan_names_the_bytes_and_counts_the_records(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    make_topic(count=1000)
    tasks, plan, _ = planned(writer.path)
    (each,) = plan["tasks"][0]["ranges"]
    assert (each["start"], each["stop"], each["transactions"]) == (0, 1000, "none")
    assert len(each["pieces"]) > 2
    assert all(piece["contiguous"] for piece in each["pieces"])
    assert plan["counts"] == {"count": 1000, "min": 0, "max": 999}
    given_back = task_from(plan["tasks"][0]["task"])
    assert vars(given_back) == vars(tasks[0])
    assert given_back.store.is_same(tasks[0].store)


def test_what_may_have_been_skipped_is_not_counted(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    make_topic(count=10)
    _, plan, _ = planned(writer.path, onCorruption="skip")
    assert plan["counts"] is None


def test_range_stands_until_the_log_is_cut_below_its_end(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    partition = make_topic(count=1000)[0]
    partition.flush()
    (task,), _, _ = planned(writer.path)
    assert stands(task, 0, 1000, writer.path)
    partition.append(b"more")
    partition.truncate_to(1000)
    assert stands(task, 0, 1000, writer.path)
    partition.truncate_to(999)
    partition.append(b"other")
    assert not stands(task, 0, 1000, writer.path)


def test_range_of_a_topic_that_is_gone_does_not_stand(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    make_topic(count=10)[0].flush()
    (task,), _, _ = planned(writer.path)
    writer.delete_topic("orders")
    assert not stands(task, 0, 1000, writer.path)
    make_topic(count=10)
    assert not stands(task, 0, 1000, writer.path)


def test_rest_of_a_range_is_what_the_python_source_reads(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    make_topic(count=100)
    (task,), _, options = planned(writer.path)
    batches = rest_of(task, 0, 93, SCHEMA, writer.path, options)
    offsets = [n for batch in batches for n in batch.column("offset").to_pylist()]
    assert offsets == list(range(93, 100))


def test_rest_of_a_range_is_read_from_its_start(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    """The bytes that show a wrong offset may precede the next record."""
    partition = make_topic(count=100)[0]
    partition.flush()
    log = Path(partition.segments[0].path)
    (task,), _, options = planned(writer.path)
    first = frames(log)[0]
    overwrite(log, first.pos + first.size - 1, b"\xff")
    with pytest.raises(CorruptRecordError):
        list(rest_of(task, 0, 93, SCHEMA, writer.path, options))


def test_rest_of_a_range_whose_delivered_part_was_deleted_is_no_loss(
    writer: logstore.Store, make_topic: Callable[..., logstore.Topic]
) -> None:
    """Records that Java has delivered are not lost; later ones are."""
    partition = make_topic(count=100)[0]
    (task,), _, options = planned(writer.path)
    partition.delete_before(50)
    batches = rest_of(task, 0, 50, SCHEMA, writer.path, options)
    offsets = [n for batch in batches for n in batch.column("offset").to_pylist()]
    assert offsets == list(range(50, 100))
    with pytest.raises(DataLossError, match="offsets 49 to 49 were deleted"):
        list(rest_of(task, 0, 49, SCHEMA, writer.path, options))
