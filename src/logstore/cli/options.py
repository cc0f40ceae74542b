"""Every option of the subcommands, each defined once: a name means the same in each
subcommand.

`--group` and `--to` are the exceptions: what they name is clear from the subcommand.
A second name is kept next to the one that is shown, because scripts use it: ``--to`` is
``--until`` in `records` and `batches`, ``--output`` in `export`, and ``--copy-to`` in
`repair`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

import logstore
from logstore.cli.params import (
    BOUND,
    COUNT,
    KEY,
    PATTERN,
    SIZE,
    TARGET,
    TOPIC,
    FileType,
)
from logstore.cli.schema import PAYLOADS, TIMES

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """Several options as one decorator; the help lists them in this order."""
    return lambda function: functools.reduce(
        lambda done, decorate: decorate(done), reversed(decorators), function
    )


def path(metavar: str = "PATH", *, many: bool = False) -> Decorator:
    """The argument: a path, or several."""
    return click.argument(
        "paths" if many else "path",
        type=FileType(metavar),
        metavar=f"{metavar}..." if many else metavar,
        nargs=-1 if many else 1,
        required=True,
    )


def output_format(*more: str) -> Decorator:
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "jsonl", *more]),
        default="text",
        show_default=True,
        help="Output format. jsonl: one JSON object per line"
        + ("; html: one page with charts." if more else "."),
    )


topic = click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Only this topic of a store, or topics that match a pattern such as "
    "'orders*'. May be repeated.",
)
partition = click.option(
    "--partition",
    "numbers",
    type=COUNT,
    multiple=True,
    help="Only partitions of a store with this number. May be repeated.",
)
choice = together(topic, partition)

first = click.option(
    "--from",
    "first",
    type=BOUND,
    help="Start at this offset, at the last N records of each partition (-N), "
    "or at the first record at or after a time: 2024-05-01T12:00:00Z "
    "(without a zone: local time), or 1714564800000ms.",
)
until = click.option(
    "--until",
    "stop",
    type=BOUND,
    help="Stop before this offset, before the last N records of each "
    "partition (-N), or before the first record at or after this time.",
)
hidden_until = click.option("--to", "stop_alias", type=BOUND, hidden=True)
bounds = together(first, until)

limit = click.option("--limit", type=COUNT, help="Stop after this many entries.")
skip = click.option(
    "--skip", type=COUNT, default=0, help="Skip this many entries first."
)
payload = click.option(
    "--payload",
    type=click.Choice(PAYLOADS),
    default="auto",
    show_default=True,
    help="How to show keys, values and header values. auto: text as text, "
    "other bytes as base64 in JSON and CSV and escaped in text; utf8: "
    "escape bytes that are not text; json: parse JSON; none: only sizes.",
)
times = click.option(
    "--time",
    "times",
    type=click.Choice(TIMES),
    default="ms",
    show_default=True,
    help="Timestamps in JSON and CSV: Unix milliseconds, or ISO 8601 in UTC.",
)
isolation = click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed leaves out aborted and open transactions; not for single "
    "files.",
)
on_corruption = click.option(
    "--on-corruption",
    type=click.Choice(["raise", "skip"]),
    help="raise: stop each partition at its first damage; skip: leave out only damaged "
    "parts. In both cases the next partitions follow, missing records are reported "
    "on standard error, and the exit status is 1. (default: raise; skip for single "
    "files)",
)
key = together(
    click.option(
        "--key",
        type=KEY,
        help="Only records with exactly this key, in every partition: text, or bytes "
        "as hex:... or base64:...",
    ),
    click.option(
        "--assume-partitioner",
        type=click.Choice(["kafka"]),
        help="Look for the key only in the partition of each topic to which Kafka's "
        "default partitioner (murmur2) sends it.",
    ),
)
last = click.option(
    "--last",
    type=COUNT,
    help="Print only this many records of each partition: the last of the "
    "selected ones, newest at the end.",
)
grep = click.option(
    "--grep",
    type=PATTERN,
    help="Only records whose key or value matches this regular expression.",
)


def template(*short: str) -> Decorator:
    return click.option(
        *short,
        "--template",
        metavar="FORMAT",
        help="Format of each record, like -f of kcat: %t topic, %p partition, "
        "%o offset, %k key, %s value, %K and %S their lengths (-1: "
        "null), %T timestamp in milliseconds, %h headers, %% a percent "
        "sign; \\n, \\t, \\r, \\xNN. No line end is added.",
    )


kafka = click.option(
    "--kafka",
    is_flag=True,
    help="Print whole files as kafka-dump-log does.",
)
kafka_release = click.option(
    "--kafka-release",
    type=click.Choice(logstore.kafka.RELEASES),
    help="Print as this release of Kafka does (default: 3.9).",
)
kafka_records = together(
    click.option(
        "--offsets-decoder",
        is_flag=True,
        help="Decode the records of __consumer_offsets.",
    ),
    click.option(
        "--transaction-log-decoder",
        is_flag=True,
        help="Decode the records of __transaction_state.",
    ),
    click.option(
        "--share-group-state-decoder",
        is_flag=True,
        help="Decode the records of __share_group_state (release 4.2 and later).",
    ),
    click.option("--cluster-metadata-decoder", is_flag=True, hidden=True),
    click.option("--remote-log-metadata-decoder", is_flag=True, hidden=True),
    click.option(
        "--key-decoder-class",
        metavar="NAME",
        help="Decoder for keys: StringDecoder, IntegerDecoder or LongDecoder of "
        "org.apache.kafka.tools.api.",
    ),
    click.option("--value-decoder-class", metavar="NAME", help="Decoder for values."),
    click.option(
        "--skip-record-metadata",
        is_flag=True,
        help="Print only keys and values of records.",
    ),
)
kafka_max_bytes = click.option(
    "--max-bytes",
    type=COUNT,
    help="Read only batches in the first bytes of a log, up to this many.",
)
kafka_index = together(
    click.option(
        "--index-sanity-check",
        is_flag=True,
        help="Only check whether a starting broker would rebuild the indexes.",
    ),
    click.option(
        "--verify-index-only",
        is_flag=True,
        help="Print only index entries that contradict the log.",
    ),
    click.option(
        "--max-message-size",
        type=COUNT,
        help="Size of the largest batch that an index entry may point to (default: "
        "5242880 bytes).",
    ),
)
kafka_files = click.option(
    "--files",
    type=FileType("FILE,FILE..."),
    required=True,
    help="Files to print: .log, .index, .timeindex, .txnindex, .snapshot, and "
    ".checkpoint of KRaft.",
)
kafka_depth = together(
    click.option(
        "--deep-iteration", is_flag=True, help="Print a line for each record."
    ),
    click.option(
        "--print-data-log",
        is_flag=True,
        help="Also print the key and value of each record; implied by every decoder.",
    ),
)
decompressed = click.option(
    "--max-batch-decompressed-bytes",
    type=SIZE,
    help="Largest size of a decompressed batch, in bytes or with KiB, MiB, "
    "GiB (default: 256MiB). A larger batch is an error; single files, "
    "verify --deep and repair leave it out and report it.",
)
segments = click.option(
    "--segments",
    is_flag=True,
    help="Also list the segments of each partition (`*`: the active one).",
)


def sort(columns: tuple[str, ...]) -> Decorator:
    return click.option(
        "--sort",
        type=click.Choice([name for c in columns for name in (c, f"-{c}")]),
        metavar="[-]COLUMN",
        help="Sort by a column of the table; with `-`, largest first.",
    )


def output(*, alias: bool = False) -> Decorator:
    shown = click.option(
        "-o",
        "--output",
        type=FileType("FILE"),
        help="Write to this file; `-`: standard output.",
    )
    hidden = click.option("--to", "output_alias", type=FileType("FILE"), hidden=True)
    return together(shown, hidden) if alias else shown


force = click.option("--force", is_flag=True, help="Replace FILE if it exists.")
per_topic = click.option(
    "--per-topic",
    is_flag=True,
    help="Write one file per topic: FILE contains `{topic}`, or is a directory.",
)
file_format = click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv", "parquet", "arrow"]),
    help="Format to write (default: by the extension of FILE; jsonl on "
    "standard output).",
)
deep = click.option("--deep", is_flag=True, help="Also look inside compressed batches.")
threads = click.option(
    "--threads",
    type=COUNT,
    help="Number of segments to check in parallel, 1 to 64 (default: one per core, at "
    "most 8).",
)
verbose = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print every finding; by default, similar ones share a line.",
)
dry_run = click.option(
    "--dry-run", is_flag=True, help="Only report what would be done; needs no lock."
)
mode = click.option(
    "--mode",
    type=click.Choice(["cut", "skip"]),
    help="cut: end the log at its first damage; skip: remove only damaged parts, which "
    "leaves gaps in the offsets. Without --mode, show what each would lose.",
)
quarantine = click.option(
    "--quarantine",
    type=FileType("DIR"),
    help="Directory for removed data (default: .logstore-quarantine-* in the "
    "partition).",
)
copy_to = together(
    click.option(
        "--copy-to",
        type=FileType("DIR"),
        help="Copy PATH to DIR, which must be missing or empty, and repair the copy; "
        "PATH is only read.",
    ),
    click.option("--to", "copy_alias", type=FileType("DIR"), hidden=True),
)
group_pattern = click.option(
    "--group",
    "groups",
    metavar="GLOB",
    multiple=True,
    help="Only this group, or groups that match a pattern. May be repeated.",
)
group = click.option("--group", required=True, metavar="GROUP", help="Id of the group.")
to_broker = click.option(
    "--to",
    type=FileType("DIR"),
    required=True,
    help="Log directory of the stopped broker, with all partitions of "
    "__consumer_offsets.",
)
to_offset = click.option(
    "--to",
    type=TARGET,
    help="New position: earliest, latest, an offset, or a time (first record "
    "at or after it).",
)
shift = click.option(
    "--shift",
    type=int,
    metavar="N",
    help="Move the positions forward by N records; backward if N is negative.",
)
topics = click.option(
    "--topics",
    type=TOPIC,
    metavar="NAME",
    multiple=True,
    help="Reset all partitions of this topic instead of all partitions with a "
    "committed offset. May be repeated.",
)
yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
handover = together(
    click.option(
        "--from-kafka",
        is_flag=True,
        help="The next owner is logstore (default: the one that did not write last).",
    ),
    click.option("--to-kafka", is_flag=True, help="The next owner is a broker."),
    click.option(
        "--release",
        type=click.Choice(logstore.kafka.RELEASES),
        default=logstore.kafka.RELEASES[-1],
        show_default=True,
        help="Release of the broker: 2.8 with ZooKeeper, later ones with KRaft.",
    ),
    click.option("--cluster-id", help="Cluster id of the broker, to compare."),
    click.option(
        "--node-id", type=COUNT, help="node.id or broker.id of the broker, to compare."
    ),
    click.option(
        "--retention-ms",
        type=int,
        default=7 * 24 * 3600 * 1000,
        show_default=True,
        help="Retention time of the broker; -1: unlimited.",
    ),
    click.option(
        "--retention-bytes",
        type=int,
        default=-1,
        show_default=True,
        help="Retention size of the broker, per partition; -1: unlimited.",
    ),
)
write_test = click.option(
    "--write-test",
    is_flag=True,
    help="Create a file in the store, measure a sync, and remove it.",
)
follow = click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Wait for new records until interrupted; not for single files.",
)
records = click.option(
    "-n",
    "--records",
    type=COUNT,
    default=10,
    show_default=True,
    help="Number of last records to print per partition.",
)
permissions = together(
    click.option(
        "--group-access",
        is_flag=True,
        help="Give the group of the store access to new files, as to its directory.",
    ),
    click.option(
        "--allow-shared-directory",
        is_flag=True,
        help="Write even if the store belongs to another user, or others may "
        "write to it; files made by root then belong to its owner.",
    ),
    click.option(
        "--allow-network-filesystem",
        is_flag=True,
        help="Write even if the store is on a network or FUSE file system.",
    ),
)
