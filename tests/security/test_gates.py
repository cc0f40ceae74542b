"""Forbidden constructs, searched in the source itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "logstore"
CONNECTOR = ROOT / "connectors" / "spark" / "pyspark_logstore"
MODULES = sorted([*PACKAGE.rglob("*.py"), *CONNECTOR.rglob("*.py")])

# Modules that make code or objects out of data, or reach outside the process.
FORBIDDEN_MODULES = {
    "asyncio": "network",
    "cloudpickle": "objects from data",
    "code": "code from data",
    "codeop": "code from data",
    "ctypes": "pointers from data",
    "dill": "objects from data",
    "ftplib": "network",
    "http": "network",
    "imp": "code by name",
    "jsonpickle": "objects from data",
    "marshal": "objects from data",
    "multiprocessing": "other processes, pickles",
    "pickle": "objects from data",
    "pickletools": "objects from data",
    "popen2": "a shell",
    "pty": "a shell",
    "requests": "network",
    "runpy": "code by name",
    "select": "network",
    "selectors": "network",
    "shelve": "objects from data",
    "smtplib": "network",
    "socket": "network",
    "socketserver": "network",
    "ssl": "network",
    "subprocess": "a shell",
    "telnetlib": "network",
    "urllib": "network",
    "xmlrpc": "network",
    "yaml": "objects from data",
    "zipimport": "code by name",
    "tarfile": "archives",
    "zipfile": "archives",
}
# The parts in use open no connection: event loops, waiting for several descriptors at
# the one seam, and the escapes of names. The Java compiler runs when logstore is
# installed, or when a user calls the command for it, and gets only the sources of the
# package.
_BUILD_JAR = "connectors/spark/pyspark_logstore/jvm/build_jar.py"
ALLOWED_MODULES = {
    "asyncio": "src/logstore/aio/",
    "select": "src/logstore/io/files.py",
    "subprocess": _BUILD_JAR,
    "zipfile": _BUILD_JAR,
    "urllib.parse": "src/logstore/io/layout.py",
}
# Import by name: their arguments must be constants. The functions of logstore hand them
# on.
IMPORTERS = {
    "import_module", "load_module", "_pyarrow", "frames_module", "import_package",
    "LazyPackage",
}  # fmt: skip
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_ATTRIBUTES = {
    "os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.execl",
    "os.spawnv", "os.spawnl", "os.posix_spawn", "os.fork", "os.forkpty",
}  # fmt: skip
# Files that make the package and are not part of it once it is installed.
BUILD_ONLY = {"src/logstore/_native/build_ffi.py"}


def is_of_own_package(name: ast.expr) -> bool:
    """Whether a name can only be that of a module inside the package: it begins with
    ``{__name__}.`` or ``{__package__}.``."""
    if not isinstance(name, ast.JoinedStr) or len(name.values) < 2:
        return False
    package, rest = name.values[:2]
    return (
        isinstance(package, ast.FormattedValue)
        and ast.unparse(package.value) in ("__name__", "__package__")
        and isinstance(rest, ast.Constant)
        and str(rest.value).startswith(".")
    )


def faults(tree: ast.AST, where: str) -> Iterator[str]:
    """Forbidden constructs of the module at a path, one sentence each."""
    handed_on = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in IMPORTERS
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            why = FORBIDDEN_MODULES.get(name.split(".")[0])
            allowed = ALLOWED_MODULES.get(name)
            if why is not None and not (allowed and where.startswith(allowed)):
                yield f"line {line}: imports {name} ({why})"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            by_name = called.rpartition(".")[2] in IMPORTERS
            constant = all(
                isinstance(a, ast.Constant) or is_of_own_package(a) for a in node.args
            )
            if by_name and not constant and id(node) not in handed_on:
                yield f"line {line}: imports what data names"
            if called in FORBIDDEN_CALLS or called in FORBIDDEN_ATTRIBUTES:
                yield f"line {line}: calls {called}"
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" or (
                    keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
                ):
                    yield f"line {line}: passes {keyword.arg}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_module_makes_nothing_of_data_but_data(path: Path) -> None:
    """No pickle, marshal, eval, shell, subprocess, ctypes, network, archive."""
    if path.relative_to(ROOT).as_posix() in BUILD_ONLY:
        pytest.skip("builds the package, is not installed with it as code that runs")
    where = path.relative_to(ROOT).as_posix()
    assert list(faults(ast.parse(path.read_bytes()), where)) == []


BAD = {
    "pickle": "import pickle",
    "pickle-from": "from pickle import loads",
    "submodule": "import urllib.request",
    "yaml": "import yaml",
    "inside": "def f():\n    import ctypes",
    "eval": "eval('1')",
    "exec": "exec(data)",
    "system": "import os\nos.system('x')",
    "import": "__import__(name)",
    "import-module": "importlib.import_module(name)",
    "import-formatted": "importlib.import_module(f'{name}.x')",
    "import-beside": "importlib.import_module(f'{__name__}{name}')",
    "import-handed-on": "def _pyarrow(n):\n    import_module(n)\n_pyarrow(data)",
    "shell": "run(x, shell=True)",
    "numpy": "load(x, allow_pickle=True)",
}


@pytest.mark.parametrize("source", BAD.values(), ids=BAD)
def test_gate_finds_what_is_forbidden(source: str) -> None:
    """A gate that never closes would be useless."""
    assert list(faults(ast.parse(source), ""))


def test_gate_lets_harmless_code_through() -> None:
    """A method of that name, an attribute, a relative import."""
    source = "import json, re\nre.compile('x')\nself.exec()\nfrom . import compiled\n"
    source += "import_module('pyarrow')\nimport_module(f'{__name__}.{x}')\n"
    source += "import_module(f'{__package__}.{x}')\n"
    assert list(faults(ast.parse(source), "")) == []


# ---------------------------------------------------------------------- the C core

C_FILES = sorted((PACKAGE / "_native").glob("*.[ch]"))
# Bounds are carried with every pointer, so nothing that measures by a final zero.
C_FORBIDDEN = re.compile(
    r"\b(alloca|gets|strcpy|strcat|sprintf|vsprintf|strlen|strtok|scanf|sscanf|system|"
    r"popen|exec[lv]p?e?|dlopen|socket|connect|bind|listen|accept|getenv|"
    r"setjmp|longjmp|assert)\s*\("
)


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", " ", text, flags=re.DOTALL)


@pytest.mark.parametrize("path", C_FILES, ids=lambda p: p.name)
def test_c_file_calls_nothing_without_bounds(path: Path) -> None:
    """No stack of unknown size, no text functions, no shell, no network, and no
    `assert`, which a release build would drop."""
    found = C_FORBIDDEN.findall(without_comments(path.read_text("utf-8")))
    assert [name for name in found if name != "assert"] == []
    if "assert" in found:
        pytest.fail(f"{path.name} uses assert(); use a status")


def test_c_gate_finds_what_is_forbidden() -> None:
    """Comments and `_Static_assert` are left alone."""
    assert C_FORBIDDEN.search(without_comments("x = alloca(n);"))
    assert C_FORBIDDEN.search(without_comments("assert (x);"))
    assert not C_FORBIDDEN.search(
        without_comments("/* alloca(n) */ _Static_assert(1);")
    )


# ------------------------------------------------------------------- dependencies


def test_each_runtime_dependency_is_explained() -> None:
    """SECURITY.md lists the dependencies of an installation, and why."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block
    names = re.findall(r'"([A-Za-z0-9_-]+)', block[1])
    assert names
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(names)
