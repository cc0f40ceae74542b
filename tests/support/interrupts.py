"""Interrupts, as from the keyboard, at places that a test chooses."""

from __future__ import annotations

import gc
import sys
from typing import Any

# Python holds no reference to a trace function while it calls it, and a frame may get
# another one meanwhile: this list keeps each alive.
_tracers: list[Any] = []


class InterruptAtCall:
    """Context manager that interrupts at the begin or end of a function of the library:
    Python looks for signals there. Garbage of other tests is not collected meanwhile:
    its finalizers are not part of the tested code.

    Args:
        call: the number of the place.

    Attributes:
        has_raised: whether that place was reached.
        seen: number of places so far.
    """

    class Interrupt(BaseException):
        """Stands for an interrupt from the keyboard, or a time limit."""

    def __init__(self, call: int) -> None:
        self._call = call
        self.seen = 0
        self.has_raised = False
        self._tracer = self._trace
        _tracers.append(self._tracer)

    def __enter__(self) -> None:
        gc.disable()
        sys.settrace(self._tracer)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _trace(self, frame: Any, event: str, _: object) -> Any:
        if "/logstore/" not in frame.f_code.co_filename or self.has_raised:
            return None
        if event in ("call", "return"):
            self.seen += 1
            if self.seen >= self._call and not _is_in_finalizer(frame):
                self.has_raised = True
                raise self.Interrupt
        return self._tracer


def _is_in_finalizer(frame: Any) -> bool:
    """Whether a frame is in a finalizer: Python only prints an exception there."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
