"""The methods of the programme, in the order of the table."""

from __future__ import annotations

from faults import (
    agreement,
    cancellations,
    compactions,
    copies,
    damages,
    disk_states,
    failing_calls,
    forks,
    full,
    fuzz,
    groups,
    hand_ins,
    interrupts,
    java,
    kills,
    limits,
    lives,
    lying_disk,
    lying_input,
    planted,
    producers,
    readable,
    recorded_calls,
    reentry,
    replacements,
    second_use,
    storms,
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
            producers,
            compactions,
            kills,
            hand_ins,
            groups,
            reentry,
            interrupts,
            forks,
            storms,
            limits,
            full,
            copies,
            damages,
            agreement,
            lives,
            fuzz,
            replacements,
            second_use,
            lying_input,
            readable,
            cancellations,
            java,
            planted,
        ),
    )
)
