"""One store under two paths: bind mounts, hard links, and another mount namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from support.children import append_next, look_around
from support.values import append_one, expected, fill, new_partition, read_all


def run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[Path]:
    """A path at which `tmp_path / "data"` is mounted a second time."""
    place = tmp_path / "twin"
    (tmp_path / "data").mkdir(mode=0o700)
    place.mkdir()
    if not run("mount", "--bind", str(tmp_path / "data"), str(place)):
        pytest.skip("no right to make a bind mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_second_writer_by_a_bind_mount_raises_store_locked(
    tmp_path: Path, twin: Path
) -> None:
    """An attempt in this process leaves the lock intact; readers can open the store."""
    with logstore.open(tmp_path / "data") as store:
        partition = new_partition(store)
        fill(partition, 10)
        for _ in range(2):
            with pytest.raises(logstore.StoreLockedError) as caught:
                logstore.open(twin)
            assert caught.value.holder_pid == os.getpid()
        # Closing a descriptor of the lock file would have dropped the lock.
        code = f"import logstore; logstore.open({str(tmp_path / 'data')!r})"
        assert not run(sys.executable, "-c", code)
        assert read_all(twin) == expected(1, 0, 10)
        assert append_one(partition, durable=True) == 10
        assert read_all(twin) == expected(1, 0, 11)
        with pytest.raises(logstore.StoreLockedError):
            logstore.rebuild_index(twin)
        with pytest.raises(logstore.StoreLockedError):
            logstore.repair(twin, "cut")
    assert append_next(twin) == 11


def test_store_is_the_same_by_its_bind_mount(tmp_path: Path, twin: Path) -> None:
    """Whichever path it is opened by next: nothing to recover, no other writer."""
    with logstore.open(twin) as store:
        fill(new_partition(store, segment_bytes=400), 30)
    for path in (tmp_path / "data", twin):
        with logstore.open(path) as store:
            assert not store.recovery_report
            append_one(store.topic("orders")[0])
        assert logstore.verify(path).ok
    assert read_all(twin) == expected(1, 0, 32)


SECOND = """
import sys
from pathlib import Path
from support.children import look_around
found = look_around(Path(sys.argv[1]))
print(found["writing"], len(found["values"]))
"""


def test_second_writer_in_another_mount_namespace_is_told_the_holder(
    tmp_path: Path,
) -> None:
    """Like a container that has the directory as a volume, at another path."""
    unshare = shutil.which("unshare")
    other = tmp_path / "volume"
    other.mkdir()
    if unshare is None or not run(
        unshare, "-m", "mount", "--bind", str(tmp_path), str(other)
    ):
        pytest.skip("no right to make a mount namespace")
    source = Path(logstore.__file__).parents[1]
    tests = Path(__file__).parents[1]
    mount = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$2"'
    with logstore.open(tmp_path / "data") as store:
        fill(new_partition(store), 10)
        done = subprocess.run(
            [
                unshare, "-m", "sh", "-c", mount, "sh", str(tmp_path / "data"),
                str(other), sys.executable, SECOND,
            ],
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == [str(os.getpid()), "10"]
    assert not any(other.iterdir())  # it was mounted only in that namespace


def test_linked_copy_has_a_lock_and_files_of_its_own(tmp_path: Path) -> None:
    """A copy made of hard links begins with the files of the original: each of the two
    has one writer, and neither sees the appends to the other."""
    data, linked = tmp_path / "data", tmp_path / "linked"
    with logstore.open(data) as store:
        fill(new_partition(store), 10)
    shutil.copytree(data, linked, copy_function=os.link)
    with logstore.open(data) as store, logstore.open(linked) as other:
        assert append_one(store.topic("orders")[0], durable=True) == 10
        assert append_one(other.topic("orders")[0], durable=True) == 10
        assert append_one(other.topic("orders")[0], durable=True) == 11
        for path in (data, linked):
            assert look_around(path)["writing"] == os.getpid()
            with pytest.raises(logstore.StoreLockedError):
                logstore.open(path)
    assert read_all(data) == expected(1, 0, 11)
    assert read_all(linked) == expected(1, 0, 12)
