"""A run of `verify` over a store: its parts, its side effects, its result.

It finds nothing in an intact store; the neighbouring tests damage one each.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

import logstore
from logstore.cli.main import main
from support import verifying
from support.damage import (
    FaultyFiles,
    fix_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    snapshot_of,
    zero,
)
from support.golden import all_scenarios
from support.groups import consumer, drain, store_with
from support.values import (
    append_records,
    every_format,
    fill,
    new_partition,
    write_store,
)
from support.verifying import RECORDS, SMALL, note_kinds, the_problem

# Fixtures.
partition = verifying.partition


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
    """A check of each partition alone finds none either."""
    directory: Path = scenario.directory  # type: ignore[attr-defined]
    assert logstore.verify(directory, deep=deep).problems == ()
    partitions = [scenario_part.directory for scenario_part in scenario.partitions]  # type: ignore[attr-defined]
    assert logstore.verify(partitions, deep=deep).problems == ()


def test_verify_changes_nothing(partition: Path) -> None:
    """No name, size or time changes, even with damage."""
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
    """It rises to all bytes of the logs."""
    calls: list[tuple[int, int]] = []
    report = logstore.verify(
        partition, on_progress=lambda done, total: calls.append((done, total))
    )
    assert calls == sorted(calls)
    assert calls[-1] == (report.bytes, report.bytes)


def test_report_becomes_json(partition: Path) -> None:
    """`to_dict` is complete."""
    flip_bit(logs_in(partition)[0], 8 * 30)
    value = json.loads(json.dumps(logstore.verify(partition).to_dict()))
    assert value["ok"] is False
    assert value["problems"][0]["kind"] == "damaged-batch"
    assert value["segments"] == len(logs_in(partition))


@pytest.mark.parametrize("name", ["missing", "empty", "strange.txt"])
def test_verify_of_what_is_no_store_raises(tmp_path: Path, name: str) -> None:
    """A missing path, an empty directory, or a file of another kind."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "strange.txt").write_bytes(b"")
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.verify(tmp_path / name)


def test_verify_takes_several_paths(tmp_path: Path) -> None:
    """The counts are sums."""
    first = write_store(tmp_path / "a", 10)
    second = write_store(tmp_path / "b", 20)
    assert logstore.verify([first, tmp_path / "b"]).records == 30
    assert logstore.verify(logs_in(second)[0]).records == 20


def test_verify_reads_large_batches(tmp_path: Path) -> None:
    """A batch is larger than the buffer."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store, 2, max_message_bytes=4 << 20)
        orders.append(bytes(3 << 20))
        orders.append(b"next")
    report = logstore.verify(tmp_path, deep=True)
    assert (report.ok, report.batches, report.records) == (True, 2, 2)


def test_verify_decompresses_up_to_the_limit_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Larger batches are noted and not decompressed; in the command as well."""
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
    """Damage inside of a larger batch is not found; contents that are not checked are
    not removed."""
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
    """There may be no descriptor left."""
    with logstore.open(tmp_path) as store:
        store.create_topic("a", 1)[0].append(b"x")
    for call in (logstore.verify, logstore.rebuild_index):
        files = FaultyFiles()
        files.fail("list", errno.EMFILE)
        with pytest.raises(logstore.StorageError, match="Too many open files"):
            call(tmp_path, _files=files)  # type: ignore[operator]


@pytest.mark.parametrize("what", ["byte", "text"])
def test_damaged_file_of_a_group_is_a_problem(tmp_path: Path, what: str) -> None:
    """A member treats it in the same way; `verify`, the report and the hand-over show
    it."""
    store = store_with(tmp_path / "store")
    with consumer(store) as one:
        drain(one)
        one.commit()
    path = store / ".logstore-group-g"
    assert logstore.verify(store).ok
    if what == "byte":
        flip_bit(path, 8 * 40)
    else:
        path.write_bytes(b"somebody else's file\n" * 9)
    problem = the_problem(logstore.verify(store))
    assert (problem.kind, problem.path) == ("group", str(path))
    levels = {f.level for f in logstore.report(store).findings if f.kind == "damage"}
    assert levels == {"warning"}
    assert not logstore.kafka.check_handover(store, from_kafka=True).ok
