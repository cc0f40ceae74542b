"""The logs and indexes of logstore and of a real broker are equal, byte for byte.

Random sequences of appends go to a store, and its batches, each in a separate request,
to a broker with the same topics: then offsets, times, sizes and boundaries of all
batches are the same, and everything else must be. A phase ends with a clean stop of
both, or with a kill of both and a recovery. After each, every `.log`, `.index` and
`.timeindex` of every partition is compared.

- With LogAppendTime, the store repeats the appends with the broker's times.
- After a kill, a broker rebuilds the indexes of all segments since the last clean stop;
  logstore keeps the entries of durable batches. `rebuild_index` makes them the same.
- Other differences are listed in docs/format.md, "Differences from Kafka's files". Each
  of its rules is a function here that turns Kafka's bytes into ours, and has a test
  that Kafka's really differ like this.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.append_sequences import (
    TIMES,
    AppendSequence,
    Replay,
    partition_files,
    random_sequence,
    without_epochs,
)
from support.broker_replay import BrokerReplay
from support.damage import frames_in, stop_syncs
from support.kafka_broker import KafkaBroker, cache_directory
from support.kafka_tools import ToolsUnavailableError
from support.levels import IS_ALL
from support.releases import STARTED

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.thorough]

CLOSE, KILL = False, True
COUNT = 100 if IS_ALL else 12
_TIME_ENTRY = struct.Struct(">qi")
# These put the offset of the record itself into the time index.
_EXACT_OFFSETS = ("2.8.2",)
_WITH_ZOOKEEPER = ("2.8.2",)


@dataclass(frozen=True, slots=True)
class Run:
    """Some sequences in one broker.

    Attributes:
        release: of the broker.
        kills: the end of each phase, stop or kill.
    """

    release: str
    kills: tuple[bool, ...]

    @property
    def phases(self) -> int:
        return len(self.kills)

    def sequences(self) -> list[AppendSequence]:
        magics = (1, 2) if self.release < "3" else (2,)
        # A broker does not start if a rebuilt index is full that was not full before:
        # entries of a log depend on the offset at which it was opened, and rebuilt ones
        # do not.
        least = 20_000 if KILL in self.kills[1:] else 40
        return [
            random_sequence(
                f"sequence-{number}",
                f"{self.release}/{self.kills}/{number}",
                magics[number % len(magics)],
                TIMES[number // len(magics) % len(TIMES)],
                index_bytes_min=least,
                phases=self.phases,
            )
            for number in range(COUNT)
        ]

    def __str__(self) -> str:
        return "-".join(
            [self.release, *("kill" if kill else "close" for kill in self.kills)]
        )


RUNS = [
    Run("2.8.2", (CLOSE, CLOSE)),
    *(
        pytest.param(Run(release, kills), marks=pytest.mark.thorough)
        for release in STARTED
        for kills in ((KILL, CLOSE, CLOSE), (CLOSE, KILL, CLOSE))
    ),
]


Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Compared:
    """The files of a sequence at the end of a phase."""

    sequence: AppendSequence
    phase: int
    ours: Files
    theirs: Files


def run_ours(
    run: Run, replay: Replay, sequences: Sequence[AppendSequence]
) -> tuple[list[dict[str, Files]], list[dict[str, int]]]:
    """All phases in logstore: the files at the end of each, and the numbers of batches
    so far."""
    files, counts = [], []
    stopped = {one.name: 0 for one in sequences}
    for number, kill in enumerate(run.kills):
        replay.phase(number, kill=kill)
        if kill:
            replay.recover()
            live = {
                one.name: partition_files(replay.partition(one)) for one in sequences
            }
            for one in sequences:
                replay.rebuild(one, stopped[one.name])
                if not number:
                    # Nothing was opened twice: a rebuild puts each entry at the same
                    # place.
                    assert partition_files(replay.partition(one)) == live[one.name]
        files.append(
            {one.name: partition_files(replay.partition(one)) for one in sequences}
        )
        counts.append({one.name: len(replay.batches(one)) for one in sequences})
        stopped = {one.name: replay.end_offset(one) for one in sequences}
    return files, counts


def run_both(run: Run, directory: Path) -> list[Compared]:
    """All phases in logstore and in a broker.

    Raises:
        ToolsUnavailableError: there is no Kafka here.
    """
    broker = KafkaBroker(directory, run.release, cache_directory())
    sequences = run.sequences()
    replay = Replay(directory / "store", sequences)
    ours, counts = run_ours(run, replay, sequences)
    batches = {one.name: replay.batches(one) for one in sequences}
    theirs = []
    with broker:
        brokers = BrokerReplay(broker, sequences)
        before = dict.fromkeys(batches, 0)
        for kill, after in zip(run.kills, counts, strict=True):
            turn = {
                name: found[before[name] : after[name]]
                for name, found in batches.items()
            }
            brokers.phase(turn, kill=kill)
            before = after
            theirs.append(
                {one.name: partition_files(brokers.partition(one)) for one in sequences}
            )
    stamped = [one for one in sequences if one.is_append_time]
    again = Replay(directory / "stamped", stamped, brokers.times)
    for before_, found in zip(ours, run_ours(run, again, stamped)[0], strict=True):
        before_.update(found)
    return [
        Compared(one, phase, ours[phase][one.name], theirs[phase][one.name])
        for phase in range(run.phases)
        for one in sequences
    ]


@pytest.fixture(scope="module", params=RUNS, ids=str)
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.fixture(scope="module")
def compared(run: Run, tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    with pytest.MonkeyPatch.context() as patch:
        stop_syncs(patch)
        try:
            return run_both(run, tmp_path_factory.mktemp("run"))
        except ToolsUnavailableError as error:
            pytest.skip(str(error))


# ------------------------------------------------------------------ the differences


def as_ours(run: Run, one: Compared) -> Files:
    """A broker's files, without the differences by design."""
    files = one.theirs
    if not any(files.values()):
        files = without_empty_log(files)
    if one.phase:
        files = with_epoch_0(files)
    if run.release in _EXACT_OFFSETS and one.sequence.magic == 2:
        files = with_last_offsets(files)
    return files


def without_empty_log(files: Files) -> Files:
    """A log that has never had a record has no files here."""
    return {}


def with_epoch_0(files: Files) -> Files:
    """Each start of a broker begins a new leader epoch."""
    return {
        name: without_epochs(data) if name.endswith(".log") else data
        for name, data in files.items()
    }


def with_last_offsets(files: Files) -> Files:
    """A time index with the last offset of each batch, instead of the offset of the
    record with the timestamp."""
    changed = dict(files)
    for name, data in files.items():
        if name.endswith(".timeindex"):
            base, last = int(name[:20]), last_offsets(files[name[:20] + ".log"])
            entries = []
            for time, offset in _TIME_ENTRY.iter_unpack(data):
                batch = bisect.bisect_left(last, base + offset)
                if batch < len(last):
                    offset = last[batch] - base
                entries.append(_TIME_ENTRY.pack(time, offset))
            changed[name] = b"".join(entries)
    return changed


def last_offsets(log: bytes) -> list[int]:
    """The last offset of each batch of magic 2."""
    return [
        frame.offset + int.from_bytes(log[frame.pos + 23 : frame.pos + 27], "big")
        for frame in frames_in(log)
    ]


def differences(run: Run, compared: Iterable[Compared]) -> list[str]:
    """Other differences between the files, as text."""
    found = []
    for one in compared:
        theirs = as_ours(run, one)
        for name in sorted({*one.ours, *theirs}):
            mine, other = one.ours.get(name), theirs.get(name)
            if mine != other:
                sizes = [None if data is None else len(data) for data in (mine, other)]
                found.append(f"phase {one.phase} {one.sequence.name} {name}: {sizes}")
    return found


# ------------------------------------------------------------------ the tests


@pytest.mark.thorough
def test_files_are_those_of_the_broker(run: Run, compared: list[Compared]) -> None:
    """Each file of each partition, at the end of each phase."""
    assert differences(run, compared) == []
    assert len(compared) == COUNT * run.phases


def test_sequences_do_all_that_is_compared(run: Run, compared: list[Compared]) -> None:
    """They roll by size, by time and by full indexes, and have entries in both."""
    done = [one for one in compared if one.phase == run.phases - 1]
    rolled = [one for one in done if len(one.ours) > 3]
    assert {one.sequence.magic for one in rolled} == {
        one.sequence.magic for one in done
    }
    assert any(one.sequence.config.segment_ms < 10_000 for one in rolled)
    if KILL not in run.kills[1:]:
        assert any(is_rolled_by_index(one) for one in rolled)
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        assert any(
            len(data) > 2 * size
            for one in done
            for name, data in one.ours.items()
            if name.endswith(suffix)
        )
    stamped = [one for one in done if one.sequence.is_append_time]
    assert any(one.ours for one in stamped)
    figures = {
        "sequences": len(done),
        "batches": sum(
            len(frames_in(data))
            for one in done
            for name, data in one.ours.items()
            if name.endswith(".log")
        ),
        "files": sum(len(one.ours) for one in compared),
        "bytes": sum(len(data) for one in compared for data in one.ours.values()),
    }
    print(f"{run}: {figures}")


def is_rolled_by_index(one: Compared) -> bool:
    """Whether a full index has ended a segment with room for any of the batches."""
    config = one.sequence.config
    names = sorted(name for name in one.ours if name.endswith(".log"))
    return any(
        len(one.ours[name[:20] + ".index"]) // 8 >= config.segment_index_bytes // 8
        or len(one.ours[name[:20] + ".timeindex"]) // 12
        >= config.segment_index_bytes // 12
        for name in names[:-1]
        if len(one.ours[name]) < config.segment_bytes // 2
    )


def test_a_changed_byte_is_found(run: Run, compared: list[Compared]) -> None:
    """A changed byte in each kind of file, and a file that only one of the two has."""
    one = next(one for one in reversed(compared) if all(one.theirs.values()))
    for name in list(one.theirs)[:3]:
        for other in (
            one.theirs | {name: changed(one.theirs[name])},
            {**one.theirs, "1.log": b""},
        ):
            found = differences(
                run, [Compared(one.sequence, one.phase, one.ours, other)]
            )
            assert len(found) == 1


def changed(data: bytes) -> bytes:
    """Change a byte other than the last one: a time index may differ there by another
    record of a batch."""
    return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]


def test_broker_makes_the_files_of_an_empty_log(compared: list[Compared]) -> None:
    """logstore makes them with the first record."""
    empty = [one for one in compared if not any(one.theirs.values())]
    for one in empty:
        assert one.ours == {}
        assert len(one.theirs) == 3


def test_broker_counts_leader_epochs(run: Run, compared: list[Compared]) -> None:
    """Each start of a broker that is its own controller begins a new epoch; batches of
    logstore have 0."""
    done = [one for one in compared if one.sequence.magic == 2]
    assert all(with_epoch_0(one.ours) == one.ours for one in done)
    is_other = any(with_epoch_0(one.theirs) != one.theirs for one in done)
    assert is_other or run.release in _WITH_ZOOKEEPER


def test_old_broker_puts_the_offset_of_the_record_into_the_time_index(
    run: Run, compared: list[Compared]
) -> None:
    """Newer ones, and logstore, put the last offset of its batch there."""
    is_other = any(
        with_last_offsets(one.theirs) != one.theirs
        for one in compared
        if one.sequence.magic == 2
    )
    assert is_other == (run.release in _EXACT_OFFSETS)
