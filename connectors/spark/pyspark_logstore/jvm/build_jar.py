"""Compiles the reader in Java.

It needs ``javac`` 17 or later, from JAVA_HOME or the search path, and the jars of an
installed pyspark, or of SPARK_HOME. The jar runs on Spark 4.0 to 4.3 and Java 17 or
later, whatever it was compiled with. Without them nothing is built, and it says so:
logstore then works without the format ``logstore-jvm``; ``python -m logstore.spark``
builds the jar later. A jar of the same sources that is there already stays: wheels of a
release are built in images without a JDK, and the jar before, once.

The build of logstore runs this file (`setup.py`), also as a program (`Makefile`): it
imports nothing of logstore. With ``--required`` it is an error if there is no jar in
the end.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

# The sources do not compile.
CompileError = subprocess.CalledProcessError

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "java"
JAR = HERE / "logstore-jvm.jar"
PROVIDER = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
SOURCE = "logstore.spark.LogSource"
RELEASE = "17"
MANIFEST = "META-INF/MANIFEST.MF"
# Spark's jars name others in their manifests that are not there, and have annotations
# whose classes are not; the exceptions and tasks have no use for version numbers.
WARNINGS = "-Xlint:all,-path,-classfile,-processing,-serial"


def find_javac() -> str | None:
    """The compiler, if there is one."""
    home = os.environ.get("JAVA_HOME", "")
    own = Path(home, "bin", "javac")
    return str(own) if home and own.exists() else shutil.which("javac")


def find_jars() -> Path | None:
    """The directory of Spark's jars, if there is one."""
    found = importlib.util.find_spec("pyspark")
    homes = [
        Path(place) for place in (found and found.submodule_search_locations) or ()
    ]
    # A build that pip isolates does not import the packages of the environment.
    homes.append(Path(sysconfig.get_path("purelib"), "pyspark"))
    if os.environ.get("SPARK_HOME"):
        homes.append(Path(os.environ["SPARK_HOME"]))
    return next((home / "jars" for home in homes if (home / "jars").is_dir()), None)


def build(target: Path = JAR) -> str:
    """Make the jar; returns why it was not made, else "".

    Raises:
        CompileError: the sources do not compile.
    """
    javac, jars = find_javac(), find_jars()
    reason = ""
    if javac is None:
        reason = "no javac found: install a JDK 17 or later, or set JAVA_HOME"
    elif jars is None:
        reason = "no jars of Spark found: install pyspark, or set SPARK_HOME"
    if javac is None or jars is None:
        if is_current(target):
            return ""
        target.unlink(missing_ok=True)  # it was made of other sources
        return reason
    sources = list(map(str, _sources()))
    with tempfile.TemporaryDirectory() as folder:
        command = [javac, "--release", RELEASE, WARNINGS, "-Werror", "-g:none"]
        command += ["-d", folder, "-cp", f"{jars}/*", *sources]
        subprocess.run(command, check=True, stdout=sys.stderr)
        partial = target.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as jar:
            _add(jar, MANIFEST, _manifest())
            _add(jar, PROVIDER, f"{SOURCE}\n".encode())
            for path in sorted(Path(folder).rglob("*.class")):
                _add(jar, str(path.relative_to(folder)), path.read_bytes())
        partial.replace(target)
    return ""


def is_current(target: Path) -> bool:
    """Whether there is a jar, made of these sources."""
    try:
        with zipfile.ZipFile(target) as jar:
            return jar.read(MANIFEST) == _manifest()
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("logstore/*/*.java"))


def _manifest() -> bytes:
    digest = hashlib.sha256()
    for source in _sources():
        digest.update(f"{source.relative_to(SOURCES)}\n".encode() + source.read_bytes())
    # A line has at most 72 bytes.
    text = f"Manifest-Version: 1.0\r\nSources: {digest.hexdigest()[:40]}\r\n\r\n"
    return text.encode()


def _add(jar: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Without times: the same sources make the same jar."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    jar.writestr(info, content, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Build it in place."""
    parser = argparse.ArgumentParser(description="Compiles the reader in Java.")
    parser.add_argument("--required", action="store_true")
    is_required = parser.parse_args().required
    reason = build()
    if reason:
        text = f"the reader in Java (logstore-jvm) is not built: {reason}"
        sys.exit(text) if is_required else print(text)
    else:
        print(f"{JAR.name}: {JAR.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
