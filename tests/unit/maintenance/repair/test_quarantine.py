"""The place where `repair` keeps everything that it removes from a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.maintenance.repair.quarantine import MANIFEST, Quarantine
from support.damage import FixedClock


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Directory]:
    """A directory with two files. The clock stands still."""
    (tmp_path / "source").mkdir()
    for name in ("a", "b"):
        (tmp_path / "source" / name).write_bytes(name.encode() * 10)
    files = FixedClock(1_700_000_000_000)
    found = Directory.open_root(files, str(tmp_path / "source"))
    yield found
    found.close()


def kept_files(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}


@pytest.mark.parametrize("is_root", [False, True])
def test_two_quarantines_of_one_moment_have_names_of_their_own(
    tmp_path: Path, source: Directory, is_root: bool
) -> None:
    """In the root of a store they are files, in a partition directories."""
    places = []
    for name in ("a", "b"):
        quarantine = Quarantine(source, "cut", None, is_root=is_root)
        quarantine.copy(name, 2, 5, 7, 8, "a reason")
        quarantine.ready()
        places.append(quarantine.path)
    assert len(set(places)) == 2
    for place, name in zip(places, "ab", strict=True):
        assert place is not None
        join = "" if is_root else "/"
        assert Path(f"{place}{join}{name}@2-5").read_bytes() == name.encode() * 3
        manifest = json.loads(Path(f"{place}{join}{MANIFEST}").read_text())
        assert [row["source"] for row in manifest["kept"]] == [name]
        assert manifest["kept"][0]["first_offset"] == 7


@pytest.mark.parametrize("is_root", [False, True])
def test_file_leaves_its_directory_when_the_quarantine_is_ready(
    tmp_path: Path, source: Directory, is_root: bool
) -> None:
    quarantine = Quarantine(source, "cut", None, is_root=is_root)
    place = quarantine.move("a", None, None, "a reason")
    assert quarantine.move("a", None, None, "again") == place
    assert (tmp_path / "source" / "a").exists()
    quarantine.ready()
    quarantine.take_out("b")  # it was not passed to `move`
    quarantine.take_out("a")
    quarantine.take_out("a")
    assert Path(place).read_bytes() == b"a" * 10
    assert {"a", "b"} & set(source.names()) == {"b"}


@pytest.mark.parametrize("is_root", [False, True])
def test_quarantine_that_is_given_up_leaves_nothing(
    tmp_path: Path, source: Directory, is_root: bool
) -> None:
    quarantine = Quarantine(source, "cut", None, is_root=is_root)
    quarantine.copy("a", 0, 10, None, None, "a reason")
    quarantine.ready()
    quarantine.give_up()
    assert kept_files(tmp_path / "source") == {"a", "b"}
    assert sorted(source.names()) == ["a", "b"]


def test_quarantine_outside_of_the_store_has_the_name_of_the_directory(
    tmp_path: Path, source: Directory
) -> None:
    outside = str(tmp_path / "outside")
    for number in range(2):
        quarantine = Quarantine(source, "cut", outside, is_root=False)
        quarantine.copy("a", 0, number + 1, None, None, "a reason")
        quarantine.ready()
    found = {name.partition("/")[0] for name in kept_files(tmp_path / "outside")}
    assert found == {"source", "source.2"}
    assert kept_files(tmp_path / "source") == {"a", "b"}
