"""Records about groups: Kafka's own classes make the expected ones, and Kafka's own
tool reads the ones of logstore's groups."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from support.group_records import MADE_BY_KAFKA
from support.groups import consumer, drain, settle, store_with
from support.kafka_broker import cache_directory
from support.kafka_tools import JAVA_OPTIONS, POM, KafkaTools, ToolsUnavailableError
from support.releases import NEWEST

pytestmark = pytest.mark.kafka

SOURCE = POM.with_name("GroupRecords.java")


@pytest.fixture(scope="module")
def tools() -> KafkaTools:
    try:
        return KafkaTools.find(cache_directory(), NEWEST)
    except ToolsUnavailableError as error:
        pytest.skip(str(error))


def test_kafka_writes_the_bytes_that_the_tests_read(tools: KafkaTools) -> None:
    """`MADE_BY_KAFKA` really is Kafka's output."""
    run = subprocess.run(
        [tools.java, *JAVA_OPTIONS, "-cp", tools.classpath, str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = (line.split() for line in run.stdout.splitlines())
    assert {name: bytes.fromhex(data) for name, data in lines} == MADE_BY_KAFKA


def test_file_of_a_group_is_read_by_the_offsets_decoder(
    tools: KafkaTools, tmp_path: Path
) -> None:
    """The file, under the name of a segment: its batches, its offsets, its members."""
    store = store_with(tmp_path / "store")
    with consumer(store, instance="first") as one:
        settle(one)
        drain(one)
        one.commit(
            {logstore.TopicPartition("t", 0): logstore.OffsetAndMetadata(7, "mü")}
        )
        (group,) = logstore.groups(store)
        log = tmp_path / f"{0:020d}.log"
        shutil.copy(store / layout.group_file("g"), log)
    dump = tools.dump([log], "--offsets-decoder", root=tmp_path)
    assert "isvalid: true" in dump.text
    assert "isvalid: false" not in dump.text
    found = [
        (json.loads(match[1]), json.loads(match[2]))
        for line in dump.text.splitlines()
        if (match := re.search(r" key: (.*) payload: (.*)$", line))
    ]
    (commit,) = (value["data"] for key, value in found if key["type"] == "1")
    assert (commit["offset"], commit["metadata"]) == (7, "mü")
    groups = [value["data"] for key, value in found if key["type"] == "2"]
    assert groups[-1]["generation"] == group.generation
    (member,) = groups[-1]["members"]
    assert member["memberId"] == group.members[0].member_id
    assert member["groupInstanceId"] == "first"
    assert member["assignment"]["assignedPartitions"] == [
        {"topic": "t", "partitions": [0, 1]}
    ]
