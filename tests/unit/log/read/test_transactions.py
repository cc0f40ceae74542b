"""Transactions as readers see them: committed records, the begin of the first open
transaction, and the cost of finding it."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.log.read.transactions import ended_transactions
from logstore.store.opening import open_store
from support.read_ways import offsets_by_way
from support.transactions import batch, marker

COMMITTED: Any = {"isolation": "read_committed"}


class Log:
    """A log of transactions as a broker would write it, and the expected results."""

    def __init__(self) -> None:
        self.data = b""
        self.end = 0
        self.open: dict[int, list[int]] = {}
        self.committed: list[int] = []

    def write(self, producer: int, count: int = 1) -> None:
        rows = [(b"k", b"%d" % (self.end + at)) for at in range(count)]
        self.data += batch(self.end, rows, producer, control=False)
        held = self.open.setdefault(producer, [])
        held += range(self.end, self.end + count)
        self.end += count

    def finish(self, producer: int, *, commit: bool) -> None:
        self.data += marker(self.end, producer, commit=commit)
        held = self.open.pop(producer, [])
        self.committed += held if commit else []
        self.end += 1

    @property
    def stable(self) -> int:
        return min((held[0] for held in self.open.values()), default=self.end)

    def wanted(self, start: int = 0) -> list[int]:
        return sorted(o for o in self.committed if start <= o < self.stable)

    def put(self, store: Path) -> None:
        directory = store / "t-0"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / f"{0:020d}.log").write_bytes(self.data)

    def do_something(self, chance: random.Random) -> None:
        producer = chance.randrange(3)
        if producer in self.open and chance.random() < 0.4:
            self.finish(producer, commit=chance.random() < 0.5)
        else:
            self.write(producer, chance.randrange(1, 4))


def damaged(data: bytes) -> bytes:
    """The bytes of a batch with another value at their end."""
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def opened(path: Path, files: Any = None) -> tuple[logstore.Store, logstore.Partition]:
    store = open_store(path, read_only=True, _files=files or Files())
    return store, store.topic("t")[0]


@pytest.mark.parametrize("seed", range(40))
def test_all_ways_of_reading_give_what_is_committed_below_the_first_open_transaction(
    tmp_path: Path, seed: int
) -> None:
    chance, log = random.Random(seed), Log()
    for _ in range(chance.randrange(1, 25)):
        log.do_something(chance)
    log.put(tmp_path)
    committed = {"isolation": "read_committed"}
    store, p = opened(tmp_path)
    with store:
        assert p.last_stable_offset() == log.stable
        for start in {0, log.end // 2, log.stable, log.end}:
            wanted = log.wanted(start)
            assert [r.offset for r in p.read(start, **committed)] == wanted
            found = p.read_batches(start, **committed)
            records = itertools.chain.from_iterable(found)
            assert [r.offset for r in records if r.offset >= start] == wanted
            follower = p.follow(start, timeout=0, **committed)
            assert [r.offset for r in follower] == wanted
            for view in (False, True):
                table = p.read_arrow(start, view=view, **committed).read_all()
                table.validate(full=True)
                assert table["offset"].to_pylist() == wanted
                values = [int(v) for v in table["value"].to_pylist()]
                assert values == wanted
        for max_bytes in (1, 150, 1 << 20):
            pos, got = 0, []
            while True:
                chunk = p.fetch(pos, max_bytes, isolation="read_committed")
                first = [record.offset for record in chunk]
                assert [record.offset for record in chunk] == first
                got += first
                if chunk.next_offset == pos:
                    break
                pos = chunk.next_offset
                assert pos <= log.stable
            assert (pos, got) == (log.stable, log.wanted())


# Batches of two logs as brokers left them, of which a fetch once went past the last
# stable offset: "4" has four records of no transaction, "7+2" two of producer 7, "7c"
# and "7a" are its commit and its abort, "|" begins a segment.
LOGS = {
    6: """4 7+2 9+5 7c 8+2 7+5 9+2 8+3 8a 7+3 2 5 3 2 2 7+5 8+3 8c 1 2 7c 8+4 8+4 9+4
        7+4 | 8c 9+3 9+5 5 4 5 7+2 1 | 8+2 7+3 2 8+2 9+1 7+3 9+4 7+4 7+4 8+3 4 9+1
        7+4""",
    10: """7+4 5 7a 9+2 7+3 2 5 7+5 5 8+3 2 7+1 | 7a 8a 5 1 8+1 7+5 8+2 7a 7+4 4 3
        | 8+4 7a 2 7+1 8+4 8+3 1 9+1 7a 7+2 7a 2 4 9+4 9+4 | 2 1 5 7+3 7c 4 7+3 9+3
        8c | 8+1""",
}
NO_PRODUCER = -1


def put_segments(text: str, directory: Path) -> Log:
    """Write the segments of one of `LOGS`."""
    log = Log()
    for segment in text.split("|"):
        log.data, base = b"", log.end
        for token in segment.split():
            if token.isdigit():
                log.write(NO_PRODUCER, int(token))
                log.committed += log.open.pop(NO_PRODUCER)
            elif "+" in token:
                producer, count = map(int, token.split("+"))
                log.write(producer, count)
            else:
                log.finish(int(token[:-1]), commit=token[-1] == "c")
        (directory / f"{base:020d}.log").write_bytes(log.data)
    return log


@pytest.mark.parametrize("max_bytes", [1, 100, 700, 1 << 20])
@pytest.mark.parametrize("stable", LOGS)
def test_fetches_end_at_the_last_stable_offset_of_a_log_of_several_segments(
    tmp_path: Path, stable: int, max_bytes: int
) -> None:
    """A consumer that continued above it would never get the records that commit
    later."""
    (tmp_path / "t-0").mkdir(mode=0o700)
    log = put_segments(LOGS[stable], tmp_path / "t-0")
    assert log.stable == stable
    store, p = opened(tmp_path)
    with store:
        assert p.end_offset == log.end
        pos, got = -1, []
        chunk = p.fetch(0, max_bytes, isolation="read_committed")
        while chunk.next_offset > pos:
            got += [record.offset for record in chunk]
            pos = chunk.next_offset
            chunk = p.fetch(pos, max_bytes, isolation="read_committed")
        assert pos == stable
        assert got == log.wanted()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_committed_is_read_behind_damage(tmp_path: Path, seed: int) -> None:
    """Transactions open before it count as ended; no open record is delivered."""
    chance, log = random.Random(seed), Log()
    places = []
    for _ in range(25):
        places.append((len(log.data), log.end))
        log.do_something(chance)
    pos, offset = places[chance.randrange(len(places) - 1)]
    behind = next(end for at, end in places if at > pos)
    data = bytearray(log.data)
    data[pos + 20] ^= 1  # of the checksum
    log.data = bytes(data)
    log.put(tmp_path)
    store, p = opened(tmp_path)
    committed = {"isolation": "read_committed"}
    with store:
        if p.end_offset < log.end:
            return  # it was the last
        with pytest.raises(logstore.CorruptRecordError):
            p.last_stable_offset()
        for _ in range(2):
            for start in sorted({behind, chance.randrange(behind, log.end), log.end}):
                held = [o for open_ in log.open.values() for o in open_ if o >= behind]
                stable = min(held, default=log.end)
                wanted = [o for o in sorted(log.committed) if start <= o < stable]
                assert [r.offset for r in p.read(start, **committed)] == wanted
                found = p.follow(start, timeout=0, **committed)
                assert [r.offset for r in found] == wanted
                table = p.read_arrow(start, **committed).read_all()
                assert table["offset"].to_pylist() == wanted
        skipped = [r.offset for r in p.read(1, on_corruption="skip", **committed)]
        assert not {o for o in skipped if offset <= o < behind}
        assert set(skipped) <= set(log.committed)


@pytest.mark.parametrize(
    ("size", "undecided"), [(1, 3), (500, 5)], ids=["may-be-marker", "is-no-marker"]
)
def test_what_is_committed_is_read_before_damage(
    tmp_path: Path, size: int, undecided: int
) -> None:
    """Each way delivers it from any start, and raises an error with the first offset
    that was not delivered: no record is lost for a reader that continues at
    `next_offset` after it has read the offsets between."""
    log = Log()
    for write in (
        lambda: log.write(-1),
        lambda: log.write(1),
        lambda: log.finish(1, commit=True),
        lambda: log.write(2),
        lambda: log.write(-1),
    ):
        write()
    log.data += damaged(batch(5, [(b"k", b"x" * size)], 3, control=False))
    log.end += 1
    log.finish(2, commit=True)
    log.write(-1)
    log.put(tmp_path)
    store, p = opened(tmp_path)
    with store:
        for start in (0, 1, 2, 3, 4):
            # Only a read that reaches a transaction must know its end.
            end = 5 if start > 3 else undecided
            wanted = [o for o in (0, 1, 3, 4) if start <= o < end]
            for way, offsets in offsets_by_way(p, start, **COMMITTED).items():
                got: list[int] = []
                with pytest.raises(logstore.CorruptRecordError) as caught:
                    got.extend(offsets)
                assert (way, got) == (way, wanted)
                assert (caught.value.offset, caught.value.next_offset) == (end, 6)
            stopped = p.read(start, 5, isolation="read_committed")
            if end == 5:
                assert [record.offset for record in stopped] == wanted
        for offset in (0, 1, 4):
            assert p.get(offset, isolation="read_committed").offset == offset
        for way, offsets in offsets_by_way(p, 6, **COMMITTED).items():
            assert (way, list(offsets)) == (way, [7])


def test_damage_that_hides_an_end_leaves_no_later_end_to_decide(
    tmp_path: Path,
) -> None:
    """The marker that aborts a transaction is damaged; the producer commits the next
    one. The aborted records are delivered by no way of reading."""
    log = Log()
    log.write(-1)
    log.write(1)
    log.data += damaged(marker(2, 1, commit=False))
    log.end += 1
    log.write(1)
    log.finish(1, commit=True)
    log.put(tmp_path)
    store, p = opened(tmp_path)
    with store:
        for start, wanted in ((0, [0]), (1, [])):
            for way, offsets in offsets_by_way(p, start, **COMMITTED).items():
                got: list[int] = []
                with pytest.raises(logstore.CorruptRecordError) as caught:
                    got.extend(offsets)
                assert (way, got) == (way, wanted)
                assert (caught.value.offset, caught.value.next_offset) == (1, 3)
        for way, offsets in offsets_by_way(p, 3, **COMMITTED).items():
            assert (way, list(offsets)) == (way, [3])


def test_damaged_end_counts_if_other_damage_follows_directly(tmp_path: Path) -> None:
    """The marker that aborts a transaction is damaged, and the next batch, in the next
    segment: it is too large for a marker. No way of reading delivers the aborted
    record."""
    log = Log()
    log.write(-1)
    log.write(1)
    log.data += damaged(marker(2, 1, commit=False))
    log.put(tmp_path)
    large = batch(3, [(b"k", b"x" * 500)], -1, control=False)
    log.data, log.end = damaged(large), 4
    log.write(1)
    log.finish(1, commit=True)
    (tmp_path / "t-0" / f"{3:020d}.log").write_bytes(log.data)
    store, p = opened(tmp_path)
    with store:
        for way, offsets in offsets_by_way(p, 0, **COMMITTED).items():
            got: list[int] = []
            with pytest.raises(logstore.CorruptRecordError) as caught:
                got.extend(offsets)
            assert (way, got, caught.value.offset) == (way, [0], 1)
        skipped = p.read(0, on_corruption="skip", isolation="read_committed")
        assert [record.offset for record in skipped] == [0]
        for way, offsets in offsets_by_way(p, 4, **COMMITTED).items():
            assert (way, list(offsets)) == (way, [4])


@pytest.mark.parametrize("bit", [62, 40, 4])
def test_wrong_offset_is_no_end_of_what_is_committed(tmp_path: Path, bit: int) -> None:
    """No checksum covers it: an offset past the segment, or past the batches that
    follow, does not end the search for transactions. A read after it needs none."""
    log = Log()
    places = []
    for _ in range(9):
        places.append(len(log.data))
        log.write(0, count=3)
        log.finish(0, commit=True)
    data = bytearray(log.data)
    data[places[2] + 7 - bit // 8] ^= 1 << bit % 8
    log.data = bytes(data)
    log.put(tmp_path)
    first, log.data = log.end, b""
    log.write(0, count=3)
    log.finish(0, commit=True)
    (tmp_path / "t-0" / f"{first:020d}.log").write_bytes(log.data)
    committed = {"isolation": "read_committed"}
    store, p = opened(tmp_path)
    with store:
        for stop in (None, log.end):
            with pytest.raises(logstore.CorruptRecordError):
                list(p.read(0, stop, **committed))
        for start in (first - 1, first):
            assert [r.offset for r in p.read(start, **committed)] == log.wanted(start)
        view = p._views.now(False)
        for end in (first // 2, first, log.end):
            with pytest.raises(logstore.CorruptRecordError):
                ended_transactions(view._replace(end_offset=end), 0, end)
        ended = ended_transactions(view, first, log.end)
        assert ended is not None
        assert ended.aborted == ()


@pytest.mark.parametrize("seed", range(10))
def test_follower_of_what_is_committed_gets_it_when_it_is(
    tmp_path: Path, seed: int
) -> None:
    """The search for the last stable offset begins at the former one, and is
    correct."""
    chance, log = random.Random(seed), Log()
    log.write(0)
    log.put(tmp_path)
    store, p = opened(tmp_path)
    with store:
        got = []
        for _ in range(15):
            for _ in range(3):
                log.do_something(chance)
            log.put(tmp_path)
            assert p.last_stable_offset() == log.stable
            begin = got[-1] + 1 if got else 0
            follower = p.follow(begin, timeout=0, isolation="read_committed")
            got += [record.offset for record in follower]
            assert got == log.wanted()


class Counting(Files):
    """Counts the bytes that are read."""

    bytes_read = 0

    def read(self, fd: int, buffer: Any, pos: int) -> int:
        n = super().read(fd, buffer, pos)
        self.bytes_read += n
        return n


def test_what_was_read_for_the_last_stable_offset_is_not_read_again(
    tmp_path: Path,
) -> None:
    """A fetch, and a look of a follower, read only new bytes, not all of the log."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2)
        p = store.create_topic("t", config=config)[0]
        for _ in range(20):
            p.append_many([b"x" * 1000] * 1000)
    (tmp_path / layout.OWNER).unlink()  # as if another program had written it
    files = Counting()
    store, p = opened(tmp_path, files)
    with store:
        offset = p.fetch(1, 4096, isolation="read_committed").next_offset
        assert files.bytes_read > 20_000_000
        files.bytes_read = 0
        for _ in range(20):
            chunk = p.fetch(offset, 4096, isolation="read_committed")
            offset = chunk.next_offset
        list(p.follow(p.end_offset, timeout=0.2, isolation="read_committed"))
        assert files.bytes_read < 30_000_000 / 2


@pytest.mark.parametrize("read_only", [True, False])
def test_log_that_logstore_wrote_is_not_read_for_the_last_stable_offset(
    tmp_path: Path, read_only: bool
) -> None:
    """It has no transactions: logstore writes none."""
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t")[0]
        for _ in range(5):
            p.append_many([b"x" * 1000] * 1000)
    files = Counting()
    with open_store(tmp_path, read_only=read_only, _files=files) as store:
        p = store.topic("t")[0]
        assert p.end_offset == 5000
        files.bytes_read = 0
        assert p.last_stable_offset() == 5000
        list(p.follow(2500, timeout=0, isolation="read_committed"))[-1:]
        assert files.bytes_read < 3_000_000  # the second half, and its lookups


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_of_a_broker_count_in_a_log_that_logstore_continues(
    tmp_path: Path, commit: bool
) -> None:
    """Only the broker's part is read for them, by each process, after each opening."""
    log = Log()
    log.write(0, 2)
    log.write(1, 200)
    log.finish(1, commit=True)
    if commit:
        log.finish(0, commit=True)
    log.put(tmp_path)
    stable = log.end if commit else 0
    with logstore.open(tmp_path) as store:
        p = store.topic("t")[0]
        for count in range(1000, 6000, 1000):
            p.append_many([b"x" * 1000] * 1000)
            expected = log.end + count if commit else stable
            assert p.last_stable_offset() == expected
    for read_only in (True, False):
        files = Counting()
        with open_store(tmp_path, read_only=read_only, _files=files) as store:
            p = store.topic("t")[0]
            assert p.end_offset == log.end + 5000
            files.bytes_read = 0
            assert p.last_stable_offset() == expected
            assert 0 < files.bytes_read < 600_000
            follower = p.follow(p.end_offset - 1, timeout=0, isolation="read_committed")
            assert len(list(follower)) == int(commit)


def test_appends_of_a_broker_to_an_open_log_are_read_for_their_transactions(
    tmp_path: Path,
) -> None:
    """A reader may have the log open as logstore's own when a broker takes it over."""
    with logstore.open(tmp_path) as store:
        p = store.create_topic("t")[0]
        p.append_many([b"x"] * 10)
    store, p = opened(tmp_path)
    with store:
        assert p.last_stable_offset() == 10
        log = Log()
        log.end = 10
        log.write(0, 3)
        with (tmp_path / "t-0" / f"{0:020d}.log").open("ab") as file:
            file.write(log.data)
        assert (p.end_offset, p.last_stable_offset()) == (13, 10)
        assert list(p.follow(10, timeout=0, isolation="read_committed")) == []


@pytest.mark.parametrize("is_gapless", [True, False])
def test_state_of_an_earlier_version_does_not_say_where_transactions_end(
    tmp_path: Path, is_gapless: bool
) -> None:
    """If the log may have gaps, it is read; its transactions are found."""
    log = Log()
    log.write(0, 2)
    log.put(tmp_path)
    with logstore.open(tmp_path) as store:
        store.topic("t")[0].append(b"x")
    root = Directory.open_root(Files(), str(tmp_path))
    directory = root.child("t-0")
    value = checkpoints.read_state(directory, layout.PARTITION_STATE)
    assert value is not None
    assert value.pop("foreign_end") == 2
    value["is_gapless"] = is_gapless
    checkpoints.write_state(directory, layout.PARTITION_STATE, value)
    store, p = opened(tmp_path)
    with store:
        assert p.last_stable_offset() == (3 if is_gapless else 0)


def test_follower_before_an_open_transaction_reads_what_is_new(tmp_path: Path) -> None:
    """It waits at the start of the log: each look costs nothing."""
    log = Log()
    log.write(0)
    for _ in range(300):
        log.write(1)
        log.finish(1, commit=True)
    log.put(tmp_path)
    files = Counting()
    store, p = opened(tmp_path, files)
    with store:
        for look in range(5):
            files.bytes_read = 0
            follower = p.follow(0, timeout=0, isolation="read_committed")
            assert list(follower) == []
            assert (files.bytes_read >= len(log.data)) == (look == 0)
        assert files.bytes_read < len(log.data) / 2


def test_transaction_that_was_cut_off_is_open_no_longer(tmp_path: Path) -> None:
    """Records of it that were read before the cut do not count after it."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2)
        p = store.create_topic("t", config=config)[0]
        p.append_many([b"x"] * 4)
        rows = [(b"k", b"v")] * 2
        data = batch(4, rows, 7, control=False)
        p.append_batches(data, transactions=True)
        p.append_many([b"x"] * 4)
        assert (p.end_offset, p.last_stable_offset()) == (10, 4)
        p.truncate_to(4)
        assert p.last_stable_offset() == 4
        p.append_many([b"y"] * 20)
        assert (p.end_offset, p.last_stable_offset()) == (24, 24)
        read = p.read(isolation="read_committed")
        assert [record.value for record in read] == [b"x"] * 4 + [b"y"] * 20
