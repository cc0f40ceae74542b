"""The screen of damage: findings of `verify`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import logstore
from support.browsing import Hand, browse


def test_verify_runs_when_asked_for(damaged: Path) -> None:
    """Its findings are rows, the selected one is shown in full below, Enter shows the
    records there, and topics and partitions are marked."""
    report = logstore.verify(damaged)

    async def act(hand: Hand) -> None:
        await hand.press("3")
        await hand.see("not verified yet")
        await hand.press("s")
        count = len(report.problems)
        await hand.see("checked 3 segments, ", f"{count} problem", "450..499")
        assert "damaged-batch" in hand.text()
        await hand.see("Keep a copy" if "Keep a copy" in report.problems[0].message
                       else "at byte")  # fmt: skip
        await hand.press("enter")
        await hand.see("orders / partition 1", "damaged: offsets 450..499")
        await hand.press("1")
        await hand.see("! 1 problem", " ok ")
        await hand.press("down", "enter")
        await hand.see("! 1 problem", " ok ", "2 partitions")
        await hand.press("3")
        await hand.see(f"{count} problem")  # without verifying again
        await hand.press("d")
        await hand.see("looked into 3 segments, ")

    browse(damaged, act)


def test_a_sound_store_has_no_findings(shop: Path) -> None:
    """The screen shows the number of checked records."""

    async def act(hand: Hand) -> None:
        await hand.press("3", "s")
        await hand.see("5,000 records", "no problems, no notes")
        await hand.press("enter")
        await hand.see("no problems")

    browse(shop, act)


def test_notes_are_findings_too(shop: Path) -> None:
    """They follow the problems."""
    (shop / "orders-0" / f"{0:020}.log.deleted").write_bytes(b"x")

    async def act(hand: Hand) -> None:
        await hand.press("3", "s")
        await hand.see("note", "leftover", "no problems, 1 note")

    browse(shop, act)


def test_verifying_can_be_stopped(shop: Path, monkeypatch: Any) -> None:
    """Esc stops it at its next step; the keys work all the while."""
    going, reached = threading.Event(), threading.Event()
    verify = logstore.verify

    def slow(path: Any, *, on_progress: Any, **options: Any) -> Any:
        on_progress(1 << 20, 4 << 20)
        reached.set()
        going.wait(60)
        return verify(path, on_progress=on_progress, **options)

    monkeypatch.setattr(logstore, "verify", slow)

    async def act(hand: Hand) -> None:
        await hand.press("3", "s")
        await hand.until(reached.is_set, "verified")
        await hand.see("[######..................] 1.0 MiB of 4.0 MiB")
        await hand.press("s", "escape")
        await hand.see("verifying: stopped")
        going.set()
        await hand.press("escape")
        await hand.see("2 topics, ")
        assert hand.app.report is None

    try:
        browse(shop, act)
    finally:
        going.set()


def test_a_partition_is_verified_alone(damaged: Path) -> None:
    """The other ones are not checked."""

    async def act(hand: Hand) -> None:
        await hand.press("3", "s")
        await hand.see("checked 1 segment, 1,000 records", "no problems")

    browse(damaged / "orders-0", act)


def test_a_directory_that_goes_is_a_message(shop: Path) -> None:
    """The next try works."""

    async def act(hand: Hand) -> None:
        await hand.press("3")
        shop.rename(shop.parent / "away")
        await hand.press("s")
        await hand.see("no such file or directory:")
        (shop.parent / "away").rename(shop)
        await hand.press("s")
        await hand.see("no problems")

    browse(shop, act)
