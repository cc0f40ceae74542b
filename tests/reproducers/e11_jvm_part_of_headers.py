"""Every query that uses only a part of `headers` fails with the format logstore-jvm:
Spark prunes nested columns and asks for headers array<struct<value:binary>>, which the
reader refuses.

Needs pyspark and the jar of logstore.

Usage: python e11_jvm_part_of_headers.py
"""

import functools
import tempfile

import sparkling

import logstore as ls

path = tempfile.mkdtemp()
with ls.open(path) as store:
    p = store.create_topic("c", config=ls.TopicConfig(message_format=2))[0]
    p.append(b"v", key=b"k", headers=[("trace", b"1"), ("trace", b"2")])
    p.append(b"v")
spark = sparkling.session()
queries = [
    "headers.value",
    "headers.key",
    "transform(headers, h -> h.value)",
    "headers[0].value",
    "map_from_entries(headers)",
    "size(headers)",
]
conditions = ["headers[0].key = 'trace'", "array_contains(headers.value, X'31')"]
bad = []


def selected(query, name):
    frame = sparkling.load(spark, name, path, includeHeaders="true")
    return [row[0] for row in frame.selectExpr(query).collect()]


def counted(condition, name):
    frame = sparkling.load(spark, name, path, includeHeaders="true")
    return frame.where(condition).select("offset").count()


for call, texts in ((selected, queries), (counted, conditions)):
    for text in texts:
        python, jvm = (
            sparkling.outcome(functools.partial(call, text, name))
            for name in ("logstore", "logstore-jvm")
        )
        if python != jvm:
            bad.append((text, python, jvm))
said = f"{len(bad)} of {len(queries) + len(conditions)} queries differ"
if bad:
    text, python, jvm = bad[0]
    said += f": {[each[0] for each in bad]}; `{text}`: logstore returns {python},"
    said += f" logstore-jvm: {jvm[1]}"
sparkling.end(bad, said)
