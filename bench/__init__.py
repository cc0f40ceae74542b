"""Benchmarks of logstore and its rivals; see docs/benchmarks.md."""
