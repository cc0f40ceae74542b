"""Resources of this process for change notification by the system."""

from __future__ import annotations

import contextlib
import os

__all__ = ["instances", "watches"]


def instances() -> int:
    """Instances of inotify."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:inotify"
    return count


def watches() -> int:
    """Files and directories that are watched, by all of them."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as lines:
            count += sum(line.startswith("inotify") for line in lines)
    return count
