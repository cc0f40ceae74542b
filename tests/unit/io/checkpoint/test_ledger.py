"""Publications remembered in memory."""

from __future__ import annotations

import random

import pytest

from logstore.io.checkpoint import ledger
from logstore.io.checkpoint.ledger import Call, Ledger, LedgerEntry, entry_bytes
from logstore.io.layout import TopicPartition

PLAIN = LedgerEntry(7, 3, 1_700_000_000_000, "note", False, b"\0\xff")
PINNED = PLAIN._replace(is_pinned=True)


def test_oldest_are_forgotten_but_for_the_pinned_and_the_kept() -> None:
    """The 10,000 newest entries without a pin are remembered."""
    found = Ledger({f"i{number}": PLAIN for number in range(10_002)} | {"i1": PINNED})
    changes = {"new": PLAIN}
    assert found.evicted(changes, {"i2", "new"}) == ["i0", "i3"]
    found.apply({**dict.fromkeys(["i0", "i3"]), **changes})
    assert found.evicted({}) == []
    assert found.get("i0") is None
    assert found.get("i1") == PINNED
    entries = found.entries()
    assert len(entries) == 10_001
    assert list(entries)[-1] == "new"


def test_one_that_publishes_again_is_the_last_to_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 2)
    found = Ledger({"a": PLAIN, "b": PLAIN})
    found.apply({"a": PLAIN._replace(sequence=8)})
    assert found.evicted({"c": PLAIN}) == ["b"]


def test_bytes_are_those_of_all_entries() -> None:
    """After any changes, and for the pinned ones, too."""
    rng, found = random.Random(3), Ledger()
    for _ in range(300):
        entry = rng.choice([PLAIN, PINNED, PLAIN._replace(note="x" * 50), None])
        found.apply({f"i{rng.randrange(20)}": entry})
        rows = found.entries().items()
        assert found.file_bytes == sum(entry_bytes(*row) for row in rows)
        pinned = sum(entry_bytes(*row) for row in rows if row[1].is_pinned)
        assert found._pinned_bytes == pinned
        assert set(found._others) == {i for i, e in rows if not e.is_pinned}


def test_pins_have_room_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that does not grow is admitted even beyond it, and a pin is always
    removed."""
    size = entry_bytes("a", PINNED)
    monkeypatch.setattr(ledger, "PINNED_BYTES_MAX", 2 * size)
    monkeypatch.setattr(ledger, "LEDGER_BYTES_MAX", 3 * size)
    found = Ledger({"a": PINNED})
    assert found.has_room({"b": PINNED})
    assert not found.has_room({"b": PINNED, "c": PINNED})
    found.apply({"b": PINNED})
    assert not found.has_room({"c": PINNED})
    assert found.has_room({"c": PLAIN})
    assert not found.has_room({"c": PLAIN, "d": PLAIN})
    found.apply({"c": PINNED, "d": PINNED})
    assert found.has_room({"c": PINNED._replace(sequence=9)})
    assert not found.has_room({"c": PINNED._replace(note="longer")})
    assert not found.has_room({"e": PLAIN})
    assert found.has_room({"c": PLAIN})


def test_questions_do_not_go_through_all_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A publication counts only the bytes of its identities."""
    found = Ledger({f"i{number}": PINNED for number in range(100)})
    found.apply({f"j{number}": PLAIN for number in range(100)})
    asked: list[str] = []

    def counted(identity: str, entry: LedgerEntry) -> int:
        asked.append(identity)
        return 1

    monkeypatch.setattr(ledger, "entry_bytes", counted)
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 100)
    changes = {"j50": PLAIN, "new": PLAIN}
    assert found.has_room(changes)
    assert found.evicted(changes, changes) == ["j0"]
    found.apply({"j0": None, **changes})
    assert set(asked) == {"j50", "new"}


def made(*numbers: int) -> LedgerEntry:
    """Entry of a process for its hand-ins."""
    calls: list[Call] = [(n, (("a", 0, 10 * n, 10 * n + 2),)) for n in numbers]
    return LedgerEntry(max(numbers), 2, 0, calls=tuple(calls))


def test_calls_of_a_process_are_added_to_those_before() -> None:
    """The last 64 of them are kept, in the order of their numbers."""
    known = Ledger({"process:x": made(1, 2)})
    known.apply({"process:x": made(4, 3)})
    entry = known.get("process:x")
    assert entry is not None
    assert entry.sequence == 4
    assert [number for number, _ in entry.calls] == [1, 2, 3, 4]
    assert entry.call(3) == {TopicPartition("a", 0): range(30, 32)}
    assert entry.call(5) is None
    known.apply({"process:x": made(*range(5, 90))})
    entry = known.get("process:x")
    assert entry is not None
    assert [number for number, _ in entry.calls] == list(range(26, 90))


def test_processes_are_not_pushed_out_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any number of others may publish: requests of a process may still wait."""
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 2)
    known = Ledger(
        {"process:x": made(1), "a": LedgerEntry(1, 1, 0), "b": LedgerEntry(1, 1, 0)}
    )
    assert known.evicted({"c": LedgerEntry(1, 1, 0)}) == ["a"]
    assert known.evicted({"process:y": made(1)}) == []
    assert known.callers() == ["process:x"]
    known.apply({"process:x": None})
    assert known.callers() == []
    assert known.get("process:x") is None


def test_bytes_of_calls_are_counted() -> None:
    """Entries of calls are in the same file."""
    few, many = Ledger({"process:x": made(1)}), Ledger({"process:x": made(*range(60))})
    assert many.file_bytes > few.file_bytes + 59 * 80
