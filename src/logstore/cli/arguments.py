"""The command line of `logstore-dump`: subcommands, options, examples."""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Callable
from typing import Final

import logstore
from logstore.cli import checking, export, overview, records, repairing
from logstore.cli.output import PAYLOADS, Printer
from logstore.cli.sources import parse_bound

Command = Callable[[argparse.Namespace, Printer], int]

_COUNT_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = 20
_SIZE: Final = re.compile(r"([0-9]+) ?(|B|KiB|MiB|GiB)", re.ASCII)
_UNIT_BITS: Final = {"": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30}

_DESCRIPTION: Final = """\
Look at stores, partitions and single files of logstore and of Kafka. PATH is a store
(a Kafka log directory is one), a partition directory or one file. Everything but
rebuild-index and repair only reads, and may run while a writer or a broker works."""

_EPILOG: Final = """\
exit status: 0 clean (also with notes), 1 problems found, 2 unusable arguments or
unreadable path, 130 interrupted. `logstore-dump SUBCOMMAND --help` has examples."""


def build_parser() -> argparse.ArgumentParser:
    """The parser; `command` of what it returns is the function to call."""
    parser = argparse.ArgumentParser(
        prog="logstore-dump",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"logstore-dump {logstore.__version__}"
    )
    commands = parser.add_subparsers(
        title="subcommands", metavar="SUBCOMMAND", required=True
    )
    for add in (
        _add_ls,
        _add_batches,
        _add_records,
        _add_index,
        _add_verify,
        _add_rebuild_index,
        _add_repair,
        _add_doctor,
        _add_stat,
        _add_tail,
        _add_export,
    ):
        add(commands)
    return parser


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Command,
    summary: str,
    examples: list[str],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  logstore-dump {e}" for e in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=command)
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="text for people, or one JSON object a line (default: text)",
    )
    return parser


def _add_path(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("path", metavar="PATH", help=what)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="NAME", help="of a store: only this topic")
    parser.add_argument(
        "--partition",
        metavar="N",
        type=_count,
        help="of a store: only partitions of this number",
    )


def _add_payload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--payload",
        choices=PAYLOADS,
        default="utf8",
        help="how keys, values and header values are shown; utf8 escapes what is not "
        "text, none gives sizes (default: utf8)",
    )


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="first",
        metavar="N|TIME",
        type=_bound,
        help="begin with this offset, or the first record at or after a time: "
        "2024-05-01T12:00:00Z (without a zone: local time), or 1714564800000ms",
    )
    parser.add_argument(
        "--to",
        dest="stop",
        metavar="N|TIME",
        type=_bound,
        help="end before this offset, or the first record at or after this time",
    )


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed leaves out aborted and open transactions; not for single "
        "files (default: read_uncommitted)",
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group-access",
        action="store_true",
        help="new files are for the group, too, as the store's directory is",
    )
    parser.add_argument(
        "--allow-shared-directory",
        action="store_true",
        help="write although the store belongs to another user, or others may write "
        "to it; what root makes then belongs to its owner",
    )
    parser.add_argument(
        "--allow-network-filesystem",
        action="store_true",
        help="write although the store is on a network or FUSE file system",
    )


def _add_decompressed(
    parser: argparse.ArgumentParser, outcome: str = "an error"
) -> None:
    parser.add_argument(
        "--max-batch-decompressed-bytes",
        metavar="SIZE",
        type=_size,
        help=f"a batch that is larger decompressed is {outcome}; bytes, or with KiB, "
        f"MiB, GiB (default: 256MiB)",
    )


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", metavar="N", type=_count, help="stop after so many lines"
    )


def _add_ls(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "ls",
        overview.run_ls,
        "list topics, partitions and segments",
        ["ls data", "ls data --segments", "ls data/orders-0", "ls data --format jsonl"],
    )
    _add_path(parser, "a store or a partition directory")
    _add_choice(parser)
    parser.add_argument(
        "--segments",
        action="store_true",
        help="list the segments of each partition, too (`*`: the active one)",
    )


def _add_batches(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = _add(
        commands,
        "batches",
        records.run_batches,
        "print the batches: offsets, position, size, codec, producer",
        [
            "batches data/orders-0",
            "batches data/orders-0/00000000000000000000.log",
            "batches data --topic orders --from 1000 --limit 20",
            "batches --kafka data/orders-0/00000000000000000000.log",
        ],
    )
    _add_path(parser, "a store, a partition directory or a .log file")
    _add_choice(parser)
    _add_bounds(parser)
    _add_limit(parser)
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="the text that kafka-dump-log prints, of whole files",
    )
    _add_decompressed(parser)


def _add_records(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = _add(
        commands,
        "records",
        records.run_records,
        "print the records",
        [
            "records data/orders-0",
            "records data/orders-0 --from 1000 --to 2000",
            "records data --topic orders --from 2024-05-01T00:00:00Z --limit 10",
            "records data/orders-0 --grep 'user-00[12]' --payload json",
            "records data/orders-0 --format jsonl --payload base64",
            "records --kafka data/orders-0/00000000000000000000.log",
        ],
    )
    _add_path(parser, "a store, a partition directory or a .log file")
    _add_choice(parser)
    _add_bounds(parser)
    _add_limit(parser)
    parser.add_argument(
        "--grep",
        metavar="RE",
        type=_pattern,
        help="only records whose key or value has a match",
    )
    _add_payload(parser)
    _add_isolation(parser)
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="the text that kafka-dump-log --deep-iteration --print-data-log prints, "
        "of whole files",
    )
    _add_decompressed(parser)


def _add_index(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "index",
        checking.run_index,
        "print the entries of an index, snapshot, checkpoint or state file",
        [
            "index data/orders-0/00000000000000000000.index",
            "index data/orders-0/00000000000000000000.timeindex --limit 5",
            "index data/recovery-point-offset-checkpoint --format jsonl",
        ],
    )
    parser.add_argument(
        "path",
        metavar="FILE",
        help=".index, .timeindex, .txnindex, .snapshot, a checkpoint, or a file of "
        "logstore's own",
    )
    _add_limit(parser)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "verify",
        checking.run_verify,
        "check files and list all problems; notes are no problems",
        [
            "verify data",
            "verify --deep data/orders-0 data/orders-1",
            "verify data/orders-0/00000000000000000000.log --format jsonl",
        ],
    )
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="stores, partition directories, files"
    )
    parser.add_argument(
        "--deep", action="store_true", help="look inside compressed batches, too"
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=_count,
        help="check so many segments beside each other, 1 to 64 (default: one for each "
        "core, 8 at the most)",
    )
    _add_decompressed(parser, "noted and not looked into (counts with --deep)")


def _add_rebuild_index(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    parser = _add(
        commands,
        "rebuild-index",
        checking.run_rebuild_index,
        "build offset and time indexes anew from the log (needs the writer's lock)",
        ["rebuild-index data --dry-run", "rebuild-index data/orders-0"],
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="stores, partition directories, .log or .index files",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only tell what would be built"
    )
    _add_place(parser)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "doctor",
        checking.run_doctor,
        "look at what a store stands on: file system, mount, permissions, limits",
        ["doctor data", "doctor data --write-test --format jsonl"],
    )
    _add_path(parser, "a store")
    parser.add_argument(
        "--write-test",
        action="store_true",
        help="make a file in the store, measure what a sync takes, remove it",
    )


def _add_repair(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "repair",
        repairing.run_repair,
        "mend a damaged store or partition, keeping what is taken out (needs the "
        "writer's lock)",
        [
            "repair data --dry-run",
            "repair data/orders-0 --mode skip",
            "repair data/orders-0 --mode cut --quarantine /mnt/other/aside --yes",
            "repair data --mode skip --to data.salvaged",
        ],
    )
    _add_path(parser, "a store or a partition directory")
    parser.add_argument(
        "--mode",
        choices=("cut", "skip"),
        default="cut",
        help="cut: the log ends at its first damage; skip: only what is damaged goes, "
        "and leaves a gap in the offsets (default: cut)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only tell what would be done; needs no lock",
    )
    parser.add_argument(
        "--quarantine",
        metavar="DIR",
        help="keep what is taken out there (default: in .logstore-quarantine-* inside "
        "the partition)",
    )
    parser.add_argument(
        "--to",
        metavar="DIR",
        help="copy it to DIR, which must be missing or empty, and repair the copy; "
        "PATH is only read",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask; without it, and without a terminal, nothing is changed",
    )
    _add_place(parser)
    _add_decompressed(parser, "noted and not looked into")


def _add_stat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "stat",
        overview.run_stat,
        "count sizes, offsets, records by magic and codec, and times",
        ["stat data", "stat data/orders-0 --format jsonl"],
    )
    _add_path(parser, "a store, a partition directory or a .log file")
    _add_choice(parser)
    _add_decompressed(parser)


def _add_tail(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "tail",
        records.run_tail,
        "print the last records of each partition, and go on with -f",
        ["tail data/orders-0", "tail -f -n 0 data", "tail -n 100 data --topic orders"],
    )
    _add_path(parser, "a store, a partition directory or a .log file")
    _add_choice(parser)
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on with what is appended, until interrupted",
    )
    parser.add_argument(
        "-n",
        "--records",
        metavar="N",
        type=_count,
        default=10,
        help="so many of each partition (default: 10)",
    )
    _add_payload(parser)
    _add_isolation(parser)
    _add_decompressed(parser)


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = _add(
        commands,
        "export",
        export.run_export,
        "write the records to a parquet, arrow, jsonl or csv file",
        [
            "export data/orders-0 --to orders.parquet",
            "export data --topic orders --to orders.jsonl --payload base64",
            "export data --to all.arrow --until 2024-05-01T00:00:00Z",
        ],
    )
    _add_path(parser, "a store, a partition directory or a .log file")
    parser.add_argument(
        "--to",
        metavar="FILE",
        required=True,
        help="its name ends with .parquet, .arrow, .jsonl or .csv",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace FILE if it is there"
    )
    _add_choice(parser)
    parser.add_argument(
        "--from",
        dest="first",
        metavar="N|TIME",
        type=_bound,
        help="begin with this offset or time, as in `records`",
    )
    parser.add_argument(
        "--until",
        dest="stop",
        metavar="N|TIME",
        type=_bound,
        help="end before this offset or time, as --to in `records`",
    )
    _add_payload(parser)
    _add_isolation(parser)
    _add_decompressed(parser)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    # More than any log has: what counts with machine words takes no more.
    return min(int(text[:_DIGITS_MAX]), _COUNT_MAX)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: a number of bytes, or one followed by KiB, MiB, GiB"
        )
    return _count(match[1]) << _UNIT_BITS[match[2]]


def _bound(text: str) -> int | datetime.datetime:
    try:
        return parse_bound(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no offset, ISO 8601 time, or milliseconds such as "
            f"1714564800000ms"
        ) from None


def _pattern(text: str) -> str:
    try:
        re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no regular expression: {error}"
        ) from None
    return text
