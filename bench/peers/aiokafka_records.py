"""aiokafka's builder and parser, which are compiled (Cython)."""

from __future__ import annotations

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from bench.peers.kafka_records import Builder, Parser

__all__ = ["AppendMany", "AppendManyV2", "Read", "ReadV2"]


class AppendMany(Builder):
    name = "aiokafka builder v1"
    magic = 1
    builder = LegacyRecordBatchBuilder
    memory_records = MemoryRecords


class AppendManyV2(Builder):
    name = "aiokafka builder v2"
    magic = 2
    builder = DefaultRecordBatchBuilder
    memory_records = MemoryRecords


class Read(Parser):
    name = "aiokafka parser v1"
    magic = 1
    builder = LegacyRecordBatchBuilder
    memory_records = MemoryRecords


class ReadV2(Parser):
    name = "aiokafka parser v2"
    magic = 2
    builder = DefaultRecordBatchBuilder
    memory_records = MemoryRecords
