"""`doctor` reports the environment of a store, and changes nothing unless asked to."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.main import main
from logstore.io.files import Files, Space
from support.damage import logs_in, snapshot_of
from support.values import append_one, fill, new_partition

LEVELS = {"ok", "note", "problem"}


class Faked(Files):
    """A system with the properties that a test sets."""

    def __init__(self, options: str = "rw", kind: str = "ext4", number: int = 0xEF53):
        self.options = options
        self.kind = kind
        self.number = number
        self.room = Space(1 << 40, 1 << 39, 1 << 24, 1 << 23)
        self.limits: tuple[int | None, int | None] = (65536, None)

    def file_system(self, fd: int) -> int:
        return self.number

    def mounts(self, fd: int) -> tuple[int, str]:
        return 5, f"5 1 8:1 / /srv rw - {self.kind} /dev/sdb1 {self.options}\n"

    def space(self, fd: int) -> Space:
        return self.room

    def resource_limits(self) -> tuple[int | None, int | None]:
        return self.limits


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "data") as opened:
        fill(new_partition(opened, segment_bytes=300), 20)
    return tmp_path / "data"


def levels(store: Path, files: Files | None = None) -> dict[str, str]:
    """Kind -> worst level."""
    found: dict[str, str] = {}
    order = ["ok", "note", "problem"]
    for seen in logstore.doctor(store, _files=files or Faked()).findings:
        assert seen.level in LEVELS
        assert seen.message
        worst = max(found.get(seen.kind, "ok"), seen.level, key=order.index)
        found[seen.kind] = worst
    return found


def test_sound_place_has_nothing_to_tell(store: Path) -> None:
    """No findings, and no file was changed."""
    before = snapshot_of(store)
    report = logstore.doctor(store, _files=Faked())
    assert report.ok
    assert {o.level for o in report.findings} == {"ok"}
    assert report.to_dict()["path"] == str(store)
    assert snapshot_of(store) == before


@pytest.mark.parametrize(
    "options",
    ["rw,data=writeback", "rw,nobarrier", "rw,barrier=0", "rw,sync=disabled"],
)
def test_mount_that_drops_a_promise_is_a_problem(store: Path, options: str) -> None:
    """The option is named."""
    report = logstore.doctor(store, _files=Faked(options))
    (problem,) = report.problems
    assert problem.kind == "mount"
    assert options.split(",")[1] in problem.message
    assert "/dev/sdb1 on /srv" in problem.message


@pytest.mark.parametrize(
    ("options", "level"),
    [("ro", "note"), ("rw,nodatacow", "note"), ("rw,barrier=1", "ok")],
)
def test_mount_that_is_only_unusual_is_no_problem(
    store: Path, options: str, level: str
) -> None:
    """Read-only media and missing checksums of the file system are mentioned only."""
    assert levels(store, Faked(options))["mount"] == level


def test_network_file_system_is_a_problem_and_memory_a_note(store: Path) -> None:
    """The kind is recognised by the number of the file system."""
    assert levels(store, Faked(kind="nfs4", number=0x6969))["file-system"] == "problem"
    assert levels(store, Faked(number=0x01021994))["file-system"] == "note"
    assert levels(store, Faked(number=0x1234))["file-system"] == "ok"


def test_little_room_and_low_limits_are_notes(store: Path) -> None:
    """Bytes, inodes, open files, size of a file."""
    files = Faked()
    files.room = Space(1 << 40, (1 << 30) - 1, 1 << 24, 9_999)
    files.limits = (1023, 1 << 20)
    found = levels(store, files)
    assert (found["space"], found["inodes"], found["limits"]) == ("note",) * 3
    files.room = Space(1 << 40, 1 << 30, -1, -1)  # btrfs counts no inodes
    files.limits = (1024, None)
    found = levels(store, files)
    assert "inodes" not in found
    assert (found["space"], found["limits"]) == ("ok", "ok")
    files.limits = (None, None)
    assert levels(store, files)["limits"] == "ok"


def test_eatmydata_is_a_problem(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It turns every sync into a no-op."""
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libeatmydata.so")
    assert levels(store)["preload"] == "problem"


def test_permissions_that_are_wider_are_told(store: Path) -> None:
    """Readable by others is a note, writable by all a problem, of root and of files."""
    assert levels(store)["owner"] == "ok"
    store.chmod(0o755)
    logs_in(store / "orders-0")[0].chmod(0o644)
    found = levels(store)
    assert (found["owner"], found["modes"]) == ("note", "note")
    store.chmod(0o770)
    assert levels(store)["owner"] == "note"
    store.chmod(0o777)
    (store / "orders-0").chmod(0o777)
    found = levels(store)
    assert (found["owner"], found["modes"]) == ("problem", "problem")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_told(store: Path) -> None:
    """`sudo` leaves such files."""
    os.chown(logs_in(store / "orders-0")[-1], 1234, 1234)
    assert levels(store)["owners"] == "note"
    os.chown(store, 4321, 4321)
    report = logstore.doctor(store, _files=Faked())
    (owner,) = [o for o in report.findings if o.kind == "owner"]
    assert owner.level == "note"
    assert "user 4321" in owner.message


def test_leftovers_and_foreign_names_are_told(store: Path) -> None:
    """Leftovers, kept files, and foreign names."""
    (store / "orders-0" / ".logstore-torn-00000000000000000015-252").write_text("x")
    (store / "notes.txt").write_text("x")
    (store / "backup").mkdir()
    (store / "orders-0" / "00000000000000000000.log~").write_text("x")
    (store / "orders-0" / "00000000000000000007.log.deleted").write_text("x")
    (store / ".logstore-owner.tmp").write_text("x")
    report = logstore.doctor(store, _files=Faked())
    seen = {o.kind: o for o in report.findings}
    assert seen["torn"].values["count"] == 1
    assert seen["foreign"].values["count"] == 3
    assert seen["leftovers"].values["count"] == 2
    assert report.ok


@pytest.mark.parametrize(
    ("error", "level"), [(errno.EIO, "problem"), (errno.ENOENT, None)]
)
def test_partition_that_cannot_be_listed_is_a_problem(
    store: Path, error: int, level: str | None
) -> None:
    """A partition that disappears was deleted after the names were read: no problem."""

    class Refusing(Faked):
        def open_directory(self, parent_fd: int, name: str) -> int:
            if name == "orders-0":
                raise OSError(error, os.strerror(error), name)
            return super().open_directory(parent_fd, name)

    assert levels(store, Refusing()).get("unreadable") == level


def test_lock_holder_is_told_and_keeps_its_lock(store: Path) -> None:
    """This process and another one; the check does not release a lock."""
    code = (
        "import logstore, sys\n"
        "try:\n    logstore.open(sys.argv[1], lock_timeout_ms=0).close()\n"
        "except logstore.StoreLockedError:\n    sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, str(store)]
    with logstore.open(store) as opened:
        append_one(opened.topic("orders")[0])
        for _ in range(2):
            (lock,) = [
                o
                for o in logstore.doctor(store, _files=Faked()).findings
                if o.kind == "lock"
            ]
            assert lock.values == {"pid": os.getpid()}
            assert subprocess.run(command, check=False).returncode == 7
        told = subprocess.run(
            [sys.executable, "-m", "logstore.cli", "doctor", str(store)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert f"process {os.getpid()} (" in told
        assert "has the store open for writing" in told
    assert subprocess.run(command, check=False).returncode == 0


def test_write_test_measures_and_leaves_nothing_behind(store: Path) -> None:
    """The write test runs only if asked for."""
    before = sorted(snapshot_of(store))
    report = logstore.doctor(store, write_test=True)
    assert sorted(snapshot_of(store)) == before
    (seen,) = [o for o in report.findings if o.kind == "write-test"]
    assert seen.values["sync_ms_max"] >= seen.values["sync_ms_median"] > 0
    assert isinstance(seen.values["can_reserve"], bool)


def test_write_test_that_fails_leaves_nothing_behind(store: Path) -> None:
    """A disk that refuses is a named error, and the file is gone."""

    class Full(Faked):
        def reserve(self, fd: int, pos: int, size: int) -> bool:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Without(Faked):
        def reserve(self, fd: int, pos: int, size: int) -> bool:
            return False

    before = sorted(snapshot_of(store))
    with pytest.raises(logstore.DiskFullError):
        logstore.doctor(store, write_test=True, _files=Full())
    assert sorted(snapshot_of(store)) == before
    seen = logstore.doctor(store, write_test=True, _files=Without()).findings[-1]
    assert seen.level == "note"
    assert "cannot be reserved" in seen.message


def test_what_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    """A missing path, and a path of a file."""
    (tmp_path / "file").write_text("x")
    for name in ("nothing", "file"):
        with pytest.raises(logstore.StoreNotFoundError):
            logstore.doctor(tmp_path / name)


def test_place_without_proc_is_a_note(store: Path) -> None:
    """The mount cannot be determined; the rest can."""

    class Blind(Faked):
        def mounts(self, fd: int) -> tuple[int, str]:
            return -1, ""

    assert levels(store, Blind())["mount"] == "note"


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_command_prints_each_finding_and_its_status(
    store: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Status 0 without a problem, 1 with one, 2 without a store."""
    expected: Any = logstore.doctor(store)
    assert main(["doctor", str(store), "--format", form]) == (0 if expected.ok else 1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(expected.findings)
    if form == "jsonl":
        kinds = [json.loads(line)["kind"] for line in lines]
        assert kinds == [o.kind for o in expected.findings]
    store.chmod(0o777)
    assert main(["doctor", str(store), "--format", form]) == 1
    assert main(["doctor", str(store / "nothing")]) == 2


def test_command_escapes_names(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose name clears the screen if printed unescaped."""
    (store / "\x1b[2J").write_text("x")
    main(["doctor", str(store)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[2J" in out
