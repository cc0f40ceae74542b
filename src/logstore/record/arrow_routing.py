"""Record batches split by partition, for `Topic.append_arrow`.

pyarrow is optional: it is imported when this module is, which is at the first use.
Beside it this imports `logstore.record.arrow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import ConfigError
from logstore.record.arrow import partitions_of

__all__ = ["split"]


def split(
    batch: Any,
    choose: Callable[[bytes | None, int], int],
    hashed_to: tuple[int, ...] | None,
    number_of: Callable[[Any], int],
) -> dict[int, Any]:
    """The rows of each partition, by its number; those of one keep their order.

    Args:
        choose: the partition of a record, by its key and the bytes of key and value.
        hashed_to: numbers of the partitions, where a key's is by Kafka's hash; None:
            `choose` is asked for those with a key, too.
        number_of: checks a number in the column `partition`.

    Raises:
        ConfigError: a column contradicts itself, or `partition` has no integers.
    """
    try:
        # Everything in it is followed here; pyarrow does not look at what comes over
        # IPC.
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise ConfigError(
            f"append_arrow got a batch that contradicts itself: {error}; nothing was "
            f"written",
            name="data",
        ) from error
    chosen = _given(batch, number_of)
    keys = _payloads(batch, "key")
    if hashed_to is not None and keys is not None:
        hashes = partitions_of(keys, len(hashed_to)).to_pylist()
        chosen = [
            hashed_to[hash_] if number is None and hash_ >= 0 else number
            for number, hash_ in zip(chosen, hashes, strict=True)
        ]
    if None in chosen:
        chosen = _ask(batch, keys, chosen, choose)
    places: dict[int, list[int]] = {}
    for place, number in enumerate(chosen):
        assert number is not None  # each was asked for
        places.setdefault(number, []).append(place)
    if len(places) == 1:
        return dict.fromkeys(places, batch)
    # With its type: pyarrow aborts the process if it has no memory to find out one.
    return {n: batch.take(pa.array(rows, pa.int64())) for n, rows in places.items()}


def _given(batch: Any, number_of: Callable[[Any], int]) -> list[int | None]:
    """What the column `partition` says; None where it does not."""
    if "partition" not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column("partition")
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise ConfigError(
            f"column partition has type {column.type}, not integers; nothing was "
            f"written",
            name="partition",
        )
    given = column.to_pylist()
    known = {number: number_of(number) for number in set(given) if number is not None}
    return [None if number is None else known[number] for number in given]


def _payloads(batch: Any, name: str) -> Any:
    """A column of keys or values as an array of bytes; None where there are none."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return None
    try:
        return column.cast(pa.large_binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"column {name} has type {column.type}, not binary, large_binary or "
            f"string; nothing was written"
        ) from error


def _ask(
    batch: Any,
    keys: Any,
    chosen: list[int | None],
    choose: Callable[[bytes | None, int], int],
) -> list[int | None]:
    """Ask the partitioner where nothing has decided yet."""
    count = batch.num_rows
    sizes = [0] * count
    for column in (keys, _payloads(batch, "value")):
        if column is not None:
            lengths = pc.fill_null(pc.binary_length(column), 0).to_pylist()
            sizes = [a + b for a, b in zip(sizes, lengths, strict=True)]
    key_list = [None] * count if keys is None else keys.to_pylist()
    rows = zip(chosen, key_list, sizes, strict=True)
    return [
        choose(key, size) if number is None else number for number, key, size in rows
    ]


# The last line of the import: before it, the module is not to be used.
IS_COMPLETE: Final = True
