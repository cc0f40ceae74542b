"""Copy the slice of the golden directories that lives in the repository.

Usage: python select_slice.py SOURCE...

Each SOURCE is a part of the whole collection (its README says how it was made), as
`make_directories.py` makes one: log directories as Apache Kafka brokers left them,
`<release>/<scenario>/`, and the records that a consumer of that broker read,
`<release>/<scenario>.expected/`. The slice goes to `data/` next to this file, in the
same shape, and replaces the old one.

Files are copied unchanged. Two are cut down to the partitions kept: `offsets.json` of
each scenario and `manifest.json`. The checkpoint files at the top of a scenario stay
whole, so they name partitions that are not in the slice; they do that in the
collection, too, for Kafka's internal topics.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

DESTINATION = Path(__file__).with_name("data")
FILE_BYTES_MAX = 1 << 20
SLICE_BYTES_MAX = 4 << 20

# The slice, smallest first, so that each release, magic, codec, kind of scenario and
# kind of topic occurs at least once. A star stands for the random part of a name.
PARTITIONS = {
    "0.8.2.2/clean": "compact-0 edge-0 empty-0 mixed-codecs-0",
    "0.8.2.2/killed": "codec-gzip-0 codec-lz4-0",
    "0.10.2.2/clean": "append-time-0 compact-0 empty-0 high-offset-0 mixed-codecs-0 "
    "recompressed-0 retention-0",
    "0.10.2.2/cleaned": "codec-none-0 compact-0",
    "0.10.2.2/killed": "codec-gzip-0 retention-0",
    "0.10.2.2/live": "busy-lz4-0",
    "1.1.1/clean": "append-time-0 delete-records-0 edge-0 empty-0 idempotent-1 txn-1",
    "2.8.2/clean": "__consumer_offsets-0 codec-snappy-0 codec-zstd-0 delete-records-1 "
    "empty-0 empty-1 recompressed-2-0 txn-1",
    "2.8.2/formats": "append-time-0.10.0-0 upgraded-1 upgraded-compact-0",
    "2.8.2/killed": "codec-zstd-0 gone-* open-txn-0",
    "2.8.2/live": "busy-lz4-0",
    "2.8.2/swap": "codec-none-0 compact-0",
    "3.9.1/clean": "codec-lz4-0 codec-snappy-0 compact-0 delete-records-0 empty-0 "
    "retention-0 time-order-1",
    "3.9.1/killed": "codec-gzip-0 gone-* open-txn-0",
    "4.2.0/clean": "append-time-0 codec-none-0 codec-zstd-0 delete-records-1 "
    "empty-0 high-offset-0 time-roll-0 txn-0 txn-compact-0",
    "4.2.0/cleaned": "codec-none-0",
    "4.2.0/killed": "busy-big-0 codec-snappy-0 gone-* open-txn-0",
    "4.2.0/live": "busy-lz4-0",
    "4.2.0/swap": "codec-none-0 compact-0",
    "4.3.1/clean": "codec-lz4-0 txn-0",
    "4.3.1/killed": "codec-lz4-0 gone-*",
    "4.4.0/clean": "__consumer_offsets-0 __share_group_state-0 append-time-0 "
    "codec-zstd-0 compact-0 delete-records-0 empty-0 txn-0",
    "4.4.0/killed": "gone-* open-txn-0",
}

# Output of Kafka's own dump tool, of that release. The texts are large; these are
# enough to compare fields in each of the shapes.
DUMPS = {
    "0.10.2.2/clean/compact-0",
    "2.8.2/clean/txn-1",
    "3.9.1/clean/codec-lz4-0",
}


def main(sources: list[Path]) -> None:
    """Replace `data/` by the slice of `sources`."""
    if DESTINATION.exists():
        shutil.rmtree(DESTINATION)
    kept = set()
    for scenario, names in PARTITIONS.items():
        found = [source for source in sources if (source / scenario).is_dir()]
        if len(found) != 1:
            sys.exit(f"{len(found)} of the sources have {scenario}, not one")
        kept |= {
            (scenario, name)
            for name in copy_scenario(found[0], scenario, names.split())
        }
    copy_manifest(sources, kept)
    files = [path for path in DESTINATION.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    largest = max(path.stat().st_size for path in files)
    print(
        f"{len(kept)} partitions, {len(files)} files, {total} bytes, largest {largest}"
    )
    if total > SLICE_BYTES_MAX or largest > FILE_BYTES_MAX:
        sys.exit("the slice is too large")


def copy_scenario(source: Path, scenario: str, patterns: list[str]) -> list[str]:
    """Copy one log directory and its expected records; return the partitions."""
    directory = source / scenario
    expected = source / f"{scenario}.expected"
    target = DESTINATION / scenario
    target_expected = DESTINATION / f"{scenario}.expected"
    target.mkdir(parents=True)
    target_expected.mkdir()
    for path in directory.iterdir():
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    names = []
    for pattern in patterns:
        found = sorted(directory.glob(pattern))
        if not found:
            sys.exit(f"{directory} has no {pattern}")
        for path in found:
            (target / path.name).mkdir()
            for file in path.iterdir():
                shutil.copyfile(file, target / path.name / file.name)
            names.append(path.name)
    offsets = json.loads((expected / "offsets.json").read_text("utf-8"))
    offsets = {name: offsets[name] for name in names if name in offsets}
    (target_expected / "offsets.json").write_text(
        json.dumps(offsets, indent=1) + "\n", "utf-8"
    )
    for name in offsets:
        for suffix in ("jsonl", "read_committed.jsonl", "dump.txt"):
            path = expected / f"{name}.{suffix}"
            wanted = suffix != "dump.txt" or f"{scenario}/{name}" in DUMPS
            if wanted and path.exists():
                shutil.copyfile(path, target_expected / path.name)
    return list(offsets)


def copy_manifest(sources: list[Path], kept: set[tuple[str, str]]) -> None:
    """Write the entries of the manifest for the partitions that were kept."""
    lines = [
        json.dumps(entry)
        for source in sources
        for entry in json.loads((source / "manifest.json").read_text("utf-8"))
        if (f"{entry['release']}/{entry['scenario']}", entry["topicPartition"]) in kept
    ]
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    (DESTINATION / "manifest.json").write_text(text, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(name) for name in sys.argv[1:]])
