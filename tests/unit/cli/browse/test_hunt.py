"""A search through a log: its matches, its progress, its continuation."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.browse import hunt as hunting
from logstore.cli.browse.hunt import FOUND_MAX, SearchProgress, hunt
from logstore.cli.browse.lines import Line, NoticeLine
from logstore.cli.browse.window import BrowserView, Place
from logstore.cli.params import PATTERN
from logstore.cli.selection import Selection
from support.damage import flip_bit, frames


def view_of(store: logstore.Store, topic: str) -> BrowserView:
    found = store.topic(topic)
    return BrowserView(list(found), found)


def searched(
    view: BrowserView, selection: Selection, start: Place | None = None, *rest: Place
) -> tuple[list[Line], SearchProgress]:
    """All rows of a search, and its end."""
    lines: list[Line] = []
    begin = view.starts() if start is None else start
    last = hunt(view, selection, begin, lambda one: lines.extend(one.lines), *rest)
    return lines, last


def test_a_key_is_found_exactly(shop: Path) -> None:
    """All partitions are searched, as by `records --key`."""
    with logstore.open(shop, read_only=True) as store:
        lines, last = searched(view_of(store, "orders"), Selection(key=b"user-007"))
    assert [(one.partition, one.offset) for one in lines] == [
        (number, at) for at in range(7, 1000, 100) for number in (0, 1)
    ]
    assert (last.looked, last.total, last.is_done) == (2000, 2000, True)


def test_a_pattern_is_found_in_keys_and_values(shop: Path) -> None:
    """`records --grep` finds the same."""
    with logstore.open(shop, read_only=True) as store:
        selection = Selection(pattern=PATTERN.convert("click 29[0-9]$", None, None))
        lines, _ = searched(view_of(store, "clicks"), selection)
    assert [one.offset for one in lines] == list(range(290, 300))


def test_damage_is_told_where_it_was_not_searched(damaged: Path) -> None:
    """The result names the offsets that could not be searched."""
    with logstore.open(damaged, read_only=True) as store:
        view = view_of(store, "orders")
        lines, last = searched(view, Selection(key=b"user-060"))
    notices = [one for one in lines if isinstance(one, NoticeLine)]
    assert [one.text.split(":")[1] for one in notices] == [" offsets 450..499"]
    assert len(lines) == 1 + 19  # offset 460 would be one, too
    assert (last.looked, last.total) == (2000, 2000)


def test_a_search_stops_with_many_matches_and_goes_on(tmp_path: Path) -> None:
    """Rows are bounded; the second part begins after the first, and counts on."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"x"] * (2 * FOUND_MAX + 10))
        view = view_of(store, "t")
        every = Selection(pattern=PATTERN.convert("x", None, None))
        whole = view.starts(), view.ends()
        lines, first = searched(view, every)
        assert len(lines) == FOUND_MAX
        assert not first.is_done
        assert (first.place, first.looked, first.total) == ({0: 1000}, 1000, 2010)
        lines, second = searched(view, every, first.place, *whole)
        assert lines[0].offset == FOUND_MAX
        assert (second.looked, second.total) == (2000, 2010)
        lines, third = searched(view, every, second.place, *whole)
        assert (len(lines), third.looked, third.is_done) == (10, 2010, True)


@pytest.mark.parametrize("is_all", [False, True])
def test_damage_counts_as_rows(tmp_path: Path, monkeypatch: Any, is_all: bool) -> None:
    """A log in which every second batch, or each, is damaged has bounded rows, too."""
    monkeypatch.setattr(hunting, "FOUND_MAX", 10)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for n in range(50):
            partition.append(b"%d" % n)
    log = tmp_path / "t-0" / f"{0:020}.log"
    for n, frame in enumerate(frames(log)):
        if is_all or n % 2:
            flip_bit(log, 8 * (frame.pos + frame.size - 1))
    with logstore.open(tmp_path, read_only=True) as store:
        view = view_of(store, "t")
        none, whole = Selection(key=b"none"), (view.starts(), view.ends())
        place, seen = view.starts(), []
        while True:
            lines, last = searched(view, none, place, *whole)
            assert len(lines) <= 10
            seen += [(one.offset, one.next_offset) for one in lines]
            place = last.place
            if last.is_done:
                break
    damaged = [n for begin, end in seen for n in range(begin, end)]
    assert damaged == (list(range(50)) if is_all else list(range(1, 50, 2)))
    assert last.looked == 50


@pytest.mark.parametrize("most", [1, 7])
def test_a_search_that_stops_at_damage_loses_no_match(
    tmp_path: Path, monkeypatch: Any, most: int
) -> None:
    """The damage is in other partitions, or in the same one."""
    monkeypatch.setattr(hunting, "FOUND_MAX", most)
    with logstore.open(tmp_path) as store:
        for partition in store.create_topic("t", 3):
            for n in range(30):
                time_ms = 100 * n + partition.number * (n % 7)
                partition.append_many([b"x"] * 3, timestamps_ms=[time_ms] * 3)
    for number in range(3):
        log = tmp_path / f"t-{number}" / f"{0:020}.log"
        for n, frame in enumerate(frames(log)):
            if n % (number + 2) == 0:
                flip_bit(log, 8 * (frame.pos + frame.size - 1))
    with logstore.open(tmp_path, read_only=True) as store:
        expected = {
            (record.partition, record.offset)
            for record in store.topic("t").read(on_corruption="skip")
        }
        view = view_of(store, "t")
        every, whole = Selection(pattern=re.compile(b"x")), (view.starts(), view.ends())
        place, seen = view.starts(), []
        while True:
            lines, last = searched(view, every, place, *whole)
            seen += [
                (one.partition, one.offset)
                for one in lines
                if not isinstance(one, NoticeLine)
            ]
            place = last.place
            if last.is_done:
                break
    assert sorted(seen) == sorted(expected)


def test_a_search_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """It stops at the next record: records may be large, and few."""
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise KeyboardInterrupt

    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"x"] * 20)
        view = view_of(store, "t")
        with pytest.raises(KeyboardInterrupt):
            none = Selection(key=b"none")
            hunt(view, none, view.starts(), lambda one: None, check=check)
    assert checks == 3


def test_a_search_ends_in_damage_when_it_is_told_to(damaged: Path) -> None:
    """It stops before the records that follow the damage."""
    seen: list[int] = []

    class Stop(Exception):
        pass

    with logstore.open(damaged, read_only=True) as store:
        topic = store.topic("orders")
        view = BrowserView([topic[1]], topic)
        damage = view.damage

        def met(*arguments: Any) -> NoticeLine:
            seen.append(1)
            return damage(*arguments)

        def check() -> None:
            if seen:
                raise Stop

        view.damage = met  # type: ignore[assignment,method-assign]
        reports: list[SearchProgress] = []
        with pytest.raises(Stop):
            none = Selection(key=b"none")
            hunt(view, none, view.starts(), reports.append, check=check)
    assert not [one for one in reports if one.looked > 500]


def test_a_search_reports_by_time(tmp_path: Path, monkeypatch: Any) -> None:
    """The interval does not depend on the number of records, which may be large; an
    exception ends the search."""
    monkeypatch.setattr(hunting, "_REPORT_S", 0.02)
    reports: list[SearchProgress] = []

    def report(found: SearchProgress) -> None:
        reports.append(found)
        if len(reports) == 2:
            raise KeyboardInterrupt

    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"x"] * 20)
        view = view_of(store, "t")
        with pytest.raises(KeyboardInterrupt):
            none = Selection(key=b"none")
            hunt(view, none, view.starts(), report, check=lambda: time.sleep(0.03))
    assert [one.looked for one in reports] == [1, 2]
    assert not any(one.is_done for one in reports)


def test_a_search_begins_where_the_log_does(shop: Path) -> None:
    """Offsets that were deleted meanwhile are skipped."""
    with logstore.open(shop) as store:
        view = view_of(store, "clicks")
        store.topic("clicks")[0].delete_before(600)
        _, found = searched(view, Selection(key=b"none"), {0: 0})
    assert (found.looked, found.total, found.is_done) == (2400, 2400, True)
