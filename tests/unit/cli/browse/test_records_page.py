"""The screen of records, used from a terminal."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

import logstore
from logstore.cli.browse.document_view import DocumentView
from logstore.cli.browse.record_table import RecordTable
from logstore.cli.browse.records_page import RecordsPage
from logstore.cli.browse.window import KEPT, PART, BrowserView
from logstore.cli.browse.work import TaskStoppedError
from logstore.cli.params import FromEnd
from support.browsing import HOSTILE, Hand, browse, rows


def table(hand: Hand) -> RecordTable:
    return hand.app.screen.query_one(RecordTable)


def test_records_are_rows(shop: Path) -> None:
    """Offset, time, key, value, number of headers; the status line has the position."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        lines = hand.text().splitlines()
        assert re.fullmatch(r"offset  time +key +value +hdr", lines[1].strip())
        assert lines[2].split() == [
            "0", "2023-11-14T22:13:20.000Z", "user-000", '{"order":', "0}"
        ]  # fmt: skip
        assert rows(hand) == list(range(20))

    browse(shop / "orders-0", act)


def test_one_moves_as_in_other_tools(shop: Path) -> None:
    """Arrows and letters, pages, the ends of the log."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        for keys, at in (
            ("j", 1), ("down", 2), ("k", 1), ("up", 0), ("up", 0), ("space", 20),
            ("pagedown", 40), ("b", 20), ("ctrl+d", 40), ("ctrl+u", 20), ("G", 999),
            ("down", 999), ("pageup", 979), ("g", 0), ("end", 999), ("home", 0),
        ):  # fmt: skip
            await hand.press(keys)
            await hand.see(f"offset {at} of 1,000")

    browse(shop / "orders-0", act)


def test_the_mouse_moves_and_opens(shop: Path) -> None:
    """The wheel scrolls, a click chooses, a second one opens."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.pilot.click(RecordTable, offset=(10, 5))
        await hand.see("offset 4 of 1,000")
        await hand.pilot.click(RecordTable, offset=(10, 5))
        await hand.see("orders-0  offset 4  ")
        table(hand).on_mouse_scroll_down(_Wheel())  # type: ignore[arg-type]
        await hand.see("offset 7 of 1,000")
        table(hand).on_mouse_scroll_up(_Wheel())  # type: ignore[arg-type]
        await hand.see("offset 4 of 1,000")

    browse(shop / "orders-0", act)


class _Wheel:
    def stop(self) -> None:
        pass


def test_a_large_log_is_never_loaded(tmp_path: Path, monkeypatch: Any) -> None:
    """After jumps to any place in 100,000 records, few are read, and fewer kept."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        for begin in range(0, 100_000, 1000):
            partition.append_many([b"%d" % (begin + n) for n in range(1000)])
    taken = 0
    read = logstore.Partition.read

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal taken
        for record in read(self, *args, **options):
            taken += 1
            yield record

    monkeypatch.setattr(logstore.Partition, "read", counting)

    async def act(hand: Hand) -> None:
        nonlocal taken
        await hand.see("offset 0 of 100,000")
        assert taken <= PART
        for jump, at in (("G", 99_999), ("g", 0), ("G", 99_999)):
            taken = 0
            await hand.press(jump)
            await hand.see(f"offset {at:,} of 100,000")
            await hand.pilot.pause()
            assert taken <= 6 * PART
        taken = 0
        while _offset(hand) > 98_000:
            table(hand).action_page(-1)
            await hand.pilot.pause()
            assert len(table(hand).lines) <= KEPT
        # Shown records are read twice (counted backward, then read).
        assert taken <= 2 * (2000 + 4 * PART)

    browse(tmp_path / "t-0", act)


def _offset(hand: Hand) -> int:
    line = table(hand).current
    assert line is not None
    return line.offset


def test_scrolling_shows_every_record_once(shop: Path) -> None:
    """Down through the whole log and up again, also where parts of it meet."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 3,000")
        for by, last in ((1, 2999), (-1, 0)):
            seen = [_offset(hand)]
            while seen[-1] != last:
                table(hand).action_move(by)
                if _offset(hand) == seen[-1]:
                    await hand.pilot.pause()  # until further rows were read
                else:
                    seen.append(_offset(hand))
            assert seen == list(range(seen[0], last + by, by))

    browse(shop / "clicks-0", act)


def test_a_topic_is_merged(shop: Path) -> None:
    """Each row names its partition."""

    async def act(hand: Hand) -> None:
        await hand.see("0:0  2023", "1:0  2023", "p:offset", "2 partitions by time")
        await hand.press("G")
        await hand.see("1:999  2023", "partition 1, offset 999 of 1,000")

    async def through(hand: Hand) -> None:
        await hand.see("1,000", "2 partitions")
        await hand.press("a")
        await act(hand)

    browse(shop, through, topics=("orders",))


def test_one_begins_where_the_command_line_says(shop: Path) -> None:
    """`--from`, as of other commands."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 700 of 1,000")

    browse(shop / "orders-0", act, start=700)

    async def at_end(hand: Hand) -> None:
        await hand.see("offset 995 of 1,000")

    browse(shop / "orders-0", at_end, start=FromEnd(5))


@pytest.mark.parametrize(
    ("typed", "offset"),
    [("650", 650), ("-10", 990), ("1700000100000ms", 100), ("9,999", 999)],
)
def test_one_jumps_to_an_offset_or_a_time(shop: Path, typed: str, offset: int) -> None:
    """All values of `--from` are accepted."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("colon")
        await hand.see("Jump to")
        await hand.type(typed)
        await hand.press("enter")
        await hand.see(f"offset {offset} of 1,000")

    browse(shop / "orders-0", act)


def test_a_jump_that_is_not_understood_says_so(shop: Path) -> None:
    """Esc restores the previous state."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("colon")
        await hand.see("Jump to")
        await hand.type("soon")
        await hand.press("enter")
        await hand.see("'soon' is not an offset")
        await hand.press("escape")
        await hand.miss("Jump to")
        await hand.see("offset 0 of 1,000")

    browse(shop / "orders-0", act)


# ------------------------------------------------------------------ one record


def test_a_record_is_shown_as_a_whole(shop: Path) -> None:
    """It is shown below the rows and follows the cursor, in the chosen form."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("enter")
        await hand.see("orders-0  offset 0  ", "value: 12 bytes, JSON", '  "order": 0')
        await hand.press("down")
        await hand.see('  "order": 1')
        await hand.press("v")
        await hand.see("value: 12 bytes, text")
        await hand.press("v", "v")
        await hand.see("0000: 7b22 6f72 6465 7222 3a20 317d")
        await hand.press("z")
        await hand.see("batch", "0..49  at 0")
        await hand.press("n")
        await hand.see("orders-0  offset 2  ")
        await hand.press("escape")
        await hand.miss("batch")
        await hand.see("offset 2 of 1,000")

    browse(shop / "orders-0", act)


def test_nothing_of_a_hostile_record_breaks_the_screen(tmp_path: Path) -> None:
    """Rows, keys, values and headers of every kind, also in a narrow terminal."""
    config = logstore.TopicConfig(message_format=2, max_message_bytes=1 << 24)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", 1, config)[0]
        for value in (*HOSTILE, b"big" * 3_000_000):
            name = value[:100].decode("utf-8", "replace")
            partition.append(value, key=value[:1000], headers=[(name, value[:1000])])

    async def act(hand: Hand) -> None:
        await hand.see(f"offset 0 of {len(HOSTILE) + 1}")
        assert "[bold red]x[/]" in hand.text()
        await hand.press("enter")
        for number in range(len(HOSTILE) + 1):
            await hand.see(f"t-0  offset {number}  ")
            for strip in hand.text().splitlines():
                assert strip.isprintable()
            await hand.press("down")
        await hand.pilot.resize_terminal(30, 8)
        await hand.press("up", "up")
        await hand.see("of 14")
        assert hand.app.return_value is None

    browse(tmp_path / "t-0", act)


# ------------------------------------------------------------------ damage


def test_damage_has_its_row_and_the_records_behind_it(damaged: Path) -> None:
    """There is no traceback; the row in full has the reason."""

    async def act(hand: Hand) -> None:
        await hand.see(
            "offset 445 of 1,000", "damaged: offsets 450..499", "   500  2023"
        )
        await hand.press("j", "j", "j", "j", "j", "enter")
        await hand.see("offset 450 of 1,000")
        pane = hand.app.screen.query_one(DocumentView)
        assert pane.display
        await hand.press("G")
        await hand.see("offset 999 of 1,000")

    browse(damaged / "orders-1", act, start=445)


def test_records_that_go_under_the_reader_are_told(shop: Path) -> None:
    """Retention deletes them; reading again shows the remaining records."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 3,000")
        with logstore.open(shop) as store:
            store.topic("clicks")[0].delete_before(900)
        await hand.press("r")
        await hand.see("deleted: offsets 0..899 are gone", "900  20")

    browse(shop / "clicks-0", act)


def test_a_directory_that_goes_is_a_message(shop: Path) -> None:
    """The records that were read stay on the screen."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 3,000")
        (shop / "clicks-0").rename(shop / "gone")
        await hand.press("G")
        await hand.see("clicks-0", "no longer")
        assert rows(hand)[0] == 0

    browse(shop / "clicks-0", act)


def test_a_record_that_cannot_be_opened_is_a_message(shop: Path) -> None:
    """Its row was read before; the pane does not stay at another record."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 3,000")
        await hand.press("enter")
        await hand.see("clicks-0  offset 0  ")
        (shop / "clicks-0").rename(shop / "gone")
        await hand.press("down")
        await hand.see("no longer")
        await hand.miss("clicks-0  offset 0  ")

    browse(shop / "clicks-0", act)


def test_a_batch_above_the_limit_is_a_message(shop: Path) -> None:
    """The message names the option that raises it."""

    async def act(hand: Hand) -> None:
        await hand.see("--max-batch-decompressed-bytes")

    config = logstore.StoreConfig(max_batch_decompressed_bytes=1024)
    browse(shop / "clicks-0", act, config=config)


# ------------------------------------------------------------------ search


async def search(hand: Hand, key: str, pattern: str = "") -> None:
    await hand.press("equals_sign")
    await hand.see("exactly this key")
    await hand.type(key)
    await hand.press("tab")
    await hand.type(pattern)
    await hand.press("enter")
    await hand.miss("exactly this key")


def test_a_key_is_found_in_the_whole_log(shop: Path) -> None:
    """The status line has the progress; Esc leads back to the previous place."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("space")
        await hand.see("offset 20 of 1,000")
        await search(hand, "user-077")
        await hand.see("10 matches   looked at 1,000 of 1,000 offsets")
        assert rows(hand) == list(range(77, 1000, 100))
        await hand.press("escape")
        await hand.see("offset 20 of 1,000")

    browse(shop / "orders-0", act)


def test_a_match_leads_to_its_place_in_the_log(shop: Path) -> None:
    """`c` shows the records around a match; Enter opens it in place."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await search(hand, "", "order.: 31[0-9]}")
        await hand.see("10 matches")
        await hand.press("down", "enter")
        await hand.see("orders-0  offset 311  ")
        await hand.press("escape", "c")
        await hand.see("offset 311 of 1,000")
        assert rows(hand)[:3] == [311, 312, 313]

    browse(shop / "orders-0", act)


def test_what_is_searched_must_be_understood(shop: Path) -> None:
    """An empty search, an incomplete expression and an incomplete byte are refused."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("slash")
        await hand.see("regular expression")
        await hand.press("enter")
        await hand.see("give a key, a regular expression, or both")
        await hand.press("left_parenthesis", "enter")
        await hand.see("is not a regular expression")
        hand.app.screen.query_one("#input-1", Input).value = "a{99999999999}"
        await hand.press("enter")
        await hand.see("is not a regular expression: the repetition number")
        await hand.press("shift+tab")
        await hand.type("hex:0")
        await hand.press("enter")
        await hand.see("hex:0")
        await hand.press("escape")
        await hand.see("offset 0 of 1,000")

    browse(shop / "orders-0", act)


def test_damage_is_part_of_what_is_found(damaged: Path) -> None:
    """A record with the key may be in it."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await search(hand, "user-060")
        await hand.see("9 matches, 1 damaged part", "damaged: offsets 450..499")

    browse(damaged / "orders-1", act)


def test_q_waits_for_no_read(shop: Path, monkeypatch: Any) -> None:
    """A long read, as in a damaged log, ends with the process."""
    going, reached = threading.Event(), threading.Event()

    def slow(self: BrowserView, place: Any) -> Any:
        reached.set()
        going.wait(60)

    monkeypatch.setattr(BrowserView, "backward", slow)

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("G")
        await hand.until(reached.is_set, "read")
        await hand.press("q")

    try:
        begin = time.monotonic()
        assert browse(shop / "orders-0", act) == 0
        assert time.monotonic() - begin < 30
    finally:
        going.set()


def test_a_screen_that_is_left_stops_its_work(shop: Path, monkeypatch: Any) -> None:
    """The work stops at its next record."""
    going, stopped = threading.Event(), threading.Event()
    forward = BrowserView.forward

    def slow(self: BrowserView, *args: Any, **options: Any) -> Any:
        going.wait(60)
        try:
            return forward(self, *args, **options)
        except TaskStoppedError:
            stopped.set()
            raise

    monkeypatch.setattr(BrowserView, "forward", slow)

    async def act(hand: Hand) -> None:
        await hand.see("2 topics, ")
        await hand.press("enter")
        await hand.see("clicks / partition 0", "reading ...")
        await hand.press("escape")
        await hand.see("2 topics, ")
        going.set()
        await hand.until(stopped.is_set, "stopped")

    try:
        browse(shop, act)
    finally:
        going.set()


def test_a_search_can_be_stopped(shop: Path, monkeypatch: Any) -> None:
    """Esc stops it, and shows its progress; the keys work all the while."""
    going, reached = threading.Event(), threading.Event()
    read = BrowserView.read

    def slow(self: BrowserView, *args: Any, **options: Any) -> Any:
        for number, one in enumerate(read(self, *args, **options)):
            if number == 500:
                reached.set()
                going.wait(60)
            yield one

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 3,000")
        monkeypatch.setattr(BrowserView, "read", slow)
        monkeypatch.setattr("logstore.cli.browse.hunt._REPORT_S", 0)
        await search(hand, "none")
        await hand.until(reached.is_set, "searched")
        await hand.see("no matches   looked at")
        await hand.press("question_mark")
        await hand.see("Jump: ")
        await hand.press("escape")
        await hand.miss("Jump: ")
        await hand.press("escape")
        await hand.see("of 3,000 offsets   stopped")
        monkeypatch.setattr(BrowserView, "read", read)
        going.set()
        await hand.press("escape")
        await hand.see("offset 0 of 3,000")

    try:
        browse(shop / "clicks-0", act)
    finally:
        going.set()


def test_many_matches_are_shown_in_parts(tmp_path: Path) -> None:
    """Rows are bounded: `m` continues."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"x%d" % n for n in range(2500)])

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 2,500")
        await search(hand, "", "x")
        await hand.see("1,000 matches   looked at 1,000 of 2,500 offsets   m: more")
        assert len(table(hand).lines) == 1000
        await hand.press("m")
        await hand.see("2,000 matches   looked at 2,000 of 2,500 offsets   m: more")
        assert rows(hand)[0] == 1000
        await hand.press("m")
        await hand.see("2,500 matches   looked at 2,500 of 2,500 offsets")
        assert len(table(hand).lines) == 500

    browse(tmp_path / "t-0", act)


def test_a_search_in_a_log_that_goes_is_a_message(shop: Path) -> None:
    """The screen can be left."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 3,000")
        (shop / "clicks-0").rename(shop / "gone")
        await search(hand, "none")
        await hand.see("no longer")
        (shop / "gone").rename(shop / "clicks-0")
        await hand.press("escape")
        await hand.see("offset 0 of 3,000")

    browse(shop / "clicks-0", act)


# ------------------------------------------------------------------ following


def test_following_shows_what_is_appended(tmp_path: Path) -> None:
    """Records are shown as they come, until following is switched off."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        partition.append_many([b"old"] * 10)

        async def act(hand: Hand) -> None:
            await hand.see("offset 0 of 10")
            await hand.press("f")
            await hand.see("   following", "offset 9 of 10")
            partition.append(b"new 1")
            await hand.see("new 1", "offset 10 of 11")
            partition.append_many([b"more"] * 3000)
            await hand.see("offset 3,010 of 3,011")
            assert len(table(hand).lines) <= KEPT
            await hand.press("f")
            await hand.miss("   following")
            partition.append(b"new 2")
            await hand.pilot.pause(0.7)
            assert "new 2" not in hand.text()

        browse(tmp_path / "t-0", act)


def test_following_leaves_one_where_one_reads(tmp_path: Path) -> None:
    """After scrolling up, the cursor is not moved to the end."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        partition.append_many([b"old"] * 100)

        async def act(hand: Hand) -> None:
            await hand.see("offset 0 of 100")
            await hand.press("f")
            await hand.see("   following", "offset 99 of 100")
            await hand.press("up")
            partition.append(b"new")
            await hand.see("offset 98 of 101")
            await hand.press("down", "down")
            await hand.see("offset 100 of 101")

        browse(tmp_path / "t-0", act)


def test_following_ends_with_the_log(tmp_path: Path) -> None:
    """A deleted topic is shown as one message, not as three per second."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append(b"old")
        store.create_topic("other")

        async def act(hand: Hand) -> None:
            await hand.see("offset 0 of 1")
            await hand.press("f")
            await hand.see("   following")
            store.delete_topic("t")
            await hand.until(lambda: not page(hand)._rows.follows, "stopped")
            assert "   following" not in hand.text()
            await hand.press("escape")
            await hand.see("has no topic t; it has other")

        browse(tmp_path, act, topics=("t",))


def page(hand: Hand) -> RecordsPage:
    assert isinstance(hand.app.screen, RecordsPage)
    return hand.app.screen
