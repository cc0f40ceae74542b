"""`logstore.report`: examining a store once, and showing the results."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import os
import sys
from typing import Any, Final

from logstore.config import StoreConfig
from logstore.errors import storage_error
from logstore.io.files import Files
from logstore.log.frames.markup import printable
from logstore.maintenance.report.attention import findings_of
from logstore.maintenance.report.collect import Progress, collect
from logstore.maintenance.report.model import Attention, StoreView
from logstore.maintenance.report.page import page_of, title_of
from logstore.maintenance.verify import VerifyReport

__all__ = ["Report", "report"]

PathLike = str | os.PathLike[str]

# Version of the plain values. It rises if one changes its meaning or is removed.
SCHEMA_VERSION: Final = 1
_FRAME_HEIGHT: Final = 720


class Report:
    """The result of `report`, as a page and as plain values. A Jupyter notebook shows
    it by itself.

    Attributes:
        path: absolute path that was given.
        verified: the `VerifyReport` that it is based on.
    """

    def __init__(self, facts: StoreView, verified: VerifyReport) -> None:
        self._facts = facts
        self.path = facts.path
        self.verified = verified

    def __repr__(self) -> str:
        count = len(self._facts.findings)
        what = "nothing needs" if not count else f"{count} finding(s) need"
        return f"<logstore.types.Report on {self.path}: {what} attention>"

    @property
    def ok(self) -> bool:
        """Whether `verify` found no problem."""
        return self.verified.ok

    @property
    def findings(self) -> tuple[Attention, ...]:
        """Findings that need attention, the worst first: `level`, `kind`, `title`,
        `detail`, `advice`, `where`."""
        return tuple(self._facts.findings)

    def to_dict(self) -> dict[str, Any]:
        """All facts as plain values, for JSON; see docs/report.md. Counts of records
        are floats if they are estimates. Raw times are Unix milliseconds."""
        facts = dataclasses.asdict(self._facts)
        for fields, codec in zip(facts["codecs"], self._facts.codecs, strict=True):
            fields["ratio"] = codec.ratio
        return {"schema_version": SCHEMA_VERSION, "ok": self.ok, **facts}

    def to_html(self) -> str:
        """One page that needs nothing else: no file, no host, and no script to read
        it. All characters of it are UTF-8."""
        return page_of(self._facts)

    def save(self, path: PathLike) -> str:
        """Write the page to a file, replacing an existing one; returns its absolute
        path.

        Raises:
            StorageError: the system refuses; an existing file is unchanged.
        """
        full = os.path.abspath(os.fspath(path))
        temporary = f"{full}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as out:
                out.write(self.to_html())
            os.replace(temporary, full)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise storage_error(error, "write", full) from error
        return full

    def _repr_html_(self) -> str:
        """Render for notebooks: a page in a frame, so that its style stays apart."""
        inner = html.escape(self.to_html(), quote=True)
        title = html.escape(printable(title_of(self._facts)), quote=True)
        return (
            f'<iframe srcdoc="{inner}" title="logstore report on {title}" '
            f'sandbox="allow-scripts" width="100%" height="{_FRAME_HEIGHT}" '
            f'style="border:1px solid #8886;border-radius:8px"></iframe>'
        )


def report(
    path: PathLike,
    *,
    deep: bool = False,
    threads: int | None = None,
    on_progress: Progress | None = None,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
) -> Report:
    """Look at a store, or one partition directory, and report on it.

    Verifies all of it (`logstore.verify`), reads it through a read-only store, and
    walks over the batch headers, of a large store over a sample of them. Changes and
    locks nothing; it may run while a writer or a broker works on the directory, and on
    a directory that a broker wrote or that is damaged.

    Args:
        path: a store, a broker's log directory, or a partition directory.
        deep, threads, store_config: as in `logstore.verify`.
        on_progress: called with (bytes done, bytes in all) while it verifies.

    Raises:
        StoreNotFoundError: nothing exists at `path`, or it is not a log directory.
        ConfigError: a bad number of threads.
        StorageError: the directory cannot be read.
    """
    facts, verified = collect(
        os.path.abspath(os.fspath(path)),
        # The package is loaded: this module is a part of it.
        getattr(sys.modules["logstore"], "__version__", ""),
        deep=deep,
        threads=threads,
        on_progress=on_progress,
        config=store_config or StoreConfig(),
        files=_files or Files(),
    )
    facts.findings = findings_of(facts)
    return Report(facts, verified)
