"""The screen of records drops the results of earlier keys."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from logstore.cli.browse.window import BrowserView
from logstore.cli.selection import Selection
from support.browsing import Hand, browse, rows


def test_the_last_jump_wins(shop: Path, monkeypatch: Any) -> None:
    """Pending records of an earlier jump are dropped."""
    place = BrowserView.place

    def slow(self: BrowserView, bound: Any) -> Any:
        if bound == 100:
            time.sleep(0.3)
        return place(self, bound)

    monkeypatch.setattr(BrowserView, "place", slow)

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        page: Any = hand.app.screen
        page._rows.jump(700)
        for thread in threading.enumerate():
            if thread.name == "browse window":
                thread.join(30)  # its message is there, and was not taken
        page._rows.jump(100)
        await hand.see("offset 100 of 1,000")
        await hand.pilot.pause()
        assert "offset 100 of 1,000" in hand.text()

    browse(shop / "orders-0", act)


def test_a_search_keeps_its_rows(shop: Path) -> None:
    """Pending records of an earlier jump are dropped."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("equals_sign")
        await hand.type("user-007")
        page: Any = hand.app.screen_stack[-2]
        page._rows.jump_to_last()
        for thread in threading.enumerate():
            if thread.name == "browse window":
                thread.join(30)
        hand.app.screen.dismiss((Selection(b"user-007"), ["user-007", ""]))
        await hand.see("10 matches")
        await hand.pilot.pause()
        assert rows(hand) == list(range(7, 1000, 100))

    browse(shop / "orders-0", act)
