"""Methods passed through to the blocking objects: they wait for nothing but the disk,
and reading is faster than a change of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

__all__ = ["same"]

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
_Owner = TypeVar("_Owner")


class _Same(Generic[_Owner, _Params, _Result]):
    """A method of `blocking`, as a method of its owner. From the class it is the
    function itself, with its signature and its docstring."""

    def __init__(self, function: Callable[Concatenate[_Owner, _Params], _Result]):
        self._function = function

    @overload
    def __get__(
        self, instance: None, owner: type
    ) -> Callable[Concatenate[_Owner, _Params], _Result]: ...

    @overload
    def __get__(self, instance: Any, owner: type) -> Callable[_Params, _Result]: ...

    def __get__(self, instance: Any, owner: type) -> Callable[..., _Result]:
        if instance is None:
            return self._function
        return self._function.__get__(instance.blocking)  # type: ignore[no-any-return]  # of a function


def same(
    function: Callable[Concatenate[_Owner, _Params], _Result],
) -> _Same[_Owner, _Params, _Result]:
    """The method of the blocking object."""
    return _Same(function)
