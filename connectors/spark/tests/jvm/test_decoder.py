"""The decoder in Java against the one in C: the same rows, the same verdict."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from support.java_decoder import BUILD, JavaDecoder, differences, java_decoder

# `python -m support.java_decoder COUNT SEED` tries more.
COUNT = 10_000


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> JavaDecoder:
    decoder = java_decoder(tmp_path_factory.mktemp("java"))
    if isinstance(decoder, str):
        pytest.skip(decoder)
    return decoder


def test_decoders_agree(java: JavaDecoder) -> None:
    """Whole batches, damaged ones, and ones with a mistake under a right checksum. Java
    may stop earlier if it leaves a batch to Python on purpose; it never delivers a row
    that C does not."""
    found, left = differences(java, COUNT, 20261124)
    assert found == []
    assert left < COUNT // 10


def test_jar_is_small_and_has_no_classes_of_others() -> None:
    """It goes into the wheel, and onto the class path of every executor."""
    if not BUILD["JAR"].exists():
        pytest.skip("the reader in Java is not built here")
    assert BUILD["JAR"].stat().st_size <= 150_000
    with zipfile.ZipFile(BUILD["JAR"]) as jar:
        names = [name for name in jar.namelist() if name.endswith(".class")]
    assert names
    assert {name.split("/")[0] for name in names} == {"logstore"}


def test_wheel_without_a_jdk_is_built_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = BUILD["build"](tmp_path / "none.jar")
    assert "install a JDK" in reason
    assert not (tmp_path / "none.jar").exists()


def test_jar_that_was_built_before_stays_where_there_is_no_jdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images in which the wheels of a release are built have none; a jar of other
    sources is removed."""
    if not BUILD["JAR"].exists() or not BUILD["is_current"](BUILD["JAR"]):
        pytest.skip("the reader in Java is not built here")
    jar = tmp_path / "copy.jar"
    shutil.copy(BUILD["JAR"], jar)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert BUILD["build"](jar) == ""
    assert jar.read_bytes() == BUILD["JAR"].read_bytes()
    with zipfile.ZipFile(jar, "w") as other:
        other.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0")
    assert "install a JDK" in BUILD["build"](jar)
    assert not jar.exists()
