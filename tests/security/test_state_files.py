"""Crafted state files and checkpoints, with correct checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import logstore
from logstore.config import TopicConfig, to_stored
from logstore.io import files as _files
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, state_fields
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.checkpoint.recovery_report import LOST_REPORTED_MAX
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import OFFSET_MAX
from logstore.store.catalog import topics as catalog
from support.damage import FaultyFiles, logs_in, snapshot_of
from support.disk import MemoryDisk
from support.values import append_one, expected, fill, new_partition, read_all

OWN = (".logstore-owner", ".logstore-topics", "orders-0/.logstore-state")


def sealed_with(body: bytes) -> bytes:
    """A state file with a correct checksum."""
    return b"xxh64 %016x\n%s\n" % (xxhash.xxh64_intdigest(body), body)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "in" / "data") as opened:
        fill(new_partition(opened, segment_bytes=400), 20)
    return tmp_path / "in" / "data"


def value_of(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_bytes().split(b"\n")[1])
    assert isinstance(value, dict)
    return value


def put(path: Path, value: Any) -> None:
    path.write_bytes(sealed_with(json.dumps(value).encode()))


def read_own(path: Path) -> Any:
    directory = Directory.open_root(Files(), str(path.parent))
    try:
        if path.name == layout.PARTITION_STATE:
            return PartitionState.read(directory)
        return checkpoints.read_state(directory, path.name)
    finally:
        directory.close()


BODIES = {
    "deep-list": b"[" * 100_000 + b"]" * 100_000,
    "deep-object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep-field": b'{"version":1,"x":' + b"[" * 9 + b"]" * 9 + b"}",
    "open-deep": b"[" * 100_000,
    "huge-number": b'{"version":1,"x":' + b"9" * 1_000_000 + b"}",
    "huge-negative": b'{"version":1,"x":[-' + b"9" * 20 + b"]}",
    "float": b'{"version":1,"clean":1.5}',
    "exponent": b'{"version":1e400}',
    "nan": b'{"version":1,"clean":NaN}',
    "infinity": b'{"version":1,"clean":-Infinity}',
    "list": b"[1]",
    "text": b'"version"',
    "null": b"null",
    "empty": b"",
    "not-utf8": b'{"version":1,"\xff":1}',
    "pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "version-0": b'{"version":0}',
    "version-true": b'{"version":true}',
    "no-version": b"{}",
    "trailing": b'{"version":1} {"version":1}',
}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_hostile_json_is_a_named_error(store: Path, name: str, body: bytes) -> None:
    """Never a RecursionError, never a number that takes a minute; opening succeeds."""
    (store / name).write_bytes(sealed_with(body))
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        read_own(store / name)
    assert not logstore.verify(store).ok
    with logstore.open(store) as opened:
        assert "state-damaged" in {a.label for a in opened.recovery_report.actions}
        append_one(opened.topic("orders")[0])
    assert read_all(store) == expected(1, 0, 21)


def test_depth_of_the_limit_is_read_and_one_more_is_not() -> None:
    """`STATE_DEPTH_MAX`, counted with the object itself."""
    for depth, is_fine in ((7, True), (8, False)):
        body = b'{"version":1,"x":' + b"[" * depth + b"]" * depth + b"}"
        if is_fine:
            assert checkpoints.unpack_state("p", sealed_with(body))["version"] == 1
        else:
            with pytest.raises(logstore.errors.CorruptCheckpointError, match="8 deep"):
                checkpoints.unpack_state("p", sealed_with(body))


def test_number_of_the_limit_is_read_and_one_digit_more_is_not() -> None:
    """19 digits hold each 64-bit number; digits inside a name are no number."""
    good = b'{"version":1,"x":[-9223372036854775808,9223372036854775807]}'
    assert checkpoints.unpack_state("p", sealed_with(good))["x"][1] == (1 << 63) - 1
    name = b'{"version":1,"%s":1}' % (b"1" * 200)
    assert len(checkpoints.unpack_state("p", sealed_with(name))) == 2
    bad = b'{"version":1,"x":[10000000000000000000]}'
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="19 digits"):
        checkpoints.unpack_state("p", sealed_with(bad))


@pytest.mark.parametrize("name", [*OWN, "recovery-point-offset-checkpoint"])
def test_file_of_the_limit_is_read_and_one_byte_more_is_not(
    store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`STATE_BYTES_MAX`; a larger file is never read into memory."""
    size = (store / name).stat().st_size
    monkeypatch.setattr(checkpoints, "STATE_BYTES_MAX", size)
    assert not [p for p in logstore.verify(store).problems if p.path.endswith(name)]
    with (store / name).open("ab") as file:
        file.write(b"\n")
    assert [p for p in logstore.verify(store).problems if p.path.endswith(name)]


def test_state_that_nobody_could_read_again_is_not_written(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit it is written, one byte beyond it the old file stays."""
    root = Directory.open_root(Files(), str(store))
    value = {"clean": True, "fingerprints": []}
    size = len(checkpoints.pack_state(value))
    monkeypatch.setattr(checkpoints, "STATE_BYTES_MAX", size)
    checkpoints.write_state(root, ".logstore-owner", value)
    before = (store / ".logstore-owner").read_bytes()
    monkeypatch.setattr(checkpoints, "STATE_BYTES_MAX", size - 1)
    with pytest.raises(OSError, match="state file"):
        checkpoints.write_state(root, ".logstore-owner", value)
    assert (store / ".logstore-owner").read_bytes() == before
    root.close()


BAD_TOPICS: dict[str, Any] = {
    "up": {"../evil": {"partitions": 1, "config": {}, "creating": True}},
    "up-deleting": {"../victim": {"partitions": 1, "deleting": True}},
    "absolute": {"/tmp/evil": {"partitions": 1, "config": {}, "creating": True}},
    "slash": {"a/b": {"partitions": 1, "config": {}, "creating": True}},
    "empty": {"": {"partitions": 1, "config": {}}},
    "dots": {"..": {"partitions": 1, "config": {}, "creating": True}},
    "nul": {"a\0b": {"partitions": 1, "config": {}, "creating": True}},
    "newline": {"a\n": {"partitions": 1, "config": {}, "creating": True}},
    "wide": {"\uff41": {"partitions": 1, "config": {}, "creating": True}},
    "250": {"x" * 250: {"partitions": 1, "config": {}, "creating": True}},
    "negative": {"a": {"partitions": -1, "config": {}}},
    "zero": {"a": {"partitions": 0, "config": {}}},
    "text": {"a": {"partitions": "1", "config": {}}},
    "bool": {"a": {"partitions": True, "config": {}}},
    "million-and-one": {"a": {"partitions": 1_000_001, "config": {}}},
    "too-many-in-all": {
        name: {"partitions": 1_000_000, "config": {}, "creating": True}
        for name in ("a", "b", "c")
    },
    "no-partitions": {"a": {"config": {}}},
    "list": {"a": []},
    "config-list": {"a": {"partitions": 1, "config": [1]}},
    "creating-text": {"a": {"partitions": 1, "config": {}, "creating": "yes"}},
    "not-an-object": [1, 2],
}


@pytest.mark.parametrize("topics", BAD_TOPICS.values(), ids=BAD_TOPICS)
def test_topics_that_cannot_be_lead_nowhere(store: Path, topics: Any) -> None:
    """Names read from files are checked by the same rule as names of callers: no
    directory is made, renamed or removed outside the store."""
    victim = store.parent / "victim-0"
    victim.mkdir()
    (victim / "00000000000000000000.log").write_bytes(b"mine")
    put(store / ".logstore-topics", {"version": 1, "topics": topics})
    beside = snapshot_of(store.parent)
    beside = {k: v for k, v in beside.items() if not k.startswith("data")}
    for read_only in (True, False):
        with logstore.open(store, read_only=read_only) as opened:
            assert opened.topics() == ["orders"]
            labels = {a.label for a in opened.recovery_report.actions}
            assert "state-damaged" in labels
    assert not logstore.verify(store).ok
    after = snapshot_of(store.parent)
    assert {k: v for k, v in after.items() if not k.startswith("data")} == beside
    assert read_all(store) == expected(1, 0, 20)


def test_partitions_of_a_store_have_a_limit_that_is_kept_when_writing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit a topic is created, beyond it nothing is changed."""
    monkeypatch.setattr(state_fields, "STORE_PARTITIONS_MAX", 4)
    with logstore.open(store) as opened:
        with pytest.raises(logstore.ConfigError, match="4"):
            opened.create_topic("more", 4)
        assert not list(store.glob("more-*"))
        assert opened.topics() == ["orders"]
        assert len(opened.create_topic("more", 3)) == 3
        with pytest.raises(logstore.ConfigError):
            opened.topic("more").add_partitions(1)
    with logstore.open(store) as opened:
        assert not opened.recovery_report


def test_lost_directories_beyond_the_limit_stop_the_opening(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred bytes must not cause a million errors; nothing is changed."""
    monkeypatch.setattr(catalog, "LOST_MAX", 3)
    topics = value_of(store / ".logstore-topics")
    for count, is_fine in ((4, True), (5, False)):
        topics["topics"]["orders"]["partitions"] = count
        put(store / ".logstore-topics", topics)
        before = snapshot_of(store)
        if is_fine:
            with logstore.open(store, read_only=True) as opened:
                assert len(opened.recovery_report.actions) == 3
        else:
            for read_only in (True, False):
                with pytest.raises(logstore.CorruptionError, match="4 partitions"):
                    logstore.open(store, read_only=read_only)
        after = snapshot_of(store)
        before.pop(".lock"), after.pop(".lock")
        assert after == before


def _row(*row: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        state["sealed"][0] = list(row)

    return change


def _field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        where = state["active"] if name in state["active"] else state
        where[name] = value

    return change


BIG = (1 << 63) - 1
BAD_STATES: dict[str, Callable[[dict[str, Any]], None]] = {
    "start-negative": _field("start_offset", -1),
    "start-text": _field("start_offset", "0"),
    "start-true": _field("start_offset", True),
    "start-null": _field("start_offset", None),
    "start-list": _field("start_offset", [0]),
    "gapless-number": _field("is_gapless", 1),
    "truncating-text": _field("is_truncating", "no"),
    "truncations-negative": _field("truncations", -1),
    "cuts-number": _field("cuts", 5),
    "cuts-row-short": _field("cuts", [[1]]),
    "cuts-negative": _field("cuts", [[1, -1]]),
    "cuts-fall": _field("cuts", [[1, 5], [2, 4]]),
    "cuts-of-the-future": _field("cuts", [[BIG, 5]]),
    "id-number": _field("log_id", 5),
    "foreign-end-negative": _field("foreign_end", -1),
    "foreign-end-text": _field("foreign_end", "0"),
    "sealed-number": _field("sealed", 5),
    "sealed-object": _field("sealed", {"a": 1}),
    "row-short": _row(0, 1, 2),
    "row-text": _row("0", 1, 2, 3, 4),
    "row-negative-base": _row(-1, 1, 2, 3, 4),
    "row-negative-size": _row(0, -1, 2, 3, 4),
    "row-backwards": _row(9, 1, 2, 3, 4),
    "row-above-the-next": _row(BIG, 1, BIG, 3, 4),
    "size-negative": _field("size", -1),
    "size-text": _field("size", "12"),
    "last-far-below": _field("last_offset", 0),
    "entries-negative": _field("index_entries", -1),
    "time-entries-negative": _field("time_entries", -5),
    "active-list": _field("active", [1]),
    "active-empty": _field("active", {}),
}


@pytest.mark.parametrize("change", BAD_STATES.values(), ids=BAD_STATES)
def test_state_of_a_partition_that_cannot_be_is_a_named_error(
    store: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """Types and ranges of each field; the log is then loaded as Kafka does."""
    path = store / "orders-0" / ".logstore-state"
    state = value_of(path)
    change(state)
    put(path, state)
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        read_own(path)
    with logstore.open(store) as opened:
        assert "state-damaged" in {a.label for a in opened.recovery_report.actions}
        append_one(opened.topic("orders")[0])
    assert read_all(store) == expected(1, 0, 21)


LYING_STATES: dict[str, Callable[[dict[str, Any]], None]] = {
    "start-at-the-end-of-time": _field("start_offset", BIG),
    "size-huge": _field("size", BIG),
    "size-small": _field("size", 0),
    "last-huge": _field("last_offset", BIG),
    "entries-huge": _field("index_entries", BIG),
    "time-entries-huge": _field("time_entries", BIG),
    "since-huge": _field("bytes_since", BIG),
    "timestamps": _field("max_timestamp", -BIG),
    "row-size-huge": _row(0, BIG, 10, 3, 4),
    "row-next-huge": _row(0, 370, BIG, 3, 4),
}


@pytest.mark.parametrize("change", LYING_STATES.values(), ids=LYING_STATES)
def test_state_that_lies_ends_in_named_errors_or_right_records(
    store: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """The values are in range, but wrong: no crash, no invented record, no bare
    exception."""
    path = store / "orders-0" / ".logstore-state"
    state = value_of(path)
    change(state)
    put(path, state)
    right = expected(1, 0, 20)
    logstore.verify(store, deep=True)
    for read_only in (True, False):
        try:
            with logstore.open(store, read_only=read_only) as opened:
                partition = opened.topic("orders")[0]
                found = list(partition.read())
                assert found == [r for r in right if r in found]
                if not read_only:
                    append_one(partition)
        except logstore.LogStoreError:
            pass


def test_directory_with_more_names_than_the_limit_is_a_named_error(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit it is listed, with one more it is not."""
    count = len(os.listdir(store))
    monkeypatch.setattr(_files, "DIRECTORY_ENTRIES_MAX", count)
    logstore.open(store, read_only=True).close()
    (store / "one-more").touch()
    with pytest.raises(logstore.StorageError, match=f"more than {count} names"):
        logstore.open(store, read_only=True)
    with pytest.raises((logstore.StorageError, OSError)):
        logstore.verify(store)


ROWS = 3000


@pytest.fixture
def hollow(store: Path) -> Path:
    """A store whose state lists very many missing segments, the last one among them,
    after the ones that exist."""
    path = store / "orders-0" / ".logstore-state"
    state = value_of(path)
    logs_in(store / "orders-0")[-1].unlink()
    begin = state["active"]["base_offset"]
    rows = [[begin + n, 80, begin + n + 1, -2, -1, -1] for n in range(ROWS - 1)]
    state["sealed"] += rows
    for name in ("base_offset", "last_offset"):
        state["active"][name] += ROWS - 1
    put(path, state)
    return store


@pytest.mark.parametrize("read_only", [True, False])
def test_opening_tells_very_many_lost_segments_together(
    hollow: Path, read_only: bool
) -> None:
    """The first few, and how many more: a file of 64 MiB must not cause a million
    actions. Each is an error for a read at its offsets."""
    with logstore.open(hollow, read_only=read_only) as opened:
        partition = opened.topic("orders")[0]
        first = next(s for s in partition.segments if s.size_bytes == 80).base_offset
        assert list(partition.read(0, first)) == expected(1, 0, first)
        for offset in (first, first + ROWS // 2, first + ROWS - 1):
            with pytest.raises(logstore.CorruptRecordError):
                next(partition.read(offset))
        if not read_only:
            actions = opened.recovery_report.actions
            lost = [a for a in actions if a.label == "lost-segment"]
            assert len(lost) == LOST_REPORTED_MAX + 1
            assert lost[-1].first_offset == first + LOST_REPORTED_MAX
            assert f"{ROWS - LOST_REPORTED_MAX} more segment" in lost[-1].message
            with pytest.raises(logstore.CorruptRecordError):
                append_one(partition)


def test_verify_tells_very_many_lost_segments_together(hollow: Path) -> None:
    """One problem with a count follows the first few; the state is read a few times,
    and not once for each of them."""
    files = FaultyFiles()
    report = logstore.verify(hollow, _files=files)
    lost = [p for p in report.problems if p.kind == "lost-segment"]
    assert len(lost) == LOST_REPORTED_MAX + 1
    assert f"{ROWS - LOST_REPORTED_MAX} more segments" in lost[-1].message
    assert lost[-1].first_offset == lost[-2].first_offset + 1
    assert lost[-1].last_offset > lost[0].first_offset + ROWS - 1
    assert files.count("open", ".logstore-state") <= 5


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_repair_tells_very_many_lost_segments_together(hollow: Path, mode: str) -> None:
    """The report summarises them; and the log can be used again."""
    files = FaultyFiles()
    report = logstore.repair(hollow, mode, _files=files)
    lost = [a for a in report.actions if a.label == "lost-accepted"]
    assert len(lost) == LOST_REPORTED_MAX + 1
    assert report.remaining == ()
    assert files.count("open", ".logstore-state") <= 10
    with logstore.open(hollow) as opened:
        assert not opened.recovery_report
        found = list(opened.topic("orders")[0].read(on_corruption="skip"))
        assert found == expected(1, 0, len(found))
        append_one(opened.topic("orders")[0])


# ---------------------------------------------------------------- text of callers


TEXTS = [
    "job[3]",
    "a[",
    "]]]]",
    "{" * 100,
    '["',
    '\\"[[',
    "\\",
    "spark-txn:20251122084530123456",
    "host,00000000000000000001",
    "[" + "9" * 900,
    "\x00\x1f\x7f\u2028\ufeff",
    "\U0001f600" * 1000,
    "\n\r\t\x0b\x85",
    '","published":[[',
]


def published_with(identity: str) -> dict[str, Any]:
    return {
        "published": [[identity, 1, 2, 3]],
        "bases": [["t", 0, 5]],
        "generation": "",
    }


@pytest.mark.parametrize("name", [layout.PUBLISHED, layout.PUBLICATION])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_brackets_and_digits_in_a_text_are_text(
    tmp_path: Path, name: str, text: str
) -> None:
    """Only brackets and digits outside of strings are structure and numbers."""
    root = Directory.open_root(Files(), str(tmp_path))
    checkpoints.write_state(root, name, published_with(text))
    found = checkpoints.read_state(root, name)
    assert found == {"version": 1, **published_with(text)}
    # Written by versions before this one.
    put(tmp_path / name, {"version": 1, **published_with(text)})
    assert checkpoints.read_state(root, name) == found
    root.close()


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=1000))
def test_any_identity_is_read_as_it_was_written(text: str) -> None:
    """All of Unicode: brackets, quotes, backslashes, digits and controls."""
    data = checkpoints.pack_state(published_with(text))
    assert checkpoints.unpack_state("p", data) == {"version": 1, **published_with(text)}


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(
            lambda name: name not in (".", "..")
        ),
        st.tuples(
            st.integers(1, 1_000_000),
            st.integers(14, (1 << 31) - 1),
            st.integers(-1, (1 << 63) - 1),
        ),
        max_size=5,
    )
)
def test_any_topic_is_read_as_it_was_written(topics: dict[str, Any]) -> None:
    """Names of topics, partitions and settings, in the state and in a checkpoint."""
    disk = MemoryDisk()
    disk.make_root("/store")
    root = Directory.open_root(disk, "/store")
    found = {
        name: {
            "partitions": count,
            "config": to_stored(TopicConfig(segment_bytes=size, retention_ms=time)),
            "id": "0a" * 16,
        }
        for name, (count, size, time) in topics.items()
    }
    if sum(c for c, _, _ in topics.values()) > state_fields.STORE_PARTITIONS_MAX:
        with pytest.raises(logstore.ConfigError):
            checkpoints.write_state(root, layout.TOPICS, {"topics": found})
        return
    checkpoints.write_state(root, layout.TOPICS, {"topics": found})
    read = checkpoints.read_state(root, layout.TOPICS)
    assert read == {"version": 1, "topics": found}
    offsets = {(name, row[0]): max(row[2], 0) for name, row in topics.items()}
    checkpoints.write_offsets(root, layout.RECOVERY_CHECKPOINT, offsets)
    assert checkpoints.read_offsets(root, layout.RECOVERY_CHECKPOINT) == offsets
    root.close()


HIDDEN = {
    "behind-a-backslash": b'{"version":1,"a":"\\\\","x":' + b"[" * 50_000,
    "behind-an-escaped-quote": b'{"version":1,"a":"\\"","x":' + b"[" * 50_000,
    "behind-an-open-string": b'{"version":1,"x":' + b"[" * 50_000 + b'"',
    "utf-16": '{"version":1,"\u2200":'.encode("utf-16-le") + b"[\0" * 50_000,
    "utf-32": '{"version":1,"x":'.encode("utf-32-le") + b"[\0\0\0" * 50_000,
    "quotes": b'{"version":1,"x":' + b'"' * 1_000_001,
    "backslashes": b'{"version":1,"x":"' + b"\\" * 1_000_001,
    "long-key": b'{"' + b"9" * 100 + b'":1,"version":' + b"9" * 100 + b"}",
    "long-first": b"9" * 1_000_000,
}


@pytest.mark.parametrize("body", HIDDEN.values(), ids=HIDDEN)
def test_what_is_nested_cannot_hide_in_a_text(body: bytes) -> None:
    """Never a RecursionError, nor time that grows with the square of the file."""
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        checkpoints.unpack_state("p", sealed_with(body))


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (layout.PUBLISHED, {"more": nested(9)}),
        (layout.PUBLISHED, {"published": [["a", 1 << 64, 1, 1]]}),
        (layout.PUBLISHED, {"published": [["a", 1.5, 1, 1]]}),
        (layout.PUBLISHED, {"published": [["a", -1, 1, 1]]}),
        (layout.PUBLICATION, {"bases": [["a b", 1, 1]]}),
        (layout.PUBLICATION, {"bases": [["a", 1, float("nan")]]}),
        (layout.TOPICS, {"topics": {"a/b": {"partitions": 1}}}),
        (layout.TOPICS, {"topics": {"a": {"partitions": 0}}}),
        (layout.TOPICS, {"topics": {"a": {"partitions": 1, "id": 3}}}),
        (layout.OWNER, {"clean": None}),
    ],
)
def test_nothing_is_written_that_its_own_reader_refuses(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    """A named error before the rename; the old file stays."""
    good = {
        **published_with("me"),
        "topics": {"a": {"partitions": 1}},
        "clean": True,
        "fingerprints": [],
    }
    root = Directory.open_root(Files(), str(tmp_path))
    checkpoints.write_state(root, name, good)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(logstore.ConfigError, match="not written"):
        checkpoints.write_state(root, name, {**good, **change})
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == before
    root.close()


@pytest.mark.parametrize(
    "offsets",
    [
        {("a", 0): -1},
        {("a", 0): 1 << 63},
        {("a b", 0): 1},
        {("a", -1): 1},
        {("", 0): 1},
    ],
)
def test_no_checkpoint_is_written_that_cannot_be_read(
    tmp_path: Path, offsets: dict[tuple[str, int], int]
) -> None:
    """Offsets and epochs out of range, and invalid names, are refused."""
    root = Directory.open_root(Files(), str(tmp_path))
    with pytest.raises(logstore.ConfigError, match="not written"):
        checkpoints.write_offsets(root, layout.RECOVERY_CHECKPOINT, offsets)
    for epochs in ([(-1, 0)], [(0, -1)], [(0, 1 << 63)]):
        with pytest.raises(logstore.ConfigError, match="not written"):
            checkpoints.write_epochs(root, epochs)
    assert os.listdir(tmp_path) == []
    root.close()


@pytest.mark.parametrize("character", ["\x01", "\U0001f600", '"'])
def test_as_many_identities_as_are_remembered_fit(
    tmp_path: Path, character: str
) -> None:
    """10,000 of 1,000 characters, which take the most bytes that a character takes."""
    rows = [
        [f"{n:05d}" + character * 995, OFFSET_MAX, OFFSET_MAX, OFFSET_MAX]
        for n in range(10_000)
    ]
    root = Directory.open_root(Files(), str(tmp_path))
    checkpoints.write_state(root, layout.PUBLISHED, {"published": rows})
    found = checkpoints.read_state(root, layout.PUBLISHED)
    assert found is not None
    assert found["published"] == rows
    root.close()


@pytest.mark.parametrize("identity", ["a[", "host,00000000000000000001"])
def test_store_that_an_identity_has_closed_can_be_opened_again(
    tmp_path: Path, identity: str
) -> None:
    """Versions that took a bracket in an identity for structure wrote this, and then
    refused to read it."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t")[0]
        fill(partition, 3)
        store_epoch = value_of(tmp_path / layout.OWNER)["generation"]
        fill(partition, 2)
    value = {
        "version": 1,
        "generation": store_epoch,
        "bases": [["t", 0, 3]],
        "published": [[identity, 7, 2, 1]],
    }
    put(tmp_path / layout.PUBLISHED, {"version": 1, "published": value["published"]})
    put(tmp_path / layout.PUBLICATION, value)
    with logstore.open(tmp_path) as store:
        assert store.published(identity) == 7
        assert store.topic("t")[0].end_offset == 3
