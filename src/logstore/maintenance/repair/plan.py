"""Which parts of a log stay: decided from the findings of `verify`, before any change.

`VerifiedSegment` is a segment before the repair, `RepairedSegment` one after it. Both
modes produce a list of repaired segments; bytes that none of them holds are taken out.
Neither mode invents anything: no batch is changed, none is moved before another.

A checksum does not cover the offset of a batch. So an intact batch may claim any
offset, and must not be trusted against all of its neighbours: see `_settle_overlaps`
and `_is_stray`.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.log.resync import first_offset_of
from logstore.maintenance.verify.log_facts import SoundRun
from logstore.segment import OffsetPosition, Segment


@dataclasses.dataclass(slots=True, eq=False)
class VerifiedSegment:
    """A segment as `verify` found it.

    Attributes:
        base, name, size: of its `.log` file.
        runs: its intact batches.
        bad_ranges: position ranges of intact batches whose contents are wrong, and
        bad_offsets: offsets of records that are wrong.
        jumps: as in `LogFacts`.
        min_size: its minimum size, and
        next_offset: the offset at which its offsets must end; None if unknown.
    """

    directory: Directory
    descriptors: Descriptors
    base: int
    name: str
    size: int
    runs: list[SoundRun]
    bad_ranges: list[tuple[int, int]]
    bad_offsets: list[int]
    jumps: dict[int, int]
    min_size: int | None = None
    next_offset: int | None = None

    def batches(
        self, run: SoundRun, *, deep: bool = False
    ) -> Iterator[tuple[int, int, int, int]]:
        """(begin, end, first offset or -1, last offset) of each batch of a run.

        With `deep`, the first offset is known of wrappers, too.
        """
        segment = Segment.of_file(
            self.directory, self.descriptors, self.name, self.base, run.end
        )
        place = OffsetPosition(run.begin, native.OFFSET_UNKNOWN)
        for header, buffer, pos in segment.headers(place, checks=0):
            first = max(header.base_offset, -1)
            if first < 0 and pos == run.begin:
                first = run.first
            if first < 0 and deep:
                data = buffer.raw[header.pos : header.pos + header.size]
                first = first_offset_of(header, data)
            yield pos, pos + header.size, first, header.last_offset


class IntactRange(NamedTuple):
    """Intact batches of a segment that stay.

    Attributes:
        fits: whether they end at the offset where the next segment begins.
    """

    source: VerifiedSegment
    run: SoundRun
    fits: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class RepairedSegment:
    """A segment after the repair.

    Attributes:
        source: the segment it is made from.
        base: its base offset after the repair.
        ranges: the bytes that stay, in order.
        first, last: its offsets; first -1 if it is unknown, last -1 if the segment is
            empty.
    """

    source: VerifiedSegment
    base: int
    ranges: list[tuple[int, int]]
    first: int = -1
    last: int = -1

    @property
    def is_whole(self) -> bool:
        """Whether all bytes of the file stay."""
        whole = [(0, self.source.size)] if self.source.size else []
        return self.ranges == whole

    @property
    def is_prefix(self) -> bool:
        """Whether a prefix of the file stays, so that cutting the file is enough."""
        return not self.ranges or (len(self.ranges) == 1 and self.ranges[0][0] == 0)

    @property
    def is_changed(self) -> bool:
        return not self.is_whole or self.base != self.source.base

    def dropped(self) -> list[tuple[int, int]]:
        """The bytes of the file that do not stay."""
        return complement(self.ranges, self.source.size)


def complement(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The ranges of [0, size) between those given."""
    gaps, pos = [], 0
    for begin, end in [*ranges, (size, size)]:
        if begin > pos:
            gaps.append((pos, begin))
        pos = end
    return gaps


# ------------------------------------------------------------------ cut


def plan_cut(
    sources: Sequence[VerifiedSegment], missing: Sequence[int], *, is_contiguous: bool
) -> list[RepairedSegment]:
    """The log up to its first damage.

    `missing`: base offsets of segments that must exist and do not, in order.
    """
    targets: list[RepairedSegment] = []
    next_offset = -1  # of the log so far
    before = -1
    for slot, source in enumerate(sources):
        is_hole = is_contiguous and targets and source.base != next_offset
        index = bisect.bisect_right(missing, before)
        is_missing = index < len(missing) and missing[index] < source.base
        if source.base < next_offset or is_hole or is_missing:
            break
        before = source.base
        runs = _limited(source)
        if not runs:
            if source.size == 0 and not source.min_size:
                targets.append(RepairedSegment(source, source.base, []))
                next_offset = max(next_offset, source.base)
                continue
            break
        if _is_misplaced(runs[0], source.base, is_contiguous=is_contiguous):
            break
        run = _uncontradicted(source, runs)
        if run is None:
            break
        following = sources[slot + 1].base if slot + 1 < len(sources) else None
        is_known = following is None or source.next_offset is not None
        if following is not None and not is_known and run.last >= following:
            run = _tail_cut(source, run, following)
        if run is None:
            break
        targets.append(
            RepairedSegment(
                source, source.base, [(0, run.end)], max(run.first, -1), run.last
            )
        )
        next_offset = run.last + 1
        if run.end < max(source.size, source.min_size or 0):
            break
    return targets


def _uncontradicted(source: VerifiedSegment, runs: list[SoundRun]) -> SoundRun | None:
    """The first of some runs, without its last batch if that jumps ahead of the batches
    after it: then the offset of that batch is wrong."""
    run = runs[0]
    if len(runs) == 1:
        return run
    return _without_jump(source, run, source.base - 1, runs[1].lowest)


def _is_misplaced(run: SoundRun, base: int, *, is_contiguous: bool) -> bool:
    """Whether a segment cannot begin with a run."""
    if run.begin or run.lowest < base:
        return True
    return is_contiguous and run.first >= 0 and run.first != base


def _limited(source: VerifiedSegment, *, bounded: bool = True) -> list[SoundRun]:
    """The runs of a segment, without batches that are wrong inside, and without those
    past the known end of its offsets (some of these may be a single stray batch)."""
    runs: list[SoundRun] = []
    for run in source.runs:
        for part in _without_bad(source, run):
            kept: SoundRun | None = part
            limit = source.next_offset if bounded else None
            if limit is not None and part.last >= limit:
                kept = _tail_cut(source, part, limit)
            if kept is not None:
                runs.append(kept)
    return runs


def _without_bad(source: VerifiedSegment, run: SoundRun) -> Iterator[SoundRun]:
    """The parts of a run between batches that are wrong inside, or that jump."""
    touched = [r for r in source.bad_ranges if r[0] < run.end and run.begin < r[1]]
    is_touched = touched or any(run.begin <= pos < run.end for pos in source.jumps)
    if not is_touched and not any(o <= run.last for o in source.bad_offsets):
        yield run
        return
    part: SoundRun | None = None
    for begin, end, first, last in source.batches(run):
        if any(low <= begin < high for low, high in touched) or any(
            first <= offset <= last for offset in source.bad_offsets
        ):
            if part is not None:
                yield part
            part = None
        elif part is None or begin in source.jumps:
            if part is not None:
                yield part
            first = source.jumps.get(begin, first)
            part = SoundRun(begin, end, first, last, end - begin, last)
        else:
            part = part._replace(end=end, last=last)
    if part is not None:
        yield part


# ------------------------------------------------------------------ skip


def plan_skip(
    sources: Sequence[VerifiedSegment], *, is_contiguous: bool, end: int | None = None
) -> list[RepairedSegment]:
    """The log without its damaged parts.

    `end`: the end of the log when it was closed, which can decide between offsets that
    contradict each other; None if unknown.
    """
    keys = _true_bases(sources)
    ordered = sorted(sources, key=lambda f: (keys[f.base], f.base != keys[f.base]))
    pieces: list[IntactRange] = []
    for source in ordered:
        base = keys[source.base]
        following = min((f.base for f in sources if f.base > base), default=None)
        is_known = following is not None
        limit = following if is_known else end
        for piece in _believed(
            source, base, limit, is_known=is_known, is_contiguous=is_contiguous
        ):
            _settle_overlaps(pieces, piece)
    return _targets(ordered, pieces)


def _true_bases(sources: Sequence[VerifiedSegment]) -> dict[int, int]:
    """The base offset of each segment: that of its name, unless most of the segment has
    offsets that cannot be there."""
    keys = {}
    for slot, source in enumerate(sources):
        keys[source.base] = source.base
        runs = _limited(source, bounded=False)
        if not runs:
            continue
        home = max(runs, key=lambda run: run.end - run.begin)
        base = home.lowest
        if base < source.base:
            base = _lowest_borne_out(source, home)
        following = sources[slot + 1].base if slot + 1 < len(sources) else None
        beyond = following is not None and base >= following
        # A damaged single batch is more likely than a misnamed segment.
        if (base < source.base or beyond) and not home.is_single:
            keys[source.base] = base
    return keys


def _lowest_borne_out(source: VerifiedSegment, run: SoundRun) -> int:
    """The offset of the first batch of a run that the next batch continues."""
    before = -1, -1  # lowest, last
    for begin, _, first, last in source.batches(run):
        if begin == run.begin:
            first = run.first
        if before[1] >= 0 and first in (-1, before[1] + 1):
            return before[0]
        before = (first if first >= 0 else last), last
    return run.lowest


def _believed(
    source: VerifiedSegment,
    base: int,
    limit: int | None,
    *,
    is_known: bool,
    is_contiguous: bool,
) -> Iterator[IntactRange]:
    """The runs of a segment whose offsets are possible there.

    `limit`: they lie below it; if it is not `is_known`, it only applies to offsets that
    contradict the next run's.
    """
    pos, last = 0, base - 1
    # `next_offset` was recorded under the name: ignore it if the name is wrong.
    runs = _limited(source, bounded=base == source.base)
    for slot, run in enumerate(runs):
        if is_contiguous and run.begin == pos and _is_stray(source, run, last):
            continue
        following = runs[slot + 1] if slot + 1 < len(runs) else None
        is_borne_out = run.begin == pos and run.lowest == last + 1
        if (
            is_contiguous
            and not is_borne_out
            and _is_contradicted(source, run, following, last)
        ):
            continue
        kept: SoundRun | None = run
        if run.lowest < base:
            kept = _head_cut(source, run, base - 1)
        is_limited = is_known or (
            following is not None and following.lowest <= run.last
        )
        if kept is not None and limit is not None and is_limited:
            kept = _without_jump(source, kept, last, limit)
        if kept is None:
            continue
        pos, last = kept.end, kept.last
        yield IntactRange(source, kept, is_known and kept.last + 1 == limit)


def _is_stray(source: VerifiedSegment, run: SoundRun, last: int) -> bool:
    """Whether a run is a single batch that jumps ahead, in a log without gaps, although
    no byte before it is damaged. Then its offset is damaged, unless the batch ends at
    `next_offset`."""
    if not run.is_single or run.first <= last + 1:
        return False
    return source.next_offset is None or run.last + 1 != source.next_offset


def _is_contradicted(
    source: VerifiedSegment, run: SoundRun, following: SoundRun | None, last: int
) -> bool:
    """Whether the offset of a run after damage is wrong, in a log without gaps. The run
    is a single batch, and the run right after it does not continue its offsets. It is
    wrong if that next run has several batches that follow each other; or if only
    another offset would leave some for the damage between `last`, the last offset
    before, and this batch."""
    if not run.is_single or following is None or following.begin != run.end:
        return False
    first, first_following = (
        next(source.batches(r, deep=True))[2] for r in (run, following)
    )
    if first_following < 0 or first_following == run.last + 1:
        return False
    # The offset at which it would begin if the next run continued from it.
    right = first_following - (run.last - first + 1)
    return not following.is_single or last + 1 == first < right


def _without_jump(
    source: VerifiedSegment, run: SoundRun, last: int, limit: int
) -> SoundRun | None:
    """A run without its last batch, if only that batch jumps to a limit or beyond.

    `last`: the last offset before the run.
    """
    if run.last < limit:
        return run
    before = last
    for _, _, first, last_of in source.batches(run, deep=True):
        if last_of >= limit:
            if last_of != run.last or first in (-1, before + 1):
                return run
            break
        before = last_of
    return _tail_cut(source, run, limit)


def _head_cut(source: VerifiedSegment, run: SoundRun, last: int) -> SoundRun | None:
    """A run without its batches that begin at or below `last`."""
    head: tuple[int, int, int, int] | None = None
    for batch in source.batches(run, deep=True):
        first = batch[2] if batch[2] >= 0 else batch[3]
        if first > last:
            head = batch
            break
    if head is None:
        return None
    return run._replace(
        begin=head[0], first=head[2], head_bytes=head[1] - head[0], head_last=head[3]
    )


def _tail_cut(source: VerifiedSegment, run: SoundRun, offset: int) -> SoundRun | None:
    """A run up to, and without, its first batch that reaches `offset`."""
    end, last = run.begin, -1
    for batch in source.batches(run):
        if batch[3] >= offset:
            break
        end, last = batch[1], batch[3]
    return None if end == run.begin else run._replace(end=end, last=last)


def _settle_overlaps(pieces: list[IntactRange], new: IntactRange) -> None:
    """Add a piece after others. If offsets overlap, drop the side that costs fewer
    batches: the end of the pieces before, or the beginning of the new one. If both cost
    the same, drop the side that its neighbour does not confirm, else the new one. But
    if the side before is one batch that would fit exactly in its place with another
    offset, its offset is wrong: drop it. So one batch with a wrong offset can neither
    remove all batches that follow nor take another's place."""
    source, run, fits = new
    while pieces:
        other_source, other, _ = pieces[-1]
        first = run.lowest
        if first > other.last:
            break
        head = _price_of_head(source, run, other.last, fits=fits)
        tail_price = _price_of_tail(other_source, other, first)
        if tail_price < head or (tail_price == (1, False) and _fits(pieces, first)):
            pieces.pop()
            tail = _tail_cut(other_source, other, first)
            if tail is not None:
                pieces.append(IntactRange(other_source, tail))
            continue
        rest = _head_cut(source, run, other.last)
        if rest is None:
            return
        run = rest
    pieces.append(IntactRange(source, run, fits))


def _fits(pieces: list[IntactRange], offset: int) -> bool:
    """Whether the last batch of the pieces has exactly as many offsets as there are
    between the last offset right before it in its file, and `offset`."""
    source, run, _ = pieces[-1]
    before = None if run.begin else source.base - 1
    for piece in pieces[-2:-1]:
        if piece.source is source and piece.run.end == run.begin:
            before = piece.run.last
    first, last = run.first, run.last
    for begin, _, first_of, last_of in source.batches(run, deep=True):
        if begin > run.begin:
            before = last
        first, last = first_of, last_of
    return before is not None and first >= 0 and last - first == offset - before - 2


def _price_of_head(
    source: VerifiedSegment, run: SoundRun, last: int, *, fits: bool
) -> tuple[int, bool]:
    """(batches of a run that begin at or below `last`, whether the batch after the last
    of them, or the segment after the run, continues from it)."""
    count, before = 0, -1
    for _, _, first, last_of in source.batches(run, deep=True):
        if (first if first >= 0 else last_of) > last:
            return count, first in (-1, before + 1)
        count, before = count + 1, last_of
    return count, count > 1 or fits


def _price_of_tail(
    source: VerifiedSegment, run: SoundRun, offset: int
) -> tuple[int, bool]:
    """(batches of a run from the first that reaches `offset` on, whether that continues
    from the one before it)."""
    count, before, follows = 0, -1, True
    for begin, _, first, last_of in source.batches(run, deep=True):
        if not count and last_of < offset:
            before = last_of
            continue
        if not count:
            follows = begin > run.begin and first in (-1, before + 1)
        count += 1
    return count, follows or (before < 0 and count > 1)


def _targets(
    ordered: Sequence[VerifiedSegment], pieces: Sequence[IntactRange]
) -> list[RepairedSegment]:
    """The segments that hold the pieces; empty ones stay."""
    targets: list[RepairedSegment] = []
    last = -1
    for source in ordered:
        runs = [piece.run for piece in pieces if piece.source is source]
        if not runs:
            if source.size == 0 and source.base > last:
                targets.append(RepairedSegment(source, source.base, []))
                last = source.base - 1
            continue
        first = runs[0].first
        base = source.base if last < source.base <= runs[0].lowest else first
        if base < 0:
            base = last + 1
        ranges: list[tuple[int, int]] = []
        for run in runs:
            if ranges and ranges[-1][1] == run.begin:
                ranges[-1] = (ranges[-1][0], run.end)
            else:
                ranges.append((run.begin, run.end))
        last = runs[-1].last
        targets.append(RepairedSegment(source, base, ranges, first, last))
    return targets
