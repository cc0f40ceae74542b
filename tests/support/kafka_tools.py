"""Kafka's own dump tool, `DumpLogSegments`, on our files.

Maven fetches the jars named in `tests/interop/kafka/pom.xml` once; each start of the
tool then costs about a second, so one start looks at many files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POM = Path(__file__).resolve().parents[1] / "interop" / "kafka" / "pom.xml"
OLD_POM = POM.with_name("old-pom.xml")
# From 4.3 on it is written in Java, in another package.
MAIN_CLASS = "org.apache.kafka.tools.DumpLogSegments"
OLD_MAIN_CLASS = "kafka.tools.DumpLogSegments"
JAVA_VERSION_MIN = 17
NEEDS = "needs Java 17+ and Maven"
FETCH_SECONDS_MAX = 300
DUMP_SECONDS_MAX = 120

# Linux takes at most 128 KiB in one argument, and all files go in one.
FILES_ARGUMENT_BYTES_MAX = 100_000

# The tool runs for a second: no time for optimizing, one thread collects.
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx512m",
    "-Dfile.encoding=UTF-8",
    "-Dsun.stdout.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
)


class ToolsUnavailableError(Exception):
    """Java, Maven or the jars are missing; the message says which."""


@dataclass(frozen=True, slots=True)
class Dump:
    """Output of one run.

    Attributes:
        text: standard output.
        complaints: lines of standard error, without those about logging.
    """

    text: str
    complaints: tuple[str, ...]

    def sections(self) -> dict[str, list[str]]:
        """The lines of each file, by the path given for it.

        A section's lines come after its "Dumping" line. Values in tests have no
        line ends, and only "\n" is one: others occur in values.
        """
        found: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in self.text.removesuffix("\n").split("\n"):
            if line.startswith("Dumping "):
                lines = found.setdefault(line.removeprefix("Dumping "), [])
            else:
                lines.append(line)
        return found


class KafkaTools:
    """A classpath and a Java to run it.

    Attributes:
        java: path of the program.
        classpath: of Kafka's jars, its broker among them.
        dump_class: the dump tool.
    """

    def __init__(self, java: str, classpath: str, dump_class: str) -> None:
        self.java = java
        self.classpath = classpath
        self.dump_class = dump_class

    @classmethod
    def find(cls, cache: Path, release: str = "") -> KafkaTools:
        """Have the jars fetched, or use what an earlier call left in `cache`.

        Args:
            release: of Kafka; empty: the one that the pom names.

        Raises:
            ToolsUnavailableError: something is missing.
        """
        numbers = numbers_of(release or _release_of_pom())
        pom = OLD_POM if numbers < (2, 4) else POM
        main = MAIN_CLASS if numbers >= (4, 3) else OLD_MAIN_CLASS
        return cls(_find_java(), find_classpath(pom, cache, release), main)

    def dump(self, files: Iterable[Path], *options: str, root: Path) -> Dump:
        """Run the tool on files; they are named relative to `root` in its output.

        Raises:
            AssertionError: the tool ended with an exception.
        """
        names = [file.relative_to(root).as_posix() for file in files]
        texts, complaints = [], []
        for group in _groups(names):
            java = [self.java, *JAVA_OPTIONS, "-cp", self.classpath, self.dump_class]
            run = subprocess.run(
                [*java, *options, "--files", ",".join(group)],
                cwd=root,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=DUMP_SECONDS_MAX,
                check=False,
            )
            assert run.returncode == 0, run.stderr
            texts.append(run.stdout)
            complaints += [
                line
                for line in run.stderr.split("\n")
                if line and not line.startswith("log4j:")
            ]
        return Dump("".join(texts), tuple(complaints))


def numbers_of(release: str) -> tuple[int, ...]:
    """A release as numbers, in a form that can be compared."""
    return tuple(int(part) for part in release.split("."))


def _release_of_pom() -> str:
    """The release that the pom names."""
    match = re.search(r"<kafka.version>(.+)</kafka.version>", POM.read_text("utf-8"))
    assert match is not None
    return match[1]


def _groups(names: list[str]) -> Iterable[list[str]]:
    """The names in groups that fit an argument."""
    group: list[str] = []
    size = 0
    for name in names:
        if size + len(name) + 1 > FILES_ARGUMENT_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(name)
        size += len(name) + 1
    if group:
        yield group


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    in_home = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = in_home or shutil.which("java")
    if java is None:
        raise ToolsUnavailableError(f"{NEEDS}: no java")
    run = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    match = re.search(r'version "(\d+)', run.stderr)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        raise ToolsUnavailableError(f"{NEEDS}: {run.stderr.strip()}")
    return java


def find_classpath(pom: Path, cache: Path, release: str = "") -> str:
    """The jars that a pom names, fetched by Maven or by an earlier call.

    Args:
        release: the pom's ``kafka.version``; empty: what it says itself.

    Raises:
        ToolsUnavailableError: Maven, or one of them, is missing.
    """
    key = hashlib.sha256(pom.read_bytes() + release.encode()).hexdigest()[:16]
    kept = cache / f"classpath-{key}.txt"
    if kept.exists():
        classpath = kept.read_text("utf-8")
        if all(Path(jar).exists() for jar in classpath.split(os.pathsep)):
            return classpath
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolsUnavailableError(f"{NEEDS}: no mvn")
    fresh = cache / "classpath.tmp"
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath"]
    if release:
        command.append(f"-Dkafka.version={release}")
    try:
        run = subprocess.run(
            [*command, f"-Dmdep.outputFile={fresh}"],
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolsUnavailableError(f"{NEEDS}: fetching took too long") from None
    if run.returncode != 0 or not fresh.exists():
        output = (run.stdout + run.stderr).strip().split("\n")
        raise ToolsUnavailableError(f"{NEEDS}, and the jars: {output[0]}")
    fresh.replace(kept)
    return kept.read_text("utf-8")
