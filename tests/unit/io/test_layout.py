"""Names of files and directories."""

from __future__ import annotations

import pytest

from logstore.io import layout

MARK = "0123456789abcdef" * 2


@pytest.mark.parametrize("length", [1, 200, 201, 249])
@pytest.mark.parametrize("number", [0, 9, (1 << 31) - 1])
def test_name_of_a_deleted_directory_fits_and_is_parsed(
    length: int, number: int
) -> None:
    """At most 255 characters: a file system has no longer names. The rest of a long
    name still shows the topic that is being deleted."""
    topic = "t" * length
    name = layout.deleted_directory(topic, number, MARK)
    assert len(name) <= 255
    prefix, found, kind = layout.transition_topic(name) or ("", -1, "")
    assert (found, kind) == (number, "delete")
    assert topic.startswith(prefix)
    assert len(prefix) >= min(length, 200)
    assert layout.is_renamed_for_deletion([name], topic, "", None)
    assert not layout.is_renamed_for_deletion([name], topic, "", {number})
    marked = layout.deleted_directory(
        topic, number, layout.deletion_mark("ab" * 16, MARK)
    )
    assert layout.is_renamed_for_deletion([marked], topic, "ab" * 16, {number})
    assert not layout.is_renamed_for_deletion([marked], topic, "cd" * 16, {number})
    assert not layout.is_renamed_for_deletion([marked], "other", "ab" * 16, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-12", ("a-b", 12)),
        ("orders-2147483647", ("orders", 2147483647)),
        ("orders-2147483648", None),
        ("orders-01", None),
        ("orders-+5", None),
        ("orders", None),
        ("..-0", None),
        (".logstore-group-0", None),
        ("__cluster_metadata-0", None),
    ],
)
def test_name_of_a_partition_is_parsed(
    name: str, expected: tuple[str, int] | None
) -> None:
    assert layout.parse_partition_directory(name) == expected


def test_group_has_a_file_name_of_its_own() -> None:
    """Ids that differ only in bytes that a name cannot have get different names, as do
    very long ones."""
    ids = ["a", "A", "a b", "a%20b", "ä", "x" * 180, "x" * 181, "x" * 182, ".", "a/b"]
    names = [layout.group_file(one) for one in ids]
    assert len(set(names)) == len(ids)
    assert layout.group_files([*names, ".logstore-group-a.lock"]) == names
    assert all(len(name) <= 255 and "/" not in name for name in names)
    for one, name in zip(ids, names, strict=True):
        if len(one) <= 180:
            assert layout.group_of_file(name) == one
