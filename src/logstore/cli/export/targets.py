"""The targets of an export: files, their kinds and compression, standard output."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import click

import logstore
from logstore.cli.lazy import import_package
from logstore.cli.output import Printer

KINDS: Final = ("jsonl", "csv", "parquet", "arrow")
TEXT_KINDS: Final = ("jsonl", "csv")
STDOUT: Final = "-"
_CODECS: Final = (".gz", ".zst")
# The fastest level that still finds repetitions: an export is read once, not kept.
_GZIP_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 3


def kind_of_name(name: str, kind: str | None) -> tuple[str, str]:
    """(kind, suffix of the compression or "") of the name of a file.

    Raises:
        ConfigError: neither the name nor `kind` decides, or they do not agree.
    """
    stem, codec = name, ""
    for suffix in _CODECS:
        if name.lower().endswith(suffix):
            stem, codec = name[: -len(suffix)], suffix
    extension = os.path.splitext(stem)[1].lower().removeprefix(".")
    if kind is None and name == STDOUT:
        return "jsonl", ""
    if kind is None and extension not in KINDS:
        raise logstore.ConfigError(
            f"--output {name}: unknown extension; expected "
            f"{', '.join('.' + k for k in KINDS)} (and .gz or .zst), or give --format",
            name="--output",
            value=name,
        )
    chosen = kind or extension
    if codec and chosen not in TEXT_KINDS:
        raise logstore.ConfigError(
            f"--output {name}: {chosen} files are compressed internally; remove "
            f"{codec}",
            name="--output",
            value=name,
        )
    return chosen, codec


def path_for_topic(output: str, kind: str | None, topic: str) -> str:
    """The file of one topic with ``--per-topic``.

    Raises:
        UsageError: `output` has no ``{topic}`` and is not a directory.
    """
    if topic in (".", "..") or os.sep in topic:
        raise click.UsageError(f"--per-topic: '{topic}' is not a topic's name")
    if "{topic}" in output:
        return output.replace("{topic}", topic)
    if output.endswith(os.sep) or os.path.isdir(output):
        os.makedirs(output, exist_ok=True)
        return os.path.join(output, f"{topic}.{kind or 'jsonl'}")
    raise click.UsageError(
        f"--per-topic: {output} does not contain {{topic}} and is not a directory"
    )


class ExportFile:
    """A file that is written under another name (``FILE.part``) until it is whole.

    Attributes:
        path: its name, or ``-``.
        kind, codec: as `kind_of_name` returns them.
    """

    def __init__(self, path: str, kind: str | None, *, force: bool) -> None:
        self.path = path
        self.kind, self.codec = kind_of_name(path, kind)
        self.is_stdout = path == STDOUT
        if not (self.is_stdout or force) and os.path.lexists(path):
            raise logstore.ConfigError(
                f"{path} already exists; --force replaces it",
                name="--output",
                value=path,
            )

    @contextlib.contextmanager
    def opened(self, printer: Printer) -> Iterator[BinaryIO]:
        """The file, which gets its name at the end of the block, if `keep` is not False
        then; an error removes it."""
        self.keep = True
        if self.is_stdout:
            _refuse_terminal(printer, self.kind)
            yield _Output(printer)  # type: ignore[misc]
            return
        part = f"{self.path}.part"
        try:
            with open(part, "wb") as file, self._compressed(file) as inner:
                yield inner
            if self.keep:
                os.replace(part, self.path)
            else:
                os.unlink(part)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    def _compressed(self, file: BinaryIO) -> Any:
        if self.codec == ".gz":
            return gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
        if self.codec == ".zst":
            cores = min(os.cpu_count() or 1, 4)
            coder = import_package("zstandard").ZstdCompressor(
                _ZSTD_LEVEL, threads=cores
            )
            return coder.stream_writer(file, closefd=False)
        return contextlib.nullcontext(file)


def _refuse_terminal(printer: Printer, kind: str) -> None:
    """Print no bytes on a terminal that are not text.

    Raises:
        UsageError: standard output is a terminal, and the kind is not text.
    """
    if kind not in TEXT_KINDS and printer.out.isatty():
        raise click.UsageError(
            f"{kind} cannot be written to a terminal: redirect standard output, or "
            "give -o FILE"
        )


class _Output:
    """Standard output as a file of bytes."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self.closed = False
        self._position = 0

    def write(self, data: Any) -> int:
        self._printer.raw(bytes(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        self._printer.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
