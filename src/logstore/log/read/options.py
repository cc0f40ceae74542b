"""Which records a read delivers, and what it does about damage."""

from __future__ import annotations

from typing import NamedTuple

from logstore.log.read.corruption import RAISE, DamagePolicy, OnCorruption
from logstore.record.arguments import ISOLATIONS, check_choice

__all__ = ["ReadOptions"]


class ReadOptions(NamedTuple):
    """The options of one read.

    Attributes:
        durable_only: stop at the durable offset.
        is_committed: leave out aborted transactions, and stop at the first open one.
        policy: for damage.
    """

    durable_only: bool = False
    is_committed: bool = False
    policy: DamagePolicy = RAISE

    @classmethod
    def of(
        cls, durable_only: bool, isolation: str, on_corruption: OnCorruption = "raise"
    ) -> ReadOptions:
        """The options from the arguments of a caller.

        Raises:
            ConfigError: one is no choice.
        """
        is_committed = isolation == "read_committed"
        if not is_committed:
            check_choice("isolation", isolation, ISOLATIONS)
        policy = RAISE if on_corruption == "raise" else DamagePolicy(on_corruption)
        return cls(durable_only, is_committed, policy)
