"""The public names: few at the root, the others in modules, and how they moved."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

import logstore
import logstore.aio

MODULES = [logstore.errors, logstore.types, logstore.kafka, logstore.metrics]
# What filters, queues and the bucket bring.
RESERVED = {
    *("Queue", "Delivery", "delete_queue", "where", "export_table", "schemas"),
    *("Standby", "restore", "promote", "sweep", "send", "receive"),
}
MOVED = sorted(logstore._MOVED)
# Calls whose results are for a class of this package, or the connector of Spark.
NOT_FOR_PROGRAMS = {
    ("Partition.byte_ranges", "ByteRanges"),
    ("Partition.place", "Place"),
}


def test_root_is_learned_in_a_day() -> None:
    """At most 60 names with those to come, and nothing beside them."""
    assert len({*logstore.__all__, *RESERVED}) <= 60
    shown = {name for name in dir(logstore) if not name.startswith("__")}
    assert shown == set(logstore.__all__)


def test_no_name_is_at_the_root_that_is_not_public() -> None:
    """Only what Python and this package keep for themselves, in a fresh process."""
    code = """
import logstore, types
for name in logstore.__all__: getattr(logstore, name)
print(sorted(
    name for name, value in vars(logstore).items()
    if name[0] != "_" and name not in logstore.__all__
    and not isinstance(value, types.ModuleType)
))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_star_import_gives_the_public_names() -> None:
    """Without a warning."""
    code = "from logstore import *; print(len([n for n in dir() if n[0] != '_']))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(logstore.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_has_what_it_promises(module: ModuleType) -> None:
    """Each name, explained, once in all modules."""
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
    others = [one for one in MODULES if one is not module]
    for other in (*others, logstore):
        for name in set(module.__all__) & set(other.__all__):
            assert logstore in (module, other), (module, other, name)
            assert getattr(module, name) is not getattr(other, name) or (
                module is logstore.errors
            ), name


def returned(kind: type) -> Iterator[tuple[str, str, ModuleType]]:
    """The results of public members of a class: (member, annotation, module)."""
    for name in dir(kind):
        if name.startswith("_") and not name.endswith("__"):
            continue
        member = inspect.getattr_static(kind, name)
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if not inspect.isfunction(function):
            continue
        if function.__module__.split(".")[0] == "logstore":
            annotation = str(function.__annotations__.get("return", ""))
            yield name, annotation, sys.modules[function.__module__]
    if dataclasses.is_dataclass(kind) or issubclass(kind, tuple):
        for base in kind.__mro__:
            for name, annotation in vars(base).get("__annotations__", {}).items():
                if not name.startswith("_"):
                    yield name, str(annotation), sys.modules[base.__module__]


def test_what_public_calls_return_is_public() -> None:
    """A program can name it in an annotation, and its reference is found."""
    modules = [logstore, logstore.aio, *MODULES]
    public = [getattr(module, name) for module in modules for name in module.__all__]
    kinds = [one for one in public if inspect.isclass(one)]
    calls = {(kind.__name__, *one) for kind in kinds for one in returned(kind)}
    calls |= {
        ("", one.__name__, str(one.__annotations__.get("return", "")), module)
        for one in public
        if inspect.isfunction(one)
        for module in [sys.modules[one.__module__]]
    }
    assert len(calls) > 500
    found = set()
    for kind, call, annotation, module in calls:
        for name in re.findall(r"[A-Za-z_]\w*", annotation):
            value = vars(module).get(name)
            if not inspect.isclass(value) or value in kinds:
                continue
            if value.__module__.split(".")[0] == "logstore":
                found.add((f"{kind}.{call}", name))
    assert found == NOT_FOR_PROGRAMS


@pytest.mark.parametrize("name", MOVED)
def test_moved_name_is_given_with_a_warning(name: str) -> None:
    """It says where the name is now, at the line that used it."""
    home, inner = logstore._MOVED[name]
    place = f"logstore.{home}.{inner}"
    with pytest.warns(DeprecationWarning, match=f"logstore.{name} is {place} now") as w:
        value = getattr(logstore, name)
    assert value is getattr(getattr(logstore, home), inner)
    assert [one.filename for one in w] == [__file__]
    assert name not in logstore.__all__
    assert name not in dir(logstore)
    # Again at the next use, wherever that is.
    with pytest.warns(DeprecationWarning, match=place):
        getattr(logstore, name)


@pytest.mark.parametrize("name", MOVED)
def test_import_of_a_moved_name_warns_once(name: str) -> None:
    """At its line, whatever the filters are. Python itself asks for it before."""
    code = compile(f"\nfrom logstore import {name} as value", "program.py", "exec")
    found: dict[str, object] = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        exec(code, found)
    home, inner = logstore._MOVED[name]
    assert found["value"] is getattr(getattr(logstore, home), inner)
    assert [(one.filename, one.lineno) for one in seen] == [("program.py", 2)]
    assert seen[0].category is DeprecationWarning
    assert f"logstore.{name} is logstore.{home}.{inner} now" in str(seen[0].message)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("logstore.maintenance.verify.report", "Problem", logstore.types.VerifyProblem),
        ("logstore.maintenance.verify.report", "Note", logstore.types.VerifyNote),
        ("logstore.log.retention", "Deletion", logstore.types.SegmentDeletion),
        ("logstore.group.overview", "Group", logstore.types.ConsumerGroup),
        ("logstore.group.overview", "Groups", logstore.types.ConsumerGroups),
    ],
)
def test_pickles_of_renamed_classes_are_read(module: str, old: str, new: type) -> None:
    """They name the class as 0.1 did."""
    assert pickle.loads(f"c{module}\n{old}\n.".encode()) is new
