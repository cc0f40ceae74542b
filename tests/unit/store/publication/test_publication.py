"""Permitted publications and identities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.checkpoint.ledger import LedgerEntry
from logstore.store.publication.publication import request_of
from support.groups import T0, consumer, drain, store_with

TAKEN = "group:g"


def _staged(store: logstore.Store) -> Any:
    with store.stage("job", 1) as stage:
        stage.append_many(store.topic("t")[0], [b"output"])
        return stage.finish()


@pytest.mark.parametrize(
    "call",
    [
        lambda store, staged: store.stage(TAKEN, 1),
        lambda store, staged: store.publish(staged, identity=TAKEN, sequence=1),
        lambda store, staged: store.submit(staged, identity=TAKEN, sequence=1),
        lambda store, staged: store.publish(
            [], identity=TAKEN, sequence=1, metadata=b"x", pinned=True
        ),
    ],
)
def test_identity_of_a_group_given_by_a_caller_is_refused(
    tmp_path: Path, call: Callable[[logstore.Store, Any], object]
) -> None:
    """Another entry would take the place of the positions of the group."""
    path = store_with(tmp_path / "s")
    with logstore.open(path) as store:
        staged = _staged(store)
        with pytest.raises(logstore.ConfigError, match="is reserved"):
            call(store, staged)
        assert store.published(TAKEN) is None
        store.publish(staged, identity="job", sequence=1)


def test_identity_of_a_group_handed_in_by_a_caller_is_refused(tmp_path: Path) -> None:
    """A read-only store refuses it, too; no request is left."""
    path = store_with(tmp_path / "s")
    with logstore.open(path, read_only=True) as store:
        with pytest.raises(logstore.ConfigError, match="is reserved"):
            store.submit([], identity=TAKEN, sequence=1, metadata=b"x")
        with pytest.raises(logstore.ConfigError, match="is reserved"):
            store.stage(TAKEN, 1)
    assert not [name for name in path.iterdir() if "request" in name.name]


def test_group_publishes_under_its_identity_and_anybody_may_ask_for_it(
    tmp_path: Path,
) -> None:
    """`published` returns the number of commits of the group."""
    path = store_with(tmp_path / "s")
    with consumer(path) as one:
        with one.transaction() as transaction:
            assert len(drain(one)) == 20
            transaction.append("t", b"output", partition=0)
        assert one.committed(T0) == logstore.OffsetAndMetadata(10)
    with logstore.open(path, read_only=True) as store:
        assert store.published(TAKEN) == 1
        assert store.published("groups") is None
    with logstore.open(path) as store:
        store.publish([], identity="groups", sequence=1, pinned=True)  # like it


def test_publication_that_is_repeated_keeps_its_metadata_and_gets_the_new_note(
    tmp_path: Path,
) -> None:
    """The new pin is applied, too, if the call has one."""
    before = LedgerEntry(7, 3, 1000, "old", is_pinned=True, metadata=b"old")
    for pinned in (None, True, False):
        request = request_of([], "job", 7, "new", b"new", pinned)
        found = request.repeated(before)
        is_pinned = pinned is not False
        assert found == LedgerEntry(7, 3, 1000, "new", is_pinned, b"old")
        assert request.entry(before, 2000) == LedgerEntry(
            7, 0, 2000, "new", is_pinned, b"new"
        )
    path = store_with(tmp_path / "s")
    with logstore.open(path) as store:
        store.publish(_staged(store), identity="job", sequence=1, note="old")
        again = store.publish([], identity="job", sequence=1, note="new")
        assert (again.is_new, again.note, again.records) == (False, "new", 1)
        last = store.last_publication("job")
        assert last is not None
        assert (last.note, last.records) == ("new", 1)
