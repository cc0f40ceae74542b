"""ls_api.h, its stub, its tests and the compiler's warnings about its C files."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from logstore._native._ls import ffi, lib

TESTS = pathlib.Path(__file__).resolve().parent
SOURCES = TESTS.parents[2] / "src" / "logstore" / "_native"
# A sanitizer that was loaded into this process must not be loaded into the compiler.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
NAMES = [name for name in dir(lib) if not name.startswith("_")]
API_HEADERS = ("ls_api.h", "ls_compact_api.h", "ls_group_api.h")
STRICT = (
    "-std=c11 -O3 -fPIC -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Werror"
)


def test_every_name_of_the_api_has_a_test():
    """A test of this directory names each function, status, stop and check."""
    text = "".join(p.read_text(encoding="utf-8") for p in TESTS.glob("*.py"))
    kinds = ("LS_E_", "LS_STOP_", "LS_CHECK_", "LS_CRC_", "LS_OFFSET_", "ls_")
    used = set(re.findall(r"\blib\.(\w+)", text))
    assert [n for n in NAMES if n.startswith(kinds) and n not in used] == []


def test_every_name_of_the_api_is_in_the_stub():
    """The stub has no other names."""
    stub = (SOURCES / "_ls.pyi").read_text(encoding="utf-8")
    declared = re.findall(r"^    (?:def )?(\w+)(?:\(|:)", stub, re.MULTILINE)
    assert sorted(declared) == sorted(NAMES)


def test_structs_have_no_hidden_padding():
    """Each struct is the sum of its fields: its bytes can be compared and copied."""
    headers = (SOURCES / name for name in API_HEADERS)
    text = "".join(header.read_text(encoding="utf-8") for header in headers)
    structs = re.findall(r"^\} (\w+);", text, re.MULTILINE)
    assert len(structs) >= 9
    for name in structs:
        fields = ffi.typeof(name).fields
        assert ffi.sizeof(name) == sum(ffi.sizeof(f.type) for _, f in fields), name


@pytest.mark.parametrize("source", sorted(p.name for p in SOURCES.glob("ls_*.c")))
def test_c_file_compiles_without_warnings(source, tmp_path):
    """Each file is compiled alone, with all warnings as errors: the build itself also
    compiles cffi's file."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc")
    command = [gcc, *STRICT.split(), "-c", str(SOURCES / source), "-o", "ls.o"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


ONE_INTERPRETER = """
import importlib, sys
import logstore._native._locks as locks, logstore._native._records as records
kept = locks.Mutex, records.PreparedAppend
for module in (locks, records):
    assert importlib.reload(module) is module
assert (locks.Mutex, records.PreparedAppend) == kept
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
for name in ("_locks", "_records"):
    other = interpreters.create()
    code = f"import sys; sys.path[:] = {sys.path}; import logstore._native.{name}"
    try:
        found = interpreters.run_string(other, code)
    except Exception as error:
        found = error
    assert "one interpreter of a process" in str(found), found
    interpreters.destroy(other)
import logstore, tempfile
with tempfile.TemporaryDirectory() as folder, logstore.open(folder) as store:
    store.create_topic("t").append(b"x")
    print([record.value for record in store["t"][0].read()])
"""


def test_modules_are_for_one_interpreter() -> None:
    """They keep their types in static variables. A second interpreter gets an error,
    and the first one continues; it may load them again."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_INTERPRETER], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[b'x']\n", "", 0)
