"""The bytes of records about groups in the tests are those of Kafka's own classes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.group_records import MADE_BY_KAFKA
from support.kafka_tools import JAVA_OPTIONS, POM, KafkaTools, ToolsUnavailableError

pytestmark = pytest.mark.kafka

# The first that has all of the records.
RELEASE = "4.2.0"
SOURCE = POM.with_name("GroupRecords.java")


def test_kafka_writes_the_bytes_that_the_tests_read(tmp_path: Path) -> None:
    """Nothing in `MADE_BY_KAFKA` is made up."""
    try:
        tools = KafkaTools.find(tmp_path, RELEASE)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))
    run = subprocess.run(
        [tools.java, *JAVA_OPTIONS, "-cp", tools.classpath, str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = (line.split() for line in run.stdout.splitlines())
    assert {name: bytes.fromhex(data) for name, data in lines} == MADE_BY_KAFKA
