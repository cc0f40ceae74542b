"""The stores that tasks open: found, distinguished, shared, and closed."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore

pytest.importorskip("pyspark", reason="pyspark is not installed")


from logstore import TopicPartition
from pyspark_logstore import stores
from pyspark_logstore.read.options import parse
from pyspark_logstore.stores import NotSharedError, StoreCache
from support.spark_reading import MakeTopic, offsets_of, reader_of, rows_of

# ---------------------------------------------------------------------------- sharing


def test_task_that_finds_no_store_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """An executor has nothing at the path."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.close()
    Path(writer.path).rename(f"{writer.path}-away")
    with pytest.raises(NotSharedError, match=r"there is no directory .*/data on host"):
        rows_of(reader, planned)


def test_task_that_finds_another_store_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """It is a copy, as another host may have at the same path: the offsets would be
    valid."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.close()
    Path(writer.path).rename(f"{writer.path}-away")
    shutil.copytree(f"{writer.path}-away", writer.path)
    with pytest.raises(
        NotSharedError, match="is not the directory that the driver saw"
    ):
        rows_of(reader, planned)


@pytest.mark.parametrize("kafka", [False, True], ids=["logstore", "kafka"])
def test_another_store_with_the_same_inode_is_told_apart(
    kafka: bool, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Machines that were set up alike may each have a separate store."""
    make_topic(count=10)
    other = tmp_path / "other"
    with logstore.open(other) as store:
        store.create_topic("orders")[0].append(b"value")
    if kafka:
        for number, path in enumerate((Path(writer.path), other)):
            (path / ".logstore-owner").unlink()
            text = f"#Sat Nov 21\nnode.id={number}\nversion=1\ncluster.id=_nALWl4P\n"
            (path / "meta.properties").write_text(text)
    driver = stores.identity_of(writer.path, names=True)
    assert driver is not None
    stores.check_store(writer.path, driver)
    expected = driver._replace(inode=other.stat().st_ino)
    with pytest.raises(
        NotSharedError, match=r"option path: .*/other on host .* is not"
    ):
        stores.check_store(str(other), expected)


def test_name_that_comes_later_is_no_other_store(tmp_path: Path) -> None:
    """The first change gives a store its name, and the run of another writer keeps
    it."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        before = stores.identity_of(str(path), names=True)
        assert before is not None
        assert before.names == ()
        partition = store.create_topic("orders")[0]
        partition.append(b"value")
        stores.check_store(str(path), before)
        named = stores.identity_of(str(path), names=True)
        assert named is not None
        assert named.names
    stores.check_store(str(path), named)
    with logstore.open(path) as store:
        store.topic("orders")[0].append(b"value")
        stores.check_store(str(path), named)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("version=1\r\ndirectory.id=GbP10\ncluster.id=_nAL\nnode.id=1\n", "GbP10"),
        ("cluster.id=_nAL\nbroker.id=12\nversion=0\n", "_nAL/12"),
        ("cluster.id=_nAL\nversion=0\n", "_nAL"),
        ("#cluster.id=_nAL\n", ""),
        ("\x00\xff", ""),
    ],
)
def test_name_of_a_broker_directory(text: str, name: str, tmp_path: Path) -> None:
    """The name is the directory's own, or the broker's."""
    (tmp_path / "meta.properties").write_text(text, encoding="latin-1", newline="")
    expected = (("meta.properties", name),) if name else ()
    found = stores.identity_of(str(tmp_path), names=True)
    assert found is not None
    assert found.names == expected


@pytest.mark.parametrize(
    "text",
    ["", "xxh64 0\n", "xxh64 0\n[1]\n", "xxh64 0\n" + "[" * 100_000, "\n{}"],
    ids=["empty", "cut", "list", "deep", "other"],
)
def test_owner_file_that_is_none_gives_no_name(text: str, tmp_path: Path) -> None:
    """There is no error: opening the store reports it."""
    (tmp_path / ".logstore-owner").write_text(text)
    found = stores.identity_of(str(tmp_path), names=True)
    assert found is not None
    assert found.names == ()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_no_file_in_place_of_an_owner_file_gives_no_name(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """Opening a pipe does not block, and no descriptor stays open."""
    make(tmp_path / ".logstore-owner")
    before = os.listdir("/proc/self/fd")
    found = stores.identity_of(str(tmp_path), names=True)
    assert found is not None
    assert found.names == ()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_path_that_a_task_may_not_look_at_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Executors may run as another user; here it leads in a circle."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.close()
    Path(writer.path).rename(f"{writer.path}-away")
    Path(writer.path).symlink_to(writer.path)
    with pytest.raises(NotSharedError, match=r"option path: .* cannot be examined"):
        rows_of(reader, planned)


def test_relative_path_is_that_of_the_driver(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks run elsewhere; the objects that Spark sends them were made in the
    driver."""
    make_topic(count=10)
    monkeypatch.chdir(Path(writer.path).parent)
    reader = reader_of("data")
    planned = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(pickle.dumps(reader))
    monkeypatch.chdir("/")
    assert offsets_of(reader, planned) == [*range(10)]


def test_topic_created_again_under_a_query_says_so(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Its offsets mean other records."""
    make_topic(count=10)
    reader = reader_of(writer.path)
    planned = reader.partitions()
    writer.delete_topic("orders")
    make_topic(count=10)
    with pytest.raises(NotSharedError, match="deleted and created again"):
        rows_of(reader, planned)


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "circle"])
def test_path_without_a_store_is_an_error(kind: str, tmp_path: Path) -> None:
    """It names the path."""
    path = tmp_path / "nothing"
    if kind == "file":
        path.write_text("x")
    elif kind == "empty":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path)
    errors = {"circle": logstore.StorageError}
    expected = errors.get(kind, logstore.StoreNotFoundError)
    with pytest.raises(expected, match="nothing"):
        reader_of(str(path)).partitions()


# ----------------------------------------------------------------------- open stores


def test_stores_stay_open_and_the_oldest_is_closed(tmp_path: Path) -> None:
    """The one that was unused for longest is closed."""
    cache = StoreCache(capacity=2)
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        logstore.open(path).close()
    first = cache.get(paths[0])
    second = cache.get(paths[1])
    assert cache.get(paths[0]) is first
    cache.get(paths[2])
    assert len(cache) == 2
    with pytest.raises(logstore.errors.StoreClosedError):
        second.store.topics()
    assert cache.get(paths[0]).store.topics() == []


def test_store_that_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    """Another directory at the same path is another store."""
    cache = StoreCache()
    path = tmp_path / "data"
    with logstore.open(path) as store:
        store.create_topic("old")
    assert cache.get(str(path)).store.topics() == ["old"]
    path.rename(tmp_path / "away")
    with logstore.open(path) as store:
        store.create_topic("new")
    assert cache.get(str(path)).store.topics() == ["new"]


def test_lists_of_partitions_are_in_order(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The order is topic and number; partitions of missing topics are left out."""
    make_topic("b", partitions=11)
    make_topic("a")
    opened = stores.store_at(writer.path)
    options = parse({"path": "x", "subscribe": "b,a,c"}, streaming=False)
    found = opened.select(options.selection)
    assert found == [
        TopicPartition("a", 0),
        *(TopicPartition("b", n) for n in range(11)),
    ]
