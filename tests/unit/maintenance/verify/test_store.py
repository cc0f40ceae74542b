"""`verify` lists every problem and goes on behind it; `rebuild_index`; `inspect_file`.

Each test damages a small store that was closed (or a copy of one that is open) and says
what the report must tell of it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.main import main
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.maintenance.verify import inspect_file
from support.damage import (
    FaultyFiles,
    append_garbage,
    crash,
    cut,
    fix_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    snapshot_of,
    zero,
)
from support.golden import SLICE, all_scenarios
from support.levels import some
from support.values import (
    append_records,
    every_format,
    fill,
    new_partition,
    write_store,
)

SMALL = {"segment_bytes": 1500, "index_interval_bytes": 200}
RECORDS = 100


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several small segments in a store that was closed."""
    return write_store(tmp_path / "store", RECORDS, **SMALL)


def kinds(report: logstore.VerifyReport) -> list[str]:
    return [problem.kind for problem in report.problems]


def note_kinds(report: logstore.VerifyReport) -> list[str]:
    return [note.kind for note in report.notes]


def the_problem(report: logstore.VerifyReport) -> logstore.Problem:
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def forget_state(partition: Path) -> None:
    """Make it a store that another program wrote and did not close."""
    store = partition.parent
    for path in [store / ".logstore-owner", store / ".kafka_cleanshutdown"]:
        path.unlink()
    (partition / ".logstore-state").unlink()
    (store / "recovery-point-offset-checkpoint").unlink()


def change_state(partition: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change what logstore's own state says, with a right checksum."""
    directory = Directory.open_root(Files(), str(partition))
    value = checkpoints.read_state(directory, ".logstore-state")
    assert value is not None
    change(value)
    value.pop("version")
    checkpoints.write_state(directory, ".logstore-state", value)
    directory.close()


# ------------------------------------------------------------------ nothing is wrong


@every_format
@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_verify_of_a_closed_store_finds_nothing(
    tmp_path: Path, magic: int, codec: str, deep: bool
) -> None:
    """Every format; all segments, batches, records and bytes are counted."""
    directory = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    report = logstore.verify(tmp_path / "store", deep=deep)
    assert report.ok
    assert (report.problems, report.notes) == ((), ())
    logs = logs_in(directory)
    assert report.segments == len(logs) > 1
    assert report.records == RECORDS
    assert report.batches == sum(len(frames(path)) for path in logs)
    assert report.bytes == sum(path.stat().st_size for path in logs)


@pytest.mark.parametrize("scenario", all_scenarios(), ids=str)
@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_verify_of_a_kafka_directory_finds_no_problem(
    scenario: object, deep: bool
) -> None:
    """Nor of each of its partitions by itself."""
    directory: Path = scenario.directory  # type: ignore[attr-defined]
    assert logstore.verify(directory, deep=deep).problems == ()
    partitions = [scenario_part.directory for scenario_part in scenario.partitions]  # type: ignore[attr-defined]
    assert logstore.verify(partitions, deep=deep).problems == ()


def test_verify_changes_nothing(partition: Path) -> None:
    """No name, size or time, also where there is damage."""
    zero(logs_in(partition)[1], 100, 300)
    before = snapshot_of(partition.parent)
    assert not logstore.verify(partition.parent, deep=True).ok
    assert snapshot_of(partition.parent) == before


def test_verify_of_an_open_store_notes_that_it_is_not_closed(tmp_path: Path) -> None:
    """It is in use or its writer died: a note; nothing is locked meanwhile."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store, **SMALL)
        fill(orders, RECORDS)
        report = logstore.verify(tmp_path)
        assert report.ok
        assert note_kinds(report) == ["unclean-stop"]
        # A lock that was opened and closed again would be lost.
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(tmp_path)
        append_records(orders, 1)


def test_verify_tells_its_progress(partition: Path) -> None:
    """Up to all bytes of the logs."""
    calls: list[tuple[int, int]] = []
    report = logstore.verify(
        partition, on_progress=lambda done, total: calls.append((done, total))
    )
    assert calls == sorted(calls)
    assert calls[-1] == (report.bytes, report.bytes)


def test_report_becomes_json(partition: Path) -> None:
    """`to_dict` has all of it."""
    flip_bit(logs_in(partition)[0], 8 * 30)
    value = json.loads(json.dumps(logstore.verify(partition).to_dict()))
    assert value["ok"] is False
    assert value["problems"][0]["kind"] == "damaged-batch"
    assert value["segments"] == len(logs_in(partition))


@pytest.mark.parametrize("name", ["missing", "empty", "strange.txt"])
def test_verify_of_what_is_no_store_raises(tmp_path: Path, name: str) -> None:
    """Nothing there, nothing in there, or a file of another kind."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "strange.txt").write_bytes(b"")
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.verify(tmp_path / name)


def test_verify_takes_several_paths(tmp_path: Path) -> None:
    """They are counted together."""
    first = write_store(tmp_path / "a", 10)
    second = write_store(tmp_path / "b", 20)
    assert logstore.verify([first, tmp_path / "b"]).records == 30
    assert logstore.verify(logs_in(second)[0]).records == 20


# ------------------------------------------------------------------ damaged batches


@every_format
def test_damaged_batches_are_all_listed(tmp_path: Path, magic: int, codec: str) -> None:
    """Two bad checksums in one segment and one in the last: three problems, and the
    sound batches between are counted."""
    directory = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    logs = logs_in(directory)
    sound = logstore.verify(directory).batches
    damaged = []
    for path, slot in ((logs[0], 1), (logs[0], -1), (logs[-1], 0)):
        frame = frames(path)[slot]
        damaged.append((str(path), frame.pos))
        flip_bit(path, 8 * (frame.pos + frame.size - 1))
    report = logstore.verify(directory)
    found = [(p.path, p.position) for p in report.problems if p.kind == "damaged-batch"]
    assert found == damaged
    assert report.batches == sound - 3
    assert kinds(report) == ["damaged-batch"] * 3


def test_damage_tells_the_offsets_that_are_lost(partition: Path) -> None:
    """The first and the last that cannot be read."""
    path = logs_in(partition)[1]
    frame = frames(path)[3]
    flip_bit(path, 8 * (frame.pos + 20))
    problem = the_problem(logstore.verify(partition))
    assert (problem.first_offset, problem.last_offset) == (frame.offset, frame.offset)
    assert str(path) in problem.message


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "foreign"])
@pytest.mark.parametrize(("magic", "codec"), [(1, "gzip"), (2, "none")])
def test_damage_at_the_end_of_a_sealed_segment_ends_with_it(
    tmp_path: Path, magic: int, codec: str, is_own: bool
) -> None:
    """The next segment begins with the first offset that can be read again."""
    partition = write_store(tmp_path / "store", RECORDS, magic, codec, call=5, **SMALL)
    if not is_own:
        forget_state(partition)
    path, after = logs_in(partition)[:2]
    frame = frames(path)[-1]
    flip_bit(path, 8 * (frame.pos + frame.size - 1))
    problem = the_problem(logstore.verify(partition))
    last = int(after.stem) - 1
    assert (problem.first_offset, problem.last_offset) == (last - 4, last)
    assert f"offsets from {last - 4} to {last}, cannot be read" in problem.message


def test_damage_before_a_wrapper_ends_with_its_first_message(tmp_path: Path) -> None:
    """A wrapper's head has only its last offset; its content has the first."""
    partition = write_store(tmp_path / "store", RECORDS, 1, "gzip", call=5, **SMALL)
    path = logs_in(partition)[0]
    frame = frames(path)[1]
    flip_bit(path, 8 * (frame.pos + frame.size - 1))
    problem = the_problem(logstore.verify(partition))
    assert (problem.first_offset, problem.last_offset) == (5, 9)


def test_bytes_behind_a_sealed_segment_lose_no_offset(partition: Path) -> None:
    """All offsets up to the next segment can be read."""
    append_garbage(logs_in(partition)[0])
    report = logstore.verify(partition)
    behind = next(p for p in report.problems if p.kind != "extra-bytes")
    assert (behind.first_offset, behind.last_offset) == (None, None)
    assert "between offsets cannot be read" in behind.message


def test_a_damaged_length_hides_no_other_batch(partition: Path) -> None:
    """What follows is found at its own bytes."""
    path = logs_in(partition)[0]
    before = logstore.verify(path).batches
    overwrite(path, frames(path)[2].pos + 8, struct.pack(">i", 1 << 20))
    report = logstore.verify(path)
    assert the_problem(report).kind in ("damaged-batch", "partial-batch")
    assert report.batches == before - 1


def test_zeros_in_a_sealed_segment_are_a_problem(partition: Path) -> None:
    """A hole of whole batches."""
    path = logs_in(partition)[0]
    found = frames(path)
    zero(path, found[2].pos, found[5].pos)
    problem = the_problem(logstore.verify(path))
    assert (problem.kind, problem.position) == ("zeros", found[2].pos)
    assert (problem.first_offset, problem.last_offset) == (2, 4)


def test_a_partial_batch_in_a_sealed_segment_is_a_problem(partition: Path) -> None:
    """The file was cut inside its last batch; logstore knows of the bytes, too."""
    path = logs_in(partition)[0]
    last = frames(path)[-1]
    cut(path, last.pos + last.size - 3)
    report = logstore.verify(partition)
    assert {"partial-batch", "lost-bytes"} <= set(kinds(report))
    partial = next(p for p in report.problems if p.kind == "partial-batch")
    assert (partial.position, partial.first_offset) == (last.pos, last.offset)


@pytest.mark.parametrize(("magic", "codec"), [(0, "gzip"), (1, "lz4"), (2, "gzip")])
@pytest.mark.parametrize("at", [0, -1], ids=["sealed", "active"])
def test_a_segment_of_another_size_is_looked_into(
    tmp_path: Path, magic: int, codec: str, at: int
) -> None:
    """Also without `deep`: a stream that was cut short, under a right checksum, is why
    it is shorter."""
    partition = write_store(
        tmp_path / "store", 60, magic, codec, call=5, segment_bytes=1500
    )
    path = logs_in(partition)[at]
    frame, data = frames(path)[0], bytearray(path.read_bytes())
    short = data[: frame.size - 8]
    struct.pack_into(">i", short, 8, len(short) - 12)
    if magic < 2:
        (size,) = struct.unpack_from(">i", short, 22 + 8 * magic)
        struct.pack_into(">i", short, 22 + 8 * magic, size - 8)
    path.write_bytes(short + data[frame.size :])
    fix_crc(path, frames(path)[0])
    for deep in (False, True):
        report = logstore.verify(partition, deep=deep)
        assert sorted(kinds(report)) == ["damaged-batch", "lost-bytes"], report


def test_a_sealed_segment_cut_between_batches_is_a_problem(partition: Path) -> None:
    """Nothing in the file shows it; logstore's state does."""
    path = logs_in(partition)[0]
    last = frames(path)[-1]
    cut(path, last.pos)
    report = logstore.verify(partition)
    assert "lost-bytes" in kinds(report)


def test_a_magic_above_two_is_a_problem(partition: Path) -> None:
    """A newer format or damage: it cannot be vouched for."""
    path = logs_in(partition)[0]
    overwrite(path, frames(path)[1].pos + 16, b"\x03")
    problem = the_problem(logstore.verify(path))
    assert problem.kind == "unsupported"


def test_an_unknown_codec_with_a_right_checksum_is_a_note(tmp_path: Path) -> None:
    """Nothing is damaged; the batch is not looked into."""
    directory = write_store(tmp_path / "store", 20, magic=2)
    path = logs_in(directory)[0]
    frame = frames(path)[1]
    overwrite(path, frame.pos + 22, b"\x06")
    fix_crc(path, frame)
    report = logstore.verify(path, deep=True)
    assert report.ok
    assert note_kinds(report) == ["unsupported"]
    (note,) = report.notes
    after = frames(path)[2].offset
    assert (note.first_offset, note.last_offset) == (frame.offset, after - 1)


@pytest.mark.parametrize(("magic", "codec"), [(1, "gzip"), (2, "lz4"), (2, "zstd")])
def test_damage_inside_a_compressed_batch_needs_deep(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """With a right checksum over a damaged stream, only `deep` can tell."""
    directory = write_store(tmp_path / "store", 50, magic, codec, call=25)
    path = logs_in(directory)[0]
    frame = frames(path)[0]
    overwrite(path, frame.pos + frame.size - 12, b"\xff" * 8)
    fix_crc(path, frame)
    assert logstore.verify(path).ok
    problem = the_problem(logstore.verify(path, deep=True))
    assert (problem.kind, problem.position) == ("damaged-batch", 0)
    assert problem.first_offset == 0


def test_a_wrong_record_count_is_found(tmp_path: Path) -> None:
    """Records are decoded, whatever the checksum says."""
    directory = write_store(tmp_path / "store", 20, magic=2)
    path = logs_in(directory)[0]
    frame = frames(path)[1]
    overwrite(path, frame.pos + 57, struct.pack(">i", 4))
    fix_crc(path, frame)
    assert "damaged-batch" in kinds(logstore.verify(path))


# ------------------------------------------------------------------ offsets


def test_offsets_that_do_not_increase_are_a_problem(partition: Path) -> None:
    """The batch is sound and in the wrong place; those behind it are not reported."""
    path = logs_in(partition)[0]
    frame = frames(path)[4]
    overwrite(path, frame.pos, struct.pack(">q", 1))
    forget_state(partition)
    report = logstore.verify(path)
    problem = the_problem(report)
    assert (problem.kind, problem.position) == ("offsets", frame.pos)
    assert report.batches == len(frames(path))


def test_a_gap_is_a_problem_where_logstore_wrote(tmp_path: Path) -> None:
    """logstore leaves none; in a log of Kafka's compaction may have made it."""
    directory = write_store(tmp_path / "store", 20)
    path = logs_in(directory)[0]
    found = frames(path)
    data = path.read_bytes()
    path.write_bytes(data[: found[3].pos] + data[found[4].pos :])
    report = logstore.verify(directory)
    gap = next(p for p in report.problems if p.kind == "offsets")
    assert (gap.first_offset, gap.last_offset) == (3, 3)
    forget_state(directory)
    assert logstore.verify(directory).ok


def test_offsets_below_the_base_are_a_problem(partition: Path) -> None:
    """A segment that was renamed to a higher offset."""
    path = logs_in(partition)[0]
    renamed = partition / f"{9:020d}.log"
    shutil.copy(path, renamed)
    problems = logstore.verify(renamed).problems
    assert [(p.kind, p.position) for p in problems] == [("offsets", 0)]


def test_segments_that_overlap_are_a_problem(partition: Path) -> None:
    """The second begins before the first ends."""
    forget_state(partition)
    first, second = logs_in(partition)[:2]
    data = second.read_bytes()
    first.write_bytes(first.read_bytes() + data[: frames(second)[2].pos])
    report = logstore.verify(partition)
    overlap = [p for p in report.problems if p.kind == "offsets"]
    assert [p.path for p in overlap] == [str(second)]


def test_offsets_too_far_from_the_base_are_a_problem(tmp_path: Path) -> None:
    """No index entry can tell them."""
    directory = write_store(tmp_path / "store", 5, magic=2)
    path = logs_in(directory)[0]
    overwrite(path, 0, struct.pack(">q", 1 << 40))
    report = logstore.verify(path)
    assert "offsets" in kinds(report)
    assert report.batches == len(frames(path))


# ------------------------------------------------------------------ the end of the log


def test_a_torn_tail_above_the_durable_point_is_a_note(tmp_path: Path) -> None:
    """What opening would cut, in a copy of a store that is open."""
    with logstore.open(tmp_path / "store") as store:
        orders = new_partition(store)
        fill(orders, 10)
        orders.flush()
        fill(orders, 10)
        copy = crash(tmp_path / "store", tmp_path / "copy")
    path = logs_in(copy / "orders-0")[0]
    last = frames(path)[-1]
    cut(path, last.pos + 5)
    report = logstore.verify(copy)
    assert report.ok
    [torn] = [note for note in report.notes if note.kind == "torn-tail"]
    assert (torn.path, torn.position) == (str(path), last.pos)
    assert torn.first_offset == 19


def test_damage_below_the_durable_point_is_a_problem(tmp_path: Path) -> None:
    """In the same segment, a record that was flushed."""
    with logstore.open(tmp_path / "store") as store:
        orders = new_partition(store)
        fill(orders, 10)
        orders.flush()
        orders.roll()
        fill(orders, 10)
        orders.flush()
        orders.roll()
        copy = crash(tmp_path / "store", tmp_path / "copy")
    path = logs_in(copy / "orders-0")[1]
    flip_bit(path, 8 * 20)
    assert kinds(logstore.verify(copy)) == ["damaged-batch"]


def test_a_tail_that_is_torn_in_a_closed_store_is_a_problem(partition: Path) -> None:
    """Closing made it durable."""
    path = logs_in(partition)[-1]
    size = path.stat().st_size
    cut(path, size - 3)
    report = logstore.verify(partition.parent)
    assert set(kinds(report)) == {"partial-batch", "lost-bytes"}
    lost = next(p for p in report.problems if p.kind == "lost-bytes")
    assert (lost.position, lost.last_offset) == (size - 3, RECORDS - 1)


def test_bytes_behind_a_closed_log_are_a_problem(partition: Path) -> None:
    """Nobody of us wrote them."""
    path = logs_in(partition)[-1]
    size = path.stat().st_size
    append_garbage(path)
    report = logstore.verify(partition)
    extra = next(p for p in report.problems if p.kind == "extra-bytes")
    assert extra.position == size


@pytest.mark.parametrize(
    "tail", [b"", b"\0" * 500, b"\1garbage" * 9, b"\xffgarbage" * 9]
)
def test_a_tail_of_another_program_s_log_is_a_note(
    partition: Path, tail: bytes
) -> None:
    """Without any mark of a clean stop, the end may be torn."""
    forget_state(partition)
    path = logs_in(partition)[-1]
    path.write_bytes(path.read_bytes() + tail)
    report = logstore.verify(partition.parent)
    assert report.ok
    assert ("torn-tail" in note_kinds(report)) == bool(tail)
    assert "unclean-stop" in note_kinds(report)


def test_a_tail_that_may_be_of_a_newer_format_is_a_problem(partition: Path) -> None:
    """Opening does not cut it, and takes no appends: where another program wrote last,
    a magic above 2 may be its own."""
    forget_state(partition)
    append_garbage(logs_in(partition)[-1], b"garbage " * 9)
    assert kinds(logstore.verify(partition.parent)) == ["unsupported"]
    with logstore.open(partition.parent) as store:
        labels = [action.label for action in store.recovery_report.actions]
    assert labels == ["unsupported"]


def test_damage_before_sound_batches_is_no_torn_tail(partition: Path) -> None:
    """Where nothing tells how far the log is durable, what follows shows it."""
    forget_state(partition)
    path = logs_in(partition)[-1]
    flip_bit(path, 8 * (frames(path)[0].pos + 20))
    assert kinds(logstore.verify(partition)) == ["damaged-batch"]


def test_a_log_that_ends_before_kafka_s_recovery_point_is_a_problem(
    partition: Path,
) -> None:
    """Kafka had flushed more."""
    forget_state(partition)
    point = partition.parent / "recovery-point-offset-checkpoint"
    point.write_text(f"0\n1\norders 0 {RECORDS + 7}\n")
    problem = the_problem(logstore.verify(partition.parent))
    assert problem.kind == "lost-bytes"
    assert (problem.first_offset, problem.last_offset) == (RECORDS, RECORDS + 6)


def test_a_segment_that_is_gone_is_a_problem(partition: Path) -> None:
    """logstore's state knows of it."""
    path = logs_in(partition)[1]
    path.unlink()
    report = logstore.verify(partition)
    problem = the_problem(report)
    assert (problem.kind, problem.path) == ("lost-segment", str(path))
    assert problem.first_offset == int(path.stem)
    assert note_kinds(report) == ["orphan", "orphan"]


def test_all_segments_gone_is_a_problem(partition: Path) -> None:
    """Also where only Kafka's recovery point tells."""
    for path in [*partition.iterdir(), partition.parent / ".logstore-owner"]:
        path.unlink()
    assert "lost-segment" in kinds(logstore.verify(partition.parent))


def test_a_partition_that_is_gone_is_a_problem(partition: Path) -> None:
    """logstore's list of topics knows of it."""
    shutil.rmtree(partition)
    assert kinds(logstore.verify(partition.parent)) == ["lost-segment"]


def test_a_segment_that_ends_with_another_offset_is_a_problem(partition: Path) -> None:
    """The last offset of a sealed segment was changed, which no checksum covers."""

    def change(value: dict[str, object]) -> None:
        sealed = value["sealed"]
        assert isinstance(sealed, list)
        sealed[0][2] += 1

    change_state(partition, change)
    assert kinds(logstore.verify(partition)) == ["offsets"]


# ------------------------------------------------------------------ strange files


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
@pytest.mark.parametrize("suffix", [".log", ".index", ".snapshot"])
def test_what_is_no_regular_file_is_a_problem(
    partition: Path, what: str, suffix: str
) -> None:
    """It is not opened, not followed, and the rest is checked."""
    path = partition / f"{5000:020d}{suffix}"
    if what == "link":
        path.symlink_to(logs_in(partition)[0])
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    report = logstore.verify(partition.parent)
    problem = the_problem(report)
    assert (problem.kind, problem.path) == ("not-a-regular-file", str(path))
    assert report.records == RECORDS


def test_a_partition_that_is_a_link_is_a_problem(partition: Path) -> None:
    """It is not followed."""
    link = partition.parent / "orders-1"
    link.symlink_to(partition)
    report = logstore.verify(partition.parent)
    assert the_problem(report).path == str(link)
    assert report.records == RECORDS


def test_a_file_that_cannot_be_read_is_a_problem(partition: Path) -> None:
    """The system refuses one segment; the others are checked."""
    bad = logs_in(partition)[1]

    class Refusing(Files):
        def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
            if name == bad.name:
                raise PermissionError(13, "no", name)
            return super().open(dir_fd, name, write=write)

    report = logstore.verify(partition, files=Refusing())
    problem = the_problem(report)
    assert (problem.kind, problem.path) == ("unreadable", str(bad))
    assert report.segments == len(logs_in(partition))


def test_leftovers_are_notes(partition: Path) -> None:
    """Of deletions and compactions; also directories in the store."""
    (partition / f"{3:020d}.log.deleted").write_bytes(b"?")
    (partition / f"{7:020d}.log.cleaned").write_bytes(b"?")
    (partition.parent / f"gone-0.{'ab' * 16}-delete").mkdir()
    (partition.parent / "lost+found").mkdir()
    report = logstore.verify(partition.parent)
    assert report.ok
    assert note_kinds(report) == ["leftover", "foreign", "leftover", "leftover"]


def test_a_log_that_becomes_longer_meanwhile_is_noted(partition: Path) -> None:
    """Somebody is writing to it."""
    path = logs_in(partition)[-1]

    class Writing(Files):
        def read(self, fd: int, buffer: object, pos: int) -> int:
            with path.open("ab") as file:
                file.write(b"\0")
            return super().read(fd, buffer, pos)  # type: ignore[arg-type]

    forget_state(partition)
    report = logstore.verify(path, files=Writing())
    assert "in-use" in note_kinds(report)


# ------------------------------------------------------------------ indexes


def index_of(partition: Path, slot: int = 0, suffix: str = ".index") -> Path:
    """The index of a segment."""
    return logs_in(partition)[slot].with_suffix(suffix)


def entry_bytes(path: Path) -> int:
    return 8 if path.suffix == ".index" else 12


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", ["odd-size", "zero-tail", "swapped", "beyond", "changed"]
)
def test_a_bad_index_is_a_problem_in_a_sealed_segment(
    partition: Path, suffix: str, damage: str
) -> None:
    """One problem a file, with the position of the first bad entry."""
    path = index_of(partition, 0, suffix)
    data, size = path.read_bytes(), entry_bytes(path)
    count = len(data) // size
    entries = [data[slot * size : (slot + 1) * size] for slot in range(count)]
    expected = len(data)
    if damage == "odd-size":
        data += b"\1"
    elif damage == "zero-tail":
        data += bytes(4 * size)
    elif damage == "swapped":
        entries[1], entries[2] = entries[2], entries[1]
        data, expected = b"".join(entries), None
    elif damage == "beyond":
        extra = (1 << 20, 1 << 20) if size == 8 else (1 << 60, 1 << 20)
        data += struct.pack(">ii" if size == 8 else ">qi", *extra)
    else:
        number = int.from_bytes(entries[1], "big") ^ (1 if size == 8 else 1 << 40)
        entries[1] = number.to_bytes(size, "big")
        data, expected = b"".join(entries), size
    path.write_bytes(data)
    problem = the_problem(logstore.verify(partition))
    kind = "offset-index" if suffix == ".index" else "time-index"
    assert (problem.kind, problem.path) == (kind, str(path))
    if expected is not None:
        assert problem.position == expected
    assert the_problem(logstore.verify(path)).position == problem.position


def test_an_entry_whose_offset_lies_before_its_position_is_a_problem(
    partition: Path,
) -> None:
    """A search for that offset would begin behind it."""
    path = index_of(partition)
    offset, pos = struct.unpack_from(">ii", path.read_bytes(), 8)
    overwrite(path, 8, struct.pack(">ii", offset - 1, pos))
    assert the_problem(logstore.verify(partition)).kind == "offset-index"


def test_bad_indexes_of_an_active_segment_after_a_crash_are_notes(
    partition: Path,
) -> None:
    """Opening makes them anew: zeros behind the entries, or entries past the log."""
    forget_state(partition)
    index, times = index_of(partition, -1), index_of(partition, -1, ".timeindex")
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 5000, 1 << 20))
    times.write_bytes(times.read_bytes() + bytes(120))
    report = logstore.verify(partition)
    assert report.ok
    assert sorted(note_kinds(report)) == ["offset-index", "zero-tail"]


def test_a_missing_offset_index_is_a_note(partition: Path) -> None:
    """Readers do without it until it is built; one for the time is like that, too."""
    index_of(partition).unlink()
    index_of(partition, 1, ".timeindex").unlink()
    report = logstore.verify(partition)
    assert report.ok
    assert set(note_kinds(report)) == {"missing-index"}
    assert len(report.notes) == 2


def test_a_time_index_without_its_largest_timestamp_is_a_problem(
    partition: Path,
) -> None:
    """Retention by time would go by an older one."""
    path = index_of(partition, 0, ".timeindex")
    path.write_bytes(path.read_bytes()[:-12])
    assert the_problem(logstore.verify(partition)).kind == "time-index"


def golden_with(suffix: str, tmp_path: Path) -> Path:
    """A copy of a golden partition that has such a file; the file."""
    found = sorted(SLICE.glob(f"*/clean/*/*{suffix}"))
    path = max(found, key=lambda each: each.stat().st_size)
    copy = tmp_path / "store"
    shutil.copytree(path.parents[1], copy)
    return copy / path.parent.name / path.name


@pytest.mark.parametrize("damage", ["cut", "version", "offset"])
def test_a_bad_transaction_index_is_a_problem(tmp_path: Path, damage: str) -> None:
    """Size, version, or an ABORT marker that is not there (`deep`)."""
    path = golden_with(".txnindex", tmp_path)
    size = path.stat().st_size
    if damage == "cut":
        cut(path, size - 1)
    elif damage == "version":
        overwrite(path, 0, b"\x00\x07")
    else:
        flip_bit(path, 8 * (size - 34 + 9))  # its producer id
    report = logstore.verify(path.parent, deep=True)
    assert kinds(report) == ["transaction-index"]
    assert report.problems[0].path == str(path)


# ------------------------------------------------------------------ small files


def test_a_bad_producer_snapshot_is_a_problem_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    """And a note after a crash, which may leave a part of one."""
    path = golden_with(".snapshot", tmp_path)
    cut(path, path.stat().st_size - 1)
    assert kinds(logstore.verify(tmp_path / "store")) == ["producer-snapshot"]
    assert kinds(logstore.verify(path)) == ["producer-snapshot"]
    (tmp_path / "store" / ".kafka_cleanshutdown").unlink()
    report = logstore.verify(tmp_path / "store")
    assert report.ok
    assert "producer-snapshot" in note_kinds(report)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recovery-point-offset-checkpoint", "0\n2\norders 0 5\n"),
        ("log-start-offset-checkpoint", "7\n0\n"),
        ("replication-offset-checkpoint", "0\n1\norders zero 5\n"),
        ("cleaner-offset-checkpoint", "0\n1\norders 5\n"),
        ("orders-0/leader-epoch-checkpoint", "0\n2\n5 10\n4 20\n"),
        ("orders-0/partition.metadata", "version: 0\ntopic_id: short"),
    ],
)
def test_a_bad_checkpoint_is_a_problem(partition: Path, name: str, text: str) -> None:
    """In the store, in the partition, and by itself."""
    path = partition.parent / name
    path.write_text(text)
    assert ("checkpoint", str(path)) in [
        (p.kind, p.path) for p in logstore.verify(partition.parent).problems
    ]
    assert kinds(logstore.verify(path)) == ["checkpoint"]


@pytest.mark.parametrize(
    "name", [".logstore-owner", ".logstore-topics", "orders-0/.logstore-state"]
)
def test_damage_to_logstore_s_own_files_is_a_problem(
    partition: Path, name: str
) -> None:
    """In the store, and by itself."""
    path = partition.parent / name
    flip_bit(path, 8 * 40)
    report = logstore.verify(partition.parent)
    assert ("state", str(path)) in [(p.kind, p.path) for p in report.problems]
    assert kinds(logstore.verify(path)) == ["state"]


def test_another_writer_is_noted(partition: Path) -> None:
    """Then logstore's own state does not count."""
    (partition.parent / ".kafka_cleanshutdown").write_bytes(b"")
    (partition / ".logstore-state").unlink()
    report = logstore.verify(partition.parent)
    assert report.ok
    assert note_kinds(report) == ["other-writer"]


# ------------------------------------------------------------------ every bit


@pytest.mark.slow
@pytest.mark.parametrize(("magic", "codec"), [(0, "none"), (1, "gzip"), (2, "lz4")])
def test_every_flipped_bit_of_a_log_is_found(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Those outside the checksums, too: offset, length, leader epoch."""
    directory = write_store(
        tmp_path / "store", 12, magic, codec, segment_bytes=400, call=3
    )
    assert logstore.verify(directory, deep=True).ok
    for path in logs_in(directory):
        for bit in some(range(8 * path.stat().st_size), 300, path.name):
            flip_bit(path, bit)
            report = logstore.verify(directory, deep=True)
            assert not report.ok, (path.name, bit)
            flip_bit(path, bit)


# ------------------------------------------------------------------ rebuilding


def indexes(partition: Path) -> dict[str, bytes]:
    """The bytes of all index files."""
    paths = [*partition.glob("*.index"), *partition.glob("*.timeindex")]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("what", ["store", "partition", "log", "index"])
def test_rebuild_index_makes_what_was_there(partition: Path, what: str) -> None:
    """With the interval of the topic; sealed segments and the closed last one."""
    before = indexes(partition)
    for name in before:
        (partition / name).write_bytes(b"\xff" * 24)
    log = logs_in(partition)[0]
    target = {
        "store": partition.parent,
        "partition": partition,
        "log": log,
        "index": log.with_suffix(".index"),
    }[what]
    built = logstore.rebuild_index(target)
    logs = logs_in(partition) if what in ("store", "partition") else [log]
    assert [path for path, _, _ in built] == [str(path) for path in logs]
    for path, entries, times in built:
        index = Path(path).with_suffix(".index")
        assert index.stat().st_size == 8 * entries
        assert index.with_suffix(".timeindex").stat().st_size == 12 * times
        assert index.read_bytes() == before[index.name]
    if what in ("store", "partition"):
        assert indexes(partition) == before
        assert logstore.verify(partition.parent).ok
        with logstore.open(partition.parent) as store:
            assert not store.recovery_report


def test_rebuild_index_dry_run_changes_nothing(partition: Path) -> None:
    """It tells the same numbers."""
    (partition / f"{0:020d}.index").unlink()
    before = snapshot_of(partition.parent)
    told = logstore.rebuild_index(partition, dry_run=True)
    assert snapshot_of(partition.parent) == before
    assert told == logstore.rebuild_index(partition)
    with logstore.open(partition.parent):
        assert told == logstore.rebuild_index(partition, dry_run=True)


def test_rebuild_index_under_a_writer_raises(partition: Path) -> None:
    """Of this process, too, whose lock must survive the attempt."""
    with logstore.open(partition.parent):
        for _ in range(2):
            with pytest.raises(logstore.StoreLockedError):
                logstore.rebuild_index(partition)
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(partition.parent)
    assert logstore.rebuild_index(partition)


def test_rebuild_index_of_a_damaged_log_raises_and_builds_the_others(
    partition: Path,
) -> None:
    """The indexes of the damaged one stay as they were."""
    bad, other = logs_in(partition)[:2]
    flip_bit(bad, 8 * 20)
    kept, lost = bad.with_suffix(".index"), other.with_suffix(".index")
    before = kept.read_bytes(), lost.read_bytes()
    lost.unlink()
    with pytest.raises(logstore.CorruptRecordError):
        logstore.rebuild_index(partition)
    assert (kept.read_bytes(), lost.read_bytes()) == before


def test_rebuild_index_tells_each_damaged_log_and_what_it_built(
    partition: Path,
) -> None:
    """With `on_damage` nothing is raised; each error has the end of its damage: the
    next batch, or the next segment."""
    first, second = logs_in(partition)[:2]
    flip_bit(first, 8 * 20)
    frame = frames(second)[-1]
    flip_bit(second, 8 * (frame.pos + frame.size - 1))
    errors: list[Any] = []
    built = logstore.rebuild_index(partition, on_damage=errors.append)
    assert [Path(path) for path, _, _ in built] == logs_in(partition)[2:]
    assert [error.path for error in errors] == [str(first), str(second)]
    ranges = [(error.offset, error.next_offset) for error in errors]
    after = int(logs_in(partition)[2].stem)
    assert ranges == [(0, frames(first)[1].offset), (frame.offset, after)]
    assert f"reading can go on at offset {after}." in str(errors[1])
    calls: list[tuple[int, int]] = []
    logstore.rebuild_index(
        partition,
        on_damage=errors.append,
        on_progress=lambda done, total: calls.append((done, total)),
    )
    sizes = [log.stat().st_size for log in logs_in(partition)]
    assert calls[-1] == (sum(sizes[2:]), sum(sizes))
    errors.clear()
    assert logstore.rebuild_index(first, on_damage=errors.append) == ()
    assert len(errors) == 1


def test_rebuild_index_goes_on_behind_a_partition_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    """The system refuses one directory; the indexes of the others are built."""
    with logstore.open(tmp_path) as store:
        for name in ("a", "b"):
            store.create_topic(name)[0].append(b"x")
    index = tmp_path / "b-0" / f"{0:020d}.index"
    index.unlink(missing_ok=True)
    faulty = FaultyFiles()
    faulty.fail("open_directory", errno.EIO, name="a-0")
    errors: list[logstore.LogStoreError] = []
    built = logstore.rebuild_index(tmp_path, on_damage=errors.append, files=faulty)
    assert [path for path, _, _ in built] == [str(index.with_suffix(".log"))]
    assert [type(error) for error in errors] == [logstore.StorageError]


@pytest.mark.parametrize(
    "name", ["nothing", "orders-0/x.log", f"orders-0/{77:020d}.log"]
)
def test_rebuild_index_of_nothing_raises(partition: Path, name: str) -> None:
    """A path that is not there, or is no segment."""
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.rebuild_index(partition.parent / name)


# ------------------------------------------------------------------ one file


@every_format
def test_inspect_file_gives_every_batch(tmp_path: Path, magic: int, codec: str) -> None:
    """With the records, and the stored checksums of messages."""
    directory = write_store(tmp_path / "store", 20, magic, codec)
    contents = inspect_file(logs_in(directory)[0])
    assert (contents.kind, contents.base_offset) == ("log", 0)
    entries = list(contents.entries)
    assert [entry.damage for entry in entries] == [None] * len(entries)
    assert [r.offset for entry in entries for r in entry.batch] == list(range(20))
    wanted = 20 if magic < 2 else 0
    assert sum(len(entry.checksums()) for entry in entries) == wanted


def test_inspect_file_goes_on_behind_damage(partition: Path) -> None:
    """A bad batch with what its header says, bytes that are none, the torn end."""
    path = logs_in(partition)[0]
    found = frames(path)
    flip_bit(path, 8 * (found[1].pos + 20))
    zero(path, found[3].pos, found[4].pos)
    append_garbage(path)
    entries = list(inspect_file(path).entries)
    assert [entry.damage is None for entry in entries[:5]] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert entries[1].batch is not None
    assert entries[3].batch is None
    assert entries[-1].batch is None
    assert sum(entry.size_bytes for entry in entries) == path.stat().st_size


def test_inspect_file_of_a_missing_or_foreign_file_raises(tmp_path: Path) -> None:
    """It names the path."""
    for name in ("a.txt", f"{0:020d}.log"):
        with pytest.raises(logstore.StoreNotFoundError, match=name):
            inspect_file(tmp_path / name)


def test_verify_reads_large_batches(tmp_path: Path) -> None:
    """One that is larger than the buffer."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store, 2, max_message_bytes=4 << 20)
        orders.append(bytes(3 << 20))
        orders.append(b"next")
    report = logstore.verify(tmp_path, deep=True)
    assert (report.ok, report.batches, report.records) == (True, 2, 2)


# ------------------------------------------------------------------ threads


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_verify_in_threads_reports_the_same(
    tmp_path: Path, threads: int, deep: bool
) -> None:
    """Problems and notes in the same order, the same counts, on a store with damage in
    each of its partitions."""
    path = tmp_path / "store"
    with logstore.open(path) as store:
        for number in range(5):
            topic = store.create_topic(
                f"t{number}",
                config=logstore.TopicConfig(**SMALL, message_format=number % 3),
            )
            fill(topic[0], RECORDS)
    for number in range(5):
        logs = logs_in(path / f"t{number}-0")
        zero(logs[1], 100, 300)
        append_garbage(logs[-1])
        flip_bit(logs[0], 8 * 70)
        logs[2].with_suffix(".index").write_bytes(b"\x01" * 20)
    one = logstore.verify(path, deep, threads=1)
    assert len(one.problems) > 15
    for _ in range(3):
        assert logstore.verify(path, deep, threads=threads) == one


def test_verify_in_threads_tells_a_progress_that_rises(partition: Path) -> None:
    """One call at a time, up to the end."""
    told: list[int] = []
    report = logstore.verify(
        partition, on_progress=lambda done, total: told.append(done), threads=4
    )
    assert told == sorted(told)
    assert told[-1] == report.bytes


@pytest.mark.parametrize("threads", [1, 4])
def test_verify_ends_with_what_its_progress_raises(
    partition: Path, threads: int
) -> None:
    """All threads end, and no more calls are made."""
    calls: list[int] = []

    def fail(done: int, total: int) -> None:
        calls.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        logstore.verify(partition.parent, on_progress=fail, threads=threads)
    assert len(calls) <= threads


@pytest.mark.parametrize("threads", [0, 65, 1.5, True, "2"])
def test_verify_refuses_a_bad_number_of_threads(
    partition: Path, threads: object
) -> None:
    """Before anything is opened."""
    with pytest.raises(logstore.ConfigError, match="threads"):
        logstore.verify(partition, threads=threads)  # type: ignore[arg-type]


def test_what_looks_like_a_message_in_a_damaged_wrapper_is_not_believed(
    tmp_path: Path,
) -> None:
    """Behind a damaged length the search goes on at every byte; an offset that no
    segment can have does not end it, and does not overlap with those that follow."""
    partition = write_store(
        tmp_path, 90, 0, "snappy", call=3, segment_bytes=900, index_interval_bytes=100
    )
    for log in logs_in(partition):
        for frame in frames(log)[:-1]:
            flip_bit(log, 8 * (frame.pos + 8) + 1)
            report = logstore.verify(partition, deep=True)
            assert kinds(report) == ["partial-batch"], (log, frame)
            flip_bit(log, 8 * (frame.pos + 8) + 1)


def test_verify_decompresses_up_to_the_limit_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is larger is noted and not looked into; in the command as well."""
    size = 100_000
    with logstore.open(tmp_path) as store:
        new_partition(store, 2, "gzip").append_many([bytes(size)])
    small = logstore.StoreConfig(max_batch_decompressed_bytes=size // 2)
    large = logstore.StoreConfig(max_batch_decompressed_bytes=2 * size)
    assert logstore.verify(tmp_path, deep=True, store_config=large).notes == ()
    (note,) = logstore.verify(tmp_path, deep=True, store_config=small).notes
    assert f"max_batch_decompressed_bytes={size // 2}" in note.message
    command = ["verify", "--deep", str(tmp_path), "--max-batch-decompressed-bytes"]
    assert main([*command, str(2 * size)]) == 0
    assert "note:" not in capsys.readouterr().out
    assert main([*command, str(size // 2)]) == 0
    assert f"max_batch_decompressed_bytes={size // 2}" in capsys.readouterr().out


@pytest.mark.parametrize("magic", [1, 2])
def test_repair_decompresses_up_to_the_limit_that_it_is_given(
    tmp_path: Path, magic: int
) -> None:
    """Damage inside of a batch that is larger is not seen; what is not looked into is
    not taken out."""
    size = 100_000
    with logstore.open(tmp_path) as store:
        new_partition(store, magic, "gzip").append_many([bytes(size)])
    path = logs_in(tmp_path / "orders-0")[0]
    frame = frames(path)[0]
    overwrite(path, frame.pos + frame.size - 12, b"\xff" * 8)
    fix_crc(path, frame)
    small = logstore.StoreConfig(max_batch_decompressed_bytes=size // 2)
    large = logstore.StoreConfig(max_batch_decompressed_bytes=2 * size)
    assert (
        logstore.repair(tmp_path, "cut", dry_run=True, store_config=small).actions == ()
    )
    assert (
        logstore.repair(tmp_path, "cut", dry_run=True, store_config=large).actions != ()
    )


def test_directory_that_cannot_be_listed_is_a_named_error(tmp_path: Path) -> None:
    """No descriptor is left, perhaps."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 1)[0].append(b"x")
    for call in (logstore.verify, logstore.rebuild_index):
        files = FaultyFiles()
        files.fail("list", errno.EMFILE)
        with pytest.raises(logstore.StorageError, match="Too many open files"):
            call(tmp_path, files=files)  # type: ignore[operator]
