"""Suggestions for an unknown subcommand or option.

Users type the words of other tools: kcat, Kafka's scripts, git, SQL. A suggestion
follows from the meaning, not from similar letters: `cat` is `records` and not
`compact`. Only a typing error, in a name or in one of these words, is found by its
letters. No suggestion is a command that changes anything: such commands are named with
``--dry-run`` or ``--help``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

# Suggested commands, and the words for each.
_COMMANDS: Final = {
    "records": "cat consume consumer console-consumer get read show print dump fetch "
    "messages message record view query kcat",
    "records --grep RE": "grep search find filter",
    "records --limit N": "head first",
    "records --last N": "last latest",
    "ls": "topics topic describe list dir tree partitions partition segments segment "
    "offsets",
    "stat": "stats count size sizes du wc summary statistics",
    "tail -f": "follow watch stream listen",
    "browse": "ui tui gui browser akhq kafdrop kafka-ui conduktor k9s explore explorer",
    "batches": "batch",
    "index": "indexes timeindex checkpoint checkpoints",
    "kafka-dump-log": "dump-log dumplog",
    "export -o FILE": "convert save to-parquet to-csv to-json parquet csv json jsonl "
    "arrow",
    "groups list": "consumers group consumer-groups consumergroups",
    "groups describe": "lag members committed",
    "verify": "check fsck validate scrub test lint integrity checksum",
    "doctor": "health status environment env diagnose",
    "handover check": "handover migrate migration",
    "repair --dry-run": "fix recover recovery heal mend salvage repairs",
    "rebuild-index --dry-run": "rebuild reindex",
    "compact --dry-run": "compaction clean cleaner gc vacuum",
    "snapshot --help": "backup copy clone cp",
    "groups reset --dry-run": "reset reset-offsets seek rewind",
    "groups export --dry-run": "export-group",
    "report -o FILE": "html page dashboard",
    "metrics": "prometheus exporter monitor monitoring stats-prometheus",
    "completion": "completions complete",
    "man": "manual manpage",
    "--help": "help usage",
    "--version": "version",
}
# The commands that change something, and the suggestions in their place.
HARMLESS: Final = {
    "repair": "repair --dry-run",
    "rebuild-index": "rebuild-index --dry-run",
    "compact": "compact --dry-run",
    "snapshot": "snapshot --help",
    "groups reset": "groups reset --dry-run",
    "groups export": "groups export --dry-run",
}
# Tasks that this tool does not do, and the words for each.
_ELSEWHERE: Final = {
    "does not append records": "produce producer write append put publish "
    "send push insert import load",
    "does not delete records or topics": "delete rm remove drop purge truncate trim "
    "delete-records",
    "does not create or change topics": "create create-topic init new mkdir "
    "alter configure config configs set",
}
# Options, or subcommands, in place of an option; the first one that there is.
_OPTIONS: Final[dict[tuple[str, ...], str]] = {
    ("--from",): "-o --offset --offsets --start --since --after --begin --start-offset "
    "--from-offset --from-time --timestamp --seek",
    ("--until",): "--end --before --stop --end-offset --till --to-offset --to-time",
    ("--limit", "--records"): "-c -n --count --max --max-messages --max-records "
    "--num --head --messages",
    ("--last", "--records", "records --last N"): "--tail --latest --newest",
    ("--skip",): "--drop --omit",
    ("--topic", "--topics"): "-t",
    ("--partition",): "-p --partitions",
    ("--group",): "-g -G --groups --consumer-group --group-id",
    ("--format jsonl",): "-J -j --json --jsonl --ndjson",
    ("--format",): "--as --kind --type --style",
    ("--grep", "records --grep RE"): "-e --regex --regexp --pattern --filter --search "
    "--match --where --contains",
    ("--key", "records --key KEY"): "-k --key-filter --with-key",
    ("--payload",): "--encoding --decode --utf8 --hex --base64 --raw --value-format",
    ("--template",): "--printf --output-format",
    ("--isolation read_committed",): "--committed --read-committed --isolation-level",
    ("--on-corruption skip",): "--skip-corrupt --ignore-errors --skip-damaged "
    "--ignore-corruption --continue",
    ("--follow", "tail -f"): "--watch --stream -f -F",
    ("--output",): "--out --file --outfile --dest",
    ("--dry-run",): "--preview --simulate --plan --what-if --check --dryrun",
    ("--deep",): "--full --thorough --all --complete",
    ("--threads",): "-j --jobs --parallel --workers --concurrency",
    ("--segments",): "-l --long --all -a --details --recursive -R",
    ("--sort",): "--order --order-by --sort-by",
    ("--verbose",): "-vv --details --all",
    ("repair --dry-run",): "--fix --repair --heal",
    ("ls",): "--list --describe -L",
    ("groups list",): "--all-groups",
    ("groups describe",): "--lag --members",
}
_LEAVE_OUT: Final = {
    "logs are read from the start by default": "--from-beginning --earliest -C",
    "there is no broker to connect to: PATH is the directory": (
        "-b --bootstrap-server --broker --brokers --zookeeper --broker-list --host"
    ),
}
# They make a command write, ask nothing, or replace a file: never suggested.
_WRITING: Final = frozenset({"--yes", "--force", "--write-test"})
# Least similarity of two words that differ by a typing error.
_SLIP: Final = 0.75


def for_command(word: str, names: Sequence[str]) -> str:
    """The end of an error about an unknown subcommand: the one that was meant, or all
    that exist.

    Args:
        names: the subcommands, in the order in which they are listed.
    """
    for what, words in _ELSEWHERE.items():
        if word in words.split():
            return f"; this tool {what}: use logstore.open() in Python"
    family = [name for name in names if name.startswith(f"{word} ")]
    if len(family) > 1:
        return f"; there are {', '.join(family)}"
    meant = {name: HARMLESS.get(name, name) for name in names}
    for suggestion, words in _COMMANDS.items():
        meant.update(dict.fromkeys(words.split(), suggestion))
    suggested_name = meant.get(word) or meant.get(_slip_of(word, meant))
    if suggested_name is None:
        return f"; there are {', '.join(names)}"
    return f"; did you mean {suggested_name}?"


def for_option(option: str, names: Iterable[str]) -> str:
    """The end of an error about an option that a subcommand does not have; "" if
    nothing is known of it.

    Args:
        names: the options that the subcommand has.
    """
    has = [name for name in names if name not in _WRITING]
    for reason, words in _LEAVE_OUT.items():
        if option in words.split():
            return f"; {reason}"
    meant = {name: name for name in has}
    for suggestions, words in _OPTIONS.items():
        for suggestion in _that_exist(suggestions, has):
            for word in (*suggestions, *words.split()):
                meant.setdefault(word, suggestion)
    suggested_name = meant.get(option) or meant.get(_slip_of(option, meant))
    return "" if suggested_name is None else f"; did you mean {suggested_name}?"


def _that_exist(suggestions: Sequence[str], has: Sequence[str]) -> Iterator[str]:
    """Suggestions that are no option, or an option that the subcommand has."""
    for suggestion in suggestions:
        if not suggestion.startswith("-") or suggestion.split()[0] in has:
            yield suggestion


def _slip_of(word: str, words: Iterable[str]) -> str:
    """The word meant by a mistyped one; "" if not found. It begins with the same
    letter, and has nearly the same letters in the same order."""
    plain = word.lstrip("-")
    dashes = word[: len(word) - len(plain)]
    alike = [
        candidate.lstrip("-")
        for candidate in words
        if plain and candidate.startswith(dashes + plain[0]) and len(plain) > 2
    ]
    close = difflib.get_close_matches(plain, alike, 1, _SLIP)
    return dashes + close[0] if close else ""
