"""The identity of topics: kept through everything except re-creation."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.topic_identity import TopicIdentity, derived_id
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.damage import FullDisk, flip_bit

KAFKA_ID = "0123456789abcdef0123456789abcdef"


def another_program_writes(path: Path) -> None:
    """Leave the directory as after a broker."""
    points = path / layout.RECOVERY_CHECKPOINT
    points.write_text(f"0\n1\nx 0 {len(points.read_bytes())}\n")
    (path / layout.CLEAN_SHUTDOWN).unlink(missing_ok=True)


def kafka_gives_id(path: Path, topic_id: str = KAFKA_ID) -> None:
    raw = base64.urlsafe_b64encode(bytes.fromhex(topic_id)).rstrip(b"=")
    (path / layout.PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: %s\n" % raw)


def make_again(path: Path) -> None:
    """Replace the directory, as a broker does that creates the topic again."""
    shutil.rmtree(path)
    path.mkdir(0o700)
    (path / "00000000000000000000.log").touch()


def identity_of(path: Path) -> TopicIdentity | None:
    return TopicIdentity.read(Directory.open_root(Files(), str(path)))


def ids_of(path: Path) -> dict[str, str]:
    """Topic ids that a reader sees."""
    with logstore.open(path, read_only=True) as store:
        return {topic.name: topic[topic.numbers[0]].topic_id for topic in store}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a topic that was written to, in one of its two partitions."""
    with logstore.open(tmp_path / "store") as store:
        store.create_topic("t", 2)[0].append(b"x", durable=True)
    return tmp_path / "store"


def topic_id(path: Path) -> str:
    return ids_of(path)["t"]


def test_partition_is_identified_by_its_first_append(tmp_path: Path) -> None:
    """An empty partition has no identity file."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("t", 2)
        assert not list((tmp_path / "t-0").iterdir())
        topic[0].append(b"x")
        found = identity_of(tmp_path / "t-0")
        assert found is not None
        assert found[:3] == (topic[0].topic_id, "t", 0)
        assert identity_of(tmp_path / "t-1") is None


def test_first_append_without_room_for_the_identity_fails(tmp_path: Path) -> None:
    """The log is not begun without it."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = store.create_topic("t")[0]
        store.create_topic("other")[0].append(b"x")
        files.full = True
        with pytest.raises(logstore.DiskFullError, match="Nothing was written"):
            partition.append(b"x")
        files.full = False
        assert partition.append(b"x") == 0
    assert identity_of(tmp_path / "t-0") is not None


class Unlistable(Files):
    """Lists no directory while `is_refused` is set."""

    is_refused = False

    def list(self, dir_fd: int, *, directories: bool = False) -> Any:
        if self.is_refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().list(dir_fd, directories=directories)


def test_first_append_lists_no_directory(tmp_path: Path) -> None:
    """The writer knows whether there is a segment: no lookup is needed."""
    files = Unlistable()
    with open_store(tmp_path, _files=files) as store:
        partition = store.create_topic("t")[0]
        files.is_refused = True
        assert partition.append(b"x", durable=True) == 0
        files.is_refused = False


class Counting(Files):
    """Counts the syncs of files and of directories."""

    def __init__(self) -> None:
        self.files = self.directories = 0

    def sync(self, fd: int) -> None:
        self.files += 1
        super().sync(fd)

    def sync_directory(self, dir_fd: int) -> None:
        self.directories += 1
        super().sync_directory(dir_fd)


def test_identity_costs_a_partition_one_sync_of_a_small_file(tmp_path: Path) -> None:
    """The directory is synced for the name of the first segment in any case. The
    topic's first partition also writes the settings, after the identity."""
    files = Counting()
    with open_store(tmp_path, _files=files) as store:
        topic, found = store.create_topic("t", 3), []
        for number in range(3):
            before = files.files, files.directories
            topic[number].append(b"x")
            found.append((files.files - before[0], files.directories - before[1]))
    # The file with the identity, and the state; each segment's name, and the state's.
    assert found == [(3, 3), (2, 2), (2, 2)]


@pytest.mark.parametrize("what", ["another program", "owner", "topics", "identity"])
@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_id_outlives_the_loss_of_one_file(path: Path, what: str, how: str) -> None:
    """The partition and the catalog both store it."""
    before = topic_id(path)
    if what == "another program":
        another_program_writes(path)
    else:
        name = {
            "owner": layout.OWNER,
            "topics": layout.TOPICS,
            "identity": f"t-0/{layout.TOPIC_IDENTITY}",
        }[what]
        if how == "lost":
            (path / name).unlink()
        else:
            flip_bit(path / name, 40)
    assert topic_id(path) == before
    with logstore.open(path) as store:
        store["t"][0].append(b"y")
        assert store["t"][0].topic_id == before
    assert topic_id(path) == before
    found = identity_of(path / "t-0")
    assert found is not None
    assert found.topic_id == before


def test_id_lost_with_both_files_is_kafkas(path: Path) -> None:
    """If neither of logstore's files has it, Kafka's own file may."""
    kafka_gives_id(path / "t-0")
    (path / layout.TOPICS).unlink()
    (path / "t-0" / layout.TOPIC_IDENTITY).unlink()
    assert topic_id(path) == KAFKA_ID


def test_id_that_nothing_tells_is_renewed_and_reported(path: Path) -> None:
    """The topic gets a new id, and the report says so."""
    before = topic_id(path)
    (path / layout.TOPICS).unlink()
    (path / "t-0" / layout.TOPIC_IDENTITY).unlink()
    assert topic_id(path) == ""
    with logstore.open(path) as store:
        store["t"][0].append(b"y")
        labels = [action.label for action in store.recovery_report.actions]
        after = store["t"][0].topic_id
    assert labels == ["id-renewed"]
    assert after not in ("", before)
    assert topic_id(path) == after


@pytest.mark.parametrize(
    "left",
    ["", f"{layout.TOPIC_IDENTITY}.tmp", f"{layout.TORN_PREFIX}{0:020d}-0"],
)
def test_id_of_a_topic_that_had_none_is_not_renewed(tmp_path: Path, left: str) -> None:
    """A topic that only Kafka has used has had no id, also if the first append to it
    was killed before its identity was there, or a recovery has put bytes aside."""
    of_kafka = tmp_path / "t-0"
    of_kafka.mkdir()
    (of_kafka / "00000000000000000000.log").touch()
    with logstore.open(tmp_path) as store:
        store.create_topic("other")[0].append(b"x")  # the directory is logstore's now
    if left:
        (of_kafka / left).touch()
    with logstore.open(tmp_path) as store:
        assert store["t"][0].append(b"y") == 0
        assert not store.recovery_report.actions
    assert topic_id(tmp_path)


def test_topic_made_again_by_another_program_has_another_id(path: Path) -> None:
    """The catalog has an id, but the directories have no files of logstore."""
    before = topic_id(path)
    another_program_writes(path)
    for number in range(2):
        make_again(path / f"t-{number}")
    assert topic_id(path) == ""
    with logstore.open(path) as store:
        store["t"][0].append(b"y")
    assert topic_id(path) not in ("", before)


def test_topic_fetched_anew_under_kafkas_id_is_the_same(path: Path) -> None:
    """A broker that has lost its disk copies the topic from another broker."""
    before = topic_id(path)
    kafka_gives_id(path / "t-0")
    another_program_writes(path)
    with logstore.open(path) as store:
        store["t"][0].append(b"y")
    another_program_writes(path)
    for number in range(2):
        make_again(path / f"t-{number}")
    kafka_gives_id(path / "t-0")
    assert topic_id(path) == before
    kafka_gives_id(path / "t-0", "f" * 32)
    assert topic_id(path) == "f" * 32


def test_topic_that_was_never_written_to_keeps_its_id(tmp_path: Path) -> None:
    """Another program may write to it first: its directory has no file of logstore in
    any case."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t")
    before = topic_id(tmp_path)
    another_program_writes(tmp_path)
    make_again(tmp_path / "t-0")
    assert topic_id(tmp_path) == before


def test_kafkas_metadata_does_not_change_an_id(path: Path) -> None:
    """The page on hand-over recommends to copy the file of the new cluster."""
    before = topic_id(path)
    kafka_gives_id(path / "t-0")
    another_program_writes(path)
    assert topic_id(path) == before


def test_topic_of_kafka_alone_has_kafkas_id(tmp_path: Path) -> None:
    """The id stays after a first append."""
    (tmp_path / "t-0").mkdir(0o700)
    (tmp_path / "t-0" / "00000000000000000000.log").touch()
    assert topic_id(tmp_path) == ""
    kafka_gives_id(tmp_path / "t-0")
    assert topic_id(tmp_path) == KAFKA_ID
    with logstore.open(tmp_path) as store:
        store["t"][0].append(b"x")
    kafka_gives_id(tmp_path / "t-0", "f" * 32)
    assert topic_id(tmp_path) == KAFKA_ID


@pytest.mark.parametrize("is_foreign", [False, True])
def test_topic_that_was_moved_keeps_its_id_and_settings(
    path: Path, is_foreign: bool
) -> None:
    """Its directories have another name, and the old ones are gone."""
    before = topic_id(path)
    with logstore.open(path) as store:
        store["t"].configure(logstore.TopicConfig(segment_bytes=5000))
    for number in range(2):
        (path / f"t-{number}").rename(path / f"u-{number}")
    if is_foreign:
        another_program_writes(path)
    assert ids_of(path) == {"u": before}
    with logstore.open(path) as store:
        assert not [a for a in store.recovery_report.actions if a.topic]
        assert store["u"].config.segment_bytes == 5000
        store["u"][0].append(b"y")
    assert ids_of(path) == {"u": before}
    found = identity_of(path / "u-0")
    assert found is not None
    assert found[:3] == (before, "u", 0)


def test_topic_that_was_moved_twice_keeps_its_id_and_settings(path: Path) -> None:
    """This holds even if nothing was appended under the second name, so that its
    directories still have the first one."""
    before = topic_id(path)
    with logstore.open(path) as store:
        store["t"].configure(logstore.TopicConfig(segment_bytes=5000))
    for now, then in (("t", "u"), ("u", "v"), ("v", "u")):
        for number in range(2):
            (path / f"{now}-{number}").rename(path / f"{then}-{number}")
        with logstore.open(path) as store:
            assert not store.recovery_report.actions
            assert store[then].config.segment_bytes == 5000
            if now == "t":
                store[then][0].append(b"y")
            else:
                store.create_topic(f"beside-{now}")  # the settings are written
        assert ids_of(path)[then] == before


def test_copy_of_a_topic_under_another_name_has_its_own_id(path: Path) -> None:
    """Otherwise data kept about the two would be mixed up."""
    before = topic_id(path)
    shutil.copytree(path / "t-0", path / "u-0")
    copied = derived_id(before, "u")
    assert ids_of(path) == {"t": before, "u": copied}
    with logstore.open(path) as store:
        store["u"][0].append(b"y")
        marks = store["t"][0].mark(), store["u"][0].mark()
    assert marks[0] is not None
    assert marks[1] is not None
    assert marks[0].log_id != marks[1].log_id
    assert ids_of(path) == {"t": before, "u": copied}


def test_log_of_a_copied_topic_has_the_id_that_its_owner_gives_it(path: Path) -> None:
    """A reader has it even before the first opening for writing: its marks count after
    that, and a follower continues."""
    shutil.copytree(path / "t-0", path / "u-0")
    with logstore.open(path, read_only=True) as store:
        log, original = store.topic("u")[0], store.topic("t")[0]
        mark, end = log.mark(), log.end_offset
        assert mark is not None
        assert mark != original.mark()
        follower = log.follow(timeout=1)
        for _ in range(end):
            next(follower)
        with logstore.open(path) as owner:
            partition = owner.topic("u")[0]
            assert partition.mark() == mark
            partition.append(b"x", durable=True)
            assert log.mark() == mark
        assert log.unchanged_below(mark) == original.unchanged_below(original.mark())
        assert next(follower).offset == end


def test_log_of_a_copied_topic_keeps_its_id_after_a_kill(path: Path) -> None:
    """Its state is written before `.logstore-topic`: otherwise both would claim that it
    is the original's log under the copy's name."""
    shutil.copytree(path / "t-0", path / "u-0")
    with logstore.open(path, read_only=True) as store:
        mark = store.topic("u")[0].mark()
    for count in (1, 2):
        pid = os.fork()
        if not pid:
            try:
                logstore.open(path).topic("u")[0].append(b"x")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        with logstore.open(path, read_only=True) as store:
            assert store.topic("u")[0].mark() == mark, count
            assert store.topic("t")[0].mark() != mark
    with logstore.open(path) as store:
        assert store.topic("u")[0].mark() == mark


@pytest.mark.parametrize("call", ["state", "identity"])
def test_log_of_a_copied_topic_whose_first_append_fails_keeps_its_id(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Either of the two files may have been written."""
    shutil.copytree(path / "t-0", path / "u-0")
    name = {"state": layout.PARTITION_STATE, "identity": layout.TOPIC_IDENTITY}[call]
    with logstore.open(path, read_only=True) as store:
        mark = store.topic("u")[0].mark()
    real = Directory.rename

    def rename(directory: Directory, old: str, new: str) -> None:
        if new == name and directory.name == "u-0":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(directory, old, new)

    with monkeypatch.context() as failing:
        failing.setattr(Directory, "rename", rename)
        store = logstore.open(path)
        with pytest.raises(logstore.StorageError):
            store.topic("u")[0].append(b"x")
        with contextlib.suppress(logstore.StorageError):
            store.close()
    with logstore.open(path) as store:
        assert store.topic("u")[0].mark() == mark
        store.topic("u")[0].append(b"x")
    with logstore.open(path) as store:
        assert store.topic("u")[0].mark() == mark
        assert store.topic("t")[0].mark() != mark


def test_partition_put_back_from_an_earlier_topic_takes_no_appends(
    path: Path,
) -> None:
    """It can be read, and has the id in its directory."""
    before = topic_id(path)
    shutil.copytree(path / "t-0", path.parent / "kept")
    with logstore.open(path) as store:
        store.delete_topic("t")
        topic = store.create_topic("t", 2)
        topic[0].append(b"new")
        topic[1].append(b"new")
    shutil.rmtree(path / "t-0")
    shutil.copytree(path.parent / "kept", path / "t-0")
    with logstore.open(path) as store:
        topic = store["t"]
        with pytest.raises(logstore.CorruptionError, match="another topic"):
            topic[0].append(b"y")
        topic[1].append(b"y")
        assert [record.value for record in topic[0].read()] == [b"x"]
        labels = [action.label for action in store.recovery_report.actions]
        assert "foreign-partition" in labels
        assert topic[0].topic_id == before != topic[1].topic_id
    (path / "t-0" / layout.TOPIC_IDENTITY).unlink()
    with logstore.open(path) as store:
        topic = store["t"]
        topic[0].append(b"y")
        assert topic[0].topic_id == topic[1].topic_id


def test_log_id_of_an_earlier_release_stays(path: Path) -> None:
    """Its marks stay valid."""
    with logstore.open(path) as store:
        mark = store["t"][0].mark()
    assert mark is not None
    (path / "t-0" / layout.TOPIC_IDENTITY).unlink()
    state = path / "t-0" / layout.PARTITION_STATE

    directory = Directory.open_root(Files(), str(path / "t-0"))
    value = checkpoints.read_state(directory, layout.PARTITION_STATE)
    assert value is not None
    checkpoints.write_state(directory, state.name, {**value, "log_id": "a" * 32})
    with logstore.open(path) as store:
        store["t"][0].append(b"y")
    found = identity_of(path / "t-0")
    assert found is not None
    assert found.log_id == "a" * 32


@pytest.mark.parametrize("is_owner", [True, False])
def test_handles_of_a_topic_that_was_made_again_raise(
    path: Path, is_owner: bool
) -> None:
    """Each handle holds the id of its topic; new handles have the new one."""
    with logstore.open(path) as store, contextlib.ExitStack() as stack:
        reading = store
        if not is_owner:
            reading = stack.enter_context(logstore.open(path, read_only=True))
        topic = reading["t"]
        partition = topic[0]
        before = topic_id(path)
        assert topic.id == partition.topic_id == before
        calls: list[Callable[[], object]] = [
            lambda: topic[0],
            lambda: len(topic),
            lambda: topic.id,
            lambda: topic.config,
            lambda: list(topic.read()),
            lambda: topic.append(b"z"),
            lambda: partition.get(0),
            lambda: partition.end_offset,
            lambda: partition.fetch(0),
            lambda: list(partition.read()),
            partition.mark,
        ]

        def check() -> None:
            for call in calls:
                with pytest.raises(
                    (logstore.TopicNotFoundError, logstore.errors.ReadOnlyError)
                ):
                    call()

        store.delete_topic("t")
        check()
        store.create_topic("t", 2)
        check()
        assert reading["t"].id != before
        assert reading["t"][0].end_offset == 0
        store["t"][0].append(b"new", durable=True)
        check()
        assert reading["t"][0].end_offset == 1


def test_partition_not_found_is_a_kind_of_topic_not_found() -> None:
    """A handler for the general error covers both."""
    assert issubclass(
        logstore.errors.PartitionNotFoundError, logstore.TopicNotFoundError
    )


def mark_of(path: Path) -> logstore.types.LogMark:
    """A mark after a sync, so that the state has it."""
    with logstore.open(path) as store:
        store["t"][0].append(b"known", durable=True)
        found = store["t"][0].mark()
    assert found is not None
    return found


def unchanged_after_opening(path: Path, mark: logstore.types.LogMark) -> int | None:
    """Result of `unchanged_below` for a mark in a new writer."""
    with logstore.open(path) as store:
        store["t"][0].append(b"more", durable=True)
        found = store["t"][0].unchanged_below(mark)
    with logstore.open(path, read_only=True) as store:
        assert store["t"][0].unchanged_below(mark) == found
    return found


@pytest.mark.parametrize("message_format", [0, 1, 2])
def test_mark_counts_up_to_the_batch_that_the_state_vouches_for(
    tmp_path: Path, message_format: int
) -> None:
    """Later batches may have been cut and replaced by another program."""
    path = tmp_path / "s"
    config = logstore.TopicConfig(message_format=message_format)
    with logstore.open(path) as store:
        store.create_topic("t", config=config)[0].append_many([b"x"] * 9)
    mark = mark_of(path)
    another_program_writes(path)
    assert unchanged_after_opening(path, mark) == 10
    # The next writer knows the appends of the previous one.
    assert unchanged_after_opening(path, mark) == 10


@pytest.mark.parametrize("how", ["cut", "other bytes", "no state"])
def test_mark_does_not_count_where_nothing_vouches_for_the_log(
    path: Path, how: str
) -> None:
    """The id alone does not prove that the log is unchanged."""
    mark = mark_of(path)
    log = path / "t-0" / "00000000000000000000.log"
    if how == "cut":
        data = log.read_bytes()
        log.write_bytes(data[: len(data) // 2])
    elif how == "other bytes":
        # The checksum of the last batch, which is a message of magic 1.
        data = bytearray(log.read_bytes())
        data[len(data) - 34 - len(b"known") + 12] ^= 1
        log.write_bytes(data)
    else:
        (path / "t-0" / layout.PARTITION_STATE).unlink()
    another_program_writes(path)
    with logstore.open(path) as store:
        now = store["t"][0].mark()
        assert now is not None
        assert now.log_id == mark.log_id
        assert store["t"][0].unchanged_below(mark) == 0


def test_high_watermark_of_a_broker_stays_where_the_log_does(path: Path) -> None:
    """The cut recorded after its writes removes nothing."""
    mark_of(path)
    points = path / layout.HIGH_WATERMARKS
    points.write_text("0\n1\nt 0 2\n")
    (path / "t-0" / layout.PARTITION_STATE).unlink()
    another_program_writes(path)
    for _ in range(2):
        with logstore.open(path) as store:
            store["t"][0].append(b"y")
        assert points.read_text() == "0\n1\nt 0 2\n"
