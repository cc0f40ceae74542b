"""The app as a whole: keys that work everywhere, help, colours, the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.cli.browse.browser import INTERRUPTED
from support.browsing import Hand, browse, terminal


def test_the_footer_fits_80_columns(shop: Path) -> None:
    """Every screen shows help and quit."""

    async def act(hand: Hand) -> None:
        await hand.see("? Help  q Quit")
        for keys in (["down", "enter"], ["enter"], ["2"], ["3"]):
            await hand.press(*keys)
            await hand.pilot.pause(0.1)
            await hand.see("? Help  q Quit")

    browse(shop, act)


def test_help_lists_the_keys_of_a_screen(shop: Path) -> None:
    """Each key once, with its action; the help scrolls, and closes."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        await hand.press("question_mark")
        await hand.see("Topics", "j k", "Count: Count the records", "Quit: End it")
        await hand.press("j", "k", "escape")
        await hand.miss("Count: ")
        await hand.press("enter", "question_mark")
        await hand.see("Search: Only records", "Jump: To an offset", "Follow: Show")
        await hand.press("q")
        await hand.miss("Follow: Show")
        assert hand.app.return_value is None

    browse(shop, act)


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("ctrl+c", INTERRUPTED)])
def test_it_ends(shop: Path, key: str, status: int) -> None:
    """The status is that of the other commands, even after an interrupt."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        await hand.press(key)

    assert browse(shop, act) == status


def test_screens_are_a_key_away(shop: Path) -> None:
    """The keys work anywhere, and screens are never stacked."""

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        for _ in range(3):
            await hand.press("enter")
            await hand.see("offset 0 of 3,000")
            for key, seen in (
                ("2", "no groups"),
                ("3", "not verified"),
                ("1", "keeps"),
            ):
                await hand.press(key)
                await hand.see(seen)
        assert len(hand.app.screen_stack) == 2

    browse(shop, act)


def test_no_color_means_none(shop: Path) -> None:
    """No greys either; the cursor is reversed."""
    with terminal("browse", shop / "orders-0", NO_COLOR="1") as shown:
        shown.until(b"order")
        shown.send(b"q")
        assert shown.end() == 0
    codes = [
        code
        for part in shown.written.split(b"\x1b[")[1:]
        if b"m" in part
        for code in part.split(b"m")[0].split(b";")
        if part.split(b"m")[0].replace(b";", b"").isdigit()
    ]
    assert b"7" in codes
    assert not {b"38", b"48", *(b"%d" % n for n in range(30, 38))} & set(codes)
