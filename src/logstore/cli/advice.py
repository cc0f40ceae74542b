"""The advice in errors of the library, as an advice for the command line.

Errors of the library name a function to call; a user at a terminal needs an option, or
another command. Each row of `ADVICE` is one such advice.
"""

from __future__ import annotations

import os
import re
from typing import Final

import logstore

__all__ = ["ADVICE", "error_text", "for_command_line"]

# The words of the library, as a regular expression, and the words of the tool.
ADVICE: Final = (
    (
        r"open it with read_only=True, or close it there",
        "stop it there and run this again; --dry-run, if the command has it, needs no "
        "lock",
    ),
    (
        r"\(chmod g-w\), or open it with group_access=True, or open it with "
        r"StoreConfig\(allow_shared_directory=True\); .*",
        "(chmod g-w), or give --group-access or --allow-shared-directory",
    ),
    (
        r"or open it with StoreConfig\(allow_shared_directory=True\); .*",
        "or give --allow-shared-directory",
    ),
    (
        r"or open it with StoreConfig\(allow_network_filesystem=True\); .*",
        "or give --allow-network-filesystem",
    ),
    (
        r"the store is its parent: logstore\.open\('(.*?)'\)(\.topic\(.*\)\[[0-9]+\])?",
        r"the store is its parent: give \1",
    ),
    (
        r"max_batch_decompressed_bytes=([0-9]+); raise that limit in StoreConfig to "
        r"read it",
        r"\1 bytes; --max-batch-decompressed-bytes raises that limit",
    ),
    (r"Call Store\.snapshot in that process, or stop it", "Stop it and run this again"),
    (r"Call it again", "Run this again"),
    (r"than max_memory=([0-9]+) has room for", r"than --max-memory \1 has room for"),
    (
        r"name its topics to commit the first ones",
        "--topics NAME commits the first ones",
    ),
    (
        r"Name its topics to commit offsets for a group of logstore",
        "--topics NAME commits offsets for a group of logstore",
    ),
    (r"name the topics to be reset", "--topics NAME chooses others"),
)
# A setting with which a message begins was given as an option.
_SETTING: Final = re.compile(r"^([a-z][a-z_]*)=")


def for_command_line(text: str) -> str:
    """A message of the library, with its advice replaced by the tool's."""
    text = _SETTING.sub(lambda match: f"--{match[1].replace('_', '-')} ", text)
    for pattern, advice in ADVICE:
        text = re.sub(pattern, advice, text)
    return text


def error_text(error: Exception) -> str:
    """An error as a sentence; of the system without its number."""
    is_own = isinstance(error, logstore.LogStoreError)
    if isinstance(error, OSError) and not is_own and error.filename and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
