"""Child processes of the methods that kill them."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

__all__ = ["forked"]


def forked(work: Callable[[], None], log: Path) -> int:
    """A child that does some work; its errors are written to `log`."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work()
        status = 0
    except BaseException:
        with open(log, "a", encoding="utf-8") as file:
            file.write(traceback.format_exc()[-1400:])
    finally:
        os._exit(status)
