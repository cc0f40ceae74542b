"""Converts keys and values to text, and members of their JSON to columns.

Each record batch is converted by the thread that has read it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from logstore.config import check_kind
from logstore.errors import ConfigError
from logstore.log.frames.columns import SCHEMA, check_columns, schema_of

try:
    import orjson
except ImportError:  # it is optional
    _orjson: Any = None
else:
    _orjson = orjson

__all__ = ["IS_COMPLETE", "Payloads", "nullable_kinds"]

_PAYLOADS: Final = ("key", "value")
# A type of Arrow, and the conversion of a JSON value to it.
_Kind: TypeAlias = "tuple[Any, Callable[[object], Any]]"


class Payloads:
    """Conversion of the keys and values of record batches.

    Attributes:
        columns: the ones to be read.
        schema: of the result: the wanted columns, then the columns of `json`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        text: bool = False,
        json: Mapping[str, str] | None = None,
        view: bool = False,
    ) -> None:
        """Args: as in `Partition.read_arrow`.

        Raises:
            ConfigError, TypeError: a column does not exist, or is named twice, or has
                no such type.
        """
        check_kind("text", text, bool)
        names = check_columns(columns)
        self._members = _members(json)
        self.columns = names
        if self._members and "value" not in names:
            self.columns = (*names, "value")
        self._wanted = names
        self._texts = [name for name in names if text and name in _PAYLOADS]
        self._text = pa.string_view() if view else pa.string()
        self.schema = schema_of(names, view)
        for name in self._texts:
            index = self.schema.get_field_index(name)
            field = self.schema.field(index).with_type(self._text)
            self.schema = self.schema.set(index, field)
        for name, (kind, _) in self._members.items():
            self.schema = self.schema.append(pa.field(name, kind))

    @property
    def changes_nothing(self) -> bool:
        """Whether batches are not converted."""
        return not self._texts and not self._members

    def apply(self, batch: Any) -> Any:
        """A batch of `columns` as one of `schema`."""
        arrays = []
        for name in self._wanted:
            array = batch.column(name)
            arrays.append(_as_text(array, self._text) if name in self._texts else array)
        if self._members:
            values = batch.column("value").to_pylist()
            objects = [_object(value) for value in values]
            for name, (kind, of_kind) in self._members.items():
                column = [of_kind(json_object.get(name)) for json_object in objects]
                arrays.append(pa.array(column, kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _as_text(array: Any, kind: Any) -> Any:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:  # some are not UTF-8
        texts = [
            None if data is None else str(data, "utf-8", "replace")
            for data in array.to_pylist()
        ]
        return pa.array(texts, kind)


# ------------------------------------------------------------------ JSON


def _text(value: object) -> str | None:
    if type(value) is not str:
        return None
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: no character
            return None
    return value


def _integer(limit: int) -> Callable[[object], int | None]:
    def integer(value: object) -> int | None:
        return value if type(value) is int and -limit <= value < limit else None

    return integer


def _double(value: object) -> float | None:
    if type(value) is not float and type(value) is not int:
        return None
    try:
        number = float(value)  # the nearest one
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _bool(value: object) -> bool | None:
    return value if type(value) is bool else None


# The types that a column of JSON may have: a value of one, or None.
_KINDS: Final[dict[str, _Kind]] = {
    "string": (pa.string(), _text),
    "int32": (pa.int32(), _integer(1 << 31)),
    "int64": (pa.int64(), _integer(1 << 63)),
    "double": (pa.float64(), _double),
    "bool": (pa.bool_(), _bool),
}


def nullable_kinds(pandas: Any) -> dict[Any, Any]:
    """The types of pandas for columns of JSON, by type of Arrow."""
    return {
        pa.int32(): pandas.Int32Dtype(),
        pa.int64(): pandas.Int64Dtype(),
        pa.bool_(): pandas.BooleanDtype(),
    }


def _members(json_types: Mapping[str, str] | None) -> dict[str, _Kind]:
    """The columns of JSON by name."""
    if json_types is None:
        return {}
    if not isinstance(json_types, Mapping):
        raise TypeError(
            f"json is {type(json_types).__name__}, not a mapping of names to types, as "
            f'{{"city": "string"}}'
        )
    members = {}
    for name, kind in json_types.items():
        check_kind("json", name, str)
        if name in SCHEMA:
            raise ConfigError(
                f"json has {name!r}, which is a column of a log; it has "
                f"{', '.join(SCHEMA)}",
                name="json",
                value=name,
            )
        if kind not in _KINDS:
            raise ConfigError(
                f"json has {name!r} of type {kind!r}, which is not one of "
                f"{', '.join(_KINDS)}",
                name="json",
                value=kind,
            )
        members[name] = _KINDS[kind]
    return members


_NOTHING: Final[dict[str, Any]] = {}


def _object(value: bytes | None) -> dict[str, Any]:
    """The members of a JSON object; none of anything else."""
    if value is None:
        return _NOTHING
    try:
        json_value = _loads(value)
    except (ValueError, RecursionError):
        return _NOTHING
    return json_value if type(json_value) is dict else _NOTHING


def _loads_slowly(value: bytes) -> Any:
    return json.loads(value.decode(), parse_constant=_refuse)


def _refuse(name: str) -> None:
    """Refuse NaN and the like, which are not JSON."""
    raise ValueError(name)


_loads: Callable[[bytes], Any] = _orjson.loads if _orjson else _loads_slowly


# The last line of the import: until it has run, the module must not be used.
IS_COMPLETE: Final = True
