"""The continuation of a read after damage: facts in, decision out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.log.read.corruption import RAISE, SKIP, Damaged, DamagePolicy
from logstore.log.read.resume import Met, Resume, after_damage
from logstore.log.read.view import View
from logstore.segment import OffsetPosition, Segment
from support.damage import logs_in
from support.values import config_of

UNKNOWN = native.OFFSET_UNKNOWN


def view_of(path: Path, *damaged: int, length: int = 120) -> View:
    """Two segments with the offsets 0 to 9 and 10 to 19, a batch each. In the first
    one, the batches with these offsets are damaged."""
    with logstore.open(path) as store:
        partition = store.create_topic("t", config=config_of(2, "none"))[0]
        for number in range(20):
            if number == 10:
                partition.roll()
            partition.append(bytes(length))
    log = logs_in(path / "t-0")[0]
    data = bytearray(log.read_bytes())
    for offset in damaged:
        data[(offset + 1) * (len(data) // 10) - 3] ^= 1
    log.write_bytes(data)
    store = logstore.open(path, read_only=True)
    view: View = store.topic("t")[0]._views.now(False)
    return view


def met_at(view: View, damaged: int, offset: int, since: int = 0) -> Met:
    """Damage of a batch, found by a read that has delivered the records below
    `offset`."""
    segment = view.segments[0]
    pos = damaged * (segment.size // 10)
    error = CorruptRecordError("bad", path=segment.path, position=pos, offset=damaged)
    return Met(segment, error, pos, damaged - 1, offset, since)


def place_of(segment: Segment, offset: int) -> OffsetPosition:
    return OffsetPosition(offset * (segment.size // 10), UNKNOWN)


def test_damage_that_must_not_be_left_out_is_raised(tmp_path: Path) -> None:
    """The error names the offset at which reading can continue."""
    view = view_of(tmp_path, 4)
    met = met_at(view, 4, 4)
    assert after_damage(met, RAISE, view) is met.error
    assert met.error.next_offset == 5


def test_damage_that_is_left_out_is_passed(tmp_path: Path) -> None:
    """The policy gets the lost offsets."""
    view, asked = view_of(tmp_path, 4, 5), []

    def ask(damaged: Damaged) -> bool:
        asked.append(damaged)
        return len(asked) == 1

    met = met_at(view, 4, 3)
    policy = DamagePolicy(ask)
    resumed = after_damage(met, policy, view)
    assert resumed == Resume(place_of(met.segment, 6), asked[0], hides_end=True)
    assert asked == [Damaged(4, 6, met.error)]
    later = met_at(view, 5, 5)
    assert after_damage(later, policy, view) is later.error


def test_damage_to_the_end_of_a_segment_leads_to_the_next_one(tmp_path: Path) -> None:
    """No intact batch follows in the last segment."""
    view = view_of(tmp_path, 9)
    met = met_at(view, 9, 9)
    resumed = after_damage(met, SKIP, view)
    assert resumed == Resume(None, Damaged(9, 10, met.error), hides_end=True)
    alone = view._replace(segments=view.segments[:1])
    met = met_at(view, 9, 9)
    resumed = after_damage(met, SKIP, alone)
    assert resumed == Resume(None, Damaged(9, None, met.error), hides_end=True)


@pytest.mark.parametrize("policy", [RAISE, SKIP])
def test_damage_below_the_read_is_no_concern(
    tmp_path: Path, policy: DamagePolicy
) -> None:
    """The policy does not matter: in the same segment, or up to its end."""
    view = view_of(tmp_path, 4, 9)
    met = met_at(view, 4, 0, since=7)
    assert after_damage(met, policy, view) == Resume(place_of(met.segment, 5))
    met = met_at(view, 9, 0, since=10)
    assert after_damage(met, policy, view) == Resume(None)
    met = met_at(view, 4, 0, since=4)
    raised = after_damage(met, RAISE, view)
    assert raised is met.error


def test_batch_that_is_no_control_batch_ends_no_transaction(tmp_path: Path) -> None:
    """The batch is too large. Two damaged ones are not known to be two."""
    view = view_of(tmp_path, 4)
    resumed = after_damage(met_at(view, 4, 4), SKIP, view)
    assert isinstance(resumed, Resume)
    assert resumed.left_out is not None
    assert not resumed.hides_end


def test_small_batch_may_end_a_transaction(tmp_path: Path) -> None:
    """A control batch is that small."""
    view = view_of(tmp_path, 4, length=1)
    resumed = after_damage(met_at(view, 4, 4), SKIP, view)
    assert isinstance(resumed, Resume)
    assert resumed.hides_end


def test_segment_that_cannot_be_read_is_left_out_whole(tmp_path: Path) -> None:
    """The read continues in the next one."""
    view = view_of(tmp_path)
    segment = view.segments[0]
    error: Any = UnsupportedError("new", path=segment.path, position=0, offset=0)
    met = Met(segment, error, None, UNKNOWN, 0, 0)
    resumed = after_damage(met, SKIP, view)
    assert resumed == Resume(None, Damaged(0, 10, error), hides_end=True)
