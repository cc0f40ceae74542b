"""Deletions, cuts and re-creations between any two steps of a query: the right rows, or
an error about the loss. Never rows of two logs. Without a Java machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logstore
from logstore import ConfigError, LogStoreError, Partition
from logstore.store.partition.partition_views import PartitionViews

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark_logstore import stores
from pyspark_logstore.read import stream, tasks
from pyspark_logstore.read.batch import BatchReader
from pyspark_logstore.read.columns import source_schema
from pyspark_logstore.read.offsets import DataLossError
from pyspark_logstore.read.options import parse
from pyspark_logstore.read.stream import StreamReader
from pyspark_logstore.stores import NotSharedError, StoreCache

SCHEMA = source_schema(include_headers=False)
needs_limits = pytest.mark.skipif(
    stream.limits is None,
    reason="this Spark does not tell a source where a batch starts",
)
fails_or_not = pytest.mark.parametrize("fails", ["true", "false"])


class Log:
    """A topic ``orders`` of one partition, whose values name their log, the number of
    its cuts, and their offset."""

    def __init__(self, store: logstore.Store) -> None:
        self.store = store
        self.life = self.cuts = 0
        self._create()

    def _create(self) -> None:
        config = logstore.TopicConfig(
            message_format=2, segment_bytes=1024, file_delete_delay_ms=0
        )
        self.partition: Partition = self.store.create_topic("orders", config=config)[0]

    def append(self, count: int) -> None:
        """Append batches of ten, so that each tenth offset is a place to cut at."""
        for _ in range(0, count, 10):
            end = self.partition.end_offset
            self.partition.append_many(
                [b"%d.%d@%d" % (self.life, self.cuts, n) for n in range(end, end + 10)]
            )

    def retain(self, offset: int) -> None:
        self.partition.delete_before(offset)

    def cut(self, offset: int) -> None:
        """Cut records off, without replacing them."""
        self.partition.truncate_to(offset)
        self.cuts += 1

    def regrow(self, offset: int) -> None:
        """Cut records off, and append others in their place, and more."""
        end = self.partition.end_offset
        self.cut(offset)
        self.append(end - offset + 20)
        self.partition.flush()

    def remove(self) -> None:
        self.store.delete_topic("orders")

    def renew(self) -> None:
        """Make another log under the same name, longer than the previous one."""
        end = self.partition.end_offset
        self.remove()
        self.life += 1
        self._create()
        self.append(end + 20)
        self.partition.flush()


@pytest.fixture
def log(writer: logstore.Store) -> Log:
    found = Log(writer)
    found.append(100)
    found.partition.flush()
    return found


def batch_reader(log: Log, **options: str) -> BatchReader:
    given = {"path": log.store.path, "subscribe": "orders", **options}
    return BatchReader(SCHEMA, parse(given, streaming=False))


def stream_reader(log: Log, **options: str) -> StreamReader:
    given = {"path": log.store.path, "subscribe": "orders", **options}
    return StreamReader(
        SCHEMA, parse({"startingOffsets": "earliest", **given}, streaming=True)
    )


def next_batch(reader: StreamReader, start: Any) -> Any:
    """The end of the next batch, passed through JSON as by Spark."""
    if stream.limits is None:
        return json.loads(json.dumps(reader.latestOffset()))
    limit = reader.getDefaultReadLimit()
    return json.loads(json.dumps(reader.latestOffset(start, limit)))


def values(batches: Iterator[Any]) -> list[tuple[str, int]]:
    """(log and cut, offset) of the delivered rows."""
    found = []
    for batch in batches:
        for row in batch.select(["value", "offset"]).to_pylist():
            of, _, offset = row["value"].decode().partition("@")
            assert int(offset) == row["offset"]
            found.append((of, row["offset"]))
    return found


def delivered(reader: Any, planned: list[Any]) -> list[tuple[str, int]]:
    return values(batch for task in planned for batch in reader.read(task))


def of_log(of: str, *offsets: int) -> list[tuple[str, int]]:
    return [(of, offset) for offset in range(*offsets)]


class Beside:
    """Another process acts just before the n-th call of a kind."""

    def __init__(self, act: Callable[[], None], call: int = 1) -> None:
        self._act, self._left = act, call

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            self._act()


@pytest.fixture
def reads_only(monkeypatch: pytest.MonkeyPatch, log: Log) -> Callable[..., None]:
    """Like `act_before` for `Partition`, but ignores calls of the writer itself."""

    def prepare(name: str, act: Callable[[], None], call: int = 1) -> None:
        real = getattr(Partition, name)
        beside, is_acting = Beside(act, call), [False]

        def note(partition: Partition) -> None:
            if partition._writer is None and not is_acting[0]:
                is_acting[0] = True
                beside()
                is_acting[0] = False

        if isinstance(real, property):
            assert real.fget is not None
            get = real.fget

            def read(self: Partition) -> Any:
                note(self)
                return get(self)

            monkeypatch.setattr(Partition, name, property(read))
        else:

            def called(self: Partition, *args: Any, **kwargs: Any) -> Any:
                note(self)
                return real(self, *args, **kwargs)

            monkeypatch.setattr(Partition, name, called)

    return prepare


# ---------------------------------------------------------------------- within a task

STEPS = ("start_offset", "end_offset", "read_arrow", "mark")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("call", [1, 2])
@fails_or_not
def test_retention_between_two_steps_of_a_task_is_a_loss(
    step: str, call: int, fails: str, log: Log, reads_only: Any
) -> None:
    """The deletion may come between the check of the bounds and the first read: with
    failOnDataLoss=false the task continues after the deleted records, or has read
    them."""
    reader = batch_reader(log, failOnDataLoss=fails)
    planned = reader.partitions()
    reads_only(step, lambda: log.retain(50), call)
    try:
        found = delivered(reader, planned)
    except DataLossError:
        assert fails == "true"
    else:
        whole = [of_log("0.0", 100)]
        assert found in (whole if fails == "true" else [*whole, of_log("0.0", 50, 100)])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("change", ["cut", "regrow", "renew", "remove"])
@fails_or_not
def test_change_of_the_log_between_two_steps_of_a_task_is_a_loss(
    step: str, call: int, change: str, fails: str, log: Log, reads_only: Any
) -> None:
    """Only rows of the planned log are delivered; missing rows are reported."""
    reader = batch_reader(log, failOnDataLoss=fails)
    planned = reader.partitions()
    done: list[int] = []

    def act() -> None:
        done.append(1)
        getattr(log, change)(*([50] if change in ("cut", "regrow") else []))

    reads_only(step, act, call)
    try:
        found = delivered(reader, planned)
    except (DataLossError, NotSharedError):
        assert fails == "true"
        assert done
        return
    assert found == of_log("0.0", len(found))
    if done and fails == "true":  # it was read before
        assert len(found) == 100
    if done and change in ("cut", "regrow"):
        assert len(found) in (50, 100)
    if not done:
        assert len(found) == 100


@pytest.mark.parametrize("change", ["cut", "regrow", "renew", "remove", "retain"])
@fails_or_not
def test_change_of_the_log_between_plan_and_task_is_a_loss(
    change: str, fails: str, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The log may even have grown past the planned end."""
    reader = batch_reader(log, failOnDataLoss=fails)
    planned = reader.partitions()
    getattr(log, change)(*([] if change in ("renew", "remove") else [50]))
    if fails == "true":
        with pytest.raises((DataLossError, NotSharedError)):
            delivered(reader, planned)
        return
    with caplog.at_level(logging.WARNING, "logstore.spark"):
        found = delivered(reader, planned)
    kept = {"cut": (0, 50), "regrow": (0, 50), "retain": (50, 100)}
    assert found == of_log("0.0", *kept.get(change, (0, 0)))
    assert "failOnDataLoss is false" in caplog.text


@pytest.mark.parametrize("change", ["regrow", "renew", "retain", "remove"])
@fails_or_not
def test_change_of_the_log_between_two_batches_of_a_task_is_a_loss(
    change: str, fails: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delivered rows are of one log, in order, whatever the change."""
    monkeypatch.setattr(tasks, "BATCH_RECORDS", 10)
    log.append(2000)
    log.partition.flush()
    reader = batch_reader(log, failOnDataLoss=fails)
    (task,) = reader.partitions()
    batches = reader.read(task)
    found = values(iter([next(batches), next(batches)]))
    low = [] if change in ("renew", "remove") else [1500 if change == "retain" else 10]
    getattr(log, change)(*low)
    try:
        found += values(batches)
    except (DataLossError, NotSharedError):
        assert fails == "true"
    assert {of for of, _ in found} == {"0.0"}
    offsets = [offset for _, offset in found]
    assert offsets == sorted(set(offsets))
    if change != "retain":
        assert offsets == [*range(len(offsets))]


def test_task_that_is_run_twice_delivers_the_same(log: Log) -> None:
    """Spark repeats a failed task, or a slow one: from one planned object, and two
    copies side by side."""
    reader = batch_reader(log, minPartitions="4")
    planned = reader.partitions()
    first = [reader.read(task) for task in planned]
    second = [reader.read(task) for task in planned]
    found: list[list[tuple[str, int]]] = [[], []]
    for pair in zip(first, second, strict=True):
        for number, batches in enumerate(pair):
            found[number] += values(batches)
    assert found == [of_log("0.0", 100)] * 2
    assert delivered(reader, planned) == of_log("0.0", 100)


# -------------------------------------------------------------------------- planning


@pytest.mark.parametrize("step", ["start_offset", "end_offset", "mark", "segments"])
@pytest.mark.parametrize("change", ["renew", "retain", "regrow"])
@fails_or_not
def test_change_of_the_log_while_it_is_planned_is_planned_anew_or_told(
    step: str,
    change: str,
    fails: str,
    log: Log,
    reads_only: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan is of one log: its tasks read this log, or report that it is gone."""
    monkeypatch.setattr(tasks, "FEW_RECORDS", 0)
    monkeypatch.setattr(stores, "_CACHE", StoreCache())
    reader = batch_reader(log, failOnDataLoss=fails)
    reads_only(step, lambda: getattr(log, change)(*([] if change == "renew" else [50])))
    try:
        found = delivered(reader, reader.partitions())
    except (DataLossError, NotSharedError):
        return
    lives = {of[0] for of, _ in found}
    assert len(lives) <= 1
    offsets = [offset for _, offset in found]
    assert offsets == sorted(set(offsets))
    if change == "regrow":
        assert [of for of, offset in found if offset < 50] == ["0.0"] * 50
        assert {of for of, offset in found if offset >= 50} in (set(), {"0.1"})


@pytest.mark.parametrize("step", ["start_offset", "end_offset", "segments"])
def test_topic_that_goes_while_it_is_planned_is_named(
    step: str, log: Log, reads_only: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not silently left out of a batch query."""
    monkeypatch.setattr(tasks, "FEW_RECORDS", 0)
    monkeypatch.setattr(stores, "_CACHE", StoreCache())
    reads_only(step, log.remove)
    with pytest.raises((ConfigError, DataLossError), match="orders"):
        batch_reader(log).partitions()


def test_retention_while_transactions_are_looked_for_is_no_deletion(
    log: Log, reads_only: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted offset is a LookupError, too: the partition still exists."""
    calls = []

    def gone(views: PartitionViews, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise logstore.OffsetOutOfRangeError(0, 50, 100)
        return bounds(views, *args, **options)

    bounds = PartitionViews.bounds
    monkeypatch.setattr(PartitionViews, "bounds", gone)
    reader = batch_reader(log, isolation="read_committed")
    assert delivered(reader, reader.partitions()) == of_log("0.0", 100)


# ------------------------------------------------------------------- between batches


@needs_limits
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@fails_or_not
def test_tail_that_was_cut_and_has_grown_again_is_a_loss(
    is_restarted: bool, fails: str, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """It has grown past the end of the last batch: its offsets are other records now.
    The query continues at the cut: later records were never read."""
    reader = stream_reader(log, failOnDataLoss=fails)
    start = reader.initialOffset()
    end = next_batch(reader, start)
    assert delivered(reader, reader.partitions(start, end)) == of_log("0.0", 100)
    log.regrow(60)
    if is_restarted:
        reader = stream_reader(log, failOnDataLoss=fails)
    if fails == "true":
        with pytest.raises(DataLossError, match=r"read up to 100 already.*cut at 60"):
            next_batch(reader, end)
        return
    after = next_batch(reader, end)
    assert "cut at 60" in caplog.text
    assert delivered(reader, reader.partitions(end, after)) == of_log("0.1", 60, 120)
    caplog.clear()
    assert next_batch(reader, after) == after
    assert caplog.text == ""


@needs_limits
def test_tail_that_was_cut_just_to_where_it_was_read_is_none(log: Log) -> None:
    """Nor is a cut after that offset."""
    reader = stream_reader(log)
    end = next_batch(reader, reader.initialOffset())
    log.append(50)
    log.regrow(120)
    log.regrow(100)
    after = next_batch(reader, end)
    assert delivered(reader, reader.partitions(end, after)) == of_log("0.2", 100, 190)


@needs_limits
def test_writer_that_comes_and_goes_is_no_cut(log: Log) -> None:
    """This holds for any number of openings: each may have followed a power cut."""
    reader = stream_reader(log)
    end = next_batch(reader, reader.initialOffset())
    log.store.close()
    for _ in range(40):
        with logstore.open(log.store.path) as store:
            store.topic("orders")[0].append_many([b"0.0@0"] * 10)
    after = next_batch(stream_reader(log), end)
    assert after["orders"] == {"0": 500}
    for number in range(3):  # and a batch while it writes
        with logstore.open(log.store.path) as store:
            store.topic("orders")[0].append_many([b"0.0@0"] * 10)
            after = next_batch(stream_reader(log), after)
        assert after["orders"] == {"0": 510 + 10 * number}
    assert next_batch(stream_reader(log), after) == after


@needs_limits
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@fails_or_not
def test_topic_made_anew_between_two_batches_is_a_loss(
    is_restarted: bool, fails: str, log: Log
) -> None:
    """This holds even if it is longer than the previous one: it is read from its
    beginning, or from the end of the old one if it may be the same."""
    reader = stream_reader(log, failOnDataLoss=fails)
    end = next_batch(reader, reader.initialOffset())
    log.renew()
    if is_restarted:
        reader = stream_reader(log, failOnDataLoss=fails)
    if fails == "true":
        with pytest.raises(DataLossError, match="created again"):
            next_batch(reader, end)
        return
    after = next_batch(reader, end)
    found = delivered(reader, reader.partitions(end, after))
    assert found in (of_log("1.0", 120), of_log("1.0", 100, 120))
    assert next_batch(reader, after) == after


@needs_limits
@pytest.mark.parametrize("change", ["regrow", "renew", "cut", "remove", "retain"])
@fails_or_not
def test_change_between_planning_and_tasks_of_a_stream_is_a_loss(
    change: str, fails: str, log: Log
) -> None:
    """The change comes between latestOffset and partitions, or between partitions and
    its tasks."""
    for step in range(2):
        reader = stream_reader(log, failOnDataLoss=fails)
        start = reader.initialOffset()
        end = next_batch(reader, start)
        of, stop = f"{log.life}.{log.cuts}", end["orders"]["0"]
        planned = reader.partitions(start, end) if step else None
        low = [] if change in ("renew", "remove") else [stop - 30]
        getattr(log, change)(*low)
        try:
            found = delivered(reader, planned or reader.partitions(start, end))
        except (DataLossError, NotSharedError):
            assert fails == "true"
        else:
            assert fails == "false"
            if change in ("renew", "remove"):
                assert found == []
            elif change == "retain":
                assert found == of_log(of, stop - 30, stop)
            else:
                assert [offset for _, offset in found] == [*range(stop - 30)]
        if change != "regrow":
            return
        log.renew()


@needs_limits
@fails_or_not
def test_cut_below_the_target_of_available_now_moves_the_target(
    fails: str, log: Log
) -> None:
    """Unread records are no loss; their replacements are for the next run."""
    options = {"maxOffsetsPerTrigger": "30", "failOnDataLoss": fails}
    reader = stream_reader(log, **options)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = next_batch(reader, start)
    assert delivered(reader, reader.partitions(start, end)) == of_log("0.0", 30)
    log.regrow(50)
    found = []
    while (after := next_batch(reader, end)) != end:
        found += delivered(reader, reader.partitions(end, after))
        end = after
    assert found == of_log("0.0", 30, 50)
    reader = stream_reader(log, **options)
    after = next_batch(reader, end)
    assert delivered(reader, reader.partitions(end, after)) == of_log("0.1", 50, 80)


@needs_limits
def test_partition_that_goes_while_its_bytes_are_counted_is_a_loss(
    log: Log, reads_only: Any
) -> None:
    """maxBytesPerTrigger adds a step at which it may be gone."""
    for fails in ("true", "false"):
        reader = stream_reader(log, maxBytesPerTrigger="100", failOnDataLoss=fails)
        start = reader.initialOffset()
        reads_only("segments", log.remove)
        if fails == "true":
            with pytest.raises(DataLossError, match="orders-0: deleted"):
                next_batch(reader, start)
            log._create()
            log.append(10)
            log.partition.flush()
        else:
            assert "orders" not in next_batch(reader, start)


# ------------------------------------------------------------------------- the text


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"orders": {"0": 1.5}}',
        '{"orders": {"0": true}}',
        '{"orders": {"0": -1}}',
        '{"orders": {"0": 9223372036854775808}}',
        '{"orders": {"00": 1}}',
        '{"orders": {"0": 1}, "@logs": {"orders-0": "x"}}',
        '{"orders": {"0": 1}, "@logs": 5}',
        '{"logOffset": 5}',
    ],
)
def test_checkpoint_of_something_else_is_named(text: str, log: Log) -> None:
    """It has no offsets of this source; its contents are shown."""
    reader, given = stream_reader(log), json.loads(text)
    with pytest.raises(ConfigError, match="checkpoint is that of another"):
        reader.partitions(given, given)


@needs_limits
def test_checkpoint_without_marks_goes_on(log: Log) -> None:
    """An earlier version wrote it, or the log has no state of logstore's."""
    reader = stream_reader(log)
    start = {"orders": {"0": 40}}
    end = next_batch(reader, start)
    assert delivered(reader, reader.partitions(start, end)) == of_log("0.0", 40, 100)


def test_offsets_of_a_progress_report_can_be_given_as_a_start(log: Log) -> None:
    """They include the marks."""
    text = json.dumps(stream_reader(log).initialOffset())
    assert "@logs" in text
    reader = batch_reader(log, startingOffsets=text)
    assert delivered(reader, reader.partitions()) == of_log("0.0", 100)


# ---------------------------------------------------------------------------- damage


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_batch_query_that_ends_where_damage_begins_reads_all_of_it(
    codec: str, isolation: str, writer: logstore.Store
) -> None:
    """Damage after the end of the query does not matter."""
    config = logstore.TopicConfig(message_format=2, compression_type=codec)
    partition = writer.create_topic("orders", config=config)[0]
    for _ in range(10):
        partition.append_many([b"v" * 50] * 10)
    (damaged,) = (b for b in partition.read_batches() if b.base_offset == 50)
    path, position = partition.segments[0].path, damaged.position + 70
    writer.close()
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    given = {
        "path": writer.path,
        "subscribe": "orders",
        "isolation": isolation,
        "endingOffsets": '{"orders": {"0": 50}}',
    }
    reader = BatchReader(SCHEMA, parse(given, streaming=False))
    found = [
        offset
        for task in reader.partitions()
        for batch in reader.read(task)
        for offset in batch.column("offset").to_pylist()
    ]
    assert found == [*range(50)]
    given["endingOffsets"] = "latest"
    reader = BatchReader(SCHEMA, parse(given, streaming=False))
    with pytest.raises(LogStoreError, match="checksum"):
        for task in reader.partitions():
            list(reader.read(task))
