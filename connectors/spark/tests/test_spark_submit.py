"""Programs started by spark-submit: its Java machine runs before the program does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
ROOT = Path(__file__).parents[3]
CONNECTOR = ROOT / "connectors" / "spark"
SETTINGS = (
    "spark.ui.enabled=false",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
)

HEAD = """
import json, logging, sys
import logstore.spark
from pyspark.sql import SparkSession

logging.basicConfig(format="%(levelname)s %(message)s")
path = sys.argv[1]
builder = SparkSession.builder
for setting in sys.argv[2:]:
    builder = builder.config(*setting.split("=", 1))
"""

# The rows found by both readers and the option, or the error; whether a class loader of
# the driver finds the user's jar; the jars that executors fetch.
TRY = """
SOCKETS = "spark.python.unix.domain.socket.enabled"

def outcome(name, **options):
    try:
        reader = spark.read.format(name).option("subscribe", "orders")
        frame = reader.options(**options).load(path)
        plan = str(frame._jdf.queryExecution().toString())
        return [frame.count(), "logstore-jvm" in plan]
    except Exception as error:
        return str(error)

machine = spark.sparkContext._jvm
loader = machine.java.lang.Thread.currentThread().getContextClassLoader()
jars = str(spark.sparkContext._jsc.sc().listJars())
result = {
    "logstore": outcome("logstore"),
    "logstore-jvm": outcome("logstore-jvm"),
    "auto": outcome("logstore", reader="auto"),
    "again": outcome("logstore", reader="auto"),
    "jvm": outcome("logstore", reader="jvm"),
    "driver": loader.getResource("of-the-user.txt") is not None,
    "user's": "of-the-user" in jars,
    "ours": jars.count("logstore-jvm.jar"),
    "sockets": spark.sparkContext.getConf().get(SOCKETS, ""),
}
spark.stop()
print(json.dumps(result))
"""

DEFAULTS = HEAD + """
spark = logstore.spark.session_defaults(builder).getOrCreate()
""" + TRY  # fmt: skip
REGISTERED = HEAD + """
spark = builder.getOrCreate()
logstore.spark.register(spark)
""" + TRY  # fmt: skip
BARE = HEAD.replace("import logstore.spark\n", "") + """
spark = builder.getOrCreate()
""" + TRY  # fmt: skip


@pytest.fixture
def user_jar(tmp_path: Path) -> Path:
    """A jar with a file that a class loader can look for."""
    path = tmp_path / "of-the-user-1.0.jar"
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("of-the-user.txt", "text")
    return path


@pytest.fixture
def run(java_home: str, tmp_path: Path) -> Callable[..., Any]:
    """Run a program to its end with spark-submit, or without; returns its last
    output."""
    home = Path(pyspark.__file__).parent
    conf = tmp_path / "conf"
    conf.mkdir()

    def run(
        program: str,
        *arguments: object,
        options: tuple[object, ...] = (),
        submit: bool = True,
        **environment: str,
    ) -> Any:
        script = tmp_path / "program.py"
        script.write_text(program)
        command: list[object] = [sys.executable, script]
        if submit:
            given = [part for setting in SETTINGS for part in ("--conf", setting)]
            command = [home / "bin" / "spark-submit", "--master", "local[2]"]
            command += [*given, *options, script]
        variables = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(conf),
            **({"JAVA_HOME": java_home} if java_home else {}),
            **environment,
        }
        if not variables["PYSPARK_PYTHON"]:
            del variables["PYSPARK_PYTHON"]
        done = subprocess.run(
            list(map(str, [*command, *arguments])),
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        result = json.loads(done.stdout.splitlines()[-1])
        # spark-submit gives both of the program's outputs as its own standard output.
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        result["warnings"] = [line for line in lines if "option reader=auto" in line]
        return result

    return run


@pytest.fixture
def topic(make_topic: Callable[..., logstore.Topic]) -> logstore.Topic:
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")
    return make_topic(count=10)


def both_readers(result: Any) -> bool:
    """Whether each way to choose a reader gives it, without a warning, and its jar is
    in the session once."""
    assert result["logstore"] == [10, False]
    for way in ("logstore-jvm", "auto", "again", "jvm"):
        assert result[way] == [10, True], way
    assert result["ours"] == 1
    assert not result["warnings"]
    return True


@pytest.mark.sampled(2)
@pytest.mark.parametrize("given", ["--jars", "--packages", "defaults", "builder"])
@pytest.mark.parametrize(
    "program", [DEFAULTS, REGISTERED], ids=["defaults", "register"]
)
def test_jars_of_the_user_stay_beside_ours(
    program: str,
    given: str,
    run: Callable[..., Any],
    topic: logstore.Topic,
    writer: logstore.Store,
    user_jar: Path,
    tmp_path: Path,
) -> None:
    """They may be given in any way."""
    options: tuple[object, ...] = ()
    settings: list[str] = []
    environment = {}
    sockets = "spark.python.unix.domain.socket.enabled"
    if given == "--jars":
        options = ("--jars", user_jar, "--conf", f"{sockets}=false")
    elif given == "--packages":
        # Maven's repository on this machine: nothing is downloaded.
        folder = tmp_path / "home/.m2/repository/org/example/of-the-user/1.0"
        folder.mkdir(parents=True)
        shutil.copy(user_jar, folder)
        (folder / "of-the-user-1.0.pom").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>"
            "<artifactId>of-the-user</artifactId><version>1.0</version></project>"
        )
        options = ("--packages", "org.example:of-the-user:1.0")
        options += ("--conf", f"spark.jars.ivy={tmp_path / 'ivy'}")
        environment["SPARK_SUBMIT_OPTS"] = f"-Duser.home={tmp_path / 'home'}"
    elif given == "defaults":
        defaults = tmp_path / "conf" / "spark-defaults.conf"
        defaults.write_text(f"spark.jars {user_jar}\n")
    else:
        settings = [f"spark.jars={user_jar}"]
    result = run(program, writer.path, *settings, options=options, **environment)
    assert both_readers(result)
    assert result["user's"]
    # A setting of the builder comes too late for the driver in any case.
    assert result["driver"] == (given != "builder")
    # The same applies to this setting, which has a default here from Spark 4.1 on.
    if given == "--jars":
        assert result["sockets"] == "false"
    elif program is DEFAULTS and VERSION >= (4, 1):
        assert result["sockets"] == "true"


@pytest.mark.thorough
def test_defaults_file_stays_without_spark_submit(
    run: Callable[..., Any],
    topic: logstore.Topic,
    writer: logstore.Store,
    user_jar: Path,
    tmp_path: Path,
) -> None:
    """The program starts the Java machine, which reads the file."""
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.write_text(f"spark.jars {user_jar}\n")
    settings = ["spark.master=local[2]", *SETTINGS]
    result = run(DEFAULTS, writer.path, *settings, submit=False)
    assert both_readers(result)
    assert result["user's"]
    assert result["driver"]


THREADS = HEAD + """
import threading
spark = logstore.spark.session_defaults(builder).getOrCreate()
counts = []
def count():
    reader = spark.read.format("logstore-jvm").option("subscribe", "orders")
    counts.append(reader.load(path).count())
threads = [threading.Thread(target=count) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
other = spark.newSession().read.format("logstore-jvm").option("subscribe", "orders")
counts.append(other.load(path).count())
spark.stop()
spark = logstore.spark.session_defaults(SparkSession.builder).getOrCreate()
count()
spark.stop()
print(json.dumps({"counts": counts}))
"""  # fmt: skip


@pytest.mark.thorough
def test_every_thread_and_session_finds_the_reader(
    run: Callable[..., Any], topic: logstore.Topic, writer: logstore.Store
) -> None:
    """Each thread of Python has one in Java; and a session after the first one has a
    separate context."""
    assert run(THREADS, writer.path)["counts"] == [10] * 5


@pytest.mark.thorough
def test_python_of_the_program_is_used_where_none_is_named(
    run: Callable[..., Any],
    topic: logstore.Topic,
    writer: logstore.Store,
    tmp_path: Path,
) -> None:
    """The machine looks for sources with the python3 of its search path, which has no
    logstore here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python3").chmod(0o755)
    result = run(
        DEFAULTS,
        writer.path,
        options=("--conf", f"spark.pyspark.driver.python={sys.executable}"),
        PYSPARK_PYTHON="",
        PATH=f"{folder}{os.pathsep}{os.environ['PATH']}",
    )
    assert both_readers(result)


@pytest.fixture
def without_jar(tmp_path: Path) -> Path:
    """A directory with the connector in the state of an installation without a JDK."""
    folder = tmp_path / "site"
    for package in ("pyspark_logstore", "pyspark_logstore_jvm"):
        ignored = shutil.ignore_patterns("*.jar", "__pycache__")
        shutil.copytree(CONNECTOR / package, folder / package, ignore=ignored)
    return folder


MENDED_BY = "`python -m logstore.spark` builds it"


@pytest.mark.parametrize(
    ("program", "warnings"),
    [
        pytest.param(DEFAULTS, 1, id="defaults"),
        pytest.param(REGISTERED, 1, id="register", marks=pytest.mark.thorough),
        pytest.param(BARE, 0, id="bare", marks=pytest.mark.thorough),
    ],
)
def test_name_without_a_jar_says_how_to_build_it(
    program: str,
    warnings: int,
    run: Callable[..., Any],
    make_topic: Callable[..., logstore.Topic],
    writer: logstore.Store,
    without_jar: Path,
) -> None:
    """`auto` falls back with one warning; an explicit choice gets the reason."""
    make_topic(count=10)
    result = run(program, writer.path, PYTHONPATH=str(without_jar))
    assert result["logstore"] == result["auto"] == result["again"] == [10, False]
    assert MENDED_BY in result["logstore-jvm"]
    assert len(result["warnings"]) == warnings
    if warnings:
        assert MENDED_BY in result["warnings"][0]
        assert MENDED_BY in result["jvm"]
    else:
        assert "call logstore.spark.register(spark)" in result["jvm"]


@pytest.mark.thorough
def test_name_without_a_registration_says_how_to_get_the_jar(
    run: Callable[..., Any], topic: logstore.Topic, writer: logstore.Store
) -> None:
    """The jar exists, but this session does not have it. If it is given to
    spark-submit, nothing else is needed."""
    import logstore.spark

    result = run(BARE, writer.path)
    assert result["logstore"] == [10, False]
    assert "call logstore.spark.register(spark), or" in result["logstore-jvm"]
    assert f"--jars {logstore.spark.jar_path()}" in result["logstore-jvm"]
    result = run(BARE, writer.path, options=("--jars", logstore.spark.jar_path()))
    assert result["logstore-jvm"] == [10, True]


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logstore.spark"],
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_command_builds_the_jar_or_says_why_not(without_jar: Path) -> None:
    """It prints the path alone, for ``--jars "$(python -m logstore.spark)"``."""
    if shutil.which("javac") is None:
        pytest.skip("there is no JDK here")
    refused = build(without_jar, PATH="", JAVA_HOME="")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "no javac found: install a JDK 17 or later" in refused.stderr
    for _ in range(2):
        built = build(without_jar)
        assert built.returncode == 0, built.stderr
        jar = Path(built.stdout.removesuffix("\n"))
        assert jar == without_jar / "pyspark_logstore" / "jvm" / "logstore-jvm.jar"
        with zipfile.ZipFile(jar) as archive:
            assert "logstore/spark/LogSource.class" in archive.namelist()


def test_command_says_that_it_may_not_write(without_jar: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("there is no JDK here")
    # Root may write anywhere, but not replace a directory by a file.
    (without_jar / "pyspark_logstore" / "jvm" / "logstore-jvm.partial").mkdir()
    refused = build(without_jar)
    assert refused.returncode == 1
    assert "cannot be written" in refused.stderr
    assert "as the user that installed logstore" in refused.stderr
