"""Consumer groups of real processes, in random histories (`group_histories`).

Members join, leave, are killed, hang, are expelled, fork, and commit, by offsets or by
transactions, without a daemon that coordinates them. No partition has two holders, no
committed offset goes back, only delivered records are committed, and each record is
delivered at least once, or has its effect once.
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from pathlib import Path

from faults.group_histories import History
from faults.method import Tally
from faults.watched import scratch
from faults.workers import spread

__all__ = ["COUNTS", "KINDS", "NAME", "UNIT", "history_of", "run"]

NAME = "groups"
UNIT = "histories"
COUNTS = {"commit": 80, "nightly": 3_000, "release": 10_000}

# Weight of each kind, of ten.
KINDS = {
    "commits": 2, "commits, evict": 1, "commits, evict, thrown out": 1,
    "commits, quiet": 2, "commits, handed over": 1,
    "transactions": 1, "transactions, evict": 1, "transactions, quiet": 1,
}  # fmt: skip
_IN_TURN = [kind for kind, often in KINDS.items() for _ in range(often)]


def run(count: int, seed: int, tally: Tally) -> None:
    """Runs `count` histories, of all kinds."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir=scratch()) as folder:
        tasks = [
            (folder, 1000 * seed + number, _IN_TURN[number % len(_IN_TURN)])
            for number in range(count)
        ]
        for failure in spread(history_of, tasks):
            if failure:
                tally.failed(failure)
            else:
                tally.passed()


def history_of(folder: str, seed: int, kind: str) -> str:
    """Run a history; return its problem, or ""."""
    own = Path(tempfile.mkdtemp(dir=folder))
    try:
        History(
            own / "store",
            seed,
            transactions="transactions" in kind,
            evicts="evict" in kind,
            is_quiet="quiet" in kind,
            hands_over="handed over" in kind,
            throws_out="thrown out" in kind,
        ).run()
    except Exception as error:
        where = traceback.format_exc()[-300:] if not str(error) else ""
        return f"seed {seed}, {kind}: {type(error).__name__}: {error} {where}"[:1500]
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return ""
