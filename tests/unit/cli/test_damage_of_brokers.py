"""Reading over damage in the logs of brokers that were killed: records hidden by
transactions, and intact batches after bytes that are not known to be flushed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from support import transactions

PRODUCER = 7
POINTS = "recovery-point-offset-checkpoint"


def five(base: int, producer: int = -1) -> bytes:
    rows = [(b"key", b"value %d" % offset) for offset in range(base, base + 5)]
    return transactions.batch(base, rows, producer, control=False)


def end_of(base: int, *, commit: bool) -> bytes:
    return transactions.marker(base, PRODUCER, commit=commit)


def bad(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def ranges(*pairs: tuple[int, int]) -> list[int]:
    return [offset for begin, end in pairs for offset in range(begin, end)]


# The batches of the first segment, and of the second one. Then the committed records,
# and the missing ones if damage is skipped, or ends the read.
TRANSACTIONS: dict[str, Any] = {
    "two bad batches": (
        [five(0), bad(five(5)), five(10), bad(five(15)), five(20)],
        [five(25)],
        ranges((0, 5), (10, 15), (20, 30)),
        ranges((5, 10), (15, 20)),
        ranges((5, 30)),
    ),
    "one in a committed transaction": (
        [
            five(0),
            five(5, PRODUCER),
            bad(five(10, PRODUCER)),
            five(15, PRODUCER),
            end_of(20, commit=True),
        ],
        [five(21)],
        ranges((0, 10), (15, 20), (21, 26)),
        ranges((10, 15)),
        ranges((10, 26)),
    ),
    "one in an aborted transaction": (
        [
            five(0),
            five(5, PRODUCER),
            bad(five(10, PRODUCER)),
            five(15, PRODUCER),
            end_of(20, commit=False),
        ],
        [five(21)],
        ranges((0, 5), (21, 26)),
        ranges((10, 15)),
        ranges((5, 26)),
    ),
    "the end of a transaction": (
        [five(0), five(5, PRODUCER), five(10), bad(end_of(15, commit=True)), five(16)],
        [five(21)],
        ranges((0, 5)),
        ranges((5, 26)),  # which of them are committed cannot be decided
        ranges((5, 26)),
    ),
}


def directory(path: Path, *segments: list[bytes]) -> Path:
    """The log directory of a broker that was killed: no mark of a clean stop."""
    partition = path / "data" / "t-0"
    partition.mkdir(parents=True, mode=0o700)
    for segment in segments:
        base = int.from_bytes(segment[0][:8], "big")
        (partition / f"{base:020d}.log").write_bytes(b"".join(segment))
    return path / "data"


def shown(run: Any, command: str, path: Path, mode: str, isolation: str) -> Any:
    """(offsets of the records that a command prints, offsets that it lists as missing,
    its status)."""
    how = ("--on-corruption", mode, "--isolation", isolation)
    target = ("--format", "jsonl", "-o", "-")
    options = ("--format", "jsonl") if command == "records" else target
    result = run(command, path, *options, *how)
    missing = re.findall(r"missing: t-0 offsets (\d+)(?:\.\.(\d+))? ", result.err)
    listed = ranges(*((int(a), int(b or a) + 1) for a, b in missing))
    return [line["offset"] for line in result.json], listed, result.status


@pytest.mark.parametrize("command", ["records", "export"])
@pytest.mark.parametrize("mode", ["skip", "raise"])
@pytest.mark.parametrize("case", TRANSACTIONS)
def test_committed_records_are_printed_once_or_listed_as_missing(
    run: Any, tmp_path: Path, case: str, mode: str, command: str
) -> None:
    """A reader returns the same records; undecidable ones are never printed."""
    first, second, committed, skipped, after = TRANSACTIONS[case]
    path = directory(tmp_path, first, second)
    found, listed, status = shown(run, command, path, mode, "read_committed")
    assert listed == (skipped if mode == "skip" else after)
    assert found == [offset for offset in committed if offset not in listed]
    assert status == 1
    with logstore.open(path, read_only=True) as store:
        reading = store.topic("t")[0].read(
            isolation="read_committed", on_corruption="skip"
        )
        delivered = [record.offset for record in reading]
    assert mode == "raise" or found == delivered


@pytest.mark.parametrize("command", ["records", "export"])
@pytest.mark.parametrize("mode", ["skip", "raise"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("points", [None, "0\n0\n", "0\n1\nt 0 25\n"])
def test_intact_batches_after_a_bad_one_of_a_killed_broker_are_read(
    run: Any,
    tmp_path: Path,
    points: str | None,
    isolation: str,
    mode: str,
    command: str,
) -> None:
    """Without a recovery point, or below it, the bad batch is no torn tail: either one
    batch is missing, or everything from there on, and never only the bad one unread."""
    batches = [five(5 * number) for number in range(10)]
    path = directory(tmp_path, [*batches[:4], bad(batches[4]), *batches[5:]])
    if points is not None:
        (path / POINTS).write_text(points)
    found, listed, status = shown(run, command, path, mode, isolation)
    assert listed == ranges((20, 25 if mode == "skip" else 50))
    assert found == [offset for offset in range(50) if offset not in listed]
    assert status == 1


@pytest.mark.parametrize("command", ["records", "export"])
@pytest.mark.parametrize("points", [None, "0\n0\n"])
def test_torn_end_of_a_killed_broker_without_a_point_is_not_missing(
    run: Any, tmp_path: Path, points: str | None, command: str
) -> None:
    """No intact batch follows the bad one: each kill may leave that."""
    path = directory(tmp_path, [five(0), five(5), bad(five(10))])
    if points is not None:
        (path / POINTS).write_text(points)
    found = shown(run, command, path, "skip", "read_uncommitted")
    assert found == (ranges((0, 10)), [], 0)
