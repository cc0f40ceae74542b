"""Which findings are damage to records."""

from __future__ import annotations

import pytest

from logstore.maintenance import finding as kinds
from logstore.maintenance.finding import CONTENTS, NOTE, PROBLEM, Finding

LOG = f"/s/orders-0/{0:020d}.log"


@pytest.mark.parametrize(
    ("kind", "path", "touches"),
    [
        (kinds.ZEROS, LOG, True),
        (kinds.LOST_SEGMENT, "/s/orders-0", True),
        (kinds.UNSUPPORTED, LOG, True),
        (kinds.UNSUPPORTED, "/s/orders-0/.logstore-state", False),
        (kinds.UNREADABLE, "/s/orders-0", True),
        (kinds.UNREADABLE, f"/s/orders-0/{0:020d}.index", False),
        (kinds.NOT_REGULAR, LOG, True),
        (kinds.TIME_INDEX_FAULT, f"/s/orders-0/{0:020d}.timeindex", False),
        (kinds.CHECKPOINT, "/s/leader-epoch-checkpoint", False),
        (kinds.GROUP, "/s/.logstore-group-g", False),
    ],
)
def test_problem_touches_records_by_its_kind_and_place(
    kind: str, path: str, touches: bool
) -> None:
    """What cannot be read or understood touches them if it is a log."""
    assert Finding(CONTENTS, kind, PROBLEM, path, "").touches_records is touches
    assert not Finding(CONTENTS, kind, NOTE, path, "").touches_records
