"""`ChunkReader`: every record before damage is delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from logstore import _native as native
from support.damage import frames
from support.killed import the_log
from support.values import config_of, every_format, expected, fill


@every_format
@pytest.mark.parametrize("damage", ["magic", "length"])
def test_batch_before_a_broken_frame_is_delivered(
    tmp_path: Path, magic: int, codec: str, damage: str
) -> None:
    """This includes a compressed batch, which is read alone: later bytes are checked
    later. With ``on_corruption="skip"``, batches after the damage are delivered,
    too."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config_of(magic, codec))[0]
        fill(partition, 12, call=3)
    log = the_log(tmp_path)
    batches = frames(log)
    data = bytearray(log.read_bytes())
    lost = (3, 6) if len(batches) == 4 else (1, 2)
    pos = batches[1].pos
    data[pos + (16 if damage == "magic" else 8)] = 0x85
    log.write_bytes(data)
    records = expected(magic, 0, 12)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        found = []
        with pytest.raises(logstore.LogStoreError):
            for record in partition.read():
                found.append(record)
        assert found == records[: lost[0]]
        skipped = partition.read(on_corruption="skip")
        assert list(skipped) == records[: lost[0]] + records[lost[1] :]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_control_batch_that_is_compressed_is_no_data(
    tmp_path: Path, codec: str
) -> None:
    """No Kafka writes one. Readers skip its record nevertheless."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config_of(2, codec))[0]
        fill(partition, 9, call=3)
    log = the_log(tmp_path)
    data = bytearray(log.read_bytes())
    batch = frames(log)[1]
    data[batch.pos + 22] |= 0x20
    whole = memoryview(data)[batch.pos + 21 : batch.pos + batch.size]
    data[batch.pos + 17 : batch.pos + 21] = native.crc32c(whole).to_bytes(4, "big")
    log.write_bytes(data)
    records = expected(2, 0, 9)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == records[:3] + records[6:]
        assert list(partition.read(4)) == records[6:]
        assert partition.read_arrow().read_all().num_rows == 6
