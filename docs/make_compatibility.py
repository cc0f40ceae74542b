"""Makes the tables of docs/compatibility.md: files, releases of Kafka, and the tests.

    python docs/make_compatibility.py   # rewrites the tables of the page

`READS` and `SERVES` are the only places that say which test shows what;
tests/docs/test_compatibility_doc.py checks that each test exists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.releases import STARTED

PAGE: Final = Path(__file__).with_name("compatibility.md")
# Those that wrote the golden directories, and those that are started by tests.
OLDER: Final = ("0.8.2", "0.10.2", "1.1.1")
WRITERS: Final = (*OLDER, *STARTED)

GOLDEN: Final = "tests/golden/test_golden.py"
TRANSACTIONS: Final = "tests/golden/test_golden_transactions.py"
MIRRORED: Final = "tests/interop/test_broker_transactions.py"
HANDOVER: Final = "tests/interop/test_handover.py"
PRODUCERS: Final = "tests/interop/test_broker_producers.py"
GROUPS: Final = "tests/interop/test_broker_groups.py"
DIRECTORIES: Final = "tests/interop/test_broker_directories.py"
RUNNING: Final = "tests/interop/test_broker_running.py"
IDENTICAL: Final = "tests/interop/test_identical_files.py"
COMPACTED: Final = "tests/interop/test_broker_compaction.py"
CLEANED: Final = "tests/interop/test_compaction.py"
DUMPED: Final = "tests/interop/test_kafka_dump.py"
TEXT: Final = "tests/interop/test_kafka_text.py"
OLD: Final = "tests/interop/test_older_brokers.py"


class Row(NamedTuple):
    """What is read, or served, and the tests that show it.

    Attributes:
        shown: for each test, the releases for which it does; "" for all of the table.
        absent: releases that do not have the file; a release is here, or shown.
    """

    what: str
    shown: dict[str, str]
    absent: str = ""


def since(release: str) -> str:
    """A release and all later ones."""
    return " ".join(WRITERS[WRITERS.index(release) :])


_STARTED: Final = since("2.8.2")
FEATURES: Final = "tests/interop/test_handover_features.py"
_RECORDS: Final = f"{GOLDEN}::test_records_are_those_a_consumer_read"
_OFFSETS: Final = f"{GOLDEN}::test_offsets_are_those_the_broker_reported"
_RECOVERED: Final = (
    f"{GOLDEN}::test_opening_a_copy_for_writing_recovers_what_kafka_recovers"
)
_VERIFIED: Final = f"{GOLDEN}::test_verify_finds_no_problem_in_a_kafka_directory"
_TIMES: Final = f"{GOLDEN}::test_seek_by_time_finds_what_a_look_at_every_record_finds"
_BACK: Final = f"{MIRRORED}::test_transactions_go_to_logstore_and_back"
_FINISHED: Final = f"{MIRRORED}::test_broker_that_is_killed_is_finished_by_logstore"
_SAID: Final = f"{HANDOVER}::test_broker_does_with_the_logs_what_was_said"
_COPIED: Final = (
    f"{TRANSACTIONS}::test_copied_transactions_have_the_files_of_the_broker"
)
_SERVED: Final = (
    f"{TRANSACTIONS}::test_copied_transactions_are_read_as_the_broker_served_them"
)
_KNOWN: Final = (
    f"{PRODUCERS}::test_broker_goes_on_with_the_producers_and_gives_them_back"
)
_COMMITTED: Final = (
    f"{GROUPS}::test_offsets_of_a_stopped_broker_are_the_last_that_its_tool_said"
)
_DUMP: Final = f"{GOLDEN}::test_dump_of_batches_agrees_with_kafka_s_own"
_GOES_ON: Final = (
    f"{COMPACTED}::test_broker_serves_and_compacts_what_logstore_has_compacted"
)
_SAME: Final = (
    f"{CLEANED}::test_uncompressed_log_has_the_bytes_that_kafkas_cleaner_writes"
)
_REFUSED: Final = f"{HANDOVER}::test_directory_that_is_said_to_be_refused_is_refused"
_FORMATS: Final = f"{OLD}::test_topics_of_old_formats_are_read_as_a_consumer_reads_them"
_TORN: Final = f"{OLD}::test_killed_broker_with_a_torn_tail_is_recovered_as_it_recovers"
_CLEANER: Final = f"{OLD}::test_log_of_a_killed_cleaner_is_what_the_broker_makes_of_it"
_TOLD: Final = f"{OLD}::test_offsets_of_groups_are_those_that_the_broker_tells"
_WAITS: Final = f"{OLD}::test_topic_that_waits_for_its_deletion_is_no_topic"
_MOVED: Final = (
    f"{OLD}::test_partition_that_is_moved_to_another_directory_is_not_there_yet"
)
_LISTED: Final = f"{GOLDEN}::test_partitions_of_a_kafka_directory_are_listed"
_LOOKS: Final = f"{RUNNING}::test_every_look_at_a_running_broker_is_right"

READS: Final = (
    Row(
        "`.log`, magic 0",
        {_RECORDS: "0.8.2 2.8.2", _FORMATS: "0.10.2 1.1.1"},
        since("3.9.1"),
    ),
    Row(
        "`.log`, magic 1",
        {_RECORDS: "0.10.2 2.8.2", _FORMATS: "1.1.1"},
        f"0.8.2 {since('3.9.1')}",
    ),
    Row("`.log`, magic 2", {_RECORDS: since("1.1.1")}, "0.8.2 0.10.2"),
    Row("`.index`", {_VERIFIED: ""}),
    Row("`.timeindex`", {_TIMES: since("0.10.2")}, "0.8.2"),
    Row(
        "`.txnindex`",
        {_COPIED: since("1.1.1")},
        "0.8.2 0.10.2",
    ),
    Row(
        "`.snapshot`",
        {
            _COPIED: since("1.1.1"),
            _KNOWN: _STARTED,
        },
        "0.8.2 0.10.2",
    ),
    Row(
        "transactions, `read_committed`",
        {
            _SERVED: since("1.1.1"),
            _BACK: _STARTED,
        },
        "0.8.2 0.10.2",
    ),
    Row("`recovery-point-offset-checkpoint`", {_RECOVERED: ""}),
    Row(
        "`log-start-offset-checkpoint`",
        {_OFFSETS: since("1.1.1")},
        "0.8.2 0.10.2",
    ),
    Row(
        "`leader-epoch-checkpoint`",
        {_VERIFIED: since("1.1.1")},
        "0.8.2 0.10.2",
    ),
    Row(
        "`partition.metadata`",
        {_VERIFIED: since("3.9.1")},
        "0.8.2 0.10.2 1.1.1 2.8.2",
    ),
    Row("`.kafka_cleanshutdown`, or none", {_RECOVERED: ""}),
    Row(
        "a torn tail, preallocated indexes (killed)",
        {_RECOVERED: f"0.8.2 0.10.2 {_STARTED}", _TORN: "1.1.1"},
    ),
    Row(
        "`.swap`, `.cleaned`, `.deleted` (compaction)",
        {_RECOVERED: "0.10.2 2.8.2 4.2.0", _CLEANER: ""},
    ),
    Row(
        "`-delete` directories",
        {_LISTED: _STARTED, _WAITS: "0.10.2 1.1.1"},
        "0.8.2",
    ),
    Row(
        "`-future` directories",
        {_MOVED: since("1.1.1")},
        "0.8.2 0.10.2",
    ),
    Row("`-stray` directories", {_SAID: since("3.9.1")}, "0.8.2 0.10.2 1.1.1 2.8.2"),
    Row(
        "`__consumer_offsets`",
        {_COMMITTED: _STARTED, _TOLD: "0.8.2 0.10.2 1.1.1"},
    ),
    Row(
        "the text of `kafka-dump-log`",
        {f"{TEXT}::test_golden_directories": "", _DUMP: "0.10.2 2.8.2 3.9.1"},
    ),
    Row(
        "all of it while the broker runs (read-only)",
        {
            _LOOKS: since("0.10.2"),
            f"{OLD}::test_running_broker_of_0_8_is_read": "0.8.2",
        },
    ),
)
SERVES: Final = (
    Row(
        "`.log`, `.index`, `.timeindex` of random appends: the same bytes",
        {f"{IDENTICAL}::test_files_are_those_of_the_broker": ""},
    ),
    Row(
        "a compacted log, and compacts on",
        {_GOES_ON: ""},
    ),
    Row(
        "a compacted log: the bytes of Kafka's cleaner",
        {
            _SAME: "",
            f"{CLEANED}::test_logs_of_magic_2_are_what_kafkas_cleaner_leaves": "",
        },
    ),
    Row(
        "`.log`, magic 0, 1 and 2, all codecs",
        {f"{DIRECTORIES}::test_broker_serves_every_record_and_both_go_on": ""},
    ),
    Row(
        "checkpoints and markers, without a warning",
        {f"{DIRECTORIES}::test_broker_warns_of_our_directory_as_of_its_own": ""},
    ),
    Row(
        "logs that get into the directory of a broker",
        {f"{DIRECTORIES}::test_broker_serves_logs_that_get_into_its_directory": ""},
    ),
    Row("`.log`, magic 2, with its indexes", {_SAID: "", _BACK: ""}),
    Row("`.log`, `.index`, `.timeindex` of a copy: the same bytes", {_BACK: ""}),
    Row("`.txnindex`, the same bytes", {_BACK: ""}),
    Row("`.txnindex` of a broker that was killed", {_FINISHED: ""}),
    Row("`.snapshot`, the same bytes", {_BACK: ""}),
    Row("`.snapshot` of producers", {_KNOWN: ""}),
    Row("a missing `.index`: built", {_SAID: ""}),
    Row("records older than the retention: deleted", {_SAID: ""}),
    Row(
        "damage: cut, or an error for the consumer",
        {f"{HANDOVER}::test_broker_does_with_damage_what_was_said": ""},
    ),
    Row(
        "a publication that was interrupted: served",
        {f"{HANDOVER}::test_broker_serves_a_publication_that_was_interrupted": ""},
    ),
    Row("`.kafka_cleanshutdown`", {_FINISHED: ""}),
    Row(
        "`partition.metadata`: none, or another id (KRaft)",
        {_SAID: since("3.9.1")},
        "2.8.2",
    ),
    Row("`meta.properties`, checkpoints, names that are refused", {_REFUSED: ""}),
    Row(
        "levels of features that are too new: refused (KRaft)",
        {
            f"{FEATURES}::test_broker_starts_with_the_levels_of_which_that_was_said": (
                since("3.9.1")
            )
        },
        "2.8.2",
    ),
    Row("`.lock`", {f"{HANDOVER}::test_directory_of_a_running_owner_is_refused": ""}),
    Row(
        "groups, exported",
        {f"{GROUPS}::test_exported_group_is_served_by_the_broker": ""},
    ),
    Row(
        "`.log`, magic 0, 1 and 2, by `kafka-dump-log`",
        {
            f"{TEXT}::test_what_logstore_writes": "",
            f"{DUMPED}::test_kafka_reads_every_record_as_it_was_written": "3.9.1",
        },
    ),
    Row(
        "indexes, by `kafka-dump-log --index-sanity-check`",
        {
            f"{TEXT}::test_indexes_that_logstore_writes_pass_the_sanity_check": "",
            f"{DUMPED}::test_indexes_pass_kafka_s_sanity_check": "3.9.1",
        },
    ),
)


def tables(rows: tuple[Row, ...], releases: tuple[str, ...]) -> Iterator[str]:
    """A table with a column for each release, and the list of its tests."""
    tests = list(dict.fromkeys(test for row in rows for test in row.shown))
    yield f"| what | {' | '.join(releases)} |"
    yield f"| --- |{' --- |' * len(releases)}"
    for row in rows:
        cells = [cell(row, release, tests) for release in releases]
        yield f"| {row.what} | {' | '.join(cells)} |"
    yield ""
    yield "| test | |"
    yield "| --- | --- |"
    for number, test in enumerate(tests, 1):
        yield f"| {number} | `{test}` |"


def cell(row: Row, release: str, tests: list[str]) -> str:
    """The numbers of the tests for a release."""
    numbers = [
        str(tests.index(test) + 1)
        for test, where in row.shown.items()
        if not where or release in where.split()
    ]
    if numbers:
        return ", ".join(numbers)
    assert release in row.absent.split(), (row.what, release)
    return "\u2013"


def page(text: str) -> str:
    """The page with its tables made again."""
    for name, rows, releases in (
        ("reads", READS, WRITERS),
        ("serves", SERVES, STARTED),
    ):
        made = "\n".join(tables(rows, releases))
        text = re.sub(
            rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end of {name} -->)",
            lambda match, made=made: f"{match[1]}{made}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
