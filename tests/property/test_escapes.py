"""Escapes of text and bytes for terminals: the table against its definition."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from logstore.cli.schema import payload_value
from logstore.cli.text import decode, escape, quoted

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
# Characters that a terminal obeys, and halves of surrogate pairs, more often than by
# chance.
_ODD = st.sampled_from(
    "\0\x1b\x7f\x80\x9b\xad\\\"'\u061c\u202e\u2066\ufeff\ud8ff\udc41"
)
_TEXTS = st.text(st.one_of(st.characters(), _ODD))
_BYTES = st.one_of(
    st.binary(),
    st.text().map(str.encode),
    st.lists(st.one_of(st.binary(max_size=3), st.text(max_size=3).map(str.encode))).map(
        b"".join
    ),
)


def defined(text: str) -> str:
    """The definition: one character after the other."""
    shown = []
    for char in text:
        if char in _SHORT:
            shown.append(_SHORT[char])
        elif char.isprintable():
            shown.append(char)
        else:
            is_byte = "\udc80" <= char <= "\udcff"
            errors = "surrogateescape" if is_byte else "surrogatepass"
            form = char.encode("utf-8", errors)
            shown.append("".join(f"\\x{byte:02x}" for byte in form))
    return "".join(shown)


@given(_TEXTS)
@example("\udcc3\udca9")
def test_escapes_of_text_are_those_of_its_characters(text: str) -> None:
    """Each character is escaped independently of its neighbours."""
    assert escape(text) == defined(text)
    assert escape(text).isprintable()


@given(_BYTES)
@example(bytes(range(256)))
def test_escapes_of_bytes_are_those_of_their_characters(data: bytes) -> None:
    """Bytes that are not UTF-8 are escaped one by one."""
    assert quoted(data) == '"' + defined(decode(data)).replace('"', '\\"') + '"'


@given(_BYTES)
@example(b"\\udc80 \\\xff")
def test_utf8_payloads_are_decoded_as_python_does(data: bytes) -> None:
    """A backslash escape for each byte that is not UTF-8, and no other one."""
    assert payload_value(data, "utf8") == data.decode("utf-8", "backslashreplace")


def test_escapes_of_a_long_value_take_no_call_for_each_character() -> None:
    """Calls made megabytes of binary values take minutes."""
    text = decode(bytes(range(256)) * 64)
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    escape(text)
    sys.setprofile(count)
    try:
        escape(text)
    finally:
        sys.setprofile(None)
    assert calls < 100
