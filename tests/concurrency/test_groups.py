"""Consumer groups of real processes, in random histories (support/group_model.py).

``LOGSTORE_GROUP_HISTORIES=2000`` runs so many of each kind.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.group import core as core_module
from logstore.group.group_file import GroupFile
from support.group_model import History

HISTORIES = int(os.environ.get("LOGSTORE_GROUP_HISTORIES", "6"))


@pytest.mark.parametrize("evicts", [False, True], ids=["report", "evict"])
@pytest.mark.parametrize("transactions", [False, True], ids=["commits", "transactions"])
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_history_keeps_the_rules(
    tmp_path: Path, seed: int, transactions: bool, evicts: bool
) -> None:
    """Two holders, lost records and offsets that go back never happen."""
    History(tmp_path / "s", seed, transactions=transactions, evicts=evicts).run()


def broken_histories(path: Path, count: int = 40) -> int:
    """How many of some histories break a rule."""
    broken = 0
    for seed in range(count):
        history = History(path / str(seed), seed, transactions=False, evicts=False)
        try:
            history.run()
        except (AssertionError, EOFError, OSError):
            broken += 1
            break
    return broken


def test_rules_find_a_position_that_is_cached_under_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the file is not read again before an append."""
    refresh_held = GroupFile.refresh_held

    def once(self: GroupFile, slots: object) -> None:
        if self._end == 0:
            refresh_held(self, slots)  # type: ignore[arg-type]

    monkeypatch.setattr(GroupFile, "refresh_held", once)
    assert broken_histories(tmp_path) == 1


def test_rules_find_a_commit_of_records_that_were_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the position is one too far."""
    moved = core_module.Core.moved

    def too_far(self: core_module.Core, keys: object) -> object:
        return {
            key: commit._replace(offset=commit.offset + 1)
            for key, commit in moved(self, keys).items()  # type: ignore[arg-type]
        }

    monkeypatch.setattr(core_module.Core, "moved", too_far)
    assert broken_histories(tmp_path) == 1
