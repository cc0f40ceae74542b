"""Record batches split by partition, for `Topic.append_arrow`.

pyarrow is optional: it is imported together with this module, at the first use. This
module also imports `logstore.record.arrow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import ConfigError
from logstore.record.arrow import large_binary_of, partitions_of

__all__ = ["split"]


def split(
    batch: Any,
    choose: Callable[[bytes | None, int], int],
    hashed_to: tuple[int, ...] | None,
    number_of: Callable[[Any], int],
) -> dict[int, Any]:
    """The rows of each partition, by its number; the rows of one keep their order.

    Args:
        choose: chooses the partition of a record from its key and the bytes of key and
            value.
        hashed_to: numbers of the partitions, if Kafka's hash decides for keys; None:
            `choose` decides for records with a key, too.
        number_of: checks a number in the column `partition`.

    Raises:
        ConfigError: a column contradicts itself, or `partition` has no integers.
    """
    try:
        # The code below relies on all its values; pyarrow does not check data from IPC.
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
        assert number is not None  # each was chosen
        places.setdefault(number, []).append(place)
    if len(places) == 1:
        return dict.fromkeys(places, batch)
    # With an explicit type: pyarrow aborts the process if it has no memory to infer it.
    return {n: batch.take(pa.array(rows, pa.int64())) for n, rows in places.items()}


def _given(batch: Any, number_of: Callable[[Any], int]) -> list[int | None]:
    """The numbers in the column `partition`; None for rows without one."""
    if "partition" not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column("partition")
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise ConfigError(
            f"column partition has type {column.type}, not integers; nothing was "
            f"written",
            name="partition",
        )
    values = column.to_pylist()
    numbers = {
        number: number_of(number) for number in set(values) if number is not None
    }
    return [None if number is None else numbers[number] for number in values]


def _payloads(batch: Any, name: str) -> Any:
    """A column of keys or values as an array of bytes; None without values."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return None if pa.types.is_null(column.type) else large_binary_of(column, name)


def _ask(
    batch: Any,
    keys: Any,
    chosen: list[int | None],
    choose: Callable[[bytes | None, int], int],
) -> list[int | None]:
    """Call the partitioner for rows that have no partition yet."""
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


# The last line of the import: the module must not be used before it.
IS_COMPLETE: Final = True
