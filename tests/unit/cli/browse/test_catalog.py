"""Contents of a directory, without a screen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.browse.catalog import (
    BrowserCatalog,
    check_path,
    duration_text,
    partition_of,
    policy_text,
    problems_by_partition,
    rows_of,
)
from logstore.store.catalog import topic_settings
from support.golden import SLICE

BOTH = {"cleanup_policy": "compact,delete", "retention_ms": 3_600_000}


@contextlib.contextmanager
def opened(path: Path, *arguments: tuple[object, ...]) -> Iterator[BrowserCatalog]:
    with contextlib.closing(BrowserCatalog(str(path), *arguments)) as catalog:  # type: ignore[arg-type]
        yield catalog


def test_a_topic_is_the_sum_of_its_partitions(shop: Path) -> None:
    """Sums are as `ls` shows them; the format is that of the first batches."""
    with opened(shop) as catalog:
        clicks, orders = rows_of(catalog, lambda: None)
    assert (clicks.name, orders.name) == ("clicks", "orders")
    assert (len(orders.partitions), orders.offsets, orders.records) == (2, 2000, None)
    assert (clicks.form, orders.form) == ("v2 lz4", "v2 none")
    assert (orders.first_ms, orders.last_ms) == (1_700_000_000_000, 1_700_000_999_500)
    files = sum(path.stat().st_size for path in shop.glob("orders-*/*.log"))
    assert orders.size == files


def test_counting_is_that_of_stat(damaged: Path) -> None:
    """Damage is skipped; the rows show the count from then on."""
    seen: list[tuple[int, int]] = []
    with opened(damaged) as catalog:
        catalog.count([("orders", 0), ("orders", 1)], lambda *one: seen.append(one))
        row = catalog.topic_row("orders")
    assert [one.tally and one.tally.records for one in row.partitions] == [1000, 950]
    assert row.records == 1950
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_count_is_that_of_the_log_that_was_counted(tmp_path: Path) -> None:
    """It is forgotten when the log grows, its start is deleted, or another topic has
    its name."""
    config = logstore.TopicConfig(message_format=2, segment_bytes=4096)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", 1, config)[0]
        partition.append_many([b"x"] * 10)
        partition.flush()
        with opened(tmp_path) as catalog:

            def counted() -> int | None:
                return catalog.topic_row("t").records

            def count() -> int | None:
                catalog.count([("t", 0)], lambda done, total: None)
                return counted()

            assert (counted(), count(), counted()) == (None, 10, 10)
            for _ in range(200):
                partition.append(b"y" * 100)
            partition.flush()
            assert (counted(), count()) == (None, 210)
            partition.delete_before(100)
            assert counted() is None
            assert (count() or 0) < 210
            store.delete_topic("t")
            store.create_topic("t", 1, config)[0].append_many([b"x"] * 10)
            store.topic("t")[0].flush()
            assert (counted(), count()) == (None, 10)


def test_what_is_appended_while_counting_is_not_counted(tmp_path: Path) -> None:
    """The count is of the offsets that are shown with it."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        partition.append_many([b"x"] * 10)

        def grow(done: int, total: int) -> None:
            assert done <= total
            partition.append_many([b"x"] * 5)

        with opened(tmp_path) as catalog:
            catalog.count([("t", 0)], grow)
            assert catalog.topic_row("t").records is None
            catalog.count([("t", 0)], lambda done, total: None)
            assert catalog.topic_row("t").records == partition.end_offset


@pytest.mark.parametrize("error", [logstore.StorageError("gone"), OSError("gone")])
def test_counting_goes_on_behind_a_topic_that_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The others are counted; the progress ends at its end."""
    read = logstore.Partition.read_batches

    def failing(self: logstore.Partition, *args: Any, **options: Any) -> Any:
        if self.topic == "b" and options.get("limit") is None:
            raise error
        return read(self, *args, **options)

    monkeypatch.setattr(logstore.Partition, "read_batches", failing)
    seen: list[tuple[int, int]] = []
    with logstore.open(tmp_path) as store:
        for name in "abc":
            store.create_topic(name)[0].append_many([b"x"] * 50)
        with opened(tmp_path) as catalog:
            names = [(name, 0) for name in "abc"]
            catalog.count(names, lambda *one: seen.append(one))
            assert [catalog.topic_row(n).records for n in "abc"] == [50, None, 50]
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_topic_that_is_deleted_while_counting_is_left_out(tmp_path: Path) -> None:
    """The process that writes deletes it."""
    with logstore.open(tmp_path) as store:
        for name in "abc":
            store.create_topic(name)[0].append_many([b"x"] * 50)

        def delete(done: int, total: int) -> None:
            if "b" in store.topics():
                store.delete_topic("b")

        with opened(tmp_path) as catalog:
            catalog.count([(name, 0) for name in "abc"], delete)
            assert [row.records for row in rows_of(catalog, lambda: None)] == [50, 50]


def test_counting_ends_when_it_is_told_to(shop: Path) -> None:
    """An exception of the progress ends it, and nothing is counted half."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with opened(shop) as catalog:
        with pytest.raises(KeyboardInterrupt):
            catalog.count([("orders", 0)], stop)
        assert catalog.topic_row("orders").records is None


def test_a_partition_that_cannot_be_read_says_why(shop: Path) -> None:
    """The other one is shown as usual."""
    with opened(shop) as catalog:
        catalog.topic_row("orders")
        (shop / "orders-1").rename(shop.parent / "away")
        good, bad = catalog.topic_row("orders").partitions
    assert (good.listed is not None, good.trouble) == (True, "")
    assert bad.listed is None
    assert "orders-1" in bad.trouble


def test_a_topic_with_invalid_settings_says_why(misconfigured: Path) -> None:
    """Its partitions do, too; the other topics are shown as before."""
    with opened(misconfigured) as catalog:
        clicks, orders = rows_of(catalog, lambda: None)
    assert "settings of topic clicks are not valid" in clicks.trouble
    assert "settings of topic clicks are not valid" in clicks.partitions[0].trouble
    assert (orders.trouble, orders.offsets) == ("", 2000)


def test_a_topic_of_a_broker_is_shown_without_a_look_for_its_format(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look reads the end of each log, and only appends need the format."""

    def refused(*_: object) -> int:
        raise AssertionError("the logs are read for the format of appends")

    (shop / ".logstore-topics").unlink()
    monkeypatch.setattr(topic_settings, "continued_format", refused)
    with opened(shop) as catalog:
        row = catalog.topic_row("orders")
    assert (row.policy, row.trouble, row.offsets) == ("-", "", 2000)


def test_a_damaged_first_batch_is_trouble_of_the_row(shop: Path) -> None:
    """Size and offsets of the partition are still shown."""
    log = shop / "orders-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with opened(shop) as catalog:
        row = catalog.topic_row("orders").partitions[0]
    assert row.listed is not None
    assert row.listed.end == 1000
    assert f"{0:020}.log at byte 0" in row.trouble


def test_topics_and_partitions_can_be_chosen(shop: Path) -> None:
    """They are chosen as by the options of the other commands, with the same errors."""
    with opened(shop, ("ord*",), (1,)) as catalog:
        assert catalog.names() == ["orders"]
        assert catalog.numbers("orders") == (1,)
        assert list(catalog.view("orders").partitions) == [1]
    with pytest.raises(logstore.TopicNotFoundError, match="did you mean orders"):
        BrowserCatalog(str(shop), ("order",))
    with pytest.raises(logstore.errors.PartitionNotFoundError, match="no partition 7"):
        BrowserCatalog(str(shop), (), (7,))


def test_new_topics_are_seen(shop: Path) -> None:
    """Another process may write the store."""
    with opened(shop) as catalog, logstore.open(shop) as store:
        store.create_topic("visits")
        assert catalog.names() == ["clicks", "orders", "visits"]


def test_a_partition_directory_is_one_partition(shop: Path) -> None:
    """Its groups are elsewhere, and `verify` is asked about it alone."""
    with opened(shop / "orders-1") as catalog:
        assert (catalog.names(), catalog.numbers("orders")) == (["orders"], (1,))
        assert (catalog.is_store, catalog.target) == (False, str(shop / "orders-1"))


def test_a_directory_that_is_gone_is_an_error(shop: Path) -> None:
    """An empty list would be wrong."""
    with opened(shop) as catalog:
        shop.rename(shop.parent / "away")
        with pytest.raises(
            logstore.StoreNotFoundError, match="no such file or directory:"
        ):
            list(rows_of(catalog, lambda: None))


def test_a_directory_of_a_broker_is_a_store(tmp_path: Path) -> None:
    """It has the topics that Kafka wrote; their settings are elsewhere."""
    with opened(SLICE / "4.2.0" / "clean") as catalog:
        rows = list(rows_of(catalog, lambda: None))
    assert rows
    assert {row.policy for row in rows} == {"-"}
    assert not [one.trouble for row in rows for one in row.partitions if one.trouble]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "-"),
        ({"retention_ms": 7 * 86_400_000}, "delete 7 d"),
        ({"retention_ms": 1500, "retention_bytes": 5 << 30}, "delete 1,500 ms 5.0 GiB"),
        ({"cleanup_policy": "compact"}, "compact"),
        (BOTH, "compact,delete 1 h"),
        ({"cleanup_policy": ""}, "keeps all"),
    ],
)  # fmt: skip
def test_what_a_topic_keeps_is_in_a_few_words(
    settings: dict[str, object], text: str
) -> None:
    """Default settings are not shown."""
    assert policy_text(logstore.TopicConfig(**settings)) == text  # type: ignore[arg-type]


def test_durations_have_the_largest_exact_unit() -> None:
    """90 minutes are no hours."""
    assert duration_text(5_400_000) == "90 min"
    assert duration_text(0) == "0 ms"


def test_problems_are_counted_by_partition(damaged: Path) -> None:
    """The directory of a file names the partition."""
    report = logstore.verify(damaged)
    assert problems_by_partition(report).keys() == {("orders", 1)}
    assert partition_of("/data/orders-1/00.log") == ("orders", 1)
    assert partition_of("/data/orders-1") == ("orders", 1)
    assert partition_of("/data/recovery-point-offset-checkpoint") is None


def test_files_and_other_names_are_refused(shop: Path, tmp_path: Path) -> None:
    """The error names the command that shows them."""
    with pytest.raises(logstore.StoreNotFoundError, match="`logstore-dump records`"):
        check_path(str(shop / "orders-0" / f"{0:020}.log"))
    (shop / "orders-0").rename(tmp_path / "saved")
    with pytest.raises(logstore.StoreNotFoundError, match="such as orders-0"):
        check_path(str(tmp_path / "saved"))
