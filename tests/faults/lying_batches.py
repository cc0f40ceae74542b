"""Batches and staged files with wrong fields, under the right checksum."""

from __future__ import annotations

import functools
import gzip
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

from faults.lies import Appending, extreme
from logstore.store.opening import open_store
from logstore.types import Staged
from support.damage import Unsynced, fixed_crc, frames_in
from support.values import FORMATS, append_records, config_of

# ---------------------------------------------------------------- batches


@functools.cache
def _sound_batches() -> dict[tuple[int, str], list[bytes]]:
    """Batches as producers send them, of all formats."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with open_store(Path(folder) / "store", _files=Unsynced()) as store:
            for number, (magic, codec) in enumerate(FORMATS):
                topic = store.create_topic(f"t{number}", config=config_of(magic, codec))
                for count in (1, 2, 7):
                    append_records(topic[0], count)
                found[magic, codec] = [bytes(b.buffer) for b in topic[0].read_batches()]
    return found


# (name, position, bytes) of the fields of a batch.
_FRAME_FIELDS = (("base offset", 0, 8), ("length", 8, 4), ("magic", 16, 1))
_FIELDS = {
    0: (*_FRAME_FIELDS, ("attributes", 17, 1), ("key length", 18, 4)),
    1: (*_FRAME_FIELDS, ("attributes", 17, 1), ("timestamp", 18, 8),
        ("key length", 26, 4)),
    2: (*_FRAME_FIELDS, ("leader epoch", 12, 4), ("attributes", 21, 2),
        ("last offset delta", 23, 4), ("base timestamp", 27, 8),
        ("max timestamp", 35, 8), ("producer id", 43, 8), ("producer epoch", 51, 2),
        ("base sequence", 53, 4), ("record count", 57, 4)),
}  # fmt: skip
CODE = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}
_RECORDS = {0: 18, 1: 26, 2: 61}


def lying_batch(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """(the change in words, a batch with a wrong field and the right checksum)."""
    magic = data[16]
    kind = rng.randrange(8)
    if kind < 4:
        name, pos, size = rng.choice(_FIELDS[magic])
        now = struct.unpack_from(CODE[size], data, pos)[0]
        value = extreme(rng, 8 * size, now)
        changed = bytearray(data)
        struct.pack_into(CODE[size], changed, pos, value)
        return f"{name} is {value}, not {now}", fixed_crc(bytes(changed))
    start = _RECORDS[magic]
    payload = bytearray(data[start:])
    is_gzip = magic == 2 and struct.unpack_from(">h", data, 21)[0] & 7 == 1
    if is_gzip and kind < 7:
        payload = bytearray(gzip.decompress(bytes(payload)))
    said = ""
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(payload))
        if kind == 4:
            payload[at] = rng.choice((0, 1, 0x7E, 0x7F, 0x80, 0xFE, 0xFF))
            said += f"byte {at} of the records is {payload[at]:#x}; "
        elif kind == 5:
            new = rng.choice((b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x80"))
            payload[at : at + 1] = new
            said += f"byte {at} of the records is {new.hex()}; "
        elif kind == 6:
            del payload[at : at + rng.choice((1, 2, 8))]
            said += f"byte {at} of the records is left out; "
            payload = payload or bytearray(b"\0")
        else:
            new = rng.randbytes(rng.choice((1, 2, 8)))
            payload += new
            said += f"{new.hex()} behind the records; "
    if is_gzip and kind < 7:
        payload = bytearray(gzip.compress(bytes(payload), mtime=0))
    changed = bytearray(data[:start]) + payload
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return said, fixed_crc(bytes(changed))


class Batches(Appending):
    """Buffers for `append_batches`."""

    def timestamp_type(self) -> str:
        kinds = ("CreateTime", "CreateTime", "LogAppendTime")
        return self.rng.choice(kinds) if self.magic else kinds[0]

    def lie(self) -> str:
        rng = self.rng
        kind = rng.choice(FORMATS)
        batches = list(rng.choices(_sound_batches()[kind], k=rng.choice((1, 1, 2))))
        at = rng.randrange(len(batches))
        self.what, batches[at] = lying_batch(batches[at], rng)
        data = b"".join(batches)
        if rng.random() < 0.1:
            size = rng.randrange(len(data))
            self.what += f"; cut to {size} bytes"
            data = data[:size]
        self.what = f"{kind}, batch {at} of {len(batches)}: {self.what}"
        _, text = self.call(lambda: self.partitions[0].append_batches(data))
        return text or self.look()


# ---------------------------------------------------------------- staged


class StagedFiles(Appending):
    """Staged files that were changed, and `Staged` values that do not match them."""

    def format(self) -> tuple[int, str]:
        return self.rng.choice([kind for kind in FORMATS if kind[0]])

    def lie(self) -> str:
        rng = self.rng
        with self.store.stage() as stage:
            for partition in rng.sample(self.partitions, rng.choice((1, 2))):
                for _ in range(rng.choice((1, 2))):
                    stage.append_many(partition, [b"%d" % rng.randrange(99)] * 3)
            staged = stage.finish()
        before = self.others(staged)
        if rng.random() < 0.4:
            # A program that may write into the store's directory may write into its
            # logs as well: the records of a staged batch with a right checksum are
            # accepted. Earlier records can still be read.
            self.believes = True
            self.spoil_file(staged)
        else:
            staged = self.spoil_value(staged)
        try:
            _, text = self.call(lambda: self.store.publish([staged]))
            text = text or self.look()
            self.believes = False
            if not text and self.others(None) != before:
                text = f"other files: {before} {self.others(None)}"
            return text
        finally:
            for file in self.path.glob(".logstore-staged*"):
                file.unlink()

    def others(self, staged: Staged | None) -> dict[str, Any]:
        """State of the files that must not change."""
        outside = self.folder / "outside"
        if staged is not None:
            outside.write_bytes(b"outside")
            (self.path / "other").write_bytes(b"other")
        return {
            "outside": outside.exists() and outside.read_bytes(),
            "other": (self.path / "other").exists(),
            ".lock": (self.path / ".lock").exists(),
            "topics": (self.path / ".logstore-topics").exists(),
        }

    def spoil_file(self, staged: Staged) -> None:
        rng = self.rng
        path = self.path / rng.choice(staged.files)
        data = path.read_bytes()
        frame = rng.choice(frames_in(data))
        end = frame.pos + frame.size
        self.what, new = lying_batch(data[frame.pos : end], rng)
        if rng.random() < 0.5:
            # Of the same size, so that the reported facts about the file are true.
            new = new[: frame.size].ljust(frame.size, b"\0")
            if len(new) > 21:
                new = fixed_crc(new)
        path.write_bytes(data[: frame.pos] + new + data[end:])
        self.what = f"batch at {frame.pos} of a staged file: {self.what}"

    def spoil_value(self, staged: Staged) -> Any:
        rng = self.rng
        logs = list(staged.logs)
        at = rng.randrange(len(logs))
        log = logs[at]
        runs = list(log.runs)
        pos, size = runs[0]
        name = rng.choice([*log._fields, "runs", "runs", "logs"])
        value: Any = None
        if name == "runs":
            value = rng.choice(
                (
                    (), ((pos, extreme(rng, 64, size)),),
                    ((extreme(rng, 64, pos), size),),
                    (*runs, *runs), ((pos, size, 1),), ((pos,),), None, "runs",
                    ((pos, size // 2), (pos + size // 2, size - size // 2)),
                    (("0", size),), ((pos, 1.5),), runs * 1000, ((pos, 1 << 40),),
                    ((True, size),), 5, ((None, None),),
                )
            )  # fmt: skip
        elif name in ("records", "first", "magic", "partition"):
            now = getattr(log, name)
            value = rng.choice(
                (extreme(rng, 64, now), now + 1, "1", None, 1.5, 1 << 70)
            )
        elif name == "file":
            value = rng.choice(
                ("", "../outside", "other", ".lock", ".logstore-topics", "/etc/passwd",
                 "orders-0", "orders-0/00000000000000000000.log", "x" * 5000, "a\0b",
                 None, 5, ".logstore-staged-", log.file + "x", "\ud800",
                 ".logstore-staged-../other")
            )  # fmt: skip
        elif name == "topic":
            value = rng.choice(
                ("", "none", "..", None, 5, "orders-0", "\ud800", "a" * 999)
            )
        elif name == "is_alone":
            value = not log.is_alone
        if name == "logs":
            more = rng.choice(
                (logs, [*logs, *logs], logs[::-1], [None], [()], None, "x")
            )
            self.what = f"logs are {str(more)[:300]}"
            return Staged(more if more is None else tuple(more))
        if name not in log._fields:
            return staged
        self.what = f"{name} is {str(value)[:100]}, not {getattr(log, name)}"
        logs[at] = log._replace(**{name: value})
        return Staged(tuple(logs))
