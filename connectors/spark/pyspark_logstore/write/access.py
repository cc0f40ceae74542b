"""How the sink changes a store: with its lock, or through the process that holds it.

A store has one writer at a time. If logstore has it open for writing in another
process, the sink hands in requests, and that process carries them out. If another owner
holds the lock (a Kafka broker, ``StoreConfig(publish_for_others=False)``), the sink
waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

import logstore
from logstore import PublicationTimeoutError, Store, StoreLockedError
from pyspark_logstore.write.options import SinkOptions

__all__ = ["with_store"]

logger = logging.getLogger("logstore.spark")

Result = TypeVar("Result")

# After this time the holder of the lock is looked up again: it may take requests.
# `logstore.open` says nothing about a wait that is shorter than a second.
_LOOK_MS: Final = 500


def with_store(
    path: str,
    options: SinkOptions,
    use_lock: Callable[[Store], Result],
    hand_in: Callable[[Store, int], Result],
    *,
    create: bool = False,
) -> Result:
    """Change a store, by one of two functions, within ``lockTimeout``.

    Args:
        use_lock: is called with the store, open for writing.
        hand_in: is called with the shared store, and how long to wait for its owner, in
            milliseconds. Another process has the store, and takes requests.
        create: the store, if it does not exist.

    Raises:
        StoreLockedError: another process still has the store, and takes no requests.
        PublicationTimeoutError: the owner does not answer.
        LogStoreError: as the functions, and as `logstore.open`.
    """
    deadline = time.monotonic() + options.lock_timeout_ms / 1000
    wait_ms, is_told = 0, False
    while True:
        try:
            store = logstore.open(
                path,
                create=create,
                config=options.store_config,
                lock_timeout_ms=wait_ms,
            )
        except StoreLockedError as error:
            remaining_ms = _ms_until(deadline)
            if _takes_requests(error):
                try:
                    return _handed_in(path, options, hand_in, remaining_ms)
                except StoreLockedError as other:
                    # It has not answered; or another program has the store now.
                    error, remaining_ms = other, _ms_until(deadline)
            if remaining_ms == 0:
                raise _still_locked(error, options.lock_timeout_ms) from error
            if not is_told:
                is_told = True
                logger.warning(
                    "%s, which takes no requests: waiting for its lock, for %g s at "
                    "most (option lockTimeout)",
                    _who(error),
                    remaining_ms / 1000,
                )
            wait_ms = min(_LOOK_MS, remaining_ms)
        else:
            with store:
                return use_lock(store)


def _ms_until(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))


def _takes_requests(error: StoreLockedError) -> bool:
    """Whether the process that has the store publishes for others."""
    return error.holder is not None and error.holder.publishes_for_others


def _handed_in(
    path: str,
    options: SinkOptions,
    hand_in: Callable[[Store, int], Result],
    wait_ms: int,
) -> Result:
    with logstore.open(
        path,
        shared=True,
        create=False,
        config=options.store_config,
        hand_in_timeout_ms=wait_ms,
    ) as store:
        try:
            return hand_in(store, wait_ms)
        except PublicationTimeoutError as error:
            if error.outcome == "unknown":
                raise
            # As with a lock that is not free in time: nothing was done.
            raise StoreLockedError(
                str(error), path=path, holder=error.holder,
                holder_pid=error.holder and error.holder.pid,
            ) from error  # fmt: skip


def _who(error: StoreLockedError) -> str:
    pid = error.holder_pid
    who = f"process {pid}" if pid else "another process"
    return f"store {error.path} is open for writing in {who}"


def _still_locked(error: StoreLockedError, timeout_ms: int) -> StoreLockedError:
    if _takes_requests(error):
        why = "it does not answer requests"
    else:
        why = "it takes no requests"
    return StoreLockedError(
        f"{_who(error)}, for {timeout_ms / 1000:g} s now (option lockTimeout), "
        f"and {why}; nothing was published. Close it there, or let that process "
        "open it only while it writes. A query that is restarted on its "
        "checkpoint continues with this batch",
        path=error.path,
        holder_pid=error.holder_pid,
        holder=error.holder,
    )
