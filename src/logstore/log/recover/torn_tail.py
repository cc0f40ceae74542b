"""Decides whether the last bytes of a log are a torn tail, which opening cuts, or
damage, which it keeps: from the bytes that were read, and facts from outside the log.
"""

from __future__ import annotations

from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.log.recover.facts import WalkFacts

__all__ = ["is_torn_tail", "may_be_unfinished", "needs_more"]


def is_torn_tail(
    walk: WalkFacts, durable_pos: int, durable_offset: int, metadata: PartitionMetadata
) -> bool:
    """Whether the bytes after the last valid batch are a torn tail; else they are
    damage.

    They are damage if one of these holds:
    1. The log was closed: what was written was synced. Which offset the last batch has
       does not matter, since the damage may be in an offset.
    2. They begin below the durable point.
    3. Valid batches follow, and that shows damage (`needs_more`).
    4. They are not understood. If logstore wrote this log last, a magic above 2 is
       garbage, since logstore writes none.
    5. Another program wrote last, and the file does not begin as a log does, or the
       batch is intact: a broker keeps, and serves, an intact batch whatever its offset
       is.

    Args:
        walk: of the last segment, up to the first byte that is not valid.
        durable_pos, durable_offset: the durable point, by position and by offset.
    """
    if metadata.clean:
        return False
    if walk.pos < durable_pos or walk.last_offset + 1 < durable_offset:
        return False
    if walk.has_more:
        return False
    if metadata.is_written:
        return walk.is_unknown_magic or not walk.is_unsupported
    return not (walk.is_unsupported or walk.is_no_log or walk.is_misplaced)


def needs_more(
    metadata: PartitionMetadata, base: int, pos: int, *, is_identified: bool
) -> bool:
    """Whether an intact batch after the bad one at `pos` of the last segment, which
    begins at offset `base`, shows that the bad one is damage, and no torn tail.

    If logstore wrote last: whether the machine was not restarted since, so that the
    kernel had all appended bytes; after a restart, pages may be missing anywhere.
    Otherwise, whether these bytes were durable by a state that does not count any more,
    or nothing shows how far the log was flushed: neither a mark of a clean stop nor a
    recovery point.

    Args:
        is_identified: logstore has written to this log, at some time.
    """
    if metadata.clean:
        return False
    is_written = metadata.is_written or is_identified
    if metadata.is_own and metadata.is_same_boot and is_written:
        return True
    if metadata.state is not None:
        return False
    stale = metadata.stale
    if stale is not None and stale.active["base_offset"] == base:
        return pos < stale.active["size"] or not metadata.is_point_known
    return not metadata.is_point_known


def may_be_unfinished(metadata: PartitionMetadata, base: int, pos: int) -> bool:
    """Whether zeros at `pos` of the last segment, which begins at offset `base`, may be
    the place of the first frame of a call that logstore did not finish.

    If logstore did not write last, its state must say so: it has this segment, and was
    durable only below `pos`. A broker leaves no such zeros, and a log without a state
    says nothing.
    """
    if metadata.is_own:
        return True
    stale = metadata.stale
    if stale is None or stale.active["base_offset"] != base:
        return False
    return pos >= stale.active["size"]
