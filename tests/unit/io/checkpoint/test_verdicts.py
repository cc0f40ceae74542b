"""The file with the verdicts on the damage of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.verdicts import (
    NO_VERDICTS,
    ClosedEnd,
    Verdict,
    Verdicts,
    digest_at,
    forget_verdicts,
    write_verdicts,
)
from logstore.io.directory import Directory

ROW = Verdict("corrupt", "", 10, 60, 20, "0" * 16, 16, 80, 17, "checksum", "1.0", 1)
CLOSED = ClosedEnd("epoch", 10, 80)
ACTIVE = {"base_offset": 10, "size": 80}


def test_verdicts_are_read_as_they_were_written(directory: Directory) -> None:
    """A missing file gives no verdicts."""
    assert Verdicts.read(directory) == NO_VERDICTS
    write_verdicts(directory, [ROW, ROW._replace(segment=-1)], CLOSED)
    found = Verdicts.read(directory)
    assert found == Verdicts((ROW, ROW._replace(segment=-1)), CLOSED)
    assert found
    assert found.says_closed("epoch", ACTIVE)
    assert not found.says_closed("epoch", None)
    assert not found.says_closed("another", ACTIVE)


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 1}, {"rows": [1]}, {"rows": [{}]}, {}, {"rows": [], "closed": 1},
     {"rows": [{**ROW._asdict(), "position": -2}]},
     {"rows": [{**ROW._asdict(), "kind": 1}]},
     {"rows": [{**ROW._asdict(), "kind": "of a later release"}]},
     {"rows": [{**ROW._asdict(), "kind": "torn-tail"}]},
     {"rows": [{**ROW._asdict(), "time_ms": 1 << 62}]}],
)  # fmt: skip
def test_verdicts_that_cannot_be_used_count_as_damage(
    directory: Directory, wrong: dict[str, Any]
) -> None:
    """No bytes may be cut because of them."""
    directory.write_file(layout.DAMAGED, checkpoints.pack_state(wrong))
    found = Verdicts.read(directory)
    assert found
    assert found.fault


def test_state_has_another_version_while_there_are_verdicts(
    directory: Directory,
) -> None:
    """A new file is removed again; an existing one keeps its content."""
    for before in (None, {"active": {}, "generation": "epoch"}):
        if before is not None:
            checkpoints.write_state(directory, layout.PARTITION_STATE, before)
        write_verdicts(directory, [ROW], None)
        state = checkpoints.read_state(directory, layout.PARTITION_STATE)
        assert state == {**(before or {}), "version": 2}
        forget_verdicts(directory)
        state = checkpoints.read_state(directory, layout.PARTITION_STATE)
        assert state == (None if before is None else {**before, "version": 1})
        assert not directory.exists(layout.DAMAGED)


def test_file_of_earlier_releases_is_read_once_more(directory: Directory) -> None:
    """The file has the former end of the log; a bad one counts as well."""
    assert Verdicts.read(directory).with_earlier(directory) == NO_VERDICTS
    checkpoints.write_state(directory, layout.CLOSED, CLOSED._asdict())
    found = Verdicts.read(directory).with_earlier(directory)
    assert (found.closed, bool(found)) == (CLOSED, False)
    directory.write_file(layout.CLOSED, b"what")
    found = Verdicts.read(directory).with_earlier(directory)
    assert found.says_closed("any", None)
    forget_verdicts(directory)
    assert not directory.exists(layout.CLOSED)


def test_digest_covers_the_bytes_of_the_damage_alone(
    directory: Directory, tmp_path: Path
) -> None:
    """The digest covers up to 64 KiB, and nothing beyond the end of the damage."""
    (tmp_path / "log").write_bytes(bytes(100) + b"x" * 100)
    size, digest = digest_at(directory, "log", 100, 150)
    assert size == 50
    assert digest_at(directory, "log", 110, 160) == (50, digest)
    assert digest_at(directory, "log", 90, 140) != (50, digest)
    (tmp_path / "log").write_bytes(bytes(1 << 18))
    assert digest_at(directory, "log", 0, 1 << 18)[0] == 64 << 10
