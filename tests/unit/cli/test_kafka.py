"""`kafka-dump-log` and ``--kafka``: options, errors, and the text of each kind of file.

Whether the text is that of Kafka's tool is tested in tests/interop/test_kafka_text.py.
"""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.broker.fields import Field
from logstore.cli.kafka.java import ERRORS, decoded, json_text, set_order
from logstore.kafka import RELEASES, Message, MessageError
from support.cli import TXN
from support.damage import append_garbage, cut, flip_bit, frames, logs_in, overwrite
from support.kafka_messages import random_message
from support.offsets_topic import TOPIC, OffsetsTopic, batch_of, commit_of, removal_of
from support.values import write_store


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The first of several small segments. Keys and values are a line of text."""
    config = logstore.TopicConfig(
        message_format=2, segment_bytes=2000, index_interval_bytes=100
    )
    with logstore.open(tmp_path / "store") as store:
        orders = store.create_topic("orders", config=config)[0]
        for number in range(0, 60, 3):
            values = [b"value %d" % at * 4 for at in range(number, number + 2)]
            times = [1_700_000_000_000 + number + at for at in range(3)]
            keys = [b"key", None, b"other"]
            orders.append_many([*values, None], keys, timestamps_ms=times)
    return logs_in(tmp_path / "store" / "orders-0")[0]


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    """A partition of `__consumer_offsets`: a commit, its removal, an unknown record."""
    topic = OffsetsTopic(tmp_path / "kafka")
    topic.put(commit_of(7), removal_of(), (struct.pack(">h", 99), b"x"))
    return logs_in(tmp_path / "kafka" / f"{TOPIC}-0")[0]


def dump(run: Any, *arguments: object) -> Any:
    *options, files = arguments
    return run("kafka-dump-log", *options, "--files", files)


def test_options_of_the_tool_and_the_short_ways_print_the_same(
    run: Any, log: Path
) -> None:
    """`batches`, `records` and `index` with ``--kafka``."""
    shallow, deep = dump(run, log), dump(run, "--print-data-log", log)
    assert (shallow.status, deep.status) == (0, 0)
    assert run("batches", "--kafka", log).out == shallow.out
    assert run("records", "--kafka", log).out == deep.out
    index = log.with_suffix(".index")
    assert run("index", "--kafka", index).out == dump(run, index).out
    metadata = dump(run, "--deep-iteration", log)
    assert set(shallow.lines) < set(metadata.lines)
    shown = [re.sub(r"( key: | payload: ).*", "", line) for line in deep.lines]
    assert shown == metadata.lines


def test_several_files_are_printed_in_their_order(run: Any, log: Path) -> None:
    """Separated by commas; one of an unknown kind is named."""
    other = log.with_name("leader-epoch-checkpoint")
    result = dump(run, f"{log},{other},{log.with_suffix('.timeindex')}")
    titles = [line for line in result.lines if line.startswith("Dumping")]
    suffix = [title.rpartition("/")[2] for title in titles]
    assert suffix == [log.name, other.name, log.with_suffix(".timeindex").name]
    assert result.err == f"Ignoring unknown file {other}\n"
    assert result.status == 0


def test_file_that_is_missing_exits_two_and_the_next_follows(
    run: Any, log: Path
) -> None:
    """The missing file is named."""
    result = dump(run, f"{log.with_name('9.log')},{log}")
    assert result.status == 2
    assert "no such file or directory:" in result.err
    assert result.out.endswith(dump(run, log).out)


def test_index_without_its_log_exits_two(run: Any, log: Path) -> None:
    """Each entry is looked up there."""
    log.unlink()
    for suffix in (".index", ".timeindex"):
        assert dump(run, log.with_suffix(suffix)).status == 2


def test_batch_with_a_wrong_checksum_is_printed_with_its_records(
    run: Any, log: Path
) -> None:
    """The tool prints the same; but the status is 1."""
    before = dump(run, "--print-data-log", log)
    flip_bit(log, 8 * (frames(log)[1].pos + 18))
    after = dump(run, "--print-data-log", log)
    assert after.status == 1
    differ = [
        (one, two)
        for one, two in zip(before.lines, after.lines, strict=True)
        if one != two
    ]
    [(was, now)] = differ
    assert was.endswith("isvalid: true")
    assert now.endswith("isvalid: false")


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_records_before_damage_are_printed(
    run: Any, tmp_path: Path, magic: int
) -> None:
    """The reason is on standard error."""
    partition = write_store(tmp_path / "store", 12, magic, call=6)
    log = logs_in(partition)[0]
    whole = dump(run, "--print-data-log", log)
    last = frames(log)[-1]
    # The length of the value of the last message, or the length of the last record.
    data = log.read_bytes()[last.pos : last.pos + last.size]
    if magic < 2:
        head = 18 + 8 * magic
        (key_size,) = struct.unpack_from(">i", data, head)
        overwrite(log, last.pos + head + 4 + max(key_size, 0), b"\x7f\xff\xff\xff")
    else:
        overwrite(log, last.pos + 61, b"\xfe\x01")
    result = dump(run, "--print-data-log", log)
    assert result.status == 1
    assert "bytes are left" in result.err or "are left" in result.err
    assert 3 < len(result.lines) < len(whole.lines)
    assert result.lines[:3] == whole.lines[:3]


@pytest.mark.parametrize("tail", [b"\0" * 40, b"\0\0\0", b"\xff" * 16])
def test_torn_end_is_counted(run: Any, log: Path, tail: bytes) -> None:
    """The status is 0: a crash leaves that."""
    append_garbage(log, tail)
    result = dump(run, log)
    found = f"Found {len(tail)} invalid bytes at the end of {log.name}"
    assert (result.status, result.lines[-1]) == (0, found)
    limited = dump(run, "--max-bytes", log.stat().st_size, log)
    assert limited.lines == result.lines[:-1]


def test_size_that_no_batch_has_ends_the_file(run: Any, log: Path) -> None:
    """This is damage; the batches before it are printed."""
    frame = frames(log)[1]
    overwrite(log, frame.pos + 8, struct.pack(">i", 3))
    result = dump(run, log)
    assert (result.status, len(result.lines)) == (1, 3)
    assert "a batch states 3 bytes; the minimum is 14" in result.err


def test_max_bytes_prints_the_batches_in_them(run: Any, log: Path) -> None:
    """Whole batches; the rest is not mentioned."""
    second = frames(log)[1]
    end = second.pos + second.size
    assert len(dump(run, "--max-bytes", end, log).lines) == 4
    assert len(dump(run, "--max-bytes", end - 1, log).lines) == 3


def test_skip_record_metadata_leaves_keys_and_values(run: Any, log: Path) -> None:
    """The tool prints them so."""
    lines = dump(run, "--print-data-log", "--skip-record-metadata", log).lines
    records = [line for line in lines[2:] if not line.startswith("baseOffset")]
    assert records
    assert all(
        line.startswith(("| key: ", " payload: ")) or not line for line in records
    )


def test_gaps_between_offsets_are_reported(run: Any, log: Path) -> None:
    """They are listed at the end, on standard error; they are no fault."""
    first, second, *_ = frames(log)
    data = log.read_bytes()
    log.write_bytes(data[: first.pos + first.size] + data[second.pos + second.size :])
    result = dump(run, "--deep-iteration", log)
    assert result.status == 0
    assert result.err.startswith(f"Non-consecutive offsets in {log}\n")
    assert " is followed by " in result.err
    assert dump(run, log).err == ""


# ------------------------------------------------------------------ indexes


def test_index_entries_are_compared_with_the_log(run: Any, log: Path) -> None:
    """An entry with another offset is a mismatch; ``--verify-index-only`` prints
    nothing else."""
    index = log.with_suffix(".index")
    entries = dump(run, index)
    assert (entries.err, entries.status) == ("", 0)
    offset, position = struct.unpack_from(">ii", index.read_bytes())
    assert entries.lines[1] == f"offset: {offset} position: {position}"
    overwrite(index, 0, struct.pack(">i", offset - 1))
    result = dump(run, "--verify-index-only", index)
    assert (result.lines, result.status) == ([f"Dumping {index}"], 0)
    assert result.err == (
        f"Mismatches in :{index}\n  Index offset: {offset - 1}, log offset: {offset}\n"
    )


def test_entry_that_is_no_place_in_the_log_ends_the_index(run: Any, log: Path) -> None:
    """The position is past the end of the log, or no batch fits into the examined
    bytes."""
    index = log.with_suffix(".index")
    assert dump(run, "--max-message-size", 20, index).status == 1
    overwrite(index, 4, struct.pack(">i", 1 << 20))
    result = dump(run, index)
    assert result.status == 1
    assert "entry 0 is offset" in result.err


def test_time_index_entries_are_compared_with_the_log(run: Any, log: Path) -> None:
    """A wrong timestamp, one that is not later than the previous one, and an offset at
    which no batch ends."""
    times = log.with_suffix(".timeindex")
    assert dump(run, times).err == ""
    entries = [struct.unpack_from(">qi", times.read_bytes(), at) for at in (0, 12)]
    (first, offset), (second, later) = entries
    overwrite(times, 12, struct.pack(">qi", first, later))
    err = dump(run, times).err
    assert f"  Index timestamp: {first}, log timestamp: {second}\n" in err
    assert f"  Index timestamp: {first}, Previously indexed timestamp: {first}" in err
    overwrite(times, 0, struct.pack(">qi", first, offset - 1))
    found = f"Indexed offset: {offset - 1}, found log offset: {offset}\n"
    assert found in dump(run, times).err
    overwrite(times, 0, struct.pack(">qi", first, 1 << 30))
    assert f"Indexed offset: {1 << 30}, found log offset: -1" in dump(run, times).err


def test_sanity_check_is_that_of_a_broker(run: Any, log: Path) -> None:
    """The order of the ends, and whole entries."""
    index, times = log.with_suffix(".index"), log.with_suffix(".timeindex")
    for path in (index, times):
        result = dump(run, "--index-sanity-check", path)
        assert result.lines == [f"Dumping {path}", f"{path} passed sanity check."]
        cut(path, path.stat().st_size - 1)
        result = dump(run, "--index-sanity-check", path)
        assert (result.status, len(result.lines)) == (1, 1)
        assert "not a multiple of" in result.err
    times.write_bytes(struct.pack(">qiqi", 5, 1, 4, 2))
    assert "before its first, 5" in dump(run, "--index-sanity-check", times).err
    times.write_bytes(struct.pack(">qi", 5, -1))
    assert "its last offset is -1" in dump(run, "--index-sanity-check", times).err
    index.write_bytes(struct.pack(">ii", -1, 0))
    assert "its last offset is -1" in dump(run, "--index-sanity-check", index).err


def test_zeros_of_a_live_index_are_no_entries(run: Any, log: Path) -> None:
    """They are left out except for the first; an index without entries is empty."""
    index = log.with_suffix(".index")
    lines = dump(run, index).lines
    append_garbage(index, bytes(800))
    assert dump(run, index).lines == lines
    index.write_bytes(bytes(80))
    assert dump(run, index).lines[1:] == ["offset: 0 position: 0"]
    index.write_bytes(b"")
    assert dump(run, index).lines[1:] == [f"{index} is empty."]


def test_snapshot_and_transaction_index(run: Any, tmp_path: Path) -> None:
    """A line for each entry; a damaged snapshot is reported."""
    txn = next(path for path in sorted(TXN.glob("*.txnindex")) if path.stat().st_size)
    assert dump(run, txn).lines[1].startswith("version: 0 producerId: ")
    snapshot = max(TXN.glob("*.snapshot"), key=lambda path: path.stat().st_size)
    new, old = dump(run, snapshot), dump(run, "--kafka-release", "2.8", snapshot)
    assert " currentTxnFirstOffset: OptionalLong." in new.out
    assert " lastTimestamp: " in new.out
    assert " currentTxnFirstOffset: None" in old.out
    damaged = tmp_path / snapshot.name
    damaged.write_bytes(snapshot.read_bytes())
    flip_bit(damaged, 8 * 12)
    result = dump(run, damaged)
    assert (result.status, len(result.lines)) == (1, 1)
    assert "checksum" in result.err


def test_snapshot_of_kraft_by_its_name(run: Any, tmp_path: Path, log: Path) -> None:
    """It is a log; 2.8 does not know it."""
    for name, title in (
        (f"{12:020d}-{3:010d}.checkpoint", "Snapshot end offset: 12, epoch: 3"),
        ("bootstrap.checkpoint", "KRaft bootstrap snapshot"),
    ):
        path = tmp_path / name
        path.write_bytes(log.read_bytes())
        result = dump(run, path)
        assert result.lines[1:] == [title, *dump(run, log).lines[2:]]
        assert "Ignoring" in dump(run, "--kafka-release", "2.8", path).err
    wrong = tmp_path / "12.checkpoint"
    wrong.write_bytes(log.read_bytes())
    assert dump(run, wrong).status == 1


# ------------------------------------------------------------------ decoders


def test_offsets_decoder_of_each_release(run: Any, offsets: Path) -> None:
    """JSON since 3.x; unknown types are named, and end the text of 2.8."""
    lines = dump(run, "--offsets-decoder", offsets).lines
    assert lines[3].endswith(
        'key: {"type":"1","data":{"group":"g","topic":"t","partition":0}} payload: '
        '{"version":"3","data":{"offset":7,"leaderEpoch":-1,"metadata":"",'
        '"commitTimestamp":7}}'
    )
    assert lines[4].endswith("payload: <DELETE>")
    assert lines[5].endswith("key: Unknown record type 99 at offset 2, skipping.")
    old = dump(run, "--kafka-release", "2.8", "--offsets-decoder", offsets)
    assert old.status == 1
    assert "has version 99; 0 to 2 are known" in old.err
    assert old.lines[3].endswith(
        "key: offset_commit::group=g,partition=t-0 payload: offset=7"
    )
    both = run("records", "--kafka", "--offsets-decoder", offsets)
    assert both.lines == lines


@pytest.mark.parametrize(
    "option",
    ["--offsets-decoder", "--transaction-log-decoder", "--share-group-state-decoder"],
)
def test_record_without_a_key_ends_the_file(
    run: Any, tmp_path: Path, option: str
) -> None:
    """Every record of an internal topic has one."""
    topic = OffsetsTopic(tmp_path / "kafka")
    topic.put((None, b"value"))
    log = logs_in(tmp_path / "kafka" / f"{TOPIC}-0")[0]
    result = dump(run, option, "--kafka-release", "4.2", log)
    assert (result.status, len(result.lines)) == (1, 3)
    assert "the record at offset 0 has no key" in result.err


def test_transaction_decoder_of_each_release(run: Any, tmp_path: Path) -> None:
    """Text up to 3.9, JSON from 4.2 on, with the names of states in 4.4; values that
    have no text are reported."""
    key = struct.pack(">hh", 0, 1) + b"x"
    value = struct.pack(">hqhibiqq", 0, 5, 1, 60000, 0, -1, 8, -1)
    broken = struct.pack(">hqhibiqq", 0, 5, 1, 60000, 99, -1, 8, -1)
    topic = OffsetsTopic(tmp_path / "kafka")
    topic.put((key, value), (key, None), (struct.pack(">h", 4), b""), (key, broken))
    log = logs_in(tmp_path / "kafka" / f"{TOPIC}-0")[0]
    result = dump(run, "--transaction-log-decoder", log)
    assert result.lines[3].endswith(
        "key: transaction_metadata::transactionalId=x payload: producerId:5,"
        "producerEpoch:1,state=Empty,partitions=[],txnLastUpdateTimestamp=8,"
        "txnTimeoutMs=60000"
    )
    assert result.lines[4].endswith("transactionalId=x payload: <DELETE>")
    assert result.lines[5].endswith("key: unknown::version=4")
    assert result.status == 1
    assert "state 99" in result.err
    states = []
    for release in ("4.2", "4.3", "4.4"):
        new = dump(run, "--kafka-release", release, "--transaction-log-decoder", log)
        assert '"transactionPartitions":null' in new.lines[3]
        assert new.status == 0
        found = (re.search(r'"transactionStatus":([^,]+),', line) for line in new.lines)
        states.append([match[1] for match in found if match is not None])
    assert states == [["0", "99"], ["0", "99"], ['"Empty"', '"99"']]


def test_decoders_that_are_not_there_are_refused(run: Any, log: Path) -> None:
    """The message has the reason."""
    for option in ("--cluster-metadata-decoder", "--remote-log-metadata-decoder"):
        result = dump(run, option, log)
        assert result.status == 2
        assert "use Kafka's own tool" in result.err
    result = dump(run, "--share-group-state-decoder", log)
    assert result.status == 2
    assert "--kafka-release 4.2" in result.err


def test_decoder_classes_are_kafkas(run: Any, log: Path, tmp_path: Path) -> None:
    """Decoders of numbers are known; others are refused, and nothing is imported."""
    topic = OffsetsTopic(tmp_path / "kafka")
    topic.put((struct.pack(">q", -9), struct.pack(">i", 77)))
    path = logs_in(tmp_path / "kafka" / f"{TOPIC}-0")[0]
    names = (
        "org.apache.kafka.tools.api.LongDecoder",
        "kafka.serializer.IntegerDecoder",
    )
    options = ("--key-decoder-class", names[0], "--value-decoder-class", names[1])
    assert dump(run, *options, path).lines[3].endswith("key: -9 payload: 77")
    short = dump(run, "--value-decoder-class", names[0], path)
    assert short.status == 1
    assert "LongDecoder needs 8 bytes" in short.err
    for name in ("com.example.Mine", "no_such_module:f", "sys:path"):
        assert dump(run, "--value-decoder-class", name, log).status == 2


def test_options_that_do_not_go_together_are_refused(run: Any, log: Path) -> None:
    """Options for ``--kafka`` need it; it refuses options that choose or shape."""
    index = log.with_suffix(".index")
    assert "needs --kafka" in run("records", "--offsets-decoder", log).err
    assert "needs --kafka" in run("batches", "--max-bytes", 5, log).err
    assert "needs --kafka" in run("index", "--verify-index-only", index).err
    for option in (("--from", 3), ("--until", 3), ("--limit", 3), ("--skip", 1)):
        result = run("records", "--kafka", *option, log)
        assert (result.status, option[0] in result.err) == (2, True)
    assert run("records", "--kafka", "--format", "jsonl", log).status == 2
    assert dump(run, "--max-bytes", 1 << 31, log).status == 2
    assert run("kafka-dump-log").status == 2


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        (0, "000000000005", ["endTxnMarker: ABORT coordinatorEpoch: 5"] * 3),
        (
            2,
            "0000000000010200000007000100",
            [
                "controlType: LEADER_CHANGE(2)",
                "controlType: LEADER_CHANGE(2)",
                'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":7}],'
                '"grantingVoters":[]}',
            ],
        ),
        (
            3,
            "0000000000000000000900",
            [
                "controlType: UNKNOWN(3)",
                *['SnapshotHeader {"version":0,"lastContainedLogTimestamp":9}'] * 2,
            ],
        ),
        (77, "", ["controlType: UNKNOWN(77)"] * 3),
    ],
)
def test_control_records_of_each_release(
    run: Any, tmp_path: Path, kind: int, value: str, texts: list[str]
) -> None:
    """Each release knows more record types of KRaft than the previous one."""
    batch = batch_of(
        [(struct.pack(">hh", 0, kind), bytes.fromhex(value))], attributes=0x20
    )
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(batch)
    for release, text in zip(RELEASES, [*texts, texts[-1], texts[-1]], strict=True):
        result = dump(run, "--kafka-release", release, "--print-data-log", log)
        assert (result.status, result.lines[3].partition("headerKeys: [] ")[2]) == (
            0,
            text,
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [("0000", ""), ("ffff0000", ""), ("00000001", "0000"), ("00000003", "00")],
)
def test_control_record_without_its_content_ends_the_file(
    run: Any, tmp_path: Path, key: str, value: str
) -> None:
    """No type, a negative version, no epoch, not the value of its type."""
    pair = bytes.fromhex(key), bytes.fromhex(value)
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(batch_of([pair], attributes=0x20))
    result = dump(run, "--print-data-log", log)
    assert (result.status, len(result.lines)) == (1, 3)
    assert result.err


# ------------------------------------------------------------------ parts


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a?b"),
        (b"\xed\xa0\x80x", "?x"),
        (b"\xed\xa0", "?"),
        (b"\xed\xa0x", "?x"),
        (b"\xe0\x80", "??"),
        (b"\xf0\x9f\x98", "?"),
        (b"\xc0\x80", "??"),
        ("Zürich 東京 \U0001f600".encode(), "Zürich 東京 \U0001f600"),
    ],
)
def test_bytes_are_decoded_as_java_does(data: bytes, text: str) -> None:
    """Half a surrogate pair is one wrong character."""
    assert decoded(data) == text.replace("?", "\ufffd")


def test_json_is_that_of_jackson() -> None:
    """Capital hexadecimal digits, and nothing else than control characters escaped."""
    value = {"a": None, "b": [True, 1, b"\0\1"], "c": '"\\/\n\x1f\x7fü'}
    wanted = '{"a":null,"b":[true,1,"AAE="],"c":"\\"\\\\/\\n\\u001F\x7fü"}'
    assert json_text(value) == wanted


def test_order_of_a_set_is_that_of_its_table() -> None:
    """Places are the low bits of hash codes, and the table grows."""
    few = set_order([[(number, number)] for number in (17, 3, 16, 0)])
    assert few == [0, 16, 17, 3]
    many = set_order([[(number, number)] for number in range(40, 0, -1)])
    assert many == list(range(1, 41))


def test_message_that_ends_early_says_so() -> None:
    """The message may end at any length, in any field."""
    rng = random.Random(5)
    message = Message("M", (Field("a", "string"), Field("b", "uuid")), flexible=0)
    data = random_message(rng, message, 0)
    assert set(message.decode(data, errors=ERRORS)) == {"a", "b"}
    for size in range(2, 2 + 17):
        with pytest.raises(MessageError):
            message.decode(data[:size], errors=ERRORS)


def test_frames_of_a_log_that_became_shorter_raise(log: Path) -> None:
    """Bytes that were there at the call are missing."""
    entries: Any = logstore.inspect_file(log, by_size=True).entries
    assert entries.size_bytes == log.stat().st_size
    cut(log, 20)
    with pytest.raises(logstore.CorruptRecordError, match="the file ends at byte 20"):
        next(entries)


def test_frame_of_a_log_says_where_it_is(log: Path) -> None:
    """Its bytes can be read again, also after the iteration has moved on."""
    entries: Any = logstore.inspect_file(log, by_size=True).entries
    frame = next(entries)
    assert (frame.position, frame.magic, frame.path) == (0, 2, str(log))
    data = log.read_bytes()
    list(entries)
    assert frame.read() == data[: frame.size_bytes]
    assert [record.offset for record in frame.records()] == [0, 1, 2]
    entries.seek(frame.size_bytes, 20)
    assert next(entries, None) is None
