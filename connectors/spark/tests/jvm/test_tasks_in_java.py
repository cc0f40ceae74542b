"""Tasks of damaged logs, read by Java without Spark: the same rows as read by
Python."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import logstore
from support.broker_logs import TICK_S
from support.damage import frames, overwrite
from support.java_tasks import JavaTasks, by_python, compile_check, no_java, plan_of
from support.transactions import batch
from support.values import config_of

T = 1_700_000_000_000


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if no_java():
        pytest.skip(no_java())
    folder = tmp_path_factory.mktemp("classes")
    compile_check(folder)
    return folder


@pytest.fixture(scope="module")
def java(classes: Path) -> Iterator[JavaTasks]:
    tasks = JavaTasks(classes)
    yield tasks
    tasks.close()


def log_with_gaps(path: Path) -> Path:
    """A compacted log: offsets 1 to 199 in its first segment, 0 is gone. Returns that
    file."""
    config = logstore.TopicConfig(message_format=2, cleanup_policy="compact")
    with logstore.open(path) as store:
        partition = store.create_topic("orders", config=config)[0]
        for n in range(200):
            partition.append(b"value %03d" % n, key=b"k%03d" % n)
        partition.roll()
        partition.append(b"newer", key=b"k000")
        partition.roll()
        partition.append(b"end", key=b"end")
        partition.compact(force=True)
    return path / "orders-0" / f"{0:020d}.log"


def zeroed(log: Path, first: int) -> None:
    overwrite(log, first, bytes(log.stat().st_size - first))


def flipped(log: Path, number: int) -> None:
    """One bit of the offset of a batch, which no checksum covers."""
    at = frames(log)[number].pos + 7
    overwrite(log, at, bytes([log.read_bytes()[at] ^ 64]))


def swapped(log: Path, number: int) -> None:
    """Two batches of one size."""
    one, two = frames(log)[number : number + 2]
    data = log.read_bytes()
    first, second = (data[f.pos : f.pos + f.size] for f in (one, two))
    assert one.size == two.size
    overwrite(log, one.pos, second + first)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "the tail is zero": lambda log: zeroed(log, frames(log)[-10].pos),
    "all is zero": lambda log: zeroed(log, 0),
    "an offset is too high": lambda log: flipped(log, 10),
    "an offset is too low": lambda log: flipped(log, 100),
    "batches are swapped": lambda log: swapped(log, 50),
}


@pytest.mark.parametrize("end", ["-1", "60"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_a_log_with_gaps_is_the_error_of_python(
    java: JavaTasks, tmp_path: Path, damage: str, end: str
) -> None:
    """Zeros are never the end; a wrong offset shows in the next batch, even if that
    seems to be after the range."""
    log = log_with_gaps(tmp_path / "store")
    options = {"path": str(tmp_path / "store"), "subscribe": "orders"}
    options["endingOffsets"] = f'{{"orders": {{"0": {end}}}}}'
    tasks = plan_of(options)["tasks"]
    sound = java.read(tasks, options)
    assert sound == by_python(tasks, options)
    assert sound.ranges_of_python == 0
    DAMAGES[damage](log)
    tasks = plan_of(options)["tasks"]
    in_python, in_java = by_python(tasks, options), java.read(tasks, options)
    assert in_java.error == in_python.error
    assert in_java.rows == in_python.rows[: len(in_java.rows)]
    if end == "-1" or damage == "an offset is too high":
        assert in_java.error.startswith("CorruptRecordError: ")


@pytest.mark.parametrize(("magic", "codec"), [(2, "none"), (1, "none"), (1, "gzip")])
@pytest.mark.parametrize("other", [62, 78])
def test_batch_where_a_task_begins_has_its_first_offset(
    java: JavaTasks, tmp_path: Path, magic: int, codec: str, other: int
) -> None:
    """The log has no gaps: a later batch in its place is no beginning, and no end of
    the records to read if it is after the range."""
    config = config_of(magic, codec, index_interval_bytes=1)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config)[0]
        for n in range(40):
            partition.append_many([b"value %03d" % n] * 2)
    options = {"path": str(tmp_path), "subscribe": "orders"}
    options |= {"minPartitions": "4", "endingOffsets": '{"orders": {"0": 72}}'}
    time.sleep(TICK_S)
    tasks = plan_of(options)["tasks"]
    sound = java.read(tasks, options)
    assert sound == by_python(tasks, options)
    assert len(sound.rows) == 72
    assert sound.ranges_of_python == 0
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    found = frames(log)
    each = len(found) / 80  # a message of magic 1 has one record
    # Of wrappers it is the one before, since their first offset is not in their header.
    (place,) = (piece["position"] for piece in tasks[-1]["ranges"][0]["pieces"])
    (at,) = (frame for frame in found if frame.pos == place)
    data, later = log.read_bytes(), found[int(other * each)]
    two = data[later.pos : later.pos + later.size]
    one = data[at.pos : at.pos + at.size]
    between = data[at.pos + at.size : later.pos]
    overwrite(log, at.pos, two + between + one)
    in_python, in_java = by_python(tasks[-1:], options), java.read(tasks[-1:], options)
    assert in_java.error == in_python.error
    assert in_java.rows == in_python.rows[: len(in_java.rows)]
    assert in_python.error or in_java.offsets == list(range(54, 72))


@pytest.mark.timeout(60)
def test_more_zeros_than_the_buffer_has_end_the_read(
    java: JavaTasks, tmp_path: Path
) -> None:
    """A lost extent of a log without gaps, from the beginning of a batch on."""
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(40):
            partition.append_many([b"x" * 1000] * 100)
        partition.roll()
        partition.append(b"end")
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    overwrite(log, frames(log)[10].pos, bytes(2_500_000))
    options = {"path": str(tmp_path), "subscribe": "orders"}
    tasks = plan_of(options)["tasks"]
    in_java = java.read(tasks, options)
    assert in_java.error == by_python(tasks, options).error != ""
    assert len(in_java.rows) == 1000


def test_header_names_that_are_no_utf8_are_those_of_python(
    java: JavaTasks, tmp_path: Path
) -> None:
    """Each wrong byte is replaced as Python does it: a surrogate is three of them."""
    edges = (0x00, 0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, 0xEF)
    edges += (0xF0, 0xF4, 0xF5, 0xFF)
    names = [bytes([a, b, c]) for a in edges for b in edges for c in edges]
    names += [b"\xed\xa0", b"\xed", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf0\x9f\x98\x80"]
    (tmp_path / "orders-0").mkdir()
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    log.write_bytes(batch(0, [(b"", b"")], -1, control=False, headers=names))
    time.sleep(2 * TICK_S)  # else its time of change says nothing, and Python reads it
    options = {"path": str(tmp_path), "subscribe": "orders", "includeHeaders": "true"}
    tasks = plan_of(options)["tasks"]
    in_java = java.read(tasks, options)
    (row,) = in_java.rows
    assert row == by_python(tasks, options).rows[0]
    assert len(row[-1]) == len(names)
    assert in_java.ranges_of_python == 0


def test_path_without_a_name_in_the_locale_is_left_to_python(
    classes: Path, tmp_path: Path
) -> None:
    """A container without LANG has the locale C."""
    path = tmp_path / "D\u00e4ten"
    with logstore.open(path) as store:
        store.create_topic("orders")[0].append_many([b"a", b"b"])
    options = {"path": str(path), "subscribe": "orders"}
    tasks = plan_of(options)["tasks"]
    environment = {k: v for k, v in os.environ.items() if k != "LANG"}
    in_c = JavaTasks(classes, environment | {"LC_ALL": "C"})
    in_java = in_c.read(tasks, options)
    in_c.close()
    assert in_java.offsets == [0, 1]
    assert in_java.ranges_of_python == 1


def test_error_of_a_task_is_of_a_class_that_every_driver_has(
    java: JavaTasks, tmp_path: Path
) -> None:
    """The driver's class loader may lack the jar, and could not show other classes."""
    log = log_with_gaps(tmp_path)
    overwrite(log, frames(log)[5].pos + 70, b"\xff\xff")
    options = {"path": str(tmp_path), "subscribe": "orders"}
    outcome = java.read(plan_of(options)["tasks"], options)
    # `JavaTasks` omits only the class name java.lang.RuntimeException.
    assert outcome.error.startswith("CorruptRecordError: ")
    assert str(log) in outcome.error
