"""The `contest` fixture: a benchmark of ours with its rivals in between the rounds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).resolve().parents[1])
if (
    ROOT not in sys.path
):  # for `pytest bench`, which does not add it as `python -m` does
    sys.path.insert(0, ROOT)

from bench.cases import case_of  # noqa: E402 - needs the path above
from bench.compare import format_left_out, format_table, summary  # noqa: E402
from bench.rounds import Timing, ring, time_once  # noqa: E402

ROUNDS = 7

_rows: list[dict[str, Any]] = []
_left_out: list[str] = []


@pytest.fixture
def contest(benchmark: Any) -> Callable[[str], None]:
    """Run a case by name. pytest-benchmark times ours; in the set-up of each of its
    rounds every rival has one, so that noise hits all of them."""

    def run(name: str) -> None:
        case = case_of(name)
        with ring(case) as entered:
            entered.warm_up()
            mine, *rivals = entered.contestants
            outcome, *others = entered.outcomes
            results: list[Any] = []

            def settle() -> None:
                while results:
                    mine.after(results.pop())

            def setup() -> None:
                settle()
                for rival, other in zip(rivals, others, strict=True):
                    other.timings.append(time_once(rival))
                mine.before()

            def work() -> None:
                timing, result = Timing.of(mine)
                outcome.timings.append(timing)
                results.append(result)

            benchmark.pedantic(work, setup=setup, rounds=ROUNDS)
            settle()
            rows = summary(case, entered.outcomes)
        benchmark.extra_info.update(case.conditions(), contest=rows)
        _rows.extend(rows)
        if entered.left_out:
            _left_out.append(format_left_out(case.name, entered.left_out))

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what `bench.compare` prints."""
    if _rows:
        terminalreporter.section("ours against rivals, ratios of the same rounds")
        terminalreporter.write_line(format_table(_rows))
        terminalreporter.write_line("\n".join(_left_out))
