"""The wheel has the contents of the repository, and is reproducible in any
directory."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from support.wheels import build_wheel

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.slow
def test_wheel_is_reproducible_and_holds_what_the_repository_has(
    tmp_path: Path,
) -> None:
    """Two directories, one SOURCE_DATE_EPOCH, the same bytes; and nothing in it but the
    files of the package, the three extensions, the jar and the metadata."""
    first = build_wheel(tmp_path / "one" / "place")
    second = build_wheel(tmp_path / "another")
    digests = {hashlib.sha256(p.read_bytes()).hexdigest() for p in (first, second)}
    assert len(digests) == 1
    source = ROOT / "src"
    expected = {
        p.relative_to(source).as_posix(): p.read_bytes()
        for package in ("logstore", "pyspark_logstore")
        for pattern in ("*.py", "*.pyi", "py.typed", "*.jar")
        for p in (source / package).rglob(pattern)
    }
    with zipfile.ZipFile(first) as wheel:
        found = {name: wheel.read(name) for name in wheel.namelist()}
    built = {n for n in found if n.endswith(".so")}
    metadata = {n for n in found if ".dist-info/" in n}
    modules = {name.rpartition("/")[2].partition(".")[0] for name in built}
    assert modules == {"_locks", "_ls", "_records"}
    assert {n: d for n, d in found.items() if n not in built | metadata} == expected
    for name in built:
        assert str(tmp_path).encode() not in found[name]
