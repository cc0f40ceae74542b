"""Losses of a log through repair."""

from __future__ import annotations

from typing import Any

import logstore
from logstore.cli.losses import Loss, loss_of


def action(label: str, first: int | None, last: int | None, **more: Any) -> Any:
    values = {"path": "/s/a-0/x.log", "position": 0, "bytes": 10, **more}
    return logstore.types.RepairAction(
        label, values["path"], values["position"], values["bytes"], first, last, None,
        "a message",
    )  # fmt: skip


def loss(*actions: Any) -> Loss:
    return loss_of(logstore.types.RepairReport(mode="cut", actions=tuple(actions)))


def test_offsets_are_counted_with_the_last_one() -> None:
    """The actions of one partition count once, whatever their files."""
    found = loss(
        action("cut", 5, 9),
        action("cut", 5, 9, path="/s/a-0/y.log"),
        action("skipped", 20, 20),
        action("segment-removed", 5, 6, path="/s/b-0/x.log"),
        action("index-rebuilt", 0, 99),
    )
    assert (found.offsets, found.partitions, found.bytes) == (8, 2, 50)
    assert found.is_exact
    assert found.text == "50 B out of the log: 8 offsets, at most 8 records"
    assert found.records_text == "at most 8, 0 of them readable"


def test_loss_of_unknown_offsets_is_not_exact() -> None:
    """The known offsets are a lower bound."""
    found = loss(action("cut", 5, None), action("cut", 7, 8))
    assert (found.offsets, found.is_exact) == (2, False)
    assert found.records_text.startswith("at least 2")
    assert loss(action("cut", None, None)).is_exact
    assert not loss(action("lost-accepted", None, None)).is_exact
    assert loss().records_text == "none"
