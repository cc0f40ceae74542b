"""`logstore.spark`: lags of queries, and help for sessions. No Java machine needed."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import logstore.spark
from logstore.spark import LagListener, lags_of, register, session_defaults
from pyspark_logstore import DefaultSource

PROGRESS: dict[str, Any] = {
    "id": "11-22",
    "name": "clean",
    "batchId": 4,
    "sources": [
        {"endOffset": 17, "latestOffset": 18},  # another kind of source
        {
            "endOffset": {"orders": {"0": 5, "10": 7}},
            "latestOffset": {"orders": {"0": 9, "10": 7, "11": 2}},
        },
        {"endOffset": "{'users': {'0': 5}}", "latestOffset": None},
        {
            "endOffset": '{"users": {"0": 5}}',
            "latestOffset": '{"users": {"0": 4}}',
        },
    ],
}


def test_lag_is_what_is_left_by_partition() -> None:
    """Of sources that report offsets by topic and partition; a new partition counts
    from 0, and nothing is behind by less than nothing."""
    orders, users = lags_of(PROGRESS)
    assert orders.by_partition == {"orders-0": 4, "orders-10": 0, "orders-11": 2}
    assert (orders.min, orders.max, orders.avg, orders.total) == (0, 4, 2.0, 6)
    assert (orders.query_name, orders.batch_id, orders.source) == ("clean", 4, 1)
    assert users.by_partition == {"users-0": 0}
    assert lags_of({**PROGRESS, "sources": []}) == []


def test_listener_keeps_the_newest_lags_until_the_query_ends() -> None:
    """By query; each is handed on."""
    seen: list[Any] = []
    listener = LagListener(seen.append)
    listener.onQueryProgress(SimpleNamespace(progress=PROGRESS))
    newer = {**PROGRESS, "batchId": 5}
    listener.onQueryProgress(SimpleNamespace(progress=newer))
    assert [lag.batch_id for lag in seen] == [4, 4, 5, 5]
    assert listener.newest("11-22") == lags_of(newer)
    assert listener.newest("other") == []
    listener.onQueryTerminated(SimpleNamespace(id="11-22"))
    assert listener.newest("11-22") == []


class Builder:
    """Remembers its settings."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self


def test_session_runs_this_python(
    monkeypatch: pytest.MonkeyPatch, checked_early: None
) -> None:
    """Unless the environment says which; with Unix sockets where there are any."""
    monkeypatch.setenv("PYSPARK_PYTHON", "restored in the end")
    monkeypatch.delenv("PYSPARK_PYTHON")
    builder = Builder()
    assert session_defaults(builder) is builder
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    session_defaults(builder)
    assert os.environ["PYSPARK_PYTHON"] == "another"
    monkeypatch.setattr(logstore.spark, "jar_path", lambda: None)
    sockets = "spark.python.unix.domain.socket.enabled"
    for version, expected in (("4.0.5", {}), ("4.1.0", {sockets: "true"})):
        monkeypatch.setattr(logstore.spark.pyspark, "__version__", version)
        assert session_defaults(Builder()).settings == expected


@pytest.mark.parametrize(
    ("master", "named", "changed"),
    [("local[2]", "", True), ("local[2]", "python3.12", False), ("yarn", "", False)],
)
def test_registering_sets_the_python_of_local_workers(
    master: str,
    named: str,
    changed: bool,
    monkeypatch: pytest.MonkeyPatch,
    checked_early: None,
) -> None:
    """Unless the environment says which, and never for other hosts."""
    monkeypatch.setenv("PYSPARK_PYTHON", named)
    properties: dict[str, str] = {}
    system = SimpleNamespace(setProperty=properties.__setitem__)
    java = SimpleNamespace(lang=SimpleNamespace(System=system))
    context = SimpleNamespace(
        master=master, pythonExec="python3", _jvm=SimpleNamespace(java=java)
    )
    registered: list[Any] = []
    statements: list[str] = []
    source = SimpleNamespace(register=registered.append)
    monkeypatch.setattr(logstore.spark, "jar_path", lambda: "/it's/a.jar")
    register(SimpleNamespace(_sc=context, dataSource=source, sql=statements.append))
    assert registered == [DefaultSource]
    assert statements == [r"ADD JAR '/it\'s/a.jar'"]
    assert properties == ({"logstore.python": sys.executable} if changed else {})
    assert context.pythonExec == (sys.executable if changed else "python3")


def test_session_gets_the_jar_after_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch, checked_early: None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.setattr(logstore.spark, "jar_path", lambda: "/x/logstore-jvm.jar")
    builder = Builder()
    builder._options = {"spark.jars": "/a.jar,/b.jar"}
    session_defaults(builder)
    assert builder.settings["spark.jars"] == "/a.jar,/b.jar,/x/logstore-jvm.jar"
