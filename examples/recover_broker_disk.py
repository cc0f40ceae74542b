"""The disk of a dead broker: python examples/recover_broker_disk.py

Takes a Kafka log directory without its broker, and makes Parquet files of it:

1. `verify` says what is there and what is damaged; it only reads.
2. `repair` with `to` copies what is valid into a new directory; the disk is only read.
3. Each partition becomes a Parquet file, and is counted again.

Without `--disk` it takes a copy of examples/broker_disk (Kafka 4.2, killed while its
producers wrote) in which 64 bytes were overwritten. Needs pyarrow.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

import logstore

BROKER_DISK = Path(__file__).resolve().parent / "broker_disk"
# Where the example overwrites a log: in the middle of a batch.
DAMAGED = ("open-txn-0", 4000, 64)


def damaged_copy(folder: Path) -> Path:
    """A copy of the broker's directory in which some bytes are wrong."""
    disk = folder / "disk"
    shutil.copytree(BROKER_DISK, disk)
    partition, position, count = DAMAGED
    log = min((disk / partition).glob("*.log"))
    data = bytearray(log.read_bytes())
    data[position : position + count] = bytes(count)
    log.write_bytes(data)
    return disk


def look(disk: Path) -> None:
    """Say what is there; nothing is changed."""
    report = logstore.verify(disk, deep=True)
    print(
        f"  {report.records} records in {report.segments} segments can be read; "
        f"problems: {len(report.problems)}, notes: {len(report.notes)}"
    )
    for problem in report.problems:
        path = Path(problem.path)
        print(f"  {problem.kind}: {path.parent.name}/{path.name}", end="")
        print(f" at byte {problem.position}, offset {offsets_of(problem)}")


def offsets_of(
    found: logstore.types.VerifyProblem | logstore.types.RepairAction,
) -> str:
    """``40``, ``40 to 46``, or ``unknown``."""
    first, last = found.first_offset, found.last_offset
    if first is None:
        return "unknown"
    return f"{first}" if last in (None, first) else f"{first} to {last}"


def salvage(disk: Path, copy: Path) -> None:
    """Copy what is valid; say what is not."""
    done = logstore.repair(disk, "skip", to=copy)
    if not done.ok:
        raise SystemExit(f"the copy has problems: {done.remaining}")
    for action in done.actions:
        if action.label in ("cut", "skipped", "segment-removed"):
            name = Path(action.path).parent.name
            print(f"  {name}: {action.bytes} bytes left out", end="")
            print(f", offset {offsets_of(action)}")


def to_parquet(copy: Path, output: Path) -> int:
    """A file for each partition; how many records they have."""
    output.mkdir(parents=True)
    total = 0
    with logstore.open(copy, read_only=True) as store:
        for topic in map(store.topic, store.topics()):
            for p in topic:
                file = output / f"{topic.name}-{p.number}.parquet"
                reader = p.read_arrow()
                with pq.ParquetWriter(file, reader.schema) as writer:
                    for batch in reader:
                        writer.write_batch(batch)
                rows = pq.read_metadata(file).num_rows
                if rows != sum(1 for _ in p.read()):
                    raise SystemExit(f"{file.name} has {rows} rows")
                print(f"  {file.name}: {rows} record{'s' * (rows != 1)}")
                total += rows
    return total


def run(disk: Path, folder: Path, output: Path) -> None:
    """The three steps."""
    print("1. what is there")
    look(disk)
    print("2. salvage: the disk is only read")
    salvage(disk, folder / "salvaged")
    print("3. to Parquet")
    total = to_parquet(folder / "salvaged", output)
    print(f"{total} records saved")


def main() -> None:
    parser = argparse.ArgumentParser(description="A dead broker's disk to Parquet.")
    parser.add_argument("--disk", type=Path, help="a Kafka log directory; only read")
    parser.add_argument("--to", type=Path, help="keep the files in this new directory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="broker-disk-") as name:
        folder = Path(name)
        disk = args.disk or damaged_copy(folder)
        run(disk, folder, args.to or folder / "parquet")


if __name__ == "__main__":
    main()
