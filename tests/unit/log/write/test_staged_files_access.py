"""Owner and permissions of staged files: the users of the store may read them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import logstore
from logstore import Store, StoreConfig
from logstore.log.write.staged_files import Staged
from support import one_stage
from support.one_stage import stage
from support.users import SOMEBODY, as_user, needs_root, shared_place
from support.values import config_of, values

# Fixtures.
way = one_stage.way


def mode_of(store: Store, staged: Staged) -> int:
    return os.stat(Path(store.path, staged.files[0])).st_mode & 0o777


@pytest.mark.parametrize("size", [1, 500_000])
def test_staged_file_is_for_whom_the_store_is_for(tmp_path: Path, size: int) -> None:
    """The process that stages opens the store read-only and need not know of the group:
    the owner, another user of the group, has to read the file."""
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o770)
    ours = StoreConfig(group_access=True)
    with logstore.open(root, config=ours) as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        for config in (ours, None):
            partition.append(b"x")
            with logstore.open(root, read_only=True, config=config) as reader:
                staged = stage(reader, reader.topic("t")[0], b"x" * size)
                assert mode_of(reader, staged) == 0o660
            store.publish([staged])
            for path in Path(root, "t-0").iterdir():
                assert path.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("size", [1, 500_000])
def test_staged_file_of_a_private_store_is_private(tmp_path: Path, size: int) -> None:
    """The segment that it becomes is private, too, whatever its own mode was."""
    with logstore.open(tmp_path / "store") as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        partition.append(b"x")
        with logstore.open(store.path, read_only=True) as reader:
            staged = stage(reader, reader.topic("t")[0], b"x" * size)
            assert mode_of(reader, staged) == 0o600
        Path(store.path, staged.files[0]).chmod(0o666)
        store.publish([staged])
        for path in Path(store.path, "t-0").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600


@needs_root
def test_file_of_another_user_is_copied(way: str) -> None:
    """A log belongs to the owner of its store."""
    group = SOMEBODY + 1
    with shared_place(SOMEBODY) as place:
        root = place / "store"
        root.mkdir()
        os.chown(root, SOMEBODY, group)
        root.chmod(0o2770)
        found: Path = place / "staged"
        found.touch()
        found.chmod(0o666)
        config = StoreConfig(group_access=True)

        def create() -> None:
            with logstore.open(root, config=config) as store:
                store.create_topic("t", 1, config_of(2))[0].append(b"x")

        def stage_there() -> None:
            with logstore.open(root, read_only=True) as reader:
                staged = stage(reader, reader.topic("t")[0], b"y" * 100_000)
                found.write_bytes(pickle.dumps(staged))

        def publish() -> None:
            with logstore.open(root, config=config) as store:
                store.publish([pickle.loads(found.read_bytes())])
                assert values(store.topic("t")[0])[-1][:1] == b"y"
                for path in Path(root, "t-0").iterdir():
                    assert path.stat().st_uid == SOMEBODY

        as_user(SOMEBODY, create, group=group)
        as_user(SOMEBODY + 2, stage_there, group=group)
        as_user(SOMEBODY, publish, group=group)
