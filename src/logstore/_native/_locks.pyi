"""pylocks.c: the locks of the engine."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, final

@final
class Mutex:
    def __new__(cls, rank: int, name: str, group: int = 0) -> Mutex: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    def attempt(self) -> Attempt: ...
    @property
    def is_mine(self) -> bool: ...
    @property
    def top(self) -> int: ...

@final
class Attempt:
    def __enter__(self) -> bool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Group:
    def __new__(cls, mutexes: Iterable[Mutex]) -> Group: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

def held() -> bool: ...
def defer(function: Callable[..., object], /, *args: Any) -> None: ...
def after_fork() -> None: ...
