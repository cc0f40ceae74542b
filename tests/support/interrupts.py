"""Interrupts, as from the keyboard, at places that a test chooses."""

from __future__ import annotations

import sys
from typing import Any


class InterruptAtCall:
    """A context manager that interrupts where a function of the library begins or ends
    in it: Python looks for signals there.

    Args:
        call: the number of the place.

    Attributes:
        has_raised: whether it came to that.
    """

    class Interrupt(BaseException):
        """As an interrupt from the keyboard, or a limit of time."""

    def __init__(self, call: int) -> None:
        self._left = call
        self.has_raised = False

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: object) -> Any:
        if "/logstore/" not in frame.f_code.co_filename or self.has_raised:
            return None
        if event in ("call", "return"):
            self._left -= 1
            if not self._left:
                self.has_raised = True
                raise self.Interrupt
        return self._trace
