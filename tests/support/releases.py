"""The list of Apache Kafka releases that tests start.

A test for every release takes `each_release`. The commit level runs only the newest
one; ``make test-all`` starts the others, too.
"""

from __future__ import annotations

from typing import Any, Final

from logstore.kafka import RELEASES
from support.levels import mostly_thorough

__all__ = ["BY_NAME", "NEWEST", "STARTED", "WITH_KRAFT", "each_release", "short_name"]

# The last patch of each release whose brokers and tools the package knows.
STARTED: Final = ("2.8.2", "3.9.1", "4.2.0", "4.3.1", "4.4.0")
NEWEST: Final = STARTED[-1]
# The others need ZooKeeper.
WITH_KRAFT: Final = STARTED[1:]


def short_name(release: str) -> str:
    """A release as the package names it: ``4.4`` of ``4.4.0``."""
    return release.rpartition(".")[0]


# By the names that `--kafka-release` and `check_handover` take.
BY_NAME: Final = {short_name(release): release for release in STARTED}
if tuple(BY_NAME) != RELEASES:
    raise ValueError(f"the package knows {RELEASES}, tests start {STARTED}")


def each_release() -> list[Any]:
    """Parameters: the releases, of which the commit level runs only the newest."""
    return mostly_thorough(STARTED, NEWEST)
