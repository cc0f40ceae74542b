"""Compiles the reader in Java: ``python connectors/spark/java/build_jar.py``.

It needs ``javac`` 17 or later, from JAVA_HOME or the search path, and the jars of an
installed pyspark, or of SPARK_HOME. The jar runs on Spark 4.0 to 4.3 and Java 17 or
later, whatever it was compiled with. Without them nothing is built, and it says so:
logstore then works without the format ``logstore-jvm``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
JAR = HERE.parent / "pyspark_logstore" / "jvm" / "logstore-jvm.jar"
PROVIDER = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
SOURCE = "logstore.spark.LogSource"
RELEASE = "17"
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
    if os.environ.get("SPARK_HOME"):
        homes.append(Path(os.environ["SPARK_HOME"]))
    return next((home / "jars" for home in homes if (home / "jars").is_dir()), None)


def build(target: Path = JAR) -> str:
    """Make the jar; returns why it was not made, else "".

    Raises:
        subprocess.CalledProcessError: the sources do not compile.
    """
    javac, jars = find_javac(), find_jars()
    if javac is None:
        return "there is no javac: install a JDK 17 or later, or set JAVA_HOME"
    if jars is None:
        return "pyspark is not installed where logstore is built"
    sources = sorted(map(str, HERE.glob("logstore/*/*.java")))
    with tempfile.TemporaryDirectory() as folder:
        command = [javac, "--release", RELEASE, WARNINGS, "-Werror", "-g:none"]
        command += ["-d", folder, "-cp", f"{jars}/*", *sources]
        subprocess.run(command, check=True)
        partial = target.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as jar:
            _add(jar, "META-INF/MANIFEST.MF", b"Manifest-Version: 1.0\r\n\r\n")
            _add(jar, PROVIDER, f"{SOURCE}\n".encode())
            for path in sorted(Path(folder).rglob("*.class")):
                _add(jar, str(path.relative_to(folder)), path.read_bytes())
        partial.replace(target)
    return ""


def _add(jar: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Without times: the same sources make the same jar."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    jar.writestr(info, content, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Build it in place."""
    reason = build()
    if reason:
        print(f"the reader in Java (logstore-jvm) is not built: {reason}")
    else:
        print(f"{JAR.name}: {JAR.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
