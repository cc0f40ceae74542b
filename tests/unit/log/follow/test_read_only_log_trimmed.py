"""A reader whose writer deletes segments, or fills several with each append, faster
than it can look at all of the log."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced
from support.levels import some
from support.values import config_of


def deleting(
    p: logstore.Partition, files: FaultyFiles, period: int, phase: int
) -> Callable[[str, str], None]:
    """Deletes all segments, and begins others, before each call whose number and the
    phase add up to a multiple of the period."""
    calls = itertools.count(phase)

    def before(method: str, name: str) -> None:
        assert len(files.calls) < 1000
        if next(calls) % period == 0:
            for _ in range(3):
                p.append(b"x")
                p.roll()
            p.append(b"x")
            p.delete_before(p.end_offset - 1)

    return before


@pytest.mark.parametrize("period", [12, 24, 25, 33])
@pytest.mark.parametrize("opens", [True, False], ids=["opens", "looks"])
def test_writer_that_is_faster_than_a_look_does_not_hold_it_up(
    tmp_path: Path, opens: bool, period: int
) -> None:
    """Every few of its calls, all existing segments are deleted and others begun: the
    result is the log at one moment of the look. In each phase, first before the
    look."""
    for phase in some(range(period), 8):
        path = tmp_path / str(phase)
        files = FaultyFiles()
        with open_store(path, _files=Unsynced()) as store:
            config = config_of(2, flush_ms=3_600_000)
            p = store.create_topic("orders", config=config)[0]

            with open_store(path, read_only=True, _files=files) as reading:
                if not opens:
                    assert reading.topic("orders")[0].end_offset == 0
                files.forget()
                files.before = deleting(p, files, period, phase)
                found = reading.topic("orders")[0].end_offset
                files.before = None
                assert (phase == 0) <= found <= p.end_offset
                reader = reading.topic("orders")[0]
                left = [*range(p.start_offset, p.end_offset)]
                assert [r.offset for r in reader.read()] == left
                assert [one.base_offset for one in reader.segments] == [
                    one.base_offset for one in p.segments
                ]


@pytest.mark.parametrize("period", [33, 50, 75])
def test_appends_that_are_faster_than_a_look_do_not_hold_it_up(
    tmp_path: Path, period: int
) -> None:
    """Each append fills several segments, and none is undone: the look may show a part
    of one, and the next look shows the rest."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=Unsynced()) as store:
        config = config_of(2, segment_bytes=700, flush_ms=3_600_000)
        p = store.create_topic("orders", config=config)[0]
        with open_store(tmp_path, read_only=True, _files=files) as reading:
            reader = reading.topic("orders")[0]
            for phase in range(0, period, 5):
                files.forget()
                calls = itertools.count(phase)

                def before(
                    method: str, name: str, calls: itertools.count[int] = calls
                ) -> None:
                    assert len(files.calls) < 1000
                    if next(calls) % period == 0:
                        p.append_many([bytes(200)] * 9)

                begun = p.end_offset
                files.before = before
                found = reader.end_offset
                files.before = None
                assert begun <= found <= p.end_offset
                assert reader.end_offset == p.end_offset
