"""The policy of a read for damage: raise it, leave it out, or ask the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from logstore.errors import ConfigError, CorruptRecordError, UnsupportedError

__all__ = ["RAISE", "SKIP", "Damaged", "DamagePolicy", "OnCorruption"]

_CHOICES: Final = ("raise", "skip")
# Answers that are kept. Damage is met twice at most: by a look for the ends of
# transactions, and by the read that comes there.
_ANSWERS_MAX: Final = 1024


class Damaged(NamedTuple):
    """A part of a log that cannot be read.

    Attributes:
        first: the first offset in it that was not delivered.
        next_offset: where reading can continue; None: nothing intact follows in the
            log.
        error: what a read would raise.
    """

    first: int
    next_offset: int | None
    error: CorruptRecordError | UnsupportedError


OnCorruption: TypeAlias = "str | Callable[[Damaged], bool]"


class DamagePolicy:
    """The policy of one read for damage.

    Attributes:
        skips: whether damage may be left out.
        asks: whether the caller decides, in whose thread the read must then be.

    Raises:
        ConfigError: `on_corruption` is not a valid choice, and cannot be called.
    """

    __slots__ = ("_answers", "_ask", "asks", "skips")

    def __init__(self, on_corruption: OnCorruption) -> None:
        self._ask = None if isinstance(on_corruption, str) else on_corruption
        self._answers: dict[tuple[str | None, int | None], bool] = {}
        self.asks = callable(self._ask)
        self.skips = on_corruption != "raise"
        if not self.asks and on_corruption not in _CHOICES:
            raise ConfigError(
                f"on_corruption={on_corruption!r} is not one of "
                f"{', '.join(_CHOICES)}, and no function",
                name="on_corruption",
                value=on_corruption,
            )

    def leaves_out(self, damaged: Damaged) -> bool:
        """Whether the read continues after the damage. The caller is asked once for
        each place in a file; an exception of its function ends the read.

        Raises:
            TypeError: it has returned something else: a coroutine is not an answer.
        """
        if self._ask is None:
            return self.skips
        place = damaged.error.path, damaged.error.position
        answer = self._answers.get(place)
        if answer is None:
            returned: object = self._ask(damaged)
            if not isinstance(returned, bool | None):
                raise TypeError(
                    f"on_corruption returned {type(returned).__name__}, not bool"
                )
            answer = bool(returned)
            if len(self._answers) >= _ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
            self._answers[place] = answer
        return answer


RAISE: Final = DamagePolicy("raise")
SKIP: Final = DamagePolicy("skip")
