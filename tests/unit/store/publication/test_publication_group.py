"""Several identities in one commit, metadata that is committed with the records, and
pinned identities."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.checker import open_quietly
from logstore import (
    ConfigError,
    CorruptRecordError,
    LogStoreError,
    StorageError,
    Store,
    TopicNotFoundError,
)
from logstore.errors import PublicationConflictError, SyncFailedError, UnsupportedError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints, ledger, publications
from logstore.log.write.staged_files import Staged, logs_of
from logstore.store.publication.publication import PublicationRequest, request_of
from logstore.types import Publication
from support import staging
from support.damage import flip_bit
from support.disk import MemoryDisk
from support.staging import WAY, stage, staged_files
from support.values import config_of, expected

# Fixtures.
store, way = staging.store, staging.way


def asked(staged: Staged, identity: str, sequence: int = 1, **more: Any) -> Any:
    return request_of(logs_of([staged]), identity, sequence, **more)


def publish_all(store: Store, *requests: PublicationRequest) -> list[Any]:
    with store._publishing.publisher.lock:
        outcomes = store._publishing.publisher.publish_all(list(requests))
        store._publishing.publisher.discard_used()
        return outcomes


def is_new(outcome: object) -> bool:
    assert isinstance(outcome, Publication), outcome
    return outcome.is_new


# ---------------------------------------------------------------- several identities


def test_requests_are_published_in_order_and_each_has_its_offsets(store: Store) -> None:
    """This holds even if they go to the same partition."""
    a = store.create_topic("a", 2, config_of(WAY.magic, segment_bytes=1000))
    one = stage(store, {a[0]: 3})
    two = stage(store, {a[0]: 30, a[1]: 2})
    three = stage(store, {a[0]: 1})
    found = publish_all(
        store, asked(one, "x"), asked(two, "y", 7), asked(three, "z", 2, note="n")
    )
    assert [f.offsets for f in found] == [
        {("a", 0): range(3)},
        {("a", 0): range(3, 33), ("a", 1): range(2)},
        {("a", 0): range(33, 34)},
    ]
    assert [(f.identity, f.sequence, f.records, f.note) for f in found] == [
        ("x", 1, 3, ""), ("y", 7, 32, ""), ("z", 2, 1, "n"),
    ]  # fmt: skip
    assert all(map(is_new, found))
    assert [store.published(i) for i in "xyz"] == [1, 7, 2]
    assert [r.offset for r in a[0].read()] == list(range(34))
    assert a[0].durable_offset == 34
    assert staged_files(Path(store.path)) == []


def test_each_request_is_told_that_the_sync_of_their_commit_failed() -> None:
    """They were published: none is repeated alone and refused by the partitions, which
    take no more appends. A refused request keeps its own error."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    a = store.create_topic("a", 2, config_of(2))
    publish_all(store, asked(stage(store, {a[0]: 2}), "y", 5))
    requests = (
        asked(stage(store, {a[0]: 2}), "", 0),
        asked(stage(store, {a[1]: 2}), "x", 1),
        asked(stage(store, {a[0]: 2}), "y", 4),
    )
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION, nth=2, times=1)
    found = publish_all(store, *requests)
    disk.heal()
    assert isinstance(found[2], PublicationConflictError)
    for outcome in found[:2]:
        assert isinstance(outcome, SyncFailedError)
        assert "it was published" in str(outcome)
    with open_quietly(disk.kill()) as again:
        assert [p.end_offset for p in again.topic("a")] == [4, 2]
        assert again.published("x") == 1


def test_publication_in_doubt_does_not_refuse_requests_to_other_partitions() -> None:
    """Only a request to one of its partitions, which take no more appends, has their
    error."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    a = store.create_topic("a", 2, config_of(2))
    publish_all(store, asked(stage(store, {a[0]: 2}), "w"))
    disk.fail("sync", errno.EIO, name=layout.PUBLICATION, times=1)
    (in_doubt,) = publish_all(store, asked(stage(store, {a[0]: 2}), "x"))
    disk.heal()
    assert isinstance(in_doubt, SyncFailedError)
    found = publish_all(
        store, asked(stage(store, {a[0]: 1}), "y"), asked(stage(store, {a[1]: 2}), "z")
    )
    assert isinstance(found[0], SyncFailedError)
    assert is_new(found[1])
    assert [p.end_offset for p in a] == [4, 2]


def test_group_shares_the_syncs_of_one_publication(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of syncs does not depend on the number of identities."""
    a = store.create_topic("a", 1, config_of(1))
    files, counts = store._context.files, []
    for name in ("sync", "make_steps", "sync_directory"):
        real = getattr(files, name)
        monkeypatch.setattr(
            files, name, lambda *args, real=real: (counts.append(1), real(*args))[1]
        )

    def syncs(number: int) -> int:
        end = a[0].end_offset
        requests = [asked(stage(store, {a[0]: 2}), f"{end}-{n}") for n in range(number)]
        counts.clear()
        assert all(map(is_new, publish_all(store, *requests)))
        return len(counts)

    syncs(1)  # the first one begins writing
    assert syncs(1) == syncs(8) > 0


def test_refused_request_does_not_stop_the_others(store: Store) -> None:
    """Each of them has its own error, and its staged records are still there."""
    a = store.create_topic("a", 1, config_of(WAY.magic))
    store.create_topic("b", 1, config_of(WAY.magic))
    store.publish([stage(store, {a[0]: 2}, 5)], identity="old", sequence=5)
    deleted = stage(store, {store.topic("b")[0]: 1})
    store.delete_topic("b")
    store.create_topic("b", 1, config_of(WAY.magic))
    gone = stage(store, {a[0]: 1})
    Path(store.path, gone.files[0]).unlink()
    late = stage(store, {a[0]: 1})
    good = [stage(store, {a[0]: 3}), stage(store, {a[0]: 4})]
    found = publish_all(
        store, asked(good[0], "x"), asked(late, "old", 4), asked(deleted, "y"),
        asked(gone, "z"), asked(good[1], "w"),
    )  # fmt: skip
    assert [type(f) for f in found] == [
        Publication, PublicationConflictError, TopicNotFoundError, StorageError,
        Publication,
    ]  # fmt: skip
    assert a[0].end_offset == 9
    assert [store.published(i) for i in ("x", "old", "y", "z", "w")] == [
        1, 5, None, None, 1,
    ]  # fmt: skip
    left = {*late.files, *deleted.files}
    assert set(staged_files(Path(store.path))) == left


def test_damage_that_only_the_append_finds_does_not_stop_the_others(
    store: Store,
) -> None:
    """The commit of the group fails; each is published alone."""
    a = store.create_topic("a", 2, config_of(WAY.magic))
    requests = [stage(store, {a[0]: 3}), stage(store, dict.fromkeys(a, 5))]
    flip_bit(Path(store.path, requests[1].files[0]), 8 * 40)
    requests.append(stage(store, {a[1]: 2}))
    found = publish_all(store, *(asked(r, f"i{n}") for n, r in enumerate(requests)))
    assert is_new(found[0])
    assert isinstance(found[1], CorruptRecordError)
    assert is_new(found[2])
    assert [store.published(f"i{n}") for n in range(3)] == [1, None, 1]
    assert [p.end_offset for p in a] == [3, 2]
    assert found[2].offsets == {("a", 1): range(2)}
    store.close()
    assert not logstore.verify(store.path, deep=True).problems


def test_same_identity_twice_in_a_group_is_published_once(store: Store) -> None:
    """Two sequences are published in order, and the wrong order is a conflict."""
    a = store.create_topic("a", 1, config_of(WAY.magic))
    staged = [stage(store, {a[0]: 2}) for _ in range(4)]
    found = publish_all(
        store, asked(staged[0], "x", 1), asked(staged[1], "x", 1),
        asked(staged[2], "x", 2), asked(staged[3], "x", 1),
    )  # fmt: skip
    assert [is_new(f) for f in found[:3]] == [True, False, True]
    assert isinstance(found[3], PublicationConflictError)
    assert (a[0].end_offset, store.published("x")) == (4, 2)


def test_same_staged_records_of_two_identities_are_published_once(
    store: Store,
) -> None:
    a = store.create_topic("a", 1, config_of(WAY.magic))
    staged = stage(store, {a[0]: 2})
    found = publish_all(store, asked(staged, "x"), asked(staged, "y"))
    assert is_new(found[0])
    assert isinstance(found[1], ConfigError)
    assert (a[0].end_offset, store.published("y")) == (2, None)


def test_repetition_of_what_failed_in_the_same_group_is_tried(store: Store) -> None:
    """The first one is refused, so the second is no repetition."""
    a = store.create_topic("a", 1, config_of(WAY.magic))
    bad, good = stage(store, {a[0]: 9}), stage(store, {a[0]: 2})
    flip_bit(Path(store.path, bad.files[0]), 8 * 40)
    found = publish_all(store, asked(bad, "x", 3), asked(good, "x", 3))
    assert isinstance(found[0], CorruptRecordError)
    assert is_new(found[1])
    assert (a[0].end_offset, store.published("x")) == (2, 3)


def test_group_that_cannot_be_committed_has_an_error_for_each() -> None:
    """Nothing is published, or remembered; a later attempt is."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    a = store.create_topic("a", 1, config_of(1))
    store.publish([stage(store, {a[0]: 2})])
    # The entry, and then the whole file, for each of the requests.
    disk.fail("write", errno.EIO, name=layout.PUBLICATION)
    disk.fail("create", errno.EIO, name=f"{layout.PUBLICATION}.tmp")
    staged = [stage(store, {a[0]: 2}) for _ in range(2)]
    found = publish_all(store, *(asked(s, f"i{n}") for n, s in enumerate(staged)))
    assert all(isinstance(f, StorageError) for f in found)
    assert (a[0].end_offset, store.published("i0")) == (2, None)
    disk.heal()
    staged = [stage(store, {a[0]: 2}) for _ in range(2)]
    found = publish_all(store, *(asked(s, f"i{n}") for n, s in enumerate(staged)))
    assert all(map(is_new, found))
    assert a[0].end_offset == 6


# ---------------------------------------------------------------- metadata


def last(store: Store, identity: str) -> Publication:
    found = store.last_publication(identity)
    assert found is not None
    return found


def test_metadata_is_committed_with_the_records(store: Store) -> None:
    """Any bytes; a repetition keeps them, also with others."""
    a = store.create_topic("a", 1, config_of(WAY.magic))
    for number, metadata in enumerate((b"\0\xff" * 2048, b"", b'"[{'), 1):
        staged = [stage(store, {a[0]: 1}, number)]
        done = store.publish(staged, identity="g", sequence=number, metadata=metadata)
        assert (done.metadata, last(store, "g").metadata) == (metadata, metadata)
        staged = [stage(store, {a[0]: 1}, number)]
        again = store.publish(staged, identity="g", sequence=number, metadata=b"other")
        assert (again.is_new, again.metadata) == (False, metadata)
        with logstore.open(store.path, read_only=True) as reader:
            assert last(reader, "g").metadata == metadata
    assert a[0].end_offset == 3


def test_metadata_is_committed_without_records(store: Store) -> None:
    """The positions of a group that has written nothing are such metadata."""
    done = store.publish([], identity="g", sequence=4, metadata=b"positions")
    assert (done.is_new, done.records) == (True, 0)
    assert (store.published("g"), last(store, "g").metadata) == (4, b"positions")
    assert not store.publish([], identity="g", sequence=4, metadata=b"x").is_new
    with pytest.raises(PublicationConflictError):
        store.publish([], identity="g", sequence=3, metadata=b"x")
    path = store.path
    store.close()
    with logstore.open(path) as again:
        assert last(again, "g").metadata == b"positions"


def test_metadata_of_a_failed_publication_is_not_kept() -> None:
    """The metadata stay the last committed ones."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    a = store.create_topic("a", 1, config_of(1))
    store.publish([stage(store, {a[0]: 2})], identity="g", sequence=1, metadata=b"one")
    disk.fail("write", errno.EIO, name=layout.PUBLICATION)
    with pytest.raises(StorageError):
        store.publish(
            [stage(store, {a[0]: 2})], identity="g", sequence=2, metadata=b"two"
        )
    assert (a[0].end_offset, last(store, "g").metadata) == (2, b"one")


@pytest.mark.parametrize(
    "arguments",
    [
        {"metadata": b"x" * 4097}, {"metadata": "text"}, {"metadata": None},
        {"metadata": bytearray(2)}, {"pinned": 1}, {"pinned": "yes"},
        {"metadata": b"x", "identity": ""}, {"pinned": True, "identity": ""},
    ],
    ids=lambda arguments: "-".join(f"{k}={str(v)[:9]}" for k, v in arguments.items()),
)  # fmt: skip
def test_metadata_or_pin_that_cannot_be(store: Store, arguments: Any) -> None:
    """Nothing is published."""
    a = store.create_topic("a", 1, config_of(WAY.magic))
    staged = stage(store, {a[0]: 1})
    with pytest.raises(ConfigError, match=r"metadata|pinned"):
        store.publish([staged], **{"identity": "g", "sequence": 1, **arguments})
    assert (a[0].end_offset, store.published("g")) == (0, None)
    assert store.publish([staged], identity="g", sequence=1).is_new


# ---------------------------------------------------------------- pinned identities


def commit(store: Store, identity: str, sequence: int = 1, **more: Any) -> Publication:
    return store.publish(
        [], identity=identity, sequence=sequence, **{"metadata": b"x", **more}
    )


def test_pinned_identity_is_not_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays pinned until it is unpinned, and is not counted."""
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 2)
    assert commit(store, "group", pinned=True).pinned
    for name in "abc":
        commit(store, name)
    assert [store.published(i) for i in ("group", *"abc")] == [1, None, 1, 1]
    assert commit(store, "group", 2).pinned
    for name in "de":
        commit(store, name)
    assert last(store, "group").pinned
    # A repetition of the last publication can remove the pin.
    assert not commit(store, "group", 2, pinned=False).pinned
    for name in "fg":
        commit(store, name)
    assert store.published("group") is None


def test_pin_and_unpin_of_the_library(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller knows an identity, and has nothing to publish."""
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 1)
    commit(store, "group")
    with store._publishing.publisher.lock:
        assert not store._publishing.publisher.pin("nobody", True)
        assert store._publishing.publisher.pin("group", True)
    for name in "ab":
        commit(store, name)
    assert store.published("group") == 1
    with store._publishing.publisher.lock:
        assert store._publishing.publisher.pin("group", False)
    # An unpinned identity counts as just used: the next one replaces it.
    assert [store.published(i) for i in ("group", "a", "b")] == [1, None, None]
    commit(store, "c")
    assert [store.published(i) for i in ("group", "c")] == [None, 1]


def test_ten_thousand_others_do_not_evict_a_pinned_identity(store: Store) -> None:
    """The limit is the default."""
    published = {
        f"i{n}": ledger.LedgerEntry(1, 1, 1) for n in range(ledger.IDENTITIES_MAX)
    }
    published = {"g": ledger.LedgerEntry(7, 1, 1, is_pinned=True), **published}
    root = store._context.root
    value = publications.remembered(published)
    checkpoints.write_state(root, layout.PUBLISHED, value)
    for name in ("x", "y"):
        commit(store, name)
    assert [store.published(i) for i in ("g", "i0", "i1", "i2", "x", "y")] == [
        7, None, None, 1, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("character", ["\x01", "\U0001f600", '"', "x"])
def test_ten_thousand_identities_that_fit_are_all_remembered(character: str) -> None:
    """Names have the largest length, and characters of the most bytes."""
    published = {
        f"{n:05d}" + character * 995: ledger.LedgerEntry(*[layout.OFFSET_MAX] * 3)
        for n in range(ledger.IDENTITIES_MAX)
    }
    all_of_them = ledger.Ledger(published)
    assert all_of_them.evicted({}) == []
    value = publications.remembered(all_of_them.entries())
    size = len(checkpoints.pack_state(value))
    assert size <= all_of_them.file_bytes < checkpoints.STATE_BYTES_MAX


def test_large_entries_evict_the_oldest_before_the_file_is_too_large(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beyond its limit could not be read: publishing would be impossible."""
    monkeypatch.setattr(ledger, "LEDGER_BYTES_MAX", 20_000)
    commit(store, "group", pinned=True, metadata=b"m" * 4096)
    for name in "abcdef":
        commit(store, name, metadata=b"m" * 4096)
    found = [store.published(i) for i in ("group", *"abcdef")]
    kept = found[1:].count(1)
    assert 0 < kept < 6
    assert found == [1, *[None] * (6 - kept), *[1] * kept]


# ---------------------------------------------------------------- the versions


def test_file_without_pins_and_metadata_has_the_version_of_before(
    store: Store,
) -> None:
    """Earlier versions read it; they refuse a file with pins or metadata, which they
    would lose."""
    a = store.create_topic("a", 1, config_of(WAY.magic))
    path = Path(store.path, layout.PUBLISHED)

    def version() -> int:
        return int(json.loads(path.read_bytes().split(b"\n")[1])["version"])

    store.publish([stage(store, {a[0]: 1})], identity="x", sequence=1, note="n")
    store.close()
    assert version() == 1
    with logstore.open(store.path) as again:
        a = again.topic("a")
        again.publish([stage(again, {a[0]: 1})], identity="x", sequence=2, pinned=True)
    assert version() == 2
    with logstore.open(store.path) as again:
        again.publish([], identity="x", sequence=2, pinned=False)
    assert version() == 1


def test_file_of_a_later_version_is_refused(store: Store) -> None:
    root = store._context.root
    root.write_file(
        layout.PUBLISHED, checkpoints.pack_state({"version": 4, "published": []})
    )
    with pytest.raises(UnsupportedError, match="version 4, this logstore knows 3"):
        store.published("x")
    root.write_file(
        layout.PUBLISHED, checkpoints.pack_state({"version": 0, "published": []})
    )
    with pytest.raises(LogStoreError, match="its version is 0"):
        store.published("x")


@pytest.mark.parametrize(
    "fields",
    [
        {"pinned": 1}, {"pinned": [1]}, {"metadata": {}}, {"metadata": [["x"]]},
        {"metadata": [["x", 1]]}, {"metadata": [["x", "%%%"]]},
        {"metadata": [["x", "AAAA" * 1366]]}, {"metadata": [["x", "\u00e9"]]},
    ],
    ids=str,
)  # fmt: skip
def test_pins_or_metadata_that_no_version_writes_are_damage(
    store: Store, fields: Any
) -> None:
    value = {"version": 2, "published": [["x", 1, 1, 1]], **fields}
    store._context.root.write_file(layout.PUBLISHED, checkpoints.pack_state(value))
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        store.published("x")


def test_pins_and_metadata_survive_a_publication_that_a_crash_undoes() -> None:
    """The state of the earlier publication counts."""
    disk = MemoryDisk()
    store = open_quietly(disk)
    a = store.create_topic("a", 1, config_of(1))
    store.publish(
        [stage(store, {a[0]: 2})], identity="g", sequence=1, metadata=b"1", pinned=True
    )
    disk.fail("write", errno.EIO, name=layout.PUBLICATION)
    disk.fail("create", errno.EIO, name=f"{layout.PARTITION_STATE}.tmp")
    with pytest.raises(StorageError):
        store.publish(
            [stage(store, {a[0]: 2})], identity="g", sequence=2, metadata=b"2"
        )
    disk = disk.kill()
    assert f"store/{layout.PUBLICATION}" in disk.tree()
    with open_quietly(disk) as again:
        found = last(again, "g")
        assert (found.sequence, found.metadata, found.pinned) == (1, b"1", True)
        assert list(again.topic("a")[0].read()) == expected(1, 0, 2)


def test_offsets_of_a_publication_are_those_of_all_its_parts(store: Store) -> None:
    """The range covers several staged values for one partition, from the first to the
    last."""
    a = store.create_topic("a", 2, config_of(WAY.magic))
    parts = [
        stage(store, {a[0]: count, a[1]: 1}, number)
        for number, count in enumerate((3, 20, 1))
    ]
    done = store.publish(parts, identity="all", sequence=1)
    assert done.records == 27
    assert done.offsets == {("a", 0): range(24), ("a", 1): range(3)}


def test_pin_without_room_is_refused_and_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned identities are never evicted: the next one would make the file too large
    to be read. Others publish, and the store can be opened again."""
    monkeypatch.setattr(ledger, "PINNED_BYTES_MAX", 5_000)
    count = 0
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", config=config_of(2))[0]
        with pytest.raises(ConfigError, match="does not fit into the file"):
            for count in range(100):
                store.publish(
                    [],
                    identity=f"i{count}",
                    sequence=1,
                    metadata=bytes(1_000),
                    pinned=True,
                )
        assert 2 <= count <= 5
        store.publish([stage(store, {partition: 2})], identity="other", sequence=1)
    with logstore.open(tmp_path) as store:
        assert store.published("i0") == store.published("other") == 1
        assert store.published(f"i{count}") is None
        assert store["t"][0].end_offset == 2
