"""Calls that create files in a store without opening it for writing (groups, staged and
handed-in batches) are refused under the same conditions as opening for writing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import StoreConfig
from logstore.store.opening import open_store
from support.damage import FaultyFiles, snapshot_of
from support.groups import store_with
from support.users import NOBODY, SOMEBODY, as_user, needs_root, shared_place

SHARED = StoreConfig(allow_shared_directory=True)
NETWORK = StoreConfig(allow_network_filesystem=True)


def _consumes(store: logstore.Store) -> None:
    with logstore.Consumer(store, group="g", topics=["t"], reset="earliest") as one:
        assert one.poll(timeout_ms=1000)
        one.commit()


def _stages(store: logstore.Store) -> None:
    with store.stage("job", 1) as stage:
        stage.append_many(store.topic("t")[0], [b"x"])
        staged = stage.finish()
    store.discard_staged(staged)


def _hands_in(store: logstore.Store) -> None:
    store.submit([], identity="job", sequence=1, metadata=b"x")


CALLS = [_consumes, _stages, _hands_in]


@pytest.mark.parametrize("mode", [0o702, 0o777, 0o1777, 0o770, 0o720])
@pytest.mark.parametrize("call", CALLS)
def test_directory_that_others_may_write_to_gets_no_file(
    tmp_path: Path, mode: int, call: Callable[[Any], None]
) -> None:
    """The setting of the store allows it. Reading without a group is free."""
    path = store_with(tmp_path / "s")
    path.chmod(mode)
    before = snapshot_of(path)
    with logstore.open(path, read_only=True) as store:
        with pytest.raises(logstore.ConfigError, match="is not written to") as caught:
            call(store)
        assert caught.value.name == "allow_shared_directory"
        with logstore.Consumer(store, topics=["t"], reset="earliest") as one:
            assert one.poll(timeout_ms=1000)
    assert snapshot_of(path) == before
    with logstore.open(path, read_only=True, config=SHARED) as store:
        call(store)


def test_reset_of_a_group_is_refused_in_a_directory_that_others_may_write_to(
    tmp_path: Path,
) -> None:
    """Allowed for a dry run, or if the setting allows it."""
    path = store_with(tmp_path / "s")
    with logstore.open(path, read_only=True) as store:
        _consumes(store)
    path.chmod(0o777)
    with pytest.raises(logstore.ConfigError, match="is not written to"):
        logstore.reset_offsets(path, "g", to="earliest", dry_run=False)
    assert logstore.reset_offsets(path, "g", to="earliest", dry_run=True)
    changes = logstore.reset_offsets(
        path, "g", to="earliest", dry_run=False, store_config=SHARED
    )
    assert [change.after for change in changes] == [0, 0]


class _Nfs(FaultyFiles):
    def file_system(self, fd: int) -> int:
        return 0x6969


@pytest.mark.parametrize("call", CALLS)
def test_network_file_system_gets_no_file(
    tmp_path: Path, call: Callable[[Any], None]
) -> None:
    """Locks there do not keep members on other machines apart."""
    path = store_with(tmp_path / "s")
    before = snapshot_of(path)
    with open_store(path, read_only=True, _files=_Nfs()) as store:
        with pytest.raises(logstore.ConfigError, match="on NFS") as caught:
            call(store)
        assert caught.value.name == "allow_network_filesystem"
    assert snapshot_of(path) == before
    with open_store(path, read_only=True, _files=_Nfs(), config=NETWORK) as store:
        call(store)


@needs_root
def test_directory_of_another_user_gets_no_file() -> None:
    """Neither an ordinary user nor root gets a file there."""

    def refused(path: Path) -> None:
        with logstore.open(path, read_only=True) as store:
            for call in CALLS:
                with pytest.raises(logstore.ConfigError, match=f"user {SOMEBODY}"):
                    call(store)

    with shared_place(SOMEBODY) as at:
        path = at / "s"
        as_user(SOMEBODY, lambda: [store_with(path), None][1])
        for each in [path, *path.rglob("*")]:
            each.chmod(0o755 if each.is_dir() else 0o644)
        before = snapshot_of(path)
        refused(path)
        as_user(NOBODY, refused, path)
        assert snapshot_of(path) == before


@needs_root
def test_group_that_has_access_may_have_files_in_the_store_of_its_owner() -> None:
    """The owner has given the group access, whatever the other settings are."""

    def consumed(path: Path) -> None:
        with logstore.open(path, read_only=True) as store:
            _consumes(store)
            _stages(store)

    with shared_place(SOMEBODY) as at:
        path = at / "s"

        def made() -> None:
            path.mkdir()
            path.chmod(0o2770)
            config = StoreConfig(group_access=True)
            with logstore.open(path, config=config) as store:
                store.create_topic("t").append_many([b"x"], durable=True)

        as_user(SOMEBODY, made)
        as_user(NOBODY, consumed, path, group=SOMEBODY)
