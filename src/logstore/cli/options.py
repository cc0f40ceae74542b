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
        help="How to print: text for people, jsonl for one JSON object a line"
        + (", html for one file with pictures." if more else "."),
    )


topic = click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Of a store: only this topic, or those that a pattern matches, such as "
    "'orders*'. May be repeated.",
)
partition = click.option(
    "--partition",
    "numbers",
    type=COUNT,
    multiple=True,
    help="Of a store: only partitions of this number. May be repeated.",
)
choice = together(topic, partition)

first = click.option(
    "--from",
    "first",
    type=BOUND,
    help="Begin with this offset, with the N last records of each partition (-N), or "
    "with the first record at or after a time: 2024-05-01T12:00:00Z (without a zone: "
    "local time), or 1714564800000ms.",
)
until = click.option(
    "--until",
    "stop",
    type=BOUND,
    help="End before this offset, before the N last records of each partition (-N), "
    "or before the first record at or after this time.",
)
hidden_until = click.option("--to", "stop_alias", type=BOUND, hidden=True)
bounds = together(first, until)

limit = click.option("--limit", type=COUNT, help="Stop after so many of what is shown.")
skip = click.option(
    "--skip", type=COUNT, default=0, help="Leave out so many of what would be shown."
)
payload = click.option(
    "--payload",
    type=click.Choice(PAYLOADS),
    default="auto",
    show_default=True,
    help="How keys, values and header values are shown. auto: text as text, all else "
    "as base64 in JSON and CSV and with escapes in text; utf8: with escapes for what "
    "is not text; json: parsed if it is JSON; none: sizes.",
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
    help="raise: a partition ends at its first damage; skip: only what is damaged is "
    "left out. Either way the next partitions follow, missing records are reported on "
    "standard error, and the exit status is 1. (default: raise; skip for single files)",
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
    help="Of what would be shown only so many records of each partition: the last "
    "ones, the newest at the end.",
)
grep = click.option(
    "--grep", type=PATTERN, help="Only records whose key or value has a match."
)


def template(*short: str) -> Decorator:
    return click.option(
        *short,
        "--template",
        metavar="FORMAT",
        help="Print each record as this says, as kcat's -f: %t topic, %p partition, "
        "%o offset, %k key, %s value, %K and %S their lengths (-1: null), %T timestamp "
        "in milliseconds, %h headers, %% a percent sign; \\n, \\t, \\r, \\xNN. No line "
        "end is added.",
    )


kafka = click.option(
    "--kafka",
    is_flag=True,
    help="The text that kafka-dump-log prints, of whole files.",
)
kafka_release = click.option(
    "--kafka-release",
    type=click.Choice(logstore.kafka.RELEASES),
    help="The release whose text is printed (default: 3.9).",
)
kafka_records = together(
    click.option(
        "--offsets-decoder",
        is_flag=True,
        help="Of __consumer_offsets: what its records mean.",
    ),
    click.option(
        "--transaction-log-decoder",
        is_flag=True,
        help="Of __transaction_state: what its records mean.",
    ),
    click.option(
        "--share-group-state-decoder",
        is_flag=True,
        help="Of __share_group_state: what its records mean (from release 4.2 on).",
    ),
    click.option("--cluster-metadata-decoder", is_flag=True, hidden=True),
    click.option("--remote-log-metadata-decoder", is_flag=True, hidden=True),
    click.option(
        "--key-decoder-class",
        metavar="NAME",
        help="What makes text of a key: StringDecoder, IntegerDecoder or LongDecoder "
        "of org.apache.kafka.tools.api.",
    ),
    click.option("--value-decoder-class", metavar="NAME", help="The same for a value."),
    click.option(
        "--skip-record-metadata",
        is_flag=True,
        help="Of records only keys and values.",
    ),
)
kafka_max_bytes = click.option(
    "--max-bytes", type=COUNT, help="Of a log only the batches in so many bytes."
)
kafka_index = together(
    click.option(
        "--index-sanity-check",
        is_flag=True,
        help="Of indexes only whether a broker that starts rebuilds them.",
    ),
    click.option(
        "--verify-index-only",
        is_flag=True,
        help="Of indexes only the entries that do not fit the log.",
    ),
    click.option(
        "--max-message-size",
        type=COUNT,
        help="The largest batch that an entry of an index may lead to (default: "
        "5242880 bytes).",
    ),
)
kafka_files = click.option(
    "--files",
    type=FileType("FILE,FILE..."),
    required=True,
    help="The files: .log, .index, .timeindex, .txnindex, .snapshot, and .checkpoint "
    "of KRaft.",
)
kafka_depth = together(
    click.option("--deep-iteration", is_flag=True, help="A line for each record."),
    click.option(
        "--print-data-log",
        is_flag=True,
        help="And its key and value; each decoder implies it.",
    ),
)
decompressed = click.option(
    "--max-batch-decompressed-bytes",
    type=SIZE,
    help="The largest size of a batch after decompression; bytes, or with KiB, MiB, "
    "GiB (default: 256MiB). A larger batch is an error; of a single file, and in "
    "verify --deep and repair, it is left out and reported.",
)
segments = click.option(
    "--segments",
    is_flag=True,
    help="List the segments of each partition, too (`*`: the active one).",
)


def sort(columns: tuple[str, ...]) -> Decorator:
    return click.option(
        "--sort",
        type=click.Choice([name for c in columns for name in (c, f"-{c}")]),
        metavar="[-]COLUMN",
        help="Sort by a column of the table; with `-` the largest first.",
    )


def output(*, alias: bool = False) -> Decorator:
    shown = click.option(
        "-o",
        "--output",
        type=FileType("FILE"),
        help="Write to this file; `-`: to standard output.",
    )
    hidden = click.option("--to", "output_alias", type=FileType("FILE"), hidden=True)
    return together(shown, hidden) if alias else shown


force = click.option("--force", is_flag=True, help="Replace FILE if it is there.")
per_topic = click.option(
    "--per-topic",
    is_flag=True,
    help="One file for each topic: FILE has `{topic}` in its name, or is a directory.",
)
file_format = click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "csv", "parquet", "arrow"]),
    help="What to write. Default: what the name of FILE ends with; to standard output "
    "jsonl.",
)
deep = click.option("--deep", is_flag=True, help="Look inside compressed batches, too.")
threads = click.option(
    "--threads",
    type=COUNT,
    help="Check so many segments side by side, 1 to 64 (default: one for each core, 8 "
    "at the most).",
)
verbose = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print every finding, and not one line for those that say the same.",
)
dry_run = click.option(
    "--dry-run", is_flag=True, help="Only report what would be done; needs no lock."
)
mode = click.option(
    "--mode",
    type=click.Choice(["cut", "skip"]),
    help="cut: the log ends at its first damage; skip: only what is damaged goes, and "
    "leaves a gap in the offsets. Without it, what each would lose is shown.",
)
quarantine = click.option(
    "--quarantine",
    type=FileType("DIR"),
    help="Keep what is taken out there (default: in .logstore-quarantine-* inside the "
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
    help="Only this group, or those that a pattern matches. May be repeated.",
)
group = click.option(
    "--group", required=True, metavar="GROUP", help="The id of the group."
)
to_broker = click.option(
    "--to",
    type=FileType("DIR"),
    required=True,
    help="The log directory of the broker, which is stopped and has all partitions of "
    "__consumer_offsets.",
)
to_offset = click.option(
    "--to",
    type=TARGET,
    help="Where to: earliest, latest, an offset, or a time (the first record at or "
    "after it).",
)
shift = click.option(
    "--shift",
    type=int,
    metavar="N",
    help="So many records further; negative: back.",
)
topics = click.option(
    "--topics",
    type=TOPIC,
    metavar="NAME",
    multiple=True,
    help="All partitions of this topic, in place of those for which the group has "
    "committed an offset. May be repeated.",
)
yes = click.option("--yes", is_flag=True, help="Do not ask.")
handover = together(
    click.option(
        "--from-kafka",
        is_flag=True,
        help="The next owner is logstore. Default: the one that has not written last.",
    ),
    click.option("--to-kafka", is_flag=True, help="The next owner is a broker."),
    click.option(
        "--release",
        type=click.Choice(logstore.kafka.RELEASES),
        default=logstore.kafka.RELEASES[-1],
        show_default=True,
        help="Of the broker: 2.8 with ZooKeeper, the later ones with KRaft.",
    ),
    click.option("--cluster-id", help="That of the broker's cluster, to compare."),
    click.option("--node-id", type=COUNT, help="node.id or broker.id, to compare."),
    click.option(
        "--retention-ms",
        type=int,
        default=7 * 24 * 3600 * 1000,
        show_default=True,
        help="How long the broker keeps records; -1: for ever.",
    ),
    click.option(
        "--retention-bytes",
        type=int,
        default=-1,
        show_default=True,
        help="How much of a partition the broker keeps; -1: all.",
    ),
)
write_test = click.option(
    "--write-test",
    is_flag=True,
    help="Make a file in the store, measure what a sync takes, remove it.",
)
follow = click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Continue with new records, until interrupted; not for single files.",
)
records = click.option(
    "-n",
    "--records",
    type=COUNT,
    default=10,
    show_default=True,
    help="So many records of each partition.",
)
permissions = together(
    click.option(
        "--group-access",
        is_flag=True,
        help="New files are for the group, too, as the store's directory is.",
    ),
    click.option(
        "--allow-shared-directory",
        is_flag=True,
        help="Write although the store belongs to another user, or others may write "
        "to it; what root makes then belongs to its owner.",
    ),
    click.option(
        "--allow-network-filesystem",
        is_flag=True,
        help="Write although the store is on a network or FUSE file system.",
    ),
)
