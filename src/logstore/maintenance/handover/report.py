"""The result of checking a hand-over."""

from __future__ import annotations

import dataclasses
from typing import Any

from logstore.maintenance.finding import LOSES, REFUSES

__all__ = ["HandoverFinding", "HandoverReport"]


@dataclasses.dataclass(frozen=True, slots=True)
class HandoverFinding:
    """One thing that the next owner of a directory will do with it.

    Attributes:
        kind: its subject: ``directory-name``, ``retention``, ...; see docs/cli.md.
        effect: ``ok``; ``warns`` (costs time, or needs attention); ``changes`` (files
            or names change, no record is lost); ``loses`` (records are deleted, cut, or
            not served); ``refuses`` (it does not start, or does not open).
        path: the absolute path of the affected file or directory.
        message: the finding, as a sentence.
        values: the finding's facts as plain values.
    """

    kind: str
    effect: str
    path: str
    message: str
    values: dict[str, Any]

    @property
    def is_problem(self) -> bool:
        """Whether records are lost, or the directory is refused."""
        return self.effect in (LOSES, REFUSES)


@dataclasses.dataclass(frozen=True, slots=True)
class HandoverReport:
    """The result of `check_handover`.

    Attributes:
        path: the absolute path of the directory.
        to: the next owner: ``kafka`` or ``logstore``.
        release: of the broker, one of `logstore.kafka.RELEASES`.
        findings: all of them, in the order in which they take effect.
    """

    path: str
    to: str
    release: str
    findings: tuple[HandoverFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    @property
    def problems(self) -> tuple[HandoverFinding, ...]:
        """The findings that lose records, or refuse the directory."""
        return tuple(finding for finding in self.findings if finding.is_problem)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "path": self.path,
            "to": self.to,
            "release": self.release,
            "ok": self.ok,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }
