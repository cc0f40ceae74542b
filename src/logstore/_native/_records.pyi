from typing import Any

def make(
    kind: type,
    count: int,
    base: int,
    offset: int,
    timestamp: int,
    key_pos: int,
    key_len: int,
    value_pos: int,
    value_len: int,
    headers: Any,
    kinds: Any,
) -> list[Any]: ...
def pack(items: list[Any] | tuple[Any, ...], /) -> tuple[bytes, bytes] | None: ...
