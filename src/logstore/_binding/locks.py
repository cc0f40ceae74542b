"""The locks of the engine, made in C (pylocks.c)."""

from logstore._native._locks import (
    Group,
    Mutex,
    after_fork,
    assume,
    defer,
    held,
    places,
)

__all__ = ["Group", "Mutex", "after_fork", "assume", "defer", "held", "places"]
