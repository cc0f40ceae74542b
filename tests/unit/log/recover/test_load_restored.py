"""A backup that was put back in part: some files of a store are older than the others.

The store is closed with `OLD` records, copied, written to again, and closed with `NEW`.
Then the files of one kind are taken from the other copy. A read returns all of `NEW`,
or the existing records and then a named error: never a shorter log without an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from support.values import append_one, config_of, expected, fill

OLD = 33
NEW = 64

INDEXES = (".index", ".timeindex")
MARKS = (
    ".logstore-owner",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
)

# Kinds of files, by the path below the store.
KINDS: dict[str, Callable[[Path], bool]] = {
    "indexes": lambda path: path.suffix in INDEXES,
    "logs": lambda path: path.suffix == ".log",
    "logs and indexes": lambda path: path.suffix in (".log", *INDEXES),
    "state": lambda path: path.name == ".logstore-state",
    "partition": lambda path: path.parent.name == "orders-0",
    "marks": lambda path: path.name in MARKS,
    "owner": lambda path: path.name == ".logstore-owner",
    "recovery points": lambda path: path.name == "recovery-point-offset-checkpoint",
    "clean shutdown": lambda path: path.name == ".kafka_cleanshutdown",
}

# If files of these kinds are older than the others, or only they are new, some file
# shows that there were more records.
LOST_WHERE_OLD = {"logs", "logs and indexes", "partition"}
LOST_WHERE_NEW = {"state", "marks", "recovery points"}
# (kind, whether it is old) with one segment longer than its state says: as far as the
# files show, none of our writers wrote that.
FOREIGN_IN_ONE_SEGMENT = {("logs", False), ("logs and indexes", False)}


@pytest.fixture(scope="module", params=[700, 1 << 20], ids=["segments", "one-segment"])
def stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, bool]:
    """The old store, the new one, and whether the log is one segment."""
    root = tmp_path_factory.mktemp("stores")
    config = config_of(segment_bytes=request.param)
    with logstore.open(root / "old") as store:
        fill(store.create_topic("orders", config=config)[0], OLD)
    shutil.copytree(root / "old", root / "new")
    with logstore.open(root / "new") as store:
        fill(store.topic("orders")[0], NEW - OLD)
    return root / "old", root / "new", request.param > 700


def mixed(base: Path, other: Path, kind: str, to: Path) -> Path:
    """A copy of a store, with the files of one kind from another one."""
    is_taken = KINDS[kind]
    for source, wanted in ((base, False), (other, True)):
        for path in source.rglob("*"):
            name = path.relative_to(source)
            if path.is_file() and is_taken(name) is wanted:
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to / name)
    to.chmod(0o700)
    return to


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_old", [True, False], ids=["older", "newer"])
def test_store_restored_in_part_is_whole_or_says_what_it_lacks(
    stores: tuple[Path, Path, bool], tmp_path: Path, kind: str, is_old: bool
) -> None:
    """The files of one kind are older, or newer, than all others."""
    old, new, is_one = stores
    base, other = (new, old) if is_old else (old, new)
    path = mixed(base, other, kind, tmp_path / "data")
    is_lost = kind in (LOST_WHERE_OLD if is_old else LOST_WHERE_NEW)
    is_foreign = is_one and (kind, is_old) in FOREIGN_IN_ONE_SEGMENT
    is_older = not is_old and kind in ("indexes", "owner", "clean shutdown")
    report = logstore.verify(path)
    # Entries past the end of a log do not matter to readers, and are found.
    is_odd = is_one and (kind, is_old) == ("indexes", False)
    assert report.ok != (is_lost or is_foreign or is_odd), report.problems
    for read_only in (True, False):
        with logstore.open(path, read_only=read_only) as store:
            partition = store.topic("orders")[0]
            found = []
            try:
                found += partition.read()
            except logstore.CorruptRecordError:
                assert is_lost
            else:
                assert not is_lost
            assert found == expected(1, 0, len(found))
            # Bytes that were put after the end of a closed log are not served.
            assert len(found) == (OLD if is_lost or is_older or is_foreign else NEW)
            assert partition.end_offset == (NEW if is_lost else len(found))
            if read_only:
                continue
            labels = {action.label for action in store.recovery_report.actions}
            if is_lost or is_foreign:
                assert labels & {"lost-end", "lost-segment", "corrupt"}
                with pytest.raises(logstore.CorruptRecordError):
                    append_one(partition)
            else:
                assert append_one(partition) == len(found)


@pytest.mark.parametrize("mode", ["cut", "skip"])
def test_partition_put_back_alone_can_be_repaired(
    stores: tuple[Path, Path, bool], tmp_path: Path, mode: str
) -> None:
    """`cut` uses the end of the backup as the end of the log; `skip` assigns no offset
    a second time."""
    old, new, _ = stores
    path = mixed(new, old, "partition", tmp_path / "data")
    assert logstore.repair(path, mode).ok
    with logstore.open(path) as store:
        assert not store.recovery_report
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, OLD)
        assert append_one(partition) == (OLD if mode == "cut" else NEW)
    assert logstore.verify(path).ok
