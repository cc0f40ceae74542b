"""`logstore-dump records --key` and `--last`."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logstore
from logstore.cli.records import bar
from logstore.cli.selection import Selection
from support.cli import RECORDS, Terminal
from support.damage import flip_bit, logs_in
from support.values import key_of, timestamp_of


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    """Four partitions; each key has three records in the partition that Kafka's
    partitioner selects, and `stray` has one more in another one."""
    with logstore.open(tmp_path / "keyed") as store:
        topic = store.create_topic("orders", partitions=4)
        for number in range(3):
            for key in (b"ann", b"bob", b"stray", b"\x00\xff", b"hex:61", b""):
                topic.append(b"%d" % number, key=key)
            topic.append(b"none")
        home = logstore.KafkaPartitioner().partition(b"stray", 0, 4)
        topic[(home + 1) % 4].append(b"elsewhere", key=b"stray")
    return tmp_path / "keyed"


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("ann", b"ann"),
        ("hex:616e6e", b"ann"),
        ("base64:YW5u", b"ann"),
        ("hex:00ff", b"\x00\xff"),
        ("base64:AP8=", b"\x00\xff"),
        ("hex:6865783a3631", b"hex:61"),
        ("hex:", b""),
        ("", b""),
    ],
)
def test_records_of_a_key_are_those_with_exactly_this_key(
    run: Any, keyed: Path, typed: str, key: bytes
) -> None:
    """The key is text or bytes; neither a part of a key nor a null key matches."""
    options = "--format", "jsonl", "--payload", "base64"
    lines = run("records", keyed, "--key", typed, *options).json
    assert [base64.b64decode(line["key"]) for line in lines] == [key] * 3
    assert run("records", keyed, "--key", "an").out == ""


@pytest.mark.parametrize("typed", ["hex:0", "hex:xy", "base64:AP8", "base64:*"])
def test_a_key_that_is_not_coded_is_refused(run: Any, keyed: Path, typed: str) -> None:
    """The status is 2."""
    result = run("records", keyed, "--key", typed)
    assert (result.status, "after the colon" in result.err) == (2, True)


def test_the_partitioner_limits_where_a_key_is_looked_for(
    run: Any, keyed: Path
) -> None:
    """This holds for a store and for a partition; records elsewhere are not found."""
    assume = ("--assume-partitioner", "kafka")
    home = logstore.KafkaPartitioner().partition(b"stray", 0, 4)
    assert len(run("records", keyed, "--key", "stray").lines) == 4
    lines = run("records", keyed, "--key", "stray", *assume).lines
    assert [line.split()[0] for line in lines] == [f"orders-{home}"] * 3
    there = keyed / f"orders-{home}"
    assert len(run("records", there, "--key", "stray", *assume).lines) == 3
    other = run(
        "records", keyed / f"orders-{(home + 1) % 4}", "--key", "stray", *assume
    )
    assert (other.status, other.out) == (0, "")
    assert "would send the key to another partition" in other.err
    none = run("records", keyed, "--key", "nobody", *assume)
    assert (none.status, none.out) == (0, "")
    assert "without --assume-partitioner all partitions are read" in none.err


def test_a_partitioner_is_refused_where_it_means_nothing(run: Any, keyed: Path) -> None:
    """There is no key, or a file, another partitioner, or a missing partition."""
    assume = ("--assume-partitioner", "kafka")
    for arguments, said in (
        ((keyed, *assume), "--assume-partitioner needs --key"),
        ((logs_in(keyed / "orders-0")[0], "--key", "k", *assume), "PATH is a file"),
        ((keyed, "--key", "k", "--assume-partitioner", "ring"), "ring"),
    ):
        result = run("records", *arguments)
        assert (result.status, said in result.err) == (2, True), result.err
    shutil.rmtree(keyed / "orders-1")
    for path in keyed.glob(".logstore*"):  # absent in a directory of a clustered broker
        path.unlink()
    result = run("records", keyed, "--key", "k", *assume)
    assert (result.status, "omit --assume-partitioner" in result.err) == (2, True)
    assert run("records", keyed, "--key", "k").status == 0


def test_last_is_of_what_would_be_shown_of_each_partition(
    run: Any, store: Path, keyed: Path
) -> None:
    """If there is a key or a pattern, the last matches are shown; the newest comes
    last."""

    def places(*arguments: object) -> list[str]:
        return [" ".join(one.split()[:2]) for one in run("records", *arguments).lines]

    both = ["clicks-0 1", "clicks-0 2", "clicks-1 1", "clicks-1 2"]
    assert places(store, "--topic", "clicks", "--last", 2) == both
    assert places(store, "--topic", "clicks", "--last", 2, "--skip", 1) == both[1:]
    assert places(store, "--topic", "clicks", "--last", 2, "--limit", 3) == both[:3]
    assert places(store, "--topic", "clicks", "--last", 0) == []
    assert len(places(store, "--last", 100)) == 9
    assert places(store / "orders-0", "--last", 1, "--until", 2) == ["orders-0 1"]
    assert places(store / "orders-0", "--last", 5, "--from", 2) == ["orders-0 2"]
    assert places(store / "orders-0", "--last", 1, "--grep", "/[01]$") == ["orders-0 1"]
    found = run("records", keyed, "--key", "ann", "--last", 2, "--format", "jsonl").json
    assert [line["value"] for line in found] == ["1", "2"]
    assert run("records", keyed, "--kafka", "--last", 2).status == 2


def test_last_between_times(run: Any, partition: Path) -> None:
    """A time is looked up, as without it."""
    options = "--from", f"{timestamp_of(10)}ms", "--until", f"{timestamp_of(40)}ms"
    every = run("records", partition, *options).lines
    assert len(every) > 5
    assert run("records", partition, *options, "--last", 5).lines == every[-5:]
    assert run("records", partition, *options, "--last", 500).lines == every
    assert run("records", partition, "--from", RECORDS + 5, "--last", 1).status == 2


def test_last_of_a_file_is_of_its_records(run: Any, partition: Path) -> None:
    """The options are the same."""
    path = logs_in(partition)[1]
    every = run("records", path).lines
    assert run("records", path, "--last", 2).lines == every[-2:]
    assert run("records", path, "--last", 0).lines == []
    assert run("records", path, "--last", 99).lines == every
    offsets = range(int(path.stem), int(path.stem) + len(every))
    key = next(filter(None, map(key_of, offsets)))
    some = run("records", path, "--key", f"hex:{key.hex()}").lines
    assert some
    assert (
        run("records", path, "--key", f"hex:{key.hex()}", "--last", 1).lines
        == (some[-1:])
    )


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_damage_before_the_last_ones_was_not_asked_for(
    run: Any, partition: Path, policy: str
) -> None:
    """`tail` ignores it, too; with fewer records, the whole log is within the
    bounds."""
    flip_bit(logs_in(partition)[0], 8 * 100)
    every = run("records", partition, "--on-corruption", "skip").lines
    options = "--on-corruption", policy
    result = run("records", partition, "--last", 3, *options)
    assert (result.status, result.lines, result.err) == (0, every[-3:], "")
    key = key_of(RECORDS - 1)
    assert key is not None
    options = (*options, "--key", f"hex:{key.hex()}")
    assert run("records", partition, "--last", 1, *options).status == 0
    result = run("records", partition, "--last", 1000, *options)
    assert (result.status, "missing" in result.err) == (1, True)


@pytest.mark.parametrize(
    ("selection", "is_shown"),
    [
        (Selection(), False),
        (Selection(last=3), False),
        (Selection(key=b"k"), True),
        (Selection(pattern=re.compile(b"x")), True),
    ],
)
def test_a_search_shows_how_far_it_is_also_if_it_prints_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, is_shown: bool
) -> None:
    """Records that are all printed are progress enough; a search may print none."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    damage = SimpleNamespace(prints_to_terminal=True)
    sources: Any = SimpleNamespace(damage=damage, selection=selection)
    with bar(sources, "orders-0", "offsets") as progress:
        progress._delay_s = 0
        progress(1, 2)
    assert ("50%" in screen.getvalue()) is is_shown
