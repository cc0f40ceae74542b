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
from pyspark_logstore.jvm.missing import MissingReader

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
    """Sources report offsets by topic and partition; a new partition counts from 0, and
    no lag is negative."""
    orders, users = lags_of(PROGRESS)
    assert orders.by_partition == {"orders-0": 4, "orders-10": 0, "orders-11": 2}
    assert (orders.min, orders.max, orders.avg, orders.total) == (0, 4, 2.0, 6)
    assert (orders.query_name, orders.batch_id, orders.source) == ("clean", 4, 1)
    assert users.by_partition == {"users-0": 0}
    assert lags_of({**PROGRESS, "sources": []}) == []


def test_listener_keeps_the_newest_lags_until_the_query_ends() -> None:
    """Lags are kept by query; each is handed on."""
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
    """Remembers its settings, and makes a session of Spark Connect."""

    def __init__(self, **options: str) -> None:
        self._options: dict[str, str] = {**options}
        self.session: Any = object()

    def config(self, name: str, value: str) -> Builder:
        self._options[name] = value
        return self

    def getOrCreate(self) -> Any:
        return self.session


class Session:
    """A classic session; records the calls on it."""

    def __init__(self, master: str = "local[2]", finds: bool = False) -> None:
        self.properties: dict[str, str] = {}
        self.registered: list[Any] = []
        system = SimpleNamespace(setProperty=self.properties.__setitem__)
        java = SimpleNamespace(lang=SimpleNamespace(System=system))
        self._sc = SimpleNamespace(
            master=master, pythonExec="python3", _jvm=SimpleNamespace(java=java)
        )
        self.dataSource = SimpleNamespace(register=self.registered.append)
        manager = SimpleNamespace(dataSourceExists=lambda name: finds)
        state = SimpleNamespace(dataSourceManager=lambda: manager)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: state)


@pytest.fixture
def no_machine(monkeypatch: pytest.MonkeyPatch, checked_early: None) -> None:
    """No Java machine runs, and no Python is configured."""
    monkeypatch.setattr(logstore.spark, "_is_running", lambda: False)
    monkeypatch.setenv("PYSPARK_PYTHON", "restored in the end")
    monkeypatch.delenv("PYSPARK_PYTHON")


SOCKETS = "spark.python.unix.domain.socket.enabled"


def test_session_runs_this_python(
    monkeypatch: pytest.MonkeyPatch, no_machine: None
) -> None:
    """The environment overrides it; Unix sockets are used if available."""
    builder = Builder()
    assert session_defaults(builder) is builder
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    session_defaults(builder)
    assert os.environ["PYSPARK_PYTHON"] == "another"
    for version, expected in (("4.0.5", {}), ("4.1.0", {SOCKETS: "true"})):
        monkeypatch.setattr(logstore.spark.pyspark, "__version__", version)
        assert session_defaults(Builder())._options == expected


def test_session_keeps_the_settings_of_the_user(no_machine: None) -> None:
    """Jars and the sockets are kept."""
    given = {"spark.jars": "/a.jar,/b.jar", SOCKETS: "false"}
    assert session_defaults(Builder(**given))._options == given


@pytest.mark.parametrize("reason", ["", "none was built"])
@pytest.mark.parametrize(
    ("master", "named", "changed"),
    [
        ("local[2]", "", True),
        ("local[2]", sys.executable, True),
        ("local[2]", "python3.12", False),
        ("yarn", "", False),
    ],
)
def test_registering_sets_the_python_of_local_workers(
    master: str,
    named: str,
    changed: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    checked_early: None,
) -> None:
    """The environment overrides it, and it is never set for other hosts. Without the
    reader in Java its name is registered, too."""
    monkeypatch.setenv("PYSPARK_PYTHON", named)
    monkeypatch.setattr(logstore.spark, "add_reader", lambda session: reason)
    session = Session(master)
    register(session)
    missing = [MissingReader] if reason else []
    assert session.registered == [DefaultSource, *missing]
    python = sys.executable if changed else "python3"
    assert session._sc.pythonExec == python
    assert session.properties == {
        "logstore.python": sys.executable,
        "logstore.worker.python": python,
    }


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("finds", [False, True])
def test_session_of_a_running_machine_is_told_what_it_cannot_inherit(
    running: bool, finds: bool, monkeypatch: pytest.MonkeyPatch, no_machine: None
) -> None:
    """The reader in Java is given in any case; the formats, if Spark has not found
    them."""
    added: list[Any] = []
    monkeypatch.setattr(logstore.spark, "add_reader", lambda s: added.append(s) or "")
    builder = session_defaults(Builder())
    monkeypatch.setattr(logstore.spark, "_is_running", lambda: running)
    builder.session = Session(finds=finds)
    assert builder.getOrCreate() is builder.session
    assert added == [builder.session]
    registers = running and not finds
    assert builder.session.registered == ([DefaultSource] if registers else [])
    assert builder.session._sc.pythonExec == sys.executable


def test_session_of_spark_connect_is_not_changed(no_machine: None) -> None:
    """Its server is another process, perhaps on another host."""
    builder = session_defaults(Builder())
    assert builder.getOrCreate() is builder.session
