"""Prints the layers of logstore, and the tree of its modules, for docs/design.md.

    python docs/make_layers.py   # rewrites the two parts of docs/design.md

`LAYERS` and `INSIDE` are the only places that say which module may import which;
tests/test_layers.py checks them. What a module is for is the first sentence of its
docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "logstore"
PAGE = ROOT / "docs" / "design.md"

# From the ground up. A room imports from lower layers only.
LAYERS: Final[tuple[dict[str, str], ...]] = (
    {
        "_native": "the C core, and the only Python code that calls it",
        "errors": "every exception",
        "lazy": "public modules whose names are imported when they are used",
    },
    {
        "config": "the settings of stores and topics",
        "index": "the entries of the sparse indexes",
    },
    {
        "io": "system calls, names on disk, locks, small files",
        "record": "records, batches, codecs, Arrow columns",
    },
    {"segment": "one `.log` file with its indexes, as readers see it"},
    {"log": "the log of one partition: read, recover, follow, write, compact"},
    {"store": "what users call: store, topic, partition, publication"},
    {"broker": "the groups of a Kafka broker, from its directories, and its records"},
    {
        "group": "groups of consumers: members, committed offsets",
        "metrics": "numbers for monitoring",
    },
    {"maintenance": "verify, repair, report, doctor"},
    {
        "kafka": "what Kafka has, for users: groups, hand-over, messages",
        "types": "what functions return, for annotations",
    },
    {"aio": "the same for asyncio: waits without blocking the event loop"},
    {
        "cli": "`logstore-dump`; uses public names only",
        "spark": "help for Spark sessions; uses public names only",
    },
    {"__main__": "`python -m logstore`"},
)

# The same for what is in a room or one of its packages, where the order matters to a
# reader.
INSIDE: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "broker": (
        ("directories", "lag", "placement", "releases"),
        ("fields",),
        ("schemas",),
        ("kafka_records",),
        ("consumer_records",),
        ("offsets_log",),
        ("groups",),
    ),
    "group": (
        ("errors",),
        ("file",),
        ("member",),
        ("consumer",),
        ("overview", "resets"),
        ("exports", "measures"),
    ),
    "group.file": (
        ("lock_file",),
        ("durable_point",),
        ("damage", "slots", "synced_file"),
        ("commit_calls", "state"),
        ("batches",),
        ("group_records",),
        ("group_log",),
        ("group_file",),
    ),
    "group.member": (
        ("assignors", "liveness", "open_group"),
        ("next_generation",),
        ("holder",),
        ("membership",),
    ),
    "group.consumer": (
        ("options", "transaction"),
        ("log_reader",),
        ("reading",),
        ("lowering",),
        ("ahead", "positions", "waiting"),
        ("group_place",),
        ("committer",),
        ("assigned_partitions",),
        ("fetcher",),
        ("core",),
        ("deliveries", "inputs"),
        ("consumer",),
    ),
    "log": (
        ("producers", "resync", "retention", "scan"),
        ("read",),
        ("frames", "recover"),
        ("follow", "write"),
        ("compact",),
    ),
    "store": (
        ("background", "catalog", "fork_and_exit", "measures", "state"),
        ("context",),
        ("partition",),
        ("topic",),
        ("publication",),
        ("hand_in",),
        ("publishing",),
        ("copy",),
        ("lifetime",),
        ("store",),
        ("opening", "package_access"),
    ),
    "store.catalog": (
        ("identifying", "message_format", "topic_ids"),
        ("topic_settings",),
        ("deleted_directories", "known_ids"),
        ("topics",),
    ),
    "store.partition": (
        ("arrow_source", "partition_views", "partitions"),
        ("new_records", "partition_appends", "partition_upkeep"),
        ("partition_reads", "shared_appends"),
        ("partition",),
    ),
    "store.topic": (
        ("merging", "routing"),
        ("topic",),
        ("open_topics", "topic_tables"),
        ("topic_changes",),
    ),
    "store.publication": (
        ("discarding", "producer", "publication"),
        ("publication_group", "unfinished"),
        ("group_commit",),
        ("publisher",),
    ),
    "store.hand_in": (
        ("keeper", "own_owner", "served_processes"),
        ("owner", "requester"),
        ("sharing",),
    ),
    "store.copy": (
        ("copies", "cut"),
        ("snapshot",),
        ("snapshot_requests",),
    ),
}


def layers() -> Iterator[str]:
    """The picture of the layers, the highest first."""
    width = max(len("   ".join(layer)) for layer in LAYERS)
    yield "```text"
    for layer in reversed(LAYERS):
        names = "   ".join(layer)
        texts = "; ".join(text.replace("`", "") for text in layer.values())
        yield f"{names:{width}}   {texts}"
    yield "```"


def purpose(module: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(module.read_bytes())) or ""
    text = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)])[.;:](?: |$)", text)[0]


def purpose_of_c(file: Path) -> str:
    """The purpose of a C file, from its first comment: ``name - purpose.``"""
    comment = file.read_text(encoding="utf-8").partition("*/")[0]
    text = " ".join(comment.replace("/*", "").replace("\n *", " ").split())
    text = text.partition(" - ")[2]
    return re.split(r"(?<=[\w`)])[.;](?: |$)", text)[0]


def tree(directory: Path = PACKAGE, indent: str = "") -> Iterator[str]:
    """The modules and C files of a package, each with its purpose."""
    modules = {
        path.name: path
        for path in (*directory.glob("*.py"), *directory.glob("[!_]*.c"))
        if path.name not in ("__init__.py", "build_ffi.py")
    }
    packages = [path for path in directory.iterdir() if (path / "__init__.py").exists()]
    for path in sorted([*modules.values(), *packages]):
        if path.is_dir():
            text = purpose(path / "__init__.py")
            yield f"{indent}{path.name + '/':{28 - len(indent)}} {text}".rstrip()
            yield from tree(path, indent + "  ")
        else:
            text = purpose_of_c(path) if path.suffix == ".c" else purpose(path)
            yield f"{indent}{path.name:{28 - len(indent)}} {text}".rstrip()


def page(text: str) -> str:
    """The text of docs/design.md with both parts as they are now."""
    for name, lines in (
        ("layers", layers()),
        ("tree", ("```text", *tree(), "```")),
    ):
        begin, end = f"<!-- {name}: docs/make_layers.py -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE.name} has no {begin!r} with {end!r} after it")
        text = f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"
    return text


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
