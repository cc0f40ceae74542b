"""``examples/``: each runs with one command, and its output is right.

Examples for Spark are tested with the connector.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

import logstore

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GOLDEN = ROOT / "tests" / "golden" / "data" / "4.2.0" / "killed"
PROGRAMS = {p.name for p in EXAMPLES.glob("*.py") if "__main__" in p.read_text()}
FOR_SPARK = {"demo_spark.py", "late_readings.py", "spark_session.py", "word_count.py"}


def run(name: str, *arguments: str, status: int = 0) -> str:
    """Run an example and return its output."""
    result = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == status, result.stderr[-4000:]
    return result.stdout + result.stderr


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module; it can import its neighbours."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_listed_and_tested() -> None:
    """A new one needs a line in the README and a test."""
    here = Path(__file__).read_text()
    page = (EXAMPLES / "README.md").read_text()
    for name in PROGRAMS - FOR_SPARK:
        assert f'run("{name}"' in here, name
    for name in PROGRAMS - {"spark_session.py"}:
        assert f"`python examples/{name}`" in page
    assert FOR_SPARK <= PROGRAMS


@pytest.mark.parametrize("name", sorted(PROGRAMS - FOR_SPARK))
def test_help_says_what_there_is_to_choose(name: str) -> None:
    """The program ends at once."""
    assert "--" in run(name, "--help").partition("--help")[2]


def test_broker_disk_is_a_golden_directory() -> None:
    """The example has the same files and the same bytes."""
    disk = EXAMPLES / "broker_disk"
    files = {p.relative_to(disk).as_posix() for p in disk.rglob("*") if p.is_file()}
    golden = {
        p.relative_to(GOLDEN).as_posix() for p in GOLDEN.rglob("*") if p.is_file()
    }
    assert files == golden
    _, different, missing = filecmp.cmpfiles(disk, GOLDEN, sorted(files), shallow=False)
    assert (different, missing) == ([], [])


# -------------------------------------------------------------------------- the demo


def number(text: str) -> int:
    """The number in a printed text such as ``1,234``."""
    return int(text.replace(",", ""))


REPAIRED = r"repaired: ([\d,]+) records lost, the batch of one flipped bit; ([\d,]+)"


def test_demo_shows_each_of_its_steps(tmp_path: Path) -> None:
    """Few records are enough; the store that it keeps agrees with the output."""
    text = run("demo.py", "--records", "20000", "--dir", str(tmp_path / "store"))
    for said in (
        "20,000 records in 4 partitions, synced",
        "each found the right record",
        "209 records read in place, without a broker; 1 torn tail left out",
        "4  Cut the power",
        "7  Kill one of two workers",
        "each of 2,000 orders has one invoice",
        "all well",
        "docs/guide.md",
    ):
        assert said in text
    told = re.findall(r"(cut|skip) would lose ([\d,]+) records", text)
    losses = {mode: number(count) for mode, count in told}
    ((lost, kept),) = re.findall(REPAIRED, text)
    assert 0 < number(lost) == losses["skip"] < losses["cut"] < 5000
    assert number(lost) + number(kept) == 5000
    assert f"a flipped bit found and repaired: {lost} records lost, {kept} kept" in text
    killed = re.findall(r"no\. \d: ([\d,]+) acknowledged, ([\d,]+) recovered, 0", text)
    counts = [tuple(map(number, pair)) for pair in killed]
    assert len(counts) == 3
    assert all(recovered >= acknowledged for acknowledged, recovered in counts)
    assert logstore.verify(tmp_path / "store", deep=True).ok
    with logstore.open(tmp_path / "store", read_only=True) as store:
        ends = [p.end_offset for p in store.topic("demo")]
        acknowledged = store.topic("acknowledged")[0].end_offset
    assert ends == [5000] * 4
    assert acknowledged == counts[-1][1] >= 3 * 1000
    # A writer that is killed in the middle of a write leaves a torn tail, and the next
    # opening warns of it.
    shown = [line for line in text.splitlines() if ".logstore-torn-" not in line]
    assert str(tmp_path) not in "\n".join(shown)


def test_demo_fails_when_a_record_is_not_as_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo compares records, and does not only claim so."""
    demo = load("demo", monkeypatch)
    wrong = iter(range(10**9))
    monkeypatch.setattr(
        demo, "time_of", lambda offset: demo.START_MS + offset + next(wrong)
    )
    assert demo.main(["--records", "100"]) == 1
    assert "FAILED: partition 0, offset 0" in capsys.readouterr().err


def test_demo_fails_when_an_acknowledged_record_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The acknowledgements of the writer are compared with the log."""
    demo = load("demo", monkeypatch)
    liar = tmp_path / "liar.py"
    liar.write_text(
        "import os, struct, sys, logstore\n"
        "with logstore.open(sys.argv[2]) as store:\n"
        "    store.create_topic('acknowledged')\n"
        "for n in range(10**9):\n"
        "    os.write(1, struct.pack('<q', n))\n"
    )
    monkeypatch.setattr(demo, "__file__", str(liar))
    with pytest.raises(demo.MismatchError, match="acknowledged records are lost"):
        demo.kill_a_writer(str(tmp_path / "store"))


def test_demo_fails_when_a_durable_record_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A power cut that loses too much: logstore reports the missing records."""
    demo = load("demo", monkeypatch)
    cut_power = demo.cut_power

    def cut_too_much(directory: str) -> tuple[int, int]:
        counts: tuple[int, int] = cut_power(directory)
        (log,) = Path(directory).glob("synced-0/*.log")
        os.truncate(log, log.stat().st_size // 2)
        return counts

    monkeypatch.setattr(demo, "cut_power", cut_too_much)
    screen = demo.Screen(demo.Console())
    with pytest.raises(logstore.CorruptRecordError, match="cannot be read here"):
        demo.show_power_cuts(screen, str(tmp_path / "store"))


def test_power_cut_of_the_demo_takes_what_no_sync_has_covered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing else is lost: the log ends between the last sync and the last append."""
    demo = load("demo", monkeypatch)
    path = str(tmp_path / "store")
    script = (
        "import os, sys, logstore\n"
        "log = logstore.open(sys.argv[1]).create_topic('synced')[0]\n"
        "log.append_many([b'x' * 100] * 50, durable=True)\n"
        "for _ in range(50): log.append(b'y' * 100)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True)
    assert demo.cut_power(path) == (50, 100)
    with logstore.open(path) as store:
        log = store.topic("synced")[0]
        assert 50 <= log.end_offset < 100
        assert len([*log.read()]) == log.end_offset


def test_demo_refuses_too_few_records() -> None:
    """Unusable arguments."""
    assert "not a number of at least 12" in run("demo.py", "--records", "3", status=2)


# ------------------------------------------------------------------------ the others


def test_service_answers_and_counts_the_same() -> None:
    """The totals of the follower equal the sums of the answers."""
    text = run("service_threads.py", "--seconds", "0.5")
    assert int(re.findall(r"^(\d+) orders answered", text, re.MULTILINE)[0]) > 0
    assert text.endswith("the follower's totals are those of the answers\n")


def test_service_stops_cleanly_at_sigterm(tmp_path: Path) -> None:
    """Requests end, the store is closed: nothing has to be recovered."""
    command = [sys.executable, "examples/service_threads.py", "--seconds", "200"]
    with subprocess.Popen(
        [*command, "--dir", str(tmp_path / "store")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving with 8 threads\n"
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGTERM)
        text = process.stdout.read()
    assert process.returncode == 0
    answered = int(re.findall(r"^(\d+) orders answered", text, re.MULTILINE)[0])
    with logstore.open(tmp_path / "store") as store:
        assert not store.recovery_report
        assert store.topic("orders")[0].end_offset == answered


def test_readers_count_each_record_once() -> None:
    """The reader that is killed counts each record once, too."""
    text = run("reader_processes.py", "--records", "4000")
    assert "reader 0 was killed on the way" in text
    sums = [int(found) for found in re.findall(r"^reader \d: (\d+)$", text, re.M)]
    assert sums == [sum(range(n, 4000, 4)) for n in range(4)]


def test_worker_that_is_killed_is_replaced() -> None:
    """Each order has one invoice; the other worker writes the remaining ones."""
    text = run("workers.py", "--orders", "4000")
    ann, bob = map(number, re.findall(r"\b(?:after|written) ([\d,]*\d)", text))
    assert min(ann, bob) >= 1
    assert text.endswith("each of 4,000 orders has one invoice\n")


def test_disk_of_a_broker_becomes_parquet(tmp_path: Path) -> None:
    """All records but the damaged batch; the damage and its cost are reported."""
    output = tmp_path / "parquet"
    text = run("recover_broker_disk.py", "--to", str(output))
    assert "damaged-batch: open-txn-0/00000000000000000000.log at byte" in text
    assert re.search(r"open-txn-0: \d+ bytes left out, offset 32 to 35", text)
    rows = {file.stem: pq.read_table(file) for file in output.glob("*.parquet")}
    counts = {name: table.num_rows for name, table in rows.items()}
    assert counts == {"busy-big-0": 1, "codec-snappy-0": 78, "open-txn-0": 126}
    assert text.endswith("205 records saved\n")
    with logstore.open(EXAMPLES / "broker_disk", read_only=True) as store:
        expected = [record.value for record in store.topic("codec-snappy")[0].read()]
    assert rows["codec-snappy-0"]["value"].to_pylist() == expected


def test_data_frames_agree() -> None:
    """pandas, Polars and DuckDB count the written records."""
    text = run("data_frames.py", "--records", "3000")
    for library in ("pandas", "polars", "duckdb"):
        assert f"{library}: 3000 views in 3 hours, as they were written\n" in text
    counts = re.findall(r"^/\w+ +hour \d: +(\d+)$", text, re.MULTILINE)
    assert len(counts) == 9
    assert sum(map(int, counts)) == 3000


def run_notebook(name: str) -> list[Any]:
    """The code cells of a notebook, run in order in a new kernel. The notebook is kept
    without outputs."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute(cwd=str(EXAMPLES))
    return cells


def test_notebook_runs() -> None:
    """It writes, reads, and finds damage."""
    cells = run_notebook("notebook.ipynb")
    printed = "".join(
        output.get("text", "") for cell in cells for output in cell.outputs
    )
    assert "1440 records\n" in printed
    assert "1439 records left, 1 lost\n" in printed


def test_notebook_of_operations_runs_and_plots() -> None:
    """Throughput, sizes and lag; and the tables of a store, a topic and groups."""
    pytest.importorskip("matplotlib")
    cells = run_notebook("operations.ipynb")
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    assert sum("image/png" in data for data in shown) == 3
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert any("payments" in page for page in pages)
    assert any("reports" in page and "lag" in page for page in pages)
