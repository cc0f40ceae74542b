"""The two files by which a process makes requests of the owner of a store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint import process_requests
from logstore.io.checkpoint.process_requests import (
    ANSWER_BYTES_MAX,
    RING_BYTES,
    SLOTS,
    FilesGoneError,
    ProcessFile,
    ServedProcess,
    Slot,
    process_of,
    remove_leftovers,
)
from logstore.io.directory import Directory
from logstore.io.files import Files

ID = "0123456789abcdef" * 2


@pytest.fixture
def root(tmp_path: Path) -> Directory:
    return Directory.open_root(Files(), str(tmp_path))


@pytest.fixture
def mine(root: Directory) -> Iterator[ProcessFile]:
    file = ProcessFile(root, ID, {"pid": 5})
    yield file
    file.close()


@pytest.fixture
def owner(root: Directory, mine: ProcessFile) -> Iterator[ServedProcess]:
    served = ServedProcess(root, ID)
    yield served
    served.close()


def put(file: ProcessFile, content: bytes) -> Slot:
    slot = file.put(content)
    assert slot is not None
    return slot


def contents(owner: ServedProcess, most: int = SLOTS) -> list[bytes | None]:
    """Contents that the owner takes; it answers with the same contents."""
    taken = owner.take(most, 1 << 30)
    for one in taken:
        owner.answer(one.slot, one.content or b"damaged")
    return [one.content for one in taken]


def test_requests_are_taken_in_order_and_answered(
    mine: ProcessFile, owner: ServedProcess
) -> None:
    slots = [put(mine, b"%d" % n) for n in range(3)]
    assert [slot.number for slot in slots] == [1, 2, 3]
    assert mine.answer(slots[0]) is None
    assert contents(owner, 2) == [b"0", b"1"]
    assert contents(owner) == [b"2"]
    assert contents(owner) == []
    assert [mine.answer(slot) for slot in slots] == [b"0", b"1", b"2"]
    assert (owner.id, owner.about["pid"], owner.is_alive) == (ID, 5, True)


def test_at_least_one_is_taken_however_large(
    mine: ProcessFile, owner: ServedProcess
) -> None:
    for _ in range(3):
        put(mine, bytes(1000))
    assert len(owner.take(SLOTS, 10)) == 1


def test_withdrawn_request_is_not_taken(
    mine: ProcessFile, owner: ServedProcess
) -> None:
    first, second = put(mine, b"1"), put(mine, b"2")
    assert mine.withdraw(first, lambda: False)
    assert contents(owner) == [b"2"]
    assert not mine.withdraw(second, lambda: False)  # it is answered
    third = put(mine, b"3")
    (taken,) = owner.take(1, 1 << 20)
    assert not mine.withdraw(third, lambda: False)  # it is being carried out
    owner.answer(taken.slot, b"done")
    assert mine.answer(third) == b"done"


def test_request_that_is_being_withdrawn_is_left(
    root: Directory, mine: ProcessFile, owner: ServedProcess
) -> None:
    """Later requests are not taken either: they are carried out in order."""
    for content in (b"1", b"2"):
        put(mine, content)
    other = ServedProcess(root, ID)
    (taken,) = other.take(1, 1 << 20)
    assert owner.take(SLOTS, 1 << 20) == []
    other.close()  # as an owner that is killed
    assert contents(owner) == [b"1", b"2"]
    assert taken.content == b"1"


def test_next_owner_takes_what_is_not_answered(
    root: Directory, mine: ProcessFile
) -> None:
    """Requests that were answered before are not taken."""
    first = ServedProcess(root, ID)
    slots = [put(mine, b"%d" % n) for n in range(3)]
    taken = first.take(2, 1 << 20)
    first.answer(taken[0].slot, b"done")
    first.close()
    second = ServedProcess(root, ID)
    assert contents(second) == [b"1", b"2"]
    assert mine.answer(slots[0]) == b"done"
    second.close()


def test_slots_and_ring_are_used_again(mine: ProcessFile, owner: ServedProcess) -> None:
    """Answers come in any order, and sizes vary; never more than fits."""
    rng = random.Random(5)
    waiting: list[tuple[Slot, bytes]] = []
    for _ in range(3000):
        content = rng.randbytes(rng.choice([1, 100, 60_000, 900_000]))
        slot = mine.put(content)
        if slot is not None:
            waiting.append((slot, content))
        assert sum(len(c) for _, c in waiting) <= RING_BYTES
        if slot is None or rng.random() < 0.3:
            for one in owner.take(rng.randrange(1, 9), 4 << 20):
                assert (one.slot, one.content) in waiting
                owner.answer(one.slot, b"%d" % one.slot.number)
        for one, content in list(waiting):
            if mine.answer(one) is not None:
                assert mine.answer(one) == b"%d" % one.number
                mine.free(one)
                waiting.remove((one, content))
    assert mine.put(b"x") is not None


def test_no_more_wait_than_there_are_slots(mine: ProcessFile) -> None:
    slots = [put(mine, b"x") for _ in range(SLOTS)]
    assert mine.put(b"x") is None
    mine.free(slots[1])
    assert mine.put(b"x") is None  # the first one still has its slot
    mine.free(slots[0])
    assert put(mine, b"x").number == SLOTS + 1


@pytest.mark.parametrize("pos", [8192, 4096 + 32 + 20])
def test_damaged_request_is_told_from_others(
    tmp_path: Path, mine: ProcessFile, owner: ServedProcess, pos: int
) -> None:
    """The checksum shows it."""
    put(mine, b"content")
    name = next(n for n in os.listdir(tmp_path) if process_of(n))
    with open(tmp_path / name, "r+b") as file:
        file.seek(pos)
        byte = file.read(1)
        file.seek(pos)
        file.write(bytes([byte[0] ^ 1]))
    taken = owner.take(1, 1 << 20)
    assert [one.content for one in taken] in ([None], [])


def test_lying_slots_cost_no_memory(
    tmp_path: Path, mine: ProcessFile, owner: ServedProcess
) -> None:
    """Sizes and positions are checked before anything is read."""
    put(mine, b"content")
    name = next(n for n in os.listdir(tmp_path) if process_of(n))
    for pos, size in ((0, (1 << 32) - 1), ((1 << 64) - 1, 5), (RING_BYTES, 1)):
        with open(tmp_path / name, "r+b") as file:
            file.seek(4096 + 32)
            file.write(process_requests._SLOT.pack(1, pos, size, 0, 0))
        (taken,) = owner.take(1, 1 << 20)
        assert taken.content is None
        owner._done[1] = 0


def test_torn_answer_is_none(
    tmp_path: Path, mine: ProcessFile, owner: ServedProcess
) -> None:
    slot = put(mine, b"1")
    contents(owner)
    (name,) = [n for n in os.listdir(tmp_path) if n.startswith(".logstore-answers")]
    data = bytearray((tmp_path / name).read_bytes())
    data[2048 + 20] ^= 1
    (tmp_path / name).write_bytes(data)
    assert mine.answer(slot) is None
    assert len(bytes(ANSWER_BYTES_MAX)) < 2048


def test_files_of_a_process_that_has_ended_are_removed(
    tmp_path: Path, root: Directory
) -> None:
    """A process counts as alive as long as it holds a lock on its byte."""
    file = ProcessFile(root, ID, {})
    put(file, b"1")
    owner = ServedProcess(root, ID)
    assert owner.is_alive
    file.close()  # with a request that waits: the files stay
    assert not owner.is_alive
    assert len(os.listdir(tmp_path)) == 2
    owner.remove()
    owner.close()
    assert not os.listdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        ServedProcess(root, ID)


def test_files_of_a_process_whose_answers_are_gone_are_removed_when_it_has_ended(
    tmp_path: Path, root: Directory
) -> None:
    """Its requests can be taken first: the owner decides which are carried out."""
    file = ProcessFile(root, ID, {})
    put(file, b"1")
    (answers,) = tmp_path.glob(".logstore-answers-*")
    answers.unlink()
    with pytest.raises(FileNotFoundError):
        ServedProcess(root, ID)  # it makes other files when it sees that
    file.close()
    owner = ServedProcess(root, ID)
    assert [taken.content for taken in owner.take(64, 1 << 20)] == [b"1"]
    owner.remove()
    owner.close()
    assert not os.listdir(tmp_path)


def test_request_whose_place_is_free_is_not_withdrawn(
    mine: ProcessFile, owner: ServedProcess
) -> None:
    """Another thread has taken its answer."""
    slot = put(mine, b"1")
    mine.free(slot)
    assert not mine.withdraw(slot, lambda: False)
    assert contents(owner) == [b"1"]


def test_closed_process_leaves_no_file(tmp_path: Path, root: Directory) -> None:
    file = ProcessFile(root, ID, {})
    slot = put(file, b"1")
    file.free(slot)
    file.close()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("kind", [Files, None], ids=["at once", "call by call"])
@pytest.mark.parametrize("change", ["process", "answers", "renamed", "replaced"])
def test_request_in_files_that_are_gone_is_refused(
    tmp_path: Path, kind: type[Files] | None, change: str
) -> None:
    """No process would find it. Nothing of it is there; the place of it is free."""
    root = Directory.open_root((kind or Interrupting)(), str(tmp_path))
    file = ProcessFile(root, ID, {})
    file.free(put(file, b"first"))
    owner = ServedProcess(root, ID)
    assert contents(owner) == [b"first"]
    lost = "answers" if change == "answers" else "process"
    name = tmp_path / f".logstore-{lost}-{ID}"
    if change == "renamed":
        name.rename(tmp_path / "other")
    elif change == "replaced":
        (tmp_path / "other").write_bytes(name.read_bytes())
        (tmp_path / "other").rename(name)
    else:
        name.unlink()
    with pytest.raises(FilesGoneError):
        file.put(b"second")
    assert contents(owner) == []
    assert not file._slots
    owner.close()
    file.close()


def test_request_that_cannot_be_written_has_no_place(
    mine: ProcessFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has another number. The written bytes are not kept in memory."""
    large = put(mine, bytes(100_000))
    assert mine._calls[2].data == b""
    mine.free(large)

    def write(self: Files, fd: int, data: bytes | memoryview, pos: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as during:
        during.setattr(Files, "write", write)
        with pytest.raises(OSError, match="No space"):
            mine.put(b"x" * 100_000)
    assert not mine._slots
    assert put(mine, b"y").number == 3


@pytest.mark.parametrize("content", [b"", b"x" * 9000, bytes(9000)])
def test_file_that_is_none_of_a_process_is_refused(
    tmp_path: Path, root: Directory, content: bytes
) -> None:
    (tmp_path / f".logstore-process-{ID}").write_bytes(content)
    (tmp_path / f".logstore-answers-{ID}").write_bytes(b"")
    with pytest.raises(logstore.errors.CorruptCheckpointError):
        ServedProcess(root, ID)


@pytest.mark.parametrize("name", ["create", "reserve", "write", "lock_byte", "rename"])
def test_files_that_cannot_be_made_leave_nothing(tmp_path: Path, name: str) -> None:
    class Refusing(Files):
        def __getattribute__(self, method: str) -> object:
            if method == name:
                raise OSError(28, "No space left on device")
            return super().__getattribute__(method)

    root = Directory.open_root(Refusing(), str(tmp_path))
    with pytest.raises(OSError, match="No space"):
        ProcessFile(root, ID, {})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        f".logstore-process-{ID}x",
        f".logstore-process-{ID[1:]}",
        ".logstore-process-",
        "a",
    ],
)
def test_other_names_are_no_processes(name: str) -> None:
    assert process_of(name) is None
    assert process_of(f".logstore-process-{ID}") == ID


def test_what_a_process_left_before_its_name_is_removed(
    root: Directory, tmp_path: Path
) -> None:
    """Files stay while the process may be creating them; nothing of a named process is
    removed."""
    file = ProcessFile(root, "b" * 32, {})
    left = [
        tmp_path / f".logstore-answers-{'a' * 32}",
        tmp_path / f".logstore-process-{'a' * 32}.tmp",
    ]
    for path in left:
        path.write_bytes(b"")
    now_ms = root.files.now_ms()
    remove_leftovers(root, root.names(), now_ms - 60_000)
    assert all(path.exists() for path in left)
    remove_leftovers(root, root.names(), now_ms + 60_000)
    assert not any(path.exists() for path in left)
    assert len(root.names()) == 2
    file.close()
    assert not root.names()


class Interrupting(Files):
    """An interrupt comes after a write, once."""

    def __init__(self) -> None:
        self.writes_left = 1 << 30

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        super().write(fd, data, pos)
        self.writes_left -= 1
        if not self.writes_left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("writes", [1, 2])
def test_number_of_an_interrupted_request_is_not_given_again(
    tmp_path: Path, writes: int
) -> None:
    """The owner may have carried it out."""
    files = Interrupting()
    root = Directory.open_root(files, str(tmp_path))
    file = ProcessFile(root, ID, {})
    files.writes_left = writes
    with pytest.raises(KeyboardInterrupt):
        file.put(b"one")
    owner = ServedProcess(root, ID)
    taken = [one.content for one in owner.take(9, 1 << 20)]
    assert taken == ([b"one"] if writes == 2 else [])
    assert put(file, b"two").number == 2
    owner.close()
    file.close()


def test_places_of_interrupted_requests_are_used_again(
    root: Directory, mine: ProcessFile, owner: ServedProcess
) -> None:
    """Such requests were answered, or can be withdrawn; one that the owner has is
    kept."""
    kept = put(mine, b"waits")
    for number in range(2, SLOTS + 1):
        put(mine, b"%d" % number)
    assert mine.put(b"more") is None
    first, answered, taken = owner.take(3, 1 << 20)
    assert first.slot == kept
    owner.answer(answered.slot, b"done")
    mine.free_others({kept.number})
    assert sorted(mine._slots) == [kept.number, taken.slot.number]
    for one in (first, taken):
        owner.answer(one.slot, b"done")
    mine.free_others(())
    assert not mine._slots


def test_answer_that_comes_late_does_not_release_the_next_request_of_its_slot(
    mine: ProcessFile, owner: ServedProcess
) -> None:
    """The process has given up the first one, such as the creation of a topic."""
    late = put(mine, b"late")
    assert [one.slot for one in owner.take(9, 1 << 20)] == [late]
    owner.keep(late)
    mine.free(late)
    for _ in range(SLOTS - 1):
        slot = put(mine, b"between")
        (one,) = owner.take(9, 1 << 20)
        owner.answer(one.slot, b"done")
        mine.free(slot)
    last = put(mine, b"last")
    assert last.place == late.place
    assert [one.slot for one in owner.take(9, 1 << 20)] == [last]
    owner.answer(late, b"late")
    assert not mine.withdraw(last, lambda: False)
    owner.answer(last, b"last")
    assert mine.answer(last) == b"last"
    assert owner.take(9, 1 << 20) == []


def test_answer_in_closed_files_is_written_nowhere(
    tmp_path: Path, root: Directory, mine: ProcessFile
) -> None:
    """Other files have the same descriptor numbers by then."""
    served = ServedProcess(root, ID)
    put(mine, b"asked")
    (taken,) = served.take(SLOTS, 1 << 30)
    served.close()
    others = [(tmp_path / str(number)).open("w+b") for number in range(8)]
    try:
        with pytest.raises(OSError, match="closed"):
            served.answer(taken.slot, b"answer")
        assert [os.fstat(other.fileno()).st_size for other in others] == [0] * 8
    finally:
        for other in others:
            other.close()


def test_request_that_is_being_withdrawn_blocks_those_behind_it(
    mine: ProcessFile, owner: ServedProcess
) -> None:
    """Its process may be stopped: the owner does not look again at once."""
    slot = put(mine, b"withdrawn")
    put(mine, b"behind")
    fd, byte = mine._file.fd, process_requests._TAKEN + slot.place
    assert mine._files.lock_byte(fd, byte)
    assert owner.take(9, 1 << 20) == []
    assert (owner.is_blocked, owner.has_more) == (True, False)
    mine._files.unlock_byte(fd, byte)
    assert len(owner.take(9, 1 << 20)) == 2
    assert not owner.is_blocked


def test_interrupted_withdrawal_leaves_no_byte_locked(
    mine: ProcessFile, owner: ServedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, real = put(mine, b"one"), Files.lock_byte

    def lock_byte(self: Files, fd: int, pos: int) -> bool:
        real(self, fd, pos)
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(Files, "lock_byte", lock_byte)
        with pytest.raises(KeyboardInterrupt):
            mine.withdraw(slot, lambda: False)
    assert [one.slot for one in owner.take(9, 1 << 20)] == [slot]
