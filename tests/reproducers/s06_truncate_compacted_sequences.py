"""A named producer appends to a compacted topic, which is then truncated.
`last_sequence` goes back below rows that are in the log, so that they are appended
again after newer ones; or it includes rows that are not in the log, so that they are
left out for good.

Usage: python s06_truncate_compacted_sequences.py
"""

import tempfile

import logstore as ls

cfg = ls.TopicConfig(message_format=2, cleanup_policy="compact", file_delete_delay_ms=0)
wrong = []


def case(repeats):
    with ls.open(tempfile.mkdtemp()) as s:
        p = s.create_topic("t", config=cfg)[0]
        a = s.producer("mover")
        keys = [b"k"] * 10 + [b"j"] * 9 + [b"m%d" % i for i in range(19, 25)]
        if repeats:
            keys[0] = b"u"
        rows = [(key, b"row %d" % i) for i, key in enumerate(keys)]

        def move(first, stop):
            for i in range(first, stop):
                a.append(p, rows[i][1], rows[i][0], sequence=i)

        move(0, 10)
        p.append(b"newer than rows 1 to 9", b"k")
        end = p.end_offset
        move(10, 19)
        p.append(b"newer than rows 10 to 18", b"j")
        move(19, 25)
        p.roll()
        p.compact(force=True)
        p.truncate_to(end)  # removes all rows from 10 on
        last = a.last_sequence(p)  # rows 0 to 9 were in the log below `end`: 9
        if last != 9:
            wrong.append(
                f"last_sequence is {last}, rows 0 to 9 were appended and not removed"
            )
            move(last + 1, 25)  # as docs/guide.md "Append once"
            p.roll()
            p.compact(force=True)
            have = {r.key: r.value for r in p.read()}
            if have.get(b"k") != b"newer than rows 1 to 9":
                wrong.append(f"k is {have.get(b'k')!r} again")
            if b"j" not in have:
                wrong.append("rows 10 to 18 are left out for good")


case(True)
case(False)
print(f"WRONG {'; '.join(wrong)}" if wrong else "OK")
raise SystemExit(bool(wrong))
