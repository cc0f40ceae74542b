"""What a planted bug is, and those of hand-in."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A bug.

    Attributes:
        what: in words.
        file: of the package.
        changes: (lines as they are, lines as they are to be).
        method: which must catch it.
        only: steps of programs, scenarios, calls on a scene, kinds of histories, ends
            of file names, or kinds of lies that are enough; none: all. Of
            `recorded_calls` the kind of states, and programs.
        call: of `failing_calls`, only those where this method of the disk fails.
        quick: the seed of 1 to 10 that shows it soonest, for those of the smallest
            size; 0: it is not among them.
    """

    what: str
    file: str
    changes: tuple[tuple[str, str], ...]
    method: str
    only: tuple[str, ...] = ()
    call: str = ""
    quick: int = 0


BUGS_OF_HAND_IN = (
    Bug(
        "a request is removed before it is published",
        "store/hand_in.py",
        (("            outcomes = self._publisher.publish_all(requests) if requests",
          "            for one, _ in asked:\n"
          "                self._root.unlink(one.name, missing_ok=True)\n"
          "            outcomes = self._publisher.publish_all(requests) if requests"),),
        "hand_ins",
        quick=1,
    ),
    Bug(
        "a pinned identity is forgotten as others are",
        "io/checkpoint/publications.py",
        (("        if not entry.is_pinned and identity not in kept\n",
          "        if identity not in kept\n"),),
        "hand_ins",
        quick=1,
    ),
    Bug(
        "what the journal of publications has is not kept when it ends",
        "io/checkpoint/publication_journal.py",
        (("                self._fold(state)\n                self._file.forget()",
          "                self._file.forget()"),),
        "hand_ins",
        quick=1,
    ),
)  # fmt: skip
