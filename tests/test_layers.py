"""Permitted imports, and permitted access to files: the rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import runpy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import logstore

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "logstore"
MAKE_LAYERS = runpy.run_path(str(ROOT / "docs" / "make_layers.py"))

LAYER: dict[str, int] = {
    name: number for number, names in enumerate(MAKE_LAYERS["LAYERS"]) for name in names
}
INSIDE: dict[str, dict[str, int]] = {
    room: {name: number for number, names in enumerate(layers) for name in names}
    for room, layers in MAKE_LAYERS["INSIDE"].items()
}

ROOMS_MAX = 18
# Public modules that only re-export names of rooms are doors, and so are their loaders.
DOORS = {"kafka", "lazy", "types"}
LINES_MAX = 650
# Files below these directories have one subject, which fits into this number of lines.
WITH_SHORT_FILES = ("src", "connectors", "tests", "bench", "docs", "examples")
C_MODULES = {"_native._ls", "_native._locks", "_native._records"}
PUBLIC_NAMES_ONLY = {"cli", "spark"}

# Modules that may open files themselves: the seam, and modules that also handle files
# outside of a store (the output of an export, a report). `_native` has the build
# script.
FILE_USERS = (
    "_native",
    "io.byte_locks",
    "io.files",
    "io.links",
    "cli",
    "maintenance.report",
)
# Functions of `os` that other modules may use: none of them accesses a file.
OS_PURE = {
    "PathLike",
    "cpu_count",
    "environ",
    "fsdecode",
    "fsencode",
    "fspath",
    "getpid",
    "register_at_fork",
    "sched_getaffinity",
    "sep",
    "strerror",
    "urandom",
}
OS_PATH_PURE = {
    "abspath",
    "basename",
    "commonpath",
    "dirname",
    "isabs",
    "join",
    "normpath",
    "relpath",
    "split",
    "splitext",
}
FILE_MODULES = {"fcntl", "glob", "mmap", "shutil", "tempfile"}
PATH_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "iterdir"}


@dataclass(frozen=True, slots=True)
class Import:
    """Import of a logstore module: `target` is "" for the package itself."""

    target: str
    names: tuple[str, ...]
    line: int
    in_function: bool


@dataclass(frozen=True)
class Module:
    """A module of the package; `room` is the name that has a layer."""

    path: str
    dotted: tuple[str, ...]  # without "logstore", without "__init__"
    is_package: bool
    source: str | bytes

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def name(self) -> str:
        return ".".join(self.dotted)

    @property
    def room(self) -> str:
        return self.dotted[0] if self.dotted else ""


def load(package: Path = PACKAGE) -> list[Module]:
    modules = []
    for path in sorted(package.rglob("*.py")):
        dotted = path.relative_to(package).with_suffix("").parts
        is_package = dotted[-1] == "__init__"
        name = path.relative_to(package).as_posix()
        dotted = dotted[:-1] if is_package else dotted
        modules.append(Module(name, dotted, is_package, path.read_bytes()))
    return modules


# Without the package's own __init__, which gathers the public names of all layers.
MODULES = [module for module in load() if module.dotted]
NAMES = {module.name for module in MODULES}
ROOMS = {module.room for module in MODULES}


def nodes(tree: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below `tree`, each with whether it is inside a function."""
    for child in ast.iter_child_nodes(tree):
        yield child, in_function
        inside = in_function or isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef
        )
        yield from nodes(child, inside)


def imports(module: Module, names: set[str] = NAMES) -> Iterator[Import]:
    """The imports of logstore's own modules, absolute or relative."""
    for node, inside in nodes(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == "logstore":
                    yield Import(".".join(rest), (), node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                here = ("logstore", *module.dotted)
                up = node.level - (1 if module.is_package else 0)
                base = here[: len(here) - up]
                dotted = (*base, *(node.module.split(".") if node.module else ()))
            else:
                dotted = tuple((node.module or "").split("."))
            if dotted[0] != "logstore":
                continue
            for alias in node.names:  # from logstore.log import scan
                inner = ".".join((*dotted[1:], alias.name))
                if inner in names or inner in C_MODULES:
                    yield Import(inner, (), node.lineno, inside)
                else:
                    target = ".".join(dotted[1:])
                    yield Import(target, (alias.name,), node.lineno, inside)


def order_faults(
    where: str, here: Sequence[str], target: Sequence[str]
) -> Iterator[str]:
    """Faults of an import inside of a room: in the first package in which the paths
    part."""
    depth = 0
    while depth < min(len(here), len(target)) and here[depth] == target[depth]:
        depth += 1
    order = INSIDE.get(".".join(here[:depth]), {})
    own = here[depth] if depth < len(here) else ""
    inner = target[depth] if depth < len(target) else ""
    if own != inner and order.get(inner, -1) >= order.get(own, len(order)):
        yield f"{where}: {own} imports {inner}, which is not below it"


def import_faults(module: Module, names: set[str] = NAMES) -> list[str]:
    """Faults of the imports of `module`, one sentence each."""
    faults = []
    for found in imports(module, names):
        where = f"{module.path}:{found.line}"
        other = found.target.partition(".")[0]
        if other == module.room:
            faults += order_faults(where, module.dotted, found.target.split("."))
            continue
        if found.in_function:
            faults.append(f"{where}: imports logstore.{other} inside a function")
        if found.target in C_MODULES:
            faults.append(f"{where}: only _native imports the C modules")
        if not other:
            if module.room not in PUBLIC_NAMES_ONLY:
                faults.append(f"{where}: imports the package it is a part of")
        elif module.room in PUBLIC_NAMES_ONLY:
            faults.append(f"{where}: uses logstore.{other}, not public names alone")
        elif other in LAYER and LAYER[other] >= LAYER[module.room]:
            faults.append(
                f"{where}: {module.room} (layer {LAYER[module.room]}) imports {other} "
                f"(layer {LAYER[other]}), which is not below it"
            )
    return faults


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(edges.get(name, ())):
                walk(other, [*path, name])
            done.add(name)

    for name in sorted(edges):
        walk(name, [])
    return found


def file_faults(module: Module) -> list[str]:
    """Uses of files by `module` without `io.files`, one sentence each."""
    faults = []
    for node, _ in nodes(module.tree):
        bad = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "open":
                bad = "open()"
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "os" and node.attr not in {*OS_PURE, "path"}:
                bad = f"os.{node.attr}"
            elif owner == "os.path" and node.attr not in OS_PATH_PURE:
                bad = f"os.path.{node.attr}"
            elif (owner, node.attr) == ("io", "open") or node.attr in PATH_METHODS:
                bad = f"{owner}.{node.attr}"
        elif isinstance(node, ast.Import):
            taken = {alias.name.split(".")[0] for alias in node.names} & FILE_MODULES
            bad = f"import {', '.join(sorted(taken))}" if taken else None
        elif isinstance(node, ast.ImportFrom) and not node.level:
            allowed = {"os": OS_PURE, "os.path": OS_PATH_PURE}.get(node.module or "")
            names = {alias.name for alias in node.names}
            if node.module in FILE_MODULES or (
                allowed is not None and not names <= allowed
            ):
                bad = f"from {node.module} import {', '.join(sorted(names))}"
        if bad:
            faults.append(f"{module.path}:{node.lineno}: {bad} goes around io.files")
    return faults


# ------------------------------------------------------------------ the package itself


def test_every_room_has_a_layer() -> None:
    """A room without a layer is a decision that has not been made."""
    assert LAYER.keys() == ROOMS


def test_the_house_is_small() -> None:
    """There are few rooms, and each layer is used by another one than the next."""
    assert len(set(ROOMS) - DOORS) <= ROOMS_MAX


def test_files_are_short() -> None:
    """Files longer than the limit have a reason in CONTRIBUTING."""
    files = [
        path
        for directory in WITH_SHORT_FILES
        for path in sorted((ROOT / directory).rglob("*.[chp]*"))
        if path.suffix in (".py", ".c", ".h")
    ]
    assert len(files) > 300
    long = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.read_bytes().count(b"\n") > LINES_MAX
    }
    rules = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert long == set(re.findall(r"^  \| `(\S+/\S+)` \|", rules, re.MULTILINE))


@pytest.mark.parametrize("room", INSIDE)
def test_every_module_of_an_ordered_room_has_its_place(room: str) -> None:
    """The rule for rooms applies."""
    above = tuple(room.split("."))
    depth = len(above)
    inside = [m.dotted for m in MODULES if m.dotted[:depth] == above]
    assert {dotted[depth] for dotted in inside if dotted[depth:]} == INSIDE[room].keys()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_module_imports_only_from_lower_layers(module: Module) -> None:
    """Imports go to strictly lower layers, at the top of the file."""
    assert import_faults(module) == []


def test_no_modules_import_each_other() -> None:
    """Circles of any length are refused, even for types alone."""
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        taken = {found.target for found in imports(module)} - {"", module.name}
        edges[module.name] = taken - set(parents(module.name))
    assert circles(edges) == []


def parents(name: str) -> Iterator[str]:
    """The packages that contain a module: their `__init__` may show it."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


@pytest.mark.parametrize("name", ["", "kafka", "types"])
def test_public_names_are_those_of_the_stub(name: str) -> None:
    """A public module finds each name at the place in its stub; the root has moved
    names, too."""
    module = getattr(logstore, name) if name else logstore
    stub = ast.parse((PACKAGE / f"{name or '__init__'}.pyi").read_bytes())
    typed: dict[str, object] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            home = importlib.import_module(node.module or "")
            for one in node.names:
                typed[one.asname or one.name] = getattr(home, one.name)
        elif isinstance(node, ast.Assign):
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            assert isinstance(node.value, ast.Name)
            typed[target.id] = typed[node.value.id]
    typed = {shown: value for shown, value in typed.items() if shown[0] != "_"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        names = [*module.__all__, *getattr(module, "_MOVED", ())]
        assert typed == {shown: getattr(module, shown) for shown in names}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.__getattr__("nothing")


UNIT_TESTS = ROOT / "tests" / "unit"


@pytest.mark.parametrize(
    "test",
    [path.relative_to(UNIT_TESTS) for path in sorted(UNIT_TESTS.rglob("test_*.py"))],
    ids=str,
)
def test_unit_tests_mirror_the_package(test: Path) -> None:
    """A test of `log/scan.py` is `unit/log/test_scan.py` or `test_scan_<what>.py`."""
    if test.parent.name == "_native":
        return  # by subject: C has other files
    subject = test.stem.removeprefix("test_")
    modules = {path.stem for path in (PACKAGE / test.parent).iterdir()}
    assert any(subject == one or subject.startswith(f"{one}_") for one in modules)


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if not module.name.startswith(FILE_USERS)],
    ids=lambda module: module.path,
)
def test_module_touches_files_only_through_the_seam(module: Module) -> None:
    """System calls on a store go through `io.files`, which tests can replace."""
    assert file_faults(module) == []


def test_pictures_of_the_layers_are_those_of_the_table() -> None:
    """docs/design.md has the output of docs/make_layers.py."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert MAKE_LAYERS["page"](text) == text, "run: python docs/make_layers.py"


# ------------------------------------------------------------------- the checks fail

BAD_IMPORTS = {
    "upward": ("segment", "from logstore.store import Store"),
    "upward-submodule": ("segment", "from logstore import store"),
    "upward-relative": ("segment", "from .store import Store"),
    "upward-plain": ("segment", "import logstore.store.store"),
    "upward-typing": (
        "segment",
        "if TYPE_CHECKING:\n    from logstore.store.store import Store",
    ),
    "beside": ("index", "from logstore import config"),
    "native": ("record.record", "from logstore._native import _ls"),
    "inside": ("segment", "def f():\n    from logstore import index"),
    "inside-method": (
        "segment",
        "class A:\n    def f(self):\n        from . import index",
    ),
    "upward-in-the-room": ("log.scan", "from logstore.log.write import writer"),
    "beside-in-the-room": ("log.follow.x", "from logstore.log.write import writer"),
    "whole-package": ("segment", "import logstore"),
    "facade": ("segment", "from logstore import Store"),
    "cli-internals": ("cli", "from logstore.segment import Segment"),
}
GOOD_IMPORTS = {
    "lower": ("segment", "from logstore import index, errors"),
    "lower-relative": ("segment", "from .index import OffsetIndex"),
    "lower-in-the-room": ("log.write.writer", "from logstore.log import scan"),
    "same-part-of-a-room": ("log.write.writer", "from logstore.log.write import x"),
    "native": ("_native.core", "from logstore._native import _ls"),
    "cli-public": ("cli", "import logstore\nfrom logstore import Store"),
    "optional": ("record.arrow", "def f():\n    import pyarrow"),
}
BAD_FILE_USE = {
    "open": "open('x')",
    "os": "import os\nos.pread(3, 1, 0)",
    "os-exists": "import os\nos.path.exists('x')",
    "os-from": "from os import rename",
    "mmap": "import mmap",
    "shutil": "from shutil import rmtree",
    "pathlib": "Path('x').read_bytes()",
}
GOOD_FILE_USE = {
    "pure": "import os\nos.path.join(os.fspath('a'), 'b')",
    "method": "files.open('x')\nself.files.rename('a', 'b')",
    "environ": "from os import environ",
}


def invented(name: str, source: str) -> Module:
    return Module(f"{name}.py", tuple(name.split(".")), False, source)


@pytest.mark.parametrize(("name", "source"), BAD_IMPORTS.values(), ids=BAD_IMPORTS)
def test_bad_import_is_found(name: str, source: str) -> None:
    """Each way around the layers is noticed."""
    assert import_faults(invented(name, source), NAMES | {"store", "index"})


@pytest.mark.parametrize(("name", "source"), GOOD_IMPORTS.values(), ids=GOOD_IMPORTS)
def test_good_import_is_accepted(name: str, source: str) -> None:
    """Permitted imports have no faults."""
    assert import_faults(invented(name, source), NAMES | {"store", "index"}) == []


def test_circle_is_found() -> None:
    """Circles of two modules, and of more."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]
    assert circles({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize("source", BAD_FILE_USE.values(), ids=BAD_FILE_USE)
def test_file_use_beside_the_seam_is_found(source: str) -> None:
    """Each way around `io.files` is noticed."""
    assert file_faults(invented("segment", source))


@pytest.mark.parametrize("source", GOOD_FILE_USE.values(), ids=GOOD_FILE_USE)
def test_use_of_the_seam_is_accepted(source: str) -> None:
    """Pure functions of `os` and the seam's own methods have no faults."""
    assert file_faults(invented("segment", source)) == []
