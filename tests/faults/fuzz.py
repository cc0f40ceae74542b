"""Random and damaged bytes into every decoder of the C core, under sanitizers.

The driver is `tests/fuzz/fuzz_decode.c`, compiled with the address and the undefined
behaviour sanitizer: its first mistake ends it.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from faults.method import Tally

NAME = "fuzz"
UNIT = "executions"
COUNTS = {"commit": 300_000, "nightly": 20_000_000, "release": 50_000_000}

_TESTS = pathlib.Path(__file__).resolve().parents[1]
_DRIVER = _TESTS / "fuzz" / "fuzz_decode.c"
_SOURCES = _TESTS.parent / "src" / "logstore" / "_native"
# A sanitizer that was loaded into this process must not be loaded into the driver.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
_FLAGS = (
    "-std=c11 -O1 -g -Wall -Wextra -Werror -fno-wrapv -fno-omit-frame-pointer "
    "-fsanitize=address,undefined -fno-sanitize-recover=all"
)
# One call of the driver: short enough to show progress and to name a seed.
_ROUND = 75_000


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` executions, each through all decoders."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        driver = build(pathlib.Path(folder))
        if isinstance(driver, str):
            tally.skip(driver, count)
            return
        running: list[tuple[int, int, subprocess.Popen[str]]] = []
        left, round_seed = count, seed
        while left > 0 or running:
            while left > 0 and len(running) < (os.cpu_count() or 1):
                size = min(left, _ROUND)
                running.append((round_seed, size, _start(driver, round_seed, size)))
                left, round_seed = left - size, round_seed + 1
            running = [one for one in running if not _ended(one, tally)]
            time.sleep(0.01)


def build(folder: pathlib.Path) -> pathlib.Path | str:
    """The compiled driver, or why it cannot be built here."""
    gcc = shutil.which("gcc")
    if gcc is None:
        return "no gcc"
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    program = folder / "fuzz_decode"
    command = [gcc, *_FLAGS.split(), "-I", str(_SOURCES), "-o", str(program)]
    probed = subprocess.run(
        [*command, str(probe)], env=_ENVIRONMENT, capture_output=True, check=False
    )
    if probed.returncode != 0:
        return "gcc has no sanitizer libraries"
    files = [str(_DRIVER), *map(str, sorted(_SOURCES.glob("ls_*.c")))]
    subprocess.run([*command, *files], env=_ENVIRONMENT, check=True)
    return program


def _start(driver: pathlib.Path, seed: int, size: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [driver, str(seed), str(size)],
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(one: tuple[int, int, subprocess.Popen[str]], tally: Tally) -> bool:
    seed, size, process = one
    if process.poll() is None:
        return False
    out, problem = process.communicate()
    if process.returncode == 0 and out == f"{size} executions\n":
        tally.passed(size)
    else:
        tally.failed(f"fuzz_decode {seed} {size}: {problem[-2000:]}")
    return True
