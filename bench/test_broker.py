"""Appending and reading through Apache Kafka on this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("case", ["broker_append", "broker_read"])
def test_broker(contest: Callable[[str], None], case: str) -> None:
    """200,000 records; the broker leaves them to the operating system, too."""
    contest(case)
