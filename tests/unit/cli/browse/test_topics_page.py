"""The screens of topics and partitions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.browse.catalog import BrowserCatalog
from logstore.cli.browse.topics_page import damage_text
from support.browsing import Hand, browse
from support.golden import SLICE


def row(hand: Hand, name: str) -> list[str]:
    """The words of the row of a topic or partition."""
    lines = (line.split() for line in hand.text().splitlines()[2:])
    return next(words for words in lines if words[:1] == [name])


def test_topics_are_rows(shop: Path) -> None:
    """They show all that is known without reading the logs; a wide terminal shows all
    of it."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics", "first time")
        assert row(hand, "orders") == [
            "orders", "2", "≤", "2,000", *row(hand, "orders")[4:6], "-",
            "2023-11-14T22:13:20.000Z", "2023-11-14T22:29:59.500Z", "-", "v2", "none",
        ]  # fmt: skip
        assert "v2 lz4" in hand.text()

    browse(shop, act, size=(160, 24))


def test_a_narrow_terminal_has_what_matters(shop: Path) -> None:
    """Columns appear when it grows."""

    async def act(hand: Hand) -> None:
        await hand.see("topic", "records", "size", "damage")
        assert "format" not in hand.text()
        await hand.pilot.resize_terminal(160, 24)
        await hand.see("format", "first time")
        await hand.pilot.resize_terminal(40, 10)
        await hand.see("orders", "records")

    browse(shop, act)


def test_records_are_counted_when_asked_for(damaged: Path) -> None:
    """They are counted like by `stat`, over damage; partitions show it, too."""

    async def act(hand: Hand) -> None:
        await hand.see("≤ 2,000")
        await hand.press("c")
        await hand.see(" 1,950 ")
        await hand.press("down", "enter")
        await hand.see(" 950 ", "2 partitions")

    browse(damaged, act)


def test_counting_can_be_stopped(shop: Path, monkeypatch: Any) -> None:
    """Esc stops it; nothing was counted."""
    going, reached = threading.Event(), threading.Event()
    count = BrowserCatalog.count

    def slow(self: BrowserCatalog, names: Any, on_progress: Any) -> None:
        on_progress(1, 100)
        reached.set()
        going.wait(60)
        count(self, names, on_progress)

    monkeypatch.setattr(BrowserCatalog, "count", slow)

    async def act(hand: Hand) -> None:
        await hand.see("≤ 2,000")
        await hand.press("c")
        await hand.until(reached.is_set, "counted")
        await hand.see("counting: 1 B of 100 B")
        await hand.press("escape")
        await hand.see("counting: stopped")
        going.set()
        await hand.see("2 topics, ")
        assert "≤ 2,000" in hand.text()

    try:
        browse(shop, act)
    finally:
        going.set()


def test_one_goes_down_and_back(shop: Path) -> None:
    """A topic with one partition shows its records at once."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        await hand.press("enter")
        await hand.see("clicks / partition 0", "offset 0 of 3,000")
        await hand.press("escape")
        await hand.see("2 topics, ")
        await hand.press("j", "l")
        await hand.see("2 partitions")
        await hand.press("G", "enter")
        await hand.see("orders / partition 1", "offset 0 of 1,000")
        await hand.press("h", "h", "h", "h")
        await hand.see("2 topics, ")

    browse(shop, act)


def test_rows_are_sorted_by_what_one_chooses(shop: Path) -> None:
    """`o` selects the next column; a click on a head sorts by it, a second one
    reverses."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        await hand.press("o")
        await hand.see("topic ▲")
        await hand.press("o")
        await hand.see("records ▼")
        assert hand.text().index("clicks") < hand.text().index("orders")
        await hand.pilot.click("Grid", offset=(3, 0))
        await hand.see("topic ▲")
        await hand.pilot.click("Grid", offset=(3, 0))
        await hand.see("topic ▼")
        assert hand.text().index("orders") < hand.text().index("clicks")

    browse(shop, act)


def test_what_comes_is_shown(shop: Path) -> None:
    """New topics and records of a live store appear without a key; the cursor stays."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        await hand.press("down")
        with logstore.open(shop) as store:
            store.create_topic("baskets").append(b"x")
            store.topic("clicks").append(b"x")
            await hand.see("3 topics, ", "baskets", "≤ 3,001")
        grid: Any = hand.app.screen.query_one("Grid")
        assert grid.current.name == "orders"

    browse(shop, act)


def test_a_partition_that_cannot_be_read_is_marked(shop: Path) -> None:
    """The rows of topic and partition are marked; the reason is below."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        (shop / "orders-1").rename(shop.parent / "away")
        await hand.press("r")
        await hand.see("! unreadable", "orders-1: partition orders-1")
        await hand.press("down", "enter")
        await hand.see("! unreadable", "orders-1: partition orders-1")
        await hand.press("a")
        await hand.see("orders-1")

    browse(shop, act)


def test_a_topic_with_invalid_settings_is_marked(misconfigured: Path) -> None:
    """The reason is below; the other topics are there."""

    async def act(hand: Hand) -> None:
        await hand.see("! unreadable", "orders", "clicks: the stored settings of topic")
        assert "2,000" in row(hand, "orders")

    browse(misconfigured, act)


def test_a_directory_that_goes_is_a_message(shop: Path) -> None:
    """The rows stay, and are updated again when the directory is back."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        shop.rename(shop.parent / "away")
        await hand.see("no such file or directory:")
        assert "orders" in hand.text()
        (shop.parent / "away").rename(shop)
        await hand.see("2 topics, ")

    browse(shop, act)


def test_a_store_without_topics_is_no_error(tmp_path: Path) -> None:
    """Keys do nothing there."""
    logstore.open(tmp_path).close()

    async def act(hand: Hand) -> None:
        await hand.see("no topics, 0 B")
        await hand.press("enter", "o", "c", "down", "3", "enter", "1", "2", "enter")
        await hand.see("no groups")

    browse(tmp_path, act)


def test_a_broker_s_directory_is_browsed(tmp_path: Path) -> None:
    """The directory is as Kafka left it."""

    async def act(hand: Hand) -> None:
        await hand.see("txn", "topics, ")
        await hand.press("G", "enter")
        await hand.see("offset ")

    browse(SLICE / "4.2.0" / "clean", act)


@pytest.mark.parametrize(
    ("checked", "trouble", "text"),
    [
        (None, "", "-"),
        (0, "", "ok"),
        (1, "", "! 1 problem"),
        (3, "", "! 3 problems"),
        (0, "cut", "! unreadable"),
    ],
)
def test_the_mark_says_what_is_known(
    checked: int | None, trouble: str, text: str
) -> None:
    """An unchecked topic is not marked as fine."""
    assert damage_text(checked, trouble) == text
