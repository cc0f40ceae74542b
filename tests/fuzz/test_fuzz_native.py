"""The C core alone, compiled with sanitizers, fed with damaged and random bytes."""

import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
DRIVER = HERE / "fuzz_decode.c"
SOURCES = HERE.parents[1] / "src" / "logstore" / "_native"
# A sanitizer that was loaded into this process is none of the driver's business.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
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
    probed = subprocess.run([*command, str(probe)], env=ENVIRONMENT, check=False)
    if probed.returncode != 0:
        pytest.skip("gcc has no sanitizer libraries")
    files = [str(DRIVER), *map(str, sorted(SOURCES.glob("ls_*.c")))]
    built = subprocess.run(
        [*command, *files],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return program


@pytest.mark.parametrize("seed", SEEDS)
def test_fuzz_decoders_find_no_way_outside(driver, seed):
    """Each execution goes through all decoders; sanitizers end it at a mistake."""
    done = subprocess.run(
        [driver, str(seed), str(EXECUTIONS)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{EXECUTIONS} executions\n"
