"""docs/format.md against ls_format.h and against an independent decoder.

The decoder below is written from the page, with the standard library and third-party
checksums and codecs, and shares nothing with logstore: a mistake would have to be made
three times, in the decoder, the page and the C header.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cramjam
import crc32c
import lz4.frame
import pytest
import xxhash
import zstandard

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
HEADER = (ROOT / "src/logstore/_native/ls_format.h").read_text(encoding="utf-8")

# Kinds of `_POS` constants that must all be on the page.
DOCUMENTED = re.compile(r"LS_(FRAME|MESSAGE|BATCH|INDEX|TIME)_\w+_POS(_V[01])?")


# -------------------------------------------------------------- constants of the header


def evaluate(text: str, names: dict[str, int]) -> int:
    """The value of a sum, product or shift of integers and `names`."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return names[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = value(left), value(right)
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.LShift():
                        return a << b
        raise ValueError(f"cannot evaluate {text!r}")

    return value(ast.parse(text.strip(), mode="eval").body)


def constants(header: str) -> dict[str, int]:
    """The integer constants of a C header: enumerators and defines."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    found: dict[str, int] = {}
    pattern = r"#define +(LS_\w+) +(\S.*)|\b(LS_\w+) = ([^,}]+)"
    for define, text_1, enumerator, text_2 in re.findall(pattern, text):
        found[define or enumerator] = evaluate(text_1 or text_2, found)
    return found


CONSTANTS = constants(HEADER)


# ------------------------------------------------------------------ tables of the page


@dataclass(frozen=True, slots=True)
class Table:
    """A Markdown table: its chapter, its head and its rows."""

    chapter: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(page: str) -> Iterator[Table]:
    chapter, block = "", []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            block.append(tuple(cell.strip() for cell in line.strip("| ").split("|")))
            continue
        if block:
            width = len(block[0])
            rows = tuple((*row, *[""] * (width - len(row))) for row in block[2:])
            yield Table(chapter, block[0], rows)
            block = []
        if line.startswith("#"):
            chapter = line.lstrip("# ")


BYTE_TABLES = [table for table in tables(PAGE) if table.head[:2] == ("pos", "size")]
# Lengths of the variable parts to try: none, equal ones, different ones.
LENGTHS = [dict.fromkeys("akv", 0), dict.fromkeys("akv", 1), {"a": 5, "k": 7, "v": 11}]


def table_faults(table: Table, names: dict[str, int]) -> list[str]:
    """The faults of a byte table, one sentence each."""
    faults = []
    for lengths in LENGTHS:
        pos = 0
        for row in table.rows:
            field = f"{table.chapter}: {row[3] or row[0]}"
            if row[0] == "**all**":
                if evaluate(row[1], lengths) != pos:
                    faults.append(f"{field}: the rows add up to {pos}, not {row[1]}")
                continue
            if evaluate(row[0], lengths) != pos:
                faults.append(f"{field}: follows at {pos}, not {row[0]}")
            pos = evaluate(row[0], lengths) + evaluate(row[1], lengths)
    for row in table.rows:
        name = row[4].strip("`") if len(row) > 4 else ""
        if not name:
            continue
        said = evaluate(row[1 if row[0] == "**all**" else 0], LENGTHS[0])
        size_name = re.sub(r"_POS(_V[01])?$", "_BYTES", name)
        size = names.get(size_name) if size_name != name else None
        if name not in names:
            faults.append(f"{table.chapter}: ls_format.h has no {name}")
        elif names[name] != said:
            faults.append(f"{table.chapter}: {name} is {names[name]}, not {said}")
        elif size is not None and size != evaluate(row[1], LENGTHS[0]):
            faults.append(f"{table.chapter}: {size_name} is {size}, not {row[1]}")
    return faults


def test_page_has_the_byte_tables() -> None:
    """The parser above finds the tables, so that the next tests check something."""
    assert len(BYTE_TABLES) == 12


@pytest.mark.parametrize("table", BYTE_TABLES, ids=lambda table: table.chapter)
def test_byte_table_adds_up_and_equals_the_header(table: Table) -> None:
    """Each field begins at the end of the previous one, and C has the same numbers."""
    assert table_faults(table, CONSTANTS) == []


def test_every_position_of_the_header_is_on_the_page() -> None:
    """Every field of the C header is documented."""
    named = {row[4].strip("`") for t in BYTE_TABLES for row in t.rows if len(row) > 4}
    assert {name for name in CONSTANTS if DOCUMENTED.fullmatch(name)} <= named


def test_attribute_bits_equal_the_masks_of_the_header() -> None:
    """Bits of the attributes table are the masks of ls_format.h."""
    (table,) = [t for t in tables(PAGE) if t.head[0] == "attribute bits"]
    seen = set()
    for bits, _, mask in table.rows:
        if mask:
            first, _, last = bits.partition("-")
            value = sum(1 << bit for bit in range(int(first), int(last or first) + 1))
            assert CONSTANTS[mask.strip("`")] == value
            seen.add(mask.strip("`"))
    assert seen == {name for name in CONSTANTS if name.startswith("LS_ATTRIBUTE_")}


def test_minimum_lengths_of_the_header_are_those_of_the_page() -> None:
    """The lower bounds in the rules: magic 0, 1 and 2."""
    found = [int(n) for n in re.findall(r"^1\. (\d+) <= length", PAGE, re.MULTILINE)]
    assert found == [
        CONSTANTS["LS_MESSAGE_MIN_LENGTH_V0"],
        CONSTANTS["LS_MESSAGE_MIN_LENGTH_V1"],
        CONSTANTS["LS_BATCH_MIN_LENGTH"],
    ]


BAD_TABLES = {
    "gap": [("0", "4", "", "a", ""), ("5", "4", "", "b", "")],
    "sum": [("0", "4", "", "a", ""), ("**all**", "5", "", "", "")],
    "variable": [("0", "k", "", "a", ""), ("v", "4", "", "b", "")],
    "position": [("0", "4", "", "a", ""), ("4", "4", "", "b", "`LS_X_POS`")],
    "size": [("0", "8", "", "a", ""), ("8", "2", "", "b", "`LS_X_POS`")],
    "unknown": [("0", "8", "", "a", "`LS_Y_POS`")],
}


@pytest.mark.parametrize("rows", BAD_TABLES.values(), ids=BAD_TABLES)
def test_bad_table_is_found(rows: list[tuple[str, ...]]) -> None:
    """Tables that do not add up, or differ from the header, are noticed."""
    table = Table("invented", ("pos", "size"), tuple(rows))
    assert table_faults(table, {"LS_X_POS": 8, "LS_X_BYTES": 4})


# ------------------------------------------------------------------- a decoder of bytes


class Bad(Exception):
    """The bytes contradict the page."""


def check(true: bool, what: str) -> None:
    if not true:
        raise Bad(what)


class Cursor:
    """Takes fields from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def take(self, size: int) -> bytes:
        check(0 <= size <= len(self.data) - self.pos, "ends inside a field")
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def unpack(self, types: str) -> tuple[int, ...]:
        return struct.unpack(f">{types}", self.take(struct.calcsize(f">{types}")))

    def sized(self, size: int) -> bytes | None:
        check(size >= -1, "negative length")
        return None if size == -1 else self.take(size)

    def varint(self, bytes_max: int) -> int:
        value = 0
        for i in range(bytes_max):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise Bad("varint too long")

    @property
    def at_end(self) -> bool:
        return self.pos == len(self.data)


def text(data: bytes | None) -> str:
    return "null" if data is None else data.decode()


def joined(values: list[int] | list[str]) -> str:
    return " ".join(str(value) for value in values)


def decode_message(data: bytes) -> dict[str, object]:
    """A message of magic 0 or 1, alone or a gzip wrapper."""
    cursor = Cursor(data)
    offset, length, crc, magic, attributes = cursor.unpack("qiIbb")
    check(length == len(data) - 12, "length")
    check(magic in (0, 1), "magic")
    check(crc == zlib.crc32(data[16:]), "CRC")
    (timestamp,) = cursor.unpack("q") if magic else (-1,)
    key = cursor.sized(*cursor.unpack("i"))
    value = cursor.sized(*cursor.unpack("i"))
    check(cursor.at_end, "bytes after the value")
    fields: dict[str, object] = {
        "offset": offset,
        "magic": magic,
        "codec": attributes & 7,
        "timestamp_type": (attributes >> 3) & 1 if magic else -1,
        "timestamp": timestamp,
        "key": text(key),
    }
    if attributes & 7 == 0:
        return {**fields, "value": text(value)}
    check(attributes & 7 == 1 and value is not None, "this decoder knows gzip only")
    inner = [decode_message(part) for part in messages(gunzip(value or b""))]
    relative = [int(str(message["offset"])) for message in inner]
    base = offset - relative[-1] if magic and offset else 0
    return {
        **fields,
        "inner_offsets": joined(relative),
        "offsets": joined([base + r for r in relative]),
        "timestamps": joined([str(message["timestamp"]) for message in inner]),
        "keys": joined([str(message["key"]) for message in inner]),
        "values": joined([str(message["value"]) for message in inner]),
    }


def messages(data: bytes) -> Iterator[bytes]:
    cursor = Cursor(data)
    while not cursor.at_end:
        head = cursor.take(12)
        yield head + cursor.take(*struct.unpack(">i", head[8:]))


@dataclass(frozen=True, slots=True)
class Record:
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def take_record(cursor: Cursor) -> Record:
    body = Cursor(cursor.take(cursor.varint(5)))
    body.take(1)
    timestamp_delta, offset_delta = body.varint(10), body.varint(5)
    key = body.sized(body.varint(5))
    value = body.sized(body.varint(5))
    headers = []
    for _ in range(body.varint(5)):
        name = body.sized(body.varint(5))
        headers.append((text(name), body.sized(body.varint(5))))
    check(body.at_end, "bytes after the headers")
    return Record(timestamp_delta, offset_delta, key, value, headers)


def decode_record(data: bytes) -> dict[str, object]:
    cursor = Cursor(data)
    record = take_record(cursor)
    check(cursor.at_end, "bytes after the record")
    headers = [f"{name}={text(value)}" for name, value in record.headers]
    return {
        "key": text(record.key),
        "value": text(record.value),
        "headers": joined(headers),
    }


def decode_batch(data: bytes) -> dict[str, object]:
    """An uncompressed batch of magic 2."""
    cursor = Cursor(data)
    base_offset, length, leader_epoch, magic, crc = cursor.unpack("qiibI")
    check(length == len(data) - 12, "length")
    check(magic == 2, "magic")
    check(crc == crc32c.crc32c(data[21:]), "CRC")
    attributes, last_delta, base_timestamp, max_timestamp = cursor.unpack("hiqq")
    producer_id, producer_epoch, base_sequence, count = cursor.unpack("qhii")
    records = [take_record(cursor) for _ in range(count)]
    check(cursor.at_end, "bytes after the last record")
    times = [base_timestamp + record.timestamp_delta for record in records]
    if attributes & 8:
        times = [max_timestamp] * count
    fields: dict[str, object] = {
        "base_offset": base_offset,
        "last_offset": base_offset + last_delta,
        "leader_epoch": leader_epoch,
        "attributes": attributes,
        "base_timestamp": base_timestamp,
        "max_timestamp": max_timestamp,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": base_sequence,
        "record_count": count,
    }
    if attributes & 0x20:
        (record,) = records
        control_version, control_type = struct.unpack(">hh", record.key or b"")
        version, coordinator_epoch = struct.unpack(">hi", record.value or b"")
        check((control_version, version) == (0, 0), "version")
        marker = {"control_type": control_type, "coordinator_epoch": coordinator_epoch}
        return {**fields, **marker}
    return {
        **fields,
        "offsets": joined([base_offset + record.offset_delta for record in records]),
        "timestamps": joined(times),
        "keys": joined([text(record.key) for record in records]),
        "values": joined([text(record.value) for record in records]),
        "headers": joined([len(record.headers) for record in records]),
    }


def entries(data: bytes, types: str) -> list[tuple[int, ...]]:
    check(len(data) % struct.calcsize(f">{types}") == 0, "size")
    return list(struct.iter_unpack(f">{types}", data))


def decode_index(data: bytes) -> dict[str, object]:
    return {"entries": joined([f"{o}@{pos}" for o, pos in entries(data, "ii")])}


def decode_timeindex(data: bytes) -> dict[str, object]:
    return {"entries": joined([f"{time}@{o}" for time, o in entries(data, "qi")])}


def decode_txnindex(data: bytes) -> dict[str, object]:
    found = entries(data, "hqqqq")
    check(all(entry[0] == 0 for entry in found), "version")
    shown = [f"{pid}:{first}-{last}<{stable}" for _, pid, first, last, stable in found]
    return {"entries": joined(shown)}


def decode_snapshot(data: bytes) -> dict[str, object]:
    version, crc, count = struct.unpack(">hIi", data[:10])
    check(version == 1, "version")
    check(crc == crc32c.crc32c(data[6:]), "CRC")
    found = entries(data[10:], "qhiqiqiq")
    check(count == len(found), "count")
    shown = [
        f"{pid} epoch={epoch} sequence={sequence} offsets={last - delta}-{last} "
        f"timestamp={timestamp} coordinator={coordinator} open={first}"
        for pid, epoch, sequence, last, delta, timestamp, coordinator, first in found
    ]
    return {"entries": joined(shown)}


def decode_offset_key(data: bytes) -> dict[str, object]:
    kind, size = struct.unpack_from(">hh", data)
    group, rest = data[4 : 4 + size].decode(), data[4 + size :]
    (size,) = struct.unpack_from(">h", rest)
    topic, rest = rest[2 : 2 + size].decode(), rest[2 + size :]
    (partition,) = struct.unpack(">i", rest)
    return {"type": kind, "group": group, "topic": topic, "partition": partition}


def decode_offset_value(data: bytes) -> dict[str, object]:
    version, offset, epoch, size = struct.unpack_from(">hqih", data)
    check(version == 3, "version")
    (committed,) = struct.unpack(">q", data[16 + size :])
    return {
        "version": version,
        "offset": offset,
        "epoch": epoch,
        "metadata": data[16 : 16 + size].decode(),
        "committed": committed,
    }


def checkpoint_entries(data: bytes) -> list[list[str]]:
    version, count, *lines = data.decode().splitlines()
    check(version == "0" and int(count) == len(lines), "version or count")
    return [line.split() for line in lines]


def decode_checkpoint(data: bytes) -> dict[str, object]:
    found = [f"{t}:{p}={offset}" for t, p, offset in checkpoint_entries(data)]
    return {"entries": joined(found)}


def decode_epochs(data: bytes) -> dict[str, object]:
    return {
        "entries": joined([f"{e}@{offset}" for e, offset in checkpoint_entries(data)])
    }


def decode_metadata(data: bytes) -> dict[str, object]:
    found = dict(re.split(r":\s+", line) for line in data.decode().splitlines())
    topic_id = base64.urlsafe_b64decode(found["topic_id"] + "==")
    check(len(topic_id) == 16 and any(topic_id), "topic id")
    return {"version": found["version"], "topic_id": topic_id.hex()}


def decode_properties(data: bytes) -> dict[str, object]:
    lines = [line for line in data.decode().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


DECODERS: dict[str, Callable[[bytes], dict[str, object]]] = {
    "hex message": decode_message,
    "hex batch": decode_batch,
    "hex record": decode_record,
    "hex index": decode_index,
    "hex timeindex": decode_timeindex,
    "hex txnindex": decode_txnindex,
    "hex snapshot": decode_snapshot,
    "hex offset-key": decode_offset_key,
    "hex offset-value": decode_offset_value,
    "text checkpoint": decode_checkpoint,
    "text epochs": decode_epochs,
    "text metadata": decode_metadata,
    "text properties": decode_properties,
    "text cleanshutdown": json.loads,
}


# ---------------------------------------------------------------- examples of the page


@dataclass(frozen=True, slots=True)
class Example:
    """A fenced block, and the block of fields that follows it."""

    name: str  # of the test
    kind: str
    data: bytes
    fields: dict[str, str]


def bytes_of_hex(block: str) -> bytes:
    return bytes.fromhex(re.sub(r"#.*", "", block))


def examples(page: str) -> Iterator[Example]:
    pattern = r"```((?:hex|text) \S+)\n(.*?)```(?:\n```fields\n(.*?)```)?"
    for match in re.finditer(pattern, page, re.DOTALL):
        kind, block, fields = match.groups()
        line = page.count("\n", 0, match.start()) + 1
        data = bytes_of_hex(block) if kind.startswith("hex") else block.encode()
        pairs = [pair.split(":", 1) for pair in (fields or "").splitlines()]
        said = {name: value.strip() for name, value in pairs}
        yield Example(f"{kind}-{line}".replace(" ", "-"), kind, data, said)


EXAMPLES = list(examples(PAGE))
DECODED = [example for example in EXAMPLES if example.fields]
BINARY = [e for e in DECODED if e.kind in ("hex message", "hex batch", "hex snapshot")]


def only(kind: str) -> bytes:
    (data,) = [example.data for example in EXAMPLES if example.kind == kind]
    return data


@pytest.mark.parametrize("example", DECODED, ids=lambda example: example.name)
def test_example_decodes_to_its_fields(example: Example) -> None:
    """A worked example has the listed fields, and its checksum is right."""
    found = DECODERS[example.kind](example.data)
    shown = {name: str(found.get(name, "missing")) for name in example.fields}
    assert shown == example.fields


@pytest.mark.parametrize("example", BINARY, ids=lambda example: example.name)
def test_example_with_a_changed_last_byte_is_refused(example: Example) -> None:
    """The decoder does check the checksum."""
    changed = example.data[:-1] + bytes([example.data[-1] ^ 1])
    with pytest.raises(Bad, match="CRC"):
        DECODERS[example.kind](changed)


def test_every_kind_of_example_is_on_the_page() -> None:
    """No chapter lacks its example, and none is left undecoded."""
    alone = {
        "hex varint",
        "hex lz4-header",
        "hex lz4-header-quirk",
        "hex gzip-area",
        "hex snappy-area",
        "hex lz4-area",
        "hex zstd-area",
    }
    assert {example.kind for example in EXAMPLES} == {*DECODERS, *alone}
    assert {example.kind for example in EXAMPLES if not example.fields} == alone


def test_varint_examples_decode_to_their_numbers() -> None:
    """Each line has a varint and its number."""
    (block,) = re.findall(r"```hex varint\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        encoded, number = line.split("#")
        cursor = Cursor(bytes.fromhex(encoded))
        assert cursor.varint(5) == int(number)
        assert cursor.at_end


def gunzip(data: bytes) -> bytes:
    member = zlib.decompressobj(wbits=31)
    plain = member.decompress(data)
    check(member.eof and not member.unused_data, "more or less than one gzip member")
    return plain


def unsnappy(data: bytes) -> bytes:
    cursor = Cursor(data)
    check(cursor.take(8) == b"\x82SNAPPY\0", "magic")
    check(cursor.unpack("ii") == (1, 1), "version")
    plain = b""
    while not cursor.at_end:
        block = cursor.take(*cursor.unpack("i"))
        plain += bytes(cramjam.snappy.decompress_raw(block))
    return plain


DECOMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gunzip,
    "snappy": unsnappy,
    "lz4": lz4.frame.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}


@pytest.mark.parametrize("codec", DECOMPRESSORS)
def test_compressed_area_is_the_area_of_the_batch(codec: str) -> None:
    """All codecs give the record area of the first batch of the page."""
    batch = next(example.data for example in EXAMPLES if example.kind == "hex batch")
    assert DECOMPRESSORS[codec](only(f"hex {codec}-area")) == batch[61:]


@pytest.mark.parametrize(
    ("kind", "begin"), [("lz4-header", 4), ("lz4-header-quirk", 0)]
)
def test_lz4_header_checksum_covers_what_the_page_says(kind: str, begin: int) -> None:
    """The quirk of magic 0: the frame's own magic is hashed, too."""
    header = only(f"hex {kind}")
    digest = xxhash.xxh32_intdigest(header[begin:-1], seed=0)
    assert header[-1] == (digest >> 8) & 0xFF


# ---------------------------------------------------------------------- the page itself


def test_links_inside_the_page_lead_to_headings() -> None:
    """Contents and cross references are updated with the headings."""
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
