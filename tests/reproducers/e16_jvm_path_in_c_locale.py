"""In the locale C (a container or a service without LANG) the format logstore-jvm
cannot read a store whose path is not ASCII: it raises
java.nio.file.InvalidPathException. The format logstore reads it.

Needs pyspark and the jar of logstore.

Usage: python e16_jvm_path_in_c_locale.py
"""

import functools
import os
import sys
import tempfile

if os.environ.get("LC_ALL") != "C":
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, LC_ALL="C"))
import sparkling

import logstore as ls

path = os.path.join(tempfile.mkdtemp(), "D\u00e4ten")
with ls.open(path) as store:
    store.create_topic("c", config=ls.TopicConfig(message_format=2))[0].append_many(
        [b"a", b"b"]
    )
spark = sparkling.session()


def rows(name):
    return len(sparkling.load(spark, name, path).select("value").collect())


python, jvm = (
    sparkling.outcome(functools.partial(rows, name))
    for name in ("logstore", "logstore-jvm")
)
sparkling.end(python != jvm, f"logstore {python}, logstore-jvm {jvm}")
