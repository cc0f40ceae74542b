"""The cost of an append, a read, a scan and a verification, in instructions.

No test asserts a time, which depends on the load of the machine. The numbers are in
tests/instructions.json; if a change makes something cheaper, or is worth its cost,
`make instructions` renews them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support import instructions
from support.counted_work import PIECES
from support.instructions import Counts, UnavailableError
from support.levels import IS_ALL

# Most of the time is the start of Python and the store, the pieces together about the
# same; pieces of magic 1 are left out at the commit level.
CHOSEN = [piece for piece in PIECES if IS_ALL or "magic 1" not in piece]


def test_expected_numbers_are_those_of_the_pieces() -> None:
    """Each piece has its numbers, and the core never more than the process."""
    _, expected = instructions.read()
    assert list(expected) == PIECES
    for counts in expected.values():
        assert 0 < counts.core < counts.all


@pytest.mark.slow
def test_work_takes_no_more_instructions_than_expected() -> None:
    """The whole process is counted, and the C core alone."""
    made_in, expected = instructions.read()
    here = instructions.environment()
    if here["machine"] != made_in["machine"]:
        pytest.skip(f"the numbers are for {made_in['machine']}, not {here['machine']}")
    try:
        found = instructions.count(CHOSEN)
    except UnavailableError as error:
        pytest.skip(str(error))
    tolerance = instructions.TOLERANCE
    if here != made_in:
        tolerance = instructions.TOLERANCE_ELSEWHERE
    assert list(instructions.faults(found, expected, tolerance)) == []


def test_increase_is_a_fault() -> None:
    """Each of the two numbers has the tolerance."""
    expected = {"read": Counts(1000, 400), "scan": Counts(200, 33)}
    found = {"read": Counts(1101, 400), "scan": Counts(200, 33)}
    assert list(instructions.faults(found, expected, 0.1)) == [
        "read (all): 1,101 instructions, before 1,000"
    ]
    found = {"read": Counts(1000, 441), "scan": Counts(220, 36)}
    assert list(instructions.faults(found, expected, 0.1)) == [
        "read (core): 441 instructions, before 400"
    ]


def test_costs_of_calls_are_counted_once(tmp_path: Path) -> None:
    """Costs of called functions are in the entry of the called function as well."""
    core = tmp_path / "core.so"
    dump = tmp_path / "counts.1"
    dump.write_text(
        f"events: Ir\n\nob=(1) /usr/bin/python\nfn=(1) main\n0 100\n"
        f"cob=(2) {core}\ncfn=(2) ls_crc32\ncalls=1 0\n0 30\n+0 5\n\n"
        f"ob=(2)\nfn=(2)\n0 30\n\nob=(1)\nfn=(3) end\n0 7\n\ntotals: 142\n"
    )
    assert instructions.sums(dump, tmp_path) == Counts(142, 30)


def test_numbers_need_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its absence is a reason to skip, not a failure."""
    monkeypatch.setattr(instructions.shutil, "which", lambda name: None)
    with pytest.raises(UnavailableError, match="valgrind is not installed"):
        instructions.count(["scan, magic 1"])
