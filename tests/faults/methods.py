"""The methods of the programme, in the order of the table."""

from __future__ import annotations

from faults import damages, fuzz, kills, recorded_calls
from faults.method import Method, as_method

METHODS: tuple[Method, ...] = tuple(
    map(as_method, (recorded_calls, kills, damages, fuzz))
)
