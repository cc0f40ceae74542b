"""The commands of docs/spark-tables.md, with the packages of Delta and Iceberg.

They need a Spark with such packages, which may differ from the Spark of the other
tests: it is installed separately.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

import logstore
from support.killed_query import below, kill
from support.pages import blocks_of, make_environment
from support.wheels import shared_wheel

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spark-tables.md").read_text(encoding="utf-8")
PROGRAM = ROOT / "examples" / "tables" / "to_table.py"
SPARK = "4.1.4"  # a version in the table of the page that has both packages
COMMITS = {
    "delta": "tables/orders/_delta_log/*.json",
    "iceberg": "tables/shop/orders/metadata/v*.metadata.json",
}
PARTITIONS, RECORDS = 2, 10_000
BATCH = 1_000  # so that a kill finds the stream in the middle
WAIT_S = 600
SETTINGS = """
spark.master local[2]
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.log.level ERROR
spark.sql.shuffle.partitions 2
spark.databricks.delta.snapshotPartitions 2
"""


def commands(action: str) -> dict[str, str]:
    """The blocks of shell that run an action, by format."""
    found = {}
    for block in blocks_of(PAGE):
        call = re.search(rf"to_table\.py {action} .*?--format (\w+)", block.text, re.S)
        if block.language == "sh" and call:
            found[call[1]] = block.text
    return found


# ------------------------------------------------------------------- without Spark


def test_page_shows_the_program_that_is_tested() -> None:
    """The page has the calls of the program."""
    program = PROGRAM.read_text(encoding="utf-8")
    (columns,) = re.findall(r'^COLUMNS = "(.*)"$', program, re.MULTILINE)
    listed = ", ".join(f'"{name}"' for name in columns.split(", "))
    for block in blocks_of(PAGE):
        if block.language != "py":
            continue
        shown = block.text.replace(listed, '*COLUMNS.split(", ")')
        shown = re.sub(r"#.*", "", shown)
        lines = [line.strip() for line in shown.splitlines() if line.strip()]
        lines[0] = lines[0].removeprefix("query = ")
        for line in lines:
            if line != "query.awaitTermination()":
                assert line in program, line
    assert "query.awaitTermination()" in program


def test_commands_have_the_packages_of_the_table() -> None:
    """The packages belong to the Spark of the tests."""
    minor = SPARK.rpartition(".")[0]
    (row,) = re.findall(rf"^\| {re.escape(minor)} \| (.*) \|$", PAGE, re.MULTILINE)
    packages = dict(zip(("delta", "iceberg"), re.findall(r"`(.*?)`", row), strict=True))
    assert set(commands("stream")) == {"delta", "iceberg"}
    for action in ("stream", "merge"):
        for format, command in commands(action).items():
            assert f"--packages {packages[format]} " in command


# ---------------------------------------------------------------------- with Spark


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of an environment with that Spark and logstore."""
    folder = tmp_path_factory.mktemp("tables") / "venv"
    python = make_environment(folder)
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--ignore-installed", f"pyspark=={SPARK}"]
    install += [str(shared_wheel(tmp_path_factory))]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pyspark {SPARK} cannot be installed: {done.stderr[-300:]}")
    return python.parent


def skip_without_packages(printed: str) -> None:
    """Skip if spark-submit cannot fetch them."""
    if "unresolved dependenc" in printed:
        pytest.skip(f"packages cannot be fetched: {printed[-1500:]}")


class Recipe:
    """Runs a command of the page in a folder.

    Args:
        folder: the store is ``data`` there.
    """

    def __init__(self, folder: Path, programs: Path, format: str, home: str) -> None:
        self.folder = folder
        self._format = format
        conf = folder / "conf"
        conf.mkdir()
        conf.joinpath("spark-defaults.conf").write_text(SETTINGS)
        (folder / "examples").symlink_to(ROOT / "examples")
        left_out = ("PYTHONPATH", "SPARK_HOME")
        kept = {name: v for name, v in os.environ.items() if name not in left_out}
        self._environment = {
            **kept,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(programs / "python"),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        if home:
            self._environment["JAVA_HOME"] = home

    def start(self, action: str) -> subprocess.Popen[str]:
        """Start an action: as on the page, in small batches; ``merge`` into Iceberg and
        ``check`` are derived from its commands."""
        command = commands(action).get(self._format)
        if command is None:
            there = commands("stream")[self._format].rstrip()
            command = there.replace("to_table.py stream", f"to_table.py {action}")
            command = command[: command.index("--store")].rstrip(" \\\n")
            if action == "merge":
                (rest,) = re.findall(r"--store.*", commands("merge")["delta"])
                command += f" {rest}"
        command = command.rstrip()
        if action == "stream":
            command += f" --batch {BATCH}"
        shell = ["bash", "-euo", "pipefail", "-c", command]
        return subprocess.Popen(
            shell,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, action: str) -> str:
        """Run an action to its end; returns its output."""
        process = self.start(action)
        printed, _ = process.communicate(timeout=WAIT_S)
        skip_without_packages(printed)
        assert process.returncode == 0, printed[-6000:]
        return printed

    @property
    def commits(self) -> int:
        return len(list(self.folder.glob(COMMITS[self._format])))

    def kill_after(self, commits: int) -> None:
        """Start the stream, and kill it with all its processes after some commits."""
        wanted = self.commits + commits
        process = self.start("stream")
        try:
            deadline = time.monotonic() + WAIT_S
            while self.commits < wanted and process.poll() is None:
                assert time.monotonic() < deadline, "no commits came"
                time.sleep(0.02)
        finally:
            for one in [process.pid, *below(process.pid)]:
                kill(one)
            printed, _ = process.communicate()
        skip_without_packages(printed)
        assert self.commits >= wanted, printed[-6000:]
        assert process.returncode != 0, "it ended before it was killed"

    def check(self) -> tuple[int, int]:
        """The number of rows in the table, and of their distinct records."""
        found = re.search(r": (\d+) rows of (\d+) records", self.run("check"))
        assert found
        return int(found[1]), int(found[2])

    def forget_last_batch(self) -> None:
        """Restore the state of a driver that died between the commit of the table and
        Spark's own."""
        (commits,) = self.folder.glob("checkpoints/*/commits")
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        commits.joinpath(str(last)).unlink()
        commits.joinpath(f".{last}.crc").unlink(missing_ok=True)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_stream_that_is_killed_puts_each_record_into_the_table_once(
    format: str, environment: Path, java_home: str, tmp_path: Path
) -> None:
    """It is killed twice in the middle, and once after a commit; a batch query adds the
    rest, and nothing when it is repeated."""
    recipe = Recipe(tmp_path, environment, format, java_home)
    with logstore.open(tmp_path / "data") as store:
        topic = store.create_topic("orders", PARTITIONS)
        for partition in topic:
            partition.append_many([b"%d" % n for n in range(RECORDS)])
    total = PARTITIONS * RECORDS
    recipe.kill_after(commits=3)
    recipe.kill_after(commits=4)
    killed_at = recipe.commits
    recipe.run("stream")
    assert 0 < killed_at < recipe.commits, "it was not killed in the middle"
    recipe.forget_last_batch()
    before = recipe.commits
    recipe.run("stream")
    assert recipe.commits == before
    assert recipe.check() == (total, total)
    with logstore.open(tmp_path / "data") as store:
        store.topic("orders")[0].append_many([b"late"] * 7)
    for _ in range(2):
        recipe.run("merge")
    assert recipe.check() == (total + 7, total + 7)
