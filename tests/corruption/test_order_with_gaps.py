"""Wrong offsets in logs that may have gaps: no checksum covers an offset, and only the
next batch shows it. No way of reading skips the records that such an offset hides.
"""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

import pytest

import logstore
from support.damage import frames
from support.transactions import batch

VALUES = 200
T = 1_700_000_000_000
# The base offset of a wrapper (compressed, of magic 0 or 1) is only in its content.
FORMATS = [(2, "none"), (2, "gzip"), (1, "none"), (1, "gzip"), (0, "gzip")]


@pytest.fixture(scope="module", params=FORMATS, ids=str)
def compacted(tmp_path_factory, request):
    """(a store with a compacted log without records 0 and 99, positions of its
    batches)."""
    path = tmp_path_factory.mktemp("compacted")
    magic, compression = request.param
    config = logstore.TopicConfig(
        message_format=magic,
        compression_type=compression,
        cleanup_policy="compact",
        index_interval_bytes=500,
    )
    with logstore.open(path) as store:
        partition = store.create_topic("c", config=config)[0]
        for number in range(VALUES):
            time = None if magic == 0 else T + number
            key = b"k%03d" % number
            partition.append(b"value %03d" % number, key=key, timestamp_ms=time)
        partition.roll()
        partition.append(b"newer", key=b"k000")
        partition.append(b"newer", key=b"k099")
        partition.roll()
        partition.append(b"end", key=b"end")
        partition.compact(force=True)
        places = {
            batch.base_offset: (batch.position, batch.position + batch.size_bytes)
            for batch in partition.read_batches()
            if batch.base_offset < VALUES
        }
    return path, places


def right(offset):
    """The value that the record at an offset has."""
    if offset < VALUES:
        return b"value %03d" % offset
    return (b"newer", b"newer", b"end")[offset - VALUES]


def swapped(data, first, second):
    (a, b), (c, d) = first, second
    return data[:a] + data[c:d] + data[a:b] + data[d:]


def overwritten(data, first, second):
    (a, b), (c, d) = first, second
    return data[:a] + data[c:d] + data[b:]


def flipped(data, first, second, bit=64):
    at = first[0] + 7
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def flipped_below(data, first, second):
    return flipped(data, first, second, 32)  # 51 is 19


DAMAGES = (swapped, overwritten, flipped, flipped_below)
# Lost offsets. If two batches have changed places, either may be the wrong one.
LOST = {swapped: (51, 53)}


def fetched(path, max_bytes, policy):
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("c")[0]
        offset = partition.start_offset
        while offset < partition.end_offset:
            chunk = partition.fetch(offset, max_bytes=max_bytes, on_corruption=policy)
            yield from chunk
            offset = chunk.next_offset


def consumed(path, policy):
    group = f"g{time.monotonic_ns()}"
    options = {"group": group, "topics": ["c"], "reset": "earliest"}
    with logstore.Consumer(path, **options, on_corruption=policy) as consumer:
        while found := consumer.poll(max_records=7, timeout_ms=10):
            for records in found.values():
                yield from records


def topic_read(path, policy):
    with logstore.open(path, read_only=True) as store:
        yield from store.topic("c").read(on_corruption=policy)


def of_partition(way):
    """Records that a method of a partition gives, as records, batches, or columns."""

    def records(path, policy):
        with logstore.open(path, read_only=True) as store:
            for found in way(store.topic("c")[0], policy):
                if isinstance(found, logstore.Record):
                    yield found
                elif isinstance(found, logstore.RecordBatch):
                    yield from found
                else:
                    for row in found.select(["offset", "value"]).to_pylist():
                        yield SimpleNamespace(**row)

    return records


WAYS = {
    "fetch": lambda path, policy: fetched(path, 1 << 20, policy),
    "fetch of one byte": lambda path, policy: fetched(path, 1, policy),
    "Consumer": consumed,
    "topic": topic_read,
    "read": of_partition(lambda log, policy: log.read(on_corruption=policy)),
    "read_committed": of_partition(
        lambda log, policy: log.read(isolation="read_committed", on_corruption=policy)
    ),
    "follow": of_partition(
        lambda log, policy: log.follow(timeout=0.01, on_corruption=policy)
    ),
    "batches": of_partition(lambda log, policy: log.read_batches(on_corruption=policy)),
    "Arrow": of_partition(lambda log, policy: log.read_arrow(on_corruption=policy)),
    "Arrow, threads": of_partition(
        lambda log, policy: log.read_arrow(threads=3, on_corruption=policy)
    ),
    "Arrow views": of_partition(
        lambda log, policy: log.read_arrow(view=True, on_corruption=policy)
    ),
    "read to a stop": of_partition(
        lambda log, policy: log.read(0, 100, on_corruption=policy)
    ),
    "read_committed to a stop": of_partition(
        lambda log, policy: log.read(
            0, 100, isolation="read_committed", on_corruption=policy
        )
    ),
    "batches to a stop": of_partition(
        lambda log, policy: log.read_batches(0, 100, on_corruption=policy)
    ),
}


def delivered_by(way, path, policy="raise"):
    """(The offsets that a way delivers, of records with the right value; its error)."""
    offsets: list[int] = []
    try:
        for record in way(path, policy):
            assert record.value == right(record.offset)
            offsets.append(record.offset)
    except logstore.CorruptRecordError as error:
        return offsets, error
    return offsets, None


@pytest.fixture
def damaged(compacted, request):
    """The store with the damage of the test's parameter at offset 51."""
    path, places = compacted
    log = path / "c-0" / f"{0:020d}.log"
    before = log.read_bytes()
    log.write_bytes(request.param(before, places[51], places[52]))
    yield path
    log.write_bytes(before)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("damaged", DAMAGES, indirect=True)
def test_wrong_offset_in_a_log_with_gaps_is_an_error(damaged, way, request):
    """The error names the first record that is not delivered, and the next deliverable
    one. No record is delivered under the offset of another one."""
    lost = LOST.get(request.node.callspec.params["damaged"], (51, 52))
    offsets, error = delivered_by(way, damaged)
    assert offsets == list(range(1, 51))
    assert (error.offset, error.next_offset) == lost


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("damaged", DAMAGES, indirect=True)
def test_wrong_offset_that_is_left_out_loses_what_verify_names(damaged, way, request):
    """The callback gets it once, with the offsets that the error names."""
    lost = LOST.get(request.node.callspec.params["damaged"], (51, 52))
    told: list[logstore.types.Damaged] = []
    offsets, error = delivered_by(way, damaged, lambda one: not told.append(one))
    assert error is None
    assert [(one.first, one.next_offset) for one in told] == [lost]
    assert (told[0].error.offset, told[0].error.next_offset) == lost
    end = 100 if offsets[-1] < 100 else VALUES + 3
    assert offsets == [n for n in range(1, end) if n != 99 and n not in range(*lost)]
    verified = logstore.verify(damaged, deep=True).problems
    named = [(p.first_offset, p.last_offset) for p in verified if p.kind == "offsets"]
    assert named == [(lost[0], lost[1] - 1)]


@pytest.mark.parametrize("damaged", DAMAGES, indirect=True)
def test_get_of_what_a_wrong_offset_hides_is_an_error(damaged):
    """No intact record counts as removed by compaction, whatever is in its place."""
    with logstore.open(damaged, read_only=True) as store:
        partition = store.topic("c")[0]
        for offset in range(1, VALUES):
            if offset == 99:
                continue
            try:
                assert partition.get(offset).offset == offset
            except logstore.CorruptRecordError:
                continue


@pytest.mark.parametrize("damaged", [flipped], indirect=True)
def test_get_of_a_wrong_offset_in_a_log_with_gaps_is_an_error(damaged):
    """The record is neither reported as removed by compaction, nor returned for the
    offset that it has now. Others are found."""
    with logstore.open(damaged, read_only=True) as store:
        partition = store.topic("c")[0]
        with pytest.raises(logstore.CorruptRecordError):
            partition.get(51)
        with contextlib.suppress(logstore.CorruptRecordError):  # the search meets it
            assert partition.get(115).value == b"value 115"
        for offset in (1, 50, 116, VALUES - 1):
            assert partition.get(offset).value == b"value %03d" % offset


@pytest.mark.parametrize("damaged", [flipped], indirect=True)
def test_time_of_a_wrong_offset_in_a_log_with_gaps_is_an_error(damaged):
    """A read from the offset found would miss the records in between."""
    with logstore.open(damaged, read_only=True) as store:
        partition = store.topic("c")[0]
        if partition.get(1).timestamp_ms != T + 1:
            pytest.skip("magic 0 has no times")
        with pytest.raises(logstore.CorruptRecordError):
            partition.offset_for_time(T + 51)
        for number in (1, 50, 116, VALUES - 1):
            assert partition.offset_for_time(T + number) == number


@pytest.mark.parametrize("way", [way for name, way in WAYS.items() if "stop" in name])
def test_wrong_offset_behind_the_stop_does_not_concern_a_read(compacted, way):
    """The batch at the stop is right: the offset of the next one is below all of them,
    so that is the wrong one, and nothing is hidden before the stop."""
    path, places = compacted
    log = path / "c-0" / f"{0:020d}.log"
    before = log.read_bytes()
    log.write_bytes(flipped(before, places[101], places[102]))  # it says 37
    try:
        assert delivered_by(way, path) == (list(range(1, 99)), None)
    finally:
        log.write_bytes(before)


@pytest.mark.parametrize("damaged", [flipped], indirect=True)
def test_consumer_behind_a_wrong_offset_raises_until_it_seeks(damaged):
    """The records hidden by the offset are below the position: a later poll does not
    skip them silently."""
    options = {"group": "h", "topics": ["c"], "reset": "earliest"}
    with logstore.Consumer(damaged, **options) as consumer:
        with pytest.raises(logstore.CorruptRecordError):
            for _ in range(VALUES):
                consumer.poll(timeout_ms=1000)
        with pytest.raises(logstore.CorruptRecordError):
            consumer.poll(timeout_ms=1000)
        consumer.seek(("c", 0), 150)
        found = consumer.poll(timeout_ms=1000)
    assert next(iter(found.values()))[0].offset == 150


@pytest.mark.parametrize("offset", [197, 198, 199])
def test_fetch_behind_batches_that_have_changed_places(compacted, offset):
    """Batches 197 to 199 are in reverse order: a fetch at one of them must not take its
    offset for a gap before the batch at 200."""
    path, places = compacted
    log = path / "c-0" / f"{0:020d}.log"
    before = log.read_bytes()
    three = [before[slice(*places[number])] for number in (199, 198, 197)]
    behind = before[places[199][1] :]
    log.write_bytes(before[: places[197][0]] + b"".join(three) + behind)
    try:
        with logstore.open(path, read_only=True) as store:
            partition = store.topic("c")[0]
            try:
                found = [record.offset for record in partition.fetch(offset)]
            except logstore.CorruptRecordError:
                found = [offset]
            assert found[0] == offset
            assert partition.fetch(200).next_offset > 200
    finally:
        log.write_bytes(before)


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_fetch_does_not_pass_over_what_lies_behind_its_segment(tmp_path, max_bytes):
    """The next segment begins at an offset that a batch before it has, too."""
    directory = tmp_path / "c-0"
    directory.mkdir(mode=0o700)
    rows = [(b"k", b"v")]
    for name, offsets in ((0, (0, 1, 2)), (2, (3, 4))):
        data = b"".join(batch(n, rows, 0, control=False) for n in offsets)
        (directory / f"{name:020d}.log").write_bytes(data)
    delivered: list[int] = []
    with pytest.raises(logstore.CorruptRecordError):
        delivered += [one.offset for one in fetched(tmp_path, max_bytes, "raise")]
    assert delivered == [0, 1][: len(delivered)]


def log_of(tmp_path, *pieces, base=0):
    """A segment of the log of a broker."""
    directory = tmp_path / "c-0"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / f"{base:020d}.log").write_bytes(b"".join(pieces))


def one(offset, value=b"v"):
    """A batch of one record."""
    return batch(offset, [(b"k", value)], 0, control=False)


def skipped(path):
    with logstore.open(path, read_only=True) as store:
        return [
            record.offset for record in store.topic("c")[0].read(on_corruption="skip")
        ]


def test_batch_among_damaged_bytes_is_not_removed_by_compaction(tmp_path):
    """Blocks have changed places: batch 6 follows batch 7, in the middle of the former
    batch 8."""
    log_of(tmp_path, *map(one, range(6)), one(7), one(8)[:40], one(6), one(9))
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("c")[0]
        found = []
        with pytest.raises(logstore.CorruptRecordError) as caught:
            found += [record.offset for record in partition.read(2)]
        assert caught.value.offset == 6
        with pytest.raises(logstore.CorruptRecordError) as caught:
            partition.get(6)
        assert caught.value.offset == 6
        assert partition.get(7).offset == 7
    assert skipped(tmp_path) == [*range(6), 7, 9]
    problems = logstore.verify(tmp_path).problems
    assert [(p.kind, p.first_offset, p.last_offset) for p in problems] == [
        ("damaged-batch", 8, 8),
        ("offsets", 6, 6),
    ]


def test_batch_inside_a_damaged_value_is_content(tmp_path):
    """The value of a damaged batch is a batch of another log, with offsets that
    compaction has removed from this one."""
    bad = one(8, one(6) + b"more")
    log_of(tmp_path, *map(one, range(6)), one(7), bad[:-1] + b"\xff", one(9))
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("c")[0]
        with pytest.raises(logstore.CorruptRecordError) as caught:
            list(partition.read())
        assert caught.value.offset == 8
        with pytest.raises(logstore.errors.RecordNotFoundError):
            partition.get(6)
    assert skipped(tmp_path) == [*range(6), 7, 9]
    (problem,) = logstore.verify(tmp_path).problems
    assert (problem.first_offset, problem.last_offset) == (8, 8)


def test_verify_takes_no_batch_that_readers_do_not_see_for_the_end_of_damage(tmp_path):
    """Batch 9 of another place is in the middle of the former batches 2 and 3; the next
    segment begins at offset 5."""
    log_of(tmp_path, one(0), one(1), one(2)[:40], one(9), one(3)[40:], one(4))
    log_of(tmp_path, one(5), one(6), base=5)
    assert skipped(tmp_path) == [0, 1, 4, 5, 6]
    problems = logstore.verify(tmp_path).problems
    assert [(p.first_offset, p.last_offset) for p in problems] == [(2, 3)]


def test_records_behind_the_end_of_a_sealed_segment_are_not_removed_by_compaction(
    compacted,
):
    """Bytes were inserted: the last batch is now beyond the size that the segment was
    sealed with, and another one ends there."""
    path, _ = compacted
    log = path / "c-0" / f"{0:020d}.log"
    before = log.read_bytes()
    last, block, begin = VALUES + 1, frames(log)[-1].size, frames(log)[10].pos
    log.write_bytes(before[:begin] + b"\1" * block + before[begin:])
    try:
        with logstore.open(path, read_only=True) as store:
            partition = store.topic("c")[0]
            for way in (
                lambda: partition.get(last),
                lambda: list(partition.fetch(last)),
                lambda: list(partition.read(last)),
            ):
                with pytest.raises(logstore.CorruptRecordError):
                    way()
            told = []
            found = [
                record.offset
                for record in partition.read(
                    on_corruption=lambda damaged: told.append(damaged) or True
                )
            ]
        assert last not in found
        assert any(one.first <= last < one.next_offset for one in told)
    finally:
        log.write_bytes(before)


@pytest.mark.parametrize(
    "way", [way for name, way in WAYS.items() if "stop" not in name]
)
def test_intact_log_with_gaps_is_read_whole(compacted, way):
    path, _ = compacted
    intact = [*range(1, 99), *range(100, VALUES + 3)]
    assert delivered_by(way, path) == (intact, None)
