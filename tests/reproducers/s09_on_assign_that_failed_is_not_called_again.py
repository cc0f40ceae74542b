"""A service finds its positions in `on_assign`, which fails once ("database is
locked"). `poll` raises the error, but the next `poll` delivers from the start, without
the seek and without another call of `on_assign`: all rows are in the table twice.

Usage: python s09_on_assign_that_failed_is_not_called_again.py
"""

import logging
import sqlite3
import tempfile

import logstore as ls

logging.disable(logging.CRITICAL)
path = tempfile.mkdtemp()
with ls.open(path) as s:
    s.create_topic("jobs").append_many([b"a", b"b", b"c"], durable=True)
file = f"{path}/results.db"
db = sqlite3.connect(file, timeout=0)
db.execute("CREATE TABLE results (value TEXT)")
db.execute("CREATE TABLE positions (topic, number, next, PRIMARY KEY (topic, number))")
db.commit()


def find_positions(consumer, partitions):
    for topic, number in partitions:
        row = db.execute(
            "SELECT next FROM positions WHERE topic = ? AND number = ?", (topic, number)
        ).fetchone()
        consumer.seek((topic, number), row[0] if row else 0)


def run(is_locked):
    other = sqlite3.connect(file)
    if is_locked:
        other.execute("BEGIN EXCLUSIVE")
    with ls.Consumer(path, group="to-database", reset="earliest") as consumer:
        consumer.subscribe(
            ["jobs"], on_assign=lambda new: find_positions(consumer, new)
        )
        for _ in range(3):
            try:
                found = consumer.poll(timeout_ms=200)
            except sqlite3.OperationalError:
                other.rollback()
                continue
            for (topic, number), records in found.items():
                with db:
                    for record in records:
                        db.execute(
                            "INSERT INTO results VALUES (?)", (record.value.decode(),)
                        )
                    db.execute(
                        "REPLACE INTO positions VALUES (?, ?, ?)",
                        (topic, number, records[-1].offset + 1),
                    )


run(False)
run(True)
rows = [r[0] for r in db.execute("SELECT value FROM results")]
wrong = sorted(rows) != ["a", "b", "c"]
print("WRONG" if wrong else "OK", "rows", rows)
raise SystemExit(wrong)
