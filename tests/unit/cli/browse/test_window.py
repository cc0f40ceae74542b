"""The records around a place: forward, backward, over damage, in bounded memory."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.browse.lines import Line, NoticeLine, RecordLine
from logstore.cli.browse.window import KEPT, PART, BrowserView, Window
from logstore.cli.params import FromEnd
from support.damage import cut, flip_bit, frames

BATCH = 50
UTC = datetime.timezone.utc


def view_of(store: logstore.Store, topic: str, *numbers: int) -> BrowserView:
    found = store.topic(topic)
    return BrowserView([found[n] for n in numbers or found.numbers], found)


def names(lines: list[Line]) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for one in lines]


def all_forward(view: BrowserView, count: int) -> list[Line]:
    place, lines = view.starts(), []
    while True:
        part = view.forward(place, count)
        lines += part.lines
        place = part.stop
        if part.at_end:
            return lines


def all_backward(view: BrowserView, count: int) -> list[Line]:
    place, lines = view.ends(), []
    while True:
        part = view.backward(place, count)
        assert part.stop == place
        lines[:0] = part.lines
        place = part.start
        if part.at_start:
            return lines


def test_parts_forward_are_the_log(shop: Path) -> None:
    """Each record once, in order, and the last part says that it is the last."""
    with logstore.open(shop, read_only=True) as store:
        lines = all_forward(view_of(store, "clicks"), 7)
    assert names(lines) == [(0, n) for n in range(3000)]
    first = lines[0]
    assert isinstance(first, RecordLine)
    assert (first.key, first.value, first.headers) == (None, "click 0", 0)


@pytest.mark.parametrize("count", [13, PART])
def test_parts_backward_are_the_same_records(shop: Path, count: int) -> None:
    """They equal those read forward, for a partition and for a topic."""
    with logstore.open(shop, read_only=True) as store:
        for view in (view_of(store, "orders", 0), view_of(store, "orders")):
            assert all_backward(view, count) == all_forward(view, PART)


def test_a_topic_is_merged_by_time(shop: Path) -> None:
    """The order is that of `Topic.read`."""
    with logstore.open(shop, read_only=True) as store:
        expected = [(r.partition, r.offset) for r in store.topic("orders").read()]
        assert names(all_forward(view_of(store, "orders"), 33)) == expected
        assert expected[:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_if_times_do_not_rise(tmp_path: Path, seed: int) -> None:
    """Parts may have any size; in both directions, each record comes once."""
    rng = random.Random(seed)
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", 3)
        for partition in topic:
            for _ in range(rng.randrange(60)):
                partition.append(b"x", timestamp_ms=rng.randrange(100))
        view = view_of(store, "t")
        expected = sorted((p.number, n) for p in topic for n in range(p.end_offset))
        for _ in range(10):
            count = rng.randrange(1, 20)
            assert sorted(names(all_forward(view, count))) == expected
            assert sorted(names(all_backward(view, count))) == expected


def test_partitions_that_were_not_chosen_stay_out(tmp_path: Path) -> None:
    """Two of three partitions are chosen."""
    with logstore.open(tmp_path) as store:
        for partition in store.create_topic("t", 3):
            partition.append_many([b"x"] * 5)
        view = view_of(store, "t", 0, 2)
        assert {line.partition for line in all_forward(view, 4)} == {0, 2}
        assert len(all_backward(view, 4)) == 10


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("numbers", [(1,), (0, 1)])
@pytest.mark.parametrize("walk", [all_forward, all_backward])
def test_damage_is_a_row_where_its_records_would_be(
    damaged: Path,
    numbers: tuple[int, ...],
    walk: Callable[[BrowserView, int], list[Line]],
) -> None:
    """The row comes once, with the offsets and the reason; the records around it are
    all there."""
    with logstore.open(damaged, read_only=True) as store:
        lines = walk(view_of(store, "orders", *numbers), 20)
    of_one = [line for line in lines if line.partition == 1]
    (notice,) = (line for line in of_one if isinstance(line, NoticeLine))
    assert notice.text.startswith("damaged: offsets 450..499: ")
    assert (notice.offset, notice.next_offset) == (450, 500)
    at = of_one.index(notice)
    assert [one.offset for one in of_one[:at]] == list(range(450))
    assert [one.offset for one in of_one[at + 1 :]] == list(range(500, 1000))


def test_intact_batches_behind_the_end_are_told(shop: Path, tmp_path: Path) -> None:
    """The log of a broker that was killed ends at its first bad batch after the
    recovery point. Any batches after it may be damage."""
    killed = tmp_path / "killed"
    (killed / "orders-0").mkdir(parents=True, mode=0o700)
    log = killed / "orders-0" / f"{0:020}.log"
    log.write_bytes((shop / "orders-0" / log.name).read_bytes())
    bad = frames(log)[5]
    flip_bit(log, 8 * (bad.pos + bad.size - 1))
    (killed / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 100\n")
    with logstore.open(killed, read_only=True) as store:
        lines = all_forward(view_of(store, "orders"), PART)
    assert names(lines[:-1]) == [(0, n) for n in range(5 * BATCH)]
    notice = lines[-1]
    assert isinstance(notice, NoticeLine)
    assert notice.text.startswith("damaged: the log ends at offset 250, because ")
    assert "14 intact batches after that" in notice.text


def test_records_that_were_deleted_meanwhile_are_told(shop: Path) -> None:
    """Reading continues at the current start of the log."""
    with logstore.open(shop) as writer, logstore.open(shop, read_only=True) as store:
        view = view_of(store, "clicks")
        place = view.forward(view.starts(), 10).stop
        writer.topic("clicks")[0].delete_before(600)
        part = view.forward(place, 10)
    notice, *records = part.lines
    assert isinstance(notice, NoticeLine)
    assert (notice.text, notice.is_damage) == (
        "deleted: offsets 10..599 are gone",
        False,
    )
    assert [one.offset for one in records] == list(range(600, 610))


def test_a_log_that_was_cut_meanwhile_is_told(shop: Path) -> None:
    """A follower is at an offset past its new end."""
    with logstore.open(shop) as writer:
        view = view_of(writer, "clicks")
        place = view.ends()
        writer.topic("clicks")[0].truncate_to(300)
        part = view.forward(place)
    assert [line.text for line in part.lines if isinstance(line, NoticeLine)] == [
        "cut: the log ends at offset 300 now, below 3000"
    ]
    assert part.stop == {0: 300}


@pytest.mark.parametrize("at_damage", [False, True])
@pytest.mark.parametrize("numbers", [(1,), (0, 1)])
def test_a_read_ends_when_it_is_told_to(
    damaged: Path, numbers: tuple[int, ...], at_damage: bool
) -> None:
    """It stops at the next record, or at damage, in both directions."""

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with logstore.open(damaged, read_only=True) as store:
        view = view_of(store, "orders", *numbers)
        place = dict.fromkeys(numbers, 500 if at_damage else 1000)
        begin = dict.fromkeys(numbers, 450 if at_damage else 0)
        stopping = view.checked(stop)
        for read in (
            lambda: stopping.forward(begin, 10),
            lambda: stopping.backward(place, 10),
            lambda: stopping.around(begin),
            stopping.tail,
        ):
            with pytest.raises(Stop):
                read()
        assert view.forward(begin, 10).lines  # it has no check


@pytest.mark.parametrize("bound", [10, FromEnd(10)])
def test_damage_is_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    """Each read of a damaged part goes to its end, so that a log that is damaged as a
    whole needs few of them."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for n in range(1000):
            partition.append(b"%d" % n)
    log = tmp_path / "t-0" / f"{0:020}.log"
    for frame in frames(log)[1:]:
        flip_bit(log, 8 * (frame.pos + frame.size - 1))
    met = 0
    read, read_batches = logstore.Partition.read, logstore.Partition.read_batches

    def counting(reads: Any) -> Any:
        def through(self: Any, *args: Any, on_corruption: Any, **options: Any) -> Any:
            def on_damage(damaged: logstore.types.Damaged) -> bool:
                nonlocal met
                met += 1
                return bool(on_corruption(damaged))

            return reads(self, *args, on_corruption=on_damage, **options)

        return through

    monkeypatch.setattr(logstore.Partition, "read", counting(read))
    monkeypatch.setattr(logstore.Partition, "read_batches", counting(read_batches))
    with logstore.open(tmp_path, read_only=True) as store:
        view = view_of(store, "t")
        if isinstance(bound, FromEnd):
            assert view.place(bound) == {0: 0}
        else:
            part = view.backward(view.ends(), bound)
            assert names(part.lines) == [(0, 0), (0, 1)]
    assert 0 < met <= 4


# ------------------------------------------------------------------ jumps


@pytest.mark.parametrize(
    ("bound", "place"),
    [
        (None, {0: 0, 1: 0}),
        (700, {0: 700, 1: 700}),
        (5000, {0: 1000, 1: 1000}),
        (FromEnd(0), {0: 1000, 1: 1000}),
        (FromEnd(3), {0: 997, 1: 997}),
        (datetime.datetime.fromtimestamp(1_700_000_010.2, UTC), {0: 11, 1: 10}),
        (datetime.datetime.fromtimestamp(1_800_000_000, UTC), {0: 1000, 1: 1000}),
    ],
)
def test_a_bound_is_a_place(shop: Path, bound: Any, place: dict[int, int]) -> None:
    """Offsets and times are looked up in each partition; the last N are counted in
    each."""
    with logstore.open(shop, read_only=True) as store:
        assert view_of(store, "orders").place(bound) == place


def test_at_the_end_there_are_records_before_it(shop: Path) -> None:
    """The cursor is at the last record."""
    with logstore.open(shop, read_only=True) as store:
        view = view_of(store, "clicks")
        part, cursor = view.tail()
        assert part.lines[cursor].offset == 2999
        assert len(part.lines) == PART
        assert part.at_end
        part, cursor = view.around(view.ends())
        assert part.lines[cursor].offset == 2999


def test_beside_a_record_are_those_of_its_time(shop: Path) -> None:
    """The record itself is the next one of its partition."""
    with logstore.open(shop, read_only=True) as store:
        assert view_of(store, "orders").beside(1, 20) == {0: 21, 1: 20}
        assert view_of(store, "orders", 1).beside(1, 20) == {1: 20}


def test_a_time_that_no_calendar_has_is_the_last_one(tmp_path: Path) -> None:
    """A record may have any time; the other partitions end before it."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", 3)
        times = (1 << 60, 1_700_000_000_000, 1 << 61)
        for partition, time_ms in zip(topic, times, strict=True):
            partition.append(b"x", timestamp_ms=1)
            partition.append(b"y", timestamp_ms=time_ms)
        view = view_of(store, "t")
        assert view.beside(0, 1) == {0: 1, 1: 2, 2: 1}


# ------------------------------------------------------------------ memory


def test_a_window_keeps_a_bounded_number_of_rows(shop: Path) -> None:
    """After any scrolling, the rows are a part of the log."""
    with logstore.open(shop, read_only=True) as store:
        view = view_of(store, "clicks")
        window = Window(view.forward(view.starts()))
        assert window.at_start
        while not window.at_end:
            window.append(view.forward(window.stop))
            assert len(window.lines) <= KEPT
        assert [one.offset for one in window.lines] == list(range(2000, 3000))
        assert (window.start, window.stop) == ({0: 2000}, {0: 3000})
        while not window.at_start:
            window.prepend(view.backward(window.start))
            assert len(window.lines) <= KEPT
        assert [one.offset for one in window.lines] == list(range(1000))
        assert (window.start, window.stop) == ({0: 0}, {0: 1000})
        assert not window.at_end


def test_a_merged_window_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    """Rows that were dropped at one end are read again after scrolling back."""
    with logstore.open(tmp_path) as store:
        for partition in store.create_topic("t", 3):
            number = partition.number
            partition.append_many(
                [b"x"] * 900, timestamps_ms=[n * (number + 1) for n in range(900)]
            )
        view = view_of(store, "t")
        expected = names(all_forward(view, PART))
        window = Window(view.forward(view.starts()))
        while not window.at_end:
            window.append(view.forward(window.stop))
        assert names(window.lines) == expected[-KEPT:]
        while not window.at_start:
            window.prepend(view.backward(window.start))
        assert names(window.lines) == expected[:KEPT]


def test_a_part_reads_few_records(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, backward and at any place, only a part of the log is read."""
    taken = 0
    read = logstore.Partition.read

    def counting(self: logstore.Partition, *args: Any, **options: Any) -> Any:
        def through() -> Any:
            nonlocal taken
            for record in read(self, *args, **options):
                taken += 1
                yield record

        return through()

    monkeypatch.setattr(logstore.Partition, "read", counting)
    with logstore.open(shop, read_only=True) as store:
        view = view_of(store, "clicks")
        for step in (
            lambda: view.forward(view.starts()),
            lambda: view.forward({0: 1500}),
            lambda: view.backward({0: 1500}),
            lambda: view.backward(view.ends()),
            lambda: view.around(view.place(2900)),
        ):
            taken = 0
            step()
            # A compressed batch of 300 is read as a whole to find the beginning.
            assert 0 < taken <= 3 * PART


def test_a_row_keeps_nothing_of_a_large_value(tmp_path: Path) -> None:
    """A row keeps only the width of a terminal."""
    config = logstore.TopicConfig(max_message_bytes=1 << 24)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", 1, config)[0]
        partition.append(b"x" * 10_000_000, key=b"y" * 100_000)
        (line,) = view_of(store, "t").forward({0: 0}).lines
    assert isinstance(line, RecordLine)
    assert len(line.value or "") + len(line.key or "") < 2000


def test_a_file_that_is_gone_is_an_error_of_the_library(shop: Path) -> None:
    """The screen shows it; nothing else is raised."""
    with logstore.open(shop, read_only=True) as store:
        view = view_of(store, "clicks")
        (shop / "clicks-0").rename(shop / "elsewhere")
        with pytest.raises((logstore.LogStoreError, OSError)):
            view.forward({0: 0})


def test_bytes_that_are_gone_are_a_row(shop: Path) -> None:
    """The last batch of a log that was closed was cut."""
    log = shop / "orders-0" / f"{0:020}.log"
    cut(log, log.stat().st_size - 10)
    with logstore.open(shop, read_only=True) as store:
        lines = all_forward(view_of(store, "orders", 0), PART)
    assert names(lines[:950]) == [(0, n) for n in range(950)]
    assert [one.text[:8] for one in lines[950:] if isinstance(one, NoticeLine)] == [
        "damaged:"
    ]
