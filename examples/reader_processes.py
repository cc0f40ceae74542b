"""Readers in other processes: python examples/reader_processes.py

One process writes; four others open the same store with `read_only=True` and follow
it. Each reader adds up the values of one partition and keeps the offset of the next
record with its sum, in one file that is replaced at once. One reader is killed on the
way: the one that takes its place goes on from that file, and counts nothing twice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import logstore

READERS = 4
LAST = b"end"  # the value that tells a reader to stop


def read(path: Path, number: int, progress: Path) -> None:
    """Follow one partition to its last record; the sum goes into the file."""
    state = {"next_offset": 0, "sum": 0}
    if progress.exists():
        state = json.loads(progress.read_text())
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("numbers")[number]
        for record in partition.follow(start=state["next_offset"]):
            if record.value == LAST:
                break
            state["sum"] += int(record.value or b"")
            state["next_offset"] = record.offset + 1
            if state["next_offset"] % 100 == 0:
                save(progress, state)
    save(progress, state)


def save(progress: Path, state: dict[str, int]) -> None:
    """Replace the file at once: a reader that is killed leaves the old or the new."""
    new = progress.with_suffix(".new")
    new.write_text(json.dumps(state))
    os.replace(new, progress)


def run(folder: Path, records: int) -> None:
    """Write, with the readers beside it, and compare their sums."""
    spawn = multiprocessing.get_context("spawn")
    path = folder / "store"
    files = [folder / f"reader-{number}.json" for number in range(READERS)]

    def start(number: int) -> multiprocessing.process.BaseProcess:
        arguments = (path, number, files[number])
        process = spawn.Process(target=read, args=arguments, name=f"reader {number}")
        process.start()
        return process

    with logstore.open(path) as store:
        topic = store.create_topic("numbers", partitions=READERS)
        readers = [start(number) for number in range(READERS)]
        for value in range(records):
            topic[value % READERS].append(b"%d" % value)
            if value == records // 2:
                wait_for(files[0])
                readers[0].kill()
                readers[0].join()
                print("reader 0 was killed on the way", flush=True)
                readers[0] = start(0)
        for partition in topic:
            partition.append(LAST)
        for process in readers:
            process.join()
            if process.exitcode:
                raise SystemExit(f"{process.name} failed")
    sums = [json.loads(file.read_text())["sum"] for file in files]
    for number, found in enumerate(sums):
        print(f"reader {number}: {found}")
    if sum(sums) != sum(range(records)):
        raise SystemExit(f"the sums come to {sum(sums)}, not {sum(range(records))}")
    print(f"each of {records} records was counted once")


def wait_for(file: Path) -> None:
    """Wait until a reader has kept its place."""
    deadline = time.monotonic() + 60
    while not file.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"no reader has written {file.name}")
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description="Readers in other processes.")
    parser.add_argument("--records", type=int, default=20_000, help="how many (20000)")
    args = parser.parse_args()
    if args.records < 100 * READERS * 2:
        parser.error(f"--records: at least {100 * READERS * 2}")
    with tempfile.TemporaryDirectory(prefix="readers-") as folder:
        run(Path(folder), args.records)


if __name__ == "__main__":
    main()
