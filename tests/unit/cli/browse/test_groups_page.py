"""The screens of groups of consumers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import logstore
from logstore.cli.browse import groups_page
from logstore.cli.group_list import FoundGroups, ListedGroup, ListedMember, groups_in
from logstore.io import layout
from support.browsing import Hand, browse
from support.offsets_topic import commit_of


def committed(shop: Path, offset: int = 400) -> logstore.Consumer:
    consumer = logstore.Consumer(shop, group="billing")
    consumer.assign([logstore.TopicPartition("orders", 0)])
    consumer.commit({logstore.TopicPartition("orders", 0): offset})
    return consumer


def test_groups_have_their_lag_and_members(shop: Path) -> None:
    """They are as in `groups list` and `groups describe`; Enter on a partition shows
    the records that the group will read next."""

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("billing", "logstore", " 600 ", "1 group")
        await hand.press("enter")
        await hand.see("groups / billing", "orders-0", " 400 ", " 600 ", "process ")
        await hand.press("enter")
        await hand.see("offset 400 of 1,000")
        await hand.press("escape", "escape")
        await hand.see("1 group")

    with committed(shop):
        browse(shop, act)


def test_lag_is_live(shop: Path) -> None:
    """Commits of the group are shown without a key press."""
    with committed(shop) as consumer:

        async def act(hand: Hand) -> None:
            await hand.press("2")
            await hand.see(" 600 ")
            consumer.commit({logstore.TopicPartition("orders", 0): 990})
            await hand.see(" 10 ")

        browse(shop, act)


def test_a_stuck_member_stands_out(shop: Path, monkeypatch: Any) -> None:
    """It is marked in the list and in the group, and a sentence explains it."""
    note = "group billing: process 7 holds orders-0 and is stuck: its poll is overdue"

    def stuck(paths: Any) -> FoundGroups:
        found = groups_in(paths)
        rows = found.listed[0].rows
        member = ListedMember("m", None, 1, pid=7, is_stuck=True)
        one = ListedGroup("billing", "logstore", "Stable", 3, [member], rows)
        return found._replace(listed=[one])

    monkeypatch.setattr(groups_page, "groups_in", stuck)
    monkeypatch.setattr(groups_page, "about_members", lambda own: [note, note])

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("process 7 holds orders-0 and is stuck", "more note)")
        await hand.press("enter")
        await hand.see("STUCK", "process 7")

    with committed(shop):
        browse(shop, act)


def test_groups_that_take_long_to_read_are_shown(shop: Path, monkeypatch: Any) -> None:
    """The next read begins after the end of the previous one; two never run at once."""
    monkeypatch.setattr(groups_page, "_AGAIN_S", 0.02)
    reading = most = reads = 0

    def slow(paths: Any) -> FoundGroups:
        nonlocal reading, most, reads
        reading, reads = reading + 1, reads + 1
        most = max(most, reading)
        time.sleep(0.2)
        reading -= 1
        return groups_in(paths)

    monkeypatch.setattr(groups_page, "groups_in", slow)

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("billing", "1 group")
        await hand.until(lambda: reads >= 3, "read again")

    with committed(shop):
        browse(shop, act)
    assert most == 1


def test_groups_are_read_again_after_a_failure(shop: Path, monkeypatch: Any) -> None:
    """The failure is shown meanwhile."""
    monkeypatch.setattr(groups_page, "_AGAIN_S", 0.02)
    errors = [OSError("disk"), KeyError("nothing")]

    def failing(paths: Any) -> FoundGroups:
        if errors:
            raise errors[0]
        return groups_in(paths)

    monkeypatch.setattr(groups_page, "groups_in", failing)

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("disk")
        errors.pop(0)
        await hand.see("KeyError: 'nothing'")
        errors.pop(0)
        await hand.see("billing", "1 group")

    with committed(shop):
        browse(shop, act)


def test_the_status_of_a_group_is_live(shop: Path) -> None:
    """Its members come and go while it is shown."""
    committed(shop).close()

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("billing")
        await hand.press("enter")
        await hand.see("groups / billing", "no members")
        with committed(shop):
            await hand.see("1 member", "process ")

    browse(shop, act)


def test_a_group_that_goes_is_a_message(shop: Path, monkeypatch: Any) -> None:
    """The group is deleted while it is shown."""

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("billing")
        await hand.press("enter")
        await hand.see("groups / billing")
        empty = groups_in([str(shop)])._replace(listed=[])
        monkeypatch.setattr(groups_page, "groups_in", lambda paths: empty)
        await hand.see("group billing no longer exists")

    with committed(shop):
        browse(shop, act)


def test_groups_of_a_broker_are_shown(tmp_path: Path) -> None:
    """They are read from `__consumer_offsets`."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2)
        key, value = commit_of(12, "billing", "orders")
        store.create_topic("__consumer_offsets", 1, config).append(value, key=key)

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("billing", "1 group")
        await hand.press("enter")
        await hand.see("orders-", " 12 ")

    browse(tmp_path, act)


def test_a_damaged_file_of_a_group_is_a_message(shop: Path) -> None:
    """`groups list` reports it in the same way."""
    committed(shop).close()
    file = shop / layout.group_file("billing")
    file.write_bytes(file.read_bytes() + b"x")

    async def act(hand: Hand) -> None:
        await hand.press("2")
        await hand.see("is damaged at byte")

    browse(shop, act, size=(300, 24))


def test_a_partition_has_no_groups(shop: Path) -> None:
    """Groups belong to the whole directory."""

    async def act(hand: Hand) -> None:
        await hand.see("offset 0 of 1,000")
        await hand.press("2")
        await hand.see("groups are those of a whole directory: PATH is a partition")

    browse(shop / "orders-0", act)
