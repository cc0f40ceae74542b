"""kafka-python's builder and parser, which are Python."""

from __future__ import annotations

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from bench.peers.kafka_records import Builder, Parser

__all__ = ["AppendMany", "AppendManyV2", "Read", "ReadV2"]


class AppendMany(Builder):
    name = "kafka-python builder v1"
    magic = 1
    builder = LegacyRecordBatchBuilder
    memory_records = MemoryRecords


class AppendManyV2(Builder):
    name = "kafka-python builder v2"
    magic = 2
    builder = DefaultRecordBatchBuilder
    memory_records = MemoryRecords


class Read(Parser):
    name = "kafka-python parser v1"
    magic = 1
    builder = LegacyRecordBatchBuilder
    memory_records = MemoryRecords


class ReadV2(Parser):
    name = "kafka-python parser v2"
    magic = 2
    builder = DefaultRecordBatchBuilder
    memory_records = MemoryRecords
