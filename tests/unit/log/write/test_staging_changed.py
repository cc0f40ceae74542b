"""Changes between a stage and its publication: a replaced topic is refused; if settings
change, those at the publication count."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import logstore
from logstore import Store, TimestampType, TopicConfig, TopicNotFoundError
from logstore.errors import RecordTooLargeError
from logstore.io import layout
from logstore.log.write import staging
from logstore.maintenance.verify import verify
from logstore.store.opening import open_store
from support import one_stage
from support.damage import FixedClock
from support.one_stage import stage
from support.values import FORMATS, config_of, values

# Fixtures.
store, way = one_stage.store, one_stage.way

PUBLISHABLE = [(magic, codec) for magic, codec in FORMATS if magic]


# ---------------------------------------------------------------- another topic


def test_staged_for_a_topic_that_was_made_anew_is_refused(store: Store) -> None:
    """Its records are not for the new topic, which has separate settings."""
    partition = store.create_topic("t", 1, config_of(2))[0]
    staged = stage(store, partition, b"for the first")
    store.delete_topic("t")
    again = store.create_topic("t", 1, config_of(2))[0]
    with pytest.raises(TopicNotFoundError, match="Stage them again"):
        store.publish([staged], identity="me", sequence=1)
    with store.stage() as opened:  # the partition of the first one
        opened.append_many(partition, [b"too late"])
        with pytest.raises(TopicNotFoundError):
            store.publish([opened.finish()])
    assert again.end_offset == 0
    store.publish([stage(store, again, b"for the second")], identity="me", sequence=1)
    assert values(again) == [b"for the second"]


def test_id_of_a_topic_stays_for_its_life(store: Store) -> None:
    """The id stays if partitions are added, settings change, and the store is
    reopened."""
    topic = store.create_topic("t", 1, config_of(2))
    staged = stage(store, topic[0], b"a")
    topic.add_partitions(1)
    topic.configure(config_of(2, retention_ms=5_000_000_000))
    store.close()
    with logstore.open(store.path) as again:
        again.publish([staged])
        assert values(again.topic("t")[0]) == [b"a"]
        with logstore.open(store.path, read_only=True) as reader:
            staged = stage(reader, reader.topic("t")[1], b"b")
        again.publish([staged])
        assert values(again.topic("t")[1]) == [b"b"]


def test_topic_of_an_older_store_has_no_id(store: Store) -> None:
    """The topic gets no id later: files that were staged for it before are still
    valid."""
    store.create_topic("t", 1, config_of(2))
    store.close()
    Path(store.path, layout.TOPICS).unlink()
    with logstore.open(store.path) as again:
        topic = again.topic("t")
        staged = stage(again, topic[0], b"a")
        assert staged.logs[0].topic_id == ""
        topic.configure(config_of(2))
        again.publish([staged])
        assert values(topic[0]) == [b"a"]
        other = stage(again, topic[0], b"b")
        again.delete_topic("t")
        anew = again.create_topic("t", 1, config_of(2))[0]
        with pytest.raises(TopicNotFoundError):
            again.publish([other])
        assert anew.end_offset == 0


# ---------------------------------------------------------------- settings that changed


@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_batches_are_held_against_the_limit_at_the_publication(
    store: Store, magic: int, codec: str
) -> None:
    """The limit is smaller than at their creation; with the old one they get in."""
    config = config_of(magic, codec)
    topic = store.create_topic("t", 1, config)
    staged = stage(store, topic[0], os.urandom(300))
    topic.configure(config_of(magic, codec, max_message_bytes=200))
    with pytest.raises(RecordTooLargeError, match="max_message_bytes=200") as caught:
        store.publish([staged])
    assert caught.value.limit == 200
    assert (caught.value.size or 0) > 300
    assert topic[0].end_offset == 0
    topic.configure(config)
    store.publish([staged])
    assert topic[0].end_offset == 1


@pytest.mark.parametrize("now", [0, 1, 2])
@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_staged_batches_keep_their_magic(
    store: Store, magic: int, codec: str, now: int
) -> None:
    """The topic's format at the publication does not matter: logs may be mixed."""
    topic = store.create_topic("t", 1, config_of(magic, codec))
    staged = stage(store, topic[0], b"a", b"b")
    topic.configure(config_of(now))
    topic[0].append(b"before")
    store.publish([staged])
    topic[0].append(b"behind")
    assert values(topic[0]) == [b"before", b"a", b"b", b"behind"]
    assert {b.magic for b in topic[0].read_batches(1, 3)} == {magic}
    store.close()
    assert verify(store.path, deep=True).ok
    with logstore.open(store.path) as again:
        assert values(again.topic("t")[0]) == [b"before", b"a", b"b", b"behind"]


def stamping(magic: int, codec: str, kind: str) -> TopicConfig:
    return config_of(magic, codec, message_timestamp_type=kind, index_interval_bytes=1)


@pytest.mark.parametrize(("magic", "codec"), PUBLISHABLE)
def test_published_records_have_the_time_of_their_publication(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """If the topic has the time of the append: not the time of their staging, which may
    be hours before that of records in the log already; also in the indexes."""
    clock = FixedClock(1_700_000_000_000)
    with open_store(tmp_path / "store", _files=clock) as store:
        partition = store.create_topic("t", 2, stamping(magic, codec, "LogAppendTime"))[
            0
        ]
        with store.stage() as opened:
            for number in range(40):
                opened.append_many(
                    partition,
                    [b"%d" % number * 30] * 5,
                    timestamps_ms=[number * 1000] * 5,
                )
            staged = opened.finish()
        clock.now += 3_600_000
        partition.append(b"appended")
        clock.now += 1000
        published = clock.now
        store.publish([staged])
        clock.now += 1000
        partition.append(b"behind")
        records = list(partition.read())
        times = [r.timestamp_ms for r in records]
        assert times == [published - 1000] + [published] * 200 + [published + 1000]
        assert {r.timestamp_type for r in records} == {TimestampType.LOG_APPEND_TIME}
        for when, offset in (
            (published - 1000, 0),
            (published - 999, 1),
            (published, 1),
            (published + 1, 201),
            (published + 1001, None),
        ):
            assert partition.offset_for_time(when) == offset
    report = verify(tmp_path / "store", deep=True)
    assert report.ok, report.problems
    with open_store(tmp_path / "store", _files=clock) as store:
        partition = store.topic("t")[0]
        assert not store.recovery_report
        assert [r.timestamp_ms for r in partition.read()] == times
        assert partition.offset_for_time(published) == 1


@pytest.mark.parametrize("now", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("then", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("magic", [1, 2])
def test_kind_of_timestamp_is_that_of_the_publication(
    tmp_path: Path, magic: int, then: str, now: str
) -> None:
    """The kinds differ between stage and publication: the result is as if appended at
    the publication."""
    clock = FixedClock(1_700_000_000_000)
    with open_store(tmp_path / "store", _files=clock) as store:
        topic = store.create_topic("t", 1, stamping(magic, "none", then))
        with store.stage() as opened:
            opened.append_many(topic[0], [b"a"] * 9, timestamps_ms=[1000] * 9)
            staged = opened.finish()
        topic.configure(stamping(magic, "none", now))
        clock.now += 5000
        store.publish([staged])
        wanted = 1000 if now == "CreateTime" else clock.now
        assert {r.timestamp_ms for r in topic[0].read()} == {wanted}
        assert {r.timestamp_type for r in topic[0].read()} == {
            TimestampType.CREATE_TIME
            if now == "CreateTime"
            else TimestampType.LOG_APPEND_TIME
        }
        assert topic[0].offset_for_time(wanted) == 0
    assert verify(tmp_path / "store", deep=True).ok


def test_batch_that_was_stamped_when_it_was_staged_is_stamped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions staged stamped batches, whatever the topic's settings are by
    now."""
    clock = FixedClock(1_700_000_000_000)
    with open_store(tmp_path / "store", _files=clock) as store:
        topic = store.create_topic("t", 1, stamping(2, "none", "LogAppendTime"))
        with monkeypatch.context() as patched:
            patched.setattr(staging.dataclasses, "replace", lambda config, **_: config)
            staged = stage(store, topic[0], b"a", b"b")
        topic.configure(stamping(2, "none", "CreateTime"))
        clock.now += 5000
        store.publish([staged])
        assert {r.timestamp_ms for r in topic[0].read()} == {clock.now}
    assert verify(tmp_path / "store", deep=True).ok
