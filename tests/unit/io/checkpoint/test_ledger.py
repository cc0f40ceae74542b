"""What is remembered of publications, in memory."""

from __future__ import annotations

import random

import pytest

from logstore.io.checkpoint import ledger
from logstore.io.checkpoint.ledger import Entry, Ledger, entry_bytes

PLAIN = Entry(7, 3, 1_700_000_000_000, "note", False, b"\0\xff")
PINNED = PLAIN._replace(is_pinned=True)


def test_oldest_are_forgotten_but_for_the_pinned_and_the_kept() -> None:
    """10,000 that are not pinned are remembered."""
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
    """After any changes, and also those of the pinned ones."""
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
    """What grows no further is admitted also beyond it, and a pin is always taken
    away."""
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
    """A publication asks for the bytes of its own identities only."""
    found = Ledger({f"i{number}": PINNED for number in range(100)})
    found.apply({f"j{number}": PLAIN for number in range(100)})
    asked: list[str] = []

    def counted(identity: str, entry: Entry) -> int:
        asked.append(identity)
        return 1

    monkeypatch.setattr(ledger, "entry_bytes", counted)
    monkeypatch.setattr(ledger, "IDENTITIES_MAX", 100)
    changes = {"j50": PLAIN, "new": PLAIN}
    assert found.has_room(changes)
    assert found.evicted(changes, changes) == ["j0"]
    found.apply({"j0": None, **changes})
    assert set(asked) == {"j50", "new", "j0"}
