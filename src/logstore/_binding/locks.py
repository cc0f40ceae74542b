"""Locks, and open files, made in C (pylocks.c)."""

from logstore._native._locks import (
    Group,
    Mutex,
    OpenFile,
    after_fork,
    assume,
    defer,
    held,
    places,
    resign,
)

__all__ = [
    "Group",
    "Mutex",
    "OpenFile",
    "after_fork",
    "assume",
    "resign",
    "defer",
    "held",
    "places",
]
