"""The C core alone, compiled with sanitizers, fed with damaged and random bytes."""

import os
import pathlib
import shutil
import subprocess

import pytest

import logstore._native as package

DRIVER = pathlib.Path(__file__).parent / "fuzz_decode.c"
SOURCES = pathlib.Path(package.__file__).parent
FLAGS = (
    "-std=c11 -O1 -g -Wall -Wextra -Werror -fno-wrapv -fno-omit-frame-pointer "
    "-fsanitize=address,undefined -fno-sanitize-recover=all"
)
SEEDS = range(1, 5)
EXECUTIONS = int(os.environ.get("LOGSTORE_FUZZ_EXECUTIONS", "75000"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The compiled driver; skipped where it cannot be built."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("fuzz")
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    program = folder / "fuzz_decode"
    command = [gcc, *FLAGS.split(), "-I", str(SOURCES), "-o", str(program)]
    if subprocess.run([*command, str(probe)], check=False).returncode != 0:
        pytest.skip("gcc has no sanitizer libraries")
    files = [str(DRIVER), *map(str, sorted(SOURCES.glob("ls_*.c")))]
    built = subprocess.run(
        [*command, *files], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return program


@pytest.mark.parametrize("seed", SEEDS)
def test_fuzz_decoders_find_no_way_outside(driver, seed):
    """Each execution goes through all decoders; sanitizers end it at a mistake."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(
        [driver, str(seed), str(EXECUTIONS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{EXECUTIONS} executions\n"
