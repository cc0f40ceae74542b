"""The arguments of `logstore-dump`: subcommands, options, help, errors."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import logstore
from logstore.cli import suggestions
from logstore.cli.app import ORDER, Command
from logstore.cli.main import main
from logstore.cli.params import FromEnd, parse_bound
from logstore.cli.run import cli
from support.cli import command
from support.offsets_topic import OffsetsTopic, commit_of
from support.values import append_one, new_partition

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
SUBCOMMANDS = ORDER
# Subcommands with a path of a store, partition or file. `kafka-dump-log` has an option
# for its files, like Kafka's tool.
LOOKING = [
    name for name in SUBCOMMANDS if name not in ("completion", "kafka-dump-log", "man")
]
# A letter with other meanings in other tools; and two names that are clear together
# with the subcommand.
HABITS = {"-f", "--group", "--to"}
# Required arguments of subcommands.
NEEDED = {
    "snapshot": ["x"],
    "export": ["-o", "x.jsonl"],
    "groups export": ["--group", "billing", "--to", "kafka", "--yes"],
    "groups reset": ["--group", "billing", "--to", "earliest", "--yes"],
}


def test_commands_that_write_are_listed_in_one_order() -> None:
    """The help and the page list them; nothing harmful is suggested for them."""
    names = [*suggestions.HARMLESS, "doctor --write-test"]
    page = " ".join(DOCS.read_text().split())
    listed = re.search(r"All subcommands except (.*?) only read:", page)
    assert listed
    assert re.findall(r"`([^`]+)`", listed[1]) == names
    help_text = " ".join((cli.help or "").split())
    assert (
        f"All subcommands except {', '.join(names[:-1])} and {names[-1]} only"
        in help_text
    )


def made(name: str) -> Command:
    found = cli.commands[name]
    assert isinstance(found, Command)
    return found


def shown_options(name: str) -> list[click.Option]:
    return [
        parameter
        for parameter in made(name).params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]


def section(name: str) -> str:
    text = DOCS.read_text("utf-8")
    return text.split(f"\n## `{name}`\n")[1].split("\n## ")[0]


def test_the_subcommands_are_those_of_the_page() -> None:
    """A heading for each, in the same order; the help lists no other."""
    headings = re.findall(r"^## `([\w -]+)`$", DOCS.read_text("utf-8"), re.M)
    assert tuple(headings) == SUBCOMMANDS
    assert set(cli.commands) == set(SUBCOMMANDS)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_options_of_a_subcommand_are_those_of_the_page(name: str) -> None:
    """Its section of docs/cli.md names each option, and no other; so do the
    examples."""
    rows = [row for row in section(name).splitlines() if row.startswith("| `-")]
    named = {
        option
        for row in rows
        for option in re.findall(r"`(--?[\w-]+)", row.split(" | ")[0])
    }
    known = {o for parameter in shown_options(name) for o in parameter.opts}
    assert named == known
    assert made(name).examples
    for example in made(name).examples:
        assert f"    logstore-dump {example}\n" in section(name) + "\n"


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_examples_are_understood(name: str) -> None:
    """The arguments before a `|`, `>` of each example are accepted by the
    subcommand."""
    for example in made(name).examples:
        words = shlex.split(re.split(r" [|>]", example)[0])
        count = len(name.split())
        assert words[:count] == name.split()
        made(name).make_context(name, words[count:])


def test_an_option_means_the_same_everywhere() -> None:
    """The same help and the same values in every subcommand that has it, except for
    forms that only one of them can print."""
    seen: dict[str, tuple[str, str, str]] = {}
    for name in SUBCOMMANDS:
        for option in shown_options(name):
            meaning = str(option.help), type(option.type).__name__, str(option.nargs)
            for word in {*option.opts} - HABITS - {"--format", "--sort"}:
                assert seen.setdefault(word, meaning) == meaning, (name, word)
    assert len(seen) > 30


def test_names_that_scripts_use_are_kept(run: Any, store: Path, tmp_path: Path) -> None:
    """`--to` is the other name of an option in four subcommands; using both is an
    error."""
    assert len(run("records", store / "orders-0", "--to", 2).lines) == 2
    assert len(run("batches", store / "orders-0", "--to", 2).lines) == 2
    target = tmp_path / "x.jsonl"
    assert run("export", store, "--to", target).status == 0
    for arguments in (
        ("records", store, "--to", 2, "--until", 2),
        ("export", store, "--to", target, "-o", target),
        ("repair", store, "--mode", "cut", "--to", target, "--copy-to", target),
    ):
        result = run(*arguments)
        assert (result.status, "is an alias" in result.err) == (2, True)


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in SUBCOMMANDS)], ids=" ".join
)
def test_help_exits_zero(run: Any, arguments: list[str]) -> None:
    """The usage is on standard output; the help of a subcommand has examples."""
    result = run(*arguments)
    assert result.status == 0
    assert result.out.startswith("Usage: logstore-dump")
    assert ("Examples:" in result.out) == (len(arguments) == 2)


def test_version_is_the_library_s(run: Any) -> None:
    """The exit status is 0."""
    result = run("--version")
    assert (result.status, result.out) == (0, f"logstore-dump {logstore.__version__}\n")


@pytest.mark.parametrize("module", ["logstore", "logstore.cli"])
def test_the_package_can_be_run(module: str) -> None:
    """`python -m logstore` and `python -m logstore.cli` are the command."""
    words = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"logstore-dump {logstore.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["unknown"],
        ["records"],
        ["records", "x", "--limit", "-1"],
        ["records", "x", "--from", "yesterday"],
        ["records", "x", "--from", "--5"],
        ["records", "x", "--grep", "("],
        ["records", "x", "--payload", "xml"],
        ["records", "x", "--format", "xml"],
        ["records", "x", "--template", "%q"],
        ["records", "x", "--on-corruption", "ignore"],
        ["export", "x"],
        ["tail", "x", "-n", "many"],
        ["ls", "x", "--sort", "colour"],
        ["completion", "tcsh"],
    ],
    ids=" ".join,
)
def test_unusable_arguments_exit_two(run: Any, arguments: list[str]) -> None:
    """The reason is on standard error, in two lines at most."""
    result = run(*arguments)
    assert result.status == 2
    assert 1 <= len(result.err.splitlines()) <= 2
    assert result.err.startswith("logstore-dump: ")
    assert not result.out


def test_without_a_subcommand_it_shows_its_help(run: Any) -> None:
    """The output equals the output of `--help`."""
    assert (run().status, run().out) == (0, run("--help").out)


@pytest.mark.parametrize("name", LOOKING)
def test_a_path_that_is_not_there_exits_two(
    run: Any, tmp_path: Path, name: str
) -> None:
    """Every subcommand names it."""
    options = NEEDED.get(name, [])
    result = run(name, tmp_path / "missing", *options)
    assert result.status == 2
    assert "missing" in result.err


def test_an_error_of_the_system_is_a_sentence(
    run: Any, store: Path, tmp_path: Path
) -> None:
    """The file and the reason, without a number or an exception's name."""
    result = run("export", store, "-o", tmp_path / "none" / "x.jsonl")
    assert (result.status, "Errno" in result.err) == (2, False)
    assert result.err.endswith("none/x.jsonl.part: No such file or directory\n")


@pytest.mark.parametrize("kind", ["pictures", "etc", "partition-like", "lock", "empty"])
@pytest.mark.parametrize("name", [name for name in LOOKING if name != "index"])
def test_a_directory_of_something_else_exits_two(
    run: Any, tmp_path: Path, name: str, kind: str
) -> None:
    """It is not taken for an empty store, whatever names are in it and whatever its own
    name, and nothing is written into it or next to it."""
    path = tmp_path / "there" / ("gtk-3" if kind == "partition-like" else "here")
    path.mkdir(parents=True)
    if kind == "pictures":
        (path / "pictures").mkdir()
    elif kind == "etc":
        (path / "dbus-1").mkdir()
        (path / "dbus-1" / "session.conf").write_text("x")
        (path / "hosts").write_text("x")
    elif kind == "lock":
        (path / ".lock").write_text("x")
        (path / "hosts").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    options: list[object] = [*NEEDED.get(name, [])]
    if name == "repair":
        options = ["--mode", "cut", "--yes"]
    elif name == "doctor":
        options = ["--write-test"]
    elif name == "rebuild-index":
        options = ["--allow-shared-directory"]
    result = run(name, path, *options)
    assert result.status == 2
    assert "not a log directory: neither a store nor a partition" in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_root_of_configuration_is_no_log_directory(run: Any) -> None:
    """/etc of this machine."""
    for name in ("verify", "ls", "doctor", "stat", "records"):
        result = run(name, "/etc")
        assert (result.status, "not a log directory" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("0", 0),
        ("123", 123),
        ("1600000000000ms", 1_600_000_000_000),
        ("2020-09-13T12:26:40Z", 1_600_000_000_000),
        ("2020-09-13T14:26:40+02:00", 1_600_000_000_000),
    ],
)
def test_bounds_are_offsets_or_times(text: str, bound: int) -> None:
    """A plain number is an offset, everything else is a time."""
    found = parse_bound(text)
    milliseconds = found if isinstance(found, int) else found.timestamp() * 1000
    assert milliseconds == bound
    assert not isinstance(found, FromEnd)


def test_a_negative_bound_counts_from_the_end() -> None:
    """-10 is the tenth last."""
    found = parse_bound("-10")
    assert (type(found), int(found)) == (FromEnd, 10)  # type: ignore[arg-type]


# ------------------------------------------------------------------ loaded modules

TOOLS = ("click", "rich", "orjson", "pybase64", "textual")
HEAVY = (*TOOLS, "pyarrow", "pandas", "polars", "duckdb")


def loaded(code: str) -> set[str]:
    """Modules that a piece of Python loads."""
    code += "\nimport sys; print(*sorted(sys.modules))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_import_loads_nothing_of_the_command_line(tmp_path: Path) -> None:
    """A store that is opened, written and read loads nothing of it either."""
    code = f"import logstore\nwith logstore.open({str(tmp_path / 's')!r}) as s:\n"
    code += (
        " p = s.create_topic('t')[0]\n p.append(b'x')\n assert len([*p.read()]) == 1"
    )
    for found in (loaded("import logstore"), loaded(code)):
        assert found.isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--version"], ["records", "--help"]])
def test_help_waits_for_no_engine(arguments: list[str]) -> None:
    """The store and modules for output are not loaded."""
    found = loaded(f"from logstore.cli.main import main\nassert main({arguments}) == 0")
    assert found.isdisjoint({*HEAVY, "logstore.store.store", "cffi"} - {"click"})


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("rich", ["ls"]),
        ("pybase64", ["records", "--payload", "base64"]),
    ],
)
def test_a_missing_package_is_an_error_that_helps(
    store: Path, package: str, arguments: list[str]
) -> None:
    """`pip install --no-deps` leaves packages out."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from logstore.cli.main import main\n"
        f"sys.exit(main({[*arguments, str(store)]!r}))"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"needs {package}; install it with `pip install pylogstore`" in done.stderr


LINES = (
    ["records", "--format", "jsonl"],
    ["records", "--format", "jsonl", "--payload", "json"],
    ["batches", "--format", "jsonl"],
    ["ls", "--format", "jsonl"],
    ["export", "--format", "jsonl", "-o", "-"],
)


@pytest.mark.parametrize("arguments", LINES, ids=" ".join)
def test_lines_without_orjson_are_the_same(store: Path, arguments: list[str]) -> None:
    """It is optional."""
    call = (
        "from logstore.cli.main import main\n"
        f"status = main({[*arguments, str(store)]!r})\n"
    )
    missing = "import sys; sys.modules['orjson'] = None\n"
    printed = []
    for code in (f"{call}import sys; assert 'orjson' in sys.modules", missing + call):
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, check=True)
        printed.append(done.stdout)
    assert printed[0] == printed[1] != b""


def test_a_missing_click_is_an_error_that_helps() -> None:
    """The error comes before a subcommand is looked up."""
    code = (
        "import sys; sys.modules['click'] = None\n"
        "from logstore.cli.main import main\n"
        "sys.exit(main(['--version']))"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "needs click; install it with `pip install pylogstore`" in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------ the end of it


def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    """`| head` closes it so."""
    with logstore.open(tmp_path) as store:
        new_partition(store).append_many([b"x" * 200] * 20_000)
    for form in ("text", "jsonl"):
        process = command("records", tmp_path, "--format", form)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait(timeout=30) == 0


def test_it_can_be_called_in_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`main` returns the status, and leaves the program running."""
    with logstore.open(tmp_path) as store:
        append_one(new_partition(store))
    assert main(["records", os.fspath(tmp_path)]) == 0
    assert main(["nonsense"]) == 2
    capsys.readouterr()


# ------------------------------------------------------------------ the page


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the store of the examples, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (".zfunc", ".config/fish/completions", "mnt"):
        (tmp_path / path).mkdir(parents=True)
    config = logstore.TopicConfig(message_format=2, index_interval_bytes=100)
    with logstore.open(tmp_path / "data") as store:
        for name, count in (("orders", 2), ("clicks", 1)):
            topic = store.create_topic(name, partitions=count, config=config)
            for part in topic:
                values = [b'{"n": %d}' % number for number in range(2500)]
                part.append_many(values, [b"user-00%d" % (len(v) % 3) for v in values])
        key, value = commit_of(1200, "billing", "orders")
        topic = store.create_topic("__consumer_offsets", config=config)
        topic.append(value, key=key)
    OffsetsTopic(tmp_path / "kafka", partitions=3)
    with logstore.Consumer(tmp_path / "data", group="billing") as consumer:
        consumer.assign([logstore.TopicPartition("orders", 0)])
        consumer.commit({logstore.TopicPartition("orders", 0): 1200})
    return tmp_path


def examples() -> list[str]:
    """The lines of docs/cli.md that are indented as code."""
    return re.findall(r"^    (logstore-dump .*)$", DOCS.read_text("utf-8"), re.M)


def test_the_page_has_the_examples_of_all_subcommands() -> None:
    """There are no others."""
    known = {f"logstore-dump {e}" for name in SUBCOMMANDS for e in made(name).examples}
    assert set(examples()) == known


# Examples that end by themselves: the ones that follow a log do not, and the browser
# has its own test, in a terminal.
ENDING = [line for line in examples() if not re.search(" -f -n 0 | browse ", line)]


@pytest.mark.parametrize("line", ENDING)
def test_an_example_of_the_page_runs_as_pasted(
    shop: Path, line: str, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """Examples with a pipe or a file run in a shell, the others in this process."""

    class Report:
        def __init__(self, path: str) -> None:
            self.path = path

        def to_html(self) -> str:
            return "<html></html>"

    if not hasattr(logstore, "report"):
        monkeypatch.setattr(logstore, "report", Report, raising=False)
    if line.startswith(("logstore-dump metrics", "logstore-dump report data >")):
        pytest.importorskip("logstore.metrics")
    line = line.replace("/mnt/other", f"{shop}/mnt")
    if "|" not in line and ">" not in line:
        words = [word.replace("~", str(shop)) for word in shlex.split(line)]
        # Without a terminal, and with nothing to repair.
        assert run(*words[1:]).status == 0
        return
    if "man -l" in line and shutil.which("man") is None:
        line = line.replace("man -l -", "cat")
    script = shop / "logstore-dump"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m logstore "$@"\n')
    script.chmod(0o755)
    env = os.environ | {"PATH": f"{shop}:{os.environ['PATH']}", "MANPAGER": "cat"}
    words = ["bash", "-c", f"set -o pipefail; {line}"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
