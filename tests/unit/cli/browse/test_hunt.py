"""A search through a log: what it finds, how far it is, where it continues."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore.cli.browse.hunt import FOUND_MAX, Found, hunt
from logstore.cli.browse.lines import NoticeLine
from logstore.cli.browse.window import View
from logstore.cli.params import PATTERN
from logstore.cli.selection import Selection


def view_of(store: logstore.Store, topic: str) -> View:
    found = store.topic(topic)
    return View(list(found), found)


def test_a_key_is_found_exactly(shop: Path) -> None:
    """In all partitions, as `records --key` finds it."""
    reports: list[Found] = []
    with logstore.open(shop, read_only=True) as store:
        view = view_of(store, "orders")
        hunt(view, Selection(key=b"user-007"), view.starts(), reports.append)
    lines = [line for one in reports for line in one.lines]
    assert [(one.partition, one.offset) for one in lines] == [
        (number, at) for at in range(7, 1000, 100) for number in (0, 1)
    ]
    last = reports[-1]
    assert (last.looked, last.total, last.is_done) == (2000, 2000, True)


def test_a_pattern_is_found_in_keys_and_values(shop: Path) -> None:
    """`records --grep` finds the same."""
    with logstore.open(shop, read_only=True) as store:
        view = view_of(store, "clicks")
        selection = Selection(pattern=PATTERN.convert("click 29[0-9]$", None, None))
        found = hunt(view, selection, view.starts(), lambda one: None)
    assert [one.offset for one in found.lines] == list(range(290, 300))


def test_damage_is_told_where_it_was_not_searched(damaged: Path) -> None:
    """The result says what it does not know."""
    with logstore.open(damaged, read_only=True) as store:
        view = view_of(store, "orders")
        found = hunt(view, Selection(key=b"user-060"), view.starts(), lambda one: None)
    notices = [one for one in found.lines if isinstance(one, NoticeLine)]
    assert [one.text.split(":")[1] for one in notices] == [" offsets 450..499"]
    assert len(found.lines) == 1 + 19  # offset 460 would be one, too
    assert (found.looked, found.total) == (2000, 2000)


def test_a_search_stops_with_many_matches_and_goes_on(tmp_path: Path) -> None:
    """Rows are bounded; the second part begins after the first, and counts on."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"x"] * (2 * FOUND_MAX + 10))
        view = view_of(store, "t")
        every = Selection(pattern=PATTERN.convert("x", None, None))
        first = hunt(view, every, view.starts(), lambda one: None)
        assert len(first.lines) == FOUND_MAX
        assert not first.is_done
        assert (first.place, first.looked, first.total) == ({0: 1000}, 1000, 2010)
        second = hunt(
            view, every, first.place, lambda one: None, view.starts(), view.ends()
        )
        assert second.lines[0].offset == FOUND_MAX
        assert (second.looked, second.total) == (2000, 2010)
        third = hunt(
            view, every, second.place, lambda one: None, view.starts(), view.ends()
        )
        assert (len(third.lines), third.looked, third.is_done) == (10, 2010, True)


def test_a_search_ends_when_its_report_says_so(tmp_path: Path) -> None:
    """Soon: it reports every 5,000 records."""
    seen: list[Found] = []

    def report(found: Found) -> None:
        seen.append(found)
        raise KeyboardInterrupt

    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"x"] * 20_000)
        view = view_of(store, "t")
        with pytest.raises(KeyboardInterrupt):
            hunt(view, Selection(key=b"none"), view.starts(), report)
    assert [one.looked for one in seen] == [5000]


def test_a_search_begins_where_the_log_does(shop: Path) -> None:
    """A place that was deleted meanwhile is not looked for."""
    with logstore.open(shop) as store:
        view = view_of(store, "clicks")
        store.topic("clicks")[0].delete_before(600)
        found = hunt(view, Selection(key=b"none"), {0: 0}, lambda one: None)
    assert (found.looked, found.total, found.is_done) == (2400, 2400, True)
