"""The publications of a store, from its two files."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.ledger import LedgerEntry
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.publications import (
    Journal,
    Publications,
    change_rows,
    record_unknown,
    remembered,
    unknown_publications,
)
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
EMPTY = Journal("epoch", {}, {})
ENTRY = LedgerEntry(7, 3, 1_700_000_000_000, "note", True, b"\0\xff")


def row(key: TopicPartition, base: int | None) -> list[Any]:
    return [*key, base]


def entry(*bases: list[Any], changes: list[list[Any]] | None = None) -> dict[str, Any]:
    return {"version": 4, "bases": list(bases), "changes": changes or []}


def test_log_is_synced_when_its_end_moves() -> None:
    """The first end may belong to records that are only in memory."""
    first = EMPTY.after([entry(row(A, 5), row(B, 9))])
    assert first.bases == {A: 5, B: 9}
    assert first.synced == frozenset()
    second = first.after([entry(row(A, 8))])
    assert second.bases == {A: 8, B: 9}
    assert second.synced == {A}
    assert first.after([entry(row(A, 6)), entry(row(B, 10))]).synced == {A, B}
    # A log that was cut or deleted has no end, and restarts.
    gone = second.after([entry(row(A, None))])
    assert (gone.bases, gone.synced) == ({B: 9}, frozenset())
    again = gone.after([entry(row(A, 3))])
    assert (again.bases, again.synced) == ({A: 3, B: 9}, frozenset())


def test_last_change_of_an_identity_counts_and_comes_last() -> None:
    rows = change_rows({"a": ENTRY, "b": ENTRY._replace(metadata=b"")})
    journal = EMPTY.after([entry(changes=rows), entry(changes=[["a"], ["c"]])])
    assert list(journal.changes.items()) == [
        ("b", ENTRY._replace(metadata=b"")),
        ("a", None),
        ("c", None),
    ]
    assert journal.after([entry(changes=rows)]).changes["a"] == ENTRY


@pytest.mark.parametrize("is_appended", [False, True])
def test_published_is_what_both_files_say(root: Directory, is_appended: bool) -> None:
    """The journal may have grown since it was read."""
    old = {"a": ENTRY, "b": ENTRY._replace(sequence=1), "c": ENTRY}
    checkpoints.write_state(root, layout.PUBLISHED, remembered(old))
    changes = change_rows({"a": ENTRY._replace(sequence=8), "b": None})
    publications = Publications(root)
    first = {"version": 3, "generation": "epoch", **entry(row(A, 5))}
    if is_appended:
        checkpoints.write_state(root, layout.PUBLICATION, first)
        assert publications.published() == old
        assert publications.journal() is not None
    checkpoints.write_state(root, layout.PUBLICATION, {**first, "changes": changes})
    assert list(publications.published().items()) == [
        ("c", ENTRY),
        ("a", ENTRY._replace(sequence=8)),
    ]
    root.unlink(layout.PUBLICATION)
    assert publications.journal() is None
    assert publications.published() == old


def test_journal_that_ends_while_it_is_read_is_none(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has grown since it was read, and its owner closes the store at that
    moment."""
    first = {"version": 3, "generation": "epoch", **entry(row(A, 5))}
    file = GrowingFile(root, layout.PUBLICATION)
    file.replace(checkpoints.state_text(first))
    publications = Publications(root)
    assert publications.published() == {}
    changes = {"a": ENTRY}
    assert file.append(checkpoints.state_text(entry(changes=change_rows(changes))))
    assert publications.published() == changes
    assert file.append(checkpoints.state_text(entry(row(A, 6))))
    real = Directory.opened

    def opened(directory: Directory, name: str, **how: bool) -> Any:
        if name == layout.PUBLICATION and root.exists(name):
            checkpoints.write_state(root, layout.PUBLISHED, remembered(changes))
            root.unlink(name)
        return real(directory, name, **how)

    monkeypatch.setattr(Directory, "opened", opened)
    assert publications.published() == changes
    assert publications.journal() is None


def test_unknown_publications_are_read_as_they_were_recorded(root: Directory) -> None:
    assert unknown_publications(root) == {}
    record_unknown(root, {"b": 2, "a": 1})
    assert unknown_publications(root) == {"a": 1, "b": 2}


def test_journal_counts_as_long_as_logstore_is_the_writer(root: Directory) -> None:
    """The journal stays unchanged when another program takes the store over, or the
    owner file is lost and put back."""
    owner = Ownership(root)
    owner.read_owner(lambda action: None)
    owner.begin(lambda: None)
    journal = {"version": 3, "generation": owner.store_epoch, **entry(row(A, 5))}
    checkpoints.write_state(root, layout.PUBLICATION, journal)
    publications = Publications(root)
    cache_key = publications.cache_key()
    for _ in range(2):
        assert publications.high_watermarks(cache_key) == {A: 5}
        root.rename(layout.OWNER, "aside")
        assert publications.high_watermarks(cache_key) == {}
        root.rename("aside", layout.OWNER)
    assert publications.high_watermarks(cache_key) == {A: 5}
    checkpoints.write_offsets(root, layout.RECOVERY_CHECKPOINT, {A: 9})
    assert publications.high_watermarks(cache_key) == {}
