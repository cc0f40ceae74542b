"""The surroundings of a store, as `doctor` sees them."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import logstore
from logstore.io.files import Files
from logstore.maintenance.environment import doctor


class Mounted(Files):
    """The directory is on a mount with these options."""

    def __init__(self, options: str) -> None:
        self.options = options

    def mounts(self, fd: int) -> tuple[int, str]:
        return 36, (
            "35 1 0:5 / / rw - ext4 /dev/sda rw\n"
            f"36 35 0:6 / /data rw,relatime - ext4 /dev/sdb rw,{self.options}\n"
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")[0].append(b"x")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        ("errors=remount-ro", ["ok"]),
        ("nobarrier", ["problem"]),
        ("data=writeback,barrier=0", ["problem", "problem"]),
        ("nodatacow", ["note"]),
        ("ro", ["note"]),
        ("ro,sync=disabled", ["problem", "note"]),
    ],
)
def test_mount_is_fine_only_if_none_of_its_options_is_bad(
    path: Path, options: str, levels: list[str]
) -> None:
    report = doctor(path, _files=Mounted(options))
    found = [one for one in report.findings if one.kind == "mount"]
    assert [one.level for one in found] == levels
    assert all("/dev/sdb on /data as ext4" in one.message for one in found)
    assert report.ok is ("problem" not in levels)


def test_writer_is_told_by_its_process(path: Path) -> None:
    def lock() -> logstore.types.EnvironmentFinding:
        (found,) = [one for one in doctor(path).findings if one.kind == "lock"]
        return found

    assert lock().values == {"pid": None}
    assert re.search("no process .* for writing, since 20.* UTC", lock().message)
    with logstore.open(path):
        assert isinstance(lock().values["pid"], int)
        assert re.search(r"process \d+ \(.*it publishes for others\)", lock().message)


def test_directory_without_an_owner_says_so_while_others_write(path: Path) -> None:
    """A process that hands in has the lock for a moment. Its owner has closed it, or
    was killed: then the time is that of the first process after it."""
    closed_ms = time.time_ns() // 1_000_000
    with logstore.open(path, shared=True) as shared:
        shared.topic("orders")[0].append(b"x")
        found = logstore.metrics.of_directory(path)
        assert closed_ms - 5_000 < found["unowned_since_ms"] <= closed_ms
        (lock,) = [one for one in doctor(path).findings if one.kind == "lock"]
        assert (lock.level, lock.values["unowned_since_ms"]) == (
            "note",
            found["unowned_since_ms"],
        )
        assert re.search("No owner since 20.* UTC: nothing is compacted", lock.message)
        report = logstore.report(path)
        assert "unowned" in [one.kind for one in report.findings]
    with logstore.open(path):
        assert logstore.metrics.of_directory(path)["unowned_since_ms"] is None
        killed = Path(path, ".logstore-lock").read_bytes()
    Path(path, ".logstore-lock").write_bytes(killed)  # as if it had not closed it
    with logstore.open(path, shared=True) as shared:
        shared.topic("orders")[0].append(b"x")
        found = logstore.metrics.of_directory(path)
        assert found["unowned_since_ms"] > closed_ms


def test_staged_files_that_nobody_publishes_are_told(path: Path) -> None:
    """Files that were not written to for an hour; the call that it names removes
    them."""
    code = """
import logstore, os, sys
with logstore.open(sys.argv[1], read_only=True) as store:
    stage = store.stage("job", 1)
    stage.append_many(store.topic("orders")[0], [b"x"])
    stage.finish()
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert done.returncode == -signal.SIGKILL
    (staged,) = path.glob(".logstore-staged-*")

    def told() -> list[logstore.types.EnvironmentFinding]:
        return [one for one in doctor(path).findings if one.kind == "staged"]

    assert told() == []
    hour_ago = time.time() - 3601
    os.utime(staged, (hour_ago, hour_ago))
    (one,) = told()
    assert (one.level, one.values) == ("note", {"count": 1, "first": [staged.name]})
    assert "discard_staged(older_than_ms=3_600_000)" in one.message
    with logstore.open(path) as store:
        store.discard_staged(older_than_ms=3_600_000)
    assert told() == []


def test_directory_that_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(logstore.StoreNotFoundError):
        doctor(tmp_path / "none")


def test_sizes_numbers_and_owners_are_for_people(path: Path) -> None:
    """The values stay plain."""
    found = {one.kind: one for one in doctor(path).findings}
    assert re.fullmatch(
        r"[\d.]+ [KMGTP]?i?B of [\d.]+ [KMGTP]iB are free", found["space"].message
    )
    assert isinstance(found["space"].values["free_bytes"], int)
    assert not re.search(r"\d{5}", found["limits"].message)
    name = pwd.getpwuid(os.geteuid()).pw_name
    assert f"user {name} ({os.geteuid()}), group " in found["owner"].message
    assert "mode 0700 (rwx------)" in found["owner"].message


class Nameless(Files):
    """A machine whose tables have no such user, or which has none."""

    tables = "", ""

    def user_tables(self) -> tuple[str, str]:
        return self.tables


@pytest.mark.parametrize("table", ["", "other:x:3999999999:1::/:\n", "bad\n:\n\n"])
def test_a_user_without_a_name_is_a_number(path: Path, table: str) -> None:
    """Containers have such users."""
    files = Nameless()
    files.tables = table, table
    (owner,) = [
        one for one in doctor(path, _files=files).findings if one.kind == "owner"
    ]
    assert owner.message.startswith(f"user {os.geteuid()}, group {os.getegid()}, ")


@pytest.mark.parametrize("name", ["__cluster_metadata-0", "remote-log-index-cache"])
def test_directories_of_kafka_alone_are_not_foreign(path: Path, name: str) -> None:
    """Whatever is in them; another directory is, and so is a file in a partition."""
    (path / name).mkdir()
    for inner in ("quorum-state", "00000000000000000028-0000000001.checkpoint"):
        (path / name / inner).touch()
    assert "foreign" not in {one.kind for one in doctor(path).findings}
    (path / "orders-0" / "quorum-state").touch()
    (path / "__cluster_metadata-1x").mkdir()
    (found,) = [one for one in doctor(path).findings if one.kind == "foreign"]
    assert found.values["count"] == 2
