"""A log as a data frame: python examples/data_frames.py

The same question, which page had how many views in which hour, asked with pandas,
Polars and DuckDB. All three take the Arrow batches of `read_arrow` without a Python
object for each record. Needs pyarrow, and of the three those that are asked for with
`--with`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import logstore

START_MS = 1_700_000_000_000 // 3_600_000 * 3_600_000  # a full hour
HOURS = 3
PAGES = ("/home", "/cart", "/pay")

Views = dict[tuple[str, int], int]  # (page, hour from the start) -> views


def write(path: Path, records: int) -> Views:
    """Append views of pages, over some hours; how many there are of each."""
    chance = random.Random(1)
    expected: Views = {}
    rows = []
    for number in range(records):
        timestamp_ms = START_MS + number * HOURS * 3_600_000 // records
        page = chance.choice(PAGES)
        place = (page, (timestamp_ms - START_MS) // 3_600_000)
        expected[place] = expected.get(place, 0) + 1
        rows.append((timestamp_ms, page.encode(), json.dumps({"page": page}).encode()))
    config = logstore.TopicConfig(message_format=2, compression_type="zstd")
    with logstore.open(path) as store:
        partition = store.create_topic("views", config=config)[0]
        times, keys, values = zip(*rows, strict=True)
        partition.append_many(values, keys=keys, timestamps_ms=times)
    return expected


def read(path: Path) -> pa.Table:
    """The log as an Arrow table: the page (the key, as text) and the time."""
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("views")[0]
        table = partition.read_arrow(columns=("key", "timestamp")).read_all()
    return table.set_column(0, "page", table["key"].cast(pa.string()))


def with_pandas(table: pa.Table) -> Views:
    import pandas as pd

    frame = table.to_pandas()
    begin = frame["timestamp"].min().floor("h")
    frame["hour"] = (frame["timestamp"] - begin) // pd.Timedelta(hours=1)
    counts = frame.groupby(["page", "hour"]).size()
    return {(page, int(hour)): int(n) for (page, hour), n in counts.items()}


def with_polars(table: pa.Table) -> Views:
    import polars as pl

    begin = pl.col("timestamp").min().dt.truncate("1h")
    counts = (
        pl.DataFrame(table)
        .with_columns(hour=(pl.col("timestamp") - begin).dt.total_hours())
        .group_by("page", "hour")
        .len()
    )
    return {(page, hour): n for page, hour, n in counts.iter_rows()}


def with_duckdb(table: pa.Table) -> Views:
    import duckdb

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("views", table)
    rows = connection.sql(
        f"""
        select page, (epoch_ms(timestamp) - {START_MS}) // 3600000 as hour, count(*)
        from views
        group by all
        """
    ).fetchall()
    return {(page, int(hour)): n for page, hour, n in rows}


ANSWERS: dict[str, Callable[[pa.Table], Views]] = {
    "pandas": with_pandas,
    "polars": with_polars,
    "duckdb": with_duckdb,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="A log as a data frame.")
    parser.add_argument("--records", type=int, default=100_000, help="how many")
    parser.add_argument(
        "--with",
        dest="libraries",
        nargs="+",
        choices=sorted(ANSWERS),
        default=list(ANSWERS),
        help="which of them (all)",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="views-") as folder:
        path = Path(folder) / "store"
        expected = write(path, args.records)
        table = read(path)
    for library in args.libraries:
        if ANSWERS[library](table) != expected:
            raise SystemExit(f"{library} has counted something else")
        print(f"{library}: {args.records} views in {HOURS} hours, as they were written")
    for (page, hour), count in sorted(expected.items()):
        print(f"{page:6} hour {hour}: {count:8}")


if __name__ == "__main__":
    main()
