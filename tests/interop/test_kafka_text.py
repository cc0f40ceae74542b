"""`logstore-dump kafka-dump-log` prints what Kafka's own tool prints, line for line.

The tool of each release is the oracle: on golden directories, on directories of brokers
of the same releases with groups and transactions, on files of logstore in all formats,
on records of internal topics with random values, and on damaged logs.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
from logstore.cli.main import main
from logstore.kafka import Message
from support.golden import SLICE, whole_collection
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_messages import random_message
from support.kafka_tools import Dump, KafkaTools, ToolsUnavailableError
from support.levels import IS_ALL, mostly_thorough, some
from support.offsets_topic import batch_of
from support.releases import BY_NAME, NEWEST, each_release, short_name

pytestmark = pytest.mark.kafka

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")
INTERNAL = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
}
# A broker was killed while it wrote the first batch: the tool ends with an exception at
# the index entry for that batch.
UNREADABLE = ("0.8.2.2/killed/busy-big-0/00000000000000000000.index",)


class Printed(NamedTuple):
    """Output of the command."""

    status: int
    lines: list[str]
    complaints: list[str]


@pytest.fixture(scope="module", params=mostly_thorough(BY_NAME, short_name(NEWEST)))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tools(release: str) -> KafkaTools:
    """The tool of a release; skips if it is unavailable."""
    try:
        return KafkaTools.find(cache_directory(), BY_NAME[release])
    except ToolsUnavailableError as error:
        pytest.skip(str(error))


def printed(release: str, files: Iterable[Path], *options: str, root: Path) -> Printed:
    """Our command on files, named relative to `root`."""
    names = ",".join(file.relative_to(root).as_posix() for file in files)
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(root)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            arguments = ["--kafka-release", release, *options, "--files", names]
            status = main(["kafka-dump-log", *arguments])
    finally:
        os.chdir(before)
    complaints = [line for line in err.getvalue().split("\n") if line]
    # Decoded like the text of `KafkaTools.dump`: binary values have line ends of each
    # kind.
    text = out.getvalue().replace("\r\n", "\n").replace("\r", "\n")
    return Printed(status, text.split("\n"), complaints)


def assert_same(
    tools: KafkaTools, release: str, files: Sequence[Path], *options: str, root: Path
) -> Printed:
    """Both print the same; of several files the tool reports in any order."""
    assert files
    theirs: Dump = tools.dump(files, *options, root=root)
    ours = printed(release, files, *options, root=root)
    lines = theirs.text.split("\n")
    for number, (their, our) in enumerate(zip(lines, ours.lines, strict=False)):
        assert our == their, (number, files[0])
    assert len(ours.lines) == len(lines)
    reports = [line for line in theirs.complaints if not line.startswith("SLF4J")]
    assert sorted(ours.complaints) == sorted(reports)
    return ours


def files_in(root: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix in suffixes
        and ".expected" not in str(path)
        and path.relative_to(root).as_posix() not in UNREADABLE
    )


def by_partition(files: Iterable[Path]) -> list[list[Path]]:
    found: dict[Path, list[Path]] = {}
    for file in files:
        found.setdefault(file.parent, []).append(file)
    return list(found.values())


# ---------------------------------------------------------------- directories


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--print-data-log",),
        ("--print-data-log", "--skip-record-metadata"),
        ("--deep-iteration", "--max-bytes", "3000"),
        ("--verify-index-only",),
    ],
    ids=" ".join,
)
def test_golden_directories(
    tools: KafkaTools, release: str, options: tuple[str, ...]
) -> None:
    """All files of all releases from 0.8 on: every magic, codec and kind of batch,
    torn ends, zeros of live indexes, entries of indexes that fit no batch."""
    if release == "2.8" and "--max-bytes" in options:
        pytest.skip("the tool of 2.8 has no --max-bytes")
    root = SLICE
    whole = whole_collection() if IS_ALL else None
    if whole is not None:
        root = whole
    chosen = by_partition(files_in(root))
    files = [file for files in some(chosen, 40) for file in files]
    assert_same(tools, release, files, *options, root=root)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_logs(
    tools: KafkaTools, release: str, seed: int, tmp_path: Path
) -> None:
    """Flipped bits in values, cut ends, and garbage after the end: unless the tool ends
    with an exception, the lines are the same."""
    rng = random.Random(seed)
    count, found = 24 if IS_ALL else 9, 0
    for number, log in enumerate(rng.sample(files_in(SLICE, (".log",)), count)):
        data = bytearray(log.read_bytes())
        if len(data) < 200:
            continue
        kind = number % 3
        if kind == 0:
            # The value of the last record ends shortly before the end.
            data[-3] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[-rng.randrange(1, 60) :]
        else:
            data += rng.randbytes(rng.randrange(1, 17))
        path = tmp_path / f"{number}-0" / log.name
        path.parent.mkdir()
        path.write_bytes(data)
        try:
            theirs = tools.dump([path], "--print-data-log", root=tmp_path)
        except AssertionError:
            continue  # its exception
        ours = printed(release, [path], "--print-data-log", root=tmp_path)
        assert ours.lines == theirs.text.split("\n")
        found += 1
    assert found > count // 2


def test_sanity_check_of_golden_indexes(tools: KafkaTools, release: str) -> None:
    """Indexes of clean brokers only: for a live index the tool ends with an
    exception."""
    files = [
        file
        for file in files_in(SLICE, (".index", ".timeindex"))
        if "/clean/" in file.as_posix() or "/formats/" in file.as_posix()
    ]
    assert_same(tools, release, files, "--index-sanity-check", root=SLICE)


def test_what_logstore_writes(tools: KafkaTools, release: str, written: Any) -> None:
    """Logs of every format, with indexes and snapshots."""
    files = files_in(written.directory)
    assert len(files) > 100
    ours = assert_same(
        tools, release, files, "--print-data-log", root=written.directory
    )
    assert ours.status == 0
    # From 4.3 on the tool counts the offsets before a segment as a gap.
    gaps = [line for line in ours.complaints if "  -1 is followed by " in line]
    assert len(ours.complaints) == 2 * len(gaps)
    assert bool(gaps) == (release >= "4.3")


@pytest.mark.sampled(1)
def test_indexes_that_logstore_writes_pass_the_sanity_check(
    tools: KafkaTools, written: Any
) -> None:
    """The check that a broker of each release runs when it opens a directory."""
    files = files_in(written.directory, (".index", ".timeindex"))
    dump = tools.dump(files, "--index-sanity-check", root=written.directory)
    sections = dump.sections()
    assert len(sections) == len(files) > 100
    passed = 0
    for name, lines in sections.items():
        assert lines in ([f"{name} passed sanity check."], [f"{name} is empty."])
        passed += (written.directory / name).stat().st_size > 0
    assert passed > 50
    assert not [line for line in dump.complaints if not line.startswith("SLF4J")]


@pytest.mark.slow
@pytest.mark.parametrize("made_by", each_release())
@pytest.mark.thorough
def test_directories_of_brokers(
    made_by: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Groups of every kind, transactions, and KRaft's own logs: each dumped by the tool
    of its release and by newer ones, with the decoder for its topic."""
    directory = tmp_path_factory.mktemp(f"kafka-{made_by}")
    try:
        found = {
            release: KafkaTools.find(cache_directory(), full)
            for release, full in BY_NAME.items()
        }
        broker = KafkaBroker(directory, made_by, cache_directory())
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    with broker:
        broker.start()
        protocol = "consumer" if made_by.startswith("4") else "classic"
        clients = broker.clients("Groups.java", protocol)
        broker.said(clients, "READY")
        assert clients.stdin is not None
        clients.stdin.close()
        broker.said(clients, "ENDED")
        broker.stop()
    root = broker.data
    for release, tools in found.items():
        if BY_NAME[release] < made_by:
            continue
        decoders = dict(INTERNAL)
        if release >= "4.2" and made_by.startswith("4"):
            decoders["__share_group_state"] = "--share-group-state-decoder"
        for topic, option in decoders.items():
            files = [file for file in files_in(root) if topic in file.parent.name]
            assert_same(tools, release, files, option, root=root)
        others = [
            file
            for file in files_in(root)
            if not file.parent.name.startswith("__") or "cluster" in file.parent.name
        ]
        assert_same(tools, release, others, "--print-data-log", root=root)


# ---------------------------------------------------------------- records


def log_of(
    path: Path, types: dict[int, tuple[Message, Message]], rng: random.Random
) -> Path:
    """A segment with records of random types and values."""
    pairs = []
    for _ in range(300):
        kind = rng.choice(list(types))
        key, value = types[kind]
        shown = random_message(rng, value, rng.randint(0, value.newest))
        is_removal = rng.random() < 0.05
        pairs.append((random_message(rng, key, kind), None if is_removal else shown))
    return segment(path, pairs)


def segment(path: Path, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> Path:
    data, offset = b"", 0
    for at in range(0, len(pairs), 7):
        batch = batch_of(pairs[at : at + 7])
        data += struct.pack(">q", offset) + batch[8:]
        offset += len(pairs[at : at + 7])
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


DECODERS = {
    "--offsets-decoder": logstore.kafka.messages("__consumer_offsets"),
    "--transaction-log-decoder": logstore.kafka.messages("__transaction_state"),
    "--share-group-state-decoder": logstore.kafka.messages("__share_group_state"),
}


@pytest.mark.parametrize("option", DECODERS)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 8))]
)
def test_records_with_random_values(
    tools: KafkaTools, release: str, option: str, seed: int, tmp_path: Path
) -> None:
    """Each type in each version, with and without its tagged fields and unknown ones:
    the field tables agree with Kafka's classes."""
    if release == "2.8" or (release == "3.9" and "share" in option):
        pytest.skip("the tool ends at a record that it does not know")
    log = log_of(
        tmp_path / "t-0" / f"{0:020d}.log", DECODERS[option], random.Random(seed)
    )
    ours = assert_same(tools, release, [log], option, root=tmp_path)
    assert ours.status == 0
