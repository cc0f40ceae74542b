"""Arrow columns whose buffers lie."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from faults.lies import Appending, extreme
from faults.lying_batches import CODE


def _is_harmless(error: Exception) -> bool:
    """Whether logstore may accept it: text is stored as bytes, counts of nulls are not
    trusted."""
    text = str(error).lower().replace("_", " ")
    return "utf8" in text or "null count" in text


class Arrow(Appending):
    """Columns whose buffers lie."""

    def format(self) -> tuple[int, str]:
        return self.rng.choice(((2, "none"), (2, "none"), (2, "gzip"), (1, "none")))

    def lie(self) -> str:
        rng = self.rng
        count = rng.choice((1, 3, 8))
        name = rng.choice(("value", "value", "key", "timestamp", "headers"))
        if self.magic < 2 and name == "headers":
            name = "key"
        batch: Any
        try:
            if rng.random() < 0.4:
                batch = self.from_stream(count)
            else:
                value = pa.array([b"%d" % n for n in range(count)], pa.binary())
                array = self.array(name, count)
                batch = pa.RecordBatch.from_arrays(
                    [array] if name == "value" else [value, array],
                    ["value"] if name == "value" else ["value", name],
                )
        except Exception:
            self.was_refused = True
            return ""  # pyarrow has noticed it
        is_intact, why = True, ""
        try:
            batch.validate(full=True)
            columns = [c for c in batch.schema.names if c in ("key", "value")]
            wanted = batch.select(columns).to_pylist()
        except pa.ArrowInvalid as error:
            is_intact, wanted, why = _is_harmless(error), [], str(error)
        except Exception as error:
            is_intact, wanted, why = False, [], str(error)
        if rng.random() < 0.3:
            found, text = self.call(lambda: self.staged(batch))
        else:
            found, text = self.call(lambda: self.partitions[0].append_arrow(batch))
        text = text or self.look()
        if text or found is None:
            return text
        if not is_intact:
            return f"pyarrow refuses it ({why}), and it was taken: {found}"
        stored = [row for _, row in self.known[0][found.start : found.stop]]
        if wanted and len(wanted) != len(stored):
            return f"{len(wanted)} rows were stored as {len(stored)}"
        for row, (_, key, value, _) in zip(wanted, stored, strict=False):
            given = [row.get("key"), row["value"]]
            given = [g.encode() if isinstance(g, str) else g for g in given]
            if given != [key, value]:
                return f"{given} was stored as {[key, value]}"
        return ""

    def staged(self, batch: Any) -> range:
        with self.store.stage() as stage:
            stage.append_arrow(self.partitions[0], batch)
            done = self.store.publish([stage.finish()])
        return next(iter(done.offsets.values()), range(0))

    def from_stream(self, count: int) -> Any:
        """A batch as a peer sends it, with some of its bytes replaced."""
        rng = self.rng
        kind = rng.choice((pa.binary(), pa.large_binary(), pa.string()))
        columns = {
            "value": pa.array([b"v%d" % n * n for n in range(count)], pa.binary()),
            "key": pa.array([f"k{n}" if n % 3 else None for n in range(count)], kind)
            if kind != pa.binary()
            else pa.array([b"k%d" % n if n % 3 else None for n in range(count)]),
            "timestamp": pa.array(range(count), pa.timestamp("ms")),
        }
        sink = pa.BufferOutputStream()
        table = pa.table(columns)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = bytearray(sink.getvalue().to_pybytes())
        body = len(pa.ipc.read_message(pa.py_buffer(bytes(data))).metadata) + 8
        said = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            size = rng.choice((1, 4, 4, 8, 8))
            pos = rng.randrange(body, len(data) - 8) // size * size
            value = extreme(rng, 8 * size)
            struct.pack_into("<" + CODE[size][1], data, pos, value)
            said.append(f"{pos}: {value} ({size})")
        self.what = f"{kind} out of a stream, {', '.join(said)}"
        return pa.ipc.open_stream(bytes(data)).read_next_batch()

    def array(self, name: str, count: int) -> Any:
        if name == "timestamp":
            return self.times(count)
        if name == "headers":
            return self.lists(count)
        return self.binary(count, name)

    def binary(self, count: int, name: str) -> Any:
        rng = self.rng
        kind = rng.choice(
            (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(),
             pa.binary_view(), pa.dictionary(pa.int32(), pa.binary()))
        )  # fmt: skip
        plain = [b"abc" * n for n in range(count)]
        if pa.types.is_dictionary(kind):
            index = pa.array(
                [extreme(rng, 32) if rng.random() < 0.3 else 0 for _ in range(count)],
                pa.int32(),
            )
            self.what = f"{name}: {kind} of indices {index.to_pylist()}"
            return pa.DictionaryArray.from_arrays(index, [b"a", b"b"], safe=False)
        array = pa.array(plain, pa.binary()).cast(kind)
        buffers = [b and bytearray(b.to_pybytes()) for b in array.buffers()]
        offset, length = 0, count
        for _ in range(rng.choice((1, 1, 2))):
            self.what = f"{name}: {kind} of {count}, {self.spoil(buffers, kind)}"
        if rng.random() < 0.2:
            length = count + rng.choice((1, 1_000, 1 << 20))
            self.what += f", length {length}"
        if rng.random() < 0.2:
            offset = rng.choice((1, 64, 1 << 20))
            self.what += f", offset {offset}"
        return pa.Array.from_buffers(
            kind, length, [b and pa.py_buffer(bytes(b)) for b in buffers],
            null_count=rng.choice((0, 0, -1)), offset=offset,
        )  # fmt: skip

    def spoil(self, buffers: list[Any], kind: Any) -> str:
        rng = self.rng
        which = rng.choice([n for n, b in enumerate(buffers) if b] or [0])
        buffer = buffers[which]
        if not buffer:
            return "nothing"
        size = (
            8 if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else 4
        )
        if rng.random() < 0.2:
            keep = rng.randrange(len(buffer))
            del buffer[keep:]
            return f"buffer {which} cut to {keep}"
        if len(buffer) < size:
            return "nothing"
        pos = rng.randrange(len(buffer) // size) * size
        value = extreme(rng, 8 * size, len(buffers[-1] or b""))
        struct.pack_into("<" + CODE[size][1], buffer, pos, value)
        return f"buffer {which}, byte {pos} is {value}"

    def times(self, count: int) -> Any:
        rng = self.rng
        kind = rng.choice(
            (
                pa.int64(),
                pa.timestamp("s"),
                pa.timestamp("ms"),
                pa.timestamp("us", "UTC"),
                pa.timestamp("ns"),
                pa.int32(),
                pa.uint64(),
            )
        )
        width = kind.bit_width
        values = [extreme(rng, width) for _ in range(count)]
        if kind == pa.uint64():
            values = [abs(value) % (1 << 63) for value in values]
        data = struct.pack("<" + str(count) + ("i" if width == 32 else "q"), *values)
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        self.what = f"timestamp: {kind} {values}, {len(data)} bytes"
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])

    def lists(self, count: int) -> Any:
        rng = self.rng
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        plain = [[{"key": "k", "value": b"v"}] * (n % 3) for n in range(count)]
        array = pa.array(plain, kind)
        offsets = bytearray(array.buffers()[1].to_pybytes())
        pos = 4 * rng.randrange(count + 1)
        value = extreme(rng, 32, 1)
        struct.pack_into("<i", offsets, pos, value)
        self.what = f"headers: offset {pos // 4} is {value}"
        return pa.Array.from_buffers(
            kind, count, [None, pa.py_buffer(bytes(offsets))], children=[array.values]
        )
