"""A process that has a store open for writing, and hands in to it: it may wait for
itself."""

from __future__ import annotations

from logstore.errors import ConfigError, Holder
from logstore.io.directory import Directory
from logstore.io.lock_record import OWNER

__all__ = ["waits_for_itself"]


def waits_for_itself(root: Directory, holder: Holder | None) -> ConfigError | None:
    """The error of a call that would wait for its own process for ever, because the
    process does not publish for others; None: it would not.

    Args:
        holder: the process that has the store.
    """
    if holder is None or holder.doing != OWNER or holder.publishes_for_others:
        return None
    files = root.files
    if (holder.pid, holder.host) != (files.process_id().pid, files.host()):
        return None
    return ConfigError(
        f"this process has {root.path} open for writing with "
        "publish_for_others=False, so it would wait for itself; nothing was "
        "written. Use that store, or open it with publish_for_others=True",
        name="publish_for_others",
        value=False,
    )
