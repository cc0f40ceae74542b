"""Views of readers on a log that changes."""

from __future__ import annotations

from pathlib import Path

import logstore
from logstore.log.write.log_bounds import Visibility, VisibilityBarrier
from logstore.store.partition.partition import appends_of


class _Turn(VisibilityBarrier):
    """An open gate; a publication begins right after a reader has looked at it."""

    __slots__ = ("begin",)

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        self.begin()
        return True

    @is_open.setter
    def is_open(self, value: bool) -> None: ...


def test_reader_that_meets_a_publication_sees_none_of_it(tmp_path: Path) -> None:
    """The publication comes between its looks at the gate and at the bounds: the reader
    sees both changes, or neither."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a")[0]
        partition.append(b"x")
        log = appends_of(partition).writer()._log
        before = log.visibility

        def begin() -> None:
            log.limit_visibility(
                VisibilityBarrier(is_open=False, publisher=log.lock), 1
            )
            log.bounds = log.bounds._replace(end=3)

        barrier = _Turn(is_open=True)
        barrier.begin = begin
        log.visibility = Visibility(barrier, 0)
        seen = log.seen()
        log.visibility, log.bounds = before, log.bounds._replace(end=1)
    assert seen.end == 1


def test_extent_is_replaced_and_never_changed(tmp_path: Path) -> None:
    """A reader keeps its extent."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a")[0]
        log = appends_of(partition).writer()._log
        partition.append(b"x")
        taken, copy = log.bounds, tuple(log.bounds)
        partition.append(b"y", durable=True)
        partition.roll()
        assert tuple(taken) == copy
        assert (log.bounds.end, len(log.bounds.segments)) == (2, 2)
