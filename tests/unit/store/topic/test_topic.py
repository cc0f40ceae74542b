"""Topics: names, creating, growing, deleting, finding."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import TopicConfig
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.store.opening import open_store
from support.damage import Unsynced, crash, cut, logs_in
from support.values import append_one, config_of, expected, fill, new_partition

GOOD = ["a", "A.b_c-D9", "...", "-", "_", "x-1", "a" * 247, "0", "a-0.b-delete"]
BAD = [
    "", ".", "..", "a/b", "../x", "/etc", "a\0b", "a\nb", "a b", "ä", "а", "a" * 250,  # noqa: RUF001
    "a\\b", "a:b", "a*", "\u2024", "a\u200b", None, 5, b"bytes",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_name_is_kept_across_a_reopening(tmp_path: Path, name: str) -> None:
    """Names that Kafka allows work, and the topic is found again."""
    with logstore.open(tmp_path) as store:
        store.create_topic(name).append(b"v", timestamp_ms=1)
    with logstore.open(tmp_path) as store:
        assert store.topics() == [name]
        assert [r.value for r in store.topic(name)[0].read()] == [b"v"]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_bad_name_raises_config_error_and_creates_nothing(
    tmp_path: Path, name: object
) -> None:
    """A name is 1 to 249 characters out of [A-Za-z0-9._-], not '.' or '..'."""
    with logstore.open(tmp_path / "data") as store:
        with pytest.raises(logstore.ConfigError) as caught:
            store.create_topic(name)
        assert caught.value.value == name
        assert store.topics() == []
    assert [p.name for p in tmp_path.iterdir()] == ["data"]
    assert not [p for p in (tmp_path / "data").iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    "name", [".logstore", ".logstore-owner", ".logstorex", "__cluster_metadata"]
)
def test_name_that_could_not_be_found_again_is_refused(
    tmp_path: Path, name: str
) -> None:
    """The next opening would not accept such a name."""
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.ConfigError):
            store.create_topic(name)
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


@pytest.mark.parametrize("bad", [0, -1, 1.0, "2", None, True, 1_000_001])
def test_bad_number_of_partitions_raises_config_error(
    tmp_path: Path, bad: object
) -> None:
    """A topic has 1 to 1,000,000 partitions."""
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.ConfigError) as caught:
            store.create_topic("orders", bad)
        assert caught.value.name == "partitions"
        assert store.topics() == []


@pytest.mark.parametrize(("one", "two"), [("a.b", "a_b"), ("a_b", "a.b"), ("._", "__")])
def test_names_that_differ_in_dot_and_underscore_collide(
    tmp_path: Path, one: str, two: str
) -> None:
    """Kafka's metric names do not distinguish '.' from '_', so two topics must differ
    otherwise."""
    with logstore.open(tmp_path) as store:
        store.create_topic(one)
        for exist_ok in (False, True):
            with pytest.raises(logstore.TopicExistsError) as caught:
                store.create_topic(two, exist_ok=exist_ok)
        assert caught.value.topic == two
        assert store.topics() == [one]


def test_names_that_look_like_partitions_of_each_other_are_distinct(
    tmp_path: Path,
) -> None:
    """Topic x-1 with partition 0 is not topic x with partition 1."""
    with logstore.open(tmp_path) as store:
        store.create_topic("x", 3).append(b"x", partition=1)
        store.create_topic("x-1", 2).append(b"x-1", partition=0)
        store.create_topic("X").append(b"X")
    with logstore.open(tmp_path) as store:
        assert store.topics() == ["X", "x", "x-1"]
        assert len(store.topic("x")) == 3
        assert len(store.topic("x-1")) == 2
        assert [r.value for r in store.topic("x-1")[0].read()] == [b"x-1"]
        assert [r.value for r in store.topic("x")[1].read()] == [b"x"]


def test_create_topic_defaults_to_one_partition(tmp_path: Path) -> None:
    """`partitions` is 1 unless given."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders")
        assert len(topic) == 1
        assert topic.config == TopicConfig()
        assert topic.name == "orders"


def test_existing_topic_raises_topic_exists(tmp_path: Path) -> None:
    """A topic is created once."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
        with pytest.raises(logstore.TopicExistsError) as caught:
            store.create_topic("orders")
        assert caught.value.topic == "orders"
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("reopened", [False, True])
def test_exist_ok_returns_the_topic_that_is_as_asked_for(
    tmp_path: Path, reopened: bool
) -> None:
    """It has the same partitions and settings, or no settings are given."""
    config = config_of(2, "lz4", segment_bytes=1000)
    store = logstore.open(tmp_path)
    topic = store.create_topic("orders", 3, config, exist_ok=True)
    topic.append(b"v")
    if reopened:
        store.close()
        store = logstore.open(tmp_path)
        topic = store.topic("orders")
    assert store.create_topic("orders", 3, exist_ok=True).name == "orders"
    again = store.create_topic("orders", 3, config, exist_ok=True)
    assert again.config == config
    assert [p.name for p in again] == ["orders-0", "orders-1", "orders-2"]
    store.close()


@pytest.mark.parametrize(
    "asked",
    [{"partitions": 2}, {"partitions": 4}, {"config": TopicConfig(segment_ms=5)}],
    ids=str,
)
def test_exist_ok_with_another_shape_raises_topic_exists(
    tmp_path: Path, asked: dict[str, object]
) -> None:
    """It exists, but differs from the request; the message names the difference."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 3)
        with pytest.raises(logstore.TopicExistsError) as caught:
            store.create_topic("orders", **{"partitions": 3, "exist_ok": True, **asked})
        assert "segment_ms" in str(caught.value) or "partitions" in str(caught.value)


def test_missing_topic_raises_topic_not_found(tmp_path: Path) -> None:
    """The error is a LookupError that names it."""
    with logstore.open(tmp_path) as store:
        for use in (store.topic, store.delete_topic):
            with pytest.raises(logstore.TopicNotFoundError) as caught:
                use("none")
            assert caught.value.topic == "none"
            assert isinstance(caught.value, LookupError)
            assert "none" in str(caught.value)


@pytest.mark.parametrize("number", [2, -1, 1 << 40])
def test_missing_partition_raises_partition_not_found(
    tmp_path: Path, number: int
) -> None:
    """A number outside the topic is a LookupError that names both."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        with pytest.raises(logstore.errors.PartitionNotFoundError) as caught:
            topic[number]
        assert (caught.value.topic, caught.value.partition) == ("orders", number)
        assert isinstance(caught.value, LookupError)


def test_topic_is_a_sequence_of_its_partitions(tmp_path: Path) -> None:
    """len, index, iteration and `partitions` agree, and give the same objects."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 12)
        assert isinstance(topic.partitions, tuple)
        assert len(topic.partitions) == len(topic) == 12
        assert list(topic) == list(topic.partitions)
        assert [p.number for p in topic] == list(range(12))
        assert topic[3] is topic.partitions[3]
        assert store.topic("orders")[3] is topic[3]
        assert topic[3].topic == "orders"
        assert topic[3].path == str(tmp_path / "orders-3")


def test_topics_are_sorted(tmp_path: Path) -> None:
    """Names come in order, whatever the order of creation."""
    with logstore.open(tmp_path) as store:
        for name in ("b", "c", "a", "B"):
            store.create_topic(name)
        assert store.topics() == ["B", "a", "b", "c"]


def test_add_partitions_returns_the_new_count(tmp_path: Path) -> None:
    """New partitions are empty and have the topic's settings; they stay."""
    config = config_of(2, "gzip")
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2, config)
        topic.append(b"v", partition=1)
        assert topic.add_partitions(2) == 4
        assert len(topic) == 4
        topic[3].append(b"w")
        assert topic[3].config == config
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        topic = store.topic("orders")
        assert [p.end_offset for p in topic] == [0, 1, 0, 1]
        assert topic.add_partitions(1) == 5


def test_stored_config_is_what_the_topic_was_given(tmp_path: Path) -> None:
    """None: nothing, as for a topic that only a broker has used."""
    config = logstore.TopicConfig(retention_ms=60_000)
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", config=config)
        assert topic.stored_config == config
        (tmp_path / "u-0").mkdir(0o700)
    with logstore.open(tmp_path) as store:
        other = store.topic("u")
        assert other.stored_config is None
        other.configure(config)
        assert other.stored_config == config
        store.delete_topic("u")
        with pytest.raises(logstore.TopicNotFoundError):
            _ = other.stored_config


@pytest.mark.parametrize("bad", [0, -1, 1.0, "1", None, True])
def test_add_partitions_of_a_bad_number_raises_config_error(
    tmp_path: Path, bad: object
) -> None:
    """The number of new partitions is a positive integer."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        with pytest.raises(logstore.ConfigError):
            topic.add_partitions(bad)
        assert len(topic) == 2


def test_settings_are_kept_in_the_store(tmp_path: Path) -> None:
    """Each topic comes back with the settings that it was made with."""
    configs = {
        "a": TopicConfig(),
        "b": config_of(2, "zstd", compression_zstd_level=7, retention_bytes=5),
        "c": config_of(0, "snappy", segment_bytes=14, segment_index_bytes=4),
    }
    with logstore.open(tmp_path) as store:
        for name, config in configs.items():
            store.create_topic(name, config=config)
    for read_only in (False, True):
        with logstore.open(tmp_path, read_only=read_only) as store:
            for name, config in configs.items():
                assert store.topic(name).config == config
                assert store.topic(name)[0].config == config


def test_topics_are_found_from_their_directories_alone(tmp_path: Path) -> None:
    """Without a file of logstore's, topics are found by their directories, with
    defaults."""
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders", 2, config_of(2))[1], 7)
    for path in [*tmp_path.glob(".*"), *tmp_path.glob("*/.*"), *tmp_path.glob("*-c*")]:
        path.unlink()
    for read_only in (True, False):
        with logstore.open(tmp_path, read_only=read_only) as store:
            assert store.topics() == ["orders"]
            topic = store.topic("orders")
            assert len(topic) == 2
            assert topic.config == TopicConfig(message_format=2)  # as the log ends
            assert list(topic[1].read()) == expected(2, 0, 7)


@pytest.mark.parametrize(
    "name",
    [
        "orders", "orders-", "-0", "orders-00", "orders-+1", "orders-1x",
        "orders-99999999999", "a b-0",
        "orders-0.0123456789abcdef0123456789abcdef-delete",
        "orders-0.0123456789abcdef0123456789abcdef-stray",
        "orders-0.0123456789abcdef0123456789abcdef-future", "remote-log-index-cache",
        "__cluster_metadata-0", "orders-٣",
    ],
)  # fmt: skip
def test_directory_that_is_no_partition_is_no_topic(tmp_path: Path, name: str) -> None:
    """Directories of other names are left alone."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").write_bytes(b"x")
    (tmp_path / "clicks-0").mkdir()
    with logstore.open(tmp_path, read_only=True) as store:
        assert store.topics() == ["clicks"]


def test_file_named_like_a_partition_is_no_topic(tmp_path: Path) -> None:
    """A partition is a directory."""
    (tmp_path / "orders-0").write_bytes(b"x")
    with logstore.open(tmp_path) as store:
        assert store.topics() == []


def test_delete_topic_forgets_it_and_keeps_the_others(tmp_path: Path) -> None:
    """Its directories are renamed at once; other topics do not change."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
        store.create_topic("other").append(b"v")
        store.delete_topic("orders")
        assert store.topics() == ["other"]
        names = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
        assert len(names) == 2
        assert names[0].startswith("orders-0.")
        assert names[0].endswith("-delete")
    with logstore.open(tmp_path) as store:
        assert store.topics() == ["other"]
        assert [r.value for r in store.topic("other")[0].read()] == [b"v"]


def test_deleted_topic_can_be_created_anew_and_is_empty(tmp_path: Path) -> None:
    """The name is free at once; nothing of the old topic comes back."""
    config = config_of(2, "lz4")
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
        store.delete_topic("orders")
        topic = store.create_topic("orders", 2, config)
        assert topic[0].end_offset == 0
        topic[0].append(b"new")
        assert topic.config == config
        crash(tmp_path, tmp_path.with_name("killed"))
    for path in (tmp_path, tmp_path.with_name("killed")):
        with logstore.open(path) as store:
            assert store.topic("orders").config == config
            assert [r.value for r in store.topic("orders")[0].read()] == [b"new"]


def test_deletion_of_a_topic_is_finished_after_a_crash(tmp_path: Path) -> None:
    """Directories that wait for their deletion are no topics, and are removed."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store, file_delete_delay_ms=0), 5)
        crash(tmp_path / "live", tmp_path / "killed")
    waiting = tmp_path / "killed" / f"orders-0.{'0' * 32}-delete"
    (tmp_path / "killed" / "orders-0").rename(waiting)
    with logstore.open(tmp_path / "killed") as store:
        assert store.topics() == []
        store.create_topic("orders").append(b"v")
    with logstore.open(tmp_path / "killed") as store:
        assert [r.value for r in store.topic("orders")[0].read()] == [b"v"]


def test_read_only_store_sees_topics_settings_and_partitions_made_later(
    tmp_path: Path,
) -> None:
    """A reader follows the changes of the writer, without being opened again."""
    config = config_of(2, "lz4")
    with logstore.open(tmp_path) as store:
        with logstore.open(tmp_path, read_only=True) as reader:
            assert reader.topics() == []
            topic = store.create_topic("orders", config=config)
            assert reader.topics() == ["orders"]
            assert reader.topic("orders").config == config
            append_one(topic[0])
            assert list(reader.topic("orders")[0].read()) == expected(2, 0, 1)
            topic.add_partitions(2)
            append_one(topic[2])
            assert len(reader.topic("orders")) == 3
            assert list(reader.topic("orders")[2].read()) == expected(2, 0, 1)
            store.create_topic("other")
            assert reader.topic("other").name == "other"
            store.delete_topic("other")
            assert reader.topics() == ["orders"]
            with pytest.raises(logstore.TopicNotFoundError):
                reader.topic("other")


def test_partition_directory_lost_after_a_clean_close_is_noticed(
    tmp_path: Path,
) -> None:
    """A partition whose directory is gone is reported, and reading or writing it is an
    error; the others work and keys do not silently go elsewhere."""
    for lost in (0, 1, 2):
        path = tmp_path / str(lost)
        with logstore.open(path) as store:
            topic = store.create_topic("orders", 3)
            for partition in topic:
                fill(partition, 3)
        for file in (path / f"orders-{lost}").iterdir():
            file.unlink()
        (path / f"orders-{lost}").rmdir()
        with logstore.open(path) as store:
            topic = store.topic("orders")
            assert store.recovery_report
            assert lost in {a.partition for a in store.recovery_report.actions}
            assert len(topic) == 3
            with pytest.raises(logstore.LogStoreError):
                append_one(topic[lost])
            with pytest.raises(logstore.LogStoreError):
                list(topic[lost].read())
            for other in {0, 1, 2} - {lost}:
                assert list(topic[other].read()) == expected(1, 0, 3)
                append_one(topic[other])


def test_all_files_of_a_partition_lost_after_a_clean_close_is_noticed(
    tmp_path: Path,
) -> None:
    """An emptied directory is not an empty log: the recovery point proves otherwise."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 3)
    for file in (tmp_path / "orders-0").iterdir():
        file.unlink()
    with logstore.open(tmp_path) as store:
        assert store.recovery_report
        with pytest.raises(logstore.LogStoreError):
            append_one(store.topic("orders")[0])


def test_damaged_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    """The store opens; only the damaged partition refuses appends."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 3, config_of(segment_bytes=300))
        for partition in topic:
            fill(partition, 30)
    logs_in(tmp_path / "orders-1")[1].unlink()
    with logstore.open(tmp_path) as store:
        assert {a.partition for a in store.recovery_report.actions} == {1}
        topic = store.topic("orders")
        assert len(topic.partitions) == 3
        for number in (0, 2):
            assert append_one(topic[number]) == 30
            assert list(topic[number].read()) == expected(1, 0, 31)
        with pytest.raises(logstore.CorruptRecordError):
            append_one(topic[1])


@pytest.mark.parametrize("damage", ["cut", "lost"])
def test_damaged_partition_keeps_retention_and_flush_from_no_other(
    tmp_path: Path, damage: str
) -> None:
    """The disk would fill up with data that the others should delete. A damaged log
    deletes, too; the error of a lost one comes after all others are done, each time."""
    settings = config_of(segment_bytes=300, retention_bytes=600, retention_ms=-1)
    with open_store(tmp_path, _files=Unsynced()) as store:
        for partition in store.create_topic("orders", 3, settings):
            fill(partition, 60)
    if damage == "cut":
        cut(logs_in(tmp_path / "orders-0")[-2], 10)
    else:
        shutil.rmtree(tmp_path / "orders-0")
    with open_store(tmp_path, _files=Unsynced()) as store:
        topic = store.topic("orders")
        for _ in range(2):
            end = topic[2].end_offset
            for number in (1, 2):
                fill(topic[number], 60)
                assert sum(s.size_bytes for s in topic[number].segments) > 1200
                assert topic[number].durable_offset < end + 60
            if damage == "cut":
                topic.apply_retention()
                assert sum(s.size_bytes for s in topic[0].segments) < 1200
                topic.flush()  # all existing records of the damaged one are durable
            else:
                for call in (topic.apply_retention, topic.flush):
                    with pytest.raises(logstore.LogStoreError, match="orders-0"):
                        call()
            for number in (1, 2):
                assert topic[number].durable_offset == end + 60
                assert sum(s.size_bytes for s in topic[number].segments) < 1200


@pytest.mark.parametrize("number", [0.0, "0", None, slice(0, 1)])
def test_what_is_no_number_of_a_partition_is_none(tmp_path: Path, number: Any) -> None:
    """This holds even if it equals one."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        with pytest.raises(logstore.errors.PartitionNotFoundError):
            topic[number]


def test_topic_of_a_closed_store_can_be_shown(tmp_path: Path) -> None:
    """It has a repr for a debugger, and for a log message."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=2)
        assert repr(topic) == "<logstore.Topic orders with 2 partitions>"
    assert repr(topic) == "<logstore.Topic orders>"


def test_topic_that_is_not_there_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
        for name, hint in (("orderz", "; did you mean 'orders'?"), ("xyz", "")):
            with pytest.raises(logstore.TopicNotFoundError) as caught:
                store.topic(name)
            assert str(caught.value).endswith(f"has no topic {name!r}{hint}")
            assert caught.value.topic == name
        with pytest.raises(logstore.TopicNotFoundError):
            store[7]  # type: ignore[index]


def test_names_are_compared_while_topics_come_and_go(tmp_path: Path) -> None:
    """A signal handler, a finalizer or another thread makes one in between."""
    store = logstore.open(tmp_path)

    class Name(str):
        def __len__(self) -> int:
            store.create_topic(f"new-{len(store.topics())}")
            return super().__len__()

    with store:
        store.create_topic("orders")
        store.create_topic("other")
        with pytest.raises(logstore.TopicNotFoundError, match="did you mean 'orders'"):
            store.topic(Name("orderz"))
        assert len(store.topics()) > 2


@pytest.mark.parametrize("at", ["before", "behind", "behind, and again"])
def test_deletion_that_is_interrupted_takes_nothing_that_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The interrupt comes around its commit: partitions that were not used yet lose
    nothing either. A topic whose deletion the next opening finishes takes no appends
    before."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 2).append(b"old", partition=1)
    write, read = checkpoints.write_prepared, checkpoints.read_state

    def interrupted(*arguments: Any, **given: Any) -> None:
        if at != "before":
            write(*arguments, **given)
        monkeypatch.setattr(checkpoints, "write_prepared", write)
        if at == "behind, and again":
            monkeypatch.setattr(checkpoints, "read_state", interrupted_again)
        raise KeyboardInterrupt

    def interrupted_again(*arguments: Any) -> None:
        monkeypatch.setattr(checkpoints, "read_state", read)
        raise KeyboardInterrupt

    with logstore.open(tmp_path) as store:
        topic = store.topic("orders")
        topic[0].append(b"used")
        monkeypatch.setattr(checkpoints, "write_prepared", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.delete_topic("orders")
        if at == "before":
            assert topic[1].append(b"new") == 1
            assert topic[0].append(b"new") == 1
        else:
            for number in (0, 1):
                with pytest.raises(logstore.TopicNotFoundError, match="cut short"):
                    topic[number].append(b"new")
    with logstore.open(tmp_path) as store:
        assert ("orders" in store) == (at == "before")
        if at == "before":
            assert [len(partition) for partition in store["orders"]] == [2, 2]


def test_deletion_that_was_interrupted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the commit, everything is unchanged after each attempt."""
    write, tries = checkpoints.write_prepared, []

    def interrupted(directory: Directory, name: str, text: str, **given: Any) -> bytes:
        tries.extend([1] * (name == layout.TOPICS))
        if name == layout.TOPICS and len(tries) < 3:
            raise KeyboardInterrupt
        return write(directory, name, text, **given)

    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 2).append(b"old", partition=1)
    with logstore.open(tmp_path) as store:
        topic = store.topic("orders")
        monkeypatch.setattr(checkpoints, "write_prepared", interrupted)
        for count in (2, 3):
            with pytest.raises(KeyboardInterrupt):
                store.delete_topic("orders")
            topic.append(b"new", partition=1)
            assert len(topic[1]) == count
        store.delete_topic("orders")
        assert "orders" not in store


def test_numbers_of_a_topic_examine_no_partition(tmp_path: Path) -> None:
    """This holds even if one of them cannot be used; a deleted topic raises."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 3)
        assert topic.numbers == (0, 1, 2)
        topic.add_partitions(1)
        assert topic.numbers == (0, 1, 2, 3)
    with logstore.open(tmp_path) as store:
        topic = store.topic("orders")
        assert topic.numbers == (0, 1, 2, 3)
        assert store.metrics()["loaded_partitions"] == 0
        store.delete_topic("orders")
        with pytest.raises(logstore.TopicNotFoundError):
            topic.numbers  # noqa: B018


def test_settings_that_were_changed_by_force_are_refused(tmp_path: Path) -> None:
    """Frozen settings can be changed by force: they are checked again on use."""
    config = TopicConfig()
    object.__setattr__(config, "segment_bytes", -1)
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.ConfigError, match="segment_bytes=-1"):
            store.create_topic("orders", config=config)
        assert store.topics() == []
        topic = store.create_topic("orders")
        with pytest.raises(logstore.ConfigError, match="segment_bytes=-1"):
            topic.configure(config)
        topic.append(b"v")
        store.delete_topic("orders")
        assert store.topics() == []
