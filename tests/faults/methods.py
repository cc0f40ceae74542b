"""The methods of the programme, in the order of the table."""

from __future__ import annotations

from faults import (
    damages,
    disk_states,
    failing_calls,
    fuzz,
    kills,
    lying_disk,
    planted,
    recorded_calls,
    replacements,
)
from faults.method import Method, as_method

METHODS: tuple[Method, ...] = tuple(
    map(
        as_method,
        (
            disk_states,
            recorded_calls,
            failing_calls,
            lying_disk,
            kills,
            damages,
            fuzz,
            replacements,
            planted,
        ),
    )
)
