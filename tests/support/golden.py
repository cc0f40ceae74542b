"""The golden directories: log directories that real Kafka brokers wrote.

Next to each, `<scenario>.expected/` holds what a consumer of that broker got from it.
A slice lives in `tests/golden/data`; the whole collection is used as well when the
environment variable LOGSTORE_GOLDEN names it, or when it is next to the repository as
`shared/golden`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).resolve().parents[1]
SLICE = TESTS / "golden" / "data"
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}

# The expected files give values beyond this as length and digest.
VALUE_BYTES_MAX = 256


def whole_collection() -> Path | None:
    """The directory of the whole collection, or None when it is not at hand."""
    named = os.environ.get("LOGSTORE_GOLDEN")
    directory = Path(named) if named else TESTS.parent.parent / "shared" / "golden"
    return directory if (directory / "manifest.json").is_file() else None


class Digest(NamedTuple):
    """Stands for a value too long to be given in the expected files."""

    length: int
    sha256: str


class ExpectedRecord(NamedTuple):
    """A record as a consumer got it; equal to `comparable(record)` of the same one."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | Digest | None
    headers: tuple[tuple[str, bytes | None], ...]


def comparable_value(value: bytes | None) -> bytes | Digest | None:
    """The value as the expected files would give it."""
    if value is None or len(value) <= VALUE_BYTES_MAX:
        return value
    return Digest(len(value), hashlib.sha256(value).hexdigest())


def comparable(record: Any) -> ExpectedRecord:
    """A `logstore.Record` in the form of the expected files."""
    return ExpectedRecord(
        record.offset,
        record.timestamp_ms,
        int(record.timestamp_type),
        record.key,
        comparable_value(record.value),
        tuple((name, value) for name, value in record.headers),
    )


def from_json(fields: dict[str, Any]) -> ExpectedRecord:
    """A record from a line of an expected file, or of `logstore-dump records`."""
    if "valueSha256" in fields:
        value: bytes | Digest | None = Digest(
            fields["valueLength"], fields["valueSha256"]
        )
    else:
        value = comparable_value(_unbase64(fields["value"]))
    return ExpectedRecord(
        fields["offset"],
        fields["timestamp"],
        TIMESTAMP_TYPES[fields["timestampType"]],
        _unbase64(fields["key"]),
        value,
        tuple((name, _unbase64(text)) for name, text in fields["headers"]),
    )


def _unbase64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One log directory of one broker."""

    root: Path
    name: str  # release/scenario

    @property
    def directory(self) -> Path:
        """The log directory."""
        return self.root / self.name

    @property
    def expected(self) -> Path:
        """The directory with the records that a consumer read."""
        return self.root / f"{self.name}.expected"

    @property
    def is_clean(self) -> bool:
        """Whether the broker ended cleanly."""
        return (self.directory / ".kafka_cleanshutdown").exists()

    @property
    def partitions(self) -> tuple[GoldenPartition, ...]:
        """The partitions the broker served, by name."""
        return tuple(GoldenPartition(self, name) for name in sorted(offsets_of(self)))

    def __str__(self) -> str:
        kind = "slice" if self.root == SLICE else "whole"
        return f"{kind}-{self.name.replace('/', '-')}"


@dataclass(frozen=True, slots=True)
class GoldenPartition:
    """One partition of a scenario, and what is known of it."""

    scenario: Scenario
    name: str  # topic-partition

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.name.rpartition("-")[0]

    @property
    def number(self) -> int:
        """Number of the partition."""
        return int(self.name.rpartition("-")[2])

    @property
    def directory(self) -> Path:
        """The partition's directory."""
        return self.scenario.directory / self.name

    @property
    def start_offset(self) -> int:
        """First offset the broker served."""
        return int(offsets_of(self.scenario)[self.name]["logStartOffset"])

    @property
    def end_offset(self) -> int:
        """Next offset the broker would have assigned."""
        return int(offsets_of(self.scenario)[self.name]["logEndOffset"])

    @property
    def manifest(self) -> dict[str, Any]:
        """The partition's entry in the manifest."""
        return manifest_of(self.scenario.root)[self.scenario.name, self.name]

    @property
    def dump(self) -> Path | None:
        """Output of that release's own dump tool, if it was kept."""
        path = self.scenario.expected / f"{self.name}.dump.txt"
        return path if path.exists() else None

    def records(self, isolation: str = "read_uncommitted") -> list[ExpectedRecord]:
        """Records that a consumer read from the beginning to the end."""
        path = self.scenario.expected / f"{self.name}.jsonl"
        if isolation == "read_committed":
            committed = path.with_name(f"{self.name}.read_committed.jsonl")
            # Without transactions both isolations read the same.
            path = committed if committed.exists() else path
        return list(_records(path))

    def __str__(self) -> str:
        return f"{self.scenario}-{self.name}"


# A few partitions at a time are looked at from many sides.
@functools.lru_cache(maxsize=8)
def _records(path: Path) -> tuple[ExpectedRecord, ...]:
    with path.open(encoding="utf-8") as lines:
        return tuple(from_json(json.loads(line)) for line in lines)


@functools.cache
def offsets_of(scenario: Scenario) -> dict[str, dict[str, int]]:
    """Offsets that the broker reported for each partition."""
    text = (scenario.expected / "offsets.json").read_text("utf-8")
    return dict(json.loads(text))


@functools.cache
def manifest_of(root: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The manifest's entries by scenario and partition."""
    entries = json.loads((root / "manifest.json").read_text("utf-8"))
    return {
        (f"{entry['release']}/{entry['scenario']}", entry["topicPartition"]): entry
        for entry in entries
    }


def scenarios_in(root: Path) -> list[Scenario]:
    """The scenarios of a collection, by name."""
    return [
        Scenario(root, path.relative_to(root).as_posix().removesuffix(".expected"))
        for path in sorted(root.glob("*/*.expected"))
    ]


def all_scenarios() -> list[Scenario]:
    """The scenarios of the slice, then of the whole collection if it is available."""
    whole = whole_collection()
    return scenarios_in(SLICE) + (scenarios_in(whole) if whole else [])


def all_partitions() -> list[GoldenPartition]:
    """The partitions of all scenarios; each of the slice only once."""
    found = []
    seen = set()
    for scenario in all_scenarios():
        for partition in scenario.partitions:
            if (scenario.name, partition.name) not in seen:
                seen.add((scenario.name, partition.name))
                found.append(partition)
    return found


def fingerprint(directory: Path) -> str:
    """A digest of the names, sizes, modes and modification times under a directory."""
    digest = hashlib.sha256()
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        facts = (
            path.relative_to(directory).as_posix(),
            status.st_mode,
            status.st_size if path.is_file() else 0,
            status.st_mtime_ns,
        )
        digest.update(repr(facts).encode())
    return digest.hexdigest()


_FIELD = re.compile(r"(\w+): (\S+)")


def dump_fields(lines: Iterable[str]) -> list[dict[str, str]]:
    """The `name: value` fields of each line of a dump tool, keys in small letters.

    The key and payload of a record come last and may hold anything, so a line is
    read up to them only.
    """
    found = []
    for line in lines:
        head = re.split(r" (?:key|payload|headerKeys): ", line, maxsplit=1)[0]
        found.append({name.lower(): value for name, value in _FIELD.findall(head)})
    return found
