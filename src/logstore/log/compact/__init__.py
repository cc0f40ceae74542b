"""Compaction of a log, as Kafka's cleaner does it."""
