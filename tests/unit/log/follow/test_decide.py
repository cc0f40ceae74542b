"""The decision about a log that changes, row by row of the table in docs/design.md: two
looks in, a change out, without a disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logstore.io.checkpoint.cuts import NO_CUT, Cuts
from logstore.log.follow.decide import CASES, Which, decide
from logstore.log.follow.observed import Bytes, End, Observed, SeenFile

DESIGN = Path(__file__).parents[4] / "docs" / "design.md"

# Three segments, [0, 10), [10, 20) and [20, 25), read at two of its ends.
FILES = (
    SeenFile(0, 10, 100, 1),
    SeenFile(10, 20, 100, 2),
    SeenFile(20, 25, 50, 3),
)
ENDS = (End(20, 10, 100), End(23, 20, 30), End(25, 20, 50))
SEALED = tuple(file._replace(is_sealed=file.base < 20) for file in FILES)
OWN = Observed(
    False, (1, 1), 0, 25, FILES, ENDS, log_id="id", durable=20, writer=(9, 9, 9, 9)
)
BROKER = OWN._replace(is_foreign=True, files=SEALED, log_id="", durable=0, writer=None)
KNOWN = BROKER._replace(log_id="id")
EPOCHS = ((0, 0),)
LED = BROKER._replace(epochs=EPOCHS)

ALL_STAND = Bytes(frozenset(ENDS))
NONE_STAND = Bytes(frozenset())


def first_stand(count: int) -> Bytes:
    """The bytes before the first `count` former ends are unchanged."""
    return Bytes(frozenset(ENDS[:count]))


def files(*changed: SeenFile, drop: tuple[int, ...] = ()) -> tuple[SeenFile, ...]:
    """The former files, with `changed` in place, and without offsets in `drop`."""
    by_base = {file.base: file for file in FILES}
    by_base.update({file.base: file for file in changed})
    return tuple(by_base[base] for base in sorted(by_base) if base not in drop)


def sealed(*changed: SeenFile, drop: tuple[int, ...] = ()) -> tuple[SeenFile, ...]:
    """The same of a broker's log."""
    found = files(*changed, drop=drop)
    return tuple(file._replace(is_sealed=file is not found[-1]) for file in found)


# The last segment has grown, also by a segment.
GROWN = files(SeenFile(20, 30, 100, 3))
ROLLED = files(SeenFile(20, 30, 100, 3), SeenFile(30, 35, 50, 4))
GROWN_AGAIN = files(SeenFile(20, 40, 200, 3))
CUT_22 = Cuts().after(22)
TAKEN_BACK = Cuts().after(5, is_return=True)
GROWN_BACK = {"files": GROWN, "end": 30, "cuts": TAKEN_BACK}

GONE, SHORTER = SeenFile(10, 20, 100, -1), SeenFile(10, 20, 90, 2)
LOST = OWN._replace(damage="lost", files=files(GONE))
LOST_LAST = OWN._replace(damage="lost", files=files(SeenFile(20, 25, 50, -1)))
BACK = {"damage": "", "files": FILES}


class Row(NamedTuple):
    """Two looks, and what is decided.

    Attributes:
        before: the log at the first.
        now: what is different at the second; the bytes stand unless it says otherwise.
        cut_to, replaced, why: of the `Change`.
        log: of the `Change`.
    """

    before: Observed
    now: dict[str, Any]
    cut_to: int = NO_CUT
    replaced: tuple[int, ...] = ()
    why: str = ""
    log: Which = Which.SAME


def other(before: Observed, why: str, **now: Any) -> Row:
    return Row(before, now, NO_CUT, (0, 10, 20), why, Which.OTHER)


ROWS = {
    # -------------------------------------------------------- nothing but the end
    "own-as-it-was": Row(OWN, {}),
    "own-grown": Row(OWN, {"files": GROWN, "end": 30}),
    "own-rolled": Row(OWN, {"files": ROLLED, "end": 35}),
    "own-records-deleted": Row(OWN, {"start": 12, "files": files(drop=(0,))}),
    "own-all-deleted": Row(
        OWN, {"start": 40, "files": (SeenFile(40, 45, 9, 7),), "bytes": NONE_STAND}
    ),
    "broker-grown": Row(BROKER, {"files": sealed(*GROWN), "end": 30}),
    "broker-rolled": Row(BROKER, {"files": sealed(*ROLLED), "end": 35}),
    "broker-records-deleted": Row(BROKER, {"start": 10, "files": sealed(drop=(0,))}),
    # -------------------------------------------------------- another log
    "another-directory": other(OWN, "other-directory", place=(1, 2)),
    "another-directory-of-a-broker": other(BROKER, "other-directory", place=(1, 2)),
    "another-directory-of-an-empty-log": Row(
        OWN._replace(files=(), ends=()),
        {"place": (1, 2)},
        why="other-directory",
        log=Which.OTHER,
    ),
    "another-topic-in-the-same-place": other(OWN, "other-id", log_id="new"),
    "id-unknown-before": Row(OWN._replace(log_id=""), {"log_id": "id"}),
    "id-unknown-now": Row(OWN, {"log_id": ""}),
    "backup-with-older-cuts": other(
        OWN._replace(cuts=CUT_22), "older-state", cuts=Cuts()
    ),
    "backup-with-an-older-start": other(
        OWN._replace(start=12, files=FILES[1:]), "older-state", start=0
    )._replace(replaced=(10, 20)),
    "backup-with-less-that-is-durable": other(OWN, "older-state", durable=19),
    "durable-offset-that-a-cut-lowered": Row(
        OWN, {"cuts": Cuts().after(15), "durable": 15}, 15, (10, 20), "cut"
    ),
    # -------------------------------------------------------- damage
    "same-damage-that-a-broker-appends-behind": Row(
        BROKER._replace(damage="broken"),
        {
            "damage": "broken",
            "files": sealed(SeenFile(20, 25, 90, 3)),
            "bytes": None,
        },
        why="same-damage",
    ),
    "same-damage-and-another-last-file": Row(
        BROKER._replace(damage="broken"),
        {"damage": "broken", "files": sealed(SeenFile(20, 25, 50, 8))},
        25,
        (20,),
        "other-bytes",
    ),
    "same-damage-and-a-segment-more": Row(
        BROKER._replace(damage="broken"),
        {"damage": "broken", "files": sealed(*ROLLED), "end": 35},
    ),
    "same-damage-and-a-segment-behind-it": Row(
        OWN._replace(damage="broken"),
        {"damage": "broken", "files": (*FILES, SeenFile(30, 35, 50, 4))},
    ),
    "lost-file-and-new-writer": Row(
        OWN,
        {"damage": "lost", "writer": (8, 8, 8, 8), "files": files(drop=(10,))},
        replaced=(0, 10, 20),
        why="new-writer",
    ),
    "lost-end-and-new-writer": Row(
        OWN,
        {"damage": "lost", "writer": (8, 8, 8, 8), "bytes": first_stand(2)},
        23,
        (0, 10, 20),
        "other-bytes new-writer",
    ),
    "all-files-are-gone": Row(
        OWN, {"files": (), "end": 0, "bytes": NONE_STAND}, 0, (0, 10, 20), "lost-files"
    ),
    "a-file-in-the-middle-is-gone": Row(
        OWN, {"files": files(drop=(10,))}, 25, (10,), "lost-files"
    ),
    "lost-file-is-told-by-reads": Row(
        OWN,
        {
            "damage": "lost",
            "files": files(SeenFile(20, 25, 0, -1)),
            "bytes": first_stand(1),
        },
        replaced=(20,),
    ),
    "lost-end-is-told-by-reads": Row(
        OWN,
        {
            "damage": "lost",
            "files": files(SeenFile(20, 23, 30, 3)),
            "bytes": first_stand(2),
        },
        replaced=(20,),
    ),
    "lost-file-is-back": Row(LOST, BACK, replaced=(10,)),
    "lost-last-file-is-back": Row(LOST_LAST, BACK, replaced=(20,)),
    "lost-last-file-is-back-with-other-bytes": Row(
        LOST_LAST, {**BACK, "bytes": first_stand(1)}, 20, (20,), "other-bytes"
    ),
    "lost-file-is-back-and-shorter": Row(
        LOST, {**BACK, "files": files(SHORTER)}, 25, (10,), "lost-files"
    ),
    "lost-file-of-a-broker-is-back": Row(
        BROKER._replace(files=sealed(GONE)), {"files": SEALED}, replaced=(10,)
    ),
    # -------------------------------------------------------- cut, by logstore
    "own-cut": Row(
        OWN,
        {"cuts": CUT_22, "end": 22, "files": files(SeenFile(20, 22, 20, 3))},
        22,
        (20,),
        "cut",
    ),
    "own-cut-and-grown": Row(
        OWN,
        {
            "cuts": CUT_22,
            "end": 40,
            "files": GROWN_AGAIN,
            "bytes": first_stand(1),
        },
        22,
        (20,),
        "cut",
    ),
    "own-cut-at-its-end-and-grown": Row(
        OWN, {"cuts": Cuts().after(25), "files": GROWN, "end": 30}, 25, (), "cut"
    ),
    "own-cut-below-its-last-segment-and-rolled-there-again": Row(
        OWN,
        {
            "cuts": Cuts().after(15),
            "durable": 15,
            "end": 45,
            "files": files(SeenFile(20, 45, 300, 3)),
            "bytes": NONE_STAND,
        },
        15,
        (10, 20),
        "cut",
    ),
    # -------------------------------------------------------- compacted, by logstore
    "own-compacted": Row(
        OWN,
        {"compactions": 1, "files": files(SeenFile(0, 20, 60, 8), drop=(10,))},
        why="compacted",
    ),
    "own-compacted-behind-the-last-look": Row(
        OWN,
        {
            "compactions": 1,
            "files": files(
                SeenFile(10, 20, 60, 8),
                SeenFile(20, 30, 60, 9),
                SeenFile(30, 31, 10, 4),
            ),
            "end": 31,
            "bytes": NONE_STAND,
        },
        why="compacted",
    ),
    "own-compacted-by-a-new-writer": Row(
        OWN,
        {
            "compactions": 1,
            "files": files(SeenFile(0, 10, 60, 8)),
            "writer": (8, 8, 8, 8),
        },
        replaced=(10, 20),
        why="compacted new-writer",
    ),
    "own-compacted-cut-and-grown": Row(
        OWN,
        {
            "compactions": 1,
            "cuts": CUT_22,
            "files": files(SeenFile(0, 20, 60, 8), *GROWN_AGAIN[2:], drop=(10,)),
            "end": 40,
            "bytes": NONE_STAND,
        },
        22,
        (20,),
        "cut compacted",
    ),
    "own-compacted-and-a-backup-over-the-last-file": Row(
        OWN,
        {
            "compactions": 1,
            "files": files(SeenFile(10, 20, 60, 8)),
            "bytes": Bytes(frozenset({ENDS[1]})),
        },
        23,
        (20,),
        "other-bytes compacted",
    ),
    # -------------------------------------------------------- a backup was put back
    "new-writer": Row(
        OWN, {"writer": (8, 8, 8, 8)}, replaced=(0, 10, 20), why="new-writer"
    ),
    "backup-over-the-same-files": Row(
        OWN, {"bytes": first_stand(2)}, 23, (20,), "other-bytes"
    ),
    "backup-over-the-same-files-that-was-cut": Row(
        OWN,
        {"cuts": Cuts().after(24), "bytes": first_stand(1), "files": GROWN},
        20,
        (20,),
        "cut other-bytes",
    ),
    "backup-of-one-file": Row(
        OWN,
        {"files": files(SeenFile(10, 20, 100, 8)), "bytes": NONE_STAND},
        10,
        (10, 20),
        "other-file",
    ),
    # It seems to be a copy: the former file is not open, and its last bytes are equal.
    "copy-of-a-file": Row(
        OWN,
        {"files": files(SeenFile(20, 25, 50, 8)), "bytes": ALL_STAND},
        NO_CUT,
        (20,),
        "",
    ),
    "backup-of-an-empty-file": Row(
        OWN._replace(
            files=(*FILES, SeenFile(25, 25, 0, 4)), ends=(*ENDS, End(25, 25, 0))
        ),
        {
            "files": (*FILES, SeenFile(25, 25, 0, 8)),
            "bytes": Bytes(frozenset([*ENDS, End(25, 25, 0)])),
        },
        25,
        (25,),
        "lost-files",
    ),
    "copy-of-one-file": Row(
        OWN,
        {
            "files": files(SeenFile(10, 20, 100, 8)),
            "bytes": Bytes(frozenset(ENDS), frozenset({10})),
        },
    ),
    "backup-without-the-last-file": Row(
        OWN,
        {"files": files(drop=(20,)), "end": 20, "bytes": first_stand(1)},
        20,
        (20,),
        "other-bytes",
    ),
    "backup-without-a-file-in-which-no-end-was-seen": Row(
        OWN._replace(ends=ENDS[:1], end=20),
        {"files": files(drop=(20,)), "end": 20},
        20,
        (20,),
        "lost-files",
    ),
    # -------------------------------------------------------- another program
    "broker-truncated": Row(
        BROKER,
        {"files": sealed(SeenFile(20, 23, 30, 3)), "bytes": first_stand(2)},
        23,
        (20,),
        "other-bytes",
    ),
    "broker-truncated-and-grown": Row(
        BROKER,
        {"files": sealed(*GROWN_AGAIN), "end": 40, "bytes": first_stand(2)},
        23,
        (20,),
        "other-bytes",
    ),
    "broker-truncated-below-its-last-segment-and-grown": Row(
        BROKER,
        {
            "files": sealed(SeenFile(10, 40, 300, 2), drop=(20,)),
            "end": 40,
            "bytes": NONE_STAND,
        },
        10,
        (10, 20),
        "other-bytes",
    ),
    "broker-truncated-where-a-segment-began": Row(
        BROKER,
        {"files": sealed(drop=(20,)), "end": 20, "bytes": first_stand(1)},
        20,
        (20,),
        "other-bytes",
    ),
    "broker-truncated-and-rolled-inside-of-a-former-segment": Row(
        BROKER,
        {
            "files": (
                SeenFile(0, 10, 100, 1, True),
                SeenFile(10, 15, 50, 2, True),
                SeenFile(15, 40, 250, 4),
            ),
            "end": 40,
            "bytes": NONE_STAND,
        },
        10,
        (10, 20),
        "other-bytes",
    ),
    "empty-last-segment-of-a-broker-that-truncated-and-rolled-there-again": Row(
        BROKER._replace(
            end=20,
            files=(*SEALED[:2], SeenFile(20, 20, 0, 3)),
            ends=(ENDS[0], End(20, 20, 0)),
        ),
        {"bytes": Bytes(frozenset({End(20, 20, 0)}))},
        10,
        (10, 20),
        "other-bytes",
    ),
    "broker-with-other-epochs": Row(
        LED,
        {"epochs": (*EPOCHS, (1, 22), (2, 24)), "files": sealed(*GROWN)},
        22,
        (20,),
        "epochs",
    ),
    "broker-with-another-epoch-and-a-lower-end": Row(
        LED,
        {"epochs": (*EPOCHS, (1, 23)), "end": 22, "bytes": first_stand(1)},
        22,
        (20,),
        "epochs",
    ),
    "broker-with-an-epoch-behind-what-was-read": Row(
        LED, {"epochs": (*EPOCHS, (1, 25)), "files": sealed(*GROWN)}
    ),
    "broker-with-the-same-epochs-and-a-lower-end": Row(
        LED,
        {
            "epochs": EPOCHS,
            "files": sealed(SeenFile(20, 22, 20, 3)),
            "end": 22,
            "bytes": first_stand(1),
        },
        22,
        (20,),
        "other-bytes",
    ),
    "broker-compacted": Row(
        BROKER, {"files": sealed(SeenFile(0, 10, 60, 8))}, NO_CUT, (0,), "compacted"
    ),
    "backup-over-a-file-that-a-broker-has-compacted": Row(
        LED, {"files": sealed(SeenFile(0, 10, 140, 1))}, NO_CUT, (0,), "compacted"
    ),
    "broker-compacted-two-into-one": Row(
        LED,
        {"epochs": EPOCHS, "files": sealed(SeenFile(0, 20, 150, 8), drop=(10,))},
        replaced=(0, 10),
        why="compacted",
    ),
    "broker-compacted-two-into-one-without-epochs": Row(
        BROKER,
        {"files": sealed(SeenFile(0, 20, 150, 8), drop=(10,))},
        25,
        (0, 10),
        "compacted other-bytes",
    ),
    "broker-rewrote-its-last-segment-and-rolled": Row(
        LED,
        {
            "epochs": EPOCHS,
            "files": sealed(SeenFile(20, 30, 60, 3), SeenFile(30, 31, 9, 9)),
            "end": 31,
            "bytes": first_stand(1),
        },
        20,
        (20,),
        "other-bytes",
    ),
    "broker-truncated-its-only-segment": Row(
        BROKER._replace(files=SEALED[:1], ends=(End(10, 0, 100),), end=10),
        {"files": (SeenFile(0, 5, 40, 1),), "end": 5, "bytes": NONE_STAND},
        0,
        (0,),
        "other-bytes",
    ),
    "broker-compacted-and-another-epoch": Row(
        LED,
        {
            "epochs": (*EPOCHS, (1, 22)),
            "files": sealed(SeenFile(0, 10, 60, 8), *GROWN_AGAIN[2:]),
            "end": 40,
            "bytes": first_stand(1),
        },
        22,
        (0, 20),
        "compacted epochs",
    ),
    "broker-compacted-and-truncated": Row(
        BROKER,
        {
            "files": sealed(SeenFile(0, 10, 60, 8), SeenFile(20, 40, 99, 3)),
            "end": 40,
            "bytes": first_stand(2),
        },
        23,
        (0, 20),
        "compacted other-bytes",
    ),
    "broker-rolled-and-compacted": Row(
        LED,
        {
            "epochs": EPOCHS,
            "files": sealed(SeenFile(20, 30, 60, 8), SeenFile(30, 31, 9, 9)),
            "end": 31,
            "bytes": first_stand(1),
        },
        replaced=(20,),
        why="compacted",
    ),
    "broker-rolled-and-compacted-without-epochs": Row(
        BROKER,
        {
            "files": sealed(SeenFile(20, 30, 60, 8), SeenFile(30, 31, 9, 9)),
            "end": 31,
            "bytes": first_stand(1),
        },
        20,
        (20,),
        "other-bytes",
    ),
    "broker-takes-over": Row(
        OWN,
        {
            "is_foreign": True,
            "files": sealed(*GROWN),
            "end": 30,
            "writer": None,
            "durable": 0,
        },
    ),
    "broker-takes-over-and-truncates": Row(
        OWN,
        {"is_foreign": True, "files": sealed(*GROWN), "bytes": first_stand(2)},
        23,
        (20,),
        "other-bytes",
    ),
    "broker-gives-back": Row(
        BROKER._replace(durable=25),
        {
            "is_foreign": False,
            "files": GROWN,
            "end": 30,
            "log_id": "id",
            "durable": 20,
        },
    ),
    "broker-gives-back-and-the-owner-cuts": Row(
        BROKER,
        {
            "is_foreign": False,
            "files": GROWN,
            "cuts": Cuts().after(24),
            "bytes": first_stand(2),
        },
        23,
        (20,),
        "other-bytes",
    ),
    "broker-takes-over-after-the-owner-has-cut": Row(
        OWN._replace(ends=(End(25, 20, 0),)),
        {
            "is_foreign": True,
            "files": sealed(*GROWN),
            "end": 30,
            "cuts": CUT_22,
            "writer": None,
            "durable": 0,
            "bytes": Bytes(frozenset({End(25, 20, 0)})),
        },
        22,
        (20,),
        "cut",
    ),
    "owner-takes-back-and-cuts": Row(
        BROKER._replace(log_id="id", cuts=CUT_22),
        {
            "is_foreign": False,
            "files": GROWN,
            "end": 30,
            "cuts": CUT_22.after(23, is_return=True).after(24),
        },
        24,
        (20,),
        "cut",
    ),
    "owner-takes-back": Row(KNOWN, GROWN_BACK | {"is_foreign": False}),
    "owner-takes-back-and-cuts-above-the-end-that-was-seen": Row(
        KNOWN, GROWN_BACK | {"is_foreign": False, "cuts": TAKEN_BACK.after(28)}
    ),
    # The broker knew neither the start nor the durable offset.
    "broker-had-it-between": Row(OWN._replace(start=12), GROWN_BACK | {"durable": 0}),
    "broker-had-it-between-and-has-cut": Row(
        OWN, GROWN_BACK | {"bytes": first_stand(2)}, 23, (20,), "other-bytes"
    ),
    "broker-had-it-after-the-owner-has-cut": Row(
        OWN, GROWN_BACK | {"cuts": CUT_22.after(23, is_return=True)}, 22, (20,), "cut"
    ),
    "broker-puts-segments-back-in-front": Row(
        BROKER._replace(start=10, files=SEALED[1:]), {"start": 0, "files": SEALED}
    ),
    "nothing-was-there-yet": Row(
        OWN._replace(files=(), ends=(), end=0, durable=0), {"files": FILES, "end": 25}
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_change_between_two_looks_is_that_of_the_table(name: str) -> None:
    """Each case alone, and cases that occur together."""
    row = ROWS[name]
    change = decide(row.before, row.before._replace(**{"bytes": ALL_STAND} | row.now))
    assert change.log is row.log
    assert change.cut_to == row.cut_to
    assert sorted(change.replaced) == list(row.replaced)
    assert " ".join(change.why) == row.why
    assert change.is_any == bool(
        row.replaced or row.log is Which.OTHER or row.cut_to != NO_CUT
    )


@pytest.mark.parametrize("name", ROWS)
def test_decision_without_the_bytes_is_the_same_or_asks_for_them(name: str) -> None:
    """A look that has not read them reports this, unless they do not matter."""
    row = ROWS[name]
    now = row.before._replace(**{"bytes": ALL_STAND} | row.now)
    change = decide(row.before, now._replace(bytes=None))
    assert change.log is Which.UNKNOWN or change == decide(row.before, now)


@pytest.mark.parametrize("name", ROWS)
def test_log_that_did_not_change_since_is_the_same(name: str) -> None:
    """The state found by one look is the earlier log of the next."""
    row = ROWS[name]
    now = row.before._replace(**row.now)
    change = decide(now, now._replace(bytes=Bytes(frozenset(now.ends))))
    assert (change.log, change.is_any) == (Which.SAME, False)


def test_cases_are_those_of_the_table() -> None:
    """The code has the table of the design, and each label a row here."""
    text = DESIGN.read_text(encoding="utf-8")
    _, _, chapter = text.partition("\n## What a reader sees of a log that changes\n")
    chapter, _, _ = chapter.partition("\n## ")
    labels = re.findall(r"^\| `([a-z-]+)` \|", chapter, re.MULTILINE)
    assert labels == list(CASES)
    assert set(CASES) == {label for row in ROWS.values() for label in row.why.split()}
