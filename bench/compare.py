"""Compare logstore with its rivals: ``python -m bench.compare`` from the repository.

Every case runs all its contestants in one process, in rotating order, `--rounds` times
after two rounds that do not count. Ratios are medians of the ratios of the rounds: of
rates, and of the work done in a CPU second ("by CPU"), which other load disturbs less.
The exit status is 0 also if a target is missed: a noisy machine is no failure. A rival
that is not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import report
from bench.cases import CASES
from bench.rounds import Case, LeftOut, Outcome, run_case

__all__ = ["format_left_out", "format_table", "main", "summary"]

_SCALES = {"rec": (1e6, "M rec/s"), "B": (1e9, "GB/s"), "op": (1e3, "k op/s")}
_COLUMNS = (
    ("case", "<"),
    ("ours", ">"),
    ("rival", "<"),
    ("theirs", ">"),
    ("unit", "<"),
    ("ratio", ">"),
    ("by CPU", ">"),
    ("target", ">"),
    ("", "<"),
    ("CPU-s/M ours", ">"),
    ("theirs", ">"),
)


def summary(case: Case, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row for each target of ours alone, one for each rival."""
    mine = outcomes[0]
    scale, unit = _SCALES[case.unit]
    ours = {
        "case": case.name,
        "conditions": case.conditions(),
        "note": case.note,
        "ours": mine.name,
        "unit": unit,
        "our_rate": mine.rate / scale,
        "our_cpu_s_per_million": _cpu(case, mine),
        "rounds": len(mine.timings),
    }
    alone = {
        "rival": "",
        "rival_rate": None,
        "ratio": None,
        "cpu_ratio": None,
        "rival_cpu_s_per_million": None,
    }
    rows = []
    if case.floor is not None:
        text = f"{case.floor / scale:g} {unit}"
        if case.unit == "op":
            text = f"{1e6 / case.floor:g} us"
        met = mine.rate >= case.floor
        rows.append({**ours, **alone, "target": text, "target_met": met})
    if case.cpu_max is not None:
        met = mine.cpu_per_million <= case.cpu_max
        text = f"{case.cpu_max:g} CPU-s/M"
        rows.append({**ours, **alone, "target": text, "target_met": met})
    for rival in outcomes[1:]:
        ratio = mine.ratio_to(rival)
        rows.append(
            {
                **ours,
                "rival": rival.name,
                "rival_rate": rival.rate / scale,
                "ratio": ratio,
                "cpu_ratio": mine.cpu_ratio_to(rival),
                "target": "" if rival.target is None else f"{rival.target:.3g} x",
                "target_met": None if rival.target is None else ratio >= rival.target,
                "rival_cpu_s_per_million": _cpu(case, rival),
            }
        )
    return rows


def _cpu(case: Case, outcome: Outcome) -> float:
    """CPU seconds per million of records or operations; per GB if bytes count."""
    return outcome.cpu_per_million * (1000 if case.unit == "B" else 1)


def format_left_out(case: str, left_out: Iterable[LeftOut]) -> str:
    """A line for each rival that could not run."""
    return "\n".join(f"{case}: without {path}: {why}" for path, why in left_out)


def format_table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as a Markdown table that is also readable as text."""
    lines = [[title for title, _ in _COLUMNS]]
    for row in rows:
        met = {None: "", True: "met", False: "missed"}[row["target_met"]]
        lines.append(
            [
                row["case"],
                _number(row["our_rate"]),
                row["rival"],
                _number(row["rival_rate"]),
                row["unit"],
                "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                "" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}",
                row["target"],
                met,
                _number(row["our_cpu_s_per_million"]),
                _number(row["rival_cpu_s_per_million"]),
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    text = [_line(line, widths) for line in lines]
    rule = [
        "-" * (w - 1) + (":" if align == ">" else "-")
        for w, (_, align) in zip(widths, _COLUMNS, strict=True)
    ]
    text.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(text)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = (
        f"{cell:{align}{width}}"
        for cell, width, (_, align) in zip(cells, widths, _COLUMNS, strict=True)
    )
    return "| " + " | ".join(aligned) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument(
        "--quick", action="store_true", help="3 rounds, a quarter of the records"
    )
    parser.add_argument("--rounds", type=int, help="rounds that count (default 9)")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the rows there, too (- for stdout instead of the table)",
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        help="cases whose name contains NAME (may be repeated)",
    )
    parser.add_argument(
        "--without",
        metavar="NAME",
        action="append",
        default=[],
        help="leave out cases whose name contains NAME (may be repeated)",
    )
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    return parser.parse_args(argv)


def _records(case: Case, quick: bool) -> int:
    if not quick:
        return case.records
    return max(case.records // 4 // case.batch, 1) * case.batch


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    chosen = [
        c
        for c in CASES
        if not options.only or any(name in c.name for name in options.only)
        if not any(name in c.name for name in options.without)
    ]
    if options.list:
        print("\n".join(c.name for c in chosen))
        return 0
    if not chosen:
        print(f"no case is called {', '.join(options.only)}", file=sys.stderr)
        return 2
    rounds = options.rounds or (3 if options.quick else 9)
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    for case in chosen:
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        records = _records(case, options.quick)
        outcomes, left_out = run_case(case, rounds, records)
        if left_out:
            print(format_left_out(case.name, left_out), file=sys.stderr)
        rows += summary(case, outcomes)
        if options.json and options.json != "-":
            # After each case: the whole takes long.
            report.write(options.json, rows)
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    if options.json == "-":
        report.write("-", rows)
        return 0
    print(format_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
