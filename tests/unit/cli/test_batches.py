"""`logstore-dump batches`, and the text of Kafka's tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.cli import RECORDS, SMALL, TXN
from support.damage import (
    append_garbage,
    flip_bit,
    frames,
    logs_in,
)
from support.values import (
    new_partition,
    write_store,
)


def test_batches_have_a_line_each(run: Any, partition: Path) -> None:
    """This holds for a partition, for a store, and for a file."""
    count = sum(len(frames(path)) for path in logs_in(partition))
    assert len(run("batches", partition).lines) == count
    lines = run("batches", partition.parent, "--format", "jsonl").json
    assert len(lines) == count
    assert sum(line["records"] for line in lines) == RECORDS
    path = logs_in(partition)[1]
    lines = run("batches", path, "--format", "jsonl").json
    found = frames(path)
    assert [line["position"] for line in lines] == [frame.pos for frame in found]
    assert [line["baseOffset"] for line in lines] == [frame.offset for frame in found]


def test_batches_between_bounds(run: Any, partition: Path) -> None:
    """The first holds `from`, the last begins before `to`; also of a file."""
    for path in (partition, logs_in(partition)[0]):
        options = ("--format", "jsonl", "--from", 6, "--to", 11)
        lines = run("batches", path, *options).json
        assert lines[0]["baseOffset"] <= 6 <= lines[0]["lastOffset"]
        assert lines[-1]["baseOffset"] < 11 <= lines[-1]["lastOffset"] + 1
        assert len(run("batches", path, "--limit", 2).lines) == 2


def test_batches_tell_of_transactions(run: Any) -> None:
    """Producer, transaction and marker."""
    text = run("batches", TXN).out
    assert "transactional" in text
    assert "control COMMIT" in text
    assert "control ABORT" in text
    assert "producer 5 epoch 0 sequence 0" in text


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafka_text_of_a_directory_is_that_of_its_files(
    run: Any, tmp_path: Path, magic: int, codec: str
) -> None:
    """File after file; a line a batch, and with `records` a line a record."""
    partition = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    logs = logs_in(partition)
    for name in ("batches", "records"):
        result = run(name, "--kafka", partition)
        assert result.status == 0
        each = [run(name, "--kafka", path).out for path in logs]
        assert [line for line in result.lines if line.startswith("Dumping")] == [
            f"Dumping {path}" for path in logs
        ]
        assert result.out == "".join(each)
        assert run(name, "--kafka", partition.parent).out == result.out
    batches = sum(len(frames(path)) for path in logs)
    assert result.out.count(" isvalid: true") == batches
    assert sum(line.startswith("| offset: ") for line in result.lines) == RECORDS


def test_kafka_text_of_a_record(run: Any, tmp_path: Path) -> None:
    """The text is exact."""
    with logstore.open(tmp_path) as store:
        orders = new_partition(store, 2)
        orders.append(b"v", b"k", timestamp_ms=7, headers=[("a", None), ("b", b"")])
        orders.append(None, timestamp_ms=8)
    path = logs_in(tmp_path / "orders-0")[0]
    lines = run("records", "--kafka", path).lines
    assert lines[1] == "Log starting offset: 0"
    assert re.fullmatch(
        r"baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1 lastSequence: -1 "
        r"producerId: -1 producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: "
        r"false isControl: false deleteHorizonMs: OptionalLong.empty position: 0 "
        r"CreateTime: 7 size: \d+ magic: 2 compresscodec: none crc: \d+ isvalid: true",
        lines[2],
    )
    assert lines[3] == (
        "| offset: 0 CreateTime: 7 keySize: 1 valueSize: 1 sequence: -1 "
        "headerKeys: [a,b] key: k payload: v"
    )
    assert lines[5] == (
        "| offset: 1 CreateTime: 8 keySize: -1 valueSize: -1 sequence: -1 "
        "headerKeys: []"
    )


def test_kafka_text_of_damage(run: Any, partition: Path) -> None:
    """A wrong checksum is not valid; the bytes after the last batch are counted."""
    path = logs_in(partition)[0]
    flip_bit(path, 8 * (frames(path)[0].size - 1))
    append_garbage(path, b"12345")
    result = run("batches", "--kafka", path)
    assert result.status == 1
    assert result.lines[2].endswith("isvalid: false")
    assert result.lines[-1] == f"Found 5 invalid bytes at the end of {path.name}"
