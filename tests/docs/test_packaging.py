"""The distribution: its name, its extras, its wheel, and the steps of the set-up."""

from __future__ import annotations

import ast
import contextlib
import email
import os
import re
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

import logstore
from support.wheels import build_wheel, shared_wheel

if sys.version_info >= (3, 11):
    import tomllib
else:  # the parser that ruff and mypy bring along
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]

# --------------------------------------------------------------------- the name

# Advice that installs a foreign package: the old name after `pip install`, or with an
# extra.
OLD_ADVICE = re.compile(
    r"""
    (?<![\w.-])logstore\[[a-z]+(,\ ?[a-z]+)*\]
    |\b(?:install|add)\ [^\n`]*(?<![\w./-])logstore\b(?![-/.])
    |metadata\.version\(["']logstore["']\)
    """,
    re.VERBOSE,
)
# Files about the history, or about the old name itself.
EXEMPT = {"CHANGELOG.md", "tests/docs/test_packaging.py", "tools/old_name.py"}
TEXTS = {".py", ".md", ".toml", ".yml", ".cfg", ".sh", ".ipynb", ".txt", ""}


def repository_files() -> list[Path]:
    """The text files of the tree, without build output and golden files."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in ("build", "dist", "data", "__pycache__", "broker_disk")
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name in (".ci", ".github"))
        ]
        found += [
            path
            for name in names
            if (path := Path(folder, name)).suffix in TEXTS and not path.is_symlink()
        ]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "pip install logstore",
        "pip install 'logstore[spark]'",
        "python -m pip install --upgrade logstore",
        "with `logstore[arrow]`",
        "uv add logstore",
    ],
)
def test_old_advice_is_recognized(text: str) -> None:
    """Every form of the old advice."""
    assert OLD_ADVICE.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install pylogstore",
        "pip install 'pylogstore[spark]'",
        "pip install '.[spark]'",
        'logstore["orders"]',
        "import logstore",
    ],
)
def test_right_advice_is_not_taken_for_the_old_one(text: str) -> None:
    """The name of the import is unchanged."""
    assert not OLD_ADVICE.search(text)


def test_nothing_tells_people_to_install_the_package_of_somebody_else() -> None:
    """`logstore` on the package index is another project."""
    files = repository_files()
    assert len(files) > 300
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if path.relative_to(ROOT).as_posix() not in EXEMPT
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        )
        if OLD_ADVICE.search(line)
    ]
    assert found == []


def test_distribution_and_package_have_their_names() -> None:
    """`pip install pylogstore`, `import logstore`, `logstore-dump`."""
    assert PROJECT["project"]["name"] == "pylogstore"
    assert list(PROJECT["project"]["scripts"]) == ["logstore-dump"]
    # The version is stated once, in the package.
    assert "version" in PROJECT["project"]["dynamic"]
    source = PROJECT["tool"]["setuptools"]["dynamic"]["version"]
    assert source == {"attr": "logstore.__version__"}


# ------------------------------------------------------------------- the extras


def names(requirements: list[str]) -> set[str]:
    return {Requirement(text).name for text in requirements}


def test_extras_for_users_are_apart_from_those_for_development() -> None:
    """`all` has packages that users may want; no linter, no test tool."""
    for_users = {"arrow", "browse", "spark", "metrics", "json", "all"}
    assert set(EXTRAS) == for_users | {"docs", "test", "bench", "dev"}
    assert names(EXTRAS["arrow"]) == {"pyarrow"}
    assert names(EXTRAS["spark"]) == {"pyspark", "pyarrow"}
    assert names(EXTRAS["metrics"]) == {"opentelemetry-api"}
    assert names(EXTRAS["browse"]) == {"textual"}
    assert names(EXTRAS["json"]) == {"orjson"}
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.name == "pylogstore"
    assert everything.extras == for_users - {"all"}
    assert "pytest" in names(EXTRAS["test"])
    assert "textual" in names(EXTRAS["test"])  # the browser is tested, not skipped
    assert {"lmdb", "rocksdict", "matplotlib"} <= names(EXTRAS["bench"])
    assert Requirement(EXTRAS["dev"][0]).extras == {"docs", "test"}


IMPORT = """
import sys
import logstore
tools = {"click", "rich", "orjson", "pybase64", "textual"}
heavy = tools | {"pyarrow", "pandas", "polars", "duckdb", "numpy"}
print(sorted(heavy & set(sys.modules)))
"""


def test_import_loads_none_of_the_large_packages() -> None:
    """Services do not pay for them."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_wheels_are_built_for_every_python_that_is_promised() -> None:
    """The classifiers, cibuildwheel's list and the lower bound agree."""
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    promised = re.findall(r"Python :: 3\.(\d+)", classifiers)
    assert promised == ["10", "11", "12", "13", "14"]
    build = PROJECT["tool"]["cibuildwheel"]["build"]
    # Versions that only the workflow can test are built, and not promised yet.
    unpromised = ["cp314t-*", "cp315-*"]
    assert build.split() == [f"cp3{minor}-*" for minor in promised] + unpromised
    assert "skip" not in PROJECT["tool"]["cibuildwheel"]  # nor is musl left out
    assert PROJECT["project"]["requires-python"] == f">=3.{promised[0]}"
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert "make wheels" in workflow
    # The images have no JDK: the jar is built before them, and checked in the wheel.
    assert "setup-java" in workflow
    assert "--with-jar" in PROJECT["tool"]["cibuildwheel"]["test-command"]
    assert "ubuntu-24.04-arm" in workflow


# -------------------------------------------------------------------- the wheel


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_page_of_the_wheel_leads_to_the_repository(tmp_path: Path) -> None:
    """The page has an author and addresses, and no relative links."""
    address = "https://example.org/them/logstore"
    wheel = build_wheel(tmp_path / "sources", LOGSTORE_REPOSITORY=f"{address}/")
    metadata = metadata_of(wheel)
    assert metadata["Author"] == "The logstore authors"
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL") or [])
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(address) for url in urls.values())
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert len(links) > 20
    at = f"{address}/blob/v{logstore.__version__}"
    assert f"{at}/docs/guide.md" in links
    assert f"{address}/raw/v{logstore.__version__}/docs/images/demo.svg" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def expression(path: str, name: str) -> re.Pattern[str]:
    """A regular expression that a program of the repository has under a name."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            assert isinstance(node.value, ast.Call)
            return re.compile(ast.literal_eval(node.value.args[0]))
    raise AssertionError(f"{path} has no {name}")


# By docs/conf.py, in docs.
GENERATED_PAGES = ("api.md", "changelog.md", "contributing.md", "security.md")


def relative_links(page: str) -> list[str]:
    """The links and pictures of a page that lead into the repository, without code."""
    tokens = MarkdownIt().enable("table").parse(page)
    inner = [child for token in tokens for child in token.children or []]
    found = [
        str(one.attrs["href" if one.type == "link_open" else "src"])
        for one in inner
        if one.type in ("link_open", "image")
    ]
    return [link for link in found if not re.match(r"\w+:|#", link)]


def test_links_of_the_pages_are_found_by_the_wheel_and_by_the_site() -> None:
    """Both have their own expression: a build has only setup.py, and the site is built
    from a copy of the pages."""
    for_wheel = expression("setup.py", "RELATIVE")
    for_site = expression("docs/conf.py", "LOCAL_LINK")
    count = 0
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        if path.name in GENERATED_PAGES:
            continue
        page = path.read_text(encoding="utf-8")
        found = sorted(match[3] for match in for_wheel.finditer(page))
        assert found == sorted(match[2] for match in for_site.finditer(page)), path
        assert found == sorted(relative_links(page)), path
        count += len(found)
    assert count > 100


@pytest.mark.thorough  # the pages are run with a wheel in any case
@pytest.mark.slow
def test_wheel_is_manylinux_and_works_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One wheel for all versions of Python; installed into an empty environment with
    its dependencies, it writes, reads and has its command, and the reader in Java if
    that is built here."""
    wheel = shared_wheel(tmp_path_factory)
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", "dist", wheel],
        cwd=tmp_path,
        env={**os.environ, "PATH": search},
        capture_output=True,
        check=True,
    )
    (repaired,) = (tmp_path / "dist").glob("*.whl")
    name, version, _, tags = parse_wheel_filename(repaired.name)
    assert (name, str(version)) == ("pylogstore", logstore.__version__)
    for tag in tags:
        assert (tag.interpreter, tag.abi) == ("cp310", "abi3")
        assert re.match(r"(manylinux|musllinux)", tag.platform)
    python = environment_with(repaired, tmp_path / "venv")
    has_jar = bool(list((ROOT / "src" / "pyspark_logstore" / "jvm").glob("*.jar")))
    result = subprocess.run(
        [python, ROOT / "tests" / "wheel_check.py", *["--with-jar"] * has_jar],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "no problems" in result.stdout
    assert f"pylogstore {logstore.__version__} works" in result.stdout


def environment_with(wheel: Path, folder: Path) -> Path:
    """An environment with the wheel installed; its dependencies come from the
    environment of this test, so that no network is needed."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # Packages on PYTHONPATH would count as installed.
    alone = {**os.environ, "PYTHONPATH": ""}
    install = [*pip, "install", "--no-index", "--no-deps", wheel]
    subprocess.run(install, env=alone, check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    # These follow the environment's own packages: the wheel is found first.
    (packages / "shared.pth").write_text("\n".join(shared))
    return python


def test_page_names_what_a_service_needs_without_the_command() -> None:
    """All dependencies except for packages that only the command line imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.split(r"[><=]", text)[0] for text in project["dependencies"]}
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    (line,) = re.findall(r"^pip install (cffi .*)$", page, re.M)
    assert set(line.split()) == needed - {"click", "pybase64", "rich"}
    code = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("click", "orjson", "pybase64", "rich"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import logstore, tempfile
with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    partition = store.create_topic("orders")[0]
    partition.append(b"x", durable=True)
    assert [record.value for record in partition.read()] == [b"x"]
    assert logstore.verify(path).ok
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


# ------------------------------------------------------------------- the set-up

OLD_METADATA = "Metadata-Version: 2.1\nName: logstore\nVersion: 0.1.0\n"
ASK = "import importlib.metadata as m; print(m.version('logstore'))"


@pytest.mark.slow
def test_old_installation_is_removed(tmp_path: Path) -> None:
    """The distribution under its old name is removed from an environment; a second run
    finds nothing to do."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    old = packages / "logstore-0.1.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text(OLD_METADATA)
    (old / "INSTALLER").write_text("pip\n")
    (packages / "__editable__.logstore-0.1.0.pth").write_text(str(ROOT / "src"))
    listed = ["METADATA", "INSTALLER", "RECORD"]
    record = [f"logstore-0.1.0.dist-info/{name},," for name in listed]
    record.append("__editable__.logstore-0.1.0.pth,,")
    (old / "RECORD").write_text("\n".join(record) + "\n")
    environment = {**os.environ, "PYTHONPATH": ""}
    ask = [python, "-c", ASK]
    before = subprocess.run(ask, env=environment, capture_output=True, text=True)
    assert before.stdout == "0.1.0\n"
    remove = [python, ROOT / "tools" / "old_name.py"]
    for said in ("removing the distribution under its old name, logstore\n", ""):
        done = subprocess.run(remove, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert subprocess.run(ask, env=environment, capture_output=True).returncode == 1
    assert not list(packages.glob("*logstore*"))


def test_make_removes_the_old_installation_before_each_new_one() -> None:
    """Every recipe that installs the package does so."""
    text = (ROOT / "Makefile").read_text()
    installing = re.findall(r"^\$\(\w+_STAMP\):.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    recipes = [recipe for recipe in installing if "--editable" in recipe]
    assert len(recipes) == 5
    for recipe in recipes:
        assert recipe.startswith("\t@$(VPY) tools/old_name.py\n")


STEP = [sys.executable, str(ROOT / "tools" / "step.py")]


def test_step_of_the_set_up_says_what_it_does_and_how_long_it_took() -> None:
    """Two lines in a file; the output of the command is shown for failures only."""
    command = [*STEP, "2/3", "installing", "--", "echo", "noise"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert re.fullmatch(
        r"2/3 installing \.\.\.\n2/3 installing: done in [\d.]+ s\n", done.stdout
    )


def test_failed_step_shows_the_output_and_gives_its_status() -> None:
    """Make stops, and the output shows why."""
    command = [*STEP, "1/3", "label", "--", "sh", "-c", "echo no disk >&2; exit 7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 7
    assert "no disk\n" in done.stderr
    assert "1/3 label: failed with status 7" in done.stderr


def test_step_without_its_command_says_so() -> None:
    """A command that does not exist, and missing arguments."""
    gone = subprocess.run(
        [*STEP, "1/3", "x", "--", "/no/such"], capture_output=True, text=True
    )
    assert gone.returncode == 127
    assert "/no/such" in gone.stderr
    assert subprocess.run(STEP, capture_output=True).returncode == 2


def test_step_shows_a_bar_on_a_terminal() -> None:
    """The bar shows the last line of the command, cut to the width."""
    command = [*STEP, "3/3", "building", "--", "sh", "-c", "echo Collecting; sleep 0.4"]
    terminal, other_end = os.openpty()
    process = subprocess.Popen(command, stdout=other_end, stdin=subprocess.DEVNULL)
    os.close(other_end)
    output = bytearray()
    # The system's end of file, once the process has closed its end.
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 1024):
            output += data
    os.close(terminal)
    assert process.wait() == 0
    text = output.decode()
    assert re.search(r"\[#+\.+\] 3/3 building \(\d s\) Collecting", text)
    assert "3/3 building: done in" in text


def test_spark_module_without_pyspark_says_what_to_install() -> None:
    """The message is like that for other optional packages; a different missing module
    does not get the advice."""
    code = (
        "import sys\n"
        "sys.modules['{}'] = None\n"
        "try:\n    import logstore.spark\n"
        "except ImportError as error:\n    print(error)\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code.format(name)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("pyspark", "pyspark.sql.datasource", "py4j")
    ]
    advice = "install it with `pip install 'pylogstore[spark]'`"
    assert [advice in one for one in told] == [True, True, False], told
