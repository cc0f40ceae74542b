"""The methods of the programme, in the order of the table."""

from __future__ import annotations

from faults import (
    damages,
    disk_states,
    failing_calls,
    fuzz,
    kills,
    lying_disk,
    lying_input,
    planted,
    readable,
    recorded_calls,
    replacements,
    second_use,
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
            second_use,
            lying_input,
            readable,
            planted,
        ),
    )
)
