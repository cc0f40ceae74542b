"""Arguments of a publication, checked before any change: identity and number, and each
field of a `Staged`, which is a value from another process."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import (
    ConfigError,
    CorruptRecordError,
    LogStoreError,
    Partition,
    StorageError,
    Store,
)
from logstore.io import layout
from logstore.log.write.staged_files import Staged, StagedLog
from support import one_stage
from support.one_stage import stage, staged_files
from support.values import config_of, values

# Fixtures.
partition, store, way = one_stage.partition, one_stage.store, one_stage.way


# ---------------------------------------------------------------- arguments


BAD_IDENTITIES = [5, None, b"me", ("me",), 1.5, "a" * 1001, "\ud800", "a\udfffb"]


@pytest.mark.parametrize("identity", BAD_IDENTITIES, ids=range(len(BAD_IDENTITIES)))
def test_identity_that_is_none_is_a_named_error(
    store: Store, partition: Partition, identity: Any
) -> None:
    """Each call that takes an identity raises it, before anything is written."""
    staged = stage(store, partition)
    before = sorted(os.listdir(store.path))
    for call in (
        lambda: store.stage(identity, 1),
        lambda: store.publish([staged], identity=identity, sequence=1),
        lambda: store.published(identity),
        lambda: store.discard_staged([staged], identity=identity, before=3),
    ):
        with pytest.raises(ConfigError, match="identity"):
            call()
    assert sorted(os.listdir(store.path)) == before
    assert partition.end_offset == 0
    store.publish([staged], identity="me", sequence=1)


BAD_NUMBERS = [-1, 1 << 63, 1.0, math.nan, "1", None, True]


@pytest.mark.parametrize("number", BAD_NUMBERS, ids=range(len(BAD_NUMBERS)))
def test_sequence_that_is_none_is_a_named_error(
    store: Store, partition: Partition, number: Any
) -> None:
    staged = stage(store, partition)
    calls: list[Any] = [
        lambda: store.stage("me", number),
        lambda: store.publish([staged], identity="me", sequence=number),
        lambda: store.discard_staged([staged], identity="me", before=number),
    ]
    if number is not None:
        calls.append(lambda: store.discard_staged([staged], older_than_ms=number))
    for call in calls:
        with pytest.raises(ConfigError):
            call()
    assert staged_files(store) == list(staged.files)
    assert partition.end_offset == 0


ODD_IDENTITIES = [
    "a[",
    '"',
    "\\",
    "\x00\n",
    "\u2028",
    "\U0001f600" * 1000,
    "9" * 1000,
    ":99999999999999999999",
]


@pytest.mark.parametrize("identity", ODD_IDENTITIES, ids=range(len(ODD_IDENTITIES)))
def test_identity_of_any_characters_publishes_once(
    store: Store, partition: Partition, identity: str
) -> None:
    """Other identities continue to publish, even when the store is opened again."""
    for sequence in (1, 2):
        for name in (identity, "other"):
            with store.stage(name, sequence) as opened:
                opened.append_many(partition, [b"x"])
                staged = opened.finish()
            assert store.publish([staged], identity=name, sequence=sequence).is_new
    store.close()
    with logstore.open(store.path) as again:
        assert again.published(identity) == again.published("other") == 2
        assert not again.publish([], identity=identity, sequence=2).is_new
        assert again.topic("t")[0].end_offset == 4


# ---------------------------------------------------------------- values from elsewhere


NOT_STAGED: list[Any] = [
    5,
    None,
    [5],
    [None],
    ["abc"],
    [()],
    [Staged(5)],  # type: ignore[arg-type]
    [Staged(None)],  # type: ignore[arg-type]
    [Staged((5,))],  # type: ignore[arg-type]
    [Staged((("t", 0),))],  # type: ignore[arg-type]
]


@pytest.mark.parametrize("given", NOT_STAGED, ids=range(len(NOT_STAGED)))
def test_what_no_stage_returned_is_a_named_error(
    store: Store, partition: Partition, given: Any
) -> None:
    with pytest.raises(ConfigError, match="staged"):
        store.publish(given)
    with pytest.raises(ConfigError, match="staged"):
        store.discard_staged(given)
    assert partition.end_offset == 0


def test_one_staged_value_is_as_good_as_a_list_of_it(
    store: Store, partition: Partition
) -> None:
    """`Stage.finish` returns such a value."""
    assert store.publish(stage(store, partition, b"a", b"b")).records == 2
    assert values(partition) == [b"a", b"b"]
    staged = stage(store, partition, b"c")
    store.discard_staged(staged)
    assert staged_files(store) == []


HUGE = 10**5000


EXTREMES: dict[str, list[Any]] = {
    "topic": ["", ".", "..", "a/b", "\0", "t" * 300, None, 5, b"t", "\ud800"],
    "partition": [-1, 1 << 31, 1 << 63, HUGE, None, 0.0, math.nan, "0", True],
    "magic": [-1, 0, 1, 3, 255, HUGE, None, 2.0, math.nan, "2", True],
    "records": [-1, 0, 1, 4, 1 << 62, (1 << 63) - 1, HUGE, None, math.inf, True],
    "file": ["", ".lock", "../x", "/etc/passwd", ".logstore-owner", None, 5, b"x"],
    "is_alone": [None, 1, 0, "yes", math.nan],
    "first": [-1, 1, 7, (1 << 63) - 1, 1 << 63, HUGE, None, 0.0, True],
    "runs": [
        (),
        None,
        5,
        ((0, 0),),
        ((0, -1),),
        ((-1, 5),),
        ((0, 1 << 62),),
        ((1 << 62, 1),),
        ((0, HUGE),),
        ((HUGE, 1),),
        ((0, math.nan),),
        ((0, 1), (0, 1)),
        ((0, 10), (5, 10)),
        ((5, 10), (0, 10)),
        ((1, 20),),
        ((0,),),
        ((0, 1, 2),),
        (0, 1),
        "ab",
        ((True, True),),
    ],
    "topic_id": ["other", None, 5, "x" * 1000],
}


@pytest.mark.parametrize("field", EXTREMES)
def test_each_field_at_its_extremes_is_a_named_error(
    store: Store, partition: Partition, field: str
) -> None:
    """The error changes nothing, and only staged files are touched."""
    partition.append(b"there")
    other = stage(store, partition, b"of another")
    staged = stage(store, partition, b"a", b"b", b"c")
    outside = snapshot(Path(store.path))
    named = (ConfigError, CorruptRecordError, LookupError)
    for value in EXTREMES[field]:
        wrong = Staged((staged.logs[0]._replace(**{field: value}),))
        with pytest.raises(named) as caught:
            store.publish([wrong], identity="x", sequence=1)
        assert isinstance(caught.value, LogStoreError), value
        assert partition.end_offset == 1
        with contextlib.suppress(ConfigError):
            store.discard_staged([Staged((wrong.logs[0]._replace(file="x" * 9),))])
    assert snapshot(Path(store.path)) == outside
    store.publish([staged, other])
    assert values(partition) == [b"there", b"a", b"b", b"c", b"of another"]


def snapshot(path: Path) -> dict[str, bytes]:
    """Files that a refused publication may not change. The state of a log, and the file
    that other processes read, record that it was cut again; the journal records the
    ends of the target logs."""
    told = (layout.PARTITION_STATE, layout.DURABLE, layout.PUBLICATION)
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and "index" not in p.name and p.name not in told
    }


def test_runs_of_two_logs_that_overlap_are_refused(store: Store) -> None:
    """The same bytes are in two partitions, or in parts."""
    topic = store.create_topic("two", 2, config_of(1))
    with store.stage() as opened:
        for partition in topic:
            opened.append_many(partition, [b"x" * 50])
        staged = opened.finish()
    first, second = staged.logs
    for runs in (first.runs, ((first.runs[0][0] + 1, 20),)):
        with pytest.raises(ConfigError, match="twice"):
            store.publish([Staged((first, second._replace(runs=runs)))])
    with pytest.raises(ConfigError, match="twice"):
        store.publish([Staged((first,)), Staged((first._replace(partition=1),))])
    assert [p.end_offset for p in topic] == [0, 0]
    store.publish([staged])
    assert [p.end_offset for p in topic] == [1, 1]


def test_discarding_with_a_wrong_name_removes_nothing(
    store: Store, partition: Partition
) -> None:
    """All names are looked at first."""
    staged = stage(store, partition)
    wrong = Staged((staged.logs[0]._replace(file="../x"),))
    with pytest.raises(ConfigError):
        store.discard_staged([staged, wrong])
    assert staged_files(store) == list(staged.files)


def test_staged_goes_from_process_to_process(
    store: Store, partition: Partition
) -> None:
    """The value is pickled, or has lists for its tuples, as JSON makes them."""
    staged = pickle.loads(pickle.dumps(stage(store, partition, b"a")))
    log = staged.logs[0]
    lists = Staged([log._replace(runs=[list(run) for run in log.runs])])  # type: ignore[arg-type]
    store.publish([lists])
    assert values(partition) == [b"a"]
    # A version without topic ids made it like this.
    assert StagedLog(*log[:8]).topic_id == ""


def test_file_of_another_kind_is_refused(store: Store, partition: Partition) -> None:
    """The file is a directory, a link, or a FIFO with a staged file's name."""
    staged = stage(store, partition)
    path = Path(store.path, staged.files[0])
    target = path.with_name("target")
    path.rename(target)
    for make in (path.mkdir, lambda: path.symlink_to(target), lambda: os.mkfifo(path)):
        make()
        with pytest.raises((CorruptRecordError, StorageError)):
            store.publish([staged])
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert partition.end_offset == 0
    assert target.exists()
