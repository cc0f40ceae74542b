"""Many findings as few lines: equal findings about several files share a line.

The text output of `verify` and `repair` uses it, unless ``--verbose`` is given. JSON
lines have every finding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

import logstore
from logstore.cli.text import grouped, plural, size_text

# Words for many notes of a kind; without them the first of the notes is printed.
_GROUPS: Final = {
    "zero-tail": ("index", "with zeros after {} entries"),
    "torn-tail": ("log", "with a torn tail, which the next opening for writing cuts"),
    "missing-index": ("segment", "without a finished index"),
    "orphan": ("file", "without a log next to {}"),
    "in-use": ("place", "in use, and checked again"),
    "foreign": ("directory", "that {} not a partition"),
}
_PATH: Final = re.compile(r"(/[^/\s:;,]+)+")
_NUMBER: Final = re.compile(r"[0-9]+")
# Kinds of problems of files that are derived from a log: all problems of a kind are
# repaired the same way. Damage of a log has its own offsets.
_DERIVED: Final = frozenset(
    {"offset-index", "time-index", "transaction-index", "producer-snapshot"}
)
_FEW: Final = 3  # up to this many equal problems or actions are a line each
_AFTER_DAMAGE: Final = "it follows the first damage"


def note_lines(
    notes: Iterable[logstore.types.VerifyNote], *, verbose: bool
) -> Iterator[str]:
    """A line for each note; notes with the same text about several files are one."""
    groups: dict[tuple[str, str], list[logstore.types.VerifyNote]] = {}
    for index, note in enumerate(notes):
        same = str(index) if verbose else _same(note.message)
        groups.setdefault((note.kind, same), []).append(note)
    for (kind, _), some in groups.items():
        yield f"{kind}: {_group_text(kind, some)}"


def _same(message: str) -> str:
    """A message without the parts that differ from file to file."""
    return _NUMBER.sub("#", _PATH.sub("", message))


def _group_text(kind: str, notes: list[logstore.types.VerifyNote]) -> str:
    if len(notes) == 1:
        return notes[0].message
    if kind not in _GROUPS or not _is_named(kind, notes[0].message):
        return f"{notes[0].message} (and {grouped(len(notes) - 1)} more like it)"
    word, rest = _GROUPS[kind]
    # Such as "22 indexes with zeros ... their entries"
    text = rest.format("are" if kind == "foreign" else "their")
    text = text.replace("next to their", "next to them")
    return f"{grouped(len(notes))} {plural(word)} {text}"


def _is_named(kind: str, message: str) -> bool:
    """Whether the words for a kind fit: some kinds have several messages."""
    phrases = {"in-use": "being written to", "foreign": "is not a partition"}
    return phrases.get(kind, "") in message


def problem_lines(
    problems: Iterable[logstore.types.VerifyProblem], *, verbose: bool
) -> Iterator[str]:
    """A line for each problem; more than three of a kind are one line, except problems
    of logs."""
    groups: dict[Hashable, list[logstore.types.VerifyProblem]] = {}
    for index, problem in enumerate(problems):
        is_alone = verbose or problem.kind not in _DERIVED
        groups.setdefault(index if is_alone else problem.kind, []).append(problem)
    for some in groups.values():
        if len(some) <= _FEW:
            yield from (
                f"{similar_problem.kind}: {similar_problem.message}"
                for similar_problem in some
            )
            continue
        more = f"and {grouped(len(some) - 1)} more of this kind, see --verbose"
        yield f"{some[0].kind}: {some[0].message} ({more})"


def action_lines(
    actions: Iterable[logstore.types.RepairAction], *, verbose: bool
) -> Iterator[tuple[str, str | None]]:
    """A line for each action, and the path of its kept bytes; more than three that do
    the same in one partition are one line."""
    groups: dict[Hashable, list[logstore.types.RepairAction]] = {}
    for index, action in enumerate(actions):
        directory = os.path.dirname(action.path)
        key = (action.label, directory, _same(action.message), action.kept_at is None)
        groups.setdefault(index if verbose else key, []).append(action)
    for some in groups.values():
        if len(some) <= _FEW:
            for similar_action in some:
                yield (
                    f"{similar_action.label}: {similar_action.message}",
                    similar_action.kept_at,
                )
            continue
        kept = some[0].kept_at
        text = _actions_text(some)
        yield (
            f"{some[0].label}: {text}",
            None if kept is None else os.path.dirname(kept),
        )


def _actions_text(some: list[logstore.types.RepairAction]) -> str:
    first = some[0]
    if not first.message.endswith(_AFTER_DAMAGE):
        return f"{first.message} (and {grouped(len(some) - 1)} more like it)"
    offsets: list[Any] = [action.first_offset for action in some]
    offsets += [action.last_offset for action in some]
    offsets = [offset for offset in offsets if offset is not None]
    between = f", offsets {min(offsets)} to {max(offsets)}" if offsets else ""
    size = size_text(sum(action.bytes for action in some))
    return (
        f"{grouped(len(some))} segments of {os.path.dirname(first.path)}{between}, "
        f"{size}, are removed as a whole: they follow the first damage"
    )
