"""The build of the C core: no warning, no finding of the analyzer, and the properties
of a hardened build, checked in the file itself."""

from __future__ import annotations

import os
import platform
import runpy
import shutil
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from logstore._native import _ls, _records

NATIVE = Path(__file__).parents[2] / "src" / "logstore" / "_native"
C_FILES = sorted(p.name for p in NATIVE.glob("ls_*.c"))
PYTHON_FILES = sorted(p.name for p in NATIVE.glob("py*.c"))
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
STRICT = (
    "-std=c11 -O3 -fPIC -Wall -Wextra -Wconversion -Wsign-conversion -Wvla -Walloca "
    "-Wformat=2 -Wshadow -Wstrict-prototypes -Werror"
)
PLAIN = (
    "-std=c11 -O0 -fPIC -Wall -Wextra -Wvla -Wno-unused-parameter "
    "-Wno-missing-field-initializers -Werror"
)
# The address sanitizer replaces the hardened functions by its own ones.
plain_build = pytest.mark.skipif(
    "/build/" in _ls.__file__, reason="a sanitizer or coverage build"
)


def compile_file(name: str, flags: str, tmp_path: Path) -> str:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc")
    done = subprocess.run(
        [gcc, *flags.split(), "-c", str(NATIVE / name), "-o", str(tmp_path / "x.o")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("name", C_FILES)
def test_c_file_has_no_warning(name: str, tmp_path: Path) -> None:
    """Lossy conversions, variable-length arrays and alloca are errors."""
    assert compile_file(name, STRICT, tmp_path) == ""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [*C_FILES, "pyrecords.c"])
def test_analyzer_finds_nothing(name: str, tmp_path: Path) -> None:
    """gcc -fanalyzer finds no leak, no uninitialised read and no out-of-bounds
    write."""
    flags = "-std=c11 -O2 -fPIC -fanalyzer -Werror"
    if name == "pyrecords.c":
        flags += f" -DPy_LIMITED_API=0x030A0000 -I{sysconfig.get_path('include')}"
    assert compile_file(name, flags, tmp_path) == ""


@pytest.mark.parametrize("name", PYTHON_FILES)
def test_module_compiles_for_a_free_threaded_interpreter(
    name: str, tmp_path: Path
) -> None:
    """A free-threaded interpreter has other headers, and no stable ABI before 3.15:
    nothing is used that only one of the two has."""
    flags = f"{PLAIN} -DPy_GIL_DISABLED=1 -I{sysconfig.get_path('include')}"
    assert compile_file(name, flags, tmp_path) == ""


@pytest.mark.parametrize("disabled", [None, 0, 1])
def test_stable_abi_is_asked_for_where_there_is_one(
    disabled: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free-threaded interpreter refuses to compile with it."""
    known = sysconfig.get_config_var

    def config_var(name: str) -> object:
        return disabled if name == "Py_GIL_DISABLED" else known(name)

    monkeypatch.setattr(sysconfig, "get_config_var", config_var)
    build = runpy.run_path(str(NATIVE / "build_ffi.py"))
    extensions = build["python_extensions"]()
    assert len(extensions) == 2
    for extension in extensions:
        assert extension.py_limited_api == (not disabled)
        names = {name for name, _ in extension.define_macros}
        assert ("Py_LIMITED_API" in names) == (not disabled)


def test_strict_compilation_notices_a_conversion(tmp_path: Path) -> None:
    """An array of variable length is noticed too."""
    for number, text in enumerate(
        (
            "int f(long x); int f(long x) { return x; }",
            "int f(int n); int f(int n) { char a[n]; return (int)sizeof a; }",
        )
    ):
        bad = tmp_path / f"bad{number}.c"
        bad.write_text(text)
        assert compile_file(str(bad), STRICT, tmp_path)


# ------------------------------------------------------------------------- ELF

PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO, PT_NOTE = 2, 0x6474E551, 0x6474E552, 4
DT_STRTAB = 5
DT_FLAGS, DT_FLAGS_1, DT_BIND_NOW, DT_RPATH, DT_RUNPATH, DT_TEXTREL = (
    30, 0x6FFFFFFB, 24, 15, 29, 22,
)  # fmt: skip
DF_BIND_NOW, DF_TEXTREL, DF_1_NOW = 8, 4, 1


class Elf:
    """The parts of a 64-bit little-endian ELF file that the tests check."""

    def __init__(self, path: str) -> None:
        self.data = Path(path).read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF"
        (begin,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        self.segments = []
        for at in range(begin, begin + size * count, size):
            kind, flags, offset = struct.unpack_from("<IIQ", self.data, at)
            (length,) = struct.unpack_from("<Q", self.data, at + 32)
            self.segments.append((kind, flags, offset, length))

    def dynamic(self) -> dict[int, int]:
        for kind, _, offset, length in self.segments:
            if kind == PT_DYNAMIC:
                raw = self.data[offset : offset + length]
                return dict(struct.iter_unpack("<QQ", raw))
        return {}

    def text(self, tag: int) -> str:
        """A string that the dynamic section names ("" if it is absent)."""
        dynamic = self.dynamic()
        if tag not in dynamic:
            return ""
        begin = dynamic[DT_STRTAB] + dynamic[tag]
        return self.data[begin : self.data.index(b"\0", begin)].decode()


@pytest.fixture(params=[_ls, _records], ids=["_ls", "_records"])
def elf(request: pytest.FixtureRequest) -> Elf:
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        pytest.skip("not a 64-bit little-endian Linux")
    return Elf(request.param.__file__)


def test_stack_is_not_executable(elf: Elf) -> None:
    """PT_GNU_STACK without the execute bit; no segment is writable and executable."""
    flags = {kind: flags for kind, flags, _, _ in elf.segments}
    assert flags[PT_GNU_STACK] & 1 == 0
    assert not [s for s in elf.segments if s[1] & 3 == 3]


@plain_build
def test_relocations_are_read_only_and_done_at_once(elf: Elf) -> None:
    """Full RELRO, no text relocations, no private search path."""
    assert PT_GNU_RELRO in {kind for kind, _, _, _ in elf.segments}
    dynamic = elf.dynamic()
    assert (
        DT_BIND_NOW in dynamic
        or dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW
        or dynamic.get(DT_FLAGS_1, 0) & DF_1_NOW
    )
    assert DT_TEXTREL not in dynamic
    assert not dynamic.get(DT_FLAGS, 0) & DF_TEXTREL
    # Some interpreters pass their own library directory on; nothing else may be there.
    own = sysconfig.get_config_var("LIBDIR")
    assert {elf.text(DT_RPATH), elf.text(DT_RUNPATH)} <= {"", own}


@plain_build
def test_control_flow_is_protected(elf: Elf) -> None:
    """If the processor supports it, functions begin with an ENDBR64. (Whether the file
    is marked so also depends on the start files of the system.)"""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("-fcf-protection is for x86")
    assert elf.data.count(b"\xf3\x0f\x1e\xfa") > 3


@plain_build
def test_stack_is_protected(elf: Elf) -> None:
    """Code compiled with -fstack-protector-strong calls this function on an overflow;
    _records has no array on its stack."""
    if elf.data == Path(_ls.__file__).read_bytes():
        assert b"__stack_chk_fail" in elf.data


@plain_build
def test_release_flags_are_those_that_are_promised() -> None:
    """Flags that leave no trace in the file unless they took effect: checked
    directly."""
    import runpy

    build = runpy.run_path(str(NATIVE / "build_ffi.py"), run_name="build_ffi")
    flags = build["compile_args"]()
    assert "-D_FORTIFY_SOURCE=3" in flags
    assert "-fstack-protector-strong" in flags
    assert "-Wvla" in flags
    assert any(flag.startswith("-O") and flag != "-O0" for flag in flags)
    if sys.platform == "linux":
        assert "-Wl,-z,relro,-z,now,-z,noexecstack" in build["link_args"]()
