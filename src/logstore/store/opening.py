"""Opening a store: for writing, for reading, or for sharing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from logstore.config import INT64_MAX, StoreConfig, check_int, check_kind
from logstore.errors import ConfigError, StoreLockedError, StoreNotFoundError
from logstore.io.checkpoint.recovery_report import RecoveryAction
from logstore.io.files import Files
from logstore.io.lock_record import LOCK_TIMEOUT_MS, OWNER, Purpose
from logstore.store.partition.partitions import RecoveryProgress
from logstore.store.store import Store

__all__ = ["HAND_IN_TIMEOUT_MS", "open_store"]

# How long an append of a shared store waits, by default.
HAND_IN_TIMEOUT_MS = 30_000


def open_store(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    shared: bool = False,
    create: bool = True,
    config: StoreConfig | None = None,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    hand_in_timeout_ms: int = HAND_IN_TIMEOUT_MS,
    on_recovery: Callable[[RecoveryAction], None] | None = None,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    _files: Files | None = None,
) -> Store:
    """Open a store.

    A partition is examined, and repaired if necessary, when it is first used.
    `Store.recover` does this for all of them, and so does this call if one of the
    callbacks is given.

    Args:
        path: its directory; a Kafka log directory is one.
        read_only: change nothing, take no lock; any number of processes may do this,
            also while a writer or a broker works on it.
        shared: read as with `read_only`, and append from any number of processes at the
            same time: this process hands in its appends to the process that has the
            store open for writing, or, without such a process, takes the lock briefly.
            Topics can be created; everything else that changes the store raises
            `ReadOnlyError`.
        create: make the directory if it is not there (never with `read_only`).
        config: how this process uses it.
        lock_timeout_ms: how long to wait for another process that has it open for
            writing, in milliseconds; 0: not at all.
        hand_in_timeout_ms: how long an append of a shared store waits for the owner.
        on_recovery: called with each action of the recovery as it happens.
        on_progress: called with a `RecoveryProgress` now and then.

    Raises:
        StoreNotFoundError: the directory does not exist and `create` is false; or it is
            the directory of a partition, or, with `read_only`, contains nothing of a
            log.
        StoreLockedError: another writer has it, after `lock_timeout_ms`; at once if it
            is this process.
        UnsupportedError: a later version of logstore has written to it.
        ConfigError: `shared` with `read_only`; other users may change the directory, or
            it is on a network file system, and `config` does not allow that (never with
            `read_only`).
        StorageError: the system refuses.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is {type(path).__name__}, not a str or os.PathLike")
    if config is not None:
        check_kind("config", config, StoreConfig)
    check_int("lock_timeout_ms", lock_timeout_ms, 0, INT64_MAX)
    check_int("hand_in_timeout_ms", hand_in_timeout_ms, 0, INT64_MAX)
    if shared and read_only:
        raise ConfigError(
            "a store is opened with shared=True, or with read_only=True, not with both",
            name="shared",
            value=shared,
        )
    config = config or StoreConfig()
    purpose = Purpose(OWNER, config.publish_for_others, lock_timeout_ms)

    def opened(
        *, read_only: bool, create: bool, hand_in_ms: int | None = None
    ) -> Store:
        return Store(
            os.path.abspath(os.fspath(path)),
            read_only=read_only,
            create=create,
            config=config,
            purpose=purpose,
            on_recovery=None if shared else on_recovery,
            on_progress=None if shared else on_progress,
            files=_files or Files(),
            hand_in_timeout_ms=hand_in_ms,
        )

    if not shared:
        return opened(read_only=read_only, create=create and not read_only)
    try:
        return opened(read_only=True, create=False, hand_in_ms=hand_in_timeout_ms)
    except StoreNotFoundError:
        if not create:
            raise
    # Another process may have made it meanwhile, and have it.
    with contextlib.suppress(StoreLockedError):
        opened(read_only=False, create=True).close()
    return opened(read_only=True, create=False, hand_in_ms=hand_in_timeout_ms)
