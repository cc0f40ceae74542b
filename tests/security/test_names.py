"""One rule for names, of callers and of files on disk: no accepted name leads out of a
directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from logstore.io import layout
from support.values import expected, fill, new_partition

BAD = [
    "", ".", "..", "../x", "/etc", "a/b", "a\0", "a\n", "a ", "\uff41", "а", "é", "~",  # noqa: RUF001 - lookalikes are the point
    "x" * 250, "a\\b", "%2e%2e", "a:b", "$(x)", "a;b", "*", "-\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD, ids=[ascii(n)[:20] for n in BAD])
def test_bad_name_is_refused_by_every_call(tmp_path: Path, name: str) -> None:
    """Nothing is created, inside or outside."""
    with logstore.open(tmp_path / "data") as store:
        before = sorted(os.listdir(tmp_path / "data"))
        with pytest.raises(logstore.ConfigError):
            store.create_topic(name)
        for call in (store.topic, store.delete_topic):
            with pytest.raises(logstore.TopicNotFoundError):
                call(name)
        assert sorted(os.listdir(tmp_path / "data")) == before
    assert os.listdir(tmp_path) == ["data"]


@given(st.text(max_size=260) | st.text("abc.-_/\0\n", max_size=12))
def test_name_is_taken_if_and_only_if_kafka_takes_it(name: str) -> None:
    """1 to 249 of [A-Za-z0-9._-], and neither `.` nor `..`."""
    good = re.fullmatch(r"[A-Za-z0-9._\-]{1,249}", name, re.ASCII) is not None
    good = good and name not in (".", "..") and not name.endswith("\n")
    try:
        assert layout.check_topic_name(name) == name
        taken = True
    except logstore.ConfigError:
        taken = False
    assert taken == good


names = st.text("aA0._-", min_size=1, max_size=12) | st.text(max_size=30)


@given(names)
def test_directory_is_a_partition_only_by_a_name_that_could_be_made(name: str) -> None:
    """A name found on disk is formatted back to the very same name, or is no
    partition."""
    found = layout.parse_partition_directory(name)
    if found is not None:
        topic, number = found
        assert layout.check_topic_name(topic) == topic
        assert layout.partition_directory(topic, number) == name
    segment = layout.parse_segment_file(name)
    if segment is not None:
        base, suffix, transition = segment
        assert layout.segment_file(base, suffix) + transition == name
    for found_name in (name, *([] if found is None else found[:1])):
        if found is not None or segment is not None:
            assert os.sep not in found_name
            assert "\0" not in found_name


def test_names_that_look_alike_are_distinct_or_refused(tmp_path: Path) -> None:
    """Case, a number as the end of a name, `.` against `_`."""
    with logstore.open(tmp_path) as store:
        for name in ("orders", "Orders", "orders-1", "orders-0"):
            fill(store.create_topic(name, 2)[1], 3)
        with pytest.raises(logstore.TopicExistsError):
            store.create_topic("a.b") and store.create_topic("a_b")
        assert store.topics() == ["Orders", "a.b", "orders", "orders-0", "orders-1"]
    with logstore.open(tmp_path, read_only=True) as store:
        assert len(store.topic("orders-1")) == 2
        assert store.topic("orders")[0].end_offset == 0
        assert list(store.topic("orders-1")[1].read())


def test_file_that_shrinks_under_a_reader_is_an_error_and_no_signal(
    tmp_path: Path,
) -> None:
    """Files are read, never mapped: no SIGBUS when another process truncates one."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 3000, call=1000)
        records = partition.read()
        assert next(records) == expected(1, 0, 1)[0]
        os.truncate(tmp_path / "orders-0" / f"{0:020d}.log", 100)
        fresh = partition.read(2000)
        with pytest.raises(logstore.CorruptRecordError):
            list(fresh)
        os.truncate(tmp_path / "orders-0" / f"{0:020d}.log", 0)
    # The size becomes the one that the writer knows; the bytes are missing, and the
    # read says so.
    with logstore.open(tmp_path) as store, pytest.raises(logstore.CorruptRecordError):
        list(store.topic("orders")[0].read())
