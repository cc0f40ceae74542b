"""`Buffer` and `BufferPool`: memory that files are read into."""

from logstore import _native as native


def test_buffer_has_one_memory_in_three_ways():
    buffer = native.Buffer(100)
    buffer.view[7:10] = b"abc"
    assert buffer.raw[7:10] == b"abc"
    assert bytes(buffer.c[i] for i in (7, 8, 9)) == b"abc"
    assert native.address_of(buffer.c) > 0


def test_pool_gives_each_buffer_to_one_taker_at_a_time():
    """A buffer is given again when it is no longer referenced."""
    pool = native.BufferPool(1000, 4)
    first, second = pool.take(), pool.take()
    addresses = {native.address_of(b.c) for b in (first, second)}
    assert len(addresses) == 2
    assert first.capacity == len(first.view) == 1000
    address = native.address_of(first.c)
    del first
    again = pool.take()
    assert native.address_of(again.c) == address
    again.view[:3] = b"new"
    assert again.raw[:3] == b"new"
    del second


def test_pool_keeps_no_more_than_it_should():
    pool = native.BufferPool(1000, 2)
    buffers = [pool.take() for _ in range(5)]
    buffers.clear()
    assert len(pool._free) == 2


def test_pool_that_was_closed_keeps_nothing():
    """Buffers in use stay unchanged."""
    pool = native.BufferPool(1000, 2)
    kept, dropped = pool.take(), pool.take()
    kept.view[:4] = b"kept"
    del dropped
    pool.close()
    assert len(pool._free) == 0
    later = pool.take()
    assert kept.raw[:4] == b"kept"
    del later, kept
    assert len(pool._free) == 0
