"""The file with which other processes learn the durable offset of a log."""

from __future__ import annotations

import pytest

from logstore import _native as native
from logstore.io import layout
from logstore.io.checkpoint.durable_page import (
    PageKey,
    pack_page,
    read_page,
    unpack_page,
)
from logstore.io.directory import Directory

OWNER = (5, 6, 7, 8)
KEY = PageKey(bytes(range(16)), OWNER, "0a" * 16, 3)


def test_page_says_what_was_packed() -> None:
    for durable in (0, 1, (1 << 63) - 1):
        data = pack_page(KEY.head(), durable)
        assert len(data) == native.PAGE_BYTES
        assert unpack_page(data, KEY.head()) == durable


@pytest.mark.parametrize(
    "other",
    [
        KEY._replace(boot_id=bytes(16)),
        KEY._replace(owner=(4, 6, 7, 8)),
        KEY._replace(owner=(5, 6, 9, 8)),
        KEY._replace(log_id="0b" * 16),
        KEY._replace(cuts=4),
    ],
)
def test_page_of_another_log_or_another_time_does_not_count(other: PageKey) -> None:
    """Even if its check is right for its content."""
    data = pack_page(KEY.head(), 40)
    assert unpack_page(data, other.head()) == -1
    mixed = other.head() + data[len(KEY.head()) :]
    assert unpack_page(mixed, KEY.head()) == -1
    assert unpack_page(mixed, other.head()) == -1


@pytest.mark.parametrize("key", [KEY._replace(boot_id=b""), KEY._replace(log_id="")])
def test_log_without_an_id_has_no_page(key: PageKey) -> None:
    assert key.head() == b""
    assert unpack_page(pack_page(KEY.head(), 40), key.head()) == -1


def test_page_with_a_changed_byte_does_not_count() -> None:
    data = pack_page(KEY.head(), 40)
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 0x10
        assert unpack_page(bytes(wrong), KEY.head()) == -1
    assert unpack_page(data[:-1], KEY.head()) == -1
    assert unpack_page(data + b"\0", KEY.head()) == -1


def test_page_is_read_from_its_file(root: Directory) -> None:
    boot_id = root.files.boot_id()
    head = KEY._replace(boot_id=boot_id).head()
    root.write_file(layout.DURABLE, pack_page(head, 40))
    assert read_page(root, OWNER, KEY.log_id, KEY.cuts) == (40 if boot_id else -1)
    assert read_page(root, None, KEY.log_id, KEY.cuts) == -1
    assert read_page(root, OWNER, KEY.log_id, KEY.cuts + 1) == -1
