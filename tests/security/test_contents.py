"""Stored contents do not leak: no error, log line or warning contains keys, values or
headers; only the command line shows them, escaped."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.main import main
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    append_garbage,
    cut,
    fix_crc,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    zero,
)
from support.values import FORMATS, config_of, every_format

MARKER = b"S3cr3tMarker"


class Heard:
    """Every text about failures that a user can see."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except (logstore.LogStoreError, TypeError, ValueError) as error:
            self.texts.append("".join(traceback.format_exception(error)))
            self.texts.append(repr(error.__dict__))
            link: BaseException | None = error
            while link is not None:
                self.texts += [str(link), repr(link), repr(link.args)]
                link = link.__cause__ or link.__context__


def append_secret(partition: Any, count: int = 8, headers: bool = True) -> None:
    for number in range(count):
        pairs = [(MARKER.decode(), MARKER)] if headers else ()
        partition.append(
            MARKER * 3, MARKER + b"%d" % number, timestamp_ms=1000, headers=pairs
        )


def lines_of_source(text: str) -> str:
    """A traceback without lines of source code, because the tests contain the
    marker."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


@pytest.mark.sampled(7)
@every_format
def test_failures_tell_nothing_of_what_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, magic: int, codec: str
) -> None:
    """Damage of every sort, refused calls, failing files: only offsets and
    positions."""
    caplog.set_level(logging.DEBUG)
    heard = Heard()
    store = tmp_path / "data"
    with logstore.open(store) as opened:
        config = config_of(magic, codec, segment_bytes=600, max_message_bytes=2000)
        partition = opened.create_topic("orders", config=config)[0]
        append_secret(partition, 20, headers=magic == 2)
        for bad in (
            lambda: partition.append(MARKER * 1000),
            lambda: partition.append(MARKER, expected_offset=3),
            lambda: partition.append(MARKER.decode()),
            lambda: partition.append(MARKER, MARKER.decode()),
            lambda: partition.append(MARKER, headers=[(MARKER, MARKER)]),
            lambda: partition.append(MARKER, headers=[(MARKER.decode(), "x")]),
            lambda: partition.append_many([MARKER, 5]),
            lambda: partition.append(MARKER, timestamp_ms=-7),
            lambda: partition.append_batches(MARKER * 20),
            lambda: partition.read(99_999),
        ):
            with heard.errors():
                bad()
    directory = store / "orders-0"
    log = logs_in(directory)[0]
    sound = log.read_bytes()
    first = frames(log)[0]
    at = sound.find(MARKER)
    damages = [
        lambda: flip_bit(log, 8 * (first.size // 2)),
        lambda: cut(log, first.size + 20),
        lambda: zero(log, 10, 30),
        lambda: append_garbage(log, MARKER * 9),
        lambda: log.write_bytes(MARKER * 50),
        lambda: overwrite(log, first.pos + 8, MARKER[:4]),
        lambda: [overwrite(log, first.size - 3, b"\xff\xff"), fix_crc(log, first)],
    ]
    if codec == "none" and at >= 2:
        # Corrupts the length of the key: the bytes that follow are misinterpreted.
        damages.append(lambda: [overwrite(log, at - 1, b"\x7f"), fix_crc(log, first)])
    for damage in damages:
        damage()
        for read_only in (True, False):
            with heard.errors():
                with logstore.open(store, read_only=read_only) as opened:
                    partition = opened.topic("orders")[0]
                    for way in (
                        lambda p=partition: list(p.read()),
                        lambda p=partition: [r for b in p.read_batches() for r in b],
                        lambda p=partition: list(p.fetch(0)),
                        lambda p=partition: p.offset_for_time(500),
                        lambda p=partition: p.append(MARKER),
                        lambda p=partition: list(p.read(on_corruption="skip")) and None,
                    ):
                        with heard.errors():
                            way()
                    heard.texts.append(repr(opened.recovery_report))
        report = logstore.verify(store, deep=True)
        heard.texts.append(repr(report.to_dict()))
        with heard.errors():
            logstore.rebuild_index(store)
        log.write_bytes(sound)
    for method in ("write", "sync", "read", "open", "rename"):
        files = FaultyFiles()
        with heard.errors():
            with open_store(store, _files=files) as opened:
                partition = opened.topic("orders")[0]
                files.fail(method, errno.EIO)
                with heard.errors():
                    append_secret(partition, 3, headers=False)
                with heard.errors():
                    partition.flush()
                with heard.errors():
                    list(partition.read())
    assert len(heard.texts) > 50
    told = [lines_of_source(text) for text in heard.texts]
    told += [record.getMessage() for record in caplog.records]
    for text in told:
        assert MARKER.decode() not in text, text
        assert MARKER.hex() not in text, text


def test_objects_show_sizes_not_contents_where_they_are_shown(tmp_path: Path) -> None:
    """The text that a log line gets when it formats a partition, chunk or batch."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        append_secret(partition)
        chunk = partition.fetch(0)
        batch = next(iter(partition.read_batches()))
        for thing in (store, partition, chunk, batch, store.topic("orders")):
            assert MARKER.decode() not in repr(thing), type(thing)


# ------------------------------------------------------------------ on a terminal

ESCAPE = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202e\u2028"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")


@pytest.fixture
def hostile_store(tmp_path: Path) -> Path:
    """Escapes in keys, values, header names, file and directory names."""
    store = tmp_path / f"da\x1b[31mta{ESCAPE[:4]}"
    raw = ESCAPE.encode() + b"\xff\x9b"
    with logstore.open(store) as opened:
        for magic, codec in FORMATS:
            if codec in ("none", "lz4"):
                config = config_of(magic, codec, segment_bytes=500)
                partition = opened.create_topic(f"t{magic}-{codec}", config=config)[0]
                headers = [(ESCAPE, raw)] if magic == 2 else ()
                for _ in range(6):
                    partition.append(raw, raw, timestamp_ms=1, headers=headers)
    for directory in (store, store / "t1-none-0"):
        (directory / f"x{ESCAPE}").write_text("x")
        (directory / f"000{ESCAPE}.log").write_text("x")
    overwrite(logs_in(store / "t1-none-0")[0], 5, b"\x1b")
    return store


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", "--segments"],
        ["batches"],
        ["records"],
        ["records", "--payload", "json"],
        ["records", "--payload", "hex"],
        ["records", "--format", "jsonl"],
        ["verify", "--deep"],
        ["verify", "--format", "jsonl"],
        ["stat"],
        ["tail"],
        ["doctor"],
        ["rebuild-index", "--dry-run"],
        ["index"],
        ["export", "--to", "x\x1b[31m.txt"],
    ],
    ids=" ".join,
)
def test_command_line_prints_nothing_that_a_terminal_obeys(
    hostile_store: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Output and errors, of stores, partitions and single files."""
    command, *options = arguments
    paths = [hostile_store, hostile_store / "t2-none-0", hostile_store / "t1-none-0"]
    paths += [*sorted((hostile_store / "t1-none-0").iterdir()), hostile_store / ESCAPE]
    seen = ""
    for path in paths:
        status = main([command, str(path), *options])
        assert status in (0, 1, 2)
        told = capsys.readouterr()
        seen += told.out + told.err
    assert seen
    assert CONTROL.findall(seen) == []


def test_kafka_text_on_a_pipe_is_kafka_s_and_no_shell_is_started(
    hostile_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--kafka` prints the bytes of another program: only names and numbers of
    `batches` are free of stored data; docs/cli.md says so of `records`."""
    log = logs_in(hostile_store / "t2-none-0")[0]
    assert main(["batches", "--kafka", str(log)]) == 0
    told = capsys.readouterr().out
    assert "baseOffset: 0" in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to everything")
def test_refused_write_tells_no_contents(tmp_path: Path) -> None:
    """The process is an ordinary user's, in a directory without write permission."""
    with logstore.open(tmp_path / "data") as store:
        partition = store.create_topic("orders")[0]
        (tmp_path / "data" / "orders-0").chmod(0o500)
        with pytest.raises(logstore.StorageError) as caught:
            partition.append(MARKER)
        assert MARKER.decode() not in str(caught.value)
        (tmp_path / "data" / "orders-0").chmod(0o700)


# ------------------------------------------------------------- removed and kept files


def test_only_names_that_the_library_forms_are_ever_removed(tmp_path: Path) -> None:
    """A store full of foreign files, through open, append, retention, recovery,
    deletion of topics: each file stays unchanged."""
    store = tmp_path / "data"
    with logstore.open(store) as opened:
        for name in ("orders", "gone"):
            config = config_of(1, segment_bytes=300, file_delete_delay_ms=0)
            append_secret(opened.create_topic(name, config=config)[0], 12, False)
    foreign = [
        "notes.txt", "00000000000000000000.log~", "0.log", ".logstore",
        "00000000000000000000.log.deleted.bak", "00000000000000000099.LOG.deleted",
        "core", "x.tmp", "..hidden", "00000000000000000000.log.swap2", "-delete",
        "99999999999999999999.log.deleted", "000000000000000000.index.cleaned",
    ]  # fmt: skip
    places = [store, store / "orders-0", store / "gone-0"]
    for place in places:
        for name in foreign:
            (place / name).write_bytes(b"mine " + name.encode())
        (place / "sub").mkdir()
        (place / "sub" / "file").write_bytes(b"mine")
    # Names that look like partitions' to a careless reader.
    for name in ("x-1.tmp", "gone-0.zz-delete", "orders--1", "orders-01", "-5"):
        (store / name).mkdir()
        (store / name / "file").write_bytes(b"mine")
    before = {
        str(p.relative_to(store)): p.read_bytes()
        for p in store.rglob("*")
        if p.is_file() and p.read_bytes().startswith(b"mine")
    }
    (store / ".kafka_cleanshutdown").unlink()
    append_garbage(logs_in(store / "orders-0")[-1], bytes(50))
    for _ in range(2):
        with logstore.open(store) as opened:
            partition = opened.topic("orders")[0]
            append_secret(partition, 5, False)
            partition.delete_before(partition.start_offset + 1)
            partition.truncate_to(partition.end_offset - 1)
            opened.topic("orders").apply_retention()
            if "gone" in opened.topics():
                opened.delete_topic("gone")
    logstore.rebuild_index(store)
    left = {
        re.sub(r"^gone-0\.[0-9a-f]{32}-delete", "gone-0", str(p.relative_to(store))): (
            p.read_bytes()
        )
        for p in store.rglob("*")
        if p.is_file() and p.read_bytes().startswith(b"mine")
    }
    assert left == before


def test_directory_with_foreign_files_of_a_deleted_topic_stays_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic and its files are removed; foreign files are not."""
    store = tmp_path / "data"
    with logstore.open(store) as opened:
        config = config_of(1, file_delete_delay_ms=0)
        append_secret(opened.create_topic("gone", config=config)[0], 3, False)
        (store / "gone-0" / "notes").write_bytes(b"mine")
        opened.delete_topic("gone")
        deadline = time.monotonic() + 20
        while list(store.glob("gone-*/*.log")) and time.monotonic() < deadline:
            time.sleep(0.01)
    with logstore.open(store) as opened:
        assert opened.topics() == []
    (kept,) = store.glob("gone-*")
    assert [p.name for p in kept.iterdir()] == ["notes"]
    assert "is kept: 1 files in it are not of a log ('notes')" in caplog.text
    seen = {o.kind: o for o in logstore.doctor(store).findings}
    assert seen["foreign"].values["first"] == [f"{kept.name}/notes"]
