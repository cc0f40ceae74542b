"""ls_api.h, its stub, its tests and the compiler's opinion of its C files."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from logstore._native._ls import ffi, lib

TESTS = pathlib.Path(__file__).resolve().parent
SOURCES = TESTS.parents[2] / "src" / "logstore" / "_native"
# A sanitizer that was loaded into this process is none of the compiler's business.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
NAMES = [name for name in dir(lib) if not name.startswith("_")]
API_HEADERS = ("ls_api.h", "ls_compact_api.h", "ls_group_api.h")
STRICT = (
    "-std=c11 -O3 -fPIC -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Werror"
)


def test_every_name_of_the_api_has_a_test():
    """Each function, status, stop and check is named by a test of this directory."""
    text = "".join(p.read_text(encoding="utf-8") for p in TESTS.glob("*.py"))
    kinds = ("LS_E_", "LS_STOP_", "LS_CHECK_", "LS_CRC_", "LS_OFFSET_", "ls_")
    used = set(re.findall(r"\blib\.(\w+)", text))
    assert [n for n in NAMES if n.startswith(kinds) and n not in used] == []


def test_every_name_of_the_api_is_in_the_stub():
    """And nothing else is."""
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
    """Alone, with all warnings as errors: the build itself compiles cffi's file too."""
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
