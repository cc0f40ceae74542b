"""Selects the records that a read delivers, and how it handles damage."""

from __future__ import annotations

from typing import NamedTuple

from logstore.log.read.corruption import RAISE, DamagePolicy, OnCorruption
from logstore.record.arguments import ISOLATIONS, as_limit, check_choice

__all__ = ["ReadOptions"]


class ReadOptions(NamedTuple):
    """The options of one read.

    Attributes:
        durable_only: stop at the durable offset.
        is_committed: leave out aborted transactions, and stop at the first open one.
        policy: for damage.
        limit: the most records; None: all.
    """

    durable_only: bool = False
    is_committed: bool = False
    policy: DamagePolicy = RAISE
    limit: int | None = None

    @classmethod
    def of(
        cls,
        durable_only: bool,
        isolation: str,
        on_corruption: OnCorruption = "raise",
        limit: object = None,
    ) -> ReadOptions:
        """The options from the arguments of a caller.

        Raises:
            TypeError: `limit` is not a number.
            ConfigError: an argument is not a valid choice, or `limit` is below 0.
        """
        is_committed = isolation == "read_committed"
        if not is_committed and isolation != "read_uncommitted":
            check_choice("isolation", isolation, ISOLATIONS)
        policy = RAISE if on_corruption == "raise" else DamagePolicy(on_corruption)
        count = None if limit is None else as_limit(limit)
        return cls(durable_only, is_committed, policy, count)
