"""Makes the tables and the plots of docs/benchmarks.md from measurements, and the table
of docs/services.md.

    python docs/make_benchmarks.py            # the tables in both
    python docs/make_benchmarks.py --plots    # and docs/images/bench-*.svg

The measurements are in docs/measurements/: the JSON that the programs of bench/ write.
`make bench-page` measures everything and runs this. Plots need matplotlib, which is in
the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

DOCS = Path(__file__).parent
PAGE = DOCS / "benchmarks.md"
SERVICES = DOCS / "services.md"
MEASUREMENTS = DOCS / "measurements"
IMAGES = DOCS / "images"

Row = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """The measurements of one program."""
    found: dict[str, Any] = json.loads((MEASUREMENTS / f"{name}.json").read_text())
    return found


# ---------------------------------------------------------------------- tables


def number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of Markdown; a ">" before the name of a column aligns it right."""
    yield "| " + " | ".join(name.lstrip(">") for name in head) + " |"
    rules = ("---:" if name.startswith(">") else "---" for name in head)
    yield "| " + " | ".join(rules) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def compared(name: str) -> Iterator[str]:
    """What `bench.compare` has measured."""

    def cells(row: Row) -> list[str]:
        met = {None: "", True: " met", False: " **missed**"}[row["target_met"]]
        return [
            f"`{row['case']}`",
            row["rival"] or "(alone)",
            row["unit"],
            number(row["our_rate"]),
            number(row["rival_rate"]),
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}",
            f"{row['target']}{met}",
            number(row["our_cpu_s_per_million"]),
            number(row["rival_cpu_s_per_million"]),
        ]

    head = ("case", "rival", "unit", ">ours", ">theirs", ">ratio", ">by CPU", "target")
    rows = load(name)["rows"]
    yield from table((*head, ">CPU-s ours", ">CPU-s theirs"), map(cells, rows))


def durable() -> Iterator[str]:
    """What `bench.durable` has measured."""
    head = (">threads", "contestant", ">p50, us", ">p99, us", ">records/s", ">CPU-s/M")
    yield from table(
        head,
        (
            [
                str(row["threads"]),
                row["contestant"],
                f"{row['p50_us']:,.0f}",
                f"{row['p99_us']:,.0f}",
                f"{row['rate']:,.0f}",
                f"{row['cpu_s_per_million']:,.0f}",
            ]
            for row in load("durable")["rows"]
        ),
    )


def both() -> Iterator[str]:
    """What `bench.live` has measured with a reader in the same process."""
    head = ("magic", "syncs", ">M rec/s in", ">M rec/s out", ">cores used")
    yield from table(
        head,
        (
            [
                str(row["magic"]),
                "each 10,000 records" if row["synced"] else "none",
                f"{row['in_per_s'] / 1e6:.3f}",
                f"{row['out_per_s'] / 1e6:.3f}",
                f"{row['cores_used']:.2f}",
            ]
            for row in load("live")["rows"]
            if row["case"] == "both"
        ),
    )


def follow() -> Iterator[str]:
    """What `bench.live` has measured with a follower in another process."""
    head = ("magic", ">p50, us", ">p99, us", ">CPU while idle, %")
    yield from table(
        head,
        (
            [
                str(row["magic"]),
                f"{row['p50_us']:,.0f}",
                f"{row['p99_us']:,.0f}",
                f"{row['idle_cpu_percent']:.3f}",
            ]
            for row in load("follow")["rows"]
            if row["case"] == "follow"
        ),
    )


def backlog() -> Iterator[str]:
    """What `bench.backlog` has measured of calls."""
    rows = [row for row in load("backlog")["rows"] if row["case"] == "calls"]
    lengths = sorted({row["records"] for row in rows})
    times = {(r["call"], r["contestant"], r["records"]): r["us"] for r in rows}
    pairs = dict.fromkeys((call, contestant) for call, contestant, _ in times)
    head = ("call", "contestant", *(f">us at {length:,}" for length in lengths))
    yield from table(
        head,
        (
            [
                call,
                contestant,
                *(number(times.get((call, contestant, length))) for length in lengths),
            ]
            for call, contestant in sorted(pairs)
        ),
    )


def memory() -> Iterator[str]:
    """What `bench.backlog` has measured of memory."""
    yield from table(
        ("way", ">GiB", ">most memory, MB", ">seconds"),
        (
            [row["way"], str(row["gib"]), f"{row['mb']:.0f}", f"{row['seconds']:.1f}"]
            for row in load("backlog")["rows"]
            if row["case"] == "memory"
        ),
    )


def conditions() -> Iterator[str]:
    """When, where and with which versions each program has run."""

    def cells(name: str) -> list[str]:
        found = load(name)
        packages = ", ".join(f"{k} {v}" for k, v in found["packages"].items())
        return [
            f"`{name}.json`",
            found["date"],
            f"{found['system']}, {found['machine']}, {found['cores']} cores",
            f"Python {found['python']}, {packages}",
            f"{found['load'][0]:g}",
        ]

    names = sorted(path.stem for path in MEASUREMENTS.glob("*.json"))
    head = ("measurements", "date", "machine", "versions", ">load at the end")
    yield from table(head, map(cells, names))


def services(rows: Sequence[Row] | None = None) -> Iterator[str]:
    """What `bench.services` has measured; its rows: it prints them with this."""

    def shown(value: float | None, unit: str) -> str:
        space = "" if unit == "/s" else " "
        return "" if value is None else f"{number(value)}{space}{unit}"

    def cells(row: Row) -> list[str]:
        met = {None: "", True: " met", False: " **missed**"}[row["met"]]
        ratio = row["ratio"]
        return [
            row["measure"],
            shown(row["ours"], row["unit"]),
            row["rival"],
            shown(row["theirs"], row["unit"]),
            "" if ratio is None else f"{ratio:.2f}" if ratio < 100 else number(ratio),
            f"{row['target']}{met}",
        ]

    found = load("services")["rows"] if rows is None else rows
    head = ("measure", ">logstore", "rival", ">rival's", ">ratio", "target")
    yield from table(head, map(cells, found))


# Of the first table of the page: what is done, a case, and its rival.
_FIRST: Final = (
    ("append 1,000 records in a call", "append_many", "LMDB putmulti"),
    ("append 1,000 records in a call", "append_many", "SQLite executemany"),
    ("append one record in a call", "append", "SQLite insert"),
    ("append one record in a call, synced", "durable", "SQLite insert, synced"),
    ("read records", "read", "LMDB cursor"),
    ("read records", "read", "SQLite select"),
    ("read Arrow batches", "read_arrow", "parquet reader"),
    ("get a record by its offset", "get", "LMDB get"),
)


def first() -> Iterator[str]:
    """The numbers that most readers look for, of all measurements."""
    rows = {(row["case"], row["rival"]): row for row in load("compare")["rows"]}
    head = ("one thread", "beside", ">logstore, records/s", ">ratio")
    scale = {"M rec/s": 1e6, "k op/s": 1e3}

    def cells() -> Iterator[list[str]]:
        for what, case, rival in _FIRST:
            row = rows[case, rival]
            rate = row["our_rate"] * scale[row["unit"]]
            yield [what, rival, f"{rate:,.0f}", f"{row['ratio']:.2f}"]
        for row in load("live")["rows"]:
            if row["case"] == "both" and row["magic"] == 1:
                syncs = "with the default flush policy" if row["synced"] else "unsynced"
                out = f"a reader of {row['out_per_s']:,.0f} records/s"
                yield [f"append, {syncs}", out, f"{row['in_per_s']:,.0f}", ""]

    yield from table(head, cells())


Tables = dict[str, Callable[[], Iterator[str]]]
TABLES: Final[Tables] = {
    "first": first,
    "conditions": conditions,
    "compare": lambda: compared("compare"),
    "sizes": lambda: compared("sizes"),
    "durable": durable,
    "both": both,
    "follow": follow,
    "backlog": backlog,
    "memory": memory,
}
TABLES_OF_SERVICES: Final[Tables] = {"services": services}


def page(text: str, tables: Tables = TABLES) -> str:
    """The text of a page with its tables as the measurements have them."""
    for name, lines in tables.items():
        begin = f"<!-- {name}: docs/make_benchmarks.py -->"
        end = f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"a page has no {begin!r} with {end!r} after it")
        text = f"{before}{begin}\n" + "\n".join(lines()) + f"\n{end}{after}"
    return text


# ---------------------------------------------------------------------- plots

_COLORS: Final = {
    "logstore": "#1f6fb4",
    "logstore Arrow": "#6baed6",
    "LMDB": "#d9822b",
    "RocksDB": "#3f8f4f",
    "SQLite": "#8a5fb0",
    "aiokafka": "#b03a48",
    "parquet": "#7a7a7a",
    "raw": "#222222",
}
_VALUE_BYTES: Final = {"10b": 10, "1k": 1 << 10, "10k": 10 << 10, "1m": 1 << 20}


def _short(contestant: str) -> str:
    """The name of a contestant as the plots have it."""
    if contestant.startswith("os."):
        return "raw"
    named = (name for name in sorted(_COLORS, key=len) if name in contestant)
    return max(named, key=len, default=contestant)


def rates_by_size(work: str) -> dict[str, dict[int, float]]:
    """MB of values in a CPU second, of each contestant, by bytes of a value."""
    found: dict[str, dict[int, float]] = {}
    cases = {work: 100, **{f"{work}_{k}": size for k, size in _VALUE_BYTES.items()}}
    for row in (*load("compare")["rows"], *load("sizes")["rows"]):
        size = cases.get(row["case"])
        if size is None or not row["rival"]:
            continue
        for name, key in (
            (row["ours"], "our_cpu_s_per_million"),
            (row["rival"], "rival_cpu_s_per_million"),
        ):
            found.setdefault(_short(name), {})[size] = size / row[key]
    everywhere = len(cases)
    return {name: rates for name, rates in found.items() if len(rates) == everywhere}


def _lines(axes: Any, series: dict[str, dict[int, float]], **style: Any) -> None:
    """Draw the series on a logarithmic scale of at least a decade."""
    axes.set_yscale("log")
    for name, points in series.items():
        xs = sorted(points)
        axes.plot(
            xs,
            [points[x] for x in xs],
            marker="o",
            markersize=3,
            color=_COLORS.get(name),
            label=name,
            **style,
        )
    axes.grid(True, which="major", linewidth=0.4)
    values = [value for points in series.values() for value in points.values()]
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, min(values) / 3), max(high, max(values) * 3))
    axes.minorticks_off()


def plot_sizes(plt: Any) -> Any:
    """Bytes of values in a CPU second by their size, beside the rivals."""
    figure, panels = plt.subplots(1, 4, figsize=(13, 3.6))
    for axes, work in zip(
        panels, ("append_many", "append_arrow", "read", "read_arrow"), strict=True
    ):
        _lines(axes, rates_by_size(work))
        axes.set(xscale="log", title=work, xlabel="bytes of a value")
        axes.minorticks_off()
        axes.legend(fontsize=7)
    panels[0].set_ylabel("MB of values in a second of CPU")
    return figure


def plot_durable(plt: Any) -> Any:
    """Time of a durable append by threads."""
    figure, axes = plt.subplots(figsize=(7, 4))
    rows = load("durable")["rows"]
    for key, style in (("p50_us", "-"), ("p99_us", ":")):
        series: dict[str, dict[int, float]] = {}
        for row in rows:
            series.setdefault(row["contestant"], {})[row["threads"]] = row[key]
        _lines(axes, series, linestyle=style)
    handles, labels = axes.get_legend_handles_labels()
    half = len(handles) // 2
    axes.legend(handles[:half], labels[:half], fontsize=8)
    axes.set(
        xscale="log",
        xlabel="threads",
        ylabel="us; solid: median, dotted: 99th percentile",
        title="durable append of one record",
    )
    threads = sorted({row["threads"] for row in rows})
    axes.set_xticks(threads, [str(count) for count in threads])
    axes.minorticks_off()
    return figure


def plot_backlog(plt: Any) -> Any:
    """Time of calls by the records that the log has."""
    rows = [row for row in load("backlog")["rows"] if row["case"] == "calls"]
    calls = list(dict.fromkeys(row["call"] for row in rows))
    figure, panels = plt.subplots(1, len(calls), figsize=(13, 3.4))
    lengths = sorted({row["records"] for row in rows})
    for axes, call in zip(panels, calls, strict=True):
        series: dict[str, dict[int, float]] = {}
        for row in rows:
            if row["call"] == call:
                place = lengths.index(row["records"])
                series.setdefault(row["contestant"], {})[place] = row["us"]
        _lines(axes, series)
        axes.set(title=call, xlabel="records in the log")
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.legend(fontsize=7)
    panels[0].set_ylabel("us")
    return figure


PLOTS: Final[dict[str, Callable[[Any], Any]]] = {
    "bench-sizes": plot_sizes,
    "bench-durable": plot_durable,
    "bench-backlog": plot_backlog,
}


def make_plots(folder: Path = IMAGES) -> None:
    """Write the plots as SVG, the same bytes for the same measurements."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "logstore", "font.size": 8}
    )
    import matplotlib.pyplot as plt

    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    for name, plot in PLOTS.items():
        figure = plot(plt)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata=nothing)
        plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--plots", action="store_true", help="the plots, too")
    options = parser.parse_args(argv)
    for path, tables in ((PAGE, TABLES), (SERVICES, TABLES_OF_SERVICES)):
        text = page(path.read_text(encoding="utf-8"), tables)
        path.write_text(text, encoding="utf-8")
    if options.plots:
        make_plots()
    return 0


if __name__ == "__main__":
    sys.exit(main())
