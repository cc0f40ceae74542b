"""A batch whose offsets the batch after it contradicts, found by the frames alone."""

from unit._native.kafka_bytes import UNKNOWN, Guarded, message, plain_batch

from logstore._native import batches
from logstore._native._ls import ffi, lib


def plain(offset, count=1):
    """A batch of magic 2."""
    return plain_batch(offset, count)


def contradicted(data, before, following=UNKNOWN, pos=0):
    memory = Guarded(len(data))
    found = batches.find_contradicted(
        memory.at_end(data),
        len(data),
        pos=pos,
        last_offset=before,
        following=following,
    )
    return found.stop, found.pos, found.last_offset


def test_batch_is_contradicted_by_one_that_begins_in_the_gap_before_it():
    """The next batch begins in the gap before it, or in the batch itself. A checksum
    does not cover the offset."""
    size = len(plain(0))
    found = lib.LS_STOP_OFFSET, size, 9
    assert contradicted(plain(9) + plain(20) + plain(10) + plain(11), 8) == found
    assert contradicted(plain(9) + plain(12, 3) + plain(14), 8) == found
    one, two, three = (message(offset, b"", b"") for offset in (9, 20, 10))
    assert contradicted(one + two + three, 8) == (found[0], len(one), 9)


def test_batch_without_a_gap_before_it_is_not_contradicted():
    """Then the one after it is wrong, which a walk over it shows."""
    for data in (
        plain(9) + plain(9),
        plain(9) + plain(3),
        plain(9, 3) + plain(10),
    ):
        assert contradicted(data, 8)[0] == lib.LS_STOP_END
    # A gap says nothing if the batch after it has a lower offset.
    assert contradicted(plain(9) + plain(8), 8)[0] == lib.LS_STOP_END
    assert contradicted(plain(9) + plain(8), 7)[0] == lib.LS_STOP_OFFSET
    # It is not known where the batch before ends.
    assert contradicted(plain(9) + plain(8), UNKNOWN)[0] == lib.LS_STOP_END


def test_wrapper_is_contradicted_by_its_last_offset():
    """Its first offset is in its content: it may leave a gap."""
    wrapper = message(9, None, b"compressed", attributes=2)
    assert contradicted(wrapper + message(9, b"", b""), 8)[0] == lib.LS_STOP_OFFSET
    assert contradicted(wrapper + message(10, b"", b""), 8, 99)[0] == lib.LS_STOP_END


def test_last_batch_waits_for_what_follows_it():
    """The search waits if less than the next offset is in the buffer."""
    one, two = plain(9), plain(20)
    for more in (b"", bytes(7)):
        assert contradicted(one + two + more, 8) == (lib.LS_STOP_FULL, len(one), 9)
        assert contradicted(one + two + more, 8, 21)[0] == lib.LS_STOP_END
        assert contradicted(one + two + more, 8, 20)[0] == lib.LS_STOP_OFFSET
    assert contradicted(one + two + plain(21)[:8], 8)[0] == lib.LS_STOP_END
    assert contradicted(one + two + plain(20)[:8], 8)[0] == lib.LS_STOP_OFFSET
    assert contradicted(two, 9, pos=len(two))[0] == lib.LS_STOP_END


def test_what_is_no_batch_ends_the_search():
    """The error comes from the decoder."""
    assert contradicted(plain(9) + b"garbage" * 20, 8)[0] == lib.LS_STOP_END
    assert contradicted(plain(9) + bytes(100), 8)[0] == lib.LS_STOP_END
    assert contradicted(b"", 8)[0] == lib.LS_STOP_END


def test_size_that_is_none_is_refused():
    """It is refused like by the other walks."""
    walk = ffi.new("ls_walk *")
    status = lib.ls_find_contradicted(b"", -1, UNKNOWN, walk)
    assert (status, walk.error.status) == (lib.LS_E_ARGUMENT, lib.LS_E_ARGUMENT)
