"""Copies of stores with damage, and copies that lack records of publications."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.store.opening import open_store
from support.damage import FaultyFiles, append_garbage, flip_bit, logs_in
from support.values import fill


def _stored(path: Path) -> None:
    with logstore.open(path) as store:
        store.create_topic("t")[0].append_many([b"x"] * 10)


def _damaged_copy(tmp_path: Path, *, is_foreign: bool) -> Path:
    """A copy with a damaged partition, "bad"; the other one is "t"."""
    original, copy = tmp_path / "store", tmp_path / "copy"
    _stored(original)
    with logstore.open(original) as store:
        fill(store.create_topic("bad")[0], 10)
    log = logs_in(original / "bad-0")[0]
    if is_foreign:
        (original / ".logstore-owner").unlink()
        flip_bit(log, 8 * (log.stat().st_size // 2))
    else:
        append_garbage(log)
    with logstore.open(original) as store:
        assert [a.topic for a in store.recover().actions if a.topic] == ["bad"]
        store.topic("t").append(b"here it counts")
    shutil.copytree(original, copy)
    return copy


@pytest.mark.parametrize("is_foreign", [False, True])
def test_copy_with_a_damaged_partition_is_a_copy_once(
    tmp_path: Path, is_foreign: bool
) -> None:
    """Its logs get no further cuts. The damaged one has its cut, too, for the time
    after its repair."""
    copy = _damaged_copy(tmp_path, is_foreign=is_foreign)
    with logstore.open(copy) as store:
        store.topic("t").append(b"x")
        bad = store.topic("bad")[0].mark()
    with logstore.open(copy, read_only=True) as store:
        mark = store.topic("t")[0].mark()
    for _ in range(2):
        with logstore.open(copy) as store:
            assert store.recovery_report
            assert store.topic("t")[0].mark() == mark
            if not is_foreign:
                assert store.topic("bad")[0].mark() == bad
            store.topic("t").append(b"x")


def test_copy_whose_damaged_partition_cannot_be_written_to_stays_one(
    tmp_path: Path,
) -> None:
    """Its log would never get the cut."""
    copy = _damaged_copy(tmp_path, is_foreign=False)
    files = FaultyFiles()
    with open_store(copy, _files=files) as store:
        store.topic("t").append(b"x")
        store.recover()
        mark = store.topic("t")[0].mark()
        files.fail("open_directory", errno.EACCES, name="bad-0")
    files.heal()
    with logstore.open(copy) as store:
        store.topic("t").append(b"x")
        assert store.topic("t")[0].mark() != mark
        mark = store.topic("t")[0].mark()
    with logstore.open(copy) as store:
        assert store.topic("t")[0].mark() == mark


def _put(store: logstore.Store, identity: str, topic: str, sequence: int = 1) -> bool:
    """Publish one record. Returns whether it is new."""
    with store.stage(identity, sequence) as stage:
        stage.append_many(store.topic(topic)[0], [b"x"])
        staged = stage.finish()
    return store.publish(staged, identity=identity, sequence=sequence).is_new


@pytest.mark.parametrize("way", ["deleted", "cut", "cut later"])
def test_publication_whose_records_are_there_is_known_in_a_copy(
    tmp_path: Path, way: str
) -> None:
    """This holds even if a topic that was published to was deleted, or cut, before the
    copy."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with logstore.open(data) as store:
        for topic in ("t", "other", "gone"):
            store.create_topic(topic)
        store.topic("gone").append(b"first")
        assert _put(store, "a", "t")
        assert _put(store, "b", "other")
        assert _put(store, "c", "gone")
        if way == "deleted":
            store.delete_topic("gone")
        elif way == "cut":
            assert store.topic("gone")[0].truncate_to(0) == 0
        else:
            store.topic("gone").append(b"plain")
            assert store.topic("gone")[0].truncate_to(1) == 1
            assert _put(store, "a", "t", 2)
        shutil.copytree(data, copy)
    with logstore.open(copy) as store:
        sequence = 2 if way == "cut later" else 1
        assert not _put(store, "a", "t", sequence)
        assert not _put(store, "b", "other")
        assert not _put(store, "c", "t")
    assert not (copy / ".logstore-unknown").exists()


def test_publication_is_unknown_in_a_copy_only_if_its_own_log_is_short(
    tmp_path: Path,
) -> None:
    """Other publications in the same journal are complete. A topic that the copy lacks
    is short."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with logstore.open(data) as store:
        for topic in ("t", "other"):
            store.create_topic(topic)
        assert _put(store, "a", "t")
        assert _put(store, "b", "other")
        shutil.copytree(data, copy)
        store.create_topic("late")
        assert _put(store, "b", "other", 2)
        assert _put(store, "c", "late")
        assert not _put(store, "c", "late")  # which the journal notes, too
        shutil.copy2(data / ".logstore-publication", copy)
    with logstore.open(copy) as store:
        assert not _put(store, "a", "t")
        with pytest.raises(logstore.errors.PublicationUnknownError):
            _put(store, "b", "other", 2)
        with pytest.raises(logstore.errors.PublicationUnknownError):
            _put(store, "c", "t")


def test_publication_that_a_crash_ends_in_a_copy_is_undone_to_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the end of the original log in the journal."""
    data, copy, crashed = (tmp_path / name for name in ("data", "copy", "crashed"))
    with logstore.open(data) as store:
        store.create_topic("t")
        assert _put(store, "a", "t")
        shutil.copytree(data / "t-0", tmp_path / "t-0")
        for sequence in (2, 3, 4):
            assert _put(store, "a", "t", sequence)
        shutil.copytree(data, copy)
    shutil.rmtree(copy / "t-0")
    shutil.move(tmp_path / "t-0", copy / "t-0")
    publish = PublicationJournal.publish

    def crash(self: PublicationJournal, *args: Any) -> None:
        shutil.copytree(copy, crashed)
        publish(self, *args)

    with logstore.open(copy) as store:
        assert store.topic("t")[0].end_offset == 1
        monkeypatch.setattr(PublicationJournal, "publish", crash)
        assert _put(store, "b", "t")
        monkeypatch.undo()
    with logstore.open(crashed) as store:
        assert store.topic("t")[0].end_offset == 1
    with logstore.open(copy) as store:
        assert store.topic("t")[0].end_offset == 2


def test_copy_with_a_bad_file_of_unknown_publications_can_be_opened(
    tmp_path: Path,
) -> None:
    """Each repetition is refused while it is bad, also of a publication that is short
    now."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with logstore.open(data) as store:
        store.create_topic("t")
        assert _put(store, "a", "t")
        shutil.copytree(data, copy)
        assert _put(store, "a", "t", 2)
        shutil.copy2(data / ".logstore-publication", copy)
    (copy / ".logstore-unknown").write_text("nothing")
    with logstore.open(copy) as store:
        store.topic("t").append(b"x")
        with pytest.raises(logstore.errors.CorruptCheckpointError):
            _put(store, "a", "t", 2)
        assert _put(store, "a", "t", 3)


def test_cut_that_the_journal_cannot_be_told_of_is_refused(tmp_path: Path) -> None:
    """The journal has an end of the log, which is out of date after a later append."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        store.create_topic("t")
        assert _put(store, "a", "t")
        files.fail("create", errno.ENOSPC, name=".logstore-published.tmp")
        with pytest.raises(logstore.DiskFullError, match="Nothing was cut"):
            store.topic("t")[0].truncate_to(0)
        assert store.topic("t")[0].end_offset == 1
        files.heal()
        store.topic("t").append(b"plain")
        files.fail("create", errno.ENOSPC, name=".logstore-published.tmp")
        assert store.topic("t")[0].truncate_to(1) == 1
        files.heal()
        assert store.topic("t")[0].truncate_to(0) == 0
        assert _put(store, "a", "t", 2)
    with logstore.open(tmp_path) as store:
        assert not _put(store, "a", "t", 2)
        assert store.topic("t")[0].end_offset == 1
