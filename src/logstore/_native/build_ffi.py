"""Builds the C core as ``logstore._native._ls`` (cffi, API mode, stable ABI).

setup.py names ``ffibuilder`` and runs from the root of the repository. By hand, from
there: ``python src/logstore/_native/build_ffi.py`` puts the module next to this file.

LOGSTORE_SANITIZE=1 builds with the address and undefined behaviour sanitizers,
LOGSTORE_SANITIZE=thread with the thread sanitizer, LOGSTORE_COVERAGE=1 for gcov.
"""

import os
import platform
import sys
import sysconfig
import tempfile

from cffi import FFI
from setuptools import Extension, setup

SOURCE_DIR = os.path.relpath(os.path.dirname(os.path.abspath(__file__)))

SOURCES = [
    "ls_append.c",
    "ls_area.c",
    "ls_batch.c",
    "ls_columns.c",
    "ls_compact.c",
    "ls_crc.c",
    "ls_crc_arm.c",
    "ls_crc_portable.c",
    "ls_crc_x86.c",
    "ls_frame.c",
    "ls_group.c",
    "ls_index.c",
    "ls_key.c",
    "ls_message.c",
    "ls_offset_map.c",
    "ls_producer.c",
    "ls_scan.c",
    "ls_sys.c",
    "ls_sys_sync.c",
    "ls_varint.c",
]

HEADERS = [
    "ls_api.h",
    "ls_bytes.h",
    "ls_compact_api.h",
    "ls_group_api.h",
    "ls_crc_fold.h",
    "ls_crc_tables.h",
    "ls_format.h",
    "ls_gil.h",
    "ls_internal.h",
    "ls_varint.h",
]

# The modules that need CPython's own API: objects of decoded columns, and the locks of
# the engine.
PYTHON_MODULES = {
    "_records": [
        "pyrecords.c",
        "pyrecords_append.c",
        "pyrecords_core.c",
        "pyrecords_encode.c",
        "pyrecords_find.c",
        "pyrecords_iterators.c",
        "pyrecords_look.c",
        "pyrecords_record.c",
        "pyrecords_arrow.c",
        "pyrecords_parts.c",
        "pyrecords_rows.c",
        "pyrecords_write.c",
        "pyrecords_sync.c",
        "pyrecords_system.c",
    ],
    "_locks": [
        "pylocks.c",
        "pylocks_calls.c",
        "pylocks_file.c",
        "pylocks_thread.c",
        "pylocks_turns.c",
    ],
}
PYTHON_HEADERS = [
    "ls_api.h",
    "ls_bytes.h",
    "ls_format.h",
    "pylocks_api.h",
    "pylocks_thread.h",
    "pyrecords.h",
    "pyrecords_append.h",
]

_SANITIZERS = {"1": "address,undefined", "thread": "thread"}


def compile_args() -> list[str]:
    """Flags for our files and cffi's; ls_internal.h has the ones for our files only."""
    args = ["-std=c11", "-Wall", "-Wextra", "-Wvla", "-fvisibility=hidden"]
    # cffi's glue has functions that do not use `self`.
    args += ["-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    sanitizers = _SANITIZERS.get(os.environ.get("LOGSTORE_SANITIZE", ""))
    if sanitizers:
        args += ["-O1", "-g", "-UNDEBUG", "-fno-wrapv", "-fno-omit-frame-pointer"]
        args += ["-U_FORTIFY_SOURCE"]  # hides from the sanitizer what it catches
        args += [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=undefined"]
    elif os.environ.get("LOGSTORE_COVERAGE") == "1":
        args += ["-O0", "-g", "--coverage", "-U_FORTIFY_SOURCE"]
    else:
        args += ["-O3", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
    # The wheel must not contain the build directory: builds in two directories would
    # make two different wheels.
    args += [f"-ffile-prefix-map={os.getcwd()}=."]
    args += ["-fstack-protector-strong"]
    if platform.machine() in ("x86_64", "AMD64"):
        args += ["-fcf-protection"]
    return args


def link_args() -> list[str]:
    args = []
    if sys.platform == "linux":
        args += ["-Wl,-z,relro,-z,now,-z,noexecstack"]
    sanitizers = _SANITIZERS.get(os.environ.get("LOGSTORE_SANITIZE", ""))
    if sanitizers:
        args += [f"-fsanitize={sanitizers}"]
    elif os.environ.get("LOGSTORE_COVERAGE") == "1":
        args += ["--coverage"]
    return args


def declarations() -> str:
    texts = []
    for name in ("ls_api.h", "ls_compact_api.h", "ls_group_api.h"):
        with open(os.path.join(SOURCE_DIR, name), encoding="utf-8") as file:
            texts.append(file.read())
    return "".join(texts)


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "logstore._native._ls",
    "#include <stdint.h>\n"
    '#include "ls_api.h"\n#include "ls_compact_api.h"\n#include "ls_group_api.h"\n'
    '#include "ls_gil.h"\n',
    sources=[os.path.join(SOURCE_DIR, name) for name in SOURCES],
    depends=[os.path.join(SOURCE_DIR, name) for name in HEADERS],
    include_dirs=[SOURCE_DIR],
    extra_compile_args=compile_args(),
    extra_link_args=link_args(),
)


def python_extensions() -> list[Extension]:
    # A free-threaded interpreter has no stable ABI, or from 3.15 on another one.
    has_stable_abi = not sysconfig.get_config_var("Py_GIL_DISABLED")
    macros: list[tuple[str, str | None]] = []
    if has_stable_abi:
        macros = [("Py_LIMITED_API", "0x030A0000")]
    return [
        Extension(
            f"logstore._native.{name}",
            [os.path.join(SOURCE_DIR, source) for source in sources],
            depends=[os.path.join(SOURCE_DIR, header) for header in PYTHON_HEADERS],
            define_macros=macros,
            py_limited_api=has_stable_abi,
            extra_compile_args=compile_args(),
            extra_link_args=link_args(),
        )
        for name, sources in PYTHON_MODULES.items()
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temp:
        setup(
            cffi_modules=[f"{os.path.relpath(__file__)}:ffibuilder"],
            ext_modules=python_extensions(),
            script_args=["--quiet", "build_ext", "--inplace", "--build-temp", temp],
        )
