"""Calls of a disk in memory that fail."""

from __future__ import annotations

import threading


class Fault:
    def __init__(
        self, method: str, error: int, nth: int, times: int, name: str, short: int
    ) -> None:
        self.method = method
        self.error = error
        self.skip = nth - 1
        self.times = times
        self.name = name
        self.short = short


def is_look_of_owner(method: str) -> bool:
    """Whether the call is made by an owner's thread, which looks for requests at
    random times."""
    return method == "list" and threading.current_thread().name.startswith("requests")
