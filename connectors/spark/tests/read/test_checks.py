"""Checks of the store in `load()`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import ConfigError, StoreNotFoundError
from pyspark_logstore.read.checks import check_source
from pyspark_logstore.read.options import parse, parse_any


def check(path: object, directory: str = "", **given: str) -> None:
    """Check the options of a batch query, and of a stream."""
    given = {"path": str(path), **given}
    for streaming in (False, True):
        options = parse(given, streaming=streaming)
        check_source(options, streaming=streaming, directory=directory)
    options, kind = parse_any(given)
    check_source(options, streaming=kind, directory=directory)


def refused(path: object, **given: str) -> list[str]:
    """The errors of a batch query and of a stream."""
    errors = []
    for streaming in (False, True):
        options = parse({"path": str(path), **given}, streaming=streaming)
        with pytest.raises((ConfigError, StoreNotFoundError)) as caught:
            check_source(options, streaming=streaming)
        errors.append(str(caught.value))
    return errors


def test_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A missing directory, an empty one, a foreign one, a file, a partition."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("text")
    with logstore.open(tmp_path / "store") as store:
        store.create_topic("orders")[0].append(b"value")
    for name in ("none", "empty", "other", "other/file"):
        for error in refused(tmp_path / name, subscribe="orders"):
            assert f"there is no store at {tmp_path / name}" in error
    for error in refused(tmp_path / "store" / "orders-0", subscribe="orders"):
        assert "is the directory of a partition; the store is its parent" in error


def test_topic_that_is_not_there_is_named(
    make_topic: Callable[..., logstore.Topic], writer: logstore.Store
) -> None:
    """The error names the existing ones; a pattern may match nothing yet."""
    make_topic("bills")
    for error in refused(writer.path, subscribe="bills,orders"):
        assert "has no topic orders; its topics: bills" in error
    for error in refused(writer.path, assign='{"bills": [0, 3]}'):
        assert "has no partition bills-3" in error
    for given in (
        {"subscribe": "bills"},
        {"assign": '{"bills": [0]}'},
        {"subscribePattern": "ord.*"},
    ):
        check(writer.path, **given)


def test_relative_path_begins_where_it_is_said(
    make_topic: Callable[..., logstore.Topic], writer: logstore.Store, tmp_path: Path
) -> None:
    make_topic()
    check(os.path.basename(writer.path), str(tmp_path), subscribe="orders")
    with pytest.raises(StoreNotFoundError):
        check(os.path.basename(writer.path), "/", subscribe="orders")


def test_offsets_of_a_batch_name_the_partitions_that_there_are(
    make_topic: Callable[..., logstore.Topic], writer: logstore.Store
) -> None:
    """A stream checks them when it is new; later a partition may have been added."""
    make_topic(partitions=2, count=10)
    for option in ("startingOffsets", "startingOffsetsByTimestamp", "endingOffsets"):
        given = {
            "path": writer.path,
            "subscribe": "orders",
            option: '{"orders":{"0":5}}',
        }
        with pytest.raises(ConfigError, match="not named: orders-1") as caught:
            check_source(parse(given, streaming=False), streaming=False)
        assert caught.value.name == option
    given = {"path": writer.path, "subscribe": "orders"}
    given["startingOffsets"] = '{"orders":{"0":5}}'
    check_source(parse(given, streaming=True), streaming=True)


def test_stream_may_go_on_without_a_topic_that_was_deleted(
    make_topic: Callable[..., logstore.Topic], writer: logstore.Store, tmp_path: Path
) -> None:
    """This needs failOnDataLoss=false. A store must exist."""
    make_topic("bills")
    given = {"subscribe": "bills,orders", "failOnDataLoss": "false"}
    options = parse({"path": writer.path, **given}, streaming=True)
    check_source(options, streaming=True)
    # The kind of query is unknown.
    check_source(options, streaming=None)
    with pytest.raises(ConfigError):
        check_source(
            parse({"path": writer.path, **given}, streaming=False), streaming=False
        )
    with pytest.raises(StoreNotFoundError):
        check_source(parse({"path": "/none", **given}, streaming=True), streaming=True)


def test_directory_for_the_start_of_a_stream_exists(
    make_topic: Callable[..., logstore.Topic], writer: logstore.Store, tmp_path: Path
) -> None:
    make_topic()
    given = {"path": writer.path, "subscribe": "orders", "readerId": "a"}
    options = parse({**given, "stateDir": str(tmp_path)}, streaming=True)
    check_source(options, streaming=True)
    options = parse({**given, "stateDir": "state"}, streaming=True)
    with pytest.raises(ConfigError, match="stateDir='state': there is no such"):
        check_source(options, streaming=True, directory=str(tmp_path))
    (tmp_path / "state").mkdir()
    check_source(options, streaming=True, directory=str(tmp_path))
