"""The methods of the programme, in the order of the table."""

from __future__ import annotations

from faults import disk_states, failing_calls, fuzz, lying_disk, planted
from faults.method import Method, as_method

METHODS: tuple[Method, ...] = tuple(
    map(as_method, (fuzz, disk_states, failing_calls, lying_disk, planted))
)
