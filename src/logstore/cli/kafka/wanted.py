"""The options of Kafka's tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import logstore

__all__ = ["MAX_MESSAGE_SIZE", "REWRITTEN", "Decoder", "MessageError", "Wanted"]

MessageError = logstore.kafka.MessageError

MAX_MESSAGE_SIZE: Final = 5 << 20
# The release whose tool was rewritten in Java.
REWRITTEN: Final = "4.3"

# The texts of a key and of a value, by offset, key and value; None: nothing is printed.
Decoder = Callable[[int, bytes | None, bytes | None], tuple["str | None", "str | None"]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of a dump.

    Attributes:
        release: of `logstore.kafka.RELEASES`.
        deep: a line for each record.
        contents: with its key and value.
        metadata: and with all else.
        decoder: of keys and values; None: as text.
        max_bytes: of a log; None: all of it.
        max_message_size: how many bytes of the log an index entry may lead to.
        sanity_only: of an index, whether a broker would rebuild it when it starts.
        verify_only: of an index, only what is wrong with it.
    """

    release: str = "3.9"
    deep: bool = False
    contents: bool = False
    metadata: bool = True
    decoder: Decoder | None = None
    max_bytes: int | None = None
    max_message_size: int = MAX_MESSAGE_SIZE
    sanity_only: bool = False
    verify_only: bool = False
